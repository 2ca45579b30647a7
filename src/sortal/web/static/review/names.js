// Names of categories: how they are shown, given and suggested, and merging with one that has the name.

import { ask, chooseName } from "/static/review/dialogs.js";
import { categoryOf, decide, get } from "/static/review/state.js";
import { counted, isolated, make, thousands } from "/static/shared/shared.js";

/** Tell whether nobody has named a category yet. */
export const unnamed = (category) => category.kind === "new" && /^new \d+$/.test(category.name);

/** The name of a category; a number alone says nothing, so what it resembles is added. */
export function shown(category) {
  if (!category) return isolated("");
  const near = categoryOf(category.near[0]);
  if (!unnamed(category) || !near) return isolated(category.name);
  return make("span", {}, isolated(category.name), make("span", { className: "near" }, ", near ", make("i", {}, isolated(near.name))));
}

/** Merge a category into another, after asking; a known one keeps its name. Returns the id of the merged one. */
export async function mergeInto(from, to) {
  const [first, second] = categoryOf(to).kind !== "known" && categoryOf(from).kind === "known" ? [from, to] : [to, from];
  const sure = await ask(`Merge ${categoryOf(second).name} (${counted(categoryOf(second).size, "image")}) into ${categoryOf(first).name} (${thousands(categoryOf(first).size)})?`, "Merge", "Cancel");
  return sure && (await decide({ do: "merge", categories: [first, second] })) ? first : null;
}

/** Let a person name a category; the name of another one asks whether to merge them. Returns its id, or that it is merged with. */
export async function rename(id, title = `Rename ${categoryOf(id).name}`) {
  const suggestions = get(`/api/names/${id}`).catch(() => ({ names: [], near: [] }));
  const value = unnamed(categoryOf(id)) ? "" : categoryOf(id).name;
  const to = await chooseName(title, { without: [id], create: "Rename to", value, required: true, suggestions });
  if (!to || !categoryOf(id)) return id;
  if (to.id !== undefined) return (await mergeInto(id, to.id)) ?? id;
  if (to.name && to.name !== categoryOf(id).name) await decide({ do: "rename", category: id, name: to.name });
  return id;
}
