// What people disagree about: where an image belongs, the name of a category, and whether two are one.

import { saying } from "/static/review/answers.js";
import { chooseName } from "/static/review/dialogs.js";
import { bind } from "/static/review/keys.js";
import { askMove, moving, shown } from "/static/review/names.js";
import { large } from "/static/review/pictures.js";
import { showBeside } from "/static/review/splitting.js";
import { categoryOf, decide, describe, goTo } from "/static/review/state.js";
import { isolated, make } from "/static/shared/dom.js";
import { counted } from "/static/shared/text.js";

/** The name of what someone wants: a category, a new one, or the bin. */
const nameOf = (id, name = "") => {
  if (categoryOf(id)) return shown(categoryOf(id));
  return name ? isolated(name) : make("span", { textContent: "no category" });
};

const namesOf = ({ by }) => by.map((name) => isolated(name || "someone"));

/** The name of a category, which someone else wants to be called otherwise. */
export async function name(body, item, at) {
  const [id] = item.categories;
  const { name: now } = categoryOf(id);
  const [decider, other] = namesOf(item);
  const title = ["Is this ", isolated(now), " or ", isolated(item.name), "?"];
  const why = [decider, " named it ", isolated(now), "; ", other, " wants ", isolated(item.name), "."];
  const images = counted(categoryOf(id).size, "image");
  const close = await showBeside(body, title, why, [[`The most typical of ${images}`, item.rows[0]]]);
  const call = (text) => decide({ do: "rename", category: id, name: text, settles: true }, at.version);
  const keys = bind("name", {
    yes: () => call(now),
    no: () => call(item.name),
    other: async () => {
      const to = await chooseName("Name it", { existing: false, required: true });
      if (to) await call(to.name);
    },
  });
  return { keys: saying(keys, { y: () => `Keep ${now}`, n: () => `Call it ${item.name}` }), close };
}

/** Categories that one person merges, and another keeps apart. */
export async function union(body, item, at) {
  const { categories } = item;
  const [decider, other] = namesOf(item);
  const groups = categories.map((id, side) => {
    const size = make("span", { className: "near", textContent: ` · ${counted(categoryOf(id).size, "image")}` });
    return [make("span", {}, shown(categoryOf(id)), size), item.rows[side]];
  });
  const why = [decider, " keeps them apart; ", other, " wants to merge them."];
  const close = await showBeside(body, ["Are these the same class?"], why, groups);
  const keys = bind("union", {
    yes: () => decide({ do: "merge", categories, settles: true }, at.version),
    no: () => decide({ do: "keep", categories: categories.slice(0, 2), settles: true }, at.version),
    beside: () => goTo(`pair/${categories.slice(0, 2).join("/")}`),
  });
  return { keys, close };
}

export async function disputed(body, item, at) {
  const [row] = item.rows[0];
  const [own, wanted] = item.categories;
  const [decider, other] = namesOf(item);
  const { file } = await describe([row]);
  const groups = item.categories.map((id, side) => {
    const who = side ? other.cloneNode(true) : decider.cloneNode(true);
    return [make("span", {}, who, ": ", nameOf(id, side ? item.name : "")), item.rows[1 + side] ?? []];
  });
  const against = wanted === undefined ? [" says it is not ", nameOf(own), "."] : [" contradicts ", decider, "."];
  const close = await showBeside(body, ["Who is right?"], [other, ...against], groups);
  const two = body.querySelector(".two");
  const heading = make("h2", { textContent: "This image" });
  two.prepend(make("section", {}, heading, large(row, { className: "one", alt: file[0], title: file[0] })));
  two.style.setProperty("--columns", groups.length + 1);
  const settle = (action) => action && decide({ ...action, settles: true }, at.version);
  const bin = { do: "bin", rows: [row] };
  const stay = categoryOf(own) ? { do: "accept", rows: [row] } : bin;
  const change = categoryOf(wanted) || item.name
    ? moving([row], categoryOf(wanted) ? { id: wanted } : { name: item.name })
    : bin;
  const keys = bind("disputed", {
    yes: () => settle(stay),
    no: wanted === undefined ? undefined : () => settle(change),
    move: async () => settle(await askMove("Move to", [row], { without: item.categories })),
    bin: [stay, change].includes(bin) ? undefined : () => settle(bin),
  });
  return { keys: keys.filter(({ action }) => action), close };
}
