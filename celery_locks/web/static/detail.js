// One lock in full, beside the list: who has it, whether that lives, who waits, what was before.

import { get } from "./api.js";
import { Card } from "./card.js";
import { Axis } from "./axis.js";
import { chart } from "./chart.js";
import { copyText, lockText } from "./copy.js";
import { heard, serverNow } from "./clock.js";
import { $, el, live } from "./dom.js";
import { holderPieces, wherePieces } from "./people.js";
import { go, place } from "./place.js";
import { Poller } from "./poller.js";
import { timeline } from "./timeline.js";
import { brief, plural, shown, span, spelled, who, zone } from "./text.js";

const PAST = 200;
const WAITERS_SHOWN = 20;
let shownName = "";
let lock = null;
let acts = [];
let sentences = [];
let axis = new Axis();
let people = "";
let cards = new Map();

const closely = new Poller(askInfo, 3000, (error) => note(error.message));
const widely = new Poller(askStory, 15_000);

export function showDetail() {
  const name = place.view === "locks" ? place.lock : "";
  if (name !== shownName) open(name);
}

export function stopDetail() {
  open("");
}

function open(name) {
  shownName = name;
  [lock, acts, sentences, people, cards, axis] = [null, [], [], "", new Map(), new Axis()];
  $("panel").replaceChildren();
  $("panel").hidden = !name;
  document.body.classList.toggle("has-panel", Boolean(name));
  closely.stop();
  widely.stop();
  if (!name) return;
  drawFrame(name);
  closely.start();
  widely.start();
}

export function refreshDetail() {
  if (!shownName) return;
  closely.now();
  widely.now();
}

async function askInfo() {
  const name = shownName;
  try {
    const answer = await get("locks/info", { name });
    heard(answer.as_of);
    if (name === shownName) showLock(answer);
  } catch (error) {
    if (error.status !== 404) throw error;
    if (name === shownName) showLock({ name, limit: 1, holders: [], waiters: [] });
  }
}

async function askStory() {
  const name = shownName;
  const [why, history] = await Promise.all([
    get("locks/why", { subject: name }),
    get("locks/history", { name, limit: PAST }),
  ]);
  if (name !== shownName) return;
  acts = history.acts;
  sentences = why.sentences;
  showWhy();
  showPast();
}

function drawFrame(name) {
  const copy = [
    el("button", { type: "button", class: "quiet", onclick: copyDetail }, "Copy as text"),
    el("button", { type: "button", class: "quiet", onclick: () => copyText(name) }, "Copy name"),
  ];
  const close = el(
    "button",
    {
      type: "button",
      class: "quiet close",
      "aria-label": "Close",
      title: "Close (Esc)",
      onclick: () => go({ lock: "" }),
    },
    "✕",
  );
  $("panel").replaceChildren(
    el("header", {}, el("h2", { id: "panel-name", tabindex: "-1" }, shown(name)), close),
    el("p", { class: "summary", id: "summary" }, "Reading …"),
    el("p", { class: "small", id: "panel-note" }),
    el("section", { id: "holders" }),
    el("section", { id: "times" }),
    el("section", { id: "waiters" }),
    el("section", { id: "holds" }),
    el("section", { id: "why" }),
    el("section", { id: "past" }),
    el("footer", {}, ...copy),
  );
  $("panel").scrollTop = 0;
}

export function copyDetail() {
  if (lock) copyText(lockText(lock, sentences, acts));
}

function note(sentence) {
  if ($("panel-note")) $("panel-note").textContent = sentence;
}

function showLock(answer) {
  lock = answer;
  note("");
  const now = JSON.stringify([
    ...lock.holders.map((one) => one.token),
    "|",
    ...lock.waiters.map((one) => one.token),
  ]);
  const changed = people !== "" && people !== now;
  people = now;
  $("summary").replaceChildren(...summary());
  showHolders();
  showWaiters();
  if (changed) widely.now();
  else showPast();
}

