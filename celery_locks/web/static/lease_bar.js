// The remaining time of a lease as a bar: it drains, and refills when the lease is renewed.

import { serverNow } from "./server_clock.js";
import { el, setText } from "./dom.js";
import { formatBrief, isKept, isQueued } from "./format.js";

// Small steps, but none too small to see: the page may be open all night on a battery.
export const STEP = 200;
const MIN_CHANGE = 0.003;
// A list of 100,000 locks is read rarely, and its leases are renewed meanwhile: the bar drains for
// this many seconds after the reading, then it stops.
const MAX_EXTRAPOLATION = 5;
const bars = new Set();

export class LeaseBar {
  constructor() {
    this.fill = el("i", {});
    this.text = el("span", { class: "lease-text" });
    this.node = el(
      "div",
      { class: "lease-bar", title: "Lease: time until the lock expires unless its holder renews it" },
      el("span", { class: "lease-label" }, "Lease"),
      el("span", { class: "track", "aria-hidden": "true" }, this.fill),
      this.text,
    );
    this.holder = null;
    this.drawn = null;
    bars.add(this);
  }

  // The holder as it was at `asOf`; null: nobody holds the lock.
  update(holder, asOf) {
    this.holder = holder;
    this.asOf = asOf;
    this.node.classList.toggle("none", !holder);
    this.node.classList.toggle("idle", holder !== null && (isQueued(holder) || isKept(holder)));
    this.draw();
    this.tick();
  }

  get left() {
    const now = Math.min(serverNow(), this.asOf + MAX_EXTRAPOLATION);
    return this.holder ? Math.max(0, this.holder.expires_at - now) : 0;
  }

  get share() {
    return this.holder?.ttl ? Math.min(1, this.left / this.holder.ttl) : 0;
  }

  draw() {
    const { share } = this;
    if (this.drawn !== null && Math.abs(share - this.drawn) < MIN_CHANGE) return;
    this.fill.classList.toggle("refills", this.drawn !== null && share > this.drawn);
    this.fill.style.setProperty("transform", `scaleX(${share})`);
    this.drawn = share;
  }

  // A queued message or an ended job does not renew, so it is never overdue.
  tick() {
    const renews = this.holder && !this.node.classList.contains("idle");
    this.node.classList.toggle("overdue", renews && this.share < 0.5);
    this.node.classList.toggle("last", renews && this.share < 0.25);
    setText(this.text, this.holder ? formatBrief(this.left, 120) : "–");
  }
}

function forEachBar(update) {
  for (const bar of bars) {
    if (bar.node.isConnected) update(bar);
    else bars.delete(bar);
  }
}

export const tickBars = () => forEachBar((bar) => bar.tick());

export const drawBars = () => forEachBar((bar) => bar.draw());
