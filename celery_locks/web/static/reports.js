// The smaller views: what looks left behind, what was done, what is set up wrongly.

import { openAct } from "./act.js";
import { get, post } from "./api.js";
import { $, el, live, tell } from "./dom.js";
import { holderPieces, wherePieces } from "./people.js";
import { linkTo, place } from "./place.js";
import { mayWrite, READ_ONLY, session } from "./session.js";
import { askDone, doneFilter, drawDone } from "./done.js";
import { timeline } from "./timeline.js";
import { plural, shown, span, spelled, zone } from "./text.js";

const HISTORY = 1000;
const MINUTE = 60;
let olderThan = "";
let withHolds = false;

const VIEWS = { stale: showStale, done: showDone, history: showHistory, check: showCheck };

export function clearReports() {
  for (const id of Object.keys(VIEWS)) $(id).replaceChildren();
}

export function showReport() {
  for (const [name, show] of Object.entries(VIEWS)) {
    if (name === place.view) show();
  }
}

// A view's head with what it is for, and a body that is filled when the answer is there.
function frame(id, title, words, ...tools) {
  const body = el("div", { class: "body" });
  const again = el("button", { type: "button", onclick: showReport }, "Look again");
  $(id).replaceChildren(
    el(
      "header",
      {},
      el("h1", { id: `${id}-title` }, title),
      el("p", {}, words),
      el("div", { class: "tools" }, ...tools.filter(Boolean), again),
    ),
    body,
  );
  return body;
}

// Until the answer is there: what is asked of whom, and for how long already.
function progress(body, words) {
  const began = Date.now();
  const seconds = live(() => ` ${span((Date.now() - began) / 1000)}`);
  body.replaceChildren(el("p", { class: "muted progress", role: "status" }, `${words} …`, seconds));
}

async function fill(body, words, ask, draw) {
  progress(body, words);
  try {
    const answer = await ask();
    body.replaceChildren(...draw(answer));
  } catch (error) {
    body.replaceChildren(el("p", { class: "refusal" }, error.message));
  }
}

function showStale() {
  const box = el("input", { type: "number", min: "0", step: "any", value: olderThan, size: "5" });
  box.addEventListener("change", () => {
    olderThan = box.value;
    showStale();
  });
  const body = frame(
    "stale",
    "Stale locks",
    session.app
      ? "Held by a worker that does not answer, or does not run the task, or has not renewed in time."
      : "Not renewed in time. Without a Celery app the workers cannot be asked.",
    el("label", {}, "or held for more than ", box, " minutes"),
  );
  const asked = { older_than: olderThan ? String(Number(olderThan) * MINUTE) : "" };
  fill(
    body,
    session.app
      ? "Reading all locks and asking their workers over the broker which tasks they run. A worker that does not answer within 1.5 s is asked a second time. Queued messages are then looked for in the queues"
      : "Reading all locks from the lock server",
    () => get("locks/stale", asked),
    ({ stale, doubt }) => [
      stale.length || doubt
        ? suspects(stale, true)
        : el("p", { class: "empty" }, "Nothing looks stale."),
      doubt ? el("p", {}, shown(doubt)) : "",
      sweeping(),
    ],
  );
}

function suspects(found, withButtons) {
  return el(
    "ul",
    { class: "cards" },
    ...found.map((one) =>
      el(
        "li",
        {},
        el(
          "div",
          { class: "line-one" },
          el("a", { class: "name", href: linkTo({ view: "locks", lock: one.name }) }, shown(one.name)),
          el("span", { class: `badge ${one.verdict}` }, one.verdict),
          el("span", { class: "muted" }, `held for ${span(one.held_for)}`),
        ),
        el("div", { class: "line-two" }, ...holderPieces(one.holder), ...wherePieces(one.holder)),
        el("p", {}, shown(one.sentence)),
        withButtons &&
          mayWrite() &&
          el(
            "button",
            {
              type: "button",
              class: "danger",
              onclick: () => openAct("release", one.name, one.holder.token),
            },
            "Release …",
          ),
      ),
    ),
  );
}

