// The page: signs in, asks for the list again and again, and lets the parts show it.

import { onAct } from "./act.js";
import { get, hasKey, useKey } from "./api.js";
import { drawBars, STEP, tickBars } from "./bar.js";
import { heard, serverNow, stand } from "./clock.js";
import { refreshDetail, showDetail, stopDetail } from "./detail.js";
import { $, el, tick, write } from "./dom.js";
import { wireKeyboard } from "./keyboard.js";
import { clearList, PAGE, showList, showPlace, tickRows, wireList } from "./list.js";
import { glob, onArrival, place } from "./place.js";
import { Poller } from "./poller.js";
import { clearReports, showReport } from "./reports.js";
import { session } from "./session.js";
import { showSite, siteName } from "./site.js";
import { moment, spelled, workersAsked } from "./text.js";
import { wireTheme } from "./toggle.js";

const EVERY = 1000;
const VIEWS = ["locks", "stale", "done", "history", "check"];
const list = new Poller(askList, EVERY, listFailed);
let lastAnswer = 0;
let nextTry = 0;

function asked() {
  return {
    search: glob(place.q),
    task: glob(place.task),
    worker: place.worker,
    state: place.state,
    sort: place.sort,
    order: place.order,
    limit: PAGE,
    offset: (Number(place.page) - 1) * PAGE,
  };
}

async function askList() {
  const question = asked();
  const answer = await get("locks", question);
  if (!list.isOn) return;
  lastAnswer = Date.now();
  heard(answer.as_of);
  hideTrouble();
  // Meanwhile something else may have been asked for; its answer is on the way.
  if (JSON.stringify(question) === JSON.stringify(asked())) showList(answer);
  showPulse(answer);
}

function showPulse(answer) {
  const late = serverNow() - answer.as_of;
  write($("pulse-text"), late > 2.5 ? `as of ${late.toFixed(0)} s ago` : "live");
  $("pulse").title = `Read from the lock server in ${Math.round(1000 * answer.read_in)} ms`;
  write($("asked"), workersAsked(answer.workers));
}

function listFailed(error, nextIn) {
  if (error.status === 401) return signIn(error.message);
  stand();
  tickAll();
  nextTry = Date.now() + nextIn;
  trouble = error.message;
  document.body.classList.add("stale-data");
  showTrouble();
}

let trouble = "";

function showTrouble() {
  if (!trouble) return;
  const since = lastAnswer ? `No answer since ${moment(lastAnswer / 1000)}. ` : "No answer yet. ";
  const next = Math.max(0, Math.round((nextTry - Date.now()) / 1000));
  $("trouble").hidden = false;
  write($("trouble-text"), `${since}${trouble} ${next ? `Trying again in ${next} s.` : "Trying again …"}`);
  write($("pulse-text"), "no answer");
  write($("asked"), "");
}

function hideTrouble() {
  trouble = "";
  $("trouble").hidden = true;
  document.body.classList.remove("stale-data");
}

function tickAll() {
  tick();
  tickRows();
  tickBars();
  showTrouble();
}

async function enter() {
  const said = await get("me");
  Object.assign(session, said);
  heard(said.now);
  showSite(said);
  $("role").hidden = said.role === "write";
  $("sign-in").hidden = true;
  document.querySelector(".views").hidden = false;
  $("sign-out").hidden = !hasKey();
  $("empty").hidden = false;
  $("empty").replaceChildren(el("p", {}, "Reading the locks …"));
  arrived(place, { view: "" });
}

function arrived(now, before) {
  if (!$("sign-in").hidden) return;
  document.title = [now.lock && spelled(now.lock), siteName(), "celery-locks"].filter(Boolean).join(" · ");
  for (const id of VIEWS) $(id).hidden = id !== now.view;
  for (const link of document.querySelectorAll(".views a")) {
    if (link.dataset.view === now.view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  showPlace();
  showDetail();
  if (now.view !== before.view) showReport();
  $("pulse").hidden = now.view !== "locks";
  if (now.view !== "locks") list.stop();
  else if (!before.view || before.view !== now.view) list.start();
  else if (now.lock === before.lock) list.now();
  else if (now.lock) $("panel-name").focus({ preventScroll: true });
}

function signIn(sentence = "") {
  list.stop();
  stopDetail();
  clearList();
  clearReports();
  $("outcomes").replaceChildren();
  $("act").close();
  hideTrouble();
  $("copy").close();
  document.title = "celery-locks";
  for (const id of ["role", "site", "pulse", "sign-out", ...VIEWS]) $(id).hidden = true;
  document.querySelector(".views").hidden = true;
  $("sign-in").hidden = false;
  $("refusal").textContent = hasKey() ? sentence : "";
  useKey("");
  $("key").value = "";
  $("key").focus();
}

async function begin() {
  try {
    await enter();
  } catch (error) {
    if (error.status === 401) return signIn(error.message);
    nextTry = Date.now() + 2000;
    trouble = error.message;
    showTrouble();
    setTimeout(begin, 2000);
  }
}

$("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey($("key").value.trim());
  begin();
});
$("sign-out").addEventListener("click", () => {
  useKey("");
  signIn();
});
$("try-now").addEventListener("click", () => list.now());
onAct(() => {
  list.now();
  refreshDetail();
  if (place.view !== "locks") showReport();
});
onArrival(arrived);
wireTheme();
wireList();
wireKeyboard();
setInterval(tickAll, 1000);
setInterval(drawBars, STEP);
begin();
