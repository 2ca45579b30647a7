// The review app: pages, keys, and what is chosen.

import { ask, chooseName, help, typing } from "/static/review/dialogs.js";
import { enter, isLocked } from "/static/review/entry.js";
import { Grid } from "/static/review/grid.js";
import { PointMap } from "/static/review/map.js";
import { mergeInto, rename, shown } from "/static/review/names.js";
import { large, LOST, placeholder, thumb } from "/static/review/pictures.js";
import { inWords, questions, splitting } from "/static/review/questions.js";
import { refitting } from "/static/review/refit.js";
import { categoryOf, decide, get, onChange, refresh, REVIEWED, state, toast, watch } from "/static/review/state.js";
import { byId, counted, isolated, make, percent, thousands } from "/static/shared/shared.js";

const view = byId("view");
let page = { keys: [], update: async () => {}, close: () => {} };
let order = "doubt";
let trail = []; // rows of the last grid, for next and previous

const ALWAYS = [
  ["?", "this list", () => help([...page.keys, ...ALWAYS].filter(([key]) => key))],
  ["Ctrl-Z", "undo", () => decide({ do: "undo" })],
  ["Ctrl-Shift-Z", "redo", () => decide({ do: "redo" })],
  ["h", "overview", () => { location.hash = "#/"; }],
  ["q", "next question", () => { location.hash = "#/next"; }],
  ["v", "map", () => { location.hash = "#/map"; }],
];

// Pages

function overview() {
  const queue = make("ol", { className: "queue" });
  const cards = make("div", { className: "tiles-of" });
  const intro = make("p", { className: "intro" });
  const unseen = make("p", { className: "small" });
  const lost = make("p", { className: "warning", role: "status" });
  const refit = make("a", { href: "#/refit", textContent: "Refit the categories to your decisions" });
  view.replaceChildren(
    make("section", {}, make("h2", { textContent: "Next" }), intro, lost, queue, unseen, make("p", { className: "more" }, refit)),
    make("section", {}, make("h2", { textContent: "Categories" }), cards),
  );
  const update = async () => {
    cards.replaceChildren(...[...state.categories].sort((a, b) => b.size - a.size || a.id - b.id).map(card));
    unseen.textContent = accepted(state.unseen.overall);
    lost.textContent = gone(state.lost);
    lost.hidden = !lost.textContent;
    const { items } = await get("/api/queue");
    intro.textContent = items.length ? "Questions that settle the most images per second come first. Each is one screen, answered by one key." : state.settled < state.images ? "Nothing is left to ask." : "Every image is settled. Sort again, export, or look at any category.";
    queue.replaceChildren(...items.slice(0, 5).map((item, at) => {
      const [what, why] = inWords(item);
      return make("li", {}, make("a", { href: at ? `#/next/${at}` : "#/next" }, what, make("span", { className: "why", textContent: why })));
    }));
  };
  const walk = (step) => {
    const links = [...view.querySelectorAll("a")];
    const at = links.indexOf(document.activeElement);
    links[Math.min(links.length - 1, Math.max(0, at + step))]?.focus();
  };
  return { title: "Overview", update, close() {}, keys: [["j", "next line", () => walk(1)], ["k", "previous line", () => walk(-1)], ["Enter", "open it"], ["f", "refit the categories to your decisions", () => { location.hash = "#/refit"; }]] };
}

/** Say how good what was accepted unseen is, as far as audits tell. */
function accepted({ images, sampled, low, high }) {
  if (!images) return "";
  const known = sampled ? `${percent(low)} to ${percent(high)} of them are right, by a sample of ${thousands(sampled)}.` : "No sample of them has been checked yet.";
  return `${counted(images, "image")} accepted unseen: ${known}`;
}

/** Say which files are not what was sorted. */
function gone({ changed, missing, unreadable, files }) {
  const count = changed + missing + unreadable;
  if (!count) return "";
  const parts = [[changed, "changed"], [missing, "missing"], [unreadable, "unreadable"]].filter(([n]) => n).map(([n, what]) => `${thousands(n)} ${what}`);
  const names = `${files.slice(0, 3).join(", ")}${count > 3 ? ` and ${thousands(count - 3)} more` : ""}`;
  return `${counted(count, "file")} ${count === 1 ? "is" : "are"} not what was sorted: ${parts.join(", ")} (${names}). Nothing can be decided about ${count === 1 ? "it" : "them"}. Put the earlier files back, or run sortal discover again.`;
}

