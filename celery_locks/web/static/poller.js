// Repeats a request while the page is visible; less often if the server is slow or unreachable.

const MAX_INTERVAL = 30_000;
const INTERVAL_FACTOR = 3; // a request takes at most a third of the time

export class Poller {
  // `request` returns a promise; `onError(error, nextIn)` is called if it fails, and polling goes on.
  constructor(request, interval, onError = () => {}) {
    this.request = request;
    this.interval = interval;
    this.onError = onError;
    this.timer = 0;
    this.failures = 0;
    this.isOn = false;
    this.pending = null;
    this.again = false;
    document.addEventListener("visibilitychange", () => this.isOn && !document.hidden && this.now());
  }

  // Start, perhaps with another query: do not wait for an answer that is still on its way.
  start() {
    this.isOn = true;
    this.pending = null;
    return this.now();
  }

  stop() {
    this.isOn = false;
    clearTimeout(this.timer);
  }

  // Send a request now; if one is pending, send another after it.
  now() {
    clearTimeout(this.timer);
    this.again = this.pending !== null;
    if (this.again) return this.pending;
    const current = this.run().finally(() => this.pending === current && this.finished());
    this.pending = current;
    return current;
  }

  finished() {
    this.pending = null;
    if (this.again && this.isOn) this.now();
  }

  async run() {
    const began = performance.now();
    try {
      await this.request();
      this.failures = 0;
      this.schedule(Math.max(this.interval, INTERVAL_FACTOR * (performance.now() - began)));
    } catch (error) {
      this.failures += 1;
      const pause = Math.max(
        this.interval * 2 ** Math.min(this.failures - 1, 8),
        1000 * (error.retryAfter ?? 0),
      );
      const wait = this.schedule(pause);
      if (this.isOn) this.onError(error, wait);
    }
  }

  schedule(pause) {
    const wait = Math.min(MAX_INTERVAL, pause);
    clearTimeout(this.timer);
    if (this.isOn && !document.hidden) this.timer = setTimeout(() => this.now(), wait);
    return wait;
  }
}
