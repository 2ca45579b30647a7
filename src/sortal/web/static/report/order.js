// Which categories are shown, and in which order.

const last = (value) => value ?? Infinity; // categories without a value come last
const sure = ({ size, unsure, other }) => size - unsure - other; // images
const negative = (value) => (value === null ? null : -value);

export const FILTERS = {
  all: () => true,
  known: (category) => !category.new,
  new: (category) => category.new,
  unsure: (category) => category.unsure > 0,
  other: (category) => category.other > 0,
};

const ORDERS = {
  new: (a, b) => Number(b.new) - Number(a.new) || sure(b) - sure(a) || b.confidence - a.confidence,
  size: (a, b) => b.size - a.size,
  doubt: (a, b) => last(a.confidence) - last(b.confidence),
  loose: (a, b) => last(a.cohesion) - last(b.cohesion),
  tight: (a, b) => last(negative(a.cohesion)) - last(negative(b.cohesion)),
  id: () => 0,
  name: (a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }),
};

/** The categories that pass a filter and whose names contain a text, sorted; equal ones stay in the order of ids. */
export function matching(categories, { filter, search, sort }) {
  const wanted = search.toLowerCase();
  return categories
    .filter((each) => FILTERS[filter](each) && each.name.toLowerCase().includes(wanted))
    .sort((a, b) => ORDERS[sort](a, b) || a.id - b.id);
}

/** The categories of the legend: those with images whose names contain a text, new ones first, then the largest. */
export function inLegend(categories, search) {
  return matching(categories, { filter: "all", search, sort: "size" })
    .filter((each) => each.size)
    .sort((a, b) => Number(b.new) - Number(a.new));
}
