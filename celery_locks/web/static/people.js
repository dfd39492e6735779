// A holder or waiter in the small pieces that rows and cards are made of.

import { el } from "./dom.js";
import { isKept, isQueued, shortId, shown, spelled } from "./text.js";

// The last word of a task's dotted name is what people call it.
export function taskName(task) {
  const cut = String(task).lastIndexOf(".") + 1;
  return el(
    "span",
    { class: "task", title: spelled(task) },
    el("span", { class: "module" }, shown(task.slice(0, cut))),
    shown(task.slice(cut)),
  );
}

export function holderPieces(holder) {
  if (!holder.task_id && !holder.task) return [el("span", { class: "task plain" }, "a process")];
  const id =
    holder.task_id &&
    el("code", { class: "id", title: spelled(holder.task_id) }, shown(shortId(holder.task_id)));
  return [holder.task ? taskName(holder.task) : null, id];
}

export function wherePieces(holder) {
  const place = holder.worker || holder.host;
  return [
    life(holder),
    place
      ? el("span", { class: "worker", title: spelled(place) }, shown(place))
      : el("span", { class: "worker" }, "–"),
    holder.pid ? el("code", { class: "pid" }, String(holder.pid)) : null,
  ];
}

const VERDICTS = {
  running: "alive",
  renewed: "renewed in time",
  absent: "not running",
  silent: "no answer",
  late: "overdue",
  gone: "dead",
};
const SUSPECT = ["absent", "silent", "late", "gone"];

// A dot that says whether the holder lives; the whole sentence is its title.
export function life(holder) {
  const { verdict, sentence } = holder.liveness ?? {};
  if (!VERDICTS[verdict]) return null;
  const words = { role: "img", "aria-label": VERDICTS[verdict], title: spelled(sentence) };
  return el("span", { class: `life ${verdict}`, ...words });
}

export const worst = (holders) =>
  SUSPECT.findLast((verdict) => holders.some((one) => one.liveness?.verdict === verdict)) ?? "";

export function verdictBadge(holders) {
  const verdict = worst(holders);
  if (!verdict) return null;
  const holder = holders.find((one) => one.liveness?.verdict === verdict);
  return el(
    "span",
    { class: `badge ${verdict}`, title: spelled(holder.liveness.sentence) },
    VERDICTS[verdict],
  );
}

export function stateBadge(holder) {
  if (isQueued(holder))
    return el("span", { class: "badge", title: "A message that no worker has begun" }, "queued");
  if (isKept(holder))
    return el(
      "span",
      { class: "badge", title: "Its work has ended; the slot is kept for a while (at_least)" },
      "ended",
    );
  return null;
}
