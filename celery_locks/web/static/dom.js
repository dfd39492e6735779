// Building elements, and elements whose text changes with time.

export function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) set(node, name, value);
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

function set(node, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
  else node.setAttribute(name, value === true ? "" : value);
}

export function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes ?? {})) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

export const $ = (id) => document.getElementById(id);

const liveNodes = new Map();

// An element whose text is computed again every second while it is on the page.
export function live(getText, attributes) {
  const node = el("span", attributes, getText());
  liveNodes.set(node, getText);
  return node;
}

export function tick() {
  for (const [node, getText] of liveNodes) {
    if (!node.isConnected) liveNodes.delete(node);
    else setText(node, getText());
  }
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const MAX_OUTCOMES = 4;

// Show the outcome of a user's action in a sentence; screen readers read it aloud.
export function notify(sentence, kind = "good") {
  const close = el("button", { type: "button", class: "quiet", "aria-label": "Dismiss" }, "✕");
  const note = el("p", { class: `outcome ${kind}` }, el("span", {}, sentence), close);
  close.addEventListener("click", () => note.remove());
  const notes = $("outcomes");
  notes.append(note);
  while (notes.children.length > MAX_OUTCOMES) notes.firstChild.remove();
  if (kind === "good") setTimeout(() => note.remove(), 20_000);
}
