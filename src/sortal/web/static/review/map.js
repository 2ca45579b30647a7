// The map, and beside it the images inside the lasso.

import { Grid, NO_IMAGES, reviewedWord } from "/static/review/grid.js";
import { openImage } from "/static/review/image.js";
import { bind } from "/static/review/keys.js";
import { mixedActions, mixedTools } from "/static/review/mixed.js";
import { sureness } from "/static/review/phrases.js";
import { thumb } from "/static/review/pictures.js";
import { categoryOf, get, state } from "/static/review/state.js";
import { folded, toolbar } from "/static/review/toolbar.js";
import { button, categoryColour, isolated, make, styleColour } from "/static/shared/dom.js";
import { middle } from "/static/shared/geometry.js";
import { PointMap } from "/static/shared/point_map.js";
import { counted, thousands } from "/static/shared/text.js";

const LABEL =
  "Map of the images. Drag draws a lasso; with Alt, or the middle button, it pans. " +
  "Plus and minus zoom, arrow keys pan, 0 resets.";
const SCALE = [[0, "lowest"], [1, "highest"]];
const REVIEWED_COLOURS = { confirmed: "--known", moved: "--new", rejected: "--astray", labelled: "--known" };

/** What decides the colour of a point, and the colour of such a value. */
const COLOURS = {
  category: [(data, at) => data.category[at], categoryColour],
  status: [statusOf, (status) => styleColour(`--${status}`)],
  confidence: [
    (data, at) => Math.round(20 * data.confidence[at]) / 20,
    (share) => `oklch(${0.35 + 0.5 * share} 0.13 ${30 + 210 * share})`,
  ],
  reviewed: [reviewedWord, (word) => styleColour(word ? REVIEWED_COLOURS[word] ?? "--labelled" : "--line")],
};

function statusOf(data, at) {
  if (data.labelled[at]) return "labelled";
  if (data.other[at]) return "other";
  if (data.confidence[at] < state.unsure_below) return "unsure";
  return categoryOf(data.category[at])?.kind ?? "new";
}

/** The columns of some points as those of a grid. */
function columnsOf(data, points) {
  const columns = Object.keys(NO_IMAGES).map((name) => [name, points.map((point) => data[name][point])]);
  return { ...Object.fromEntries(columns), version: data.version };
}

function tooltip(data, point) {
  const said = reviewedWord(data, point) || state.reviewed_words[0];
  const line = `${sureness(data, point, state)}, ${data.labelled[point] ? said : `reviewed: ${said}`}`;
  return [
    thumb(data.rows[point], { width: 120, height: 120 }),
    make("div", {}, make("b", {}, isolated(categoryOf(data.category[point])?.name ?? ""))),
    make("div", { className: "soft", textContent: line }),
  ];
}

/** The points of a map by a value of each, those of the most frequent value first. */
function grouped(count, valueOf) {
  const groups = new Map();
  for (let point = 0; point < count; point++) {
    const value = valueOf(point);
    if (!groups.has(value)) groups.set(value, []);
    groups.get(value).push(point);
  }
  return [...groups].sort(([, a], [, b]) => b.length - a.length);
}

/** The colour of a value of a column: a share of its range, or the number of a value; below 0 without one. */
function columnColour(value, scale) {
  if (value < 0) return styleColour("--line");
  return scale ? `oklch(${0.35 + 0.5 * value} 0.13 ${30 + 210 * value})` : categoryColour(value);
}

