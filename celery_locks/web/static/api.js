// Asking the server. A refusal has a sentence and a status; without an answer there is no status.

import { spelled } from "./text.js";

const PATIENCE = 15_000;
const STORED = `celery-locks.key ${location.pathname}`;

let key = recall();

function recall() {
  try {
    return sessionStorage.getItem(STORED) ?? "";
  } catch {
    return "";
  }
}

export const hasKey = () => key !== "";

export function useKey(given) {
  key = given;
  try {
    if (given) sessionStorage.setItem(STORED, given);
    else sessionStorage.removeItem(STORED);
  } catch {
    // Kept until the page is left, then.
  }
}

export class Refusal extends Error {
  constructor(sentence, status = 0, retryAfter = 0) {
    super(sentence);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

export function get(path, asked = {}) {
  const said = Object.entries(asked).filter(
    ([, value]) => value !== "" && value !== null && value !== undefined,
  );
  const query = new URLSearchParams(said);
  return answer(said.length ? `${path}?${query}` : path, {});
}

export function post(path, body, patience = 0) {
  const headers = { "Content-Type": "application/json", "X-Celery-Locks": "1" };
  return answer(path, { method: "POST", headers, body: JSON.stringify(body) }, patience);
}

async function answer(path, options, patience = 0) {
  const reply = await sent(path, options, PATIENCE + patience);
  const said = await reply.json().catch(() => null);
  if (reply.ok && said) return said;
  const sentence = said?.error ?? `The server answered ${reply.status} and said nothing more.`;
  throw new Refusal(spelled(sentence), reply.status || 500, Number(reply.headers.get("Retry-After")) || 0);
}

async function sent(path, options, patience) {
  const headers = { Accept: "application/json", ...options.headers };
  if (key) headers["X-API-Key"] = String.fromCharCode(...new TextEncoder().encode(key));
  const signal = AbortSignal.timeout(patience);
  try {
    return await fetch(`api/v1/${path}`, { ...options, headers, signal, cache: "no-store" });
  } catch (error) {
    const slow = error.name === "TimeoutError";
    throw new Refusal(slow ? `No answer within ${patience / 1000} s.` : "The server cannot be reached.");
  }
}
