// The smaller views: stale locks, rates, completed work, history, configuration check.

import { openActionDialog } from "./action_dialog.js";
import { get, post } from "./api.js";
import { $, el, live, notify } from "./dom.js";
import { holderElements, verdictLabel, workerElements } from "./holder.js";
import { linkTo, route } from "./route.js";
import { mayWrite, READ_ONLY, session } from "./session.js";
import { readCompleted, completedFilter, drawCompleted } from "./completed.js";
import { historyList } from "./history.js";
import { drawRates, rateFilter, readRates } from "./rates.js";
import { plural, renderText, formatDuration, escapeText, timeZone } from "./format.js";

const MAX_HISTORY = 1000;
const MINUTE = 60;
let olderThan = "";
let withHolds = false;

const VIEWS = { stale: showStale, rates: showRates, done: showDone, history: showHistory, check: showCheck };

export function clearReports() {
  for (const id of Object.keys(VIEWS)) $(id).replaceChildren();
}

export function showReport() {
  for (const [name, show] of Object.entries(VIEWS)) {
    if (name === route.view) show();
  }
}

// Draw a view's heading and description; return the body to be filled with the answer.
function drawFrame(id, title, text, ...tools) {
  const body = el("div", { class: "body" });
  const again = el("button", { type: "button", onclick: showReport }, "Refresh");
  $(id).replaceChildren(
    el(
      "header",
      {},
      el("h1", { id: `${id}-title` }, title),
      el("p", {}, text),
      el("div", { class: "tools" }, ...tools.filter(Boolean), again),
    ),
    body,
  );
  return body;
}

// Until the answer arrives: show what is running, and for how long.
function showProgress(body, text) {
  const began = Date.now();
  const seconds = live(() => ` ${formatDuration((Date.now() - began) / 1000)}`);
  body.replaceChildren(el("p", { class: "muted progress", role: "status" }, `${text} …`, seconds));
}

async function fill(body, text, read, draw) {
  showProgress(body, text);
  try {
    const answer = await read();
    body.replaceChildren(...draw(answer));
  } catch (error) {
    body.replaceChildren(el("p", { class: "error-text" }, error.message));
  }
}

function showStale() {
  const box = el("input", { type: "number", min: "0", step: "any", value: olderThan, size: "5" });
  box.addEventListener("change", () => {
    olderThan = box.value;
    showStale();
  });
  const body = drawFrame(
    "stale",
    "Stale locks",
    session.app
      ? "Locks whose worker does not answer, does not run the task, or has not renewed the lock in time."
      : "Locks that were not renewed in time. Without a Celery app the workers cannot be asked.",
    el("label", {}, "or held for more than ", box, " minutes"),
  );
  const query = { older_than: olderThan ? String(Number(olderThan) * MINUTE) : "" };
  fill(
    body,
    session.app
      ? "Reading all locks and asking their workers over the broker which tasks they run. A worker that does not answer within 1.5 s is asked a second time. Then the broker is searched for queued messages"
      : "Reading all locks from the lock server",
    () => get("locks/stale", query),
    ({ stale, doubt }) => [
      stale.length || doubt
        ? lockCards(stale, true)
        : el("p", { class: "empty" }, "No stale locks."),
      doubt ? el("p", {}, renderText(doubt)) : "",
      sweepSection(),
    ],
  );
}

function lockCards(found, withButtons) {
  return el(
    "ul",
    { class: "cards" },
    ...found.map((lock) =>
      el(
        "li",
        {},
        el(
          "div",
          { class: "line-one" },
          el("a", { class: "name", href: linkTo({ view: "locks", lock: lock.name }) }, renderText(lock.name)),
          el("span", { class: `badge ${lock.verdict}` }, verdictLabel(lock.verdict)),
          el("span", { class: "muted" }, `held for ${formatDuration(lock.held_for)}`),
        ),
        el("div", { class: "line-two" }, ...holderElements(lock.holder), ...workerElements(lock.holder)),
        el("p", {}, renderText(lock.sentence)),
        withButtons &&
          mayWrite() &&
          el(
            "button",
            {
              type: "button",
              class: "danger",
              onclick: () => openActionDialog("release", lock.name, lock.holder.token),
            },
            "Release …",
          ),
      ),
    ),
  );
}

