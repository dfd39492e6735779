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

  start() {
    this.isOn = true;
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
    this.asking ??= this.run().finally(() => this.ended());
    return this.asking;
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
      const pause = Math.max(this.every * 2 ** Math.min(this.failures, 8), 1000 * (error.retryAfter ?? 0));
      this.trouble(error, this.next(pause));
    }
  }

  next(pause) {
    const wait = Math.min(SLOWEST, pause);
    if (this.isOn && !document.hidden) this.timer = setTimeout(() => this.now(), wait);
    return wait;
  }
}
