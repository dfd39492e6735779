// The durations of past holds, oldest first, with the usual duration and the present hold.

import { svg } from "./dom.js";
import { formatTime, plural, formatDuration, escapeText, describeHolder } from "./format.js";

const WIDTH = 400;
const HEIGHT = 132;
const LEFT = 74;
const TOP = 12;
const FLOOR = HEIGHT - 6;
const LABEL_SPACE = 20; // between two labels
const MAX_HOLDS = 60;
const MAX_LINEAR = 30; // beyond this ratio of longest to shortest, the scale is logarithmic
const STEPS = [
  0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400, 259200,
  604800,
];

// `holds`: [{at, held_for, act, holders}], latest first; `present`: seconds of the present hold.
export function durationsChart(holds, usual, present) {
  const past = holds.slice(0, MAX_HOLDS).reverse();
  const lengths = [
    ...past.map((hold) => hold.held_for),
    ...(usual ? [usual] : []),
    ...(present ? [present] : []),
  ];
  const scale = scaleFor(lengths);
  const step = (WIDTH - LEFT - 8) / (past.length + 1);
  const at = (index) => LEFT + step * (index + 0.5);
  return svg(
    "svg",
    { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": summary(past, usual) },
    ...gridLines(scale, usual),
    ...past.map((hold, index) =>
      mark(at(index), scale.y(hold.held_for), hold.act === "held" ? "hold" : "lapse", describe(hold)),
    ),
    ...(present
      ? [mark(at(past.length), scale.y(present), "present", `Held now, for ${formatDuration(present)}`)]
      : []),
    ...(usual ? usualLine(scale.y(usual), usual) : []),
  );
}

function scaleFor(lengths) {
  const most = Math.max(1, ...lengths);
  const least = Math.max(0.5, Math.min(most, ...lengths.filter((length) => length > 0)));
  const height = FLOOR - TOP;
  if (most / least <= MAX_LINEAR) {
    return { most, y: (value) => FLOOR - height * (value / most) };
  }
  const base = Math.log(least / 2);
  const whole = Math.log(most) - base;
  const y = (value) => FLOOR - height * Math.max(0, (Math.log(Math.max(value, least / 2)) - base) / whole);
  return { most, y };
}

// Round durations, longest first, as many as fit without touching each other or the usual line.
function ticksIn(scale, usual) {
  const taken = usual ? [scale.y(usual)] : [];
  return STEPS.filter((seconds) => seconds <= scale.most)
    .reverse()
    .filter((seconds) => {
      const y = scale.y(seconds);
      const fits = y < FLOOR - 4 && taken.every((other) => Math.abs(other - y) >= LABEL_SPACE);
      if (fits) taken.push(y);
      return fits;
    });
}

function gridLines(scale, usual) {
  const floor = svg("line", { class: "floor", x1: LEFT, x2: WIDTH, y1: FLOOR, y2: FLOOR });
  return [
    floor,
    ...ticksIn(scale, usual).flatMap((value) => [
      svg("line", { class: "grid", x1: LEFT, x2: WIDTH, y1: scale.y(value), y2: scale.y(value) }),
      svg("text", { class: "tick", x: LEFT - 8, y: scale.y(value) + 4, "text-anchor": "end" }, tickLabel(value)),
    ]),
  ];
}

function tickLabel(seconds) {
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${seconds / 60} min`;
  return seconds < 86400 ? `${seconds / 3600} h` : `${seconds / 86400} d`;
}

function mark(x, y, kind, title) {
  return svg(
    "g",
    { class: kind },
    svg("title", {}, title),
    svg("line", { x1: x, x2: x, y1: FLOOR, y2: y }),
    svg("circle", { cx: x, cy: y, r: 3.5 }),
  );
}

function usualLine(y, usual) {
  return [
    svg("line", { class: "usual", x1: LEFT, x2: WIDTH, y1: y, y2: y }),
    svg("text", { class: "usual-text", x: LEFT - 8, y: y + 4, "text-anchor": "end" }, `usual ${formatDuration(usual)}`),
  ];
}

function describe(hold) {
  const holder = hold.holders?.[0] ? escapeText(describeHolder(hold.holders[0])) : "somebody";
  const end = hold.act === "held" ? "released it" : "stopped renewing it and it expired";
  return `${formatTime(hold.at)}: ${holder} ${end} after ${formatDuration(hold.held_for)}`;
}

function summary(past, usual) {
  const longest = past.length
    ? ` The longest took ${formatDuration(Math.max(...past.map((hold) => hold.held_for)))}.`
    : "";
  return `${plural(past.length, "past hold", "past holds")}.${usual ? ` The usual duration is ${formatDuration(usual)}.` : ""}${longest}`;
}
