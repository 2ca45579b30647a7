// Images by their names, files and columns, by what is seen in them, or by their likeness to one image.

import { Grid, NO_IMAGES, NONE_HERE } from "/static/review/grid.js";
import { openImage } from "/static/review/image.js";
import { bind } from "/static/review/keys.js";
import { mixedActions, mixedTools } from "/static/review/mixed.js";
import { shown } from "/static/review/names.js";
import { thumb } from "/static/review/pictures.js";
import { categoryOf, describe, get, goTo, state, toast } from "/static/review/state.js";
import { toolbar } from "/static/review/toolbar.js";
import { button, isolated, make } from "/static/shared/dom.js";
import { counted, thousands } from "/static/shared/text.js";

const PLACEHOLDER = "Names, files, columns: rose, img_12, site:north, weight:>5";
const WAIT = 200; // milliseconds after a key
const LISTED = 12; // categories whose names match
const LOOKING = 1500; // milliseconds between answers while pictures are still being looked at
const NOTHING = { ...NO_IMAGES, total: 0 };
let wanted = { text: "", by: "words" }; // of the last search

/** A grid of what the server finds at an address, more of it whenever it is asked for, and what to do with it. */
function results(addressOf, told = () => {}) {
  const open = (row) => openImage(row, grid.data.rows);
  const grid = new Grid(NOTHING, { named: true, changed: () => tell(), open });
  const count = make("span", { className: "chosen", role: "status" });
  const loadMore = () => load(Math.min(grid.count + grid.data.limit, state.most_searched));
  const more = button("Show more", loadMore, { hidden: true });
  const actions = mixedActions(grid);
  let loads = 0;

  function tell() {
    const { total, rows } = grid.data;
    const of = total > rows.length ? `${thousands(rows.length)} of ` : "";
    count.textContent = grid.chosen.size ? `${thousands(grid.chosen.size)} chosen` : `${of}${counted(total, "image")}`;
    more.hidden = rows.length >= Math.min(total, state.most_searched);
  }

  /** Say why there is no answer, instead of that nothing was found. */
  function failed(own, error) {
    if (own === loads) {
      grid.empty.textContent = error.message;
      if (!grid.count) count.textContent = "";
    }
    throw error;
  }

  async function load(least = 0) {
    const own = ++loads;
    const address = addressOf();
    const asked = `${address}${address.includes("?") ? "&" : "?"}most=${least}`;
    const found = address ? await get(asked).catch((error) => failed(own, error)) : NOTHING;
    if (own !== loads) return; // something else was asked for meanwhile
    grid.empty.textContent = NONE_HERE;
    grid.show(found);
    tell();
    told(found);
  }

  const tools = toolbar(count, ...mixedTools(actions, "search"));
  const close = () => {
    loads++; // what is asked for comes too late
    grid.close();
  };
  return { grid, actions, load, close, update: () => load(grid.count), elements: [tools, grid.element, more] };
}

/** A field for what is wanted; as it is typed, the images that fit. */
export async function searchPage(view) {
  const input = make("input", { type: "search", placeholder: PLACEHOLDER, ariaLabel: "Search", value: wanted.text });
  Object.assign(input, { autocomplete: "off", spellcheck: false });
  const ways = { words: "What is written", seen: "What is seen" };
  const options = Object.entries(ways).map(([value, textContent]) => make("option", { value, textContent }));
  const by = make("select", { ariaLabel: "Search by", value: wanted.by, hidden: !state.sees }, ...options);
  by.value = state.sees ? wanted.by : "words";
  const categories = make("p", { className: "found-names" });
  const note = make("p", { className: "small", role: "status" });
  let [timer, again] = [0, 0];
  const address = () => {
    const text = encodeURIComponent(wanted.text.trim());
    return text && `/api/${wanted.by === "seen" ? "seen" : "search"}?text=${text}`;
  };
  const found = results(address, ({ named = [], looked }) => {
    categories.replaceChildren(...named.slice(0, LISTED).filter(categoryOf).map(categoryLink));
    const left = looked && looked[0] < looked[1];
    note.textContent = left ? `${thousands(looked[0])} of ${counted(looked[1], "image")} looked at so far.` : "";
    clearTimeout(again);
    if (left) again = setTimeout(found.update, LOOKING);
  });
  const ask = () => {
    wanted = { text: input.value, by: by.value };
    return found.load().catch((error) => toast(error.message, true));
  };
  input.oninput = () => {
    clearTimeout(timer);
    timer = setTimeout(ask, WAIT);
  };
  by.onchange = ask;
  input.onkeydown = (event) => {
    if (!["Enter", "ArrowDown", "Escape"].includes(event.key)) return;
    if (event.key === "Escape" && input.value) return;
    event.preventDefault();
    found.grid.element.focus({ preventScroll: true });
    found.grid.mark();
  };
  const field = make("div", { className: "search" }, input, by);
  view.replaceChildren(make("section", {}, field, categories, note, ...found.elements));
  input.select();
  const keys = bind("search", { ...found.actions, back: () => history.back() });
  const close = () => {
    clearTimeout(timer);
    clearTimeout(again);
    found.close();
  };
  return { title: "Search", keys, update: found.update, close };
}

/** Go to the search, or to its field if it is on the screen. */
export function startSearch() {
  const field = document.querySelector(".search input");
  if (field) field.select();
  else goTo("search");
}

function categoryLink(id) {
  return make("a", { className: "tool", href: `#/category/${id}` }, shown(categoryOf(id)));
}

/** The images most similar to one, by the features of the run. */
export async function likePage(view, row) {
  const own = await describe([row]).catch(() => null);
  if (!own) return null;
  const found = results(() => `/api/like/${row}`);
  const name = make("span", { className: "soft" }, isolated(categoryOf(own.category[0])?.name ?? ""));
  const picture = make("a", { href: `#/image/${row}` }, thumb(row, { alt: own.file[0] }));
  const head = make("div", { className: "head alike" }, picture, make("h1", { textContent: "More like this" }), name);
  view.replaceChildren(make("section", {}, head, ...found.elements));
  found.grid.element.focus({ preventScroll: true });
  const keys = bind("search", { ...found.actions, back: () => history.back() });
  return { title: "More like this", keys, update: found.update, close: found.close };
}
