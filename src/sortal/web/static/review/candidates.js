// Images that came later and look like something new: whether they are a class of their own.

import { chosenOrAll, headline, relabel, saying } from "/static/review/answers.js";
import { chooseName } from "/static/review/dialogs.js";
import { Grid } from "/static/review/grid.js";
import { bind } from "/static/review/keys.js";
import { moving, shown } from "/static/review/names.js";
import { intoBin } from "/static/review/phrases.js";
import { categoryOf, decide, describe, toast } from "/static/review/state.js";
import { button, make } from "/static/shared/dom.js";
import { counted, thousands } from "/static/shared/text.js";

const PAGE = 40; // images that are shown at first, and that are added at a time

/** Images that may be a new class, the most typical first, beside the category that is most similar to them. */
export async function candidate(body, item, at) {
  const [all, like] = item.rows;
  const [id] = item.categories;
  let rows = all.slice(0, PAGE);
  const [own, beside] = await Promise.all([describe(rows), describe(like)]);
  const kept = () => rows.filter((row) => !grid.chosen.has(row));
  const grid = new Grid(own, { word: "left out", changed: () => relabel(body, keys) });
  const similar = new Grid(beside, { fixed: true });
  const others = make("p", { className: "small", role: "status" });
  const tell = () => {
    const left = item.images - rows.length;
    const text = `Answers are about these ${thousands(rows.length)}, the most typical, of ${thousands(item.images)}. `;
    others.replaceChildren(...(left ? [text, rows.length < all.length ? button("Show more", more) : ""] : []));
  };
  const more = async () => {
    const wider = await describe(all.slice(0, rows.length + PAGE));
    rows = wider.rows; // once they are shown
    grid.show(wider);
    tell();
    relabel(body, keys);
  };
  const heading = make("h2", {}, "The most similar category: ", shown(categoryOf(id)));
  body.replaceChildren(
    headline(
      [`${counted(item.images, "image")} look like something new`],
      "They came later, and are unlike what is in the categories. Are they one class? ",
      "Choose those that are not of it; they stay where they are.",
    ),
    grid.element,
    others,
    make("section", { className: "similar" }, heading, similar.element),
  );
  /** Decide on all but the chosen, once it is known where they go. */
  const place = (where) => async () => {
    if (!kept().length) return toast("Every image is left out. Press n if they are not one class.");
    const to = await where(counted(kept().length, "image"));
    if (to) await decide(moving(kept(), to), at.version);
  };
  const name = (images) => chooseName(`Name the class of ${images}`, { required: true });
  const move = (images) => chooseName(`Move ${images} to`, { create: "" });
  const bin = () => decide({ do: "bin", rows: chosenOrAll(grid) }, at.version);
  const no = () => decide({ do: "leave", rows }, at.version);
  const actions = { yes: place(name), no, similar: place(() => ({ id })), move: place(move), bin };
  const keys = saying(bind("candidate", actions), {
    y: () => `A new class of ${thousands(kept().length)}: name it`,
    s: () => `These ${thousands(kept().length)} are ${categoryOf(id).name}`,
    x: () => intoBin(grid.chosen.size, rows.length),
  });
  tell();
  const close = () => [grid, similar].forEach((each) => each.close());
  return { keys, close };
}
