// Values as text for people. Nothing here, or anywhere on this page, is parsed as HTML.

// What has no look of its own, or changes the look of its neighbours, as Python's isprintable has it.
const UNSEEN = /[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/gu;
const SHORT = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

function writtenOut(character) {
  if (SHORT[character]) return SHORT[character];
  const hex = character.codePointAt(0).toString(16);
  if (hex.length <= 2) return `\\x${hex.padStart(2, "0")}`;
  return hex.length <= 4 ? `\\u${hex.padStart(4, "0")}` : `\\U${hex.padStart(8, "0")}`;
}

// Control, direction and zero-width characters written out: \n, \x1b, \u202e.
export function spelled(text) {
  return String(text ?? "").replace(UNSEEN, writtenOut);
}

// The same as an element, what is written out marked as such.
export function shown(text) {
  const made = document.createElement("bdi");
  const whole = String(text ?? "");
  let from = 0;
  for (const found of whole.matchAll(UNSEEN)) {
    const mark = document.createElement("span");
    mark.className = "escaped";
    mark.textContent = writtenOut(found[0]);
    made.append(whole.slice(from, found.index), mark);
    from = found.index + found[0].length;
  }
  made.append(whole.slice(from));
  return made;
}

// 7 s, 4 min 5 s, 3 h 2 min, 2 d 3 h.
export function span(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

// The same where there is little room: nobody counts the seconds of an hour.
export function brief(seconds, from = 600) {
  const whole = Math.max(0, Math.round(seconds));
  return whole >= from && whole < 3600 ? `${Math.floor(whole / 60)} min` : span(whole);
}

// By the reader's clock; with the day if it is another one.
export function moment(at) {
  const then = new Date(at * 1000);
  const time = then.toLocaleTimeString([], { hour12: false });
  if (then.toDateString() === new Date().toDateString()) return time;
  return `${then.toLocaleDateString([], { month: "short", day: "numeric" })}, ${time}`;
}

// The reader's time zone: "UTC", "UTC+1", "UTC-3:30".
export function zone(at = Date.now() / 1000) {
  const east = -new Date(at * 1000).getTimezoneOffset();
  if (!east) return "UTC";
  const [hours, minutes] = [Math.floor(Math.abs(east) / 60), Math.abs(east) % 60];
  return `UTC${east < 0 ? "-" : "+"}${hours}${minutes ? `:${String(minutes).padStart(2, "0")}` : ""}`;
}

// In full and for everywhere, to compare with logs.
export function utc(at) {
  return new Date(at * 1000)
    .toISOString()
    .replace("T", " ")
    .replace(/\.\d+Z$/, " UTC");
}

export function count(number) {
  return Number(number ?? 0).toLocaleString("en");
}

export function plural(number, one, many) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

export function shortId(id) {
  const text = String(id);
  return text.length > 12 ? text.slice(0, 8) : text;
}

// How many workers answered and how long ago.
export function workersAsked(workers) {
  if (!workers) return "workers not asked";
  if (workers.trouble) return `workers could not be asked: ${spelled(workers.trouble)}`;
  if (workers.age === null) return "asking the workers …";
  if (!workers.asked) return "";
  return `${count(workers.answered)} of ${plural(workers.asked, "worker", "workers")} answered, ${span(workers.age)} ago`;
}

// Seconds that a holder needs to hear of a stop and to end; the server takes no more than 60.
export function defaultGrace(lock) {
  return Math.min(60, Math.ceil(lock.default_grace));
}

const AT_WORK = ["running", "renewed", "absent", "silent"];

export function isAtWork(holder) {
  if (isQueued(holder) || isKept(holder)) return false;
  return AT_WORK.includes(holder.liveness?.verdict ?? "running");
}

export function isQueued(holder) {
  return holder.retries < 0 || holder.token.startsWith("q");
}

export function isKept(holder) {
  return holder.token.startsWith("-");
}

// "task bill[3f2a…] on w1@host, pid 7", as the command line says it.
export function who(holder) {
  const name = holder.task_id ? `task ${holder.task ?? ""}[${holder.task_id}]` : "a process";
  return `${name} on ${holder.worker || holder.host || "an unknown host"}, pid ${holder.pid ?? "unknown"}`;
}
