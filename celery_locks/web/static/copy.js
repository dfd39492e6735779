// What is shown as plain text for an incident ticket; times are in UTC there.

import { serverNow } from "./clock.js";
import { $, el, tell } from "./dom.js";
import { siteLine } from "./site.js";
import { isKept, isQueued, span, spelled, utc, who } from "./text.js";

const ACTS = 10;

// Browsers copy only on pages that came over TLS or from this machine; elsewhere the reader does.
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    tell("Copied.");
  } catch {
    showText(text);
  }
}

function showText(text) {
  const box = el("textarea", { rows: "14", readonly: true, "aria-label": "Text to copy" });
  box.value = text;
  $("copy").replaceChildren(
    el(
      "form",
      { class: "act", method: "dialog" },
      el("h2", { id: "copy-title" }, "Copy as text"),
      el("p", { class: "small" }, "The browser does not let this page copy. Copy it from here."),
      box,
      el("div", { class: "buttons" }, el("button", { class: "primary" }, "Close")),
    ),
  );
  $("copy").showModal();
  box.select();
}

export function lockText(lock, sentences, acts) {
  const lines = [
    `Lock ${spelled(lock.name)}`,
    siteLine(),
    `As of ${utc(serverNow())}`,
    "",
    ...(lock.holders.length ? lock.holders.flatMap((one) => holderLines(lock, one)) : ["Nobody holds it."]),
    "",
    waitersLine(lock),
    ...lock.waiters.map(
      (one, index) =>
        `  ${index + 1}. ${spelled(who(one))}, since ${utc(one.acquired_at)} (${span(serverNow() - one.acquired_at)})`,
    ),
  ];
  if (sentences.length) lines.push("", ...sentences.map(spelled));
  if (acts.length) lines.push("", "What happened:", ...acts.slice(0, ACTS).map(actLine));
  return `${lines.join("\n")}\n`;
}

function holderLines(lock, holder) {
  const state = isQueued(holder) ? " (queued)" : isKept(holder) ? " (ended)" : "";
  const usual = lock.usual ? `, usually ${span(lock.usual.held_for)}` : "";
  const told = holder.arguments;
  return [
    `Held by ${spelled(who(holder))}${state}`,
    `  since ${utc(holder.acquired_at)} (${span(serverNow() - holder.acquired_at)}${usual}), ttl ${span(holder.ttl)}, fence ${holder.fence}`,
    ...(told ? [`  arguments ${spelled(told.args)} ${spelled(told.kwargs)}`] : []),
    ...(holder.liveness ? [`  ${spelled(holder.liveness.sentence)}`] : []),
  ];
}

function waitersLine({ waiters }) {
  if (!waiters.length) return "Nobody waits for it.";
  return waiters.length === 1 ? "1 waiter:" : `${waiters.length} waiters:`;
}

function actLine(act) {
  const whom = (act.holders ?? []).map((one) => spelled(who(one))).join(", ");
  const after = act.held_for == null ? "" : ` after ${span(act.held_for)}`;
  const by = act.by ? ` by ${spelled(act.by)}` : "";
  return `  ${utc(act.at)} ${act.act}${by}: ${whom || "nobody"}${after}${act.why ? ` (${spelled(act.why)})` : ""}`;
}

// Columns as wide as their longest text.
export function listText(locks, range) {
  const cells = [
    ["LOCK", "HELD FOR", "USUALLY", "WAITING", "STATE", "HOLDER"],
    ...locks.map((lock) => [
      spelled(lock.name),
      lock.holders[0] ? span(lock.as_of - lock.holders[0].acquired_at) : "-",
      lock.usual ? span(lock.usual.held_for) : "-",
      String(lock.waiters.length),
      lock.holders.map((one) => one.liveness?.verdict ?? "-").join(",") || "-",
      lock.holders.map((one) => spelled(who(one))).join("; ") || "-",
    ]),
  ];
  const widths = cells[0].map((_, index) => Math.max(...cells.map((row) => row[index].length)));
  const lines = cells.map((row) =>
    row
      .map((text, index) => text.padEnd(widths[index]))
      .join("  ")
      .trimEnd(),
  );
  return `${[siteLine(), `As of ${utc(serverNow())}: ${range}`, "", ...lines].join("\n")}\n`;
}
