// One holder of a lock: all that is known about it, and the buttons to stop and release.

import { openActionDialog } from "./action_dialog.js";
import { LeaseBar } from "./lease_bar.js";
import { serverNow } from "./server_clock.js";
import { el, live } from "./dom.js";
import { stateBadge, taskName } from "./holder.js";
import { linkTo } from "./route.js";
import { mayWrite, READ_ONLY } from "./session.js";
import {
  escapeText,
  formatDuration,
  formatTime,
  formatUtc,
  isKept,
  isQueued,
  plural,
  renderText,
  timeZone,
} from "./format.js";

// These verdicts depend on the worker's answer, or on the lack of one.
const FROM_WORKER = ["running", "absent", "silent", "gone"];

export class HolderCard {
  constructor(name, holder) {
    this.name = name;
    this.holder = holder;
    this.bar = new LeaseBar();
    this.verdict = el("p", { class: "verdict" });
    this.argumentsNode = el("p", { class: "arguments" });
    this.node = el(
      "article",
      { class: "holder-card" },
      el(
        "h3",
        {},
        holder.task ? taskName(holder.task) : holder.task_id ? "A task" : "A process",
        stateBadge(holder),
      ),
      this.argumentsNode,
      this.bar.node,
      this.verdict,
      this.buttons(),
      el("dl", {}, ...this.fields().map(field)),
    );
  }

  fields() {
    const { holder } = this;
    const ago = (at) => live(() => `${formatDuration(serverNow() - at())} ago`);
    const renewed = () => Math.max(this.holder.acquired_at, this.holder.expires_at - this.holder.ttl);
    return [
      ["Task ID", holder.task_id && el("code", {}, renderText(holder.task_id)), 3],
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
            renderText(holder.worker),
          ),
        2,
      ],
      ["Host", holder.host && renderText(holder.host)],
      ["Process", holder.pid && `pid ${holder.pid}`],
      ["Held for", live(() => formatDuration(serverNow() - this.holder.acquired_at))],
      [
        "Since",
        el(
          "time",
          { title: formatUtc(holder.acquired_at) },
          `${formatTime(holder.acquired_at)} ${timeZone(holder.acquired_at)}`,
        ),
        2,
      ],
      ["Renewed", isQueued(holder) || isKept(holder) ? null : ago(renewed)],
      ["Renewals", holder.renewals == null ? null : live(() => String(this.holder.renewals))],
      ["TTL", formatDuration(holder.ttl)],
      ["Fence", String(holder.fence), 2],
      ["Replaced", holder.replaced ? plural(holder.replaced, "time", "times") : null],
      ["Token", el("code", {}, renderText(holder.token)), 4],
      ["Extra", holder.extra && el("code", {}, renderText(JSON.stringify(holder.extra))), 4],
    ].filter(([, value]) => value);
  }

  buttons() {
    const open = (kind) => () => openActionDialog(kind, this.name, this.holder.token);
    const isReadOnly = !mayWrite();
    return el(
      "div",
      { class: "buttons" },
      el("button", { type: "button", onclick: open("stop"), disabled: isReadOnly }, "Ask to stop …"),
      el("button", { type: "button", class: "danger", onclick: open("release"), disabled: isReadOnly }, "Release …"),
      isReadOnly && el("p", { class: "small" }, READ_ONLY),
    );
  }

  update(holder, asOf, workers) {
    this.holder = holder;
    const call = holder.arguments;
    this.argumentsNode.replaceChildren(
      ...(call ? ["Arguments ", el("code", {}, renderText(`${call.args} ${call.kwargs}`))] : []),
    );
    this.bar.update(holder, asOf);
    this.verdict.className = `verdict ${holder.liveness?.verdict ?? ""}`;
    const isFromWorker = workers?.age != null && FROM_WORKER.includes(holder.liveness?.verdict);
    this.verdict.textContent = escapeText(holder.liveness?.sentence ?? "");
    if (isFromWorker) this.verdict.append(` Asked ${formatDuration(workers.age)} ago.`);
  }
}

function field([name, value, columns = 1]) {
  return el("div", { class: `over-${columns}` }, el("dt", {}, name), el("dd", {}, value));
}
