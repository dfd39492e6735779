// Which locks these are: app, lock server, database, prefix. Nobody should take production for staging.

import { $, el } from "./dom.js";
import { renderText, escapeText } from "./format.js";

let server = {};

export function showServer(me) {
  server = me;
  const node = $("server");
  node.hidden = false;
  const swatch = el("span", { class: "swatch", "aria-hidden": "true" });
  swatch.style.setProperty("background", `hsl(${hue()} 65% 50%)`);
  node.replaceChildren(
    swatch,
    ...[me.app_name && el("strong", {}, renderText(me.app_name)), el("span", {}, renderText(address()))].filter(
      Boolean,
    ),
    el("span", {}, "prefix ", renderText(me.prefix)),
  );
  node.title = describeServer();
}

const address = () => `${server.server}/${server.db}`;

// The same locks always have the same colour; other locks most likely have another.
function hue() {
  let sum = 0;
  for (const letter of `${address()} ${server.prefix}`) sum = (sum * 31 + letter.codePointAt(0)) % 360;
  return sum;
}

export const serverName = () => (server.server ? escapeText(server.app_name || address()) : "");

export function describeServer() {
  const app = server.app_name ? `App ${escapeText(server.app_name)}, ` : "";
  return `${app}${app ? "l" : "L"}ock server ${escapeText(server.server)}, database ${server.db}, prefix ${escapeText(server.prefix)}`;
}
