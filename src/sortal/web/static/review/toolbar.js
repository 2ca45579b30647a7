// Bars of buttons, of which a narrow window shows the first few.

import { button, make } from "/static/shared/dom.js";

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
