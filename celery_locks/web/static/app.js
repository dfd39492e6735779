// The page: signs in, reads the list again and again, and passes it to the parts that show it.

import { onAction } from "./action_dialog.js";
import { get, hasKey, useKey } from "./api.js";
import { drawBars, STEP, tickBars } from "./lease_bar.js";
import { syncClock, serverNow, stopClock } from "./server_clock.js";
import { refreshDetail, showDetail, stopDetail } from "./detail.js";
import { $, el, tick, setText } from "./dom.js";
import { initKeyboard } from "./keyboard.js";
import { clearList, PAGE, showList, showRoute, tickRows, initList } from "./list.js";
import { glob, onRouteChange, route } from "./route.js";
import { Poller } from "./poller.js";
import { clearReports, showReport } from "./reports.js";
import { session } from "./session.js";
import { showServer, serverName } from "./server_info.js";
import { formatTime, escapeText, describeWorkers } from "./format.js";
import { initTheme } from "./theme_button.js";

const INTERVAL = 1000;
const VIEWS = ["locks", "stale", "rates", "done", "history", "check"];
const list = new Poller(readList, INTERVAL, listFailed);
let lastAnswer = 0;
let nextTry = 0;

function listQuery() {
  return {
    search: glob(route.q),
    task: glob(route.task),
    worker: route.worker,
    state: route.state,
    sort: route.sort,
    order: route.order,
    limit: PAGE,
    offset: (Number(route.page) - 1) * PAGE,
  };
}

async function readList() {
  const query = listQuery();
  const answer = await get("locks", query);
  if (!list.isOn) return;
  lastAnswer = Date.now();
  syncClock(answer.as_of);
  hideTrouble();
  // The filter may have changed meanwhile; then another answer is on its way.
  if (JSON.stringify(query) === JSON.stringify(listQuery())) showList(answer);
  showStatus(answer);
}

function showStatus(answer) {
  const age = serverNow() - answer.as_of;
  setText($("status-text"), age > 2.5 ? `as of ${age.toFixed(0)} s ago` : "live");
  $("status").title = `Read from the lock server in ${Math.round(1000 * answer.read_in)} ms`;
  setText($("workers-status"), describeWorkers(answer.workers));
}

function listFailed(error, nextIn) {
  if (error.status === 401) return signIn(error.message);
  stopClock();
  tickAll();
  nextTry = Date.now() + nextIn;
  trouble = error.message;
  document.body.classList.add("stale-data");
  showTrouble();
}

let trouble = "";

function showTrouble() {
  if (!trouble) return;
  const since = lastAnswer ? `No answer since ${formatTime(lastAnswer / 1000)}. ` : "No answer yet. ";
  const next = Math.max(0, Math.round((nextTry - Date.now()) / 1000));
  $("trouble").hidden = false;
  setText($("trouble-text"), `${since}${trouble} ${next ? `Retrying in ${next} s.` : "Retrying …"}`);
  setText($("status-text"), "no answer");
  setText($("workers-status"), "");
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
  const me = await get("me");
  Object.assign(session, me);
  syncClock(me.now);
  showServer(me);
  $("role").hidden = me.role === "write";
  $("sign-in").hidden = true;
  document.querySelector(".views").hidden = false;
  $("sign-out").hidden = !hasKey();
  $("empty").hidden = false;
  $("empty").replaceChildren(el("p", {}, "Reading the locks …"));
  routeChanged(route, { view: "" });
}

function routeChanged(current, previous) {
  if (!$("sign-in").hidden) return;
  document.title = [current.lock && escapeText(current.lock), serverName(), "celery-locks"].filter(Boolean).join(" · ");
  for (const id of VIEWS) $(id).hidden = id !== current.view;
  for (const link of document.querySelectorAll(".views a")) {
    if (link.dataset.view === current.view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  showRoute();
  showDetail();
  if (current.view !== previous.view) showReport();
  $("status").hidden = current.view !== "locks";
  if (current.view !== "locks") list.stop();
  else if (!previous.view || previous.view !== current.view) list.start();
  else if (current.lock === previous.lock) list.now();
  else if (current.lock) $("panel-name").focus({ preventScroll: true });
}

function signIn(sentence = "") {
  list.stop();
  stopDetail();
  clearList();
  clearReports();
  $("outcomes").replaceChildren();
  $("action").close();
  hideTrouble();
  $("copy").close();
  document.title = "celery-locks";
  for (const id of ["role", "server", "status", "sign-out", ...VIEWS]) $(id).hidden = true;
  document.querySelector(".views").hidden = true;
  $("sign-in").hidden = false;
  $("sign-in-error").textContent = hasKey() ? sentence : "";
  useKey("");
  $("key").value = "";
  $("key").focus();
}

async function start() {
  try {
    await enter();
  } catch (error) {
    if (error.status === 401) return signIn(error.message);
    nextTry = Date.now() + 2000;
    trouble = error.message;
    showTrouble();
    setTimeout(start, 2000);
  }
}

$("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey($("key").value.trim());
  start();
});
$("sign-out").addEventListener("click", () => {
  useKey("");
  signIn();
});
$("try-now").addEventListener("click", () => list.now());
onAction(() => {
  list.now();
  refreshDetail();
  if (route.view !== "locks") showReport();
});
onRouteChange(routeChanged);
initTheme();
initList();
initKeyboard();
setInterval(tickAll, 1000);
setInterval(drawBars, STEP);
start();
