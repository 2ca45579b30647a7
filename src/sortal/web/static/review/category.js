// The images of one category, and two categories side by side.

import { ask, chooseName } from "/static/review/dialogs.js";
import { Grid } from "/static/review/grid.js";
import { openImage } from "/static/review/image.js";
import { bind, KEYS, labelOf } from "/static/review/keys.js";
import { askMove, mergeInto, moving, rename, shown } from "/static/review/names.js";
import { acceptedUnseen, leftToDo } from "/static/review/phrases.js";
import { stacked, unstacked } from "/static/review/stacks.js";
import { categoryOf, decide, get, goTo, state, toast } from "/static/review/state.js";
import { folded, needsImages, toolbar } from "/static/review/toolbar.js";
import { button, make } from "/static/shared/dom.js";
import { counted, thousands } from "/static/shared/text.js";

const ORDERS = { doubt: "Least sure first", typical: "Most typical first" };
const COLUMN_ORDERS = { up: "Column, ascending", down: "Column, descending" };
const FITS = "text, >5 or 5..9";
const STACKS = "Show images of a group as one, and decide on all of them";
const UNSEEN = "Those that you have not scrolled to count as accepted unseen: you are asked about a sample of them.";
const FIRST_TOOLS = 4; // the count and the tools that a narrow window shows
const BUTTONS = {
  confirmPage: "Confirm page",
  confirm: "Confirm",
  move: "Move",
  reject: "Wrong here",
  bin: "Into the bin",
  split: "Split off",
  propose: "Propose a split",
  rename: "Rename",
  merge: "Merge",
  confirmAll: "Confirm all",
  beside: "Beside",
};
let order = "doubt"; // of the last grid
let filter = { column: "", fits: "" }; // of the last grid: the number of a column, and what its cells must fit
let stacks = true; // whether images of a group are shown as one

/** What can be done with the images of a grid of a category; `other` is the one beside it. */
function actionsOf(id, grid, other) {
  const name = () => categoryOf(id).name;
  const chosen = () => unstacked(grid.data, [...grid.chosen]);
  // About what this grid shows; afterwards nothing is chosen, so that the next decision is not about the same images.
  const act = async (action) => {
    if (action && (await decide(action, grid.data.version))) grid.choose([]);
  };
  const needsChoice = (action) => needsImages(chosen, action);
  const follow = (to) => to !== null && to !== id && goTo(`category/${to}`);
  const chooseOther = (title) => chooseName(title, { without: [id], create: "" });
  return {
    confirm: needsChoice(() => act({ do: "accept", rows: chosen() })),
    confirmPage: async () => {
      const { labelledRows, labelled } = grid.data; // the former of all images of stacks
      const hasLabel = (row) => labelledRows?.has(row) ?? labelled[grid.indexOf.get(row)];
      const open = (row) => !grid.chosen.has(row) && grid.canChoose(row);
      const rows = unstacked(grid.data, grid.rowsInView().filter(open)).filter((row) => !hasLabel(row));
      if (rows.length) await decide({ do: "accept", rows }, grid.data.version);
    },
    confirmAll: async () => {
      const rows = unstacked(grid.data, [...grid.seen]);
      const unseen = rows.length < categoryOf(id).size ? ` ${UNSEEN}` : "";
      const text = `Confirm all ${counted(categoryOf(id).size, "image")} of ${name()}?${unseen}`;
      if (await ask(text, "Confirm", "Cancel")) await act({ do: "accept category", category: id, shown: rows });
    },
    move: needsChoice(async () => {
      const title = `Move ${counted(chosen().length, "image")} to`;
      await act(other ? moving(chosen(), other) : await askMove(title, chosen(), { without: [id] }));
    }),
    reject: needsChoice(() => act({ do: "reject", rows: chosen(), category: id })),
    bin: needsChoice(() => act({ do: "bin", rows: chosen() })),
    split: needsChoice(async () => {
      const to = await chooseName(`Split ${counted(chosen().length, "image")} off as`, { existing: false });
      if (to) await act({ do: "create", rows: chosen(), name: to.name }); // each was chosen by hand
    }),
    rename: async () => follow(await rename(id)),
    propose: async () => goTo(`split/${id}`),
    beside: async () => {
      const to = await chooseOther(`Show ${name()} beside`);
      if (to) goTo(`pair/${id}/${to.id}`);
    },
    merge: async () => {
      const to = await chooseOther(`Merge ${name()} into`);
      if (to) follow(await mergeInto(id, to.id));
    },
    chooseInView: () => grid.choose(grid.rowsInView()),
  };
}

/** The tools of a grid; beside another, only some actions have a key. */
function tools(grid, actions, other, count, ...views) {
  const names = Object.keys(BUTTONS).filter((name) => !other || name !== "beside");
  const buttons = names.map((name) => {
    const [key] = KEYS[other ? "pair" : "category"][name] ?? [];
    const kbd = key ? make("kbd", { textContent: labelOf(key), ariaHidden: "true" }) : null;
    const act = async () => {
      await actions[name]();
      grid.element.focus({ preventScroll: true });
    };
    return button(BUTTONS[name], act, { className: name === "confirmPage" ? "primary" : "" }, kbd);
  });
  for (const view of views) view.classList.add("view");
  const [first, rest] = [buttons.slice(0, FIRST_TOOLS - 1), buttons.slice(FIRST_TOOLS - 1)];
  const elements = folded([count, ...first, ...views, ...rest], FIRST_TOOLS);
  return toolbar(...elements);
}

