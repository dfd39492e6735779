// The holds, waits and operators' actions of one lock over time, up to now.

import { serverNow } from "./server_clock.js";
import { el, svg } from "./dom.js";
import { formatTime, plural, formatDuration, escapeText, describeHolder } from "./format.js";

const WIDTH = 400;
const LEFT = 44;
const LANE = 12;
const MAX_LANES = 6;
const RECENT_HOLDS = 5;
const MIN_RANGE = 30; // seconds
const MAX_WAITS = 8;
const RECENT = "recent";
const RANGES = { "10 min": 600, "1 h": 3600, "1 day": 86400 };
const STEPS = [1, 5, 10, 30, 60, 120, 300, 600, 1200, 3600, 7200, 21600, 43200, 86400, 172800, 604800];
const MAX_TICKS = 4;

export class TimeAxis {
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
    this.update(this.lock, this.entries);
  }

  // How far back to show: the chosen range; present holds and waits with a few past holds; or all.
  seconds(bars, now) {
    if (RANGES[this.range]) return RANGES[this.range];
    const past = bars.filter((bar) => bar.kind !== "present");
    const visible = this.range === RECENT ? past.slice(-RECENT_HOLDS) : past;
    const present = [...this.lock.holders, ...this.lock.waiters].map((holder) => holder.acquired_at);
    const actions = this.range === RECENT ? [] : this.entries.map((entry) => entry.at);
    return 1.05 * (now - Math.min(now - MIN_RANGE, ...visible.map((bar) => bar.from), ...present, ...actions));
  }

  update(lock, entries) {
    [this.lock, this.entries] = [lock, entries];
    const now = serverNow();
    const bars = holdBars(lock, entries, now);
    for (const button of this.buttons)
      button.setAttribute("aria-pressed", String(button.textContent === this.range));
    this.figure.replaceChildren(draw(lock, entries, bars, now - this.seconds(bars, now), now));
  }
}

// Past holds (the store keeps those of a second or more) and present ones.
function holdBars(lock, entries, now) {
  const past = entries
    .filter((entry) => entry.held_for != null)
    .map((entry) => ({
      from: entry.at - entry.held_for,
      to: entry.at,
      kind: entry.act === "held" ? "hold" : "lapse",
      title: `${describe(entry.holders?.[0])} held it for ${formatDuration(entry.held_for)} until ${formatTime(entry.at)}`,
    }));
  const present = lock.holders.map((holder) => ({
    from: holder.acquired_at,
    to: now,
    kind: "present",
    title: `${describe(holder)} has held it for ${formatDuration(now - holder.acquired_at)}`,
  }));
  return [...past, ...present].sort((a, b) => a.from - b.from);
}

const describe = (holder) => (holder ? escapeText(describeHolder(holder)) : "somebody");

// Put each bar into the first free lane: holds of a lock with several slots overlap.
function assignLanes(bars) {
  const ends = [];
  return bars.map((bar) => {
    const free = ends.findIndex((end) => end <= bar.from + 0.001);
    const lane = free < 0 ? Math.min(ends.length, MAX_LANES - 1) : free;
    ends[lane] = Math.max(ends[lane] ?? 0, bar.to);
    return { ...bar, lane };
  });
}

function draw(lock, entries, bars, from, now) {
  const visible = assignLanes(bars.filter((bar) => bar.to >= from));
  const waits = lock.waiters.slice(0, MAX_WAITS);
  const lanes = Math.max(1, ...visible.map((bar) => bar.lane + 1));
  const waitsTop = 8 + lanes * LANE + 6;
  const floor = waitsTop + (waits.length ? waits.length * LANE : -6) + 4;
  const x = (at) => LEFT + ((Math.max(at, from) - from) / (now - from || 1)) * (WIDTH - LEFT - 4);
  return svg(
    "svg",
    {
      class: "time-axis",
      viewBox: `0 0 ${WIDTH} ${floor + 20}`,
      role: "img",
      "aria-label": summary(visible, lock, entries, from, now),
    },
    ...ticks(from, now, x, floor),
    label("holds", 8 + (lanes * LANE) / 2),
    ...visible.map((bar) => rectangle(x(bar.from), x(bar.to), 8 + bar.lane * LANE, bar.kind, bar.title)),
    ...(waits.length ? [label("waits", waitsTop + (waits.length * LANE) / 2)] : []),
    ...waits.map((waiter, index) =>
      rectangle(
        x(waiter.acquired_at),
        x(now),
        waitsTop + index * LANE,
        "wait",
        `${describe(waiter)} has waited for ${formatDuration(now - waiter.acquired_at)}`,
      ),
    ),
    ...entries
      .filter((entry) => entry.held_for == null && entry.at >= from)
      .map((entry) => flag(entry, x(entry.at), floor)),
  );
}

function rectangle(from, to, y, kind, title) {
  const box = svg("rect", { x: from, y, width: Math.max(2, to - from), height: LANE - 4, rx: 2 });
  return svg("g", { class: kind }, svg("title", {}, title), box);
}

function label(text, y) {
  return svg("text", { class: "lane", x: LEFT - 8, y: y + 2, "text-anchor": "end" }, text);
}

function flag(entry, x, floor) {
  const title = `${formatTime(entry.at)}: ${escapeText(entry.by || "somebody")} (${entry.act}) ${escapeText(entry.why)}`;
  return svg(
    "g",
    { class: `flag ${entry.act}` },
    svg("title", {}, title),
    svg("line", { x1: x, x2: x, y1: 2, y2: floor }),
    svg("circle", { cx: x, cy: 3, r: 3 }),
  );
}

function ticks(from, now, x, floor) {
  const step = STEPS.find((seconds) => (now - from) / seconds <= MAX_TICKS) ?? (now - from) / MAX_TICKS;
  // Round in the viewer's time zone, as the labels are.
  const shift = -new Date(now * 1000).getTimezoneOffset() * 60;
  const nodes = [svg("line", { class: "floor", x1: LEFT, x2: WIDTH, y1: floor, y2: floor })];
  for (let at = Math.ceil((from + shift) / step) * step - shift; at <= now; at += step) {
    nodes.push(
      svg("line", { class: "grid", x1: x(at), x2: x(at), y1: 4, y2: floor }),
      svg("text", { x: Math.min(x(at), WIDTH - 22), y: floor + 14, "text-anchor": "middle" }, tickLabel(at, step)),
    );
  }
  return nodes;
}

function tickLabel(at, step) {
  const then = new Date(at * 1000);
  if (step >= 86400) return then.toLocaleDateString([], { month: "short", day: "numeric" });
  const time = { hour: "2-digit", minute: "2-digit", hour12: false };
  return then.toLocaleTimeString([], step < 60 ? { ...time, second: "2-digit" } : time);
}

function summary(bars, lock, entries, from, now) {
  const past = bars.filter((bar) => bar.kind !== "present").length;
  const actions = entries.filter((entry) => entry.held_for == null && entry.at >= from).length;
  return `The last ${formatDuration(now - from)}: ${plural(past, "past hold", "past holds")}, ${plural(lock.holders.length, "present holder", "present holders")}, ${plural(lock.waiters.length, "waiter", "waiters")}, ${plural(actions, "action of an operator", "actions of operators")}.`;
}
