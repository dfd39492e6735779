// Which locks these are: app, lock server, database, prefix; so that nobody mistakes one for another.

import { $, el } from "./dom.js";
import { shown, spelled } from "./text.js";

let site = {};

export function showSite(said) {
  site = said;
  const node = $("site");
  node.hidden = false;
  const swatch = el("span", { class: "swatch", "aria-hidden": "true" });
  swatch.style.setProperty("background", `hsl(${hue()} 65% 50%)`);
  node.replaceChildren(
    swatch,
    ...[said.app_name && el("strong", {}, shown(said.app_name)), el("span", {}, shown(address()))].filter(
      Boolean,
    ),
    el("span", {}, "prefix ", shown(said.prefix)),
  );
  node.title = siteLine();
}

const address = () => `${site.server}/${site.db}`;

// The same locks always have the same colour, and others most likely another one.
function hue() {
  let sum = 0;
  for (const letter of `${address()} ${site.prefix}`) sum = (sum * 31 + letter.codePointAt(0)) % 360;
  return sum;
}

export const siteName = () => (site.server ? spelled(site.app_name || address()) : "");

export function siteLine() {
  const app = site.app_name ? `App ${spelled(site.app_name)}, ` : "";
  return `${app}${app ? "l" : "L"}ock server ${spelled(site.server)}, database ${site.db}, prefix ${spelled(site.prefix)}`;
}
