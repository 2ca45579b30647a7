// How large pictures are in grids: as large as fits the window, or as the person likes.

import { byId } from "/static/shared/dom.js";

export const SIZES = [96, 112, 132, 152, 176, 208, 240, 280, 320, 400]; // pixels of a side
const [USUAL, SMALL, LARGEST_FITTING] = [176, 132, 280];
const FINE = 4; // pixels between sizes that are tried
const NARROW = 760; // pixels: a window of a phone
const SCREENFUL = 80; // images that may be on one screen
const KEY = "sortal-size"; // in the storage of the browser
const grids = new Set();
let asked = false;

const chosen = () => Number(localStorage.getItem(KEY)) || null;
const current = () => chosen() ?? [...grids][0]?.side ?? USUAL;

/** Let a grid be arranged together with the others of its page, now and whenever the window changes. */
export function join(grid) {
  grids.add(grid);
  arrange();
}

export const leave = (grid) => grids.delete(grid);

/** Give all grids their size, once everything that is about to be drawn is there. */
export function arrange() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    const side = chosen() ?? fitting();
    for (const grid of grids) grid.resize(side);
    byId("size").value = String(SIZES.findIndex((each) => each >= side));
  });
}

/** The largest size at which nothing must be scrolled, or else a usual one. */
function fitting() {
  const shown = [...grids].filter(({ element }) => element.isConnected);
  const count = shown.reduce((sum, grid) => sum + grid.count, 0);
  const usual = innerWidth > NARROW ? USUAL : SMALL;
  if (!count || count > SCREENFUL) return usual;
  const fits = (side) => {
    for (const grid of shown) grid.reshape(side);
    return document.documentElement.scrollHeight <= innerHeight;
  };
  for (let side = LARGEST_FITTING; side >= SMALL; side -= FINE) if (fits(side)) return side;
  return usual;
}

/** Choose a size, and remember it. */
export function choose(side) {
  localStorage.setItem(KEY, String(side));
  arrange();
}

/** Choose the next larger or smaller size. */
export function step(by) {
  const at = SIZES.findIndex((each) => each >= current()) + by;
  choose(SIZES[Math.min(SIZES.length - 1, Math.max(0, at))]);
}

/** Let a slider choose the size, and give the keyboard back. */
export function bindSlider(slider) {
  Object.assign(slider, { min: "0", max: String(SIZES.length - 1), step: "1" });
  slider.oninput = () => choose(SIZES[slider.value]);
  slider.onchange = () => slider.blur();
}