function card(category) {
  const kind = category.kind;
  const done = category.size ? category.settled / category.size : 1;
  const bar = make("i");
  bar.style.width = `${100 * done}%`;
  const facts = [counted(category.size, "image"), `${percent(done)} settled`, ...(category.unsure ? [`${thousands(category.unsure)} unsure`] : []), ...(category.confidence === null ? [] : [`${percent(category.confidence)} sure`]), ...(category.lost ? [`${thousands(category.lost)} not what was sorted`] : [])];
  return make(
    "a",
    { className: "panel", href: `#/category/${category.id}` },
    make("div", { className: "top" }, make("h3", {}, shown(category)), make("span", { className: `badge ${kind}`, textContent: kind })),
    make("p", { className: "small", textContent: facts.join(" · ") }),
    make("div", { className: "strip" }, ...category.typical.slice(0, 8).map((row) => thumb(row))),
    make("div", { className: "meter" }, bar),
  );
}

/** The grid of one category with its heading and its tools. */
async function pane(id, { other = null } = {}) {
  const title = make("h1");
  const facts = make("span", { className: "soft" });
  const count = make("span", { className: "chosen", role: "status" });
  const select = make("select", { ariaLabel: "Order" }, make("option", { value: "doubt", textContent: "Least sure first" }), make("option", { value: "typical", textContent: "Most typical first" }));
  select.value = order;
  const load = () => get(`/api/category/${id}?order=${select.value}`);
  const grid = new Grid(await load(), { changed: () => tell(), open: (row) => { if (row !== undefined) { trail = grid.data.rows; location.hash = `#/image/${row}`; } } });
  const chosen = () => [...grid.chosen];
  // About what this grid shows; afterwards nothing is chosen, so that the next decision is not about the same images.
  const act = async (action) => { if (await decide(action, grid.data.version)) grid.choose([]); };
  const need = () => { if (!grid.chosen.size) toast("Choose images first: click, drag, or the arrow keys and space."); return grid.chosen.size > 0; };
  const tell = () => { count.textContent = grid.chosen.size ? `${thousands(grid.chosen.size)} of ${thousands(grid.data.rows.length)} chosen` : `${counted(grid.data.rows.length, "image")}`; };
  const actions = {
    confirm: async () => need() && act({ do: "accept", rows: chosen() }),
    confirmPage: async () => {
      const [first, last] = grid.seen();
      const rows = grid.data.rows.slice(first, last + 1).filter((row, at) => !grid.chosen.has(row) && !grid.data.labelled[first + at] && grid.canChoose(row));
      if (rows.length) await decide({ do: "accept", rows }, grid.data.version);
    },
    confirmAll: async () => {
      if (await ask(`Confirm all ${counted(grid.data.rows.length, "image")} of ${categoryOf(id).name}?`, "Confirm", "Cancel")) await act({ do: "accept category", category: id });
    },
    move: async () => {
      if (!need()) return;
      const to = other ?? (await chooseName(`Move ${counted(grid.chosen.size, "image")} to`, { without: [id] }));
      if (!to) return;
      const rows = chosen();
      await act(to.id === undefined ? { do: "create", rows, name: to.name } : { do: "move", rows, category: to.id });
    },
    reject: async () => need() && act({ do: "reject", rows: chosen(), category: id }),
    split: async () => {
      if (!need()) return;
      const to = await chooseName(`Split ${counted(grid.chosen.size, "image")} off as`, { existing: false });
      if (to) await act({ do: "split", rows: chosen(), name: to.name });
    },
    rename: async () => { moveTo(await rename(id)); },
    propose: async () => { location.hash = `#/split/${id}`; },
    beside: async () => {
      const to = await chooseName(`Show ${categoryOf(id).name} beside`, { without: [id], create: "" });
      if (to) location.hash = `#/pair/${id}/${to.id}`;
    },
    merge: async () => {
      const to = await chooseName(`Merge ${categoryOf(id).name} into`, { without: [id], create: "" });
      if (to) moveTo(await mergeInto(id, to.id));
    },
  };
  const moveTo = (to) => { if (to !== null && to !== id) location.hash = `#/category/${to}`; };
  const button = (text, key, what, primary = false) => {
    const works = !other || ["c", "m", "x"].includes(key); // side by side, the others have no key
    const made = make("button", { type: "button", className: primary ? "primary" : "" }, text, works ? make("kbd", { textContent: key, ariaHidden: "true" }) : null);
    made.addEventListener("click", async () => { await actions[what](); grid.element.focus({ preventScroll: true }); });
    return made;
  };
  select.addEventListener("change", async () => { order = select.value; grid.show(await load()); });
  const element = make(
    "section",
    {},
    make("div", { className: "head" }, title, facts),
    make("div", { className: "sticky", role: "toolbar", ariaLabel: "Decisions" }, count, select, button("Confirm page", "a", "confirmPage", true), button("Confirm", "c", "confirm"), button("Move", "m", "move"), button("Not this", "x", "reject"), button("Split off", "s", "split"), button("Propose a split", "S", "propose"), button("Rename", "r", "rename"), button("Merge", "g", "merge"), button("Confirm all", "Shift-A", "confirmAll"), ...(other ? [] : [button("Beside", "p", "beside")])),
    grid.element,
  );
  tell();
  const update = async () => {
    const own = categoryOf(id);
    if (!own) return false;
    title.replaceChildren(shown(own));
    const unseen = state.unseen.categories[id];
    facts.textContent = `${own.kind} · ${percent(own.size ? own.settled / own.size : 1)} settled${unseen ? ` · ${accepted(unseen)}` : ""}`;
    const data = await load();
    if (data.version >= grid.data.version) grid.show(data); // not an older answer that came late
    return true;
  };
  return { element, grid, actions, update, close: () => grid.close() };
}

