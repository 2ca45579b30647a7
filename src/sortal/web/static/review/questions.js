// One question after another, each on one screen and answered by one key.

import { Grid } from "/static/review/grid.js";
import { bind, labelOf } from "/static/review/keys.js";
import { askMove, moving, rename, shown } from "/static/review/names.js";
import { large } from "/static/review/pictures.js";
import { Growth, nextQuestion, questionKey } from "/static/review/queue.js";
import { categoryOf, decide, describe, get, goTo, state, toast } from "/static/review/state.js";
import { folded, shortened } from "/static/review/toolbar.js";
import { button, isolated, make } from "/static/shared/dom.js";
import { counted, percent, thousands } from "/static/shared/text.js";

const SCREENS = { grow, merge, split, audit, page, image, label, other };
const ASIDE = "fits nowhere"; // the category of images that a person sets aside
const PART_SHOWN = 60; // images of a part that is proposed
const later = new Set(); // keys of questions that were put off

/** Say in words what a question is about, and why. */
export function inWords({ kind, categories, images, likely }) {
  const [first, second] = categories.map((id) => shown(categoryOf(id)));
  const [title, why] = {
    grow: [["Confirm ", first], `${counted(images, "image")} open`],
    merge: [["Are ", first, " and ", second, " the same?"], `${percent(likely)} likely`],
    split: [["Is ", first, " two classes?"], `${percent(likely)} likely`],
    audit: [["Check a sample of what was accepted unseen"], counted(images, "image")],
    page: [["Look at doubtful images of ", first], counted(images, "image")],
    image: [["Sort doubtful images one by one"], counted(images, "image")],
    label: [["Check labels that look wrong"], counted(images, "image")],
    other: [["Look at images that fit nowhere"], counted(images, "image")],
  }[kind];
  return [make("span", {}, ...title.filter(Boolean)), why];
}

/**
 * Ask the questions that are left, in the order of the server, after the one at this place of it.
 * A question stays on the screen as long as it is still asked: what other pages decide does not swap it under a finger.
 */
export async function questions(view, start = 0) {
  const body = make("div", { className: "question" });
  view.replaceChildren(body);
  let screen = { keys: [], close() {} };
  let asked = null; // the key of the question on the screen
  let last = null; // its kind, or that of the one before
  let updates = 0;
  const at = { version: -1, held: false }; // what the screen is about; nothing is drawn while it is held
  const made = { title: "Next question", keys: [], update, close: () => screen.close() };

  async function update() {
    if (at.held) return;
    const own = ++updates;
    const { items, version } = await get("/api/queue");
    if (own !== updates || at.held) return; // a later one is under way
    const item = nextQuestion(items, { later, asked, start, last });
    at.version = version;
    if (item && questionKey(item) === asked) return;
    start = 0;
    screen.close();
    [screen, asked, made.keys] = [{ keys: [], close() {} }, null, []];
    if (!item) return showEnd(items.length);
    const drawn = await SCREENS[item.kind](body, item, at, next);
    if (own !== updates) return drawn.close();
    [screen, asked, last] = [drawn, questionKey(item), item.kind];
    const open = item.categories.length === 1 ? () => goTo(`category/${item.categories[0]}`) : undefined;
    const others = bind("question", { later: () => putOff(item), open }).filter(({ action }) => action);
    made.keys = [...screen.keys, ...others];
    offer(body, made.keys);
    body.querySelector("h1")?.focus({ preventScroll: true });
  }

  function putOff(item) {
    later.add(questionKey(item));
    return next();
  }

  function next() {
    [asked, at.held] = [null, false];
    return update();
  }

  function showEnd(putOffCount) {
    const again = () => {
      later.clear();
      return update();
    };
    const text = putOffCount ? "Nothing else is left to ask. " : "Nothing is left to ask. ";
    const way = putOffCount
      ? button("Ask again what was put off", again)
      : make("a", { href: "#/", textContent: "Back to the overview" });
    body.replaceChildren(make("p", { className: "state" }, text, way));
  }

  return made;
}

/** Offer the answers as buttons, each with its key. */
export function offer(body, keys) {
  body.querySelector(".answers")?.remove();
  const answers = keys.map(({ key, what, action, isName }, at) => {
    const text = isName ? isolated(what) : shortened(`${what[0].toUpperCase()}${what.slice(1)}`);
    const kbd = make("kbd", { textContent: labelOf(key), ariaHidden: "true" });
    return button(text, action, { className: at ? "" : "primary" }, kbd);
  });
  body.append(make("div", { className: "answers", role: "toolbar", ariaLabel: "Answers" }, ...folded(answers, 3)));
}

