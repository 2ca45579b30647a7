// The start page: folders to choose from, and what is going on.

import { enter, isLocked } from "/static/review/entry.js";
import { get, goTo, toast } from "/static/review/state.js";
import { button, byId, isolated, make } from "/static/shared/dom.js";
import { counted } from "/static/shared/text.js";
import { commands, isRunning, keepLooking, look, onLook, small, start, taskText } from "/static/start/commands.js";
import { finishedPage } from "/static/start/finished.js";
import { addressOf, nameOf, pathOf, runOf } from "/static/start/places.js";
import { sortingPage } from "/static/start/sorting.js";

const MANY_FOLDERS = 24; // from which they can be filtered
const PAGES = { "": folderPage, in: folderPage, sort: sortingPage, run: finishedPage };
const view = byId("view");
const EMPTY = { update: async () => {} };
let page = EMPTY;
let routes = 0;

function crumbs(at) {
  const names = at ? at.split("/") : [];
  const links = names.map((name, depth) =>
    make("a", { href: addressOf("in", names.slice(0, depth + 1).join("/")) }, isolated(name)));
  return make("nav", { className: "crumbs", ariaLabel: "Folders around this one" },
    make("div", {}, make("a", { href: "#/", textContent: "All folders" }), ...links));
}

const placeOf = ({ kind, asked }) => (kind === "sort" ? runOf(asked) : asked.at);
/** Whether a command is the latest that was started about its run. */
const isShown = (command) => ["sort", "review"].includes(command.kind) &&
  !commands.some((each) => each.number > command.number && ["sort", "review"].includes(each.kind) &&
    placeOf(each) === placeOf(command));

/** List what was started here, the latest first. */
function going() {
  const lines = commands.filter(isShown).reverse().map((each) => {
    const { kind, asked, state, progress } = each;
    const isSorted = kind === "review" || state === "done";
    const at = isSorted ? placeOf(each) : asked.at;
    const sorting = state === "running" ? taskText(progress) : state;
    const what = kind === "sort" ? sorting : isRunning(each) ? "review open" : "sorted";
    return make("li", {}, make("a", { href: addressOf(isSorted ? "run" : "sort", at) }, isolated(nameOf(at)),
      make("span", { className: "why", textContent: what })));
  });
  return lines.length && make("section", { className: "going" },
    make("h2", { textContent: "Started here" }), make("ul", { className: "queue" }, ...lines));
}

const stateOf = (isRun, isBusy) => (isBusy ? (isRun ? "in use" : "being sorted") : "sorted");

function tiles(found) {
  const list = make("ul", { className: "folders" });
  const show = (wanted) => {
    const fitting = found.folders.filter(({ name }) => name.toLowerCase().includes(wanted));
    list.replaceChildren(...fitting.map(({ name, is_run, is_busy }) => {
      const at = pathOf(found.at, name);
      return make("li", {}, make("a", { href: addressOf(is_run || is_busy ? "run" : "in", at) }, isolated(name),
        (is_run || is_busy) && make("span", { className: "badge known", textContent: stateOf(is_run, is_busy) })));
    }));
  };
  show("");
  const filter = make("input", { type: "search", placeholder: "Filter by name", ariaLabel: "Filter folders by name" });
  filter.addEventListener("input", () => show(filter.value.toLowerCase()));
  return [found.folders.length > MANY_FOLDERS && filter, list];
}

/** Say what is in a folder, and offer to sort it. */
function here(found) {
  const inside = found.folders.length;
  const parts = [
    found.images && `${counted(found.images, "image")}${found.more ? " or more" : ""}`,
    inside && counted(inside, "folder"),
  ].filter(Boolean);
  const text = parts.length ? `${parts.join(" and ")} here.` : "There are neither images nor folders here.";
  const sort = make("a", { className: "button primary", href: addressOf("sort", found.at) }, "Sort this folder");
  return make("div", { className: "panel here" }, make("p", {}, isolated(found.name, "name"), " ",
    make("span", { className: "small", textContent: text })), parts.length > 0 && sort);
}

async function trySample() {
  const exists = (await get("/api/listing?at=")).folders.some(({ name }) => name === "digits");
  if (exists) return goTo("sort/digits");
  const started = await start({ kind: "sample", at: "" });
  if (!started) return;
  toast("Writing 1,797 handwritten digits to the folder digits…");
  const stop = onLookOnce(() => {
    const found = commands.find((each) => each.number === started.number);
    if (!found || isRunning(found)) return false;
    if (found.error) toast(found.error, true);
    else goTo("sort/digits");
    return true;
  });
  return stop;
}

const waiting = new Set();
const onLookOnce = (act) => waiting.add(act);
onLook(() => {
  for (const act of [...waiting]) if (act()) waiting.delete(act);
});

async function folderPage(root, at) {
  const found = await get(`/api/listing?at=${encodeURIComponent(at)}`);
  const title = make("h1", { textContent: at ? "Is this the folder to sort?" : "Which images do you want to sort?" });
  const lead = make("p", { className: "lead", textContent: at
    ? "Choose it, or one of the folders in it."
    : "Choose the folder that they are in. Your files are never moved or changed." });
  const started = make("div");
  root.replaceChildren(
    started,
    make("section", {}, title, lead, at ? crumbs(at) : null, at ? here(found) : null, ...tiles(found),
      found.more && small("Not everything is listed here; there is too much.")),
    at ? "" : make("section", { className: "sample" }, make("p", { className: "small" }, "No images at hand? "),
      button("Try it with handwritten digits", trySample)),
  );
  return { title: found.name, update: async () => started.replaceChildren(...[going()].filter(Boolean)) };
}

function frame() {
  const sorting = commands.findLast((each) => each.kind === "sort" && isRunning(each));
  const now = byId("now");
  now.hidden = !sorting;
  if (!sorting) return;
  now.href = addressOf("sort", sorting.asked.at);
  now.replaceChildren("Sorting ", isolated(nameOf(sorting.asked.at)), ` · ${taskText(sorting.progress).split(":")[0]}`);
}

const showError = (error) => view.replaceChildren(make("section", {},
  make("p", { className: "warning", role: "alert" }, isolated(error.message)),
  make("p", {}, make("a", { href: "#/", textContent: "Back to the folders" }))));

async function route() {
  if (isLocked()) return;
  if (location.hash === "#view") return view.focus(); // the link that skips the bar
  const own = ++routes;
  const [name, ...parts] = location.hash.replace(/^#\/?/, "").split("/");
  page = EMPTY;
  scrollTo(0, 0);
  try {
    const make_page = Object.hasOwn(PAGES, name) ? PAGES[name] : folderPage;
    const made = await make_page(view, parts.map(decodeURIComponent).join("/"));
    if (own !== routes) return;
    page = made;
    await page.update();
    document.title = `${made.title} · Sortal`;
  } catch (error) {
    if (!isLocked()) showError(error);
  }
}

addEventListener("hashchange", route);
onLook(async () => {
  frame();
  await page.update();
});

async function open() {
  if (!(await enter())) return;
  await look();
  await route();
  keepLooking();
}

open().catch(showError);
