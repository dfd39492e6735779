// Removes parked messages of a lock: the buttons in its queue, and their dialog.

import { afterAction, byField, reasonField } from "./action_dialog.js";
import { post } from "./api.js";
import { $, el, notify } from "./dom.js";
import { mayWrite, READ_ONLY } from "./session.js";
import { escapeText, plural, renderText } from "./format.js";

export function dropButton(lock, waiter) {
  const name = escapeText(waiter.task_id);
  return button("Drop …", `Drop ${name}`, () => open(lock, waiter));
}

export function dropAllButton(lock) {
  return button("Drop all parked messages …", "", () => open(lock, null));
}

function button(label, description, onclick) {
  const attributes = { type: "button", class: "quiet drop", disabled: !mayWrite(), onclick };
  return el("button", { ...attributes, "aria-label": description || null }, label);
}

function open(lock, waiter) {
  if (!mayWrite()) return notify(READ_ONLY, "warn");
  const dialog = $("action");
  if (dialog.open) return;
  dialog.replaceChildren(form(lock, waiter));
  dialog.showModal();
  dialog.querySelector("textarea").focus();
}

function form(lock, waiter) {
  const what = waiter
    ? `${waiter.task ?? "task"} ${waiter.task_id}`
    : plural(lock.parked, "parked message", "parked messages");
  const node = el(
    "form",
    { class: "action-form", method: "dialog" },
    el("h2", { id: "action-title" }, waiter ? "Drop parked message" : "Drop parked messages"),
    el("p", { class: "lock-name" }, renderText(lock.name)),
    el("p", {}, renderText(what)),
    el("p", { class: "small" }, "It is removed from the queue and never runs. Its result is REVOKED."),
    reasonField(true),
    byField(),
    el("p", { class: "error-text", role: "alert" }),
    el(
      "div",
      { class: "buttons" },
      el("button", { type: "button", class: "cancel", onclick: () => $("action").close() }, "Cancel"),
      el("button", { class: "danger" }, "Drop"),
    ),
  );
  node.addEventListener("submit", (event) => {
    event.preventDefault();
    send(lock, waiter, node);
  });
  return node;
}

async function send(lock, waiter, node) {
  const fields = new FormData(node);
  const body = { name: lock.name, reason: fields.get("reason") };
  if (fields.get("by")) body.by = fields.get("by");
  if (waiter) body.task_id = waiter.task_id;
  const submit = node.querySelector(".buttons button:last-child");
  submit.disabled = true;
  try {
    const { purged, unmarked, trouble } = await post("locks/purge", body);
    if (node.isConnected) $("action").close();
    const note = [unmarked, trouble].filter(Boolean).map((text) => ` Note: ${escapeText(text)}.`);
    const dropped = plural(purged.length, "parked message", "parked messages");
    notify(`Dropped ${dropped} of ${escapeText(lock.name)}.${note.join("")}`);
  } catch (error) {
    submit.disabled = false;
    node.querySelector(".error-text").textContent = error.message;
    if (!$("action").open) notify(error.message, "bad");
  }
  afterAction(fields.get("by"));
}
