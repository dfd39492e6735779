// Pauses a lock or sets its limit, or ends that, and the same for rates: the buttons and their dialog.

import { afterAction, byField, reasonField } from "./action_dialog.js";
import { post } from "./api.js";
import { $, el, notify } from "./dom.js";
import { mayWrite, READ_ONLY } from "./session.js";
import { escapeText, formatTime, plural, renderText } from "./format.js";

const KINDS = {
  pause: {
    path: "locks/pause",
    title: "Pause",
    done: "Paused",
    about: "Nobody can acquire the lock until it is resumed. Its holders finish; waiters stay in the queue.",
  },
  resume: { path: "locks/resume", title: "Resume", done: "Resumed", about: "The first waiters get the lock." },
  limit: {
    path: "locks/limit",
    title: "Set limit",
    done: "Set the limit of",
    about: "The limit wins over that of every caller. If more hold the lock already, they finish.",
  },
  reset: {
    path: "locks/limit/reset",
    title: "Reset limit",
    done: "Reset the limit of",
    about: "The limits of the callers apply again.",
  },
  ratePause: {
    path: "rates/pause",
    title: "Pause",
    done: "Paused the rate",
    about: "Nothing starts at the rate until it is resumed. Tasks that are delayed come back later.",
  },
  rateResume: {
    path: "rates/resume",
    title: "Resume",
    done: "Resumed the rate",
    about: "Tasks that were delayed start when they come back, within 30 s if they are few.",
  },
  rate: {
    path: "rates/set",
    title: "Set rate",
    done: "Set the rate",
    about: "The rate wins over that of every caller. It allows no burst.",
  },
  rateReset: {
    path: "rates/reset",
    title: "Reset rate",
    done: "Reset the rate",
    about: "The rates of the callers apply again.",
  },
};
const isSetting = (kind) => ["pause", "limit", "ratePause", "rate"].includes(kind);

// What operators set for a lock, and the buttons to change it.
export function overrideElements(lock) {
  const kinds = [
    lock.pause && !lock.pause.glob ? "resume" : "pause",
    "limit",
    ...(lock.limit_override ? ["reset"] : []),
  ];
  return [
    ...[lock.pause, lock.limit_override].filter(Boolean).map(sentence),
    lock.other_limits?.length
      ? el("p", { class: "warn" }, `Callers have different limits: ${[lock.limit, ...lock.other_limits].join(", ")}.`)
      : "",
    el(
      "div",
      { class: "buttons" },
      lock.pause?.glob ? button("resume", lock, lock.pause.glob) : "",
      ...kinds.map((kind) => button(kind, lock, lock.name)),
    ),
  ];
}

// The same for a rate.
export function rateOverrideElements(rate) {
  const kinds = [rate.pause ? "rateResume" : "ratePause", "rate", ...(rate.rate_override ? ["rateReset"] : [])];
  return [
    ...[rate.pause, rate.rate_override].filter(Boolean).map(sentence),
    el("div", { class: "buttons" }, ...kinds.map((kind) => button(kind, rate, rate.name))),
  ];
}

function sentence(override) {
  const limit = override.rate.replaceAll(" ", " and ") || override.limit;
  const what = limit ? `Limited to ${limit}` : "Paused";
  const pattern = override.glob ? ` (all names that match ${override.glob})` : "";
  const until = override.until ? `, until ${formatTime(override.until)}` : "";
  const why = override.why ? `: ${override.why}` : "";
  return el("p", { class: "warn" }, renderText(`${what} by ${override.by || "somebody"}${pattern}${until}${why}`));
}

function button(kind, lock, name) {
  const label = name === lock.name ? `${KINDS[kind].title} …` : `${KINDS[kind].title} ${escapeText(name)} …`;
  return el("button", { type: "button", disabled: !mayWrite(), onclick: () => open(kind, name, lock) }, label);
}

function open(kind, name, lock) {
  if (!mayWrite()) return notify(READ_ONLY, "warn");
  const dialog = $("action");
  if (dialog.open) return;
  dialog.replaceChildren(form(kind, name, lock));
  dialog.showModal();
  dialog.querySelector("textarea").focus();
}

function form(kind, name, lock) {
  const node = el(
    "form",
    { class: "action-form", method: "dialog" },
    el("h2", { id: "action-title" }, KINDS[kind].title),
    el("p", { class: "lock-name" }, renderText(name)),
    el("p", { class: "small" }, KINDS[kind].about),
    reasonField(isSetting(kind)),
    el("div", { class: "pair" }, kind === "limit" && limitField(lock), kind === "rate" && rateField(lock), byField()),
    isSetting(kind) && minutesField(),
    el("p", { class: "error-text", role: "alert" }),
    el(
      "div",
      { class: "buttons" },
      el("button", { type: "button", class: "cancel", onclick: () => $("action").close() }, "Cancel"),
      el("button", { class: "primary" }, KINDS[kind].title),
    ),
  );
  node.addEventListener("submit", (event) => {
    event.preventDefault();
    send(kind, name, lock, node);
  });
  return node;
}

function limitField(lock) {
  const value = String(lock.limit);
  return el(
    "label",
    {},
    "Limit",
    el("input", { name: "limit", type: "number", min: "1", max: "1000000", step: "1", required: true, value }),
  );
}

function rateField(rate) {
  const value = rate.rate_override?.rate ?? rate.limits.join(" ");
  return el(
    "label",
    {},
    "Rate, as 30/m",
    el("input", { name: "rate", type: "text", maxlength: "100", required: true, value, autocomplete: "off" }),
  );
}

function minutesField() {
  return el(
    "label",
    {},
    "End after minutes (empty: no end)",
    el("input", { name: "minutes", type: "number", min: "1", max: "1000000", step: "1" }),
  );
}

async function send(kind, name, lock, node) {
  const fields = new FormData(node);
  const body = { name, reason: fields.get("reason") };
  if (fields.get("by")) body.by = fields.get("by");
  if (fields.get("minutes")) body.seconds = Number(fields.get("minutes")) * 60;
  if (kind === "limit") body.limit = Number(fields.get("limit"));
  if (kind === "rate") body.rate = fields.get("rate");
  if ((kind === "pause" || kind === "resume") && name === lock.name) body.exact = true;
  const submit = node.querySelector(".buttons button:last-child");
  submit.disabled = true;
  try {
    const { locks, rate } = await post(KINDS[kind].path, body);
    if (node.isConnected) $("action").close();
    const holders = locks?.reduce((sum, each) => sum + each.holders.length, 0);
    const concerned = locks ? plural(holders, "holder", "holders") : `${rate?.delayed ?? 0} delayed`;
    notify(`${KINDS[kind].done} ${escapeText(name)}: ${concerned}.`);
  } catch (error) {
    submit.disabled = false;
    node.querySelector(".error-text").textContent = error.message;
    if (!$("action").open) notify(error.message, "bad");
  }
  afterAction(fields.get("by"));
}