function summary() {
  const taken = lock.limit > 1 ? `${lock.holders.length} of ${lock.limit} slots taken` : "Held";
  const held = lock.holders.length ? taken : "Free";
  const waits = lock.waiters.length
    ? `${plural(lock.waiters.length, "waits", "wait")} for it`
    : "nobody waits for it";
  return [el("span", {}, `${held}, ${waits}.`), ...usually()];
}

function usually() {
  const usual = lock.usual?.held_for;
  if (!usual) return [];
  const said = [
    ` Such a hold usually takes ${span(usual)} (${plural(lock.usual.holds, "past hold", "past holds")})`,
  ];
  const end = lock.likely_to_end_in == null ? null : lock.as_of + lock.likely_to_end_in;
  if (end !== null)
    said.push(
      live(() =>
        end > serverNow() ? `, likely to end in ${span(end - serverNow())}` : ", likely to end at any moment",
      ),
    );
  const oldest = Math.min(...lock.holders.map((one) => one.acquired_at));
  const times = (lock.as_of - oldest) / usual;
  if (lock.holders.length && times >= 2)
    said.push(
      el(
        "strong",
        { class: "warn" },
        `, now ${times < 10 ? times.toFixed(1) : Math.round(times)} times that`,
      ),
    );
  return [...said, "."];
}

function showHolders() {
  const tokens = new Set(lock.holders.map((one) => one.token));
  for (const [token, card] of cards) {
    if (tokens.has(token)) continue;
    card.node.remove();
    cards.delete(token);
  }
  for (const holder of lock.holders) {
    if (!cards.has(holder.token)) {
      cards.set(holder.token, new Card(lock.name, holder));
      $("holders").append(cards.get(holder.token).node);
    }
    cards.get(holder.token).update(holder, lock.as_of, lock.workers);
  }
}

function showWaiters() {
  const waiters = lock.waiters.slice(0, WAITERS_SHOWN);
  const signature = waiters.map((one) => one.token).join(" ") + lock.waiters.length;
  const section = $("waiters");
  if (section.signature === signature) return;
  section.signature = signature;
  if (!waiters.length) return section.replaceChildren();
  const rest = lock.waiters.length - waiters.length;
  section.replaceChildren(
    el("h3", {}, "In line"),
    el(
      "ol",
      { class: "line" },
      ...waiters.map((one) =>
        el(
          "li",
          { title: spelled(who(one)) },
          el(
            "div",
            { class: "line-two" },
            ...holderPieces(one),
            ...wherePieces(one),
            live(() => `for ${brief(serverNow() - one.acquired_at)}`, { class: "muted" }),
          ),
        ),
      ),
    ),
    rest > 0 ? el("p", { class: "small" }, `… and ${rest} more`) : "",
  );
}

// Sentences that begin with a space belong to the one before.
function showWhy() {
  $("why").replaceChildren(
    el("h3", {}, "In words"),
    ...sentences.map((one) => el("p", { class: one.startsWith(" ") && "inner" }, shown(one.trim()))),
  );
}

function showPast() {
  if (!lock) return;
  const holds = acts.filter((act) => act.held_for != null);
  const oldest = lock.holders.length
    ? serverNow() - Math.min(...lock.holders.map((one) => one.acquired_at))
    : 0;
  showTimes();
  $("holds").replaceChildren(
    ...(holds.length
      ? [el("h3", {}, "How long it was held"), chart(holds, lock.usual?.held_for, oldest)]
      : []),
  );
  const section = $("past");
  const signature = acts.map((act) => act.id).join(" ");
  if (section.signature === signature) return;
  section.signature = signature;
  section.replaceChildren(
    el("h3", {}, `What happened (times in ${zone()})`),
    acts.length
      ? timeline(acts)
      : el(
          "p",
          { class: "small" },
          "Nothing is recorded: no hold of a second or more has ended, no operator has acted.",
        ),
  );
}

// On the axis: who holds and waits now, and what was. Nothing of a lock that was never held.
function showTimes() {
  const section = $("times");
  const isKnown = lock.holders.length || lock.waiters.length || acts.length;
  if (!isKnown) return section.replaceChildren();
  axis.update(lock, acts);
  if (!section.contains(axis.node))
    section.replaceChildren(el("h3", {}, `Holds and waits over time (${zone()})`), axis.node);
}
