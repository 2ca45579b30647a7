// The map, and beside it the images inside the lasso.

import { chooseName } from "/static/review/dialogs.js";
import { Grid, reviewedWord } from "/static/review/grid.js";
import { openImage } from "/static/review/image.js";
import { bind, KEYS } from "/static/review/keys.js";
import { askMove } from "/static/review/names.js";
import { sureness } from "/static/review/phrases.js";
import { thumb } from "/static/review/pictures.js";
import { categoryOf, decide, get, state, toast } from "/static/review/state.js";
import { button, categoryColour, isolated, make, styleColour } from "/static/shared/dom.js";
import { PointMap } from "/static/shared/point_map.js";
import { counted, thousands } from "/static/shared/text.js";

const COLUMNS = ["rows", "category", "confidence", "reviewed", "labelled", "other", "lost"];
const LABEL =
  "Map of the images. Drag draws a lasso; with Alt, or the middle button, it pans. " +
  "Plus and minus zoom, arrow keys pan, 0 resets.";
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
const columnsOf = (data, points) =>
  Object.fromEntries(COLUMNS.map((name) => [name, points.map((point) => data[name][point])]));

function tooltip(data, point) {
  const said = reviewedWord(data, point) || state.reviewed_words[0];
  const line = `${sureness(data, point, state.unsure_below)}, ${data.labelled[point] ? said : `reviewed: ${said}`}`;
  return [
    thumb(data.rows[point], { width: 120, height: 120 }),
    make("div", {}, make("b", {}, isolated(categoryOf(data.category[point])?.name ?? ""))),
    make("div", { className: "soft", textContent: line }),
  ];
}

/** The category that most of these points are in, and those of them that are. */
function largestGroup(data, points) {
  const groups = new Map();
  for (const point of points) {
    const category = data.category[point];
    if (!groups.has(category)) groups.set(category, []);
    groups.get(category).push(point);
  }
  return [...groups].sort(([, a], [, b]) => b.length - a.length)[0];
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
  const legend = make("div", { className: "legend", role: "group", ariaLabel: "Colours" });
  const load = async () => {
    column = select.value in COLOURS ? null : await get(`/api/colours/${select.value}`);
    const key = (column?.key ?? []).map(([value, text]) => {
      const swatch = make("i", { ariaHidden: "true" });
      swatch.style.setProperty("--swatch", columnColour(value, column.scale));
      return make("span", {}, swatch, isolated(text));
    });
    legend.replaceChildren(...key);
  };
  const recolour = async () => {
    await load();
    map.redraw();
  };
  const nothing = Object.fromEntries([...COLUMNS, "x", "y"].map((name) => [name, []]));
  const grid = new Grid(nothing, { open: (row) => openImage(row, grid.data.rows) });
  const map = new PointMap(canvas, tip, {
    data: nothing,
    valueOf: (point) => (column ? column.values[point] ?? -1 : colouring()[0](map.data, point)),
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
    const [shown, all] = [map.count, state.images];
    const sample = shown && shown < all ? ` A sample of ${thousands(shown)} of ${thousands(all)} is shown.` : "";
    const hint = `Draw around images to choose them.${sample}`;
    count.textContent = points.length ? `${counted(points.length, "image")} in the lasso` : hint;
  }

  const act = (action) => action && decide(action, map.data.version);
  const inLasso = () => (grid.chosen.size ? [...grid.chosen] : grid.data.rows.filter((row) => grid.canChoose(row)));
  const needsImages = (action) => async () => {
    const rows = inLasso();
    if (rows.length) await action(rows);
    else toast("Draw around images first.");
  };
  const actions = {
    confirm: needsImages((rows) => act({ do: "accept", rows })),
    move: needsImages(async (rows) => act(await askMove(`Move ${counted(rows.length, "image")} to`, rows))),
    bin: needsImages((rows) => act({ do: "bin", rows })),
    split: needsImages(async (rows) => {
      const [own, points] = largestGroup(grid.data, rows.map((row) => grid.indexOf.get(row)));
      const wanted = points.map((point) => grid.data.rows[point]);
      const title = `Split ${counted(wanted.length, "image")} off ${categoryOf(own).name} as`;
      const to = await chooseName(title, { existing: false });
      if (to) await act({ do: "split", rows: wanted, name: to.name });
    }),
  };
  const tool = (text, name) => {
    const kbd = make("kbd", { textContent: KEYS.map[name][0], ariaHidden: "true" });
    return button(text, () => actions[name](), {}, kbd);
  };
  const offered = { confirm: "Confirm", move: "Move", split: "Split off", bin: "No category" };
  const tools = Object.entries(offered).map(([key, words]) => tool(words, key));
  const bar = { className: "sticky", role: "toolbar", ariaLabel: "Decisions" };
  const stage = make("div", { className: "stage" }, canvas, tip);
  const beside = make("section", {}, make("div", bar, select, ...tools, count), legend, grid.element);
  view.replaceChildren(make("div", { className: "with-map" }, stage, beside));
  list([]);
  const update = async () => {
    const before = new Set(grid.data.rows);
    map.show(await get("/api/map"));
    list(map.data.rows.flatMap((row, point) => (before.has(row) ? [point] : [])));
  };
  const close = () => {
    map.close();
    grid.close();
  };
  return { title: "Map", keys: bind("map", actions), update, close };
}
