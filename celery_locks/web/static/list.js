// The table of locks: filter, sorting, pages, selection. A row is in row.js.

import { get } from "./api.js";
import { openBulk } from "./bulk.js";
import { copyText, listText } from "./copy.js";
import { $, el, write } from "./dom.js";
import { go, linkTo, place } from "./place.js";
import { Row } from "./row.js";
import { count, plural, shown } from "./text.js";

export const PAGE = 100;
const SUGGESTED = 50;
const TYPING = 150;
const rows = new Map();

let last = { locks: [] };

export function showList(answer) {
  last = answer;
  const wanted = new Set(answer.locks.map((lock) => lock.name));
  const focused = document.activeElement?.closest?.("tr")?.row;
  for (const [name, row] of rows) {
    if (!wanted.has(name)) drop(name, row);
  }
  answer.locks.forEach((lock, index) => put(lock, index));
  if (focused && document.activeElement === document.body) refocus(focused);
  showAround(answer);
  showPicked();
}

function drop(name, row) {
  if (row.node.contains(document.activeElement))
    (row.node.nextElementSibling ?? row.node.previousElementSibling)?.row.link.focus();
  row.node.remove();
  rows.delete(name);
}

function put(lock, index) {
  const body = $("rows");
  const row = rows.get(lock.name) ?? new Row(lock.name, showPicked);
  rows.set(lock.name, row);
  row.update(lock);
  if (body.children[index] !== row.node) body.insertBefore(row.node, body.children[index] ?? null);
}

function refocus(row) {
  if (row.node.isConnected) row.link.focus({ preventScroll: true });
}

function showAround(answer) {
  const first = (Number(place.page) - 1) * PAGE;
  const last = first + answer.locks.length;
  const filtered = place.q || place.task || place.worker || place.state;
  write(
    $("range"),
    answer.locks.length
      ? `${count(first + 1)}–${count(last)} of ${plural(answer.total, "lock", "locks")}${filtered ? " that match" : ""}`
      : "",
  );
  $("previous").disabled = first === 0;
  $("next").disabled = last >= answer.total;
  for (const chip of document.querySelectorAll(".chips button")) {
    write(chip.querySelector("b"), count(answer[chip.dataset.state]));
    chip.classList.toggle("none", !answer[chip.dataset.state]);
  }
  suggest(
    "tasks",
    answer.locks.flatMap((lock) => lock.holders.map((one) => one.task)),
  );
  suggest(
    "workers",
    answer.locks.flatMap((lock) => lock.holders.map((one) => one.worker)),
  );
  showEmpty(answer, filtered, first);
}

function showEmpty(answer, filtered, first) {
  const isEmpty = answer.locks.length === 0;
  $("empty").hidden = !isEmpty;
  $("table").hidden = isEmpty;
  if (!isEmpty) return;
  if (first && answer.total) go({ page: String(Math.ceil(answer.total / PAGE)) }, { replace: true });
  if ($("empty").question === filtered + place.q) return;
  $("empty").question = filtered + place.q;
  const sentence = filtered ? "No lock matches the filter." : "No lock is held, and nobody waits for one.";
  const clear =
    filtered &&
    el("a", { href: linkTo({ q: "", task: "", worker: "", state: "", page: "1" }) }, "Show all locks");
  $("empty").replaceChildren(...[el("p", {}, sentence), clear, askWhy(place.q)].filter(Boolean));
}

// A task may hold no lock because it was skipped, or waits in a queue: its id can be asked about.
function askWhy(subject) {
  if (!subject || /[*?]/.test(subject)) return null;
  const answer = el("div", { class: "answer", role: "status" });
  const ask = el("button", { type: "button" }, "Is it a task's id? Ask what became of the task");
  ask.addEventListener("click", async () => {
    ask.disabled = true;
    answer.replaceChildren(el("p", {}, "Asking the workers and the result backend …"));
    try {
      const { sentences } = await get("locks/why", { subject });
      answer.replaceChildren(...sentences.map((one) => el("p", {}, shown(one))));
    } catch (error) {
      answer.replaceChildren(el("p", { class: "refusal" }, error.message));
    }
    ask.disabled = false;
  });
  return el("div", {}, ask, answer);
}

const picked = () => [...rows.values()].filter((row) => row.box.checked && !row.box.disabled);

