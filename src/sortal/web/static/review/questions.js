// One question after another, each on one screen and answered by one key.

import { chosenOrAll, headline, offer, relabel, saying } from "/static/review/answers.js";
import { candidate } from "/static/review/candidates.js";
import { disputed, name, union } from "/static/review/disputes.js";
import { Grid } from "/static/review/grid.js";
import { bind } from "/static/review/keys.js";
import { askMove, moving, rename, shown } from "/static/review/names.js";
import { consequence, growthFacts, intoBin, sureness } from "/static/review/phrases.js";
import { large } from "/static/review/pictures.js";
import { asking, Growth, isTaken, keepGrowth, keptGrowth, nextQuestion, questionKey } from "/static/review/queue.js";
import { showBeside, splitOff } from "/static/review/splitting.js";
import { stacked, unstacked } from "/static/review/stacks.js";
import {
  asked as told, categoryOf, decide, describe, get, getAsking, goTo, state, toast,
} from "/static/review/state.js";
import { needsImages } from "/static/review/toolbar.js";
import { button, isolated, make } from "/static/shared/dom.js";
import { counted, thousands } from "/static/shared/text.js";

const SCREENS = { grow, merge, split, audit, page, image, label, other, candidate, disputed, name, union };
const CONFIRMING = ["grow", "page", "audit"]; // kinds whose first answer takes back nothing that was sorted
const later = new Set(); // keys of questions that were put off
const answered = new Map(); // keys of questions by those of the decisions that answered them

/** Say in words what a question is about, and why. */
export function inWords({ kind, categories, images, by }) {
  const [first, second] = categories.map((id) => shown(categoryOf(id)));
  const people = by.map((person) => person || "someone").join(" and ");
  const [title, why] = {
    grow: [["Confirm ", first], `${counted(images, "image")} open`],
    merge: [["Are ", first, " and ", second, " the same?"], "they look alike"],
    split: [["Is ", first, " two classes?"], "it looks mixed"],
    audit: [["Check a sample of what was accepted unseen"], counted(images, "image")],
    page: [["Look at what was left open of ", first], counted(images, "image")],
    image: [["Sort images one by one, drawn at random"], counted(images, "image")],
    label: [["Check labels that look wrong"], counted(images, "image")],
    other: [["Look at images that fit nowhere"], counted(images, "image")],
    candidate: [[counted(images, "image"), " look like something new, near ", first], "added later"],
    disputed: [["Settle a disagreement"], people],
    name: [["Settle the name of ", first], people],
    union: [["Are ", first, " and ", second, " the same, or different?"], people],
  }[kind];
  return [make("span", {}, ...title.filter(Boolean)), why];
}

/**
 * Ask the questions that are left, in the order of the server, after the one with this key.
 * A question stays on the screen as long as it is still asked: what other pages decide does not swap it under a finger.
 */
