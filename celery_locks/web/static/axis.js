// Holds, waits and operators' acts of one lock on an axis of time that ends now.

import { serverNow } from "./clock.js";
import { el, svg } from "./dom.js";
import { moment, plural, span, spelled, who } from "./text.js";

const WIDTH = 400;
const LEFT = 44;
const LANE = 12;
const MOST_LANES = 6;
const RECENT_HOLDS = 5;
const LEAST = 30; // seconds
const MOST_WAITS = 8;
const RECENT = "recent";
const RANGES = { "10 min": 600, "1 h": 3600, "1 day": 86400 };
const STEPS = [1, 5, 10, 30, 60, 120, 300, 600, 1200, 3600, 7200, 21600, 43200, 86400, 172800, 604800];
const MOST_TICKS = 4;

export class Axis {
  constructor() {
    this.range = RECENT;
    this.figure = el("div", {});
    this.buttons = [RECENT, ...Object.keys(RANGES), "all"].map((name) =>
      el("button", { type: "button", onclick: () => this.choose(name) }, name),
    );
    this.choice = el("div", { class: "ranges", role: "group", "aria-label": "How far back" }, ...this.buttons);
    this.node = el("div", { class: "axis" }, this.choice, this.figure);
  }

  choose(name) {
    this.range = name;
    this.update(this.lock, this.acts);
  }

  // How far back: as chosen, or with everything that goes on now and some past holds, or all.
  seconds(bars, now) {
    if (RANGES[this.range]) return RANGES[this.range];
    const past = bars.filter((one) => one.kind !== "present");
    const shown = this.range === RECENT ? past.slice(-RECENT_HOLDS) : past;
    const people = [...this.lock.holders, ...this.lock.waiters].map((one) => one.acquired_at);
    const acts = this.range === RECENT ? [] : this.acts.map((act) => act.at);
    return 1.05 * (now - Math.min(now - LEAST, ...shown.map((one) => one.from), ...people, ...acts));
  }

  update(lock, acts) {
    [this.lock, this.acts] = [lock, acts];
    const now = serverNow();
    const bars = holdsOf(lock, acts, now);
    for (const button of this.buttons)
      button.setAttribute("aria-pressed", String(button.textContent === this.range));
    this.figure.replaceChildren(draw(lock, acts, bars, now - this.seconds(bars, now), now));
  }
}

// Past holds (the store keeps those of a second or more) and present ones.
function holdsOf(lock, acts, now) {
  const past = acts
    .filter((act) => act.held_for != null)
    .map((act) => ({
      from: act.at - act.held_for,
      to: act.at,
      kind: act.act === "held" ? "hold" : "lapse",
      words: `${told(act.holders?.[0])} held it for ${span(act.held_for)} until ${moment(act.at)}`,
    }));
  const present = lock.holders.map((one) => ({
    from: one.acquired_at,
    to: now,
    kind: "present",
    words: `${told(one)} has held it for ${span(now - one.acquired_at)}`,
  }));
  return [...past, ...present].sort((a, b) => a.from - b.from);
}

const told = (holder) => (holder ? spelled(who(holder)) : "somebody");

// Each into the first lane that is free again; a semaphore's holds lie side by side.
function intoLanes(bars) {
  const ends = [];
  return bars.map((bar) => {
    const free = ends.findIndex((end) => end <= bar.from + 0.001);
    const lane = free < 0 ? Math.min(ends.length, MOST_LANES - 1) : free;
    ends[lane] = Math.max(ends[lane] ?? 0, bar.to);
    return { ...bar, lane };
  });
}

function draw(lock, acts, bars, from, now) {
  const shown = intoLanes(bars.filter((one) => one.to >= from));
  const waits = lock.waiters.slice(0, MOST_WAITS);
  const lanes = Math.max(1, ...shown.map((one) => one.lane + 1));
  const waitsTop = 8 + lanes * LANE + 6;
  const floor = waitsTop + (waits.length ? waits.length * LANE : -6) + 4;
  const x = (at) => LEFT + ((Math.max(at, from) - from) / (now - from || 1)) * (WIDTH - LEFT - 4);
  return svg(
    "svg",
    {
      class: "time-axis",
      viewBox: `0 0 ${WIDTH} ${floor + 20}`,
      role: "img",
      "aria-label": summary(shown, lock, acts, from, now),
    },
    ...ticks(from, now, x, floor),
    label("holds", 8 + (lanes * LANE) / 2),
    ...shown.map((one) => bar(x(one.from), x(one.to), 8 + one.lane * LANE, one.kind, one.words)),
    ...(waits.length ? [label("waits", waitsTop + (waits.length * LANE) / 2)] : []),
    ...waits.map((one, index) =>
      bar(
        x(one.acquired_at),
        x(now),
        waitsTop + index * LANE,
        "wait",
        `${told(one)} has waited for ${span(now - one.acquired_at)}`,
      ),
    ),
    ...acts.filter((act) => act.held_for == null && act.at >= from).map((act) => flag(act, x(act.at), floor)),
  );
}

function bar(from, to, y, kind, words) {
  const box = svg("rect", { x: from, y, width: Math.max(2, to - from), height: LANE - 4, rx: 2 });
  return svg("g", { class: kind }, svg("title", {}, words), box);
}

function label(text, y) {
  return svg("text", { class: "lane", x: LEFT - 8, y: y + 2, "text-anchor": "end" }, text);
}

function flag(act, x, floor) {
  const words = `${moment(act.at)}: ${spelled(act.by || "somebody")} (${act.act}) ${spelled(act.why)}`;
  return svg(
    "g",
    { class: `flag ${act.act}` },
    svg("title", {}, words),
    svg("line", { x1: x, x2: x, y1: 2, y2: floor }),
    svg("circle", { cx: x, cy: 3, r: 3 }),
  );
}

function ticks(from, now, x, floor) {
  const step = STEPS.find((one) => (now - from) / one <= MOST_TICKS) ?? (now - from) / MOST_TICKS;
  // Round by the reader's clock, as the labels are.
  const shift = -new Date(now * 1000).getTimezoneOffset() * 60;
  const made = [svg("line", { class: "floor", x1: LEFT, x2: WIDTH, y1: floor, y2: floor })];
  for (let at = Math.ceil((from + shift) / step) * step - shift; at <= now; at += step) {
    made.push(
      svg("line", { class: "grid", x1: x(at), x2: x(at), y1: 4, y2: floor }),
      svg("text", { x: Math.min(x(at), WIDTH - 22), y: floor + 14, "text-anchor": "middle" }, clock(at, step)),
    );
  }
  return made;
}

function clock(at, step) {
  const then = new Date(at * 1000);
  if (step >= 86400) return then.toLocaleDateString([], { month: "short", day: "numeric" });
  const time = { hour: "2-digit", minute: "2-digit", hour12: false };
  return then.toLocaleTimeString([], step < 60 ? { ...time, second: "2-digit" } : time);
}

function summary(bars, lock, acts, from, now) {
  const past = bars.filter((one) => one.kind !== "present").length;
  const did = acts.filter((act) => act.held_for == null && act.at >= from).length;
  return `The last ${span(now - from)}: ${plural(past, "past hold", "past holds")}, ${plural(lock.holders.length, "present holder", "present holders")}, ${plural(lock.waiters.length, "waiter", "waiters")}, ${plural(did, "act of an operator", "acts of operators")}.`;
}
