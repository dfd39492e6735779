// The panel with one lock: its holders and whether they are alive, its waiters, its history.

import { get } from "./api.js";
import { HolderCard } from "./holder_card.js";
import { TimeAxis } from "./time_axis.js";
import { durationsChart } from "./durations_chart.js";
import { copyText, lockText } from "./copy_text.js";
import { syncClock, serverNow } from "./server_clock.js";
import { $, el, live } from "./dom.js";
import { holderElements, workerElements } from "./holder.js";
import { navigate, route } from "./route.js";
import { Poller } from "./poller.js";
import { historyList } from "./history.js";
import { overrideElements } from "./override_dialog.js";
import { dropAllButton, dropButton } from "./parked_dialog.js";
import {
  formatBrief,
  formatCount,
  plural,
  renderText,
  formatDuration,
  escapeText,
  describeHolder,
  isParked,
  timeZone,
} from "./format.js";

const MAX_HISTORY = 200;
const MAX_WAITERS = 20;
const MAX_PARKED = 100; // so that each of them can be dropped
let shownName = "";
let lock = null;
let entries = [];
let sentences = [];
let axis = new TimeAxis();
let tokens = "";
let cards = new Map();

const lockPoller = new Poller(readLock, 3000, (error) => note(error.message));
const historyPoller = new Poller(readHistory, 15_000);

export function showDetail() {
  const name = route.view === "locks" ? route.lock : "";
  if (name !== shownName) open(name);
}

export function stopDetail() {
  open("");
}

function open(name) {
  shownName = name;
  [lock, entries, sentences, tokens, cards, axis] = [null, [], [], "", new Map(), new TimeAxis()];
  $("panel").replaceChildren();
  $("panel").hidden = !name;
  document.body.classList.toggle("has-panel", Boolean(name));
  lockPoller.stop();
  historyPoller.stop();
  if (!name) return;
  drawFrame(name);
  lockPoller.start();
  historyPoller.start();
}

export function refreshDetail() {
  if (!shownName) return;
  lockPoller.now();
  historyPoller.now();
}

async function readLock() {
  const name = shownName;
  try {
    const answer = await get("locks/info", { name });
    syncClock(answer.as_of);
    if (name === shownName) showLock(answer);
  } catch (error) {
    if (error.status !== 404) throw error;
    if (name === shownName) showLock({ name, limit: 1, holders: [], waiters: [], waiting: 0, parked: 0 });
  }
}

async function readHistory() {
  const name = shownName;
  const [why, history] = await Promise.all([
    get("locks/why", { subject: name }),
    get("locks/history", { name, limit: MAX_HISTORY }),
  ]);
  if (name !== shownName) return;
  entries = history.acts;
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
      onclick: () => navigate({ lock: "" }),
    },
    "✕",
  );
  $("panel").replaceChildren(
    el("header", {}, el("h2", { id: "panel-name", tabindex: "-1" }, renderText(name)), close),
    el("p", { class: "summary", id: "summary" }, "Reading …"),
    el("p", { class: "small", id: "panel-note" }),
    el("section", { id: "overrides" }),
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
  if (lock) copyText(lockText(lock, sentences, entries));
}

function note(sentence) {
  if ($("panel-note")) $("panel-note").textContent = sentence;
}

function showLock(answer) {
  lock = answer;
  note("");
  const current = JSON.stringify([
    ...lock.holders.map((holder) => holder.token),
    "|",
    ...lock.waiters.map((waiter) => waiter.token),
  ]);
  const changed = tokens !== "" && tokens !== current;
  tokens = current;
  $("summary").replaceChildren(...summary());
  showOverrides();
  showHolders();
  showWaiters();
  if (changed) historyPoller.now();
  else showPast();
}

function summary() {
  const slots = lock.limit > 1 ? `${lock.holders.length} of ${lock.limit} slots taken` : "Held";
  const taken = lock.shared ? `${slots}, shared` : slots;
  const held = lock.holders.length ? taken : lock.pause ? "Paused" : "Free";
  const parked = lock.parked ? ` (${formatCount(lock.parked)} parked)` : "";
  const waits = lock.waiting ? `${plural(lock.waiting, "waiter", "waiters")}${parked}` : "no waiters";
  return [el("span", {}, `${held}, ${waits}.`), ...usualDuration()];
}

