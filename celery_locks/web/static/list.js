// The table of locks: filters, sorting, pages, selection. Rows are in row.js.

import { get } from "./api.js";
import { openBulkRelease } from "./bulk_release.js";
import { copyText, listText } from "./copy_text.js";
import { $, el, setText } from "./dom.js";
import { navigate, linkTo, route } from "./route.js";
import { Row } from "./row.js";
import { formatCount, plural, renderText } from "./format.js";

export const PAGE = 100;
const MAX_SUGGESTIONS = 50;
const TYPING_PAUSE = 150;
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
  showSelection();
}

function drop(name, row) {
  if (row.node.contains(document.activeElement))
    (row.node.nextElementSibling ?? row.node.previousElementSibling)?.row.link.focus();
  row.node.remove();
  rows.delete(name);
}

function put(lock, index) {
  const body = $("rows");
  const row = rows.get(lock.name) ?? new Row(lock.name, showSelection);
  rows.set(lock.name, row);
  row.update(lock);
  if (body.children[index] !== row.node) body.insertBefore(row.node, body.children[index] ?? null);
}

function refocus(row) {
  if (row.node.isConnected) row.link.focus({ preventScroll: true });
}

function showAround(answer) {
  const first = (Number(route.page) - 1) * PAGE;
  const last = first + answer.locks.length;
  const filtered = route.q || route.task || route.worker || route.state;
  setText(
    $("range"),
    answer.locks.length
      ? `${formatCount(first + 1)}–${formatCount(last)} of ${plural(answer.total, "lock", "locks")}${filtered ? " (filtered)" : ""}`
      : "",
  );
  $("previous").disabled = first === 0;
  $("next").disabled = last >= answer.total;
  for (const chip of document.querySelectorAll(".chips button")) {
    setText(chip.querySelector("b"), formatCount(answer[chip.dataset.state]));
    chip.classList.toggle("none", !answer[chip.dataset.state]);
  }
  suggest(
    "tasks",
    answer.locks.flatMap((lock) => lock.holders.map((holder) => holder.task)),
  );
  suggest(
    "workers",
    answer.locks.flatMap((lock) => lock.holders.map((holder) => holder.worker)),
  );
  showEmpty(answer, filtered, first);
}

function showEmpty(answer, filtered, first) {
  const isEmpty = answer.locks.length === 0;
  $("empty").hidden = !isEmpty;
  $("table").hidden = isEmpty;
  if (!isEmpty) return;
  if (first && answer.total) navigate({ page: String(Math.ceil(answer.total / PAGE)) }, { replace: true });
  if ($("empty").filters === filtered + route.q) return;
  $("empty").filters = filtered + route.q;
  const sentence = filtered ? "No lock matches the filter." : "No lock is held or waited for.";
  const clear =
    filtered &&
    el("a", { href: linkTo({ q: "", task: "", worker: "", state: "", page: "1" }) }, "Show all locks");
  $("empty").replaceChildren(...[el("p", {}, sentence), clear, explainTask(route.q)].filter(Boolean));
}

// A task may hold no lock because it was skipped or is still queued: offer to explain its id.
function explainTask(subject) {
  if (!subject || /[*?]/.test(subject)) return null;
  const answer = el("div", { class: "answer", role: "status" });
  const ask = el("button", { type: "button" }, "If this is a task ID: find out what happened to the task");
  ask.addEventListener("click", async () => {
    ask.disabled = true;
    answer.replaceChildren(el("p", {}, "Asking the workers and the result backend …"));
    try {
      const { sentences } = await get("locks/why", { subject });
      answer.replaceChildren(...sentences.map((sentence) => el("p", {}, renderText(sentence))));
    } catch (error) {
      answer.replaceChildren(el("p", { class: "error-text" }, error.message));
    }
    ask.disabled = false;
  });
  return el("div", {}, ask, answer);
}

const selectedRows = () => [...rows.values()].filter((row) => row.box.checked && !row.box.disabled);

