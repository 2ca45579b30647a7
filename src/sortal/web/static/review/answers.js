// The answers to what is asked, as buttons with keys, and the heading above.

import { labelOf } from "/static/review/keys.js";
import { folded, shortened } from "/static/review/toolbar.js";
import { button, isolated, make } from "/static/shared/dom.js";

const capital = (text) => `${text[0].toUpperCase()}${text.slice(1)}`;

/**
 * Offer the answers as buttons, each with its key; the first stands out only if it is `safe`.
 * What an answer does is its `what` or, where it depends on what is chosen, what `now` returns.
 */
export function offer(body, keys, safe = false) {
  body.querySelector(".answers")?.remove();
  const answers = keys.map(({ key, what, action, isName, now }, at) => {
    const said = now ? make("span", { textContent: capital(now()) }) : shortened(capital(what));
    const text = isName ? isolated(what) : said;
    const kbd = make("kbd", { textContent: labelOf(key), ariaHidden: "true" });
    return button(text, action, { className: safe && !at ? "primary" : "" }, kbd);
  });
  body.append(make("div", { className: "answers", role: "toolbar", ariaLabel: "Answers" }, ...folded(answers, 3)));
}

/** Let the answers that are offered say what they do now. */
export function relabel(body, keys) {
  const buttons = [...body.querySelectorAll(".answers button:not(.fold)")];
  keys.forEach(({ now }, at) => {
    if (now && buttons[at]) buttons[at].firstChild.textContent = now();
  });
}

/** Some keys, of which those named in `says` say what they do now. */
export const saying = (keys, says) => keys.map((each) => (says[each.key] ? { ...each, now: says[each.key] } : each));

/** The rows that are chosen in a grid; all of them if none is. */
export const chosenOrAll = (grid) => (grid.chosen.size ? [...grid.chosen] : grid.data.rows);

export function headline(title, ...small) {
  const heading = make("h1", { tabIndex: -1 }, ...title);
  return make("div", { className: "head" }, heading, make("p", { className: "soft" }, ...small));
}
