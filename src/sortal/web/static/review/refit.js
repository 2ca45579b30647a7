// A proposal to cluster again with the decisions as constraints: what would move, to be taken or dropped as one step.

import { shown } from "/static/review/names.js";
import { thumb } from "/static/review/pictures.js";
import { offer } from "/static/review/questions.js";
import { categoryOf, decide, get } from "/static/review/state.js";
import { counted, isolated, make, thousands } from "/static/shared/shared.js";

export async function refitting(view) {
  const place = make("div", {}, make("p", { className: "state", role: "status", textContent: "Clustering again…" }));
  view.replaceChildren(place);
  const keys = [];
  let taken = false;
  const update = async () => {
    if (taken) return;
    const found = await get("/api/refit");
    const fresh = new Map(found.new.map((each) => [each.id, each.name]));
    const named = (id) => (categoryOf(id) ? shown(categoryOf(id)) : isolated(fresh.get(id) ?? ""));
    const images = found.moves.reduce((sum, move) => sum + move.images, 0);
    const accept = async () => {
      taken = true; // it is not computed again while it is carried out
      if (await decide({ do: "refit" }, found.version)) location.hash = "#/";
      else taken = false;
    };
    const drop = () => { location.hash = "#/"; };
    keys.splice(0, keys.length, ...(images ? [["y", "take it: one step, which can be undone", accept]] : []), ["n", "drop it", drop]);
    const lines = found.moves.map((move) => make(
      "li",
      {},
      make("p", {}, `${counted(move.images, "image")} from `, named(move.from), " to ", named(move.to), fresh.has(move.to) ? " (new)" : ""),
      make("div", { className: "strip" }, ...move.rows.map((row) => thumb(row))),
    ));
    const body = make(
      "div",
      { className: "question" },
      make("div", { className: "head" }, make("h1", { textContent: images ? `${counted(images, "image")} would move` : "Nothing would move" }), make("p", { className: "soft", textContent: `Clustered again on the same features, with your decisions as constraints: ${thousands(found.k[0])} categories before, ${thousands(found.k[1])} after. What you have settled stays where it is.` })),
      make("ul", { className: "moves" }, ...lines),
    );
    offer(body, keys);
    place.replaceChildren(body);
  };
  return { title: "Refit", keys, update, close() {} };
}
