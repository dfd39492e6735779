// What is left of a lease, as a bar: drains by itself, refills when the lease is renewed.

import { el, write } from "./dom.js";
import { isStanding, serverNow } from "./clock.js";
import { brief, isKept, isQueued } from "./text.js";

const REFILL = 350;
const still = matchMedia("(prefers-reduced-motion: reduce)");
const bars = new Set();

export class Bar {
  constructor() {
    this.fill = el("i", {});
    this.text = el("span", { class: "left-text" });
    this.node = el("div", { class: "left-bar" }, el("span", { class: "track", "aria-hidden": "true" }, this.fill), this.text);
    this.holder = null;
    this.motion = null;
    this.drawnTo = 0;
    bars.add(this);
  }

  // The holder as the store has it now; null: nobody.
  update(holder) {
    this.node.classList.toggle("none", !holder);
    const renewed = holder && this.holder?.expires_at !== holder.expires_at;
    this.holder = holder;
    if (holder && (renewed || this.hasDrifted())) this.draw();
    this.tick();
  }

  // When it ends, on the browser's clock.
  get end() {
    return performance.now() + 1000 * (this.holder.expires_at - serverNow());
  }

  get left() {
    return this.holder ? Math.max(0, this.holder.expires_at - serverNow()) : 0;
  }

  get share() {
    return this.holder?.ttl ? Math.min(1, this.left / this.holder.ttl) : 0;
  }

  // Our idea of the server's time gets better with its answers.
  hasDrifted() {
    return Math.abs(this.drawnTo - this.end) > 250;
  }

  draw() {
    const from = this.motion ? currentShare(this.fill) : this.share;
    const lasts = Math.max(1, this.left * 1000);
    this.drawnTo = this.end;
    this.motion?.cancel();
    if (still.matches) return;
    const full = { transform: `scaleX(${this.share})`, offset: Math.min(0.5, REFILL / lasts) };
    this.motion = this.fill.animate(
      [{ transform: `scaleX(${from})` }, full, { transform: "scaleX(0)" }],
      { duration: lasts, fill: "forwards" },
    );
  }

  tick() {
    this.fill.style.setProperty("transform", `scaleX(${this.share})`);
    const isIdle = this.holder !== null && (isQueued(this.holder) || isKept(this.holder));
    this.node.classList.toggle("idle", isIdle);
    this.node.classList.toggle("overdue", !isIdle && this.share < 0.5);
    this.node.classList.toggle("last", !isIdle && this.share < 0.25);
    write(this.text, this.holder ? brief(this.left, 120) : "–");
    if (!this.motion) return;
    if (isStanding()) this.motion.pause();
    else if (this.motion.playState === "paused") this.draw();
  }
}

function currentShare(fill) {
  const matrix = /matrix\(([^,]+)/.exec(getComputedStyle(fill).transform);
  return matrix ? Number(matrix[1]) : 0;
}

export function tickBars() {
  for (const bar of bars) {
    if (bar.node.isConnected) bar.tick();
    else bars.delete(bar);
  }
}
