// The dialog in which a lock is released or its holder asked to stop.

import { get, post } from "./api.js";
import { $, el, tell } from "./dom.js";
import { mayWrite, READ_ONLY } from "./session.js";
import { defaultGrace, isAtWork, isKept, isQueued, plural, shown, span, spelled, who } from "./text.js";

const SIGNATURE = "celery-locks.by";
let done = () => {};

export function onAct(listener) {
  done = listener;
}

// `kind`: "release" or "stop"; `token`: of the holder that is meant, if there are several.
export async function openAct(kind, name, token = "") {
  if (!mayWrite()) return tell(READ_ONLY, "warn");
  try {
    const lock = await get("locks/info", { name });
    if (lock.holders.length) return show(kind, lock, token);
    return tell(`Nobody holds lock ${spelled(name)}: there is nothing to take.`, "warn");
  } catch (error) {
    return tell(error.message, "bad");
  }
}

function show(kind, lock, token) {
  const dialog = $("act");
  if (dialog.open) return;
  dialog.replaceChildren(form(kind, lock, token));
  dialog.showModal();
  dialog.querySelector("textarea").focus();
}

function form(kind, lock, token) {
  const isRelease = kind === "release";
  const chosen = lock.holders.find((one) => one.token === token) ?? lock.holders[0];
  const made = el(
    "form",
    { class: "act", method: "dialog" },
    el("h2", { id: "act-title" }, isRelease ? "Release lock" : "Ask to stop"),
    el("p", { class: "lock-name" }, shown(lock.name)),
    holderChoice(lock, chosen, isRelease),
    el("p", { class: "small consequences" }),
    reasonField(isRelease),
    el(
      "div",
      { class: "pair" },
      isRelease && graceField(),
      byField(),
    ),
    isRelease && sureField(),
    el("p", { class: "refusal", role: "alert" }),
    el(
      "div",
      { class: "buttons" },
      el("button", { type: "button", class: "cancel", onclick: () => $("act").close() }, "Cancel"),
      el("button", { class: isRelease ? "danger" : "primary" }, isRelease ? "Release" : "Ask to stop"),
    ),
  );
  fit(made, lock, chosen, isRelease);
  made.querySelector("fieldset").addEventListener("change", (event) => {
    fit(
      made,
      lock,
      lock.holders.find((one) => one.token === event.target.value),
      isRelease,
    );
  });
  made.addEventListener("submit", (event) => {
    event.preventDefault();
    send(kind, lock, made);
  });
  return made;
}

function holderChoice(lock, chosen, isRelease) {
  const title = isRelease ? "It will be taken from" : "This holder is asked";
  return el(
    "fieldset",
    { class: "whom" },
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
          shown(who(holder)),
          el("small", {}, `held for ${span(lock.as_of - holder.acquired_at)}, fence ${holder.fence}`),
          holder.liveness &&
            el("small", { class: `verdict ${holder.liveness.verdict}` }, shown(holder.liveness.sentence)),
        ),
      ),
    ),
  );
}

// What is to be known and confirmed depends on the holder that is chosen.
function fit(made, lock, holder, isRelease) {
  made.querySelector(".consequences").textContent = isRelease
    ? consequences(lock, holder)
    : "It hears this with its next renewal and keeps the lock until it ends by itself. A task that does not listen goes on.";
  if (!isRelease) return;
  // One that is dead cannot use a grace.
  made.elements.grace.value = isAtWork(holder) ? String(defaultGrace(lock)) : "0";
  made.elements.sure.required = isAtWork(holder);
  made.querySelector(".sure").hidden = !isAtWork(holder);
}

function consequences(lock, holder) {
  const next = lock.waiters.length
    ? `The first of ${plural(lock.waiters.length, "waiter", "waiters")} gets it at once. `
    : "";
  if (isQueued(holder))
    return `${next}The message stays in the queue and needs the lock again when it begins.`;
  if (isKept(holder)) return `${next}Its work has ended already.`;
  return `${next}The holder learns of it with its next renewal, within ${span(holder.ttl / 3)}; what it writes until then only a fence can refuse.`;
}

export function byField() {
  return el(
    "label",
    {},
    "Your name, for the record",
    el("input", { name: "by", maxlength: "200", autocomplete: "name", value: signature() }),
  );
}

export function reasonField(isRequired) {
  const label = isRequired ? "Reason" : "Reason (may be empty)";
  return el(
    "label",
    {},
    label,
    el("textarea", {
      name: "reason",
      rows: "2",
      maxlength: "500",
      required: isRequired,
      placeholder: "For whoever reads the history tomorrow",
    }),
  );
}

export function graceField() {
  return el(
    "label",
    { title: "The holder is asked to stop first and has this long to release the lock itself" },
    "Grace, in seconds",
    el("input", { name: "grace", type: "number", min: "0", max: "60", step: "1", required: true }),
  );
}

export function sureField(words = "It seems to be at work. Take the lock from it all the same.") {
  return el(
    "label",
    { class: "sure" },
    el("input", { type: "checkbox", name: "sure" }),
    el("span", {}, words),
  );
}

async function send(kind, lock, made) {
  const said = new FormData(made);
  const grace = Number(said.get("grace") ?? 0);
  const body = { name: lock.name, token: said.get("token"), reason: said.get("reason") };
  if (said.get("by")) body.by = said.get("by");
  if (kind === "release") body.grace = grace;
  sign(said.get("by"));
  const button = made.querySelector(".buttons button:last-child");
  button.disabled = true;
  button.textContent = grace ? `Asked to stop, waiting up to ${grace} s …` : "Sending …";
  try {
    const answer = await post(`locks/${kind}`, body, grace * 1000);
    if (made.isConnected) $("act").close();
    tell(outcome(kind, lock, answer, grace));
  } catch (error) {
    button.disabled = false;
    button.textContent = kind === "release" ? "Release" : "Ask to stop";
    made.querySelector(".refusal").textContent = error.message;
    if (!$("act").open) tell(error.message, "bad");
  }
  done();
}

// The name is kept for the next dialog, and what was done may have changed what is shown.
export function acted(by) {
  sign(by);
  done();
}

function outcome(kind, lock, answer, grace) {
  const name = spelled(lock.name);
  const whom = (answer.freed ?? answer.asked ?? []).map((one) => spelled(who(one))).join(", ");
  if (kind === "stop")
    return whom
      ? `Asked ${whom} to stop and give back ${name}.`
      : `Nobody was there to be asked: ${name} had been given back.`;
  if (!whom)
    return grace ? `The holder of ${name} gave it back by itself.` : `${name} had been given back already.`;
  return `Took lock ${name} from ${whom}.`;
}

function signature() {
  try {
    return localStorage.getItem(SIGNATURE) ?? "";
  } catch {
    return "";
  }
}

function sign(by) {
  try {
    localStorage.setItem(SIGNATURE, by);
  } catch {
    // Asked for again the next time, then.
  }
}
