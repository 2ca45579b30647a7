// Geometry of a map: where points are on a canvas that can be panned and zoomed.
//
// A view is { scale, x, y }: the zoom factor, and the position of the upper left corner in pixels.

export const SPAN = 9999; // the largest coordinate of a point
export const MARGIN = 24; // pixels that points keep from the edge
const LARGEST_SCALE = 60;
const CLOSEST_FRAME = 12; // the largest scale that points are framed at
const RADII = [[10000, 1.2], [2000, 2.6], [400, 3.6], [-1, 5]]; // pixels, for more points than this

/** The radius of each of so many points. */
export const radiusOf = (count, scale) => Math.min(9, RADII.find(([least]) => count > least)[1] * Math.sqrt(scale));

/** The pixel of a coordinate on a side of a canvas, before it is panned and zoomed. */
export const pixelOf = (coordinate, side) => MARGIN + (coordinate / SPAN) * (side - 2 * MARGIN);

/** Move a view so that the canvas stays filled. */
export function bounded({ scale, x, y }, width, height) {
  const within = (at, side) => Math.min(0, Math.max(side * (1 - scale), at));
  return { scale, x: within(x, width), y: within(y, height) };
}

/** Zoom a view by a factor; the pixel (x, y) stays where it is. */
export function zoomed(view, factor, x, y) {
  const scale = Math.min(LARGEST_SCALE, Math.max(1, view.scale * factor));
  const keep = (from, at) => at - ((at - from) * scale) / view.scale;
  return { scale, x: keep(view.x, x), y: keep(view.y, y) };
}

/** The ends of some coordinates without outliers: their 5th and 95th percentile. */
export function ends(coordinates) {
  const sorted = [...coordinates].sort((a, b) => a - b);
  return [0.05, 0.95].map((share) => sorted[Math.round(share * (sorted.length - 1))]);
}

/** The view that shows these ranges of coordinates in the middle of a canvas, with some space around them. */
export function framed([left, right], [top, bottom], width, height) {
  const extent = Math.max(right - left, bottom - top, SPAN / 12);
  const scale = Math.min(CLOSEST_FRAME, Math.max(1, (0.7 / extent) * SPAN));
  const centred = (low, high, side) => side / 2 - scale * pixelOf((low + high) / 2, side);
  return { scale, x: centred(left, right, width), y: centred(top, bottom, height) };
}

/** The index of the place nearest to (x, y) that is closer than `reach`, or −1; a place that is null does not count. */
export function nearest(count, placeOf, x, y, reach) {
  let [best, distance] = [-1, reach * reach];
  for (let each = 0; each < count; each++) {
    const place = placeOf(each);
    if (!place) continue;
    const far = (place[0] - x) ** 2 + (place[1] - y) ** 2;
    if (far < distance) [best, distance] = [each, far];
  }
  return best;
}

/** Tell whether (x, y) lies inside a polygon, by the even-odd rule. */
export function isInside(polygon, x, y) {
  let odd = false;
  for (let i = 0, j = polygon.length - 1; i < polygon.length; j = i++) {
    const [[xi, yi], [xj, yj]] = [polygon[i], polygon[j]];
    if (yi > y !== yj > y && x < ((xj - xi) * (y - yi)) / (yj - yi) + xi) odd = !odd;
  }
  return odd;
}

/** Where a tooltip goes that is so large: beside (x, y), and inside the canvas. */
export function tipPlace([x, y], tipWidth, tipHeight, width, height) {
  const left = x + 16 + tipWidth > width ? x - 16 - tipWidth : x + 16;
  const top = Math.min(Math.max(8, y - tipHeight / 2), height - tipHeight - 8);
  return [Math.max(4, Math.min(left, width - tipWidth - 4)), Math.max(4, top)];
}

/** Those of some boxes [left, top, width, height] that overlap none before them, by their index. */
export function apart(boxes) {
  const kept = [];
  boxes.forEach(([left, top, width, height], at) => {
    const clear = ([x, y, w, h]) => x + w < left || left + width < x || y + h < top || top + height < y;
    if (kept.every((other) => clear(boxes[other]))) kept.push(at);
  });
  return kept;
}

/** The middle of a group of points in both directions: the median, which outliers do not move. */
export function middle(points, { x, y }) {
  return [x, y].map((axis) => points.map((point) => axis[point]).sort((a, b) => a - b)[points.length >> 1]);
}
