// Elements of a page. Names become text, never markup.

export const byId = (id) => document.getElementById(id);

/** Create an element with properties and children; a child that is undefined, null or false is left out. */
export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children.filter((child) => (child ?? false) !== false));
  return element;
}

/** Create a button; `content` is a text or an element. */
export const button = (content, onclick, properties = {}, ...more) =>
  make("button", { type: "button", onclick, ...properties }, content, ...more);

/** Isolate text, so that a right-to-left name does not reorder its neighbours. */
export const isolated = (text, className = "") => make("bdi", { textContent: text, className });

/** Create the lines of a definition list from [name, value] pairs. */
export const definitions = (pairs) =>
  pairs.map(([name, value]) => make("div", {}, make("dt", { textContent: name }), make("dd", {}, isolated(value))));

/** Read a colour of the style sheet, such as --known. */
export const styleColour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);

/** Pick the colour of a category: consecutive ids are far apart in hue, and lightness alternates. */
export function categoryColour(category) {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const hue = (25 + category * 137.508) % 360;
  const step = [0, 0.1, -0.08][Math.floor(category / 5) % 3];
  const chroma = [0.15, 0.11][Math.floor(category / 15) % 2];
  return `oklch(${(dark ? 0.74 : 0.62) + step} ${chroma} ${hue.toFixed(0)})`;
}
