// Where images are in a grid of so many columns: lines of equal height, read like text.

export const CELL = 132; // pixels of a side
export const LINE = CELL + 20; // with the label below
const STEPS = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };

export const columnsIn = (width) => Math.max(1, Math.floor((width || CELL) / CELL));
export const heightOf = (count, columns) => Math.ceil(count / columns) * LINE;

/** The first and the last index of the lines `first` to `last`. */
const between = (first, last, columns, count) => [first * columns, Math.min(count, (last + 1) * columns) - 1];

/** The first and the last index of the lines that touch the pixels from `top` to `bottom` of the grid. */
export function touching(top, bottom, columns, count) {
  return between(Math.max(0, Math.floor(top / LINE)), Math.floor(bottom / LINE), columns, count);
}

/** The first and the last index of the lines that lie wholly between these pixels; one line at least. */
export function wholeLines(top, bottom, columns, count) {
  const first = Math.max(0, Math.ceil(top / LINE));
  return between(first, Math.max(first, Math.floor(bottom / LINE) - 1), columns, count);
}

/** The index of the image at a place in the grid, or −1. */
export function indexAt(x, y, width, columns, count) {
  const column = Math.min(Math.max(Math.floor((x / width) * columns), 0), columns - 1);
  const index = Math.floor(y / LINE) * columns + column;
  return index < count ? index : -1;
}

/** The indices of the images that a box touches. */
export function indicesIn({ left, right, top, bottom }, width, columns, count) {
  const side = width / columns;
  const found = [];
  for (let line = Math.max(0, Math.floor(top / LINE)); line <= Math.floor(bottom / LINE); line++) {
    const last = Math.min(columns - 1, Math.floor(right / side));
    for (let column = Math.max(0, Math.floor(left / side)); column <= last; column++) {
      if (line * columns + column < count) found.push(line * columns + column);
    }
  }
  return found;
}

/** Where a key moves the cursor; null if it moves nothing. */
export function moved(cursor, key, columns, count) {
  const step = { ...STEPS, ArrowUp: -columns, ArrowDown: columns }[key];
  return step === undefined ? null : Math.min(count - 1, Math.max(0, cursor + step));
}

/** The part of a list from one index to another, whichever comes first. */
export const range = (list, from, to) => list.slice(Math.min(from, to), Math.max(from, to) + 1);