function usualDuration() {
  const usual = lock.usual?.held_for;
  if (!usual) return [];
  const parts = [
    ` Usually held for ${formatDuration(usual)} (from ${plural(lock.usual.holds, "past hold", "past holds")})`,
  ];
  const end = lock.likely_to_end_in == null ? null : lock.as_of + lock.likely_to_end_in;
  if (end !== null)
    parts.push(
      live(() =>
        end > serverNow() ? `, likely to end in ${formatDuration(end - serverNow())}` : ", likely to end at any moment",
      ),
    );
  const oldest = Math.min(...lock.holders.map((holder) => holder.acquired_at));
  const times = (lock.as_of - oldest) / usual;
  if (lock.holders.length && times >= 2)
    parts.push(
      el(
        "strong",
        { class: "warn" },
        `, now ${times < 10 ? times.toFixed(1) : Math.round(times)} times that`,
      ),
    );
  return [...parts, "."];
}

// Drawn only if something changed, so that focus stays.
function showOverrides() {
  const section = $("overrides");
  const signature = JSON.stringify([lock.pause, lock.limit_override, lock.other_limits, lock.limit]);
  if (section.signature === signature) return;
  section.signature = signature;
  section.replaceChildren(...overrideElements(lock));
}

function showHolders() {
  const held = new Set(lock.holders.map((holder) => holder.token));
  for (const [token, card] of cards) {
    if (held.has(token)) continue;
    card.node.remove();
    cards.delete(token);
  }
  for (const holder of lock.holders) {
    if (!cards.has(holder.token)) {
      cards.set(holder.token, new HolderCard(lock.name, holder));
      $("holders").append(cards.get(holder.token).node);
    }
    cards.get(holder.token).update(holder, lock.as_of, lock.workers);
  }
}

function showWaiters() {
  const waiters = lock.waiters.slice(0, lock.parked ? MAX_PARKED : MAX_WAITERS);
  const signature = `${waiters.map((waiter) => waiter.token).join(" ")} ${lock.waiting} ${lock.parked}`;
  const section = $("waiters");
  if (section.signature === signature) return;
  section.signature = signature;
  if (!waiters.length) return section.replaceChildren();
  const rest = lock.waiting - waiters.length;
  section.replaceChildren(
    el("h3", {}, "Waiters"),
    el(
      "ol",
      { class: "line" },
      ...waiters.map((waiter) =>
        el(
          "li",
          { title: escapeText(describeHolder(waiter)) },
          el(
            "div",
            { class: "line-two" },
            ...holderElements(waiter),
            ...(isParked(waiter) ? [] : workerElements(waiter)),
            live(
              () => `${isParked(waiter) ? "parked " : ""}for ${formatBrief(serverNow() - waiter.acquired_at)}`,
              { class: "muted" },
            ),
            isParked(waiter) && dropButton(lock, waiter),
          ),
        ),
      ),
    ),
    rest > 0 ? el("p", { class: "small" }, `… and ${formatCount(rest)} more`) : "",
    lock.parked ? el("div", { class: "buttons" }, dropAllButton(lock)) : "",
  );
}

// A sentence that begins with a space belongs to the one before.
function showWhy() {
  $("why").replaceChildren(
    el("h3", {}, "Explanation"),
    ...sentences.map((sentence) =>
      el("p", { class: sentence.startsWith(" ") && "inner" }, renderText(sentence.trim())),
    ),
  );
}

function showPast() {
  if (!lock) return;
  const holds = entries.filter((entry) => entry.held_for != null);
  const oldest = lock.holders.length
    ? serverNow() - Math.min(...lock.holders.map((holder) => holder.acquired_at))
    : 0;
  showTimes();
  $("holds").replaceChildren(
    ...(holds.length
      ? [el("h3", {}, "Durations of past holds"), durationsChart(holds, lock.usual?.held_for, oldest)]
      : []),
  );
  const section = $("past");
  const signature = entries.map((entry) => entry.id).join(" ");
  if (section.signature === signature) return;
  section.signature = signature;
  section.replaceChildren(
    el("h3", {}, `History (times in ${timeZone()})`),
    entries.length
      ? historyList(entries)
      : el(
          "p",
          { class: "small" },
          "No history: no hold of a second or more has ended, and no operator has acted.",
        ),
  );
}

// Show the time axis, unless nothing is known about the lock.
function showTimes() {
  const section = $("times");
  const isKnown = lock.holders.length || lock.waiters.length || entries.length;
  if (!isKnown) return section.replaceChildren();
  axis.update(lock, entries);
  if (!section.contains(axis.node))
    section.replaceChildren(el("h3", {}, `Holds and waits over time (${timeZone()})`), axis.node);
}
