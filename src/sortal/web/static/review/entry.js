// Access to a review: the token of a link is exchanged for a key, which is sent with every request and nowhere else.

import { byId, make } from "/static/shared/dom.js";

const KEY = "sortal-key"; // in the storage of this tab and of this origin, which includes the port
const WAIT = 400; // milliseconds for another tab to answer
let key = null;
let locked = false;

const tabs = new BroadcastChannel("sortal");
tabs.addEventListener("message", ({ data }) => {
  if (data === "key?" && key && !locked) tabs.postMessage({ key });
});

/** Ask the other tabs of this review for their key; null if none answers. */
function askTabs() {
  return new Promise((resolve) => {
    const answered = ({ data }) => data?.key && finish(data.key);
    const finish = (found) => {
      tabs.removeEventListener("message", answered);
      resolve(found);
    };
    tabs.addEventListener("message", answered);
    tabs.postMessage("key?");
    setTimeout(finish, WAIT, null);
  });
}

const tokenIn = (hash) => /^#token=([\w-]+)$/.exec(hash)?.[1] ?? null;
const send = (path, given, options = {}) => {
  const headers = { ...options.headers, Authorization: `Bearer ${given}` };
  return fetch(path, { ...options, headers, credentials: "omit" });
};

async function exchange(token) {
  const answer = await fetch("/api/enter", { method: "POST", credentials: "omit", body: token });
  return (await answer.json()).key ?? null;
}

async function isGood(given) {
  const answer = await send("/api/version", given);
  await answer.text(); // or its connection would be held
  return answer.status !== 403;
}

/** Get a key from the link in the address, from this tab, or from another one; return whether one works. */
export async function enter() {
  const token = tokenIn(location.hash);
  if (token) history.replaceState(null, "", "/"); // so that it stays neither in the address nor in the history
  for (const found of [() => token && exchange(token), () => sessionStorage.getItem(KEY), askTabs]) {
    const given = await found();
    if (!given || !(await isGood(given))) continue;
    key = given;
    sessionStorage.setItem(KEY, key);
    return true;
  }
  lock(token !== null);
  return false;
}

// A link that is pasted into the address of this page changes only its fragment.
addEventListener("hashchange", () => tokenIn(location.hash) && location.reload());

/** Send a request with the key. */
export async function request(path, options) {
  const answer = await send(path, key, options);
  if (answer.status === 403) lock(false);
  return answer;
}

/** Whether nothing can be asked any more. */
export const isLocked = () => locked;

const USED = {
  title: "This link has been used",
  why: "A link works only once, and only the latest link works.",
  another: "another",
  warning: "If it was not you who used the link, press Ctrl-C there: someone else can see and change what you can.",
};
const MISSING = {
  title: "This page needs a link",
  why: "It is opened by a link that is printed in the terminal, and this tab has not followed one.",
  another: "one",
  warning: "",
};
const RESTART =
  " is running, and open the link that it prints. If it has ended, or runs in a notebook, start it again. " +
  "Nothing that was decided is lost.";

/** Explain how to get a link that works. */
function lock(used) {
  if (locked) return;
  locked = true;
  sessionStorage.removeItem(KEY);
  for (const each of document.querySelectorAll(".progress, .tools")) each.hidden = true;
  const { title, why, another, warning } = used ? USED : MISSING;
  const enterKey = make("kbd", { textContent: "Enter" });
  const command = make("code", { textContent: document.body.dataset.command });
  byId("view").replaceChildren(
    make(
      "section",
      { className: "locked" },
      make("h1", { textContent: title }),
      make("p", { textContent: why }),
      make("p", {}, `To get ${another}, press `, enterKey, " in the terminal where ", command, RESTART),
      warning && make("p", { className: "soft", textContent: warning }),
    ),
  );
}
