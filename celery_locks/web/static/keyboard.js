// The keyboard shortcuts; their list is in index.html.

import { openActionDialog } from "./action_dialog.js";
import { $ } from "./dom.js";
import { copyDetail } from "./detail.js";
import { copyList, focusedName, selectFocused, moveFocus, turnPage } from "./list.js";
import { navigate, route } from "./route.js";

const VIEWS = ["locks", "stale", "rates", "done", "history", "check"];

const KEYS = {
  "/": () => focusFilter(),
  "?": () => $("keys").showModal(),
  j: () => moveFocus(1),
  k: () => moveFocus(-1),
  ArrowDown: () => moveFocus(1),
  ArrowUp: () => moveFocus(-1),
  "[": () => turnPage(-1),
  "]": () => turnPage(1),
  r: () => openDialog("release"),
  s: () => openDialog("stop"),
  x: () => route.view === "locks" && selectFocused(),
  c: () => route.view === "locks" && (route.lock ? copyDetail() : copyList()),
  Escape: () => closePanel(),
};

export function initKeyboard() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.key === "Escape" && isTyping(event.target)) return event.target.blur();
    if (isTyping(event.target) || ($("locks").hidden && route.view === "locks")) return;
    const action = VIEWS[Number(event.key) - 1]
      ? () => navigate({ view: VIEWS[Number(event.key) - 1] })
      : KEYS[event.key];
    if (!action || (route.view !== "locks" && event.key.length > 1)) return;
    event.preventDefault();
    action();
  });
  $("help").addEventListener("click", () => $("keys").showModal());
}

const isTyping = (target) => target.matches?.("input:not([type=checkbox]), textarea, select");

function focusFilter() {
  navigate({ view: "locks" });
  $("q").focus();
  $("q").select();
}

function openDialog(kind) {
  const name = focusedName() || route.lock;
  if (name && route.view === "locks") openActionDialog(kind, name);
}

// Return the focus to the row it came from.
function closePanel() {
  const name = route.lock;
  if (!name) return;
  navigate({ lock: "" });
  [...$("rows").children].find((node) => node.row.name === name)?.row.link.focus();
}
