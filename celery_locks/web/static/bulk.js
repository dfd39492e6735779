// Releasing several locks at once: from the holders that are listed in the dialog, nobody else.

import { acted, byField, graceField, reasonField, sureField } from "./act.js";
import { post } from "./api.js";
import { $, el, tell } from "./dom.js";
import { life } from "./people.js";
import { mayWrite, READ_ONLY } from "./session.js";
import { defaultGrace, isAtWork, plural, shown, spelled, who } from "./text.js";

const MOST = 100;

// `locks` as they are shown; `then` hears when something was released.
export function openBulk(locks, then) {
  if (!mayWrite()) return tell(READ_ONLY, "warn");
  const pairs = locks.flatMap((lock) => lock.holders.map((holder) => ({ lock, holder })));
  if (!pairs.length) return tell("Nobody holds the selected locks any more.", "warn");
  if (pairs.length > MOST)
    return tell(`${pairs.length} holders are selected; at most ${MOST} at a time.`, "warn");
  const dialog = $("act");
  if (dialog.open) return;
  dialog.replaceChildren(form(pairs, then));
  dialog.showModal();
  dialog.querySelector("textarea").focus();
}

function form(pairs, then) {
  const busy = pairs.filter(({ holder }) => isAtWork(holder));
  const locks = new Set(pairs.map(({ lock }) => lock.name)).size;
  const sure = sureField(
    `${plural(busy.length, "holder seems", "holders seem")} to be at work. Take the locks from them all the same.`,
  );
  const made = el(
    "form",
    { class: "act", method: "dialog" },
    el("h2", { id: "act-title" }, `Release ${plural(locks, "lock", "locks")}`),
    el("p", { class: "small" }, "Taken from these holders only. One that gets a lock meanwhile keeps it."),
    el("ul", { class: "targets", tabindex: "0", "aria-label": "Holders" }, ...pairs.map(target)),
    reasonField(true),
    el("div", { class: "pair" }, graceField(), byField()),
    sure,
    el("p", { class: "refusal", role: "alert" }),
    el(
      "div",
      { class: "buttons" },
      el("button", { type: "button", class: "cancel", onclick: () => $("act").close() }, "Cancel"),
      el("button", { class: "danger" }, `Release ${plural(locks, "lock", "locks")}`),
    ),
  );
  const graces = busy.map(({ lock }) => defaultGrace(lock));
  made.elements.grace.value = String(Math.max(0, ...graces));
  made.elements.sure.required = busy.length > 0;
  sure.hidden = busy.length === 0;
  made.addEventListener("submit", (event) => {
    event.preventDefault();
    send(made, pairs, then);
  });
  return made;
}

function target({ lock, holder }) {
  return el(
    "li",
    {},
    el("strong", {}, shown(lock.name)),
    el("small", {}, life(holder), shown(who(holder))),
  );
}

async function send(made, pairs, then) {
  const said = new FormData(made);
  const grace = Number(said.get("grace"));
  const holders = pairs.map(({ lock, holder }) => ({ name: lock.name, token: holder.token }));
  const body = { holders, reason: said.get("reason"), grace };
  if (said.get("by")) body.by = said.get("by");
  const button = made.querySelector(".buttons button:last-child");
  const label = button.textContent;
  button.disabled = true;
  button.textContent = grace ? `Asked to stop, waiting up to ${grace} s …` : "Sending …";
  try {
    const answer = await post("locks/release-many", body, grace * 1000);
    if (made.isConnected) $("act").close();
    tell(outcome(answer), answer.trouble ? "bad" : "good");
    then();
  } catch (error) {
    button.disabled = false;
    button.textContent = label;
    made.querySelector(".refusal").textContent = error.message;
    if (!$("act").open) tell(error.message, "bad");
  }
  acted(said.get("by"));
}

function outcome({ freed, not_held: gone, unknown, trouble }) {
  const parts = [];
  if (freed.length)
    parts.push(
      `Took ${plural(freed.length, "lock", "locks")}: ${freed.map((one) => spelled(one.name)).join(", ")}.`,
    );
  if (gone.length) parts.push(`${plural(gone.length, "holder", "holders")} had released it already.`);
  if (unknown.length)
    parts.push(
      `Nobody knows about ${plural(unknown.length, "holder", "holders")} (${unknown.map((one) => spelled(one.name)).join(", ")}): ${spelled(trouble)}.`,
    );
  return parts.join(" ");
}
