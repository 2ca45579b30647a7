// What the report and the review share. Names become text, never markup.

export const byId = (id) => document.getElementById(id);
export const thousands = (value) => value.toLocaleString("en-US");
export const percent = (value) => (value === null ? "n/a" : `${Math.round(100 * value)}%`);
export const counted = (value, one, many = `${one}s`) => `${thousands(value)} ${value === 1 ? one : many}`;

/** Create an element with properties and children. */
export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** Isolate text, so that a right-to-left name does not reorder its neighbours. */
export const isolated = (text, className = "") => make("bdi", { textContent: text, className });

/** Pick a colour: consecutive ids are far apart in hue, and lightness alternates. */
export function colourOf(category) {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const hue = (25 + category * 137.508) % 360;
  const step = [0, 0.1, -0.08][Math.floor(category / 5) % 3];
  return `oklch(${(dark ? 0.74 : 0.62) + step} ${[0.15, 0.11][Math.floor(category / 15) % 2]} ${hue.toFixed(0)})`;
}