async function category(id) {
  if (!categoryOf(id)) return missing();
  const one = await pane(id);
  view.replaceChildren(one.element);
  one.grid.element.focus({ preventScroll: true });
  const step = (by) => {
    const open = state.categories.filter((each) => each.settled < each.size).sort((a, b) => b.size - b.settled - (a.size - a.settled));
    const all = (open.length ? open : state.categories).map((each) => each.id);
    const at = all.indexOf(id);
    location.hash = `#/category/${all[(at + by + all.length) % all.length] ?? all[0]}`;
  };
  const keys = [
    ["a", "confirm all in view but the chosen", one.actions.confirmPage],
    ["c", "confirm the chosen", one.actions.confirm],
    ["m", "move the chosen", one.actions.move],
    ["x", "not this: out of the category", one.actions.reject],
    ["s", "split the chosen off", one.actions.split],
    ["S", "propose a split", one.actions.propose],
    ["r", "rename", one.actions.rename],
    ["g", "merge into another", one.actions.merge],
    ["A", "confirm the whole category", one.actions.confirmAll],
    ["]", "next category to settle", () => step(1)],
    ["[", "previous one", () => step(-1)],
    ["p", "beside another category", one.actions.beside],
    ["arrows, space", "walk and choose"],
    ["Shift-arrows, Shift-click", "choose a range"],
    ["e", "choose all in view", () => { const [first, last] = one.grid.seen(); one.grid.choose(one.grid.data.rows.slice(first, last + 1)); }],
    ["Ctrl-A, Escape", "choose all, none"],
    ["Enter, double click", "look at an image"],
  ];
  const update = async () => { if (!(await one.update())) { toast("This category is gone."); location.hash = "#/"; } };
  return { title: categoryOf(id).name, keys, update, close: one.close };
}

async function pair(left, right) {
  if (!categoryOf(left) || !categoryOf(right) || left === right) return missing();
  const panes = [await pane(left, { other: { id: right } }), await pane(right, { other: { id: left } })];
  view.replaceChildren(make("div", { className: "two" }, ...panes.map((each) => each.element)));
  const active = () => panes[panes[1].element.contains(document.activeElement) || (!panes[0].grid.chosen.size && panes[1].grid.chosen.size) ? 1 : 0];
  panes[0].grid.element.focus({ preventScroll: true });
  const keys = [
    ["m", "move the chosen to the other side", () => active().actions.move()],
    ["c", "confirm the chosen", () => active().actions.confirm()],
    ["x", "not this", () => active().actions.reject()],
    ["g", "merge the two", async () => { const to = await mergeInto(right, left); if (to !== null) location.hash = `#/category/${to}`; }],
    ["n", "different: never ask to merge them", () => decide({ do: "keep", categories: [left, right] })],
  ];
  const update = async () => { for (const each of panes) if (!(await each.update())) { location.hash = "#/"; return; } };
  return { title: "Two categories", keys, update, close: () => panes.forEach((each) => each.close()) };
}

