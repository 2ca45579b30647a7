// What can be done with images of several categories: those in the lasso of the map, and those that a search found.

import { chooseName } from "/static/review/dialogs.js";
import { KEYS } from "/static/review/keys.js";
import { askMove } from "/static/review/names.js";
import { categoryOf, decide, toast } from "/static/review/state.js";
import { button, make } from "/static/shared/dom.js";
import { counted } from "/static/shared/text.js";

const BUTTONS = { confirm: "Confirm", move: "Move", split: "Split off", bin: "No category" };

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

/** Actions on the rows that `rowsOf()` returns; without any, `hint` says how to choose them. */
export function mixedActions(grid, rowsOf, hint) {
  const act = async (action) => {
    if (action && (await decide(action, grid.data.version))) grid.choose([]);
  };
  const needsImages = (action) => async () => {
    const rows = rowsOf();
    if (rows.length) await action(rows);
    else toast(hint);
  };
  return {
    confirm: needsImages((rows) => act({ do: "accept", rows })),
    move: needsImages(async (rows) => act(await askMove(`Move ${counted(rows.length, "image")} to`, rows))),
    split: needsImages(async (rows) => {
      const [own, wanted] = largestGroup(grid, rows);
      const title = `Split ${counted(wanted.length, "image")} off ${categoryOf(own)?.name ?? "the bin"} as`;
      const to = await chooseName(title, { existing: false });
      if (to) await act({ do: "split", rows: wanted, name: to.name });
    }),
    bin: needsImages((rows) => act({ do: "bin", rows })),
    chooseInView: () => grid.choose(grid.rowsInView()),
  };
}

/** A button for each of these actions, with its key on a page. */
export function mixedTools(actions, page) {
  return Object.entries(BUTTONS).map(([name, text]) => {
    const kbd = make("kbd", { textContent: KEYS[page][name][0], ariaHidden: "true" });
    return button(text, () => actions[name](), {}, kbd);
  });
}
