// The dialog that releases a lock or asks its holder to stop.

import { get, post } from "./api.js";
import { $, el, notify } from "./dom.js";
import { mayWrite, READ_ONLY } from "./session.js";
import {
  defaultGrace,
  describeHolder,
  escapeText,
  formatDuration,
  isAtWork,
  isKept,
  isQueued,
  plural,
  renderText,
} from "./format.js";

const NAME_KEY = "celery-locks.by";
let onDone = () => {};

export function onAction(listener) {
  onDone = listener;
}

// `kind`: "release" or "stop"; `token`: of the chosen holder, if there are several.
export async function openActionDialog(kind, name, token = "") {
  if (!mayWrite()) return notify(READ_ONLY, "warn");
  try {
    const lock = await get("locks/info", { name });
    if (lock.holders.length) return show(kind, lock, token);
    return notify(`Nobody holds lock ${escapeText(name)}.`, "warn");
  } catch (error) {
    return notify(error.message, "bad");
  }
}

function show(kind, lock, token) {
  const dialog = $("action");
  if (dialog.open) return;
  dialog.replaceChildren(form(kind, lock, token));
  dialog.showModal();
  dialog.querySelector("textarea").focus();
}

function form(kind, lock, token) {
  const isRelease = kind === "release";
  const chosen = lock.holders.find((holder) => holder.token === token) ?? lock.holders[0];
  const node = el(
    "form",
    { class: "action-form", method: "dialog" },
    el("h2", { id: "action-title" }, isRelease ? "Release lock" : "Ask to stop"),
    el("p", { class: "lock-name" }, renderText(lock.name)),
    holderChoice(lock, chosen, isRelease),
    el("p", { class: "small consequences" }),
    reasonField(isRelease),
    el(
      "div",
      { class: "pair" },
      isRelease && graceField(),
      byField(),
    ),
    isRelease && confirmField(),
    el("p", { class: "error-text", role: "alert" }),
    el(
      "div",
      { class: "buttons" },
      el("button", { type: "button", class: "cancel", onclick: () => $("action").close() }, "Cancel"),
      el("button", { class: isRelease ? "danger" : "primary" }, isRelease ? "Release" : "Ask to stop"),
    ),
  );
  fit(node, lock, chosen, isRelease);
  node.querySelector("fieldset").addEventListener("change", (event) => {
    fit(
      node,
      lock,
      lock.holders.find((holder) => holder.token === event.target.value),
      isRelease,
    );
  });
  node.addEventListener("submit", (event) => {
    event.preventDefault();
    send(kind, lock, node);
  });
  return node;
}

function holderChoice(lock, chosen, isRelease) {
  const title = isRelease ? "The lock is taken from" : "Holder to ask";
  return el(
    "fieldset",
    { class: "holder-choice" },
    el("legend", {}, title),
    ...lock.holders.map((holder) =>
      el(
        "label",
        {},
        el("input", {
          type: "radio",
          name: "token",
          value: holder.token,
          checked: holder === chosen,
          class: lock.holders.length === 1 && "sr",
        }),
        el(
          "span",
          {},
          renderText(describeHolder(holder)),
          el("small", {}, `held for ${formatDuration(lock.as_of - holder.acquired_at)}, fence ${holder.fence}`),
          holder.liveness &&
            el("small", { class: `verdict ${holder.liveness.verdict}` }, renderText(holder.liveness.sentence)),
        ),
      ),
    ),
  );
}

// The consequences and the confirmation depend on the chosen holder.
function fit(node, lock, holder, isRelease) {
  node.querySelector(".consequences").textContent = isRelease
    ? consequences(lock, holder)
    : "The holder receives the request with its next renewal and keeps the lock until it stops. A task that does not check for stop requests continues.";
  if (!isRelease) return;
  // A dead holder cannot use a grace period.
  node.elements.grace.value = isAtWork(holder) ? String(defaultGrace(lock)) : "0";
  node.elements.confirmed.required = isAtWork(holder);
  node.querySelector(".confirm").hidden = !isAtWork(holder);
}

function consequences(lock, holder) {
  const count = lock.waiters.length;
  const first = count === 1 ? "The waiter" : `The first of ${plural(count, "waiter", "waiters")}`;
  const next = count ? `${first} gets the lock immediately. ` : "";
  if (isQueued(holder))
    return `${next}The message stays in the queue and needs the lock again when it starts.`;
  if (isKept(holder)) return `${next}Its work has already ended.`;
  return `${next}The holder learns of this with its next renewal, within ${formatDuration(holder.ttl / 3)}. Until then it may keep writing; only a fence can reject that.`;
}

export function byField() {
  return el(
    "label",
    {},
    "Your name, for the history",
    el("input", { name: "by", maxlength: "200", autocomplete: "name", value: storedName() }),
  );
}

export function reasonField(isRequired) {
  const label = isRequired ? "Reason" : "Reason (optional)";
  return el(
    "label",
    {},
    label,
    el("textarea", {
      name: "reason",
      rows: "2",
      maxlength: "500",
      required: isRequired,
      placeholder: "For the history",
    }),
  );
}

export function graceField() {
  return el(
    "label",
    { title: "The holder is asked to stop first and has this long to release the lock on its own" },
    "Grace period, in seconds",
    el("input", { name: "grace", type: "number", min: "0", max: "60", step: "1", required: true }),
  );
}

export function confirmField(text = "This holder may still be running. Take the lock from it anyway.") {
  return el(
    "label",
    { class: "confirm" },
    el("input", { type: "checkbox", name: "confirmed" }),
    el("span", {}, text),
  );
}

async function send(kind, lock, node) {
  const fields = new FormData(node);
  const grace = Number(fields.get("grace") ?? 0);
  const body = { name: lock.name, token: fields.get("token"), reason: fields.get("reason") };
  if (fields.get("by")) body.by = fields.get("by");
  if (kind === "release") body.grace = grace;
  storeName(fields.get("by"));
  const button = node.querySelector(".buttons button:last-child");
  button.disabled = true;
  button.textContent = grace ? `Asked to stop; waiting up to ${grace} s …` : "Sending …";
  try {
    const answer = await post(`locks/${kind}`, body, grace * 1000);
    if (node.isConnected) $("action").close();
    notify(outcome(kind, lock, answer, grace));
  } catch (error) {
    button.disabled = false;
    button.textContent = kind === "release" ? "Release" : "Ask to stop";
    node.querySelector(".error-text").textContent = error.message;
    if (!$("action").open) notify(error.message, "bad");
  }
  onDone();
}

// Keep the name for the next dialog, and refresh the page: the action may have changed it.
export function afterAction(by) {
  storeName(by);
  onDone();
}

function outcome(kind, lock, answer, grace) {
  const name = escapeText(lock.name);
  const holders = (answer.freed ?? answer.asked ?? [])
    .map((holder) => escapeText(describeHolder(holder)))
    .join(", ");
  if (kind === "stop")
    return holders
      ? `Asked ${holders} to stop and release ${name}.`
      : `Nobody was asked: ${name} had already been released.`;
  if (!holders)
    return grace ? `The holder released ${name} on its own.` : `${name} had already been released.`;
  return `Took lock ${name} from ${holders}.`;
}

function storedName() {
  try {
    return localStorage.getItem(NAME_KEY) ?? "";
  } catch {
    return "";
  }
}

function storeName(by) {
  try {
    localStorage.setItem(NAME_KEY, by);
  } catch {
    // No storage: the user types the name again.
  }
}