function showSelection() {
  const chosen = selectedRows();
  const possible = [...rows.values()].filter((row) => !row.box.disabled).length;
  $("bulk").hidden = chosen.length === 0;
  setText($("bulk-text"), `${plural(chosen.length, "lock", "locks")} selected`);
  for (const row of rows.values()) row.node.classList.toggle("selected", row.box.checked && !row.box.disabled);
  $("select-all").checked = chosen.length > 0 && chosen.length === possible;
  $("select-all").indeterminate = chosen.length > 0 && chosen.length < possible;
}

function selectRows(chosen, isOn) {
  for (const row of chosen) row.box.checked = isOn && !row.box.disabled;
  showSelection();
}

export function selectFocused() {
  const row = document.activeElement?.closest?.("tr")?.row;
  if (row) selectRows([row], !row.box.checked);
}

export const copyList = () => copyText(listText(last.locks, $("range").textContent));

function suggest(id, values) {
  const options = [...new Set(values.filter(Boolean))].sort().slice(0, MAX_SUGGESTIONS);
  const list = $(id);
  if (list.suggested === options.join("\n")) return;
  list.suggested = options.join("\n");
  list.replaceChildren(...options.map((value) => el("option", { value })));
}

// Show the filters and the sorting of the URL in the controls, except in the box with the focus.
export function showRoute() {
  for (const id of ["q", "task", "worker"]) {
    if (document.activeElement !== $(id)) $(id).value = route[id];
  }
  for (const chip of document.querySelectorAll(".chips button")) {
    chip.setAttribute("aria-pressed", String(chip.dataset.state === route.state));
  }
  for (const head of document.querySelectorAll("th[data-sort]")) {
    if (head.dataset.sort !== route.sort) head.removeAttribute("aria-sort");
    else head.setAttribute("aria-sort", route.order === "asc" ? "ascending" : "descending");
  }
  for (const row of rows.values()) row.mark();
}

export function initList() {
  for (const id of ["q", "task", "worker"]) initBox($(id));
  for (const chip of document.querySelectorAll(".chips button")) {
    chip.addEventListener("click", () =>
      navigate({ state: route.state === chip.dataset.state ? "" : chip.dataset.state }),
    );
  }
  for (const head of document.querySelectorAll("th[data-sort]")) {
    head.querySelector("button").addEventListener("click", () => sortBy(head.dataset.sort));
  }
  $("previous").addEventListener("click", () => turnPage(-1));
  $("next").addEventListener("click", () => turnPage(1));
  $("rows").addEventListener("click", (event) => {
    const row = event.target.closest("tr")?.row;
    if (row && !event.target.closest("a, .select") && !String(getSelection())) navigate({ lock: row.name });
  });
  $("select-all").addEventListener("change", () => selectRows(rows.values(), $("select-all").checked));
  $("bulk-clear").addEventListener("click", () => selectRows(rows.values(), false));
  $("bulk-release").addEventListener("click", () =>
    openBulkRelease(
      selectedRows().map((row) => row.lock),
      () => selectRows(rows.values(), false),
    ),
  );
  $("copy-list").addEventListener("click", copyList);
}

function initBox(box) {
  let pause = 0;
  const filter = () => navigate({ [box.id]: box.value }, { replace: true });
  box.addEventListener("input", () => {
    clearTimeout(pause);
    pause = setTimeout(filter, TYPING_PAUSE);
  });
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    clearTimeout(pause);
    filter();
    focusRow(0);
  });
}

// Names and leases sort ascending first, the others descending.
function sortBy(column) {
  const initial = column === "name" || column === "remaining" ? "asc" : "desc";
  const other = route.order === "asc" ? "desc" : "asc";
  navigate({ sort: column, order: route.sort === column ? other : initial });
}

export function turnPage(by) {
  if ($(by < 0 ? "previous" : "next").disabled) return;
  navigate({ page: String(Number(route.page) + by) });
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

// Move from the focused row, else from the open one, else to the first.
export function moveFocus(by) {
  const nodes = [...$("rows").children];
  const from = nodes.findIndex((node) => node.row.name === (focusedName() || route.lock));
  focusRow(from < 0 ? 0 : Math.min(nodes.length - 1, Math.max(0, from + by)));
}

export function clearList() {
  rows.clear();
  last = { locks: [] };
  $("rows").replaceChildren();
  showSelection();
}
