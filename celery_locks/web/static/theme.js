// Applies the stored theme before anything is drawn. Not a module: modules run too late.
"use strict";
try {
  const chosen = localStorage.getItem("celery-locks.theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
} catch {
  // No storage: follow the system.
}