/** The map, and beside it the images inside the lasso. */
async function map() {
  const count = make("span", { className: "chosen", role: "status" });
  const grid = new Grid({ rows: [], confidence: [], reviewed: [], labelled: [], lost: [] }, { open: (row) => { if (row !== undefined) { trail = grid.data.rows; location.hash = `#/image/${row}`; } } });
  const points = new PointMap({ chosen: (rows) => list(rows), open: (row) => { trail = points.data.rows; location.hash = `#/image/${row}`; } });
  const list = (rows) => {
    const at = new Map(points.data.rows.map((row, index) => [row, index]));
    const column = (name) => rows.map((row) => points.data[name][at.get(row)]);
    grid.show({ rows, confidence: column("confidence"), reviewed: column("reviewed"), labelled: column("labelled"), lost: column("lost") });
    points.light(rows);
    const shown = points.data.rows.length < state.images ? ` A sample of ${thousands(points.data.rows.length)} of ${thousands(state.images)} is shown.` : "";
    count.textContent = rows.length ? `${counted(rows.length, "image")} in the lasso` : `Draw around images to choose them.${points.data.rows.length ? shown : ""}`;
  };
  const act = (action) => decide(action, points.data.version);
  const wanted = () => (grid.chosen.size ? [...grid.chosen] : grid.data.rows.filter((row) => grid.canChoose(row)));
  const some = () => { if (!wanted().length) toast("Draw around images first."); return wanted().length > 0; };
  const actions = {
    confirm: async () => some() && act({ do: "accept", rows: wanted() }),
    move: async () => {
      if (!some()) return;
      const rows = wanted();
      const to = await chooseName(`Move ${counted(rows.length, "image")} to`);
      if (to) await act(to.id === undefined ? { do: "create", rows, name: to.name } : { do: "move", rows, category: to.id });
    },
    split: async () => {
      if (!some()) return;
      const at = new Map(points.data.rows.map((row, index) => [row, points.data.category[index]]));
      const counts = new Map();
      for (const row of wanted()) counts.set(at.get(row), (counts.get(at.get(row)) ?? 0) + 1);
      const [own] = [...counts].sort((a, b) => b[1] - a[1])[0];
      const rows = wanted().filter((row) => at.get(row) === own);
      const to = await chooseName(`Split ${counted(rows.length, "image")} off ${categoryOf(own).name} as`, { existing: false });
      if (to) await act({ do: "split", rows, name: to.name });
    },
  };
  const select = make("select", { ariaLabel: "Colour by" }, ...["category", "status", "confidence", "reviewed"].map((value) => make("option", { value, textContent: `By ${value}` })));
  select.addEventListener("change", () => points.colourBy(select.value));
  const button = (text, key, what) => {
    const made = make("button", { type: "button" }, text, make("kbd", { textContent: key, ariaHidden: "true" }));
    made.addEventListener("click", () => actions[what]());
    return made;
  };
  view.replaceChildren(make("div", { className: "with-map" }, points.element, make("section", {}, make("div", { className: "sticky", role: "toolbar", ariaLabel: "Decisions" }, select, button("Confirm", "c", "confirm"), button("Move", "m", "move"), button("Split off", "s", "split"), count), grid.element)));
  list([]);
  const update = async () => {
    points.show(await get("/api/map"));
    const there = new Set(points.data.rows);
    list(grid.data.rows.filter((row) => there.has(row)));
  };
  const keys = [
    ["c", "confirm those in the lasso, or the chosen of them", actions.confirm],
    ["m", "move them", actions.move],
    ["s", "split them off their category", actions.split],
    ["drag", "draw a lasso"],
    ["Alt-drag, arrows", "pan"],
    ["wheel, + −", "zoom"],
  ];
  return { title: "Map", keys, update, close() { points.close(); grid.close(); } };
}

