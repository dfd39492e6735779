// Light or dark as chosen before, set before anything is drawn. Not a module: those run too late.
"use strict";
try {
  const chosen = localStorage.getItem("celery-locks.theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
} catch {
  // A browser that keeps nothing follows the system.
}
