// The lock server's clock, as far as its answers tell: all times on the page are by it.

const KEPT = 20;
const seen = [];
let stopped = null;

const here = () => performance.now() / 1000;

// An answer that was true at `asOf` arrived just now. None arrives before it was true, so the
// largest difference of the last few is the nearest.
export function heard(asOf) {
  if (!asOf) return;
  seen.push(asOf - here());
  if (seen.length > KEPT) seen.shift();
  stopped = null;
}

export function serverNow() {
  if (stopped !== null) return stopped;
  return seen.length ? here() + Math.max(...seen) : Date.now() / 1000;
}

// While nobody answers, time stands still: what we show is what was, not what we guess.
export function stand() {
  stopped = serverNow();
}
