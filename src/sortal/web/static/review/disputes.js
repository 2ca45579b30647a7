// An image that people disagree about: where it is now, and where someone else wants it.

import { bind } from "/static/review/keys.js";
import { askMove, moving, shown } from "/static/review/names.js";
import { large } from "/static/review/pictures.js";
import { showBeside } from "/static/review/splitting.js";
import { categoryOf, decide, describe } from "/static/review/state.js";
import { isolated, make } from "/static/shared/dom.js";

/** The name of what someone wants: a category, a new one, or the bin. */
const nameOf = (id, name = "") => {
  if (categoryOf(id)) return shown(categoryOf(id));
  return name ? isolated(name) : make("span", { textContent: "no category" });
};

export async function disputed(body, item, at) {
  const [row] = item.rows[0];
  const [own, wanted] = item.categories;
  const [decider, other] = item.by.map((name) => isolated(name || "someone"));
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
