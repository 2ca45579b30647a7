// Bars of buttons, of which a narrow window shows the first few, and what they do to images that are chosen.

import { KEYS, labelOf } from "/static/review/keys.js";
import { toast } from "/static/review/state.js";
import { button, make } from "/static/shared/dom.js";

const CHOOSE = "Choose images first: click, drag, or use the arrow keys and space.";

/** An action on the rows that `rowsOf()` returns; without any, `hint` says how to choose them. */
export const needsImages = (rowsOf, action, hint = CHOOSE) => async () => {
  const rows = rowsOf();
  if (rows.length) await action(rows);
  else toast(hint);
};

/** A button for each of these texts, by the name of its action, with its key on a page. */
export function toolsOf(page, actions, texts) {
  return Object.entries(texts).map(([name, text]) => {
    const kbd = make("kbd", { textContent: labelOf(KEYS[page][name][0]), ariaHidden: "true" });
    return button(text, () => actions[name](), {}, kbd);
  });
}

export const toolbar = (...elements) =>
  make("div", { className: "sticky", role: "toolbar", ariaLabel: "Decisions" }, ...elements);

/** The first `count` of some elements, and the others, which a narrow window shows after a click on "More". */
export function folded(elements, count) {
  if (elements.length <= count + 1) return elements;
  const more = button("More", () => { more.ariaExpanded = String(more.ariaExpanded !== "true"); }, {
    className: "fold",
    ariaExpanded: "false",
  });
  return [...elements.slice(0, count), more, make("span", { className: "rest" }, ...elements.slice(count))];
}

/** What a button says: its first words, and those that a narrow window leaves out. */
export function shortened(text) {
  const [first] = text.split(/[:,]/, 1);
  return make("span", {}, first, make("span", { className: "roomy", textContent: text.slice(first.length) }));
}
