// The button that switches between light and dark; choosing the system's theme follows it again.

import { $ } from "./dom.js";

const STORAGE_KEY = "celery-locks.theme";
const system = matchMedia("(prefers-color-scheme: dark)");

const current = () => document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light");

export function initTheme() {
  $("theme").addEventListener("click", () => choose(current() === "dark" ? "light" : "dark"));
  system.addEventListener("change", update);
  update();
}

function choose(theme) {
  const isSystemTheme = theme === (system.matches ? "dark" : "light");
  if (isSystemTheme) delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  try {
    if (isSystemTheme) localStorage.removeItem(STORAGE_KEY);
    else localStorage.setItem(STORAGE_KEY, theme);
  } catch {
    // No storage: the choice lasts until the page is closed.
  }
  update();
}

function update() {
  const other = current() === "dark" ? "light" : "dark";
  $("theme").textContent = other === "dark" ? "☾" : "☀";
  $("theme").setAttribute("aria-label", `Switch to ${other} theme`);
}
