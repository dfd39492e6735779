// Elements that show a holder or waiter, for rows and cards.

import { el } from "./dom.js";
import { isKept, isQueued, shortId, renderText, escapeText } from "./format.js";

// The last part of a task's dotted name stands out.
export function taskName(task) {
  const cut = String(task).lastIndexOf(".") + 1;
  return el(
    "span",
    { class: "task", title: escapeText(task) },
    el("span", { class: "module" }, renderText(task.slice(0, cut))),
    renderText(task.slice(cut)),
  );
}

export function holderElements(holder) {
  if (!holder.task_id && !holder.task) return [el("span", { class: "task plain" }, "a process")];
  const id =
    holder.task_id &&
    el("code", { class: "id", title: escapeText(holder.task_id) }, renderText(shortId(holder.task_id)));
  return [holder.task ? taskName(holder.task) : null, id];
}

export function workerElements(holder) {
  const host = holder.worker || holder.host;
  return [
    livenessDot(holder),
    host
      ? el("span", { class: "worker", title: escapeText(host) }, renderText(host))
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
export const verdictLabel = (verdict) => VERDICTS[verdict] ?? verdict;

const SUSPECT = ["absent", "silent", "late", "gone"];

// A dot that shows whether the holder is alive; its title is the full sentence.
export function livenessDot(holder) {
  const { verdict, sentence } = holder.liveness ?? {};
  if (!VERDICTS[verdict]) return null;
  const attributes = { role: "img", "aria-label": VERDICTS[verdict], title: escapeText(sentence) };
  return el("span", { class: `liveness ${verdict}`, ...attributes });
}

export const worstVerdict = (holders) =>
  SUSPECT.findLast((verdict) => holders.some((holder) => holder.liveness?.verdict === verdict)) ?? "";

export function verdictBadge(holders) {
  const verdict = worstVerdict(holders);
  if (!verdict) return null;
  const holder = holders.find((found) => found.liveness?.verdict === verdict);
  return el(
    "span",
    { class: `badge ${verdict}`, title: escapeText(holder.liveness.sentence) },
    VERDICTS[verdict],
  );
}

export function stateBadge(holder) {
  if (isQueued(holder))
    return el("span", { class: "badge", title: "A message that no worker has started" }, "queued");
  if (isKept(holder))
    return el(
      "span",
      { class: "badge", title: "The work has ended; the slot is kept for a while (at_least)" },
      "ended",
    );
  return null;
}
