// What the server knows, and decisions sent to it.

import { request } from "/static/review/entry.js";
import { byId } from "/static/shared/dom.js";

const SILENT = "The server does not answer. Has the review ended? Nothing that was decided is lost.";
const WATCH_EVERY = 1500; // milliseconds

/** What /api/overview answers, with the constants of the server, and the words that names are chosen from. */
export const state = { version: -1, categories: [], words: null };
export const asked = { now: "" }; // what this page asks its person, as other people's pages get to know it
export const categoryOf = (id) => state.categories.find((each) => each.id === id);
export const goTo = (path) => { location.hash = `#/${path}`; };

const listeners = new Set();
/** Call a function whenever the state has changed. */
export const onChange = (listener) => listeners.add(listener);

export async function get(path) {
  const answer = await request(path, { headers: { Accept: "application/json" } }).catch(() => {
    throw new Error(SILENT);
  });
  const body = await answer.json().catch(() => ({}));
  if (answer.ok) return body;
  throw Object.assign(new Error(body.message ?? `The server answered ${answer.status}.`), { status: answer.status });
}

const page = Math.random().toString(36).slice(2); // tells the windows of one person apart
/** Ask for something, and tell the server what is asked on this page. */
export const getAsking = (path) => get(`${path}?page=${page}&asked=${encodeURIComponent(asked.now)}`);

/** Ask for the columns of some images. */
export const describe = (rows) => get(`/api/images?rows=${rows.join(",")}`);

export async function refresh() {
  Object.assign(state, await get("/api/overview"));
  if (!state.words) Object.assign(state, await get("/api/words")); // once
  for (const listener of listeners) await listener();
}

let hiding = 0;
export function toast(text, bad = false) {
  const box = byId("toast");
  box.textContent = text;
  box.classList.toggle("bad", bad);
  const bars = [...document.querySelectorAll(".answers, .sticky")];
  const below = bars.filter((each) => getComputedStyle(each).position === "fixed").map((each) => each.offsetHeight);
  box.style.bottom = below.length ? `calc(${Math.max(...below)}px + 0.6rem)` : ""; // so that no answer is covered
  box.hidden = false;
  clearTimeout(hiding);
  hiding = setTimeout(() => { box.hidden = true; }, bad ? 8000 : 4000);
}

let busy = false;

/**
 * Send a decision about what a page shows of a version; true if it was carried out.
 * One at a time: a second one would be about a page that nobody has seen yet, so it is dropped.
 */
export async function decide(action, version = state.version) {
  if (busy) return false;
  busy = true;
  try {
    return await send(action, version);
  } finally {
    busy = false;
  }
}

async function send(action, version) {
  let answer;
  try {
    answer = await request("/api/decide", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ seen: version, action }),
    });
  } catch {
    toast(SILENT, true);
    return false;
  }
  const body = await answer.json().catch(() => ({}));
  if (answer.ok || answer.status === 409 || answer.status === 410) await refresh();
  if (answer.ok) toast(`${body.words}.`);
  else if (answer.status === 409) {
    const missed = body.missed.slice(-3).join("; ");
    toast(`Not done, because someone else decided first: ${missed}. Look again, then repeat it.`, true);
  } else toast(body.message ?? `The server answered ${answer.status}.`, true);
  return answer.ok;
}

/** Notice what other pages decide. */
export function watch() {
  setInterval(async () => {
    if (document.hidden) return;
    try {
      const { version } = await getAsking("/api/version");
      if (version !== state.version) await refresh();
    } catch (error) {
      if (error.status !== 403) toast(error.message, true);
    }
  }, WATCH_EVERY);
}