export async function questions(view, start = "") {
  let body = make("div", { className: "question" });
  body.append(make("p", { className: "state", role: "status", textContent: "Looking for the next question…" }));
  view.replaceChildren(body);
  later.delete(start);
  let screen = { keys: [], close() {} };
  let asked = null; // the key of the question on the screen
  let last = null; // its kind, or that of the one before
  let updates = 0;
  // What the screen is about; nothing is drawn while it is held.
  const at = { version: -1, done: state.done, held: false };
  const close = () => {
    updates++; // what is under way comes too late
    told.now = "";
    screen.close();
  };
  const made = { title: "Next question", keys: [], update, close };

  /** Choose a question, which nobody else is asked if there is such: who is the first to tell the server has it. */
  async function choose(own, items, given) {
    const item = nextQuestion(items, given);
    if (own !== updates) return null;
    told.now = asking(item);
    if (!state.person || !item || questionKey(item) === asked || isTaken(item, given.taken)) return item;
    const { taken } = await getAsking("/api/version");
    return isTaken(item, taken) ? choose(own, items, { ...given, taken }) : item;
  }

  async function update() {
    const isDecided = state.done !== at.done && state.undone === null; // and not undone
    if (asked && isDecided) answered.set(state.done, asked);
    if (at.held) return;
    const own = ++updates;
    const { items, version, taken } = await getAsking("/api/queue");
    if (own !== updates || at.held) return; // a later one is under way
    const undone = answered.get(state.undone);
    const item = await choose(own, items, { later, undone, asked, start, last, taken });
    if (own !== updates || at.held) return;
    [at.version, at.done] = [version, state.done];
    if (item && questionKey(item) === asked) return;
    screen.close();
    [screen, asked, made.keys] = [{ keys: [], close() {} }, null, []];
    if (!item) return showEnd(items.length);
    const sheet = make("div", { className: "question" }); // of its own, as an older drawing may come later
    const drawn = await SCREENS[item.kind](sheet, item, at, next);
    if (own !== updates) return drawn.close();
    body.replaceWith(sheet);
    body = sheet;
    [screen, asked, last, start] = [drawn, questionKey(item), item.kind, ""];
    const [only] = item.categories;
    const place = categoryOf(only) ? `category/${only}` : "bin";
    const open = item.categories.length === 1 ? () => goTo(place) : undefined;
    const others = bind("question", { later: () => putOff(item), open }).filter(({ action }) => action);
    made.keys = [...screen.keys, ...others];
    offer(body, made.keys, CONFIRMING.includes(item.kind));
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

/**
 * Make a grid for each group of rows, in which those are chosen that are not of the category with this id.
 * Images of one stack are chosen together.
 */
const choosing = (groups, ids, changed, options = {}) =>
  Promise.all(
    groups.map(async (rows, at) => {
      const word = `not ${categoryOf(ids[at]).name}`;
      return new Grid(stacked(await describe(rows)), { changed, word, ...options });
    }),
  );
const chosenIn = (grids) => grids.flatMap((grid) => unstacked(grid.data, [...grid.chosen]));
const closeAll = (grids) => () => grids.forEach((grid) => grid.close());

/** Put the chosen into the bin; the question is asked again without them. */
const binChosen = (grids, at) =>
  needsImages(() => chosenIn(grids()), (rows) => decide({ do: "bin", rows }, at.version));

/** Let the keys for yes and the bin say what they do to so many images, of which some are chosen in the grids. */
const telling = (keys, images, grids) =>
  saying(keys.filter(({ action }) => action), {
    y: () => consequence(images(), chosenIn(grids()).length),
    x: () => intoBin(chosenIn(grids()).length),
  });

/** Confirm a category: pages from the surest to the least sure, each answered by yes, mostly or no. */
async function grow(body, item, at, next) {
  const [id] = item.categories;
  let growth = new Growth();
  const about = () => [state.run, id, at.version]; // what answers hold for
  let [grids, page, busy] = [[], [], true]; // while it is busy, a key pressed twice is one answer
  let bar = null; // the answers, once they are offered
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
    if (!done) keepGrowth(about(), new Growth()); // pages that are no longer those that were shown
    await next();
  };
  /** Show the page that follows from these answers; they count once it is there. */
  const draw = async (given) => {
    const found = await get(`/api/grow/${id}?answers=${given.answers}`);
    if (found.version !== at.version && !state.person) {
      toast("Something has changed meanwhile. Look again.", true);
      return next();
    }
    growth = given;
    if (found.number === null) return finish();
    keepGrowth(about(), growth);
    const count = make("span", { role: "status" });
    const tell = () => {
      const wrong = chosenIn(grids).length;
      const hint = "Click those that are wrong, if there are a few.";
      count.textContent = wrong ? `${counted(wrong, "image")} chosen as wrong.` : hint;
      relabel(body, keys);
    };
    const facts = growthFacts(found, growth.answers, growth.wrongAfter(state.answers.all));
    const before = grids;
    const groups = [found.typical, found.page].filter((rows) => rows.length);
    grids = [];
    grids = await choosing(groups, [id, id], tell);
    before.forEach((grid) => grid.close());
    if (page.length) bar = body.querySelector(".answers"); // that of this question
    const titles = grids.length > 1 ? ["The surest", "At the edge"] : [];
    body.replaceChildren(
      headline(["Are these all ", shown(categoryOf(id)), "?"], ...facts),
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
  const answer = (letter) => once(() => draw(growth.and(letter, page, chosenIn(grids))));
  const back = () => (growth.answers ? draw(growth.back()) : decide({ do: "undo" }));
  const grown = bind("grow", {
    all: answer(state.answers.all),
    most: answer(state.answers.most),
    bad: answer(state.answers.bad),
    take: once(finish),
    split: () => goTo(`split/${id}`),
    bin: once(binChosen(() => grids, at)),
    rename: categoryOf(id).kind === "new" ? () => rename(id) : undefined,
    back: once(back),
  });
  const keys = telling(grown, () => page.length, () => grids);
  await draw(keptGrowth(about()));
  busy = false;
  return { keys, close: () => closeAll(grids)() };
}

async function merge(body, item, at) {
  const { categories } = item;
  const groups = categories.map((id, side) => {
    const size = make("span", { className: "near", textContent: ` · ${counted(categoryOf(id).size, "image")}` });
    const open = make("a", { href: `#/category/${id}`, textContent: "Open" });
    return [make("span", {}, shown(categoryOf(id)), size, " · ", open), item.rows[side]];
  });
  const [more, fewer] = categories.map((id) => shown(categoryOf(id)));
  const why = ["They look alike. If they are one class, ", fewer, " becomes part of ", more, "."];
  const close = await showBeside(body, ["Are these the same class?"], why, groups);
  const keys = bind("merge", {
    yes: () => decide({ do: "merge", categories }, at.version),
    no: () => decide({ do: "keep", categories }, at.version),
    beside: () => goTo(`pair/${categories.join("/")}`),
  });
  return { keys, close };
}

async function split(body, item, at, next) {
  const [id] = item.categories;
  const { parts, version } = await get(`/api/parts/${id}?parts=2`);
  const why = ["It looks mixed. These are the most typical images of its two parts:"];
  const groups = item.rows.map((rows, part) => [`Part ${part + 1}`, rows]);
  const close = await showBeside(body, ["Is ", shown(categoryOf(id)), " two classes?"], why, groups);
  const keys = bind("split", {
    yes: async () => {
      at.held = true; // the new part is named while its pictures are still there
      await splitOff(parts, version);
      await next();
    },
    no: () => decide({ do: "keep", categories: [id] }, at.version),
    parts: () => goTo(`split/${id}`),
  });
  return { keys, close };
}

/** A random sample of what was accepted unseen, by category. */
async function audit(body, item, at) {
  const rows = item.rows[0];
  const { category } = await describe(rows);
  const ids = [...new Set(category)];
  const tell = () => relabel(body, keys);
  const groups = ids.map((id) => rows.filter((_, index) => category[index] === id));
  const grids = await choosing(groups, ids, tell, { ofGroups: true });
  body.replaceChildren(
    headline(
      ["Are these right?"],
      "A random sample of what was accepted unseen. Choose those that are wrong; ",
      "a category with too many is opened again.",
    ),
    ...ids.flatMap((id, group) => [make("h2", {}, shown(categoryOf(id))), grids[group].element]),
  );
  const yes = () => decide({ do: "audit", rows, wrong: chosenIn(grids) }, at.version);
  // They were wrong where they were accepted, too, so they count in the audit.
  const bin = async (junk) => (await yes()) && decide({ do: "bin", rows: junk });
  const checked = bind("audit", { yes, bin: needsImages(() => chosenIn(grids), bin) });
  const binned = () => {
    const count = chosenIn(grids).length;
    return count ? `Confirm ${thousands(rows.length - count)}, ${thousands(count)} into the bin` : intoBin(0);
  };
  const keys = saying(telling(checked, () => rows.length, () => grids), { x: binned });
  return { keys, close: closeAll(grids) };
}

/** A page of what was left open. */
async function page(body, item, at) {
  const [id] = item.categories;
  const rows = item.rows[0];
  const tell = () => relabel(body, keys);
  const grids = await choosing([rows], [id], tell);
  const what = "Click them; they go to the most similar other category, and the rest is confirmed.";
  body.replaceChildren(headline(["Which of these are not ", shown(categoryOf(id)), "?"], what), grids[0].element);
  const answer = (wrong) => decide({ do: "page", category: id, rows, wrong }, at.version);
  const seen = bind("page", {
    yes: () => answer(chosenIn(grids)),
    no: () => answer(rows),
    bin: binChosen(() => grids, at),
    rename: categoryOf(id).kind === "new" ? () => rename(id) : undefined,
  });
  const keys = telling(seen, () => rows.length, () => grids);
  return { keys, close: closeAll(grids) };
}

/** An image whose label looks wrong, beside its class and the one that it looks like. */
async function label(body, item, at) {
  const [row] = item.rows[0];
  const { category, suggested, file } = await describe([row]);
  const ids = [category[0], suggested[0]];
  const groups = ["Labelled ", "Looks like "].map((what, at) => {
    const name = make("span", {}, what, shown(categoryOf(ids[at])));
    return [name, item.rows[1 + item.categories.indexOf(ids[at])] ?? []];
  });
  const why = [`Its label looks wrong. ${thousands(item.images)} left.`];
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
    bin: () => decide({ do: "bin", rows: [row] }, at.version),
  });
  return { keys, close };
}

/** One image, and a key for each category that it may belong to. */
async function image(body, item, at) {
  const row = item.rows[0][0];
  const [near, here] = await Promise.all([get(`/api/near/${row}`), describe([row])]);
  const [[own], [file]] = [here.category, here.file];
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
  const [name, how] = [isolated(categoryOf(own)?.name ?? ""), sureness(here, 0, state)];
  body.replaceChildren(
    headline(["Which class is this?"], "Sorted as ", name, ` (${how}). ${thousands(item.images)} left.`),
    large(row, { className: "one", alt: file }),
  );
  const bin = () => decide({ do: "bin", rows: [row] }, at.version);
  return { keys: [...keys, ...bind("single", { move, bin })], close() {} };
}

/** A page of images that fit no category, each with the name of the nearest. */
async function other(body, item, at) {
  const rows = item.rows[0];
  const options = { named: true, word: "chosen", changed: () => relabel(body, keys) };
  const grid = new Grid(await describe(rows), options);
  const left = `${counted(item.images, "image")} unlike all others, the farthest first. `;
  const what = "Below each is the nearest category. Choose those that belong to it and confirm them, or move them.";
  body.replaceChildren(headline(["Do any of these fit?"], left, what), grid.element);
  const needsChoice = (action) => needsImages(() => [...grid.chosen], async (chosen) => {
    const decision = await action(chosen);
    if (decision) await decide(decision, at.version);
  });
  const bound = bind("other", {
    bin: () => decide({ do: "bin", rows: chosenOrAll(grid) }, at.version),
    confirm: needsChoice((chosen) => ({ do: "accept", rows: chosen })),
    move: needsChoice((chosen) => askMove(`Move ${counted(chosen.length, "image")} to`, chosen)),
  });
  const keys = saying(bound, { x: () => intoBin(grid.chosen.size, rows.length) });
  return { keys, close: () => grid.close() };
}
