// Asking again and again while somebody looks: less often when the server is slow or gone.

const SLOWEST = 30_000;
const SHARE = 3; // of the time, the server has to itself

export class Poller {
  // `ask` returns a promise; `trouble(error, nextIn)` hears when it failed, and asks go on.
  constructor(ask, every, trouble = () => {}) {
    this.ask = ask;
    this.every = every;
    this.trouble = trouble;
    this.timer = 0;
    this.failures = 0;
    this.isOn = false;
    this.asking = null;
    this.again = false;
    document.addEventListener("visibilitychange", () => this.isOn && !document.hidden && this.now());
  }

  // Anew, about something else perhaps: an answer that is still on its way is not waited for.
  start() {
    this.isOn = true;
    this.asking = null;
    return this.now();
  }

  stop() {
    this.isOn = false;
    clearTimeout(this.timer);
  }

  // Ask at once; if an answer is on its way already, ask once more after it.
  now() {
    clearTimeout(this.timer);
    this.again = this.asking !== null;
    if (this.again) return this.asking;
    const mine = this.run().finally(() => this.asking === mine && this.ended());
    this.asking = mine;
    return mine;
  }

  ended() {
    this.asking = null;
    if (this.again && this.isOn) this.now();
  }

  async run() {
    const began = performance.now();
    try {
      await this.ask();
      this.failures = 0;
      this.next(Math.max(this.every, SHARE * (performance.now() - began)));
    } catch (error) {
      this.failures += 1;
      const pause = Math.max(
        this.every * 2 ** Math.min(this.failures - 1, 8),
        1000 * (error.retryAfter ?? 0),
      );
      const wait = this.next(pause);
      if (this.isOn) this.trouble(error, wait);
    }
  }

  next(pause) {
    const wait = Math.min(SLOWEST, pause);
    clearTimeout(this.timer);
    if (this.isOn && !document.hidden) this.timer = setTimeout(() => this.now(), wait);
    return wait;
  }
}
