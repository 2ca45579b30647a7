// Names of categories: how they are shown, given and suggested, and merging with one that has the name.

import { ask, chooseName } from "/static/review/dialogs.js";
import { categoryOf, decide, get } from "/static/review/state.js";
import { isolated, make } from "/static/shared/dom.js";
import { counted, thousands } from "/static/shared/text.js";

/** The name of a category; a number alone says nothing, so what it resembles is added. */
export function shown(category) {
  if (!category) return isolated("");
  const near = categoryOf(category.near[0]);
  if (!category.unnamed || !near) return isolated(category.name);
  const resembles = make("span", { className: "near" }, ", near ", make("i", {}, isolated(near.name)));
  return make("span", {}, isolated(category.name), resembles);
}

/** Ask where images go; return the decision, or null. `options` are those of the name box. */
export async function askMove(title, rows, options = {}) {
  const to = await chooseName(title, options);
  return to && moving(rows, to);
}

/** The decision that moves images to a category, or to a new one of some name. */
export const moving = (rows, { id, name }) =>
  id === undefined ? { do: "create", rows, name } : { do: "move", rows, category: id };

/** Merge a category into another, after asking; a known one keeps its name. Returns the id of the merged one. */
export async function mergeInto(from, to) {
  const swapped = categoryOf(to).kind !== "known" && categoryOf(from).kind === "known";
  const [first, second] = swapped ? [from, to] : [to, from];
  const [kept, gone] = [categoryOf(first), categoryOf(second)];
  const text = `Merge ${gone.name} (${counted(gone.size, "image")}) into ${kept.name} (${thousands(kept.size)})?`;
  const sure = await ask(text, "Merge", "Cancel");
  return sure && (await decide({ do: "merge", categories: [first, second] })) ? first : null;
}

/**
 * Let a person name a category; the name of another one asks whether to merge them.
 * Returns its id, or that of the one that it is merged with.
 */
export async function rename(id, title = `Rename ${categoryOf(id).name}`) {
  const suggestions = get(`/api/names/${id}`).catch(() => ({ names: [], near: [] }));
  const value = categoryOf(id).unnamed ? "" : categoryOf(id).name;
  const to = await chooseName(title, { without: [id], create: "Rename to", value, required: true, suggestions });
  if (!to || !categoryOf(id)) return id;
  if (to.id !== undefined) return (await mergeInto(id, to.id)) ?? id;
  if (to.name && to.name !== categoryOf(id).name) await decide({ do: "rename", category: id, name: to.name });
  return id;
}
