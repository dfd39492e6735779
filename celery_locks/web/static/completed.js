// Completed work (once, @idempotent): the keys that are marked as done, and resetting one.

import { afterAction, byField, reasonField } from "./action_dialog.js";
import { get, post } from "./api.js";
import { $, el, notify } from "./dom.js";
import { glob } from "./route.js";
import { mayWrite, READ_ONLY } from "./session.js";
import { formatCount, plural, renderText, formatDuration, escapeText } from "./format.js";

const LIMIT = 200;
const STATES = { already_done: "done", already_failed: "failed", already_begun: "begun" };
let filter = "";

export const completedFilter = (redraw) => {
  const box = el("input", { type: "search", value: filter, placeholder: "Key, * for any text" });
  box.addEventListener("change", () => {
    filter = box.value;
    redraw();
  });
  return el("label", {}, el("span", { class: "sr" }, "Key"), box);
};

export const readCompleted = () => get("locks/done", { glob: glob(filter), limit: LIMIT });

export function drawCompleted({ done, looked_at: lookedAt, complete }) {
  const found = done.toSorted((a, b) => (a.key < b.key ? -1 : 1));
  const note = complete
    ? ""
    : `${formatCount(lookedAt)} keys were read, and there are more. Use a more specific filter, or the command line: celery -A proj locks once list.`;
  if (!found.length)
    return [
      el("p", { class: "empty" }, filter ? "No key matches the filter." : "No work is marked as done."),
      el("p", { class: "small" }, note),
    ];
  return [
    el("p", { class: "small" }, mayWrite() ? "" : READ_ONLY),
    el("ul", { class: "cards" }, ...found.map(card)),
    el("p", { class: "small" }, note),
  ];
}

function card({ key, state, size, lapses_in: left, error }) {
  const result = size ? `result of ${plural(size, "byte", "bytes")}` : "no stored result";
  return el(
    "li",
    { class: "work" },
    el(
      "div",
      { class: "line-one" },
      el("strong", { class: "name" }, renderText(key)),
      el("span", { class: `badge ${state === "already_failed" ? "warning" : ""}` }, STATES[state] ?? state),
    ),
    el(
      "div",
      { class: "line-two muted" },
      error ? renderText(error) : result,
      `, expires in ${formatDuration(left)}`,
    ),
    el("button", { type: "button", disabled: !mayWrite(), onclick: () => openReset(key) }, "Reset …"),
  );
}

function openReset(key) {
  const dialog = $("action");
  if (dialog.open) return;
  const node = el(
    "form",
    { class: "action-form", method: "dialog" },
    el("h2", { id: "action-title" }, "Allow the work to run again"),
    el("p", { class: "lock-name" }, renderText(key)),
    el(
      "p",
      { class: "small" },
      "The mark and the stored result are removed. Nothing runs now: the next call for this key runs the work again.",
    ),
    reasonField(true),
    byField(),
    el("p", { class: "error-text", role: "alert" }),
    el(
      "div",
      { class: "buttons" },
      el("button", { type: "button", class: "cancel", onclick: () => dialog.close() }, "Cancel"),
      el("button", { class: "danger" }, "Reset"),
    ),
  );
  node.addEventListener("submit", (event) => {
    event.preventDefault();
    send(key, node);
  });
  dialog.replaceChildren(node);
  dialog.showModal();
  dialog.querySelector("textarea").focus();
}

async function send(key, node) {
  const fields = new FormData(node);
  const body = { key, reason: fields.get("reason") };
  if (fields.get("by")) body.by = fields.get("by");
  const button = node.querySelector(".buttons button:last-child");
  button.disabled = true;
  try {
    await post("locks/done/reset", body);
    if (node.isConnected) $("action").close();
    notify(`The work for ${escapeText(key)} can run again.`);
  } catch (error) {
    button.disabled = false;
    node.querySelector(".error-text").textContent = error.message;
  }
  afterAction(fields.get("by"));
}
