// Past holds of a lock by how long they took, the oldest first, against the usual and the present.

import { svg } from "./dom.js";
import { moment, plural, span, spelled, who } from "./text.js";

const WIDTH = 400;
const HEIGHT = 132;
const LEFT = 74;
const TOP = 12;
const FLOOR = HEIGHT - 6;
const ROOM = 20; // between two labels
const SHOWN = 60;
const SPREAD = 30; // past this many times the shortest, only a logarithm shows both
const STEPS = [
  0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400, 259200,
  604800,
];

// `holds`: [{at, held_for, act, holders}], the latest first; `present`: seconds it is held now.
export function chart(holds, usual, present) {
  const past = holds.slice(0, SHOWN).reverse();
  const lengths = [
    ...past.map((one) => one.held_for),
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
    ...past.map((one, index) =>
      mark(at(index), scale.y(one.held_for), one.act === "held" ? "hold" : "lapse", told(one)),
    ),
    ...(present
      ? [mark(at(past.length), scale.y(present), "present", `Held now, for ${span(present)}`)]
      : []),
    ...(usual ? usualLine(scale.y(usual), usual) : []),
  );
}

function scaleFor(lengths) {
  const most = Math.max(1, ...lengths);
  const least = Math.max(0.5, Math.min(most, ...lengths.filter((one) => one > 0)));
  const height = FLOOR - TOP;
  if (most / least <= SPREAD) {
    return { most, y: (value) => FLOOR - height * (value / most) };
  }
  const base = Math.log(least / 2);
  const whole = Math.log(most) - base;
  const y = (value) => FLOOR - height * Math.max(0, (Math.log(Math.max(value, least / 2)) - base) / whole);
  return { most, y };
}

// Round durations, from the longest down, as many as leave each other and the usual room.
function ticksIn(scale, usual) {
  const taken = usual ? [scale.y(usual)] : [];
  return STEPS.filter((one) => one <= scale.most)
    .reverse()
    .filter((one) => {
      const y = scale.y(one);
      const fits = y < FLOOR - 4 && taken.every((other) => Math.abs(other - y) >= ROOM);
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
      svg("text", { class: "tick", x: LEFT - 8, y: scale.y(value) + 4, "text-anchor": "end" }, short(value)),
    ]),
  ];
}

function short(seconds) {
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${seconds / 60} min`;
  return seconds < 86400 ? `${seconds / 3600} h` : `${seconds / 86400} d`;
}

function mark(x, y, kind, words) {
  return svg(
    "g",
    { class: kind },
    svg("title", {}, words),
    svg("line", { x1: x, x2: x, y1: FLOOR, y2: y }),
    svg("circle", { cx: x, cy: y, r: 3.5 }),
  );
}

function usualLine(y, usual) {
  return [
    svg("line", { class: "usual", x1: LEFT, x2: WIDTH, y1: y, y2: y }),
    svg("text", { class: "usual-text", x: LEFT - 8, y: y + 4, "text-anchor": "end" }, `usual ${span(usual)}`),
  ];
}

function told(one) {
  const whom = one.holders?.[0] ? spelled(who(one.holders[0])) : "somebody";
  const end = one.act === "held" ? "gave it back" : "stopped renewing it, it ran out";
  return `${moment(one.at)}: ${whom} ${end} after ${span(one.held_for)}`;
}

function summary(past, usual) {
  const longest = past.length
    ? ` The longest took ${span(Math.max(...past.map((one) => one.held_for)))}.`
    : "";
  return `${plural(past.length, "past hold", "past holds")}.${usual ? ` The usual is ${span(usual)}.` : ""}${longest}`;
}
