// Data from the server: asked only while the page is seen, by ETag, and kept when a request fails.
import { useEffect, useState } from "./vendor/preact-htm.js";

const kept = new Map(); // path -> { tag, data, at }
let skew = 0; // the server's clock less ours, in ms

export const serverNow = () => Date.now() + skew;

export class Refusal extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

function words(status, detail) {
  if (status === 401) return "You are not logged in to Airflow.";
  if (typeof detail === "string" && detail) return detail;
  if (Array.isArray(detail)) return detail.map((each) => `${(each.loc || []).slice(-1)[0] ?? ""}: ${each.msg}`).join("; ");
  return `The server answered ${status}.`;
}

async function read(answer) {
  const date = Date.parse(answer.headers.get("Date") || "");
  if (!Number.isNaN(date) && Math.abs(date - Date.now()) > 2500) skew = date - Date.now();
  if (answer.ok) return answer.json();
  let detail = null;
  try {
    detail = (await answer.json()).detail;
  } catch { /* no JSON: a proxy's page */ }
  throw new Refusal(words(answer.status, detail), answer.status);
}

async function request(path, options) {
  try {
    return await fetch(path, { credentials: "same-origin", cache: "no-store", ...options });
  } catch {
    throw new Refusal("Airflow does not answer.", 0);
  }
}

// The data of a path; the copy we have, if the server says that it still holds. `keep`: whether a copy is of use later.
export async function get(path, { keep = true } = {}) {
  const copy = kept.get(path);
  const answer = await request(path, { headers: copy ? { "If-None-Match": copy.tag } : {} });
  if (answer.status === 304 && copy) {
    copy.at = serverNow();
    return copy.data;
  }
  const data = await read(answer);
  if (!keep) return data;
  kept.delete(path);
  kept.set(path, { tag: answer.headers.get("ETag") || "", data, at: serverNow() });
  if (kept.size > 100) kept.delete(kept.keys().next().value); // the oldest
  return data;
}

// An id for an act. `crypto.randomUUID` exists over https and on localhost alone.
export const newId = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

let person = null; // { csrf }, of GET api/me
const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Ask for an act. An answer that was lost is asked for again with the same id, so the act is done once. What can be stopped by a
// `signal` is not asked for again. `blob`: the answer is a file.
export async function post(path, body, { signal = null, blob = false } = {}) {
  const text = JSON.stringify({ id: newId(), ...body });
  for (let tries = 1; ; tries += 1) {
    try {
      person = person || await read(await request("api/me"));
      const headers = { "Content-Type": "application/json", "X-Rivertwice-CSRF": person.csrf };
      const answer = await request(path, { method: "POST", headers, body: text, signal });
      if (answer.status !== 403 || tries > 1) return await (blob && answer.ok ? answer.blob() : read(answer));
      person = null; // the token may be an older one
    } catch (error) {
      if (error.status !== 0 || tries > 2 || signal) throw error;
      await wait(1000 * tries);
    }
  }
}

function copyOf(path) {
  const copy = path ? kept.get(path) : null;
  return { path, data: copy ? copy.data : null, at: copy ? copy.at : null, error: null, status: null, busy: !copy };
}

// Returns { data, at, error, status, busy }. Asks when it is first used, when `path` or `stamp` changes, and `every` so many ms.
// After a failure the last data stay, `error` says why, and it asks again: after 5, 10, 20, 40, then each 60 s.
export function useData(path, stamp = "", { every = 0 } = {}) {
  const [state, setState] = useState(() => copyOf(path));
  useEffect(() => {
    if (!path) return undefined;
    let live = true, timer = 0, asking = false, failures = 0;
    setState(copyOf(path));
    async function ask() {
      asking = true;
      let next;
      try {
        const data = await get(path);
        failures = 0;
        next = { path, data, at: serverNow(), error: null, status: 200, busy: false };
      } catch (error) {
        failures += 1;
        next = { ...copyOf(path), error: error.message, status: error.status ?? 0, busy: false };
      }
      asking = false;
      if (!live) return;
      setState(next);
      plan();
    }
    function plan() {
      const wait = failures ? Math.min(60_000, 5_000 * 2 ** (failures - 1)) : every;
      if (wait && !document.hidden) timer = setTimeout(() => { timer = 0; ask(); }, wait);
    }
    function look() {
      if (document.hidden) {
        clearTimeout(timer);
        timer = 0;
      } else if (!timer && !asking) ask();
    }
    document.addEventListener("visibilitychange", look);
    if (!document.hidden) ask();
    return () => {
      live = false;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", look);
    };
  }, [path, stamp, every]);
  return state.path === path ? state : copyOf(path);
}

// One clock for all ages on the page.
const listeners = new Set();
let ticking = 0;
function tick() {
  if (!document.hidden) for (const each of listeners) each();
}
export function useClock(text) { // text: a function of now (ms); renders again only if its result changes
  const [, setText] = useState("");
  useEffect(() => {
    const listen = () => setText(text(serverNow()));
    listeners.add(listen);
    if (!ticking) ticking = setInterval(tick, 1000);
    return () => {
      listeners.delete(listen);
      if (!listeners.size) { clearInterval(ticking); ticking = 0; }
    };
  }, [text]);
  return text(serverNow());
}
