// Calls to the REST API. An ApiError has a sentence and a status; 0 if there was no response.

import { escapeText } from "./format.js";

const TIMEOUT = 15_000;
const STORAGE_KEY = `celery-locks.key ${location.pathname}`;

let key = storedKey();

function storedKey() {
  try {
    return sessionStorage.getItem(STORAGE_KEY) ?? "";
  } catch {
    return "";
  }
}

export const hasKey = () => key !== "";

export function useKey(newKey) {
  key = newKey;
  try {
    if (newKey) sessionStorage.setItem(STORAGE_KEY, newKey);
    else sessionStorage.removeItem(STORAGE_KEY);
  } catch {
    // No storage: the key is kept until the page is closed.
  }
}

export class ApiError extends Error {
  constructor(sentence, status = 0, retryAfter = 0) {
    super(sentence);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

export function get(path, params = {}) {
  const given = Object.entries(params).filter(
    ([, value]) => value !== "" && value !== null && value !== undefined,
  );
  const query = new URLSearchParams(given);
  return call(given.length ? `${path}?${query}` : path, {});
}

export function post(path, body, extraTime = 0) {
  const headers = { "Content-Type": "application/json", "X-Celery-Locks": "1" };
  return call(path, { method: "POST", headers, body: JSON.stringify(body) }, extraTime);
}

async function call(path, options, extraTime = 0) {
  const response = await request(path, options, TIMEOUT + extraTime);
  const answer = await response.json().catch(() => null);
  if (response.ok && answer) return answer;
  const sentence = answer?.error ?? `The server answered with status ${response.status}.`;
  throw new ApiError(escapeText(sentence), response.status || 500, Number(response.headers.get("Retry-After")) || 0);
}

async function request(path, options, timeout) {
  const headers = { Accept: "application/json", ...options.headers };
  if (key) headers["X-API-Key"] = String.fromCharCode(...new TextEncoder().encode(key));
  const signal = AbortSignal.timeout(timeout);
  try {
    return await fetch(`api/v1/${path}`, { ...options, headers, signal, cache: "no-store" });
  } catch (error) {
    const isTimeout = error.name === "TimeoutError";
    throw new ApiError(isTimeout ? `No answer within ${timeout / 1000} s.` : "The server cannot be reached.");
  }
}
