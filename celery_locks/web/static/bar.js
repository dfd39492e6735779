// What is left of a lease, as a bar: drains by itself, refills when the lease is renewed.

import { serverNow } from "./clock.js";
import { el, write } from "./dom.js";
import { brief, isKept, isQueued } from "./text.js";

// Small steps, and none that nobody could see: the page may be open all night on a battery.
export const STEP = 200;
const LEAST = 0.003;
// A list of 100,000 locks is read only now and then, and has been renewed since: for so many
// seconds we count on from what was read, then the bar stands.
const BELIEVED = 5;
const bars = new Set();

export class Bar {
  constructor() {
    this.fill = el("i", {});
    this.text = el("span", { class: "left-text" });
    this.node = el(
      "div",
      { class: "left-bar", title: "Lease: time until the lock expires unless its holder renews it" },
      el("span", { class: "left-label" }, "Lease"),
      el("span", { class: "track", "aria-hidden": "true" }, this.fill),
      this.text,
    );
    this.holder = null;
    this.drawn = null;
    bars.add(this);
  }

  // The holder as the store had it at `asOf`; null: nobody.
  update(holder, asOf) {
    this.holder = holder;
    this.asOf = asOf;
    this.node.classList.toggle("none", !holder);
    this.node.classList.toggle("idle", holder !== null && (isQueued(holder) || isKept(holder)));
    this.draw();
    this.tick();
  }

  get left() {
    const now = Math.min(serverNow(), this.asOf + BELIEVED);
    return this.holder ? Math.max(0, this.holder.expires_at - now) : 0;
  }

  get share() {
    return this.holder?.ttl ? Math.min(1, this.left / this.holder.ttl) : 0;
  }

  draw() {
    const { share } = this;
    if (this.drawn !== null && Math.abs(share - this.drawn) < LEAST) return;
    this.fill.classList.toggle("refills", this.drawn !== null && share > this.drawn);
    this.fill.style.setProperty("transform", `scaleX(${share})`);
    this.drawn = share;
  }

  // A message or an ended job renews nothing, so nothing of it is overdue.
  tick() {
    const renews = this.holder && !this.node.classList.contains("idle");
    this.node.classList.toggle("overdue", renews && this.share < 0.5);
    this.node.classList.toggle("last", renews && this.share < 0.25);
    write(this.text, this.holder ? brief(this.left, 120) : "–");
  }
}

function each(act) {
  for (const bar of bars) {
    if (bar.node.isConnected) act(bar);
    else bars.delete(bar);
  }
}

export const tickBars = () => each((bar) => bar.tick());

export const drawBars = () => each((bar) => bar.draw());
