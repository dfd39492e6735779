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
    place
      ? el("span", { class: "worker", title: spelled(place) }, shown(place))
      : el("span", { class: "worker" }, "–"),
    holder.pid ? el("code", { class: "pid" }, String(holder.pid)) : null,
  ];
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
