// The state of the page: view, filters, sorting, page and open lock. All of it is in the URL's hash,
// so that a link can be shared and the back button works.

const DEFAULTS = {
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
const CHOICES = {
  view: ["locks", "stale", "rates", "done", "history", "check"],
  state: ["", "held", "waiting", "queued", "paused", "parked", "suspect"],
  sort: ["name", "held", "remaining", "waiting"],
  order: ["asc", "desc"],
};
const listeners = [];

export let route = read();

function read() {
  const params = new URLSearchParams(location.hash.slice(1));
  const found = { ...DEFAULTS };
  for (const name of Object.keys(DEFAULTS)) {
    const value = params.get(name);
    if (value !== null && (CHOICES[name]?.includes(value) ?? true)) found[name] = value;
  }
  if (!/^[1-9]\d{0,6}$/.test(found.page)) found.page = DEFAULTS.page;
  return found;
}

export function linkTo(changes) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries({ ...route, ...changes })) {
    if (String(value) !== DEFAULTS[name]) params.set(name, value);
  }
  return `#${params}`;
}

// A new filter starts at its first page. Typing replaces the history entry, other changes add one.
export function navigate(changes, { replace = false } = {}) {
  const restarts = ["q", "task", "worker", "state", "sort", "order"].some((name) => name in changes);
  const link = linkTo(restarts ? { page: "1", ...changes } : changes);
  if (link === linkTo({})) return;
  if (replace) history.replaceState(null, "", link);
  else history.pushState(null, "", link);
  update();
}

export function onRouteChange(listener) {
  listeners.push(listener);
}

export function update() {
  const previous = route;
  route = read();
  for (const listener of listeners) listener(route, previous);
}

addEventListener("hashchange", update);

// Text without wildcards matches anywhere.
export function glob(text) {
  return !text || /[*?]/.test(text) ? text : `*${text}*`;
}
