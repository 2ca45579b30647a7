// One question after another, each on one screen and answered by one key.

import { chooseName } from "/static/review/dialogs.js";
import { Grid } from "/static/review/grid.js";
import { rename, shown, unnamed } from "/static/review/names.js";
import { large } from "/static/review/pictures.js";
import { categoryOf, decide, get, toast } from "/static/review/state.js";
import { counted, isolated, make, percent, thousands } from "/static/shared/shared.js";

const SCREENS = { grow, merge, split, audit, page, image };
const later = new Set(); // questions that were put off
const keyOf = (item) => JSON.stringify([item.kind, item.categories, item.images, item.rows.flat().slice(0, 3)]);

/** Say in words what a question is about. */
export function inWords(item) {
  const [first, second] = item.categories.map((id) => shown(categoryOf(id)));
  const words = {
    grow: () => [make("span", {}, "Confirm ", first), `${counted(item.images, "image")} open`],
    merge: () => [make("span", {}, "Are ", first, " and ", second, " the same?"), `${percent(item.likely)} likely`],
    split: () => [make("span", {}, "Is ", first, " two classes?"), `${percent(item.likely)} likely`],
    audit: () => [make("span", {}, "Check a sample of what was accepted unseen"), counted(item.images, "image")],
    page: () => [make("span", {}, "Look at doubtful images of ", first), counted(item.images, "image")],
    image: () => [make("span", {}, "Sort doubtful images one by one"), counted(item.images, "image")],
  };
  return words[item.kind]();
}

/** Images one by one are a question each, so that one can be put off without the others. */
const single = (item) => (item.kind === "image" ? item.rows[0].map((row) => ({ ...item, rows: [[row]] })) : [item]);

/**
 * Ask the questions that are left, in the order of the server, after the one at this place of it.
 * A question stays on the screen as long as it is still asked: what other pages decide does not swap it under a finger.
 */
export async function questions(view, start = 0) {
  const body = make("div", { className: "question" });
  view.replaceChildren(body);
  let screen = { keys: [], close() {} };
  let asked = null; // the key of the question on the screen
  let updates = 0;
  const at = { version: -1, held: false }; // what the screen is about; nothing is drawn while it is held
  const made = { title: "Next question", keys: [], update, close: () => screen.close() };
  async function update() {
    if (at.held) return;
    const own = ++updates;
    const { items, version } = await get("/api/queue");
    if (own !== updates || at.held) return; // a later one is under way
    const every = items.flatMap(single);
    const left = every.filter((item) => !later.has(keyOf(item)));
    if (asked !== null && left.some((item) => keyOf(item) === asked)) {
      at.version = version;
      return;
    }
    const item = (start ? single(items[start] ?? items[0])[0] : null) ?? left[0];
    start = 0;
    screen.close();
    [screen, asked, made.keys] = [{ keys: [], close() {} }, null, []];
    if (!item) {
      const again = make("button", { type: "button", textContent: "Ask again what was put off" });
      again.addEventListener("click", () => { later.clear(); update(); });
      body.replaceChildren(make("p", { className: "state" }, items.length ? "Nothing else is left to ask. " : "Nothing is left to ask. ", ...(items.length ? [again] : [make("a", { href: "#/", textContent: "Back to the overview" })])));
      return;
    }
    at.version = version;
    const put = async () => { later.add(keyOf(item)); asked = null; await update(); };
    const next = async () => { asked = null; at.held = false; await update(); };
    const drawn = await SCREENS[item.kind](body, item, at, next);
    if (own !== updates) return drawn.close();
    [screen, asked] = [drawn, keyOf(item)];
    made.keys = [...screen.keys, ["u", "later: not sure", put], ...(item.categories.length === 1 ? [["o", "open the category", () => { location.hash = `#/category/${item.categories[0]}`; }]] : [])];
    offer(body, made.keys);
    body.querySelector("h1")?.focus({ preventScroll: true });
  }
  return made;
}

/** Offer the answers as buttons, each with its key. */
export function offer(body, keys) {
  body.querySelector(".answers")?.remove();
  body.append(make("div", { className: "answers", role: "toolbar", ariaLabel: "Answers" }, ...keys.map(([key, what, action, name], at) => {
    const text = name ? isolated(what) : `${what[0].toUpperCase()}${what.slice(1)}`;
    const button = make("button", { type: "button", className: at ? "" : "primary" }, text, make("kbd", { textContent: key, ariaHidden: "true" }));
    button.addEventListener("click", action);
    return button;
  })));
}

function headline(title, ...small) {
  return make("div", { className: "head" }, make("h1", { tabIndex: -1 }, ...title), make("p", { className: "soft" }, ...small));
}

const gridOf = async (rows, changed) => new Grid(await get(`/api/images?rows=${rows.join(",")}`), { changed });

