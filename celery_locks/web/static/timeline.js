// What happened, the latest first: operators' acts and the ends of holds.

import { el } from "./dom.js";
import { linkTo } from "./place.js";
import { moment, shown, span, utc, who } from "./text.js";

const AT_FIRST = 12;

const isOperators = (act) => ["force_release", "stop", "reset"].includes(act.act);

// `named`: say of which lock, too.
export function timeline(acts, { named = false, all = false } = {}) {
  const list = el("ol", { class: "timeline" });
  const entries = acts.map((act) => entry(act, named));
  list.append(...(all ? entries : entries.slice(0, AT_FIRST)));
  if (all || entries.length <= AT_FIRST) return list;
  const rest = el("button", { type: "button", class: "quiet" }, `Show all ${entries.length}`);
  rest.addEventListener("click", () => {
    list.append(...entries.slice(AT_FIRST));
    rest.remove();
  });
  return el("div", {}, list, rest);
}

function entry(act, named) {
  return el(
    "li",
    { class: act.act },
    el("time", { datetime: new Date(act.at * 1000).toISOString(), title: utc(act.at) }, moment(act.at)),
    el(
      "div",
      {},
      named && el("a", { class: "name", href: linkTo({ view: "locks", lock: act.name }) }, shown(act.name)),
      el("p", {}, ...sentence(act)),
      (act.why || isOperators(act)) && reason(act),
    ),
  );
}

function sentence(act) {
  const whom = act.holders?.length
    ? act.holders.map((one, index) => [index ? ", " : "", shown(who(one))]).flat()
    : ["nobody"];
  const by = el("strong", {}, shown(act.by || "somebody"));
  const after = act.held_for == null ? "" : ` after ${span(act.held_for)}`;
  if (act.act === "stop") return [by, " asked ", ...whom, " to stop"];
  if (act.act === "force_release") return [by, " took it from ", ...whom];
  if (act.act === "reset") return [by, " let the work be done again"];
  if (act.act === "held") return [...whom, ` gave it back${after}`];
  if (act.act === "lapsed") return [...whom, ` stopped renewing; it ran out${after}`];
  return [shown(act.act), " ", ...whom];
}

function reason(act) {
  return el("p", { class: "reason" }, act.why ? shown(act.why) : "No reason was given.");
}