export function headline(title, ...small) {
  const heading = make("h1", { tabIndex: -1 }, ...title);
  return make("div", { className: "head" }, heading, make("p", { className: "soft" }, ...small));
}

const gridOf = async (rows, changed) => new Grid(await describe(rows), { changed });
const gridsOf = (groups) => Promise.all(groups.map((rows) => gridOf(rows)));
const closeAll = (grids) => () => grids.forEach((grid) => grid.close());

/** Confirm a category: pages from the surest to the least sure, each answered by yes, mostly or no. */
async function grow(body, item, at, next) {
  const [id] = item.categories;
  let growth = new Growth();
  let [grids, page, busy] = [[], [], true]; // while it is busy, a key pressed twice is one answer
  let bar = null; // the answers, once they are offered
  const chosen = () => grids.flatMap((grid) => [...grid.chosen]);
  const once = (action) => async () => {
    if (busy) return;
    busy = true;
    try {
      await action();
    } catch (error) {
      toast(error.message, true);
    } finally {
      busy = false;
    }
  };
  const finish = async () => {
    const { answers, shown: seen, wrong } = growth;
    at.held = true; // the name is asked while its pictures are still there
    const done = await decide({ do: "grow", category: id, answers, shown: seen, wrong }, at.version);
    const some = [...answers].some((letter) => letter !== state.answers.bad);
    if (done && some && categoryOf(id)?.unnamed) await rename(id, `Name ${categoryOf(id).name}`);
    await next();
  };
  /** Show the page that follows from these answers; they count once it is there. */
  const draw = async (given) => {
    const found = await get(`/api/grow/${id}?answers=${given.answers}`);
    if (found.version !== at.version) {
      toast("Something has changed meanwhile. Look again.", true);
      return next();
    }
    growth = given;
    if (found.number === null) return finish();
    const count = make("span", { role: "status" });
    const tell = () => {
      const wrong = chosen().length;
      const hint = "Choose those that are wrong, if there are a few.";
      count.textContent = wrong ? `${counted(wrong, "image")} chosen as wrong.` : hint;
    };
    const before = grids;
    const groups = [found.typical, found.page].filter((rows) => rows.length);
    grids = [];
    grids = await Promise.all(groups.map((rows) => gridOf(rows, tell)));
    before.forEach((grid) => grid.close());
    if (page.length) bar = body.querySelector(".answers"); // that of this question
    const titles = grids.length > 1 ? ["The surest", "At the edge"] : [];
    body.replaceChildren(
      headline(["Are these all ", shown(categoryOf(id)), "?"], ...growthFacts(found, growth.answers)),
      make("p", { className: "small" }, count),
      ...grids.flatMap(({ element }, group) => [
        ...titles.slice(group, group + 1).map((textContent) => make("h2", { textContent })),
        element,
      ]),
      ...(bar ? [bar] : []),
    );
    page = groups.flat();
    tell();
    if (bar) body.querySelector("h1").focus({ preventScroll: true });
  };
  const answer = (letter) => once(() => draw(growth.and(letter, page, chosen())));
  const back = () => (growth.answers ? draw(growth.back()) : decide({ do: "undo" }));
  const keys = bind("grow", {
    all: answer(state.answers.all),
    most: answer(state.answers.most),
    bad: answer(state.answers.bad),
    take: once(finish),
    rename: () => rename(id),
    back: once(back),
  });
  await draw(growth);
  busy = false;
  return { keys, close: () => closeAll(grids)() };
}

/** Say which page is shown, and what follows from the answers. */
function growthFacts({ number, pages, open, seen, unseen }, answers) {
  const place = `Page ${thousands(number + 1)} of ${thousands(pages)}`;
  return [
    `${place}, from the surest to the least sure, of ${counted(open, "open image")}.`,
    answers
      ? ` So far ${thousands(seen)} seen and ${thousands(unseen)} unseen would be accepted.`
      : " If these are right, so are those before them, which are accepted unseen.",
  ];
}