/** Confirm a category: pages from the surest to the least sure, each answered by yes, mostly or no. */
async function grow(body, item, at, next) {
  const [id] = item.categories;
  let [answers, grids, page, busy] = ["", [], [], true]; // a key pressed twice is one answer
  let bar = null; // the answers, once they are offered
  const pages = []; // what was shown and chosen, for each answer
  const chosen = () => grids.flatMap((grid) => [...grid.chosen]);
  const once = (action) => async () => {
    if (busy) return;
    busy = true;
    try { await action(); } catch (error) { toast(error.message, true); } finally { busy = false; }
  };
  const finish = async () => {
    const [seen, wrong] = [pages.flatMap((each) => each.rows), pages.flatMap((each) => each.wrong)];
    at.held = true; // the name is asked while its pictures are still there
    const done = await decide({ do: "grow", category: id, answers, shown: seen, wrong }, at.version);
    if (done && /[ym]/.test(answers) && categoryOf(id) && unnamed(categoryOf(id))) await rename(id, `Name ${categoryOf(id).name}`);
    await next();
  };
  /** Show the page that follows from these answers; they count once it is there. */
  const draw = async (given) => {
    const found = await get(`/api/grow/${id}?answers=${given}`);
    if (found.version !== at.version) { toast("Something has changed meanwhile. Look again.", true); return next(); }
    answers = given;
    if (found.number === null) return finish();
    const told = make("span", { role: "status" });
    const tell = () => { told.textContent = chosen().length ? `${counted(chosen().length, "image")} chosen as wrong.` : "Choose those that are wrong, if there are a few."; };
    const before = grids;
    grids = [];
    grids = await Promise.all([found.typical, found.page].filter((rows) => rows.length).map((rows) => gridOf(rows, tell)));
    before.forEach((grid) => grid.close());
    const where = `Page ${thousands(found.number + 1)} of ${thousands(found.pages)}, from the surest to the least sure, of ${counted(found.open, "open image")}.`;
    const so = answers ? ` So far ${thousands(found.seen)} seen and ${thousands(found.unseen)} unseen would be accepted.` : " If these are right, so are those before them, which are accepted unseen.";
    if (page.length) bar = body.querySelector(".answers"); // that of this question
    body.replaceChildren(
      headline(["Are these all ", shown(categoryOf(id)), "?"], where, so),
      make("p", { className: "small" }, told),
      ...(found.typical.length && found.page.length ? [make("h2", { textContent: "The surest" }), grids[0].element, make("h2", { textContent: "At the edge" }), grids[1].element] : [grids[0].element]),
      ...(bar ? [bar] : []),
    );
    page = [...found.typical, ...found.page];
    tell();
    if (bar) body.querySelector("h1").focus({ preventScroll: true });
  };
  const answer = (letter) => once(async () => {
    pages.push({ rows: page, wrong: chosen() });
    try { await draw(answers + letter); } catch (error) { pages.pop(); throw error; }
  });
  const back = async () => {
    if (!answers) return decide({ do: "undo" });
    await draw(answers.slice(0, -1));
    pages.pop();
  };
  const keys = [
    ["y", "yes, all but the chosen", answer("y")],
    ["m", "most: at most a quarter is wrong", answer("m")],
    ["n", "no, more are wrong", answer("n")],
    ["t", "take what is sure so far", once(finish)],
    ["r", "name it", () => rename(id)],
    ["Ctrl-Z", "back", once(back)],
  ];
  await draw("");
  busy = false;
  return { keys, close: () => grids.forEach((grid) => grid.close()) };
}

/** Two groups of images beside each other. */
async function beside(body, title, small, groups) {
  const grids = await Promise.all(groups.map(([, rows]) => gridOf(rows, () => {})));
  body.replaceChildren(headline(title, small), make("div", { className: "two" }, ...groups.map(([name], at) => make("section", {}, make("h2", {}, name), grids[at].element))));
  body.querySelector(".two").style.setProperty("--columns", groups.length);
  return () => grids.forEach((grid) => grid.close());
}

async function merge(body, item, at) {
  const named = item.categories.map((id) => make("span", {}, shown(categoryOf(id)), make("span", { className: "near", textContent: ` · ${counted(categoryOf(id).size, "image")}` })));
  const close = await beside(body, ["Are these the same class?"], `${percent(item.likely)} likely, by their distance, neighbours and confidence.`, named.map((name, side) => [name, item.rows[side]]));
  const keys = [
    ["y", "the same: merge", () => decide({ do: "merge", categories: item.categories }, at.version)],
    ["n", "different: never ask again", () => decide({ do: "keep", categories: item.categories }, at.version)],
  ];
  return { keys, close };
}