function sweepSection() {
  const text =
    "A sweep releases the locks of workers that failed to answer twice and whose renewal is overdue, and the reservations of messages that are no longer in the queue.";
  if (!session.app) {
    return el(
      "div",
      { class: "sweep" },
      el("h2", {}, "Sweep"),
      el(
        "p",
        {},
        `${text} This server was started without a Celery app, so it cannot ask the workers: start it as `,
        el("code", {}, "celery -A proj locks web"),
        ", or sweep with ",
        el("code", {}, "celery -A proj locks sweep"),
        ".",
      ),
    );
  }
  const found = el("div", {});
  const preview = el(
    "button",
    { type: "button", disabled: !mayWrite(), onclick: () => dryRun(found, preview) },
    "Preview a sweep",
  );
  return el(
    "div",
    { class: "sweep" },
    el("h2", {}, "Sweep"),
    el("p", {}, mayWrite() ? text : `${text} ${READ_ONLY}`),
    preview,
    found,
  );
}

async function dryRun(found, preview) {
  await runSweep(preview, { dry_run: true }, ({ freed, spared, doubt }) => {
    const button = el(
      "button",
      { type: "button", class: "danger" },
      `Release ${plural(freed.length, "lock", "locks")}`,
    );
    button.addEventListener("click", () => sweep(button));
    found.replaceChildren(
      el("p", {}, freed.length ? "A sweep would release:" : "A sweep would release nothing."),
      lockCards(freed, false),
      freed.length ? button : "",
      doubt ? el("p", {}, renderText(doubt)) : "",
      spared.length ? el("p", {}, "Not released: the workers of these locks do not answer, but a renewal is not overdue yet:") : "",
      lockCards(spared, false),
    );
  });
}

async function sweep(button) {
  await runSweep(button, { dry_run: false }, ({ freed }) => {
    notify(
      freed.length
        ? `Released ${freed.map((lock) => escapeText(lock.name)).join(", ")}.`
        : "There was nothing left to release.",
    );
    showStale();
  });
}

async function runSweep(button, body, onAnswer) {
  button.disabled = true;
  try {
    onAnswer(await post("locks/sweep", body, 30_000));
  } catch (error) {
    notify(error.message, "bad");
  }
  button.disabled = false;
}

function showHistory() {
  const box = el("input", { type: "checkbox", checked: withHolds });
  box.addEventListener("change", () => {
    withHolds = box.checked;
    showHistory();
  });
  const body = drawFrame(
    "history",
    "History",
    `What operators did to locks and rates, and why; latest first. Times are in ${timeZone()}.`,
    el("label", {}, box, " include past holds"),
  );
  fill(
    body,
    "Reading the history from the lock server",
    () => get("locks/history", { limit: MAX_HISTORY, only_acts: !withHolds }),
    ({ acts: entries }) => [
      entries.length
        ? historyList(entries, { named: true, all: true })
        : el("p", { class: "empty" }, "No history yet."),
    ],
  );
}

function showRates() {
  const body = drawFrame(
    "rates",
    "Rates",
    "Rates that delay callers, that were pushed back, or that an operator paused or set.",
    rateFilter(showRates),
  );
  fill(body, "Reading the rates from the lock server", readRates, drawRates);
}

function showDone() {
  const body = drawFrame(
    "done",
    "Completed work",
    "Keys whose work is completed (once=, @idempotent). A repeated call does not run until the mark expires or is reset.",
    completedFilter(showDone),
  );
  fill(body, "Reading the marks from the lock server", readCompleted, drawCompleted);
}

function showCheck() {
  const body = drawFrame(
    "check",
    "Check",
    session.app
      ? "Mistakes and risks in the configuration of the lock server, the broker and each task."
      : "Mistakes and risks in the configuration of the lock server. With a Celery app, its broker and tasks are checked too.",
  );
  fill(
    body,
    session.app
      ? "Reading the settings of the lock server and the broker, and checking the options of each task"
      : "Reading the settings of the lock server",
    () => get("locks/check"),
    ({ findings }) => [
      findings.length
        ? el(
            "ul",
            { class: "cards" },
            ...findings.map((finding) =>
              el(
                "li",
                { class: finding.level },
                el(
                  "div",
                  { class: "line-one" },
                  el("span", { class: `badge ${finding.level}` }, finding.level),
                  el("strong", {}, renderText(finding.where)),
                ),
                el("p", {}, renderText(finding.sentence)),
              ),
            ),
          )
        : el("p", { class: "empty" }, "No problems found."),
    ],
  );
}