function sweeping() {
  const words =
    "A sweep frees the locks of workers that did not answer twice and whose renewal is overdue, and places in the queue whose message is gone.";
  if (!session.app) {
    return el(
      "div",
      { class: "sweep" },
      el("h2", {}, "Sweep"),
      el(
        "p",
        {},
        `${words} This server was started without a Celery app, so it cannot ask the workers: start it as `,
        el("code", {}, "celery -A proj locks web"),
        ", or sweep with ",
        el("code", {}, "celery -A proj locks sweep"),
        ".",
      ),
    );
  }
  const found = el("div", {});
  const look = el(
    "button",
    { type: "button", disabled: !mayWrite(), onclick: () => dryRun(found, look) },
    "See what a sweep would free",
  );
  return el(
    "div",
    { class: "sweep" },
    el("h2", {}, "Sweep"),
    el("p", {}, mayWrite() ? words : `${words} ${READ_ONLY}`),
    look,
    found,
  );
}

async function dryRun(found, look) {
  await swept(look, { dry_run: true }, ({ freed, spared, doubt }) => {
    const go = el(
      "button",
      { type: "button", class: "danger" },
      `Free ${plural(freed.length, "lock", "locks")}`,
    );
    go.addEventListener("click", () => reallySweep(go));
    found.replaceChildren(
      el("p", {}, freed.length ? "It would free:" : "It would free nothing."),
      suspects(freed, false),
      freed.length ? go : "",
      doubt ? el("p", {}, shown(doubt)) : "",
      spared.length ? el("p", {}, "Their workers are silent too, but a renewal may yet come:") : "",
      suspects(spared, false),
    );
  });
}

async function reallySweep(button) {
  await swept(button, { dry_run: false }, ({ freed }) => {
    tell(
      freed.length
        ? `Swept: ${freed.map((one) => spelled(one.name)).join(", ")}.`
        : "Nothing was left to free.",
    );
    showStale();
  });
}

async function swept(button, body, then) {
  button.disabled = true;
  try {
    then(await post("locks/sweep", body, 30_000));
  } catch (error) {
    tell(error.message, "bad");
  }
  button.disabled = false;
}

function showHistory() {
  const box = el("input", { type: "checkbox", checked: withHolds });
  box.addEventListener("change", () => {
    withHolds = box.checked;
    showHistory();
  });
  const body = frame(
    "history",
    "History",
    `What operators did to locks, and why; the latest first. Times are in ${zone()}.`,
    el("label", {}, box, " also the holds that ended"),
  );
  fill(
    body,
    "Reading the history from the lock server",
    () => get("locks/history", { limit: HISTORY, only_acts: !withHolds }),
    ({ acts }) => [
      acts.length
        ? timeline(acts, { named: true, all: true })
        : el("p", { class: "empty" }, "Nothing is recorded yet."),
    ],
  );
}

function showDone() {
  const body = frame(
    "done",
    "Completed work",
    "Keys whose work is done (once=, @idempotent): a repeat is not run, until the mark is forgotten or reset.",
    doneFilter(showDone),
  );
  fill(body, "Reading the marks from the lock server", askDone, drawDone);
}

function showCheck() {
  const body = frame(
    "check",
    "Check",
    session.app
      ? "What is set up wrongly or may surprise: the lock server, the broker, each task's options."
      : "What is set up wrongly or may surprise on the lock server. With a Celery app, its tasks are looked at too.",
  );
  fill(
    body,
    session.app
      ? "Asking the lock server and the broker about their settings, and looking at each task's options"
      : "Asking the lock server about its settings",
    () => get("locks/check"),
    ({ findings }) => [
      findings.length
        ? el(
            "ul",
            { class: "cards" },
            ...findings.map((one) =>
              el(
                "li",
                { class: one.level },
                el(
                  "div",
                  { class: "line-one" },
                  el("span", { class: `badge ${one.level}` }, one.level),
                  el("strong", {}, shown(one.where)),
                ),
                el("p", {}, shown(one.sentence)),
              ),
            ),
          )
        : el("p", { class: "empty" }, "Nothing to complain about."),
    ],
  );
}
