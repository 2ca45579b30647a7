// Where images are in a grid: lines of equal height, read like text. A shape is { columns, line, count }.

export const LABEL = 20; // pixels below a picture
const STEPS = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };

/** The shape of a grid so wide whose cells are at least `side` pixels wide, and as wide as fills it. */
export function shapeOf(width, side, count) {
  const columns = Math.max(1, Math.floor((width || side) / side));
  return { columns, line: Math.round((width || side) / columns) + LABEL, count };
}

export const heightOf = ({ columns, line, count }) => Math.ceil(count / columns) * line;

/** The first and the last index of the lines `first` to `last`. */
const between = (first, last, { columns, count }) => [first * columns, Math.min(count, (last + 1) * columns) - 1];

/** The first and the last index of the lines that touch the pixels from `top` to `bottom` of the grid. */
export function touching(top, bottom, shape) {
  return between(Math.max(0, Math.floor(top / shape.line)), Math.floor(bottom / shape.line), shape);
}

/** The first and the last index of the lines that lie wholly between these pixels; one line at least. */
export function wholeLines(top, bottom, shape) {
  const first = Math.max(0, Math.ceil(top / shape.line));
  return between(first, Math.max(first, Math.floor(bottom / shape.line) - 1), shape);
}

/** The index of the image at a place in the grid, or −1. */
export function indexAt(x, y, width, { columns, line, count }) {
  const column = Math.min(Math.max(Math.floor((x / width) * columns), 0), columns - 1);
  const index = Math.floor(y / line) * columns + column;
  return index < count ? index : -1;
}

/** The indices of the images that a box touches. */
export function indicesIn({ left, right, top, bottom }, width, { columns, line, count }) {
  const side = width / columns;
  const found = [];
  for (let at = Math.max(0, Math.floor(top / line)); at <= Math.floor(bottom / line); at++) {
    const last = Math.min(columns - 1, Math.floor(right / side));
    for (let column = Math.max(0, Math.floor(left / side)); column <= last; column++) {
      if (at * columns + column < count) found.push(at * columns + column);
    }
  }
  return found;
}

/** Where a key moves the cursor; null if it moves nothing. */
export function moved(cursor, key, { columns, count }) {
  const step = { ...STEPS, ArrowUp: -columns, ArrowDown: columns }[key];
  return step === undefined ? null : Math.min(count - 1, Math.max(0, cursor + step));
}

/** The part of a list from one index to another, whichever comes first. */
export const range = (list, from, to) => list.slice(Math.min(from, to), Math.max(from, to) + 1);
