// The table of locks: a row for each, kept while its lock is, so that focus and bars stay put.

import { Bar } from "./bar.js";
import { serverNow } from "./clock.js";
import { $, el, write } from "./dom.js";
import { holderPieces, stateBadge, wherePieces } from "./people.js";
import { go, linkTo, place } from "./place.js";
import { brief, count, plural, shown, spelled } from "./text.js";

export const PAGE = 100;
const SUGGESTED = 50;
const TYPING = 150;
const rows = new Map();

class Row {
  constructor(name) {
    this.name = name;
    this.bar = new Bar();
    this.link = el("a", { class: "name", title: spelled(name) }, shown(name));
    this.badges = el("span", { class: "badges" });
    this.holder = el("td", { class: "holder" });
    this.where = el("td", { class: "where" });
    this.held = el("td", { class: "held" });
    this.waiting = el("td", { class: "waiting" });
    this.node = el(
      "tr",
      {},
      el("th", { scope: "row", class: "lock" }, this.link, this.badges),
      this.holder,
      this.where,
      this.held,
      el("td", { class: "left" }, this.bar.node),
      this.waiting,
    );
    this.node.row = this;
  }

  update(lock) {
    const [first] = lock.holders;
    const people = JSON.stringify([
      lock.limit,
      lock.holders.map((one) => [one.token, one.task_id, one.worker]),
    ]);
    if (people !== this.people) this.introduce(lock, first);
    this.people = people;
    this.since = first?.acquired_at;
    this.bar.update(soonest(lock.holders), lock.as_of);
    write(this.waiting, lock.waiters.length ? count(lock.waiters.length) : "–");
    this.waiting.classList.toggle("some", lock.waiters.length > 0);
    this.link.setAttribute("href", linkTo({ lock: this.name }));
    this.mark();
    this.tick();
  }

  introduce(lock, first) {
    const more = lock.holders.length - 1;
    this.holder.replaceChildren(
      ...(first ? holderPieces(first) : [el("span", { class: "task plain" }, "nobody")]).filter(Boolean),
      ...(more > 0 ? [el("span", { class: "badge" }, `+${more}`)] : []),
    );
    this.where.replaceChildren(...(first ? wherePieces(first).filter(Boolean) : ["–"]));
    const slots = `${lock.holders.length} of ${lock.limit} slots are taken`;
    this.badges.replaceChildren(
      ...[
        lock.limit > 1 &&
          el("span", { class: "badge", title: slots }, `${lock.holders.length}/${lock.limit}`),
        first && stateBadge(first),
      ].filter(Boolean),
    );
  }

  mark() {
    const isOpen = place.lock === this.name;
    this.node.classList.toggle("open", isOpen);
    if (isOpen) this.link.setAttribute("aria-current", "true");
    else this.link.removeAttribute("aria-current");
  }

  tick() {
    write(this.held, this.since ? brief(serverNow() - this.since) : "–");
  }
}

// The one whose lease ends first.
function soonest(holders) {
  return holders.reduce((a, b) => (a && a.expires_at <= b.expires_at ? a : b), null);
}

export function showList(answer) {
  const wanted = new Set(answer.locks.map((lock) => lock.name));
  const focused = document.activeElement?.closest?.("tr")?.row;
  for (const [name, row] of rows) {
    if (!wanted.has(name)) drop(name, row);
  }
  answer.locks.forEach((lock, index) => put(lock, index));
  if (focused && document.activeElement === document.body) refocus(focused);
  showAround(answer);
}

function drop(name, row) {
  if (row.node.contains(document.activeElement))
    (row.node.nextElementSibling ?? row.node.previousElementSibling)?.row.link.focus();
  row.node.remove();
  rows.delete(name);
}

function put(lock, index) {
  const body = $("rows");
  const row = rows.get(lock.name) ?? new Row(lock.name);
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
  for (const chip of document.querySelectorAll(".chips button"))
    write(chip.querySelector("b"), count(answer[chip.dataset.state]));
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
  const sentence = filtered ? "No lock matches the filter." : "No lock is held, and nobody waits for one.";
  const clear =
    filtered &&
    el("a", { href: linkTo({ q: "", task: "", worker: "", state: "", page: "1" }) }, "Show all locks");
  $("empty").replaceChildren(...[el("p", {}, sentence), clear].filter(Boolean));
}

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
    if (row && !event.target.closest("a") && !String(getSelection())) go({ lock: row.name });
  });
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
  $("rows").replaceChildren();
}