/** Show groups of images beside each other; `groups` are pairs of a title and rows. */
async function showBeside(body, title, small, groups) {
  const grids = await gridsOf(groups.map(([, rows]) => rows));
  const sections = groups.map(([name], at) => make("section", {}, make("h2", {}, name), grids[at].element));
  const two = make("div", { className: "two" }, ...sections);
  two.style.setProperty("--columns", groups.length);
  body.replaceChildren(headline(title, small), two);
  return closeAll(grids);
}

async function merge(body, item, at) {
  const { categories } = item;
  const groups = categories.map((id, side) => {
    const size = make("span", { className: "near", textContent: ` · ${counted(categoryOf(id).size, "image")}` });
    return [make("span", {}, shown(categoryOf(id)), size), item.rows[side]];
  });
  const why = `${percent(item.likely)} likely, by their distance, neighbours and confidence.`;
  const close = await showBeside(body, ["Are these the same class?"], why, groups);
  const keys = bind("merge", {
    yes: () => decide({ do: "merge", categories }, at.version),
    no: () => decide({ do: "keep", categories }, at.version),
  });
  return { keys, close };
}

async function split(body, item, at) {
  const [id] = item.categories;
  const { parts, version } = await get(`/api/parts/${id}?parts=2`);
  const why = `${percent(item.likely)} likely. The most typical images of its two parts:`;
  const groups = item.rows.map((rows, part) => [`Part ${part + 1}`, rows]);
  const close = await showBeside(body, ["Is ", shown(categoryOf(id)), " two classes?"], why, groups);
  const keys = bind("split", {
    yes: () => splitOff(parts, version),
    no: () => decide({ do: "keep", categories: [id] }, at.version),
    parts: () => goTo(`split/${id}`),
  });
  return { keys, close };
}

/** Split a category into parts that were proposed at a version; the first keeps its name. */
async function splitOff(parts, version) {
  let now = version;
  for (const rows of parts.slice(1)) {
    if (!(await decide({ do: "split", rows }, now))) return false;
    now += 1;
  }
  return parts.length > 1;
}

/** Proposals to split a category into two, three or four parts. */
export async function splitting(view, id) {
  const body = make("div", { className: "question" });
  view.replaceChildren(body);
  let [count, close] = [state.part_counts[0], () => {}];
  const made = { title: "Split", keys: [], update, close: () => close() };

  async function update() {
    if (!categoryOf(id)) return goTo("");
    const { parts, version } = await get(`/api/parts/${id}?parts=${count}`);
    close();
    if (!parts.length) {
      const back = make("a", { href: `#/category/${id}`, textContent: "Back" });
      body.replaceChildren(make("p", { className: "state" }, "There are too few images to split. ", back));
      return;
    }
    const groups = parts.map((rows, at) => {
      return [`Part ${at + 1} · ${counted(rows.length, "image")}`, rows.slice(0, PART_SHOWN)];
    });
    const title = ["Split ", shown(categoryOf(id)), ` into ${count}`];
    close = await showBeside(body, title, "What is labelled or confirmed stays in the first part.", groups);
    const [yes, back] = bind("splitting", {
      yes: async () => (await splitOff(parts, version)) && goTo(`category/${id}`),
      back: () => goTo(`category/${id}`),
    });
    const recount = (number) => () => {
      count = number;
      return update();
    };
    const others = state.part_counts.filter((number) => number !== count);
    const counts = others.map((number) => ({ key: String(number), what: `${number} parts`, action: recount(number) }));
    made.keys = [yes, ...counts, back];
    offer(body, made.keys);
  }

  return made;
}

/** A random sample of what was accepted unseen, by category. */
async function audit(body, item, at) {
  const rows = item.rows[0];
  const { category } = await describe(rows);
  const ids = [...new Set(category)];
  const grids = await gridsOf(ids.map((id) => rows.filter((_, index) => category[index] === id)));
  body.replaceChildren(
    headline(
      ["Are these right?"],
      "A random sample of what was accepted unseen. Choose those that are wrong; ",
      "a category with too many is opened again.",
    ),
    ...ids.flatMap((id, group) => [make("h2", {}, shown(categoryOf(id))), grids[group].element]),
  );
  const wrong = () => grids.flatMap((grid) => [...grid.chosen]);
  const keys = bind("audit", { yes: () => decide({ do: "audit", rows, wrong: wrong() }, at.version) });
  return { keys, close: closeAll(grids) };
}

