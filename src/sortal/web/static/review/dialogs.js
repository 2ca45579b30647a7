// The name box, questions, and the list of keys.

import { categoryOf, state } from "/static/review/state.js";
import { byId, isolated, make, thousands } from "/static/shared/shared.js";

/** Tell whether a text field or a dialog has the keyboard. */
export const typing = () => Boolean(document.querySelector("dialog[open]")) || /^(input|select|textarea)$/i.test(document.activeElement?.tagName ?? "");

/** Ask a yes-or-no question. */
export function ask(text, yes = "Yes", no = "No") {
  const dialog = byId("ask");
  byId("ask-text").textContent = text;
  byId("ask-yes").textContent = yes;
  byId("ask-no").textContent = no;
  return new Promise((resolve) => {
    const finish = (answer) => () => { resolve(answer); dialog.close(); };
    byId("ask-yes").onclick = finish(true);
    byId("ask-no").onclick = finish(false);
    dialog.onclose = () => resolve(false);
    dialog.showModal();
    byId("ask-yes").focus();
  });
}

/**
 * Let a person choose a category or type a new name: {id} or {name}, or null.
 * Whatever is highlighted is taken, never something that only begins like it; where a name is required, nothing is
 * highlighted before one is typed or chosen.
 */
export function chooseName(title, { without = [], create = "New category", value = "", existing = true, required = false, suggestions = null } = {}) {
  const [dialog, input, list] = [byId("names"), byId("name"), byId("found")];
  byId("names-title").textContent = title;
  input.value = value;
  let entries = [];
  let at = 0;
  let [suggested, similar] = [[], []];
  const draw = () => {
    const wanted = input.value.trim();
    const match = existing ? state.categories.filter((each) => !without.includes(each.id) && each.name.toLowerCase().includes(wanted.toLowerCase())) : [];
    const rank = (each) => (similar.indexOf(each.id) + similar.length + 1) % (similar.length + 1);
    match.sort((a, b) => rank(a) - rank(b) || b.name.toLowerCase().startsWith(wanted.toLowerCase()) - a.name.toLowerCase().startsWith(wanted.toLowerCase()) || a.name.localeCompare(b.name, undefined, { numeric: true }));
    const exact = state.categories.some((each) => each.name === wanted && !without.includes(each.id));
    entries = match.map((each) => ({ id: each.id }));
    const taken = new Set(state.categories.map((each) => each.name));
    const fits = (word) => !taken.has(word) && word !== wanted && word.toLowerCase().includes(wanted.toLowerCase());
    const words = create && wanted ? state.words.filter(fits).slice(0, 20) : [];
    const offered = create ? suggested.filter(fits) : [];
    entries = [...offered.map((name) => ({ name, why: "suggested" })), ...entries, ...words.filter((word) => !offered.includes(word)).map((name) => ({ name }))];
    const nothing = required && !wanted;
    if (create && !nothing && (!exact || !existing)) entries.unshift({ name: wanted });
    // Typing means a new name unless it is exactly that of a category.
    at = wanted && exact && existing ? entries.findIndex((each) => categoryOf(each.id)?.name === wanted) : wanted || !match.length ? 0 : Number(Boolean(create));
    at = nothing ? -1 : Math.min(Math.max(at, 0), entries.length - 1);
    list.replaceChildren(...entries.map((each, index) => {
      const own = categoryOf(each.id);
      const line = own
        ? make("li", {}, isolated(own.name), make("span", { className: "n", textContent: similar.includes(each.id) ? `similar · ${thousands(own.size)}` : thousands(own.size) }))
        : make("li", {}, make("span", {}, `${create} `, isolated(each.name || state.free_name)), each.why ? make("span", { className: "n", textContent: each.why }) : null);
      line.role = "option";
      line.id = `found-${index}`;
      line.addEventListener("click", () => finish(each));
      return line;
    }));
    mark();
  };
  const mark = () => {
    [...list.children].forEach((line, index) => { line.ariaSelected = String(index === at); });
    list.children[at]?.scrollIntoView({ block: "nearest" });
    input.setAttribute("aria-activedescendant", entries[at] ? `found-${at}` : "");
  };
  let finish;
  return new Promise((resolve) => {
    finish = (choice) => { resolve(choice); dialog.close(); };
    input.oninput = draw;
    input.onkeydown = (event) => {
      if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        at = event.key === "ArrowDown" ? (at + 1) % Math.max(1, entries.length) : (at <= 0 ? entries.length : at) - 1;
        mark();
      } else if (event.key === "Enter") {
        if (entries[at]) finish(entries[at]);
      } else return;
      event.preventDefault();
    };
    let open = true;
    dialog.onclose = () => { open = false; resolve(null); };
    dialog.showModal();
    draw();
    input.select();
    suggestions?.then(({ names, near }) => {
      if (!open) return;
      const marked = entries[at];
      [suggested, similar] = [names, near];
      draw();
      // What was highlighted stays so, whatever appears around it.
      if (marked) at = Math.max(0, entries.findIndex((each) => each.id === marked.id && each.name === marked.name));
      mark();
    });
  });
}

/** Show the keys of this page. */
export function help(keys) {
  byId("keys").replaceChildren(...keys.map(([key, what]) => make("div", {}, make("dt", {}, make("kbd", { textContent: key })), make("dd", { textContent: what }))));
  byId("help").showModal();
}