function showPicked() {
  const chosen = picked();
  const possible = [...rows.values()].filter((row) => !row.box.disabled).length;
  $("bulk").hidden = chosen.length === 0;
  write($("bulk-text"), `${plural(chosen.length, "lock", "locks")} selected`);
  for (const row of rows.values()) row.node.classList.toggle("picked", row.box.checked && !row.box.disabled);
  $("pick-all").checked = chosen.length > 0 && chosen.length === possible;
  $("pick-all").indeterminate = chosen.length > 0 && chosen.length < possible;
}

function pick(chosen, isOn) {
  for (const row of chosen) row.box.checked = isOn && !row.box.disabled;
  showPicked();
}

export function pickFocused() {
  const row = document.activeElement?.closest?.("tr")?.row;
  if (row) pick([row], !row.box.checked);
}

export const copyList = () => copyText(listText(last.locks, $("range").textContent));

function suggest(id, words) {
  const fitting = [...new Set(words.filter(Boolean))].sort().slice(0, SUGGESTED);
  const list = $(id);
  if (list.said === fitting.join("\n")) return;
  list.said = fitting.join("\n");
  list.replaceChildren(...fitting.map((word) => el("option", { value: word })));
}

// What the address says about filter and sorting, on the controls; a box that is typed in is left.
export function showPlace() {
  for (const id of ["q", "task", "worker"]) {
    if (document.activeElement !== $(id)) $(id).value = place[id];
  }
  for (const chip of document.querySelectorAll(".chips button")) {
    chip.setAttribute("aria-pressed", String(chip.dataset.state === place.state));
  }
  for (const head of document.querySelectorAll("th[data-sort]")) {
    if (head.dataset.sort !== place.sort) head.removeAttribute("aria-sort");
    else head.setAttribute("aria-sort", place.order === "asc" ? "ascending" : "descending");
  }
  for (const row of rows.values()) row.mark();
}

export function wireList() {
  for (const id of ["q", "task", "worker"]) wireBox($(id));
  for (const chip of document.querySelectorAll(".chips button")) {
    chip.addEventListener("click", () =>
      go({ state: place.state === chip.dataset.state ? "" : chip.dataset.state }),
    );
  }
  for (const head of document.querySelectorAll("th[data-sort]")) {
    head.querySelector("button").addEventListener("click", () => sortBy(head.dataset.sort));
  }
  $("previous").addEventListener("click", () => turn(-1));
  $("next").addEventListener("click", () => turn(1));
  $("rows").addEventListener("click", (event) => {
    const row = event.target.closest("tr")?.row;
    if (row && !event.target.closest("a, .pick") && !String(getSelection())) go({ lock: row.name });
  });
  $("pick-all").addEventListener("change", () => pick(rows.values(), $("pick-all").checked));
  $("bulk-clear").addEventListener("click", () => pick(rows.values(), false));
  $("bulk-release").addEventListener("click", () =>
    openBulk(
      picked().map((row) => row.lock),
      () => pick(rows.values(), false),
    ),
  );
  $("copy-list").addEventListener("click", copyList);
}

function wireBox(box) {
  let pause = 0;
  const filter = () => go({ [box.id]: box.value }, { replace: true });
  box.addEventListener("input", () => {
    clearTimeout(pause);
    pause = setTimeout(filter, TYPING);
  });
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    clearTimeout(pause);
    filter();
    focusRow(0);
  });
}

// A name is read from its beginning, a number from its largest.
function sortBy(column) {
  const natural = column === "name" || column === "remaining" ? "asc" : "desc";
  const other = place.order === "asc" ? "desc" : "asc";
  go({ sort: column, order: place.sort === column ? other : natural });
}

export function turn(by) {
  if ($(by < 0 ? "previous" : "next").disabled) return;
  go({ page: String(Number(place.page) + by) });
  scrollTo(0, 0);
}

export function tickRows() {
  for (const row of rows.values()) row.tick();
}

export function focusedName() {
  return document.activeElement?.closest?.("tr")?.row?.name ?? "";
}

export function focusRow(index) {
  $("rows").children[index]?.row.link.focus();
}

// From the row in focus, else from the open one, else to the first.
export function step(by) {
  const nodes = [...$("rows").children];
  const from = nodes.findIndex((node) => node.row.name === (focusedName() || place.lock));
  focusRow(from < 0 ? 0 : Math.min(nodes.length - 1, Math.max(0, from + by)));
}

export function clearList() {
  rows.clear();
  last = { locks: [] };
  $("rows").replaceChildren();
  showPicked();
}
