// What the keys do; the list of them is in index.html.

import { openAct } from "./act.js";
import { $ } from "./dom.js";
import { copyDetail } from "./detail.js";
import { copyList, focusedName, pickFocused, step, turn } from "./list.js";
import { go, place } from "./place.js";

const VIEWS = ["locks", "stale", "done", "history", "check"];

const KEYS = {
  "/": () => toFilter(),
  "?": () => $("keys").showModal(),
  j: () => step(1),
  k: () => step(-1),
  ArrowDown: () => step(1),
  ArrowUp: () => step(-1),
  "[": () => turn(-1),
  "]": () => turn(1),
  r: () => act("release"),
  s: () => act("stop"),
  x: () => place.view === "locks" && pickFocused(),
  c: () => place.view === "locks" && (place.lock ? copyDetail() : copyList()),
  Escape: () => closePanel(),
};

export function wireKeyboard() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.key === "Escape" && isTyping(event.target)) return event.target.blur();
    if (isTyping(event.target) || ($("locks").hidden && place.view === "locks")) return;
    const meant = VIEWS[Number(event.key) - 1]
      ? () => go({ view: VIEWS[Number(event.key) - 1] })
      : KEYS[event.key];
    if (!meant || (place.view !== "locks" && event.key.length > 1)) return;
    event.preventDefault();
    meant();
  });
  $("help").addEventListener("click", () => $("keys").showModal());
}

const isTyping = (target) => target.matches?.("input:not([type=checkbox]), textarea, select");

function toFilter() {
  go({ view: "locks" });
  $("q").focus();
  $("q").select();
}

function act(kind) {
  const name = focusedName() || place.lock;
  if (name && place.view === "locks") openAct(kind, name);
}

// The focus goes back to the row it came from.
function closePanel() {
  const name = place.lock;
  if (!name) return;
  go({ lock: "" });
  [...$("rows").children].find((node) => node.row.name === name)?.row.link.focus();
}
