// One lock in the table: kept while its lock is listed, so that focus, selection and bar stay put.

import { Bar } from "./bar.js";
import { serverNow } from "./clock.js";
import { el, write } from "./dom.js";
import { holderPieces, stateBadge, verdictBadge, wherePieces, worst } from "./people.js";
import { linkTo, place } from "./place.js";
import { brief, count, isKept, isQueued, shown, span, spelled } from "./text.js";

// A hold this many times as long as usual is shown as unusual; the command line has the same limit.
const UNUSUAL = 10;

export class Row {
  constructor(name, onPick) {
    this.name = name;
    this.bar = new Bar();
    this.link = el("a", { class: "name", title: spelled(name) }, shown(name));
    this.badges = el("span", { class: "badges" });
    this.holder = el("td", { class: "holder" });
    this.where = el("td", { class: "where" });
    this.age = el("span", { class: "age" });
    this.usually = el("span", { class: "usually" });
    this.held = el("td", { class: "held" }, this.age, this.usually);
    this.waiting = el("td", { class: "waiting" });
    this.box = el("input", {
      type: "checkbox",
      "aria-label": `Select ${spelled(name)}`,
      tabindex: "-1",
      onchange: onPick,
    });
    this.node = el(
      "tr",
      {},
      el("td", { class: "pick" }, this.box),
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
    this.lock = lock;
    const [first] = lock.holders;
    const people = JSON.stringify([
      lock.limit,
      lock.holders.map((one) => [one.token, one.task_id, one.worker, one.liveness]),
    ]);
    if (people !== this.people) this.introduce(lock, first);
    this.people = people;
    this.bar.update(soonest(lock.holders), lock.as_of);
    this.box.disabled = lock.holders.length === 0;
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
        verdictBadge(lock.holders),
      ].filter(Boolean),
    );
    this.node.className = worst(lock.holders);
  }

  mark() {
    const isOpen = place.lock === this.name;
    this.node.classList.toggle("open", isOpen);
    if (isOpen) this.link.setAttribute("aria-current", "true");
    else this.link.removeAttribute("aria-current");
  }

  tick() {
    this.tickHeld();
    const { waiters } = this.lock;
    const first = Math.min(...waiters.map((one) => one.acquired_at));
    const waits = waiters.length ? `${count(waiters.length)} · ${brief(serverNow() - first, 60)}` : "–";
    write(this.waiting, waits);
    this.waiting.classList.toggle("some", waiters.length > 0);
  }

  tickHeld() {
    const [first] = this.lock.holders;
    const held = first ? serverNow() - first.acquired_at : 0;
    const usual = first && !isQueued(first) && !isKept(first) ? this.lock.usual?.held_for : null;
    write(this.age, first ? brief(held) : "–");
    write(this.usually, usual ? `usually ${brief(usual, 60)}` : "");
    this.held.classList.toggle("unusual", Boolean(usual) && held > UNUSUAL * usual);
    this.held.title = usual ? `${(held / usual).toFixed(1)} times as long as usual (${span(usual)})` : "";
  }
}

// The one whose lease ends first.
function soonest(holders) {
  return holders.reduce((a, b) => (a && a.expires_at <= b.expires_at ? a : b), null);
}
