// A category in parts: proposals to split it, and names for what is split off.

import { headline, offer } from "/static/review/answers.js";
import { Grid } from "/static/review/grid.js";
import { bind } from "/static/review/keys.js";
import { rename, shown } from "/static/review/names.js";
import { categoryOf, decide, describe, get, goTo, state } from "/static/review/state.js";
import { make } from "/static/shared/dom.js";
import { counted } from "/static/shared/text.js";

const PART_SHOWN = 60; // images of a part that is proposed

/** Show groups of images beside each other, to look at; `groups` are pairs of a title and rows. */
export async function showBeside(body, title, small, groups) {
  const grids = await Promise.all(groups.map(async ([, rows]) => new Grid(await describe(rows), { fixed: true })));
  const sections = groups.map(([name], at) => make("section", {}, make("h2", {}, name), grids[at].element));
  const two = make("div", { className: "two" }, ...sections);
  two.style.setProperty("--columns", groups.length);
  body.replaceChildren(headline(title, ...small), two);
  return () => grids.forEach((grid) => grid.close());
}

/** Split a category into parts that were proposed at a version; the first keeps its name, the others are named. */
export async function splitOff(parts, version) {
  const made = [];
  for (const [at, rows] of parts.slice(1).entries()) {
    if (!(await decide({ do: "split", rows }, version + at))) break;
    made.push(Math.max(...state.categories.map(({ id }) => id)));
  }
  for (const [at, id] of made.entries()) {
    if (categoryOf(id)) await rename(id, `Name part ${at + 2} (${counted(categoryOf(id).size, "image")})`);
  }
  return made.length > 0;
}

/** Proposals to split a category into two, three or four parts. */
export async function splitting(view, id) {
  const body = make("div", { className: "question" });
  view.replaceChildren(body);
  let [count, close, held] = [state.part_counts[0], () => {}, false];
  const made = { title: "Split", keys: [], update, close: () => close() };

  async function update() {
    if (held) return;
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
    close = await showBeside(body, title, ["What is labelled or confirmed stays in the first part."], groups);
    const [yes, back] = bind("splitting", {
      yes: async () => {
        held = true; // parts are named while their pictures are still there
        const done = await splitOff(parts, version);
        held = false;
        if (done) goTo(`category/${id}`);
      },
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
