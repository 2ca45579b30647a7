// Stacks: images of one group in a grid, shown as one and decided on together.

/** The columns of a grid with one row for each group, and the rows of each that can be seen, by the one shown. */
export function stacked(data) {
  const shown = new Map(); // index of the row that stands for a group
  const stacks = new Map();
  const kept = [];
  data.rows.forEach((row, index) => {
    const group = data.group[index];
    const first = group < 0 ? undefined : shown.get(group);
    if (first === undefined || (data.lost[first] && !data.lost[index])) {
      if (first === undefined) kept.push(index);
      else kept[kept.indexOf(first)] = index;
      if (group >= 0) shown.set(group, index);
    }
  });
  data.rows.forEach((row, index) => {
    const at = data.group[index] < 0 ? index : shown.get(data.group[index]);
    if (!stacks.has(data.rows[at])) stacks.set(data.rows[at], []);
    if (!data.lost[index] || at === index) stacks.get(data.rows[at]).push(row);
  });
  const columns = Object.entries(data).map(([name, column]) => {
    return [name, Array.isArray(column) ? kept.map((index) => column[index]) : column];
  });
  const labelledRows = new Set(data.rows.filter((_, index) => data.labelled[index]));
  return { ...Object.fromEntries(columns), stacks, labelledRows };
}

/** All rows that these stand for. */
export const unstacked = ({ stacks }, rows) => rows.flatMap((row) => stacks?.get(row) ?? [row]);
