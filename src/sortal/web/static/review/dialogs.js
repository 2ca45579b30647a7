// The name box, questions, and the list of keys.

import { labelOf } from "/static/review/keys.js";
import { nameChoices } from "/static/review/name_choices.js";
import { categoryOf, state } from "/static/review/state.js";
import { byId, isolated, make } from "/static/shared/dom.js";
import { thousands } from "/static/shared/text.js";

/** Tell whether a text field or a dialog has the keyboard. */
export function isTyping() {
  const tag = document.activeElement?.tagName ?? "";
  return Boolean(document.querySelector("dialog[open]")) || /^(input|select|textarea)$/i.test(tag);
}

/** Ask a yes-or-no question. */
export function ask(text, yes, no) {
  const dialog = byId("ask");
  byId("ask-text").textContent = text;
  byId("ask-yes").textContent = yes;
  byId("ask-no").textContent = no;
  return new Promise((resolve) => {
    const finish = (answer) => () => {
      resolve(answer);
      dialog.close();
    };
    byId("ask-yes").onclick = finish(true);
    byId("ask-no").onclick = finish(false);
    dialog.onclose = () => resolve(false);
    dialog.showModal();
    byId("ask-yes").focus();
  });
}

const DEFAULTS = { without: [], create: "New category", value: "", existing: true, required: false, suggestions: null };

/**
 * Let a person choose a category or type a new name: { id } or { name }, or null.
 * `suggestions` is a promise of names and similar categories, which appear once they are known.
 */
export function chooseName(title, options = {}) {
  const { create, value, suggestions, ...limits } = { ...DEFAULTS, ...options };
  const [dialog, input, list] = [byId("names"), byId("name"), byId("found")];
  byId("names-title").textContent = title;
  input.maxLength = state.longest_name;
  input.value = value;
  let [entries, at, suggested, similar] = [[], 0, [], []];
  let finish;

  const line = (each, index) => {
    const own = categoryOf(each.id);
    const size = own && thousands(own.size);
    const [name, note] = own
      ? [isolated(own.name), similar.includes(each.id) ? `similar · ${size}` : size]
      : [make("span", {}, `${create} `, isolated(each.name || state.free_name)), each.why];
    const aside = note ? make("span", { className: "n", textContent: note }) : null;
    return make("li", { role: "option", id: `found-${index}`, onclick: () => finish(each) }, name, aside);
  };
  const mark = () => {
    [...list.children].forEach((each, index) => { each.ariaSelected = String(index === at); });
    list.children[at]?.scrollIntoView({ block: "nearest" });
    input.setAttribute("aria-activedescendant", entries[at] ? `found-${at}` : "");
  };
  const draw = () => {
    const { categories, words } = state;
    const known = { categories, words, suggested, similar, create, ...limits };
    ({ entries, at } = nameChoices(input.value.trim(), known));
    list.replaceChildren(...entries.map(line));
    mark();
  };
  const press = (event) => {
    const count = Math.max(1, entries.length);
    if (event.key === "ArrowDown") at = (at + 1) % count;
    else if (event.key === "ArrowUp") at = (at <= 0 ? entries.length : at) - 1;
    else if (event.key === "Enter") entries[at] && finish(entries[at]);
    else return;
    event.preventDefault();
    mark();
  };
  return new Promise((resolve) => {
    let open = true;
    finish = (choice) => {
      resolve(choice);
      dialog.close();
    };
    input.oninput = draw;
    input.onkeydown = press;
    dialog.onclose = () => {
      open = false;
      resolve(null);
    };
    dialog.showModal();
    draw();
    input.select();
    suggestions?.then(({ names, near }) => {
      if (!open) return;
      const marked = entries[at];
      [suggested, similar] = [names, near];
      draw();
      // What was highlighted stays so, whatever appears around it.
      const same = (each) => each.id === marked.id && each.name === marked.name;
      if (marked) at = Math.max(0, entries.findIndex(same));
      mark();
    });
  });
}

/** Show the keys of this page. */
export function help(keys) {
  const line = ({ key, what }) =>
    make("div", {}, make("dt", {}, make("kbd", { textContent: labelOf(key) })), make("dd", { textContent: what }));
  byId("keys").replaceChildren(...keys.map(line));
  byId("help").showModal();
}