/** A page of what was left open. */
async function page(body, item, at) {
  const [id] = item.categories;
  const rows = item.rows[0];
  const grid = await gridOf(rows);
  const what = "Choose them; they go to the most similar other category, and the rest is confirmed.";
  body.replaceChildren(headline(["Which of these are not ", shown(categoryOf(id)), "?"], what), grid.element);
  const answer = (wrong) => decide({ do: "page", category: id, rows, wrong }, at.version);
  const keys = bind("page", {
    yes: () => answer([...grid.chosen]),
    no: () => answer(rows),
    rename: () => rename(id),
  });
  return { keys, close: () => grid.close() };
}

/** An image whose label looks wrong, beside its class and the one that it looks like. */
async function label(body, item, at) {
  const [row] = item.rows[0];
  const { category, suggested, doubt, file } = await describe([row]);
  const ids = [category[0], suggested[0]];
  const groups = ["Labelled ", "Looks like "].map((what, at) => {
    const name = make("span", {}, what, shown(categoryOf(ids[at])));
    return [name, item.rows[1 + item.categories.indexOf(ids[at])] ?? []];
  });
  const why = `Its label is ${percent(doubt[0])} likely to be wrong. ${thousands(item.images)} left.`;
  const title = ["Is this ", shown(categoryOf(ids[0])), " or ", shown(categoryOf(ids[1])), "?"];
  const close = await showBeside(body, title, why, groups);
  const two = body.querySelector(".two");
  const heading = make("h2", { textContent: "This image" });
  two.prepend(make("section", {}, heading, large(row, { className: "one", alt: file[0], title: file[0] })));
  two.style.setProperty("--columns", 3);
  const keys = bind("label", {
    yes: () => decide({ do: "accept", rows: [row] }, at.version),
    no: () => decide(moving([row], { id: ids[1] }), at.version),
    move: async () => {
      const action = await askMove("Move to", [row], { without: ids });
      if (action) await decide(action, at.version);
    },
  });
  return { keys, close };
}

/** One image, and a key for each category that it may belong to. */
async function image(body, item, at) {
  const row = item.rows[0][0];
  const [near, { category, confidence, file }] = await Promise.all([get(`/api/near/${row}`), describe([row])]);
  const [own] = category;
  const ids = [...new Set([own, ...near.known, ...near.new])].slice(0, 9);
  const take = (id) => (id === own ? { do: "accept", rows: [row] } : moving([row], { id }));
  const keys = ids.map((id, index) => ({
    key: String(index + 1),
    what: categoryOf(id)?.name ?? "",
    action: () => decide(take(id), at.version),
    isName: true,
  }));
  const move = async () => {
    const action = await askMove("Move to", [row]);
    if (action) await decide(action, at.version);
  };
  const name = isolated(categoryOf(own)?.name ?? "");
  body.replaceChildren(
    headline(["Which class is this?"], `${percent(confidence[0])} sure of `, name, `. ${thousands(item.images)} left.`),
    large(row, { className: "one", alt: file[0] }),
  );
  return { keys: [...keys, ...bind("single", { move })], close() {} };
}

/** A page of images that fit no category, each with the name of the nearest. */
async function other(body, item, at) {
  const rows = item.rows[0];
  const grid = new Grid(await describe(rows), { named: true });
  const what = "Below each is the nearest category. Choose those that belong to it, or to another one.";
  const left = `${counted(item.images, "image")} unlike all others, the farthest first. ${what}`;
  body.replaceChildren(headline(["Do any of these fit?"], left), grid.element);
  const needsChoice = (action) => async () => {
    if (!grid.chosen.size) return toast("Choose images first: click, drag, or use the arrow keys and space.");
    const decision = await action([...grid.chosen]);
    if (decision) await decide(decision, at.version);
  };
  const keys = bind("other", {
    nowhere: async () => {
      const aside = rows.filter((row) => !grid.chosen.has(row));
      const id = state.categories.find(({ name }) => name === ASIDE)?.id;
      if (aside.length) await decide(moving(aside, { id, name: ASIDE }), at.version);
    },
    confirm: needsChoice((chosen) => ({ do: "accept", rows: chosen })),
    move: needsChoice((chosen) => askMove(`Move ${counted(chosen.length, "image")} to`, chosen)),
  });
  return { keys, close: () => grid.close() };
}
