// A proposal to cluster again with the decisions as constraints: what would move, to be taken or dropped as one step.

import { headline, offer } from "/static/review/answers.js";
import { bind } from "/static/review/keys.js";
import { shown } from "/static/review/names.js";
import { thumb } from "/static/review/pictures.js";
import { categoryOf, decide, get, goTo } from "/static/review/state.js";
import { isolated, make } from "/static/shared/dom.js";
import { counted, thousands } from "/static/shared/text.js";

export async function refitting(view) {
  const body = make("div", { className: "question" });
  body.append(make("p", { className: "state", role: "status", textContent: "Clustering again…" }));
  view.replaceChildren(body);
  const made = { title: "Refit", keys: [], update, close() {} };
  let taken = false;

  async function update() {
    if (taken) return;
    const { version, k, moves, new: added } = await get("/api/refit");
    const images = moves.reduce((sum, move) => sum + move.images, 0);
    const title = images ? `${counted(images, "image")} would move` : "Nothing would move";
    const facts = `${thousands(k[0])} categories before, ${thousands(k[1])} after`;
    const names = new Map(added.map(({ id, name }) => [id, name]));
    body.replaceChildren(
      headline(
        [title],
        `Clustered again on the same features, with your decisions as constraints: ${facts}. `,
        "What you have settled stays where it is.",
      ),
      make("ul", { className: "moves" }, ...moves.map((move) => moveLine(move, names))),
    );
    const keys = bind("refit", { yes: images ? () => take(version) : undefined, no: () => goTo("") });
    made.keys = keys.filter(({ action }) => action);
    offer(body, made.keys);
  }

  async function take(version) {
    taken = true; // it is not computed again while it is carried out
    taken = await decide({ do: "refit" }, version);
    if (taken) goTo("");
  }

  return made;
}

/** Show how many images would move, and some of them; `names` are those of new categories by id. */
function moveLine({ from, to, images, rows }, names) {
  const named = (id) => (categoryOf(id) ? shown(categoryOf(id)) : isolated(names.get(id) ?? ""));
  const isNew = names.has(to) && " (new)";
  return make(
    "li",
    {},
    make("p", {}, `${counted(images, "image")} from `, named(from), " to ", named(to), isNew),
    make("div", { className: "strip" }, ...rows.map((row) => thumb(row))),
  );
}
