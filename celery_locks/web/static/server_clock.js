// The lock server's clock, estimated from its answers; all times on the page use it.

const MAX_OFFSETS = 20;
const offsets = [];
let stopped = null;

const localNow = () => performance.now() / 1000;

// An answer read at `asOf` arrived now. Delays only make the difference smaller, so the largest of
// the last few is the most accurate.
export function syncClock(asOf) {
  if (!asOf) return;
  offsets.push(asOf - localNow());
  if (offsets.length > MAX_OFFSETS) offsets.shift();
  stopped = null;
}

export function serverNow() {
  if (stopped !== null) return stopped;
  return offsets.length ? localNow() + Math.max(...offsets) : Date.now() / 1000;
}

// While the server does not answer, time stops: show what was known, do not guess.
export function stopClock() {
  stopped = serverNow();
}
