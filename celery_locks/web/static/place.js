// Where the reader is: view, filter, sorting, page and open lock, all in the address's hash, so
// that a link can be shared and the back button works.

const START = {
  view: "locks",
  q: "",
  task: "",
  worker: "",
  state: "",
  sort: "waiting",
  order: "desc",
  page: "1",
  lock: "",
};
const WORDS = {
  view: ["locks", "stale", "done", "history", "check"],
  state: ["", "held", "waiting", "queued", "suspect"],
  sort: ["name", "held", "remaining", "waiting"],
  order: ["asc", "desc"],
};
const listeners = [];

export let place = read();

function read() {
  const said = new URLSearchParams(location.hash.slice(1));
  const found = { ...START };
  for (const word of Object.keys(START)) {
    const value = said.get(word);
    if (value !== null && (WORDS[word]?.includes(value) ?? true)) found[word] = value;
  }
  if (!/^[1-9]\d{0,6}$/.test(found.page)) found.page = START.page;
  return found;
}

export function linkTo(changes) {
  const said = new URLSearchParams();
  for (const [word, value] of Object.entries({ ...place, ...changes })) {
    if (String(value) !== START[word]) said.set(word, value);
  }
  return `#${said}`;
}

// Another filter begins at its first page. Typing replaces the address, a step adds to it.
export function go(changes, { replace = false } = {}) {
  const narrows = ["q", "task", "worker", "state", "sort", "order"].some((word) => word in changes);
  const link = linkTo(narrows ? { page: "1", ...changes } : changes);
  if (link === linkTo({})) return;
  if (replace) history.replaceState(null, "", link);
  else history.pushState(null, "", link);
  arrive();
}

export function onArrival(listener) {
  listeners.push(listener);
}

export function arrive() {
  const before = place;
  place = read();
  for (const listener of listeners) listener(place, before);
}

addEventListener("hashchange", arrive);

// Plain text means: contains it.
export function glob(text) {
  return !text || /[*?]/.test(text) ? text : `*${text}*`;
}