export async function mapPage(view) {
  const canvas = make("canvas", { tabIndex: 0, role: "application", ariaLabel: LABEL });
  const tip = make("div", { id: "tip", hidden: true });
  const count = make("span", { className: "chosen", role: "status" });
  const colours = Object.keys(COLOURS).map((value) => make("option", { value, textContent: `By ${value}` }));
  const own = state.columns.map(({ name }, at) => make("option", { value: String(at), textContent: `By ${name}` }));
  const ofColumn = make("optgroup", { label: "Columns of your table", hidden: !own.length }, ...own);
  const select = make("select", { ariaLabel: "Colour by", onchange: () => recolour() }, ...colours, ofColumn);
  let column = null; // what decides the colours, if that is a column
  const colouring = () => COLOURS[select.value] ?? COLOURS.category; // while a column is being loaded
  const legend = make("div", { id: "legend", role: "group", ariaLabel: "Colours" });
  let lit = null; // the value of the legend whose points are highlighted

  /** What the colours mean: values with their names. A scale has a few of its values, which nothing is exactly. */
  function meanings() {
    if (column?.scale) return column.key.map(([value, text]) => [value, text, []]);
    if (select.value === "confidence") return SCALE.map(([value, text]) => [value, text, []]);
    const names = new Map(column?.key ?? []);
    const nameOf = {
      category: (id) => categoryOf(id)?.name ?? "",
      reviewed: (word) => word || "not reviewed",
    }[select.value] ?? ((value) => (column ? names.get(value) ?? "" : value));
    return grouped(map.count, map.valueOf).map(([value, points]) => [value, nameOf(value), points]);
  }

  function legendLine([value, text, points]) {
    const swatch = make("i", { ariaHidden: "true" });
    swatch.style.setProperty("--swatch", map.colourOf(value));
    if (!points.length) return make("span", {}, swatch, isolated(text));
    const show = () => {
      lit = lit === value ? null : value;
      map.light(lit === null ? null : (point) => map.valueOf(point) === lit);
      if (lit === null) map.zoom(0);
      else map.frame(points);
      for (const each of legend.children) each.ariaPressed = String(each === line && lit !== null);
    };
    const size = make("span", { className: "n", textContent: thousands(points.length) });
    const state = { title: text, ariaPressed: String(lit === value) };
    const line = button(swatch, show, state, isolated(text, "name"), size);
    return line;
  }

  /** Explain the colours, and put names on the map. */
  function explain() {
    legend.replaceChildren(...meanings().filter(([, text]) => text).map(legendLine));
    const named = grouped(map.count, (point) => map.data.category[point]);
    map.labels = named.map(([id, points]) => [categoryOf(id)?.name ?? "", ...middle(points, map.data)]);
    map.redraw();
  }

  /** Ask for the column that decides the colours; its values are by row, as other points leave the map and return. */
  const loadColumn = async () => {
    const wanted = select.value;
    const found = wanted in COLOURS ? null : await get(`/api/colours/${wanted}`);
    if (wanted !== select.value) return; // another was chosen meanwhile
    column = found && { ...found, values: new Map(found.rows.map((row, at) => [row, found.values[at]])) };
  };
  const recolour = async () => {
    await loadColumn();
    lit = null;
    map.light(null);
    explain();
  };
  const grid = new Grid(NO_IMAGES, { open: (row) => openImage(row, grid.data.rows) });
  grid.empty.remove(); // nothing is missing before anything is chosen
  const map = new PointMap(canvas, tip, {
    data: { ...NO_IMAGES, x: [], y: [] },
    valueOf: (point) => (column ? column.values.get(map.data.rows[point]) ?? -1 : colouring()[0](map.data, point)),
    colourOf: (value) => (column ? columnColour(value, column.scale) : colouring()[1](value)),
    describe: (point) => tooltip(map.data, point),
    clickOn: (point) => () => openImage(map.data.rows[point], map.data.rows),
    choose: (points) => list(points),
  });

  /** List the images inside the lasso. */
  function list(points) {
    grid.show(columnsOf(map.data, points));
    const inside = new Set(points);
    map.light(points.length ? (point) => inside.has(point) : null);
    const [shown, all] = [map.count, state.images - state.binned];
    const sample = shown && shown < all ? ` A sample of ${thousands(shown)} of ${thousands(all)} is shown.` : "";
    const hint = `Draw around images to choose them.${sample}`;
    count.textContent = points.length ? `${counted(points.length, "image")} in the lasso` : hint;
  }

  const inLasso = () => (grid.chosen.size ? [...grid.chosen] : grid.data.rows.filter((row) => grid.canChoose(row)));
  const actions = mixedActions(grid, inLasso, "Draw around images first.");
  const tools = folded([count, ...mixedTools(actions, "map")], 5);
  const zooms = [["+", 1.6, "Zoom in"], ["−", 1 / 1.6, "Zoom out"], ["⟲", 0, "Show everything"]];
  const zoom = zooms.map(([text, by, ariaLabel]) => button(text, () => map.zoom(by), { ariaLabel, title: ariaLabel }));
  const stage = make("div", { className: "stage" }, canvas, tip, make("div", { className: "zoom" }, ...zoom));
  const beside = make("section", {}, toolbar(...tools), select, legend, grid.element);
  view.replaceChildren(make("div", { className: "with-map" }, stage, beside));
  list([]);
  canvas.focus({ preventScroll: true });
  const update = async () => {
    const before = new Set(grid.data.rows);
    const [data] = await Promise.all([get("/api/map"), loadColumn()]);
    map.show(data);
    explain();
    list(map.data.rows.flatMap((row, point) => (before.has(row) ? [point] : [])));
  };
  const close = () => {
    map.close();
    grid.close();
  };
  return { title: "Map", keys: bind("map", actions), update, close };
}
