// Elements, made of attributes and text; and those whose text changes with time.

export function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) set(made, name, value);
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

function set(node, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
  else node.setAttribute(name, value === true ? "" : value);
}

export function svg(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes ?? {})) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export const $ = (id) => document.getElementById(id);

const living = new Map();

// An element whose text is asked for again every second, for as long as it is on the page.
export function live(say, attributes) {
  const made = el("span", attributes, say());
  living.set(made, say);
  return made;
}

export function tick() {
  for (const [node, say] of living) {
    if (!node.isConnected) living.delete(node);
    else write(node, say());
  }
}

export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const OUTCOMES_SHOWN = 4;

// What came of something the reader did, in a sentence; read out by screen readers.
export function tell(sentence, kind = "good") {
  const close = el("button", { type: "button", class: "quiet", "aria-label": "Dismiss" }, "✕");
  const note = el("p", { class: `outcome ${kind}` }, el("span", {}, sentence), close);
  close.addEventListener("click", () => note.remove());
  const notes = $("outcomes");
  notes.append(note);
  while (notes.children.length > OUTCOMES_SHOWN) notes.firstChild.remove();
  if (kind === "good") setTimeout(() => note.remove(), 20_000);
}
