// One row of the table. It is kept while its lock is listed, so that focus and selection stay.

import { LeaseBar } from "./lease_bar.js";
import { serverNow } from "./server_clock.js";
import { el, setText } from "./dom.js";
import { holderElements, stateBadge, verdictBadge, workerElements, worstVerdict } from "./holder.js";
import { linkTo, route } from "./route.js";
import { formatBrief, formatCount, isKept, isQueued, renderText, formatDuration, escapeText } from "./format.js";

// A hold this many times longer than usual is marked; the command line has the same limit.
const UNUSUAL = 10;

export class Row {
  constructor(name, onSelect) {
    this.name = name;
    this.bar = new LeaseBar();
    this.link = el("a", { class: "name", title: escapeText(name) }, renderText(name));
    this.badges = el("span", { class: "badges" });
    this.holder = el("td", { class: "holder" });
    this.where = el("td", { class: "where" });
    this.age = el("span", { class: "age" });
    this.usually = el("span", { class: "usually" });
    this.held = el("td", { class: "held" }, this.age, this.usually);
    this.waiting = el("td", { class: "waiting" });
    this.box = el("input", {
      type: "checkbox",
      "aria-label": `Select ${escapeText(name)}`,
      tabindex: "-1",
      onchange: onSelect,
    });
    this.node = el(
      "tr",
      {},
      el("td", { class: "select" }, this.box),
      el("th", { scope: "row", class: "lock" }, this.link, this.badges),
      this.holder,
      this.where,
      this.held,
      el("td", { class: "lease" }, this.bar.node),
      this.waiting,
    );
    this.node.row = this;
  }

  update(lock) {
    this.lock = lock;
    const [first] = lock.holders;
    const holders = JSON.stringify([
      lock.limit,
      lock.shared,
      lock.pause,
      lock.parked > 0,
      lock.holders.map((holder) => [holder.token, holder.task_id, holder.worker, holder.liveness]),
    ]);
    if (holders !== this.holders) this.drawHolders(lock, first);
    this.holders = holders;
    this.bar.update(soonest(lock.holders), lock.as_of);
    this.box.disabled = lock.holders.length === 0;
    this.link.setAttribute("href", linkTo({ lock: this.name }));
    this.mark();
    this.tick();
  }

  drawHolders(lock, first) {
    const more = lock.holders.length - 1;
    this.holder.replaceChildren(
      ...(first ? holderElements(first) : [el("span", { class: "task plain" }, "nobody")]).filter(Boolean),
      ...(more > 0 ? [el("span", { class: "badge" }, `+${more}`)] : []),
    );
    this.where.replaceChildren(...(first ? workerElements(first).filter(Boolean) : ["–"]));
    const slots = `${lock.holders.length} of ${lock.limit} slots are taken`;
    this.badges.replaceChildren(
      ...[
        lock.limit > 1 &&
          el("span", { class: "badge", title: slots }, `${lock.holders.length}/${lock.limit}`),
        lock.shared && el("span", { class: "badge" }, "shared"),
        lock.pause &&
          el("span", { class: "badge warning", title: escapeText(lock.pause.why || "by an operator") }, "paused"),
        lock.parked > 0 &&
          el("span", { class: "badge", title: "Messages wait for it on the lock server" }, "parked"),
        first && stateBadge(first),
        verdictBadge(lock.holders),
      ].filter(Boolean),
    );
    this.node.className = worstVerdict(lock.holders);
  }

  mark() {
    const isOpen = route.lock === this.name;
    this.node.classList.toggle("open", isOpen);
    if (isOpen) this.link.setAttribute("aria-current", "true");
    else this.link.removeAttribute("aria-current");
  }

  tick() {
    this.tickHeld();
    const { waiters, waiting, parked } = this.lock;
    const first = Math.min(...waiters.map((waiter) => waiter.acquired_at));
    const waits = waiters.length ? `${formatCount(waiting)} · ${formatBrief(serverNow() - first, 60)}` : "–";
    setText(this.waiting, waits);
    this.waiting.title = parked ? `${formatCount(parked)} parked on the lock server` : "";
    this.waiting.classList.toggle("some", waiters.length > 0);
  }

  tickHeld() {
    const [first] = this.lock.holders;
    const held = first ? serverNow() - first.acquired_at : 0;
    const usual = first && !isQueued(first) && !isKept(first) ? this.lock.usual?.held_for : null;
    setText(this.age, first ? formatBrief(held) : "–");
    setText(this.usually, usual ? `usually ${formatBrief(usual, 60)}` : "");
    this.held.classList.toggle("unusual", Boolean(usual) && held > UNUSUAL * usual);
    this.held.title = usual ? `${(held / usual).toFixed(1)} times the usual duration (${formatDuration(usual)})` : "";
  }
}

// The holder whose lease ends first.
function soonest(holders) {
  return holders.reduce((a, b) => (a && a.expires_at <= b.expires_at ? a : b), null);
}
