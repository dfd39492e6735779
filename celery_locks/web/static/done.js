// Completed work (once, @idempotent): which keys are marked as done, and letting one be done again.

import { acted, byField, reasonField } from "./act.js";
import { get, post } from "./api.js";
import { $, el, tell } from "./dom.js";
import { glob } from "./place.js";
import { mayWrite, READ_ONLY } from "./session.js";
import { count, plural, shown, span, spelled } from "./text.js";

const LIMIT = 200;
const STATES = { already_done: "done", already_failed: "failed", already_begun: "begun" };
let filter = "";

export const doneFilter = (redraw) => {
  const box = el("input", { type: "search", value: filter, placeholder: "Key, * for any text" });
  box.addEventListener("change", () => {
    filter = box.value;
    redraw();
  });
  return el("label", {}, el("span", { class: "sr" }, "Key"), box);
};

export const askDone = () => get("locks/done", { glob: glob(filter), limit: LIMIT });

export function drawDone({ done, looked_at: lookedAt, complete }) {
  const found = done.toSorted((a, b) => (a.key < b.key ? -1 : 1));
  const rest = complete
    ? ""
    : `${count(lookedAt)} keys were looked at, and there are more. Write a longer filter, or use the command line: celery -A proj locks once list.`;
  if (!found.length)
    return [
      el("p", { class: "empty" }, filter ? "No key matches the filter." : "No work is marked as done."),
      el("p", { class: "small" }, rest),
    ];
  return [
    el("p", { class: "small" }, mayWrite() ? "" : READ_ONLY),
    el("ul", { class: "cards" }, ...found.map(card)),
    el("p", { class: "small" }, rest),
  ];
}

function card({ key, state, size, lapses_in: left }) {
  return el(
    "li",
    { class: "work" },
    el(
      "div",
      { class: "line-one" },
      el("strong", { class: "name" }, shown(key)),
      el("span", { class: `badge ${state === "already_failed" ? "warning" : ""}` }, STATES[state] ?? state),
    ),
    el(
      "div",
      { class: "line-two muted" },
      `${size ? `result of ${plural(size, "byte", "bytes")}` : "no result is kept"}, forgotten in ${span(left)}`,
    ),
    el("button", { type: "button", disabled: !mayWrite(), onclick: () => openReset(key) }, "Reset …"),
  );
}

function openReset(key) {
  const dialog = $("act");
  if (dialog.open) return;
  const made = el(
    "form",
    { class: "act", method: "dialog" },
    el("h2", { id: "act-title" }, "Let the work be done again"),
    el("p", { class: "lock-name" }, shown(key)),
    el(
      "p",
      { class: "small" },
      "The mark and the kept result are removed. Nothing runs by itself: the next call for this key does the work again.",
    ),
    reasonField(true),
    byField(),
    el("p", { class: "refusal", role: "alert" }),
    el(
      "div",
      { class: "buttons" },
      el("button", { type: "button", class: "cancel", onclick: () => dialog.close() }, "Cancel"),
      el("button", { class: "danger" }, "Reset"),
    ),
  );
  made.addEventListener("submit", (event) => {
    event.preventDefault();
    send(key, made);
  });
  dialog.replaceChildren(made);
  dialog.showModal();
  dialog.querySelector("textarea").focus();
}

async function send(key, made) {
  const said = new FormData(made);
  const body = { key, reason: said.get("reason") };
  if (said.get("by")) body.by = said.get("by");
  const button = made.querySelector(".buttons button:last-child");
  button.disabled = true;
  try {
    await post("locks/done/reset", body);
    if (made.isConnected) $("act").close();
    tell(`The work for ${spelled(key)} may be done again.`);
  } catch (error) {
    button.disabled = false;
    made.querySelector(".refusal").textContent = error.message;
  }
  acted(said.get("by"));
}