async function image(row) {
  const data = await get(`/api/images?rows=${row}`).catch(() => null);
  if (!data) return missing();
  const [facts, similar, beside] = [make("dl"), make("div"), make("div", { className: "strip" })];
  view.replaceChildren(
    make(
      "div",
      { className: "large" },
      data.lost[0] ? placeholder(LOST[data.lost[0]]) : large(row, { className: "main", alt: data.file[0] }),
      make("div", {}, make("h2", {}, isolated(data.file[0])), facts, make("h3", { textContent: "Move it to a similar category" }), similar, make("h3", { textContent: "Most similar images" }), beside),
    ),
  );
  const update = async () => {
    const now = await get(`/api/images?rows=${row}`);
    const own = categoryOf(now.category[0]);
    const rows = [["Category", own?.name ?? ""], ["Confidence", percent(now.confidence[0])], ["Reviewed", now.labelled[0] ? "labelled" : REVIEWED[now.reviewed[0]]]];
    facts.replaceChildren(...rows.map(([name, value]) => make("div", {}, make("dt", { textContent: name }), make("dd", {}, isolated(value)))));
    here = now;
    const near = await get(`/api/near/${row}`);
    if (now.lost[0]) similar.replaceChildren(make("p", { className: "soft", textContent: "Nothing can be decided about it before the earlier file is back." }));
    else similar.replaceChildren(...[...near.known, ...near.new].filter((id) => id !== now.category[0]).map((id) => {
      const button = make("button", { type: "button" }, isolated(categoryOf(id)?.name ?? ""), make("span", { className: `badge ${categoryOf(id)?.kind}`, textContent: categoryOf(id)?.kind ?? "" }));
      button.addEventListener("click", () => decide({ do: "move", rows: [row], category: id }));
      return button;
    }));
    beside.replaceChildren(...near.rows.map((each, at) => make("a", { href: `#/image/${each}`, title: categoryOf(near.category[at])?.name ?? "" }, thumb(each, { alt: categoryOf(near.category[at])?.name ?? "" }))));
  };
  let here = data;
  const step = (by) => {
    const at = trail.indexOf(row);
    if (at >= 0 && trail[at + by] !== undefined) location.hash = `#/image/${trail[at + by]}`;
  };
  const keys = [
    ["→", "next image", () => step(1)],
    ["←", "previous image", () => step(-1)],
    ["c", "confirm", () => decide({ do: "accept", rows: [row] })],
    ["m", "move", async () => { const to = await chooseName("Move to", { without: here.category }); if (to) await decide(to.id === undefined ? { do: "create", rows: [row], name: to.name } : { do: "move", rows: [row], category: to.id }); }],
    ["x", "not this", () => decide({ do: "reject", rows: [row], category: here.category[0] })],
    ["Escape", "back to its category", () => { location.hash = `#/category/${here.category[0]}`; }],
  ];
  return { title: data.file[0], keys, update, close() {} };
}

function missing() {
  view.replaceChildren(make("p", { className: "state" }, "There is no such page. ", make("a", { href: "#/", textContent: "Back to the overview" })));
  return { title: "Missing", keys: [], update: async () => {}, close() {} };
}

// Frame

let routes = 0;

async function route() {
  if (isLocked()) return;
  if (location.hash === "#view") return view.focus(); // the link that skips the bar
  const own = ++routes;
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  const numbers = rest.map(Number);
  page.close();
  page = { keys: [], update: async () => {}, close() {} };
  scrollTo(0, 0);
  try {
    const made = name === "" ? overview() : name === "category" ? await category(numbers[0]) : name === "pair" ? await pair(...numbers) : name === "image" ? await image(numbers[0]) : name === "map" ? await map() : name === "next" ? await questions(view, numbers[0]) : name === "split" ? await splitting(view, numbers[0]) : name === "refit" ? await refitting(view) : missing();
    if (own !== routes) return made.close(); // another page was asked for meanwhile
    page = made;
    await page.update();
    document.title = `${made.title} · Sortal`;
  } catch (error) {
    if (!isLocked()) view.replaceChildren(make("p", { className: "state", textContent: error.message }));
  }
}

function frame() {
  const share = state.images ? state.settled / state.images : 1;
  const settled = state.categories.filter((each) => each.settled === each.size).length;
  const bar = document.querySelector(".progress");
  bar.querySelector("i").style.width = `${100 * share}%`;
  bar.querySelector("span").textContent = `${thousands(state.settled)} of ${counted(state.images, "image")} settled, ${settled} of ${state.categories.length} categories`;
  bar.ariaValueMax = String(state.images);
  bar.ariaValueNow = String(state.settled);
  byId("run").textContent = state.run;
  for (const what of ["undo", "redo"]) {
    const button = byId(what);
    button.disabled = state[what] === null;
    button.title = state[what] === null ? `Nothing to ${what}` : `${what === "undo" ? "Undo" : "Redo"}: ${state[what]}`;
  }
}

const ARROWS = { ArrowRight: "→", ArrowLeft: "←" };
addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.repeat || typing()) return;
  const command = event.ctrlKey || event.metaKey;
  const key = command ? (event.key.toLowerCase() === "z" ? (event.shiftKey ? "Ctrl-Shift-Z" : "Ctrl-Z") : null) : ARROWS[event.key] ?? event.key;
  const found = [...page.keys, ...ALWAYS].find(([name, , action]) => name === key && action);
  if (!found || event.altKey) return;
  event.preventDefault();
  found[2]();
});
byId("undo").addEventListener("click", () => decide({ do: "undo" }));
byId("redo").addEventListener("click", () => decide({ do: "redo" }));
byId("help-button").addEventListener("click", () => ALWAYS[0][2]());
addEventListener("hashchange", route);
onChange(async () => { frame(); await page.update(); });

enter().then((entered) => entered && refresh().then(route).then(watch)).catch((error) => view.replaceChildren(make("p", { className: "state", textContent: error.message })));
