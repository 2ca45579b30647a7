// What can be done with images of several categories: those in the lasso of the map, and those that a search found.

import { chooseName } from "/static/review/dialogs.js";
import { askMove } from "/static/review/names.js";
import { categoryOf, decide } from "/static/review/state.js";
import { needsImages, toolsOf } from "/static/review/toolbar.js";
import { counted } from "/static/shared/text.js";

const BUTTONS = { confirm: "Confirm", move: "Move", split: "Split off", bin: "Into the bin" };

/** The category that most of these rows of a grid are in, and those of them that are. */
function largestGroup({ data, indexOf }, rows) {
  const groups = new Map();
  for (const row of rows) {
    const category = data.category[indexOf.get(row)];
    if (!groups.has(category)) groups.set(category, []);
    groups.get(category).push(row);
  }
  return [...groups].sort(([, a], [, b]) => b.length - a.length)[0];
}

/** Actions on the rows that `rowsOf()` returns, by default the chosen; without any, `hint` says how to choose them. */
export function mixedActions(grid, rowsOf = () => [...grid.chosen], hint = undefined) {
  const act = async (action) => {
    if (action && (await decide(action, grid.data.version))) grid.choose([]);
  };
  const withImages = (action) => needsImages(rowsOf, action, hint);
  return {
    confirm: withImages((rows) => act({ do: "accept", rows })),
    move: withImages(async (rows) => act(await askMove(`Move ${counted(rows.length, "image")} to`, rows))),
    split: withImages(async (rows) => {
      const [own, wanted] = largestGroup(grid, rows);
      const from = categoryOf(own)?.name; // none, if they are in the bin
      const images = counted(wanted.length, "image");
      const title = from ? `Split ${images} off ${from} as` : `Take ${images} out of the bin as`;
      const to = await chooseName(title, { existing: false });
      if (to) await act({ do: "create", rows: wanted, name: to.name }); // each was chosen by hand
    }),
    bin: withImages((rows) => act({ do: "bin", rows })),
    chooseInView: () => grid.choose(grid.rowsInView()),
  };
}

/** A button for each of these actions, with its key on a page. */
export const mixedTools = (actions, page) => toolsOf(page, actions, BUTTONS);