/** The choice of a column and of what its cells must fit; calls `changed`. */
function columnFilter(changed) {
  const any = make("option", { value: "", textContent: "Any column" });
  const names = state.columns.map(({ name }, at) => make("option", { value: String(at), textContent: name }));
  const select = make("select", { ariaLabel: "Column" }, any, ...names);
  const list = make("datalist", { id: `choices-${Math.random().toString(36).slice(2)}` });
  const input = make("input", { type: "search", ariaLabel: "What the column must fit", placeholder: FITS });
  input.setAttribute("list", list.id);
  select.value = filter.column;
  input.value = filter.fits;
  const show = () => {
    input.hidden = select.value === "";
    const choices = state.columns[select.value]?.choices ?? [];
    list.replaceChildren(...choices.map((value) => make("option", { value })));
  };
  const choose = () => {
    if (filter.column !== select.value) input.value = "";
    filter = { column: select.value, fits: input.value };
    show();
    changed();
  };
  select.onchange = choose;
  input.onchange = choose;
  input.onsearch = choose;
  show();
  return make("span", { className: "filter", hidden: !state.columns.length }, select, input, list);
}

/** The grid of one category with its heading and its tools. */
async function pane(id, other = null) {
  const [title, facts] = [make("h1"), make("span", { className: "soft" })];
  const count = make("span", { className: "chosen", role: "status" });
  const select = make("select", { ariaLabel: "Order" });
  const offerOrders = () => {
    const offered = { ...ORDERS, ...(filter.column === "" ? {} : COLUMN_ORDERS) };
    if (!(order in offered)) order = "doubt";
    select.replaceChildren(
      ...Object.entries(offered).map(([value, textContent]) => make("option", { value, textContent })),
    );
    select.value = order;
  };
  offerOrders();
  const load = async () => {
    const where = filter.column === "" ? "" : `&column=${filter.column}&fits=${encodeURIComponent(filter.fits)}`;
    const data = await get(`/api/category/${id}?order=${select.value}${where}`);
    const found = stacked(data);
    together.hidden = found.rows.length === data.rows.length;
    return stacks ? found : data;
  };
  const tell = () => {
    const [all, chosen] = [grid.data.rows, [...grid.chosen]].map((rows) => unstacked(grid.data, rows).length);
    count.textContent = chosen ? `${thousands(chosen)} of ${thousands(all)} chosen` : counted(all, "image");
  };
  const reload = async () => grid.show(await load());
  const restack = async () => {
    stacks = !stacks;
    together.ariaPressed = String(stacks);
    await reload();
  };
  const together = button("Stacks", restack, { className: "toggle", ariaPressed: String(stacks), title: STACKS });
  const byColumn = columnFilter(async () => {
    offerOrders();
    await reload();
  });
  const grid = new Grid(await load(), { changed: tell, open: (row) => openImage(row, grid.data.rows) });
  const actions = actionsOf(id, grid, other);
  select.onchange = async () => {
    order = select.value;
    await reload();
  };
  const element = make(
    "section",
    {},
    make("div", { className: "head" }, title, facts),
    tools(grid, actions, other, count, select, byColumn, together),
    grid.element,
  );
  tell();
  const update = async () => {
    const own = categoryOf(id);
    if (!own) return false;
    title.replaceChildren(shown(own));
    const unseen = state.unseen.categories[id];
    const settled = `${own.kind} · ${leftToDo(own)}`;
    facts.textContent = unseen ? `${settled} · ${acceptedUnseen(unseen)}` : settled;
    const data = await load();
    if (data.version >= grid.data.version) grid.show(data); // not an older answer that came late
    return true;
  };
  return { element, grid, actions, update, close: () => grid.close() };
}

/** The id of the category that is so many steps from another among those with images to settle, the most first. */
function neighbour(id, by) {
  const left = ({ size, settled }) => size - settled;
  const open = state.categories.filter((each) => left(each) > 0).sort((a, b) => left(b) - left(a));
  const ids = (open.length ? open : state.categories).map((each) => each.id);
  return ids[(ids.indexOf(id) + by + ids.length) % ids.length] ?? ids[0];
}

export async function categoryPage(view, id) {
  if (!categoryOf(id)) return null;
  const one = await pane(id);
  view.replaceChildren(one.element);
  one.grid.element.focus({ preventScroll: true });
  const step = (by) => () => goTo(`category/${neighbour(id, by)}`);
  const update = async () => {
    if (await one.update()) return;
    toast("This category is gone.");
    goTo("");
  };
  const keys = bind("category", { ...one.actions, following: step(1), previous: step(-1) });
  return { title: categoryOf(id).name, keys, update, close: one.close };
}

export async function pairPage(view, left, right) {
  if (!categoryOf(left) || !categoryOf(right) || left === right) return null;
  const panes = [await pane(left, { id: right }), await pane(right, { id: left })];
  const [one, two] = panes;
  view.replaceChildren(make("div", { className: "two" }, one.element, two.element));
  one.grid.element.focus({ preventScroll: true });
  const active = () => {
    const onlyTwo = !one.grid.chosen.size && two.grid.chosen.size;
    return onlyTwo || two.element.contains(document.activeElement) ? two : one;
  };
  const keys = bind("pair", {
    move: () => active().actions.move(),
    confirm: () => active().actions.confirm(),
    reject: () => active().actions.reject(),
    bin: () => active().actions.bin(),
    mergeBoth: async () => {
      const to = await mergeInto(right, left);
      if (to !== null) goTo(`category/${to}`);
    },
    keep: () => decide({ do: "keep", categories: [left, right] }),
  });
  const update = async () => {
    for (const each of panes) if (!(await each.update())) return goTo("");
  };
  return { title: "Two categories", keys, update, close: () => panes.forEach((each) => each.close()) };
}
