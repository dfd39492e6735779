// The button that goes from the system's choice of light or dark to the other one, and back.

import { $ } from "./dom.js";

const STORED = "celery-locks.theme";
const system = matchMedia("(prefers-color-scheme: dark)");

const current = () => document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light");

export function wireTheme() {
  $("theme").addEventListener("click", () => choose(current() === "dark" ? "light" : "dark"));
  system.addEventListener("change", say);
  say();
}

function choose(theme) {
  const isSystems = theme === (system.matches ? "dark" : "light");
  if (isSystems) delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  try {
    if (isSystems) localStorage.removeItem(STORED);
    else localStorage.setItem(STORED, theme);
  } catch {
    // Chosen again the next time, then.
  }
  say();
}

function say() {
  const other = current() === "dark" ? "light" : "dark";
  $("theme").textContent = other === "dark" ? "☾" : "☀";
  $("theme").setAttribute("aria-label", `Change to ${other}`);
}
