// The review app: which page is shown, and the frame around it.

import { binPage } from "/static/review/bin.js";
import { categoryPage, pairPage } from "/static/review/category.js";
import { help, isTyping } from "/static/review/dialogs.js";
import { enter, isLocked } from "/static/review/entry.js";
import { imagePage } from "/static/review/image.js";
import { bind, keyOf } from "/static/review/keys.js";
import { mapPage } from "/static/review/map.js";
import { overview } from "/static/review/overview.js";
import { questions } from "/static/review/questions.js";
import { refitting } from "/static/review/refit.js";
import { likePage, searchPage, startSearch } from "/static/review/search.js";
import { bindSlider, step } from "/static/review/sizes.js";
import { splitting } from "/static/review/splitting.js";
import { decide, goTo, onChange, refresh, state, watch } from "/static/review/state.js";
import { byId, make } from "/static/shared/dom.js";
import { counted, thousands } from "/static/shared/text.js";

/** Pages by the first part of their address. Each gets the parts that follow; null says that there is none. */
const PAGES = {
  "": overview,
  category: categoryPage,
  pair: pairPage,
  image: imagePage,
  map: mapPage,
  bin: binPage,
  next: questions,
  split: splitting,
  refit: refitting,
  search: searchPage,
  like: likePage,
};
const EMPTY = { title: "", keys: [], update: async () => {}, close() {} };
const view = byId("view");
let page = EMPTY;
let routes = 0;

const always = bind("always", {
  help: () => help([...page.keys, ...always]),
  undo: () => decide({ do: "undo" }),
  redo: () => decide({ do: "redo" }),
  overview: () => goTo(""),
  next: () => goTo("next"),
  map: () => goTo("map"),
  search: startSearch,
  larger: () => step(1),
  smaller: () => step(-1),
});

function missing() {
  const back = make("a", { href: "#/", textContent: "Back to the overview" });
  view.replaceChildren(make("p", { className: "state" }, "There is no such page. ", back));
  return { ...EMPTY, title: "Missing" };
}

const showError = (error) => view.replaceChildren(make("p", { className: "state", textContent: error.message }));

async function route() {
  if (isLocked()) return;
  if (location.hash === "#view") return view.focus(); // the link that skips the bar
  const own = ++routes;
  const [name, ...parts] = location.hash.replace(/^#\/?/, "").split("/");
  page.close();
  page = EMPTY;
  scrollTo(0, 0);
  try {
    const given = parts.map((part) => (Number.isNaN(Number(part)) ? decodeURIComponent(part) : Number(part)));
    const made = (Object.hasOwn(PAGES, name) && (await PAGES[name](view, ...given))) || missing();
    if (own !== routes) return made.close(); // another page was asked for meanwhile
    page = made;
    await page.update();
    document.title = `${made.title} · Sortal`;
  } catch (error) {
    if (!isLocked()) showError(error);
  }
}

function frame() {
  const share = state.images ? state.settled / state.images : 1;
  const filled = state.categories.filter(({ size }) => size);
  const settled = filled.filter((each) => each.settled === each.size).length;
  const bar = document.querySelector(".progress");
  bar.querySelector("i").style.width = `${100 * share}%`;
  const categories = `, ${settled} of ${counted(filled.length, "category", "categories")}`;
  bar.querySelector("span").replaceChildren(
    `${thousands(state.settled)} of ${counted(state.images, "image")} settled`,
    make("span", { className: "roomy", textContent: categories }),
  );
  bar.ariaValueMax = String(state.images);
  bar.ariaValueNow = String(state.settled);
  byId("run").textContent = state.person ? `${state.run} · ${state.person}` : state.run;
  for (const [what, title] of Object.entries({ undo: "Undo", redo: "Redo" })) {
    const tool = byId(what);
    tool.disabled = state[what] === null;
    tool.title = state[what] === null ? `Nothing to ${what}` : `${title}: ${state[what]}`;
  }
}

addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.repeat || isTyping()) return;
  const key = keyOf(event);
  const found = [...page.keys, ...always].find((each) => each.key === key && each.action);
  if (!found) return;
  event.preventDefault();
  found.action();
});
bindSlider(byId("size"));
byId("undo").addEventListener("click", () => decide({ do: "undo" }));
byId("redo").addEventListener("click", () => decide({ do: "redo" }));
byId("help-button").addEventListener("click", () => help([...page.keys, ...always]));
addEventListener("hashchange", route);
onChange(async () => {
  frame();
  await page.update();
});

async function start() {
  if (!(await enter())) return;
  await refresh();
  await route();
  watch();
}

start().catch(showError);
