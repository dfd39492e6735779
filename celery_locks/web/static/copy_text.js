// A lock or the list as plain text for an incident ticket; times are in UTC.

import { serverNow } from "./server_clock.js";
import { $, el, notify } from "./dom.js";
import { describeServer } from "./server_info.js";
import { isKept, isQueued, formatDuration, escapeText, formatUtc, describeHolder } from "./format.js";

const MAX_ENTRIES = 10;

// Browsers allow copying only over TLS or from localhost; otherwise the user copies by hand.
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    notify("Copied.");
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
      { class: "action-form", method: "dialog" },
      el("h2", { id: "copy-title" }, "Copy as text"),
      el("p", { class: "small" }, "The browser does not allow this page to copy. Copy the text yourself."),
      box,
      el("div", { class: "buttons" }, el("button", { class: "primary" }, "Close")),
    ),
  );
  $("copy").showModal();
  box.select();
}

export function lockText(lock, sentences, entries) {
  const lines = [
    `Lock ${escapeText(lock.name)}`,
    describeServer(),
    `As of ${formatUtc(serverNow())}`,
    "",
    ...(lock.holders.length ? lock.holders.flatMap((holder) => holderLines(lock, holder)) : ["Nobody holds it."]),
    "",
    waitersLine(lock),
    ...lock.waiters.map(
      (waiter, index) =>
        `  ${index + 1}. ${escapeText(describeHolder(waiter))}, since ${formatUtc(waiter.acquired_at)} (${formatDuration(serverNow() - waiter.acquired_at)})`,
    ),
  ];
  if (sentences.length) lines.push("", ...sentences.map(escapeText));
  if (entries.length) lines.push("", "History:", ...entries.slice(0, MAX_ENTRIES).map(entryLine));
  return `${lines.join("\n")}\n`;
}

function holderLines(lock, holder) {
  const state = isQueued(holder) ? " (queued)" : isKept(holder) ? " (ended)" : "";
  const usual = lock.usual ? `, usually ${formatDuration(lock.usual.held_for)}` : "";
  const call = holder.arguments;
  return [
    `Held by ${escapeText(describeHolder(holder))}${state}`,
    `  since ${formatUtc(holder.acquired_at)} (${formatDuration(serverNow() - holder.acquired_at)}${usual}), ttl ${formatDuration(holder.ttl)}, fence ${holder.fence}`,
    ...(call ? [`  arguments ${escapeText(call.args)} ${escapeText(call.kwargs)}`] : []),
    ...(holder.liveness ? [`  ${escapeText(holder.liveness.sentence)}`] : []),
  ];
}

function waitersLine({ waiting, parked }) {
  if (!waiting) return "Nobody waits for it.";
  const some = parked ? ` (${parked} parked on the lock server)` : "";
  return waiting === 1 ? `1 waiter${some}:` : `${waiting} waiters${some}:`;
}

function entryLine(entry) {
  const holders = (entry.holders ?? []).map((holder) => escapeText(describeHolder(holder))).join(", ");
  const after = entry.held_for == null ? "" : ` after ${formatDuration(entry.held_for)}`;
  const by = entry.by ? ` by ${escapeText(entry.by)}` : "";
  return `  ${formatUtc(entry.at)} ${entry.act}${by}: ${holders || "nobody"}${after}${entry.why ? ` (${escapeText(entry.why)})` : ""}`;
}

// Columns are as wide as their longest text.
export function listText(locks, range) {
  const cells = [
    ["LOCK", "HELD FOR", "USUALLY", "WAITING", "STATE", "HOLDER"],
    ...locks.map((lock) => [
      escapeText(lock.name),
      lock.holders[0] ? formatDuration(lock.as_of - lock.holders[0].acquired_at) : "-",
      lock.usual ? formatDuration(lock.usual.held_for) : "-",
      String(lock.waiting),
      lock.holders.map((holder) => holder.liveness?.verdict ?? "-").join(",") || "-",
      lock.holders.map((holder) => escapeText(describeHolder(holder))).join("; ") || "-",
    ]),
  ];
  const widths = cells[0].map((_, index) => Math.max(...cells.map((row) => row[index].length)));
  const lines = cells.map((row) =>
    row
      .map((text, index) => text.padEnd(widths[index]))
      .join("  ")
      .trimEnd(),
  );
  return `${[describeServer(), `As of ${formatUtc(serverNow())}: ${range}`, "", ...lines].join("\n")}\n`;
}