async function split(body, item, at) {
  const [id] = item.categories;
  const { parts, version } = await get(`/api/parts/${id}?parts=2`);
  const close = await beside(body, ["Is ", shown(categoryOf(id)), " two classes?"], `${percent(item.likely)} likely. The most typical images of its two parts:`, item.rows.map((rows, part) => [`Part ${part + 1}`, rows]));
  const keys = [
    ["y", "two classes: split", () => splitOff(parts, version)],
    ["n", "one class: never ask again", () => decide({ do: "keep", categories: [id] }, at.version)],
    ["p", "other parts", () => { location.hash = `#/split/${id}`; }],
  ];
  return { keys, close };
}

/** Split a category into parts that were proposed at a version; the first keeps its name. */
async function splitOff(parts, version) {
  let seen = version;
  for (const rows of parts.slice(1)) {
    if (!(await decide({ do: "split", rows }, seen))) return false;
    seen += 1;
  }
  return parts.length > 1;
}

/** Proposals to split a category into two, three or four parts. */
export async function splitting(view, id) {
  const body = make("div", { className: "question" });
  view.replaceChildren(body);
  let [count, close] = [2, () => {}];
  const made = { title: "Split", keys: [], update, close: () => close() };
  async function update() {
    if (!categoryOf(id)) { location.hash = "#/"; return; }
    const { parts, version } = await get(`/api/parts/${id}?parts=${count}`);
    close();
    if (!parts.length) {
      body.replaceChildren(make("p", { className: "state" }, "There are too few images to split. ", make("a", { href: `#/category/${id}`, textContent: "Back" })));
      return;
    }
    close = await beside(body, ["Split ", shown(categoryOf(id)), ` into ${count}`], "What is labelled or confirmed stays in the first part.", parts.map((rows, at) => [`Part ${at + 1} · ${counted(rows.length, "image")}`, rows.slice(0, 60)]));
    made.keys = [
      ["y", "split like this", async () => { if (await splitOff(parts, version)) location.hash = `#/category/${id}`; }],
      ...[2, 3, 4].filter((each) => each !== count).map((each) => [String(each), `${each} parts`, () => { count = each; return update(); }]),
      ["Escape", "back", () => { location.hash = `#/category/${id}`; }],
    ];
    offer(body, made.keys);
  }
  return made;
}

/** A random sample of what was accepted unseen, by category. */
async function audit(body, item, at) {
  const rows = item.rows[0];
  const { category } = await get(`/api/images?rows=${rows.join(",")}`);
  const groups = [...new Set(category)].map((id) => [id, rows.filter((_, index) => category[index] === id)]);
  const grids = await Promise.all(groups.map(([, own]) => gridOf(own, () => {})));
  body.replaceChildren(
    headline(["Are these right?"], `A random sample of what was accepted unseen. Choose those that are wrong; a category with too many is opened again.`),
    ...groups.flatMap(([id], group) => [make("h2", {}, shown(categoryOf(id))), grids[group].element]),
  );
  const keys = [["y", "all but the chosen are right", () => decide({ do: "audit", rows, wrong: grids.flatMap((grid) => [...grid.chosen]) }, at.version)]];
  return { keys, close: () => grids.forEach((grid) => grid.close()) };
}

/** A page of what was left open. */
async function page(body, item, at) {
  const [id] = item.categories;
  const rows = item.rows[0];
  const grid = await gridOf(rows, () => {});
  body.replaceChildren(headline(["Which of these are not ", shown(categoryOf(id)), "?"], "Choose them; they go to the most similar other category, and the rest is confirmed."), grid.element);
  const keys = [
    ["y", "confirm all but the chosen", () => decide({ do: "page", category: id, rows, wrong: [...grid.chosen] }, at.version)],
    ["n", "none of them", () => decide({ do: "page", category: id, rows, wrong: rows }, at.version)],
    ["r", "name it", () => rename(id)],
  ];
  return { keys, close: () => grid.close() };
}

/** One image, and a key for each category that it may belong to. */
async function image(body, item, at) {
  const row = item.rows[0][0];
  const [near, { category, confidence, file }] = await Promise.all([get(`/api/near/${row}`), get(`/api/images?rows=${row}`)]);
  const ids = [...new Set([category[0], ...near.known, ...near.new])].slice(0, 9);
  const keys = ids.map((id, index) => [String(index + 1), categoryOf(id)?.name ?? "", () => decide(id === category[0] ? { do: "accept", rows: [row] } : { do: "move", rows: [row], category: id }, at.version), true]);
  keys.push(["m", "another", async () => {
    const to = await chooseName("Move to", { without: [] });
    if (to) await decide(to.id === undefined ? { do: "create", rows: [row], name: to.name } : { do: "move", rows: [row], category: to.id }, at.version);
  }]);
  body.replaceChildren(
    headline(["Which class is this?"], `${percent(confidence[0])} sure of `, isolated(categoryOf(category[0])?.name ?? ""), `. ${thousands(item.images)} left.`),
    large(row, { className: "one", alt: file[0] }),
  );
  return { keys, close() {} };
}
