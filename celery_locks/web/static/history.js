// The history, latest first: operators' actions and past holds.

import { el } from "./dom.js";
import { linkTo } from "./route.js";
import { formatTime, plural, renderText, formatDuration, formatUtc, describeHolder } from "./format.js";

const INITIALLY_SHOWN = 12;

const isOfRate = (entry) => ["rate_pause", "rate_resume", "rate", "rate_reset"].includes(entry.act);
const isAction = (entry) =>
  ["force_release", "stop", "reset", "pause", "resume", "limit", "limit_reset", "purge"].includes(entry.act) || isOfRate(entry);

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
      named && el("a", { class: "name", href: link(entry) }, renderText(entry.name)),
      el("p", {}, ...sentence(entry)),
      (entry.why || isAction(entry)) && reason(entry),
    ),
  );
}

const link = (entry) =>
  isOfRate(entry) ? linkTo({ view: "rates", lock: "" }) : linkTo({ view: "locks", lock: entry.name });

function sentence(entry) {
  const holders = entry.holders?.length
    ? entry.holders.map((holder, index) => [index ? ", " : "", renderText(describeHolder(holder))]).flat()
    : ["nobody"];
  const by = el("strong", {}, renderText(entry.by || "somebody"));
  const after = entry.held_for == null ? "" : ` after ${formatDuration(entry.held_for)}`;
  if (entry.act === "stop") return [by, " asked ", ...holders, " to stop"];
  if (entry.act === "force_release") return [by, " took it from ", ...holders];
  if (entry.act === "reset") return [by, " allowed the work to run again"];
  const until = entry.until ? ` until ${formatTime(entry.until)}` : "";
  if (entry.act === "pause") return [by, ` paused it${until}`];
  if (entry.act === "resume") return [by, " resumed it"];
  if (entry.act === "limit") return [by, ` set its limit to ${entry.limit}${until}`];
  if (entry.act === "limit_reset") return [by, " reset its limit"];
  if (entry.act === "purge") return [by, ` removed ${plural(entry.count, "parked message", "parked messages")}: `, ...holders];
  if (entry.act === "rate_pause") return [by, ` paused the rate${until}`];
  if (entry.act === "rate_resume") return [by, " resumed the rate"];
  if (entry.act === "rate") return [by, ` set the rate to ${entry.rate.replaceAll(" ", " and ")}${until}`];
  if (entry.act === "rate_reset") return [by, " reset the rate"];
  if (entry.act === "held") return [...holders, ` released it${after}`];
  if (entry.act === "lapsed") return [...holders, ` stopped renewing; it expired${after}`];
  return [renderText(entry.act), " ", ...holders];
}

function reason(entry) {
  return el("p", { class: "reason" }, entry.why ? renderText(entry.why) : "No reason was given.");
}
