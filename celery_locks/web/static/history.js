// The history, latest first: operators' actions and past holds.

import { el } from "./dom.js";
import { linkTo } from "./route.js";
import { formatTime, renderText, formatDuration, formatUtc, describeHolder } from "./format.js";

const INITIALLY_SHOWN = 12;

const isAction = (entry) => ["force_release", "stop", "reset"].includes(entry.act);

// `named`: show the lock's name too.
export function historyList(entries, { named = false, all = false } = {}) {
  const list = el("ol", { class: "timeline" });
  const items = entries.map((entry) => item(entry, named));
  list.append(...(all ? items : items.slice(0, INITIALLY_SHOWN)));
  if (all || items.length <= INITIALLY_SHOWN) return list;
  const rest = el("button", { type: "button", class: "quiet" }, `Show all ${items.length}`);
  rest.addEventListener("click", () => {
    list.append(...items.slice(INITIALLY_SHOWN));
    rest.remove();
  });
  return el("div", {}, list, rest);
}

function item(entry, named) {
  return el(
    "li",
    { class: entry.act },
    el("time", { datetime: new Date(entry.at * 1000).toISOString(), title: formatUtc(entry.at) }, formatTime(entry.at)),
    el(
      "div",
      {},
      named && el("a", { class: "name", href: linkTo({ view: "locks", lock: entry.name }) }, renderText(entry.name)),
      el("p", {}, ...sentence(entry)),
      (entry.why || isAction(entry)) && reason(entry),
    ),
  );
}

function sentence(entry) {
  const holders = entry.holders?.length
    ? entry.holders.map((holder, index) => [index ? ", " : "", renderText(describeHolder(holder))]).flat()
    : ["nobody"];
  const by = el("strong", {}, renderText(entry.by || "somebody"));
  const after = entry.held_for == null ? "" : ` after ${formatDuration(entry.held_for)}`;
  if (entry.act === "stop") return [by, " asked ", ...holders, " to stop"];
  if (entry.act === "force_release") return [by, " took it from ", ...holders];
  if (entry.act === "reset") return [by, " allowed the work to run again"];
  if (entry.act === "held") return [...holders, ` released it${after}`];
  if (entry.act === "lapsed") return [...holders, ` stopped renewing; it expired${after}`];
  return [renderText(entry.act), " ", ...holders];
}

function reason(entry) {
  return el("p", { class: "reason" }, entry.why ? renderText(entry.why) : "No reason was given.");
}
