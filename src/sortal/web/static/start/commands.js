// Commands that the server runs: started, watched, stopped and resumed.

import { request } from "/static/review/entry.js";
import { get, toast } from "/static/review/state.js";
import { button, isolated, make } from "/static/shared/dom.js";
import { counted, thousands } from "/static/shared/text.js";

const LOOK_EVERY = 700; // milliseconds
const SILENT = "Sortal does not answer. Is it still running in the terminal?";
const listeners = new Set();
const live = new Map(); // what redraws the progress of a command, by its number: a button that is pressed must stay

/** Every command, the latest last. */
export let commands = [];
export const onLook = (listener) => listeners.add(listener);
export const isRunning = (command) => ["running", "stopping"].includes(command.state);
/** Find the latest command of a kind that fits. */
export const latest = (kind, fits) => commands.findLast((each) => each.kind === kind && fits(each.asked));
export const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

export async function look() {
  commands = (await get("/api/commands")).commands;
  for (const command of commands) live.get(command.number)?.(command);
  for (const listener of listeners) await listener();
}

export function keepLooking() {
  setInterval(() => {
    if (!document.hidden) look().catch((error) => toast(error.status ? error.message : SILENT, true));
  }, LOOK_EVERY);
}

/** Ask the server to do something; null, with a message, if it refuses. */
export async function ask(path, body) {
  try {
    const headers = { "Content-Type": "application/json" };
    const answer = await request(path, { method: "POST", headers, body: JSON.stringify(body) });
    const found = await answer.json();
    if (answer.ok) return found;
    toast(found.message ?? `The server answered ${answer.status}.`, true);
  } catch {
    toast(SILENT, true);
  }
  return null;
}

/** Start a command, and return it; null if it was refused. */
export async function start(asked) {
  const found = await ask("/api/start", asked);
  if (found) await look();
  return found;
}

const answers = new Map(); // by number, as they never change
/** Return what a command that has ended printed. */
export async function answerOf(command) {
  if (!answers.has(command.number)) answers.set(command.number, await get(`/api/answer/${command.number}`));
  return answers.get(command.number);
}

/** Write a time as 40 s, 12 min or 3.4 h. */
export function time(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

function progressText({ progress: { task, done, total, left }, state }) {
  if (state === "stopping") return "Stopping, and keeping what is done…";
  const share = total ? `: ${thousands(done)} of ${thousands(total)}` : "…";
  return `${taskText({ task })}${share}${left && done * 20 >= total ? `, about ${time(left)} left in this step` : ""}`;
}

/** Show how far a command is, with a button to stop it; `expected` is the seconds that it takes in all, if known. */
export function progressOf(command, expected = null) {
  const text = make("p");
  const bar = make("progress");
  const spent = make("span", { className: "small" });
  const stop = button("Stop", () => ask("/api/stop", { number: command.number }).then(look));
  const update = (now) => {
    const { task, done, total } = now.progress;
    text.textContent = progressText(now);
    bar.ariaLabel = task;
    if (total) Object.assign(bar, { max: total, value: done });
    else bar.removeAttribute("value");
    const left = expected === null ? 0 : expected - now.seconds;
    spent.textContent = `${time(now.seconds)} so far${left > 5 ? `, about ${time(left)} left in all` : ""}`;
    stop.textContent = now.state === "stopping" ? "Stop at once" : "Stop";
  };
  live.set(command.number, update);
  update(command);
  const line = make("p", { className: "line" }, spent, stop);
  return make("div", { className: "command", role: "group" }, text, bar, line);
}

/** Change the children of an element only if they show another state, so that what is unfolded or pressed stays. */
export async function redraw(element, key, makeChildren) {
  const text = JSON.stringify(key ?? null);
  if (element.dataset.drawn === text) return;
  element.dataset.drawn = text;
  element.replaceChildren(...(await makeChildren()).filter(Boolean));
}
export const keyOf = (command) => command && [command.number, command.state, command.has_link, command.notes.length];

/** Create a paragraph of small print. */
export const small = (textContent) => make("p", { className: "small", textContent });
/** List the first few names, and count the others. */
export const few = (names, most, sign = ", ") =>
  names.slice(0, most).join(sign) + (names.length > most ? ` and ${thousands(names.length - most)} more` : "");
/** Write a task in words: those of a run begin with their number, as in [2/7]. */
export const taskText = ({ task }) => task.replace(/^\[(\d+)\/(\d+)\] /, "Step $1 of $2: ");

/** Show the notes of a command, folded. */
export function notesOf({ notes }) {
  if (!notes.length) return null;
  const lines = notes.map((note) => make("li", {}, isolated(note)));
  return make("details", { className: "notes" },
    make("summary", { textContent: counted(notes.length, "note") }), make("ul", {}, ...lines));
}

/** Show why a command failed. */
export const errorOf = ({ error }) => make("p", { className: "warning", role: "alert" }, isolated(error));
