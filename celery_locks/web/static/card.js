// One holder of a lock with everything that is known of it, and what can be done to it.

import { openAct } from "./act.js";
import { Bar } from "./bar.js";
import { serverNow } from "./clock.js";
import { el, live } from "./dom.js";
import { stateBadge, taskName } from "./people.js";
import { linkTo } from "./place.js";
import { mayWrite, READ_ONLY } from "./session.js";
import { isKept, isQueued, moment, plural, shown, span, spelled, utc, zone } from "./text.js";

// These verdicts rest on what the worker answered, or did not.
const ASKED = ["running", "absent", "silent", "gone"];

export class Card {
  constructor(name, holder) {
    this.name = name;
    this.holder = holder;
    this.bar = new Bar();
    this.verdict = el("p", { class: "verdict" });
    this.called = el("p", { class: "called" });
    this.node = el(
      "article",
      { class: "holder-card" },
      el(
        "h3",
        {},
        holder.task ? taskName(holder.task) : holder.task_id ? "A task" : "A process",
        stateBadge(holder),
      ),
      this.called,
      this.bar.node,
      this.verdict,
      this.buttons(),
      el("dl", {}, ...this.fields().map(field)),
    );
  }

  fields() {
    const { holder } = this;
    const ago = (at) => live(() => `${span(serverNow() - at())} ago`);
    const renewed = () => Math.max(this.holder.acquired_at, this.holder.expires_at - this.holder.ttl);
    return [
      ["Task id", holder.task_id && el("code", {}, shown(holder.task_id)), 3],
      ["Retries", holder.task_id && String(Math.max(0, holder.retries))],
      [
        "Worker",
        holder.worker &&
          el(
            "a",
            {
              href: linkTo({ worker: holder.worker, lock: "", page: "1" }),
              title: "Show the locks of this worker",
            },
            shown(holder.worker),
          ),
        2,
      ],
      ["Host", holder.host && shown(holder.host)],
      ["Process", holder.pid && `pid ${holder.pid}`],
      ["Held for", live(() => span(serverNow() - this.holder.acquired_at))],
      [
        "Since",
        el(
          "time",
          { title: utc(holder.acquired_at) },
          `${moment(holder.acquired_at)} ${zone(holder.acquired_at)}`,
        ),
        2,
      ],
      ["Renewed", isQueued(holder) || isKept(holder) ? null : ago(renewed)],
      ["Renewals", holder.renewals == null ? null : live(() => String(this.holder.renewals))],
      ["ttl", span(holder.ttl)],
      ["Fence", String(holder.fence), 2],
      ["Replaced", holder.replaced ? plural(holder.replaced, "time", "times") : null],
      ["Token", el("code", {}, shown(holder.token)), 4],
      ["Extra", holder.extra && el("code", {}, shown(JSON.stringify(holder.extra))), 4],
    ].filter(([, value]) => value);
  }

  buttons() {
    const act = (kind) => () => openAct(kind, this.name, this.holder.token);
    const off = !mayWrite();
    return el(
      "div",
      { class: "buttons" },
      el("button", { type: "button", onclick: act("stop"), disabled: off }, "Ask to stop"),
      el("button", { type: "button", class: "danger", onclick: act("release"), disabled: off }, "Release …"),
      off && el("p", { class: "small" }, READ_ONLY),
    );
  }

  update(holder, asOf, workers) {
    this.holder = holder;
    const told = holder.arguments;
    this.called.replaceChildren(
      ...(told ? ["Arguments ", el("code", {}, shown(`${told.args} ${told.kwargs}`))] : []),
    );
    this.bar.update(holder, asOf);
    this.verdict.className = `verdict ${holder.liveness?.verdict ?? ""}`;
    const ago = workers?.age != null && ASKED.includes(holder.liveness?.verdict);
    this.verdict.textContent = spelled(holder.liveness?.sentence ?? "");
    if (ago) this.verdict.append(` Asked ${span(workers.age)} ago.`);
  }
}

function field([name, value, columns = 1]) {
  return el("div", { class: `over-${columns}` }, el("dt", {}, name), el("dd", {}, value));
}
