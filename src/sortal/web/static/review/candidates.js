// Images that came later and look like something new: whether they are a class of their own.

import { headline } from "/static/review/answers.js";
import { chooseName } from "/static/review/dialogs.js";
import { Grid } from "/static/review/grid.js";
import { bind } from "/static/review/keys.js";
import { moving, shown } from "/static/review/names.js";
import { categoryOf, decide, describe, toast } from "/static/review/state.js";
import { make } from "/static/shared/dom.js";
import { counted, thousands } from "/static/shared/text.js";

/** Images that may be a new class, beside the category that is most similar to them. */
export async function candidate(body, item, at) {
  const [rows, like] = item.rows;
  const [id] = item.categories;
  const [own, beside] = await Promise.all([describe(rows), describe(like)]);
  const grid = new Grid(own, { word: "left out" });
  const similar = new Grid(beside, { fixed: true });
  const more = item.images > rows.length ? ` These are the ${thousands(rows.length)} most typical.` : "";
  const heading = make("h2", {}, "The most similar category: ", shown(categoryOf(id)));
  body.replaceChildren(
    headline(
      [`${counted(item.images, "image")} look like something new`],
      `They came later, and are unlike what is in the categories.${more} Are they one class? `,
      "Choose those that are not of it; they stay where they are.",
    ),
    grid.element,
    make("section", { className: "similar" }, heading, similar.element),
  );
  /** Decide on all but the chosen: where they go is asked for. */
  const place = (where) => async () => {
    const kept = rows.filter((row) => !grid.chosen.has(row));
    if (!kept.length) return toast("Every image is left out. Put the question off instead.");
    const to = await where(kept.length);
    if (to) await decide(moving(kept, to), at.version);
  };
  const name = (count) => chooseName(`Name the class of ${counted(count, "image")}`, { required: true });
  const move = (count) => chooseName(`Move ${counted(count, "image")} to`, { create: "" });
  const keys = bind("candidate", { yes: place(name), no: place(() => ({ id })), move: place(move) });
  const close = () => [grid, similar].forEach((each) => each.close());
  return { keys, close };
}
