// Rates: those that delay callers or that operators paused or set, and the actions on one.

import { get } from "./api.js";
import { el } from "./dom.js";
import { rateOverrideElements } from "./override_dialog.js";
import { mayWrite, READ_ONLY } from "./session.js";
import { formatCount, formatDuration, plural, renderText } from "./format.js";

const LIMIT = 200;
let name = "";

// A rate that delays nobody is not in the list; with its name it can be paused or set as well.
export const rateFilter = (redraw) => {
  const box = el("input", { type: "search", value: name, placeholder: "Name of a rate", autocomplete: "off" });
  box.addEventListener("change", () => {
    name = box.value.trim();
    redraw();
  });
  return el("label", {}, el("span", { class: "sr" }, "Name of a rate"), box);
};

export async function readRates() {
  if (!name) return get("rates", { limit: LIMIT });
  try {
    return { rates: [await get("rates/info", { name })], total: 1 };
  } catch (error) {
    if (error.status !== 404) throw error;
    return { rates: [{ name, limits: [], delayed: 0, callers: [], pushed_back: 0, free_in: 0 }], total: 1 };
  }
}

export function drawRates({ rates, total }) {
  const more = total - rates.length;
  return [
    el("p", { class: "small" }, mayWrite() ? "" : READ_ONLY),
    rates.length
      ? el("ul", { class: "cards" }, ...rates.map(card))
      : el("p", { class: "empty" }, "No rate delays a caller, and none is paused or set."),
    el("p", { class: "small" }, more > 0 ? `${formatCount(more)} more are not shown; write the name of a rate.` : ""),
  ];
}

function card(rate) {
  return el(
    "li",
    { class: "rate" },
    el(
      "div",
      { class: "line-one" },
      el("strong", { class: "name" }, renderText(rate.name)),
      el("span", { class: "muted" }, rate.limits.join(" and ") || "no limit seen"),
      rate.pause && el("span", { class: "badge warning" }, "paused"),
      rate.rate_override && el("span", { class: "badge warning" }, "set by an operator"),
    ),
    el("div", { class: "line-two muted" }, describe(rate)),
    ...rateOverrideElements(rate),
  );
}

function describe(rate) {
  const parts = [plural(rate.delayed, "caller is delayed", "callers are delayed")];
  const next = rate.callers.find((caller) => caller.is_promised);
  if (next && !rate.pause) parts.push(`the next starts in ${formatDuration(next.starts_in)}`);
  if (!rate.pause) parts.push(rate.free_in ? `a new one in ${formatDuration(rate.free_in)}` : "a new one at once");
  if (rate.pushed_back) parts.push(`pushed back for ${formatDuration(rate.pushed_back)}`);
  return parts.join(", ");
}
