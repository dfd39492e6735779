// Releases several locks at once: from the holders listed in the dialog, and from no others.

import { afterAction, byField, graceField, reasonField, confirmField } from "./action_dialog.js";
import { post } from "./api.js";
import { $, el, notify } from "./dom.js";
import { livenessDot } from "./holder.js";
import { mayWrite, READ_ONLY } from "./session.js";
import { defaultGrace, isAtWork, plural, renderText, escapeText, describeHolder } from "./format.js";

const MAX_HOLDERS = 100;

// `locks` as they are shown; `onReleased` is called after a release.
export function openBulkRelease(locks, onReleased) {
  if (!mayWrite()) return notify(READ_ONLY, "warn");
  const pairs = locks.flatMap((lock) => lock.holders.map((holder) => ({ lock, holder })));
  if (!pairs.length) return notify("Nobody holds the selected locks any more.", "warn");
  if (pairs.length > MAX_HOLDERS)
    return notify(`${pairs.length} holders are selected; at most ${MAX_HOLDERS} are possible at a time.`, "warn");
  const dialog = $("action");
  if (dialog.open) return;
  dialog.replaceChildren(form(pairs, onReleased));
  dialog.showModal();
  dialog.querySelector("textarea").focus();
}

function form(pairs, onReleased) {
  const running = pairs.filter(({ holder }) => isAtWork(holder));
  const locks = new Set(pairs.map(({ lock }) => lock.name)).size;
  const confirm = confirmField(
    `${plural(running.length, "holder", "holders")} may still be running. Take the locks anyway.`,
  );
  const node = el(
    "form",
    { class: "action-form", method: "dialog" },
    el("h2", { id: "action-title" }, `Release ${plural(locks, "lock", "locks")}`),
    el(
      "p",
      { class: "small" },
      "The locks are taken from these holders only. A holder that acquires one meanwhile keeps it.",
    ),
    el("ul", { class: "targets", tabindex: "0", "aria-label": "Holders" }, ...pairs.map(target)),
    reasonField(true),
    el("div", { class: "pair" }, graceField(), byField()),
    confirm,
    el("p", { class: "error-text", role: "alert" }),
    el(
      "div",
      { class: "buttons" },
      el("button", { type: "button", class: "cancel", onclick: () => $("action").close() }, "Cancel"),
      el("button", { class: "danger" }, `Release ${plural(locks, "lock", "locks")}`),
    ),
  );
  const graces = running.map(({ lock }) => defaultGrace(lock));
  node.elements.grace.value = String(Math.max(0, ...graces));
  node.elements.confirmed.required = running.length > 0;
  confirm.hidden = running.length === 0;
  node.addEventListener("submit", (event) => {
    event.preventDefault();
    send(node, pairs, onReleased);
  });
  return node;
}

function target({ lock, holder }) {
  return el(
    "li",
    {},
    el("strong", {}, renderText(lock.name)),
    el("small", {}, livenessDot(holder), renderText(describeHolder(holder))),
  );
}

async function send(node, pairs, onReleased) {
  const fields = new FormData(node);
  const grace = Number(fields.get("grace"));
  const holders = pairs.map(({ lock, holder }) => ({ name: lock.name, token: holder.token }));
  const body = { holders, reason: fields.get("reason"), grace };
  if (fields.get("by")) body.by = fields.get("by");
  const button = node.querySelector(".buttons button:last-child");
  const label = button.textContent;
  button.disabled = true;
  button.textContent = grace ? `Asked to stop; waiting up to ${grace} s …` : "Sending …";
  try {
    const answer = await post("locks/release-many", body, grace * 1000);
    if (node.isConnected) $("action").close();
    notify(outcome(answer), answer.trouble ? "bad" : "good");
    onReleased();
  } catch (error) {
    button.disabled = false;
    button.textContent = label;
    node.querySelector(".error-text").textContent = error.message;
    if (!$("action").open) notify(error.message, "bad");
  }
  afterAction(fields.get("by"));
}

function outcome({ freed, not_held: gone, unknown, trouble }) {
  const parts = [];
  if (freed.length)
    parts.push(
      `Took ${plural(freed.length, "lock", "locks")}: ${freed.map((holder) => escapeText(holder.name)).join(", ")}.`,
    );
  if (gone.length) parts.push(`${plural(gone.length, "holder", "holders")} had already released the lock.`);
  if (unknown.length)
    parts.push(
      `The result is unknown for ${plural(unknown.length, "holder", "holders")} (${unknown.map((holder) => escapeText(holder.name)).join(", ")}): ${escapeText(trouble)}.`,
    );
  return parts.join(" ");
}
