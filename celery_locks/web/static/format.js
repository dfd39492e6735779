// Values as text. Nothing here, or anywhere on this page, is parsed as HTML.

// Characters that are invisible or change how others look, as in Python's str.isprintable.
const UNPRINTABLE = /[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/gu;
const SHORT_ESCAPES = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

function escapeCharacter(character) {
  if (SHORT_ESCAPES[character]) return SHORT_ESCAPES[character];
  const hex = character.codePointAt(0).toString(16);
  if (hex.length <= 2) return `\\x${hex.padStart(2, "0")}`;
  return hex.length <= 4 ? `\\u${hex.padStart(4, "0")}` : `\\U${hex.padStart(8, "0")}`;
}

// Escape control, direction and zero-width characters: \n, \x1b, \u202e.
export function escapeText(text) {
  return String(text ?? "").replace(UNPRINTABLE, escapeCharacter);
}

// The same as an element, with the escapes highlighted.
export function renderText(text) {
  const node = document.createElement("bdi");
  const whole = String(text ?? "");
  let from = 0;
  for (const found of whole.matchAll(UNPRINTABLE)) {
    const mark = document.createElement("span");
    mark.className = "escaped";
    mark.textContent = escapeCharacter(found[0]);
    node.append(whole.slice(from, found.index), mark);
    from = found.index + found[0].length;
  }
  node.append(whole.slice(from));
  return node;
}

// 7 s, 4 min 5 s, 3 h 2 min, 2 d 3 h.
export function formatDuration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

// The same in less space: minutes without seconds from `from` seconds on.
export function formatBrief(seconds, from = 600) {
  const whole = Math.max(0, Math.round(seconds));
  return whole >= from && whole < 3600 ? `${Math.floor(whole / 60)} min` : formatDuration(whole);
}

// In the viewer's time zone; with the date if it is not today.
export function formatTime(at) {
  const then = new Date(at * 1000);
  const time = then.toLocaleTimeString([], { hour12: false });
  if (then.toDateString() === new Date().toDateString()) return time;
  return `${then.toLocaleDateString([], { month: "short", day: "numeric" })}, ${time}`;
}

// The viewer's time zone: "UTC", "UTC+1", "UTC-3:30".
export function timeZone(at = Date.now() / 1000) {
  const east = -new Date(at * 1000).getTimezoneOffset();
  if (!east) return "UTC";
  const [hours, minutes] = [Math.floor(Math.abs(east) / 60), Math.abs(east) % 60];
  return `UTC${east < 0 ? "-" : "+"}${hours}${minutes ? `:${String(minutes).padStart(2, "0")}` : ""}`;
}

// The full time in UTC, to compare with logs.
export function formatUtc(at) {
  return new Date(at * 1000)
    .toISOString()
    .replace("T", " ")
    .replace(/\.\d+Z$/, " UTC");
}

export function formatCount(number) {
  return Number(number ?? 0).toLocaleString("en");
}

export function plural(number, singular, many) {
  return `${formatCount(number)} ${number === 1 ? singular : many}`;
}

export function shortId(id) {
  const text = String(id);
  return text.length > 12 ? text.slice(0, 8) : text;
}

// How many workers answered, and how long ago.
export function describeWorkers(workers) {
  if (!workers) return "workers not asked";
  if (workers.trouble) return `workers could not be asked: ${escapeText(workers.trouble)}`;
  if (workers.age === null) return "asking the workers …";
  if (!workers.asked) return "";
  return `${formatCount(workers.answered)} of ${plural(workers.asked, "worker", "workers")} answered, ${formatDuration(workers.age)} ago`;
}

// Seconds that a holder needs to receive a stop request and to stop; the API allows at most 60.
export function defaultGrace(lock) {
  return Math.min(60, Math.ceil(lock.default_grace));
}

const CAN_STOP = ["running", "renewed", "absent", "silent"];

export function isAtWork(holder) {
  if (isQueued(holder) || isKept(holder)) return false;
  return CAN_STOP.includes(holder.liveness?.verdict ?? "running");
}

export function isQueued(holder) {
  return holder.retries < 0 || holder.token.startsWith("q");
}

export function isKept(holder) {
  return holder.token.startsWith("-");
}

// A message that waits on the lock server, without a process.
export function isParked(waiter) {
  return !waiter.fence && waiter.token.startsWith("k");
}

// "task bill[3f2a…] on w1@host, pid 7", as on the command line.
export function describeHolder(holder) {
  const name = holder.task_id ? `task ${holder.task ?? ""}[${holder.task_id}]` : (holder.task ?? "a process");
  return `${name} on ${holder.worker || holder.host || "an unknown host"}, pid ${holder.pid ?? "unknown"}`;
}
