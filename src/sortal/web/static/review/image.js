// One image, large.

import { reviewedWord } from "/static/review/grid.js";
import { bind } from "/static/review/keys.js";
import { askMove, moving } from "/static/review/names.js";
import { sureness } from "/static/review/phrases.js";
import { lostPicture, original, thumb } from "/static/review/pictures.js";
import { categoryOf, decide, describe, get, goTo, state } from "/static/review/state.js";
import { button, definitions, isolated, make } from "/static/shared/dom.js";

const LOST = "Nothing can be decided about this image until the earlier file is back.";
let trail = []; // rows of the grid or map that the last image was opened from, for next and previous

/** Go to the page of an image, one of these rows. */
export function openImage(row, rows) {
  trail = rows;
  goTo(`image/${row}`);
}

const NOWHERE = -1; // the category of images in the bin
const nameOf = (id) => (id === NOWHERE ? "none: in the bin" : categoryOf(id)?.name ?? "");

function moveButton(row, id) {
  const kind = categoryOf(id)?.kind ?? "";
  const badge = make("span", { className: `badge ${kind}`, textContent: kind });
  return button(isolated(nameOf(id)), () => decide(moving([row], { id })), {}, badge);
}

function similarImage(row, category) {
  const name = nameOf(category);
  return make("a", { href: `#/image/${row}`, title: name }, thumb(row, { alt: name }));
}

export async function imagePage(view, row) {
  let here = await describe([row]).catch(() => null);
  if (!here) return null;
  const [file] = here.file;
  const [facts, similar, beside] = [make("dl"), make("div"), make("div", { className: "strip" })];
  const others = here.stack[0].filter((each) => each !== row);
  const group = others.length > 0 && make("div", { className: "strip" });
  if (group) {
    const { category } = await describe(others);
    group.append(...others.map((each, at) => similarImage(each, category[at])));
  }
  const picture = here.lost[0] ? lostPicture(here.lost[0]) : original(row, { className: "main", alt: file });
  const about = make(
    "div",
    {},
    facts,
    make("p", { className: "small file", title: file }, isolated(file)),
    group && make("h3", { textContent: "Others of its group" }),
    group,
    make("h3", { textContent: "Move it to a similar category" }),
    similar,
    make("h3", { textContent: "Most similar images" }),
    beside,
    make("p", { className: "more" }, make("a", { href: `#/like/${row}`, textContent: "More like this" })),
  );
  view.replaceChildren(make("div", { className: "large" }, picture, about));

  const update = async () => {
    here = await describe([row]);
    const [own] = here.category;
    facts.replaceChildren(
      ...definitions([
        ["Category", nameOf(own)],
        ["Confidence", sureness(here, 0, state)],
        ["Reviewed", reviewedWord(here, 0) || state.reviewed_words[0]],
        ...(here.removed[0].length ? [["Removed from", here.removed[0].map(nameOf).join(", ")]] : []),
        ...here.cells[0],
      ]),
    );
    const near = await get(`/api/near/${row}`);
    const ids = [...near.known, ...near.new].filter((id) => id !== own);
    const lost = make("p", { className: "soft", textContent: LOST });
    similar.replaceChildren(...(here.lost[0] ? [lost] : ids.map((id) => moveButton(row, id))));
    beside.replaceChildren(...near.rows.map((each, at) => similarImage(each, near.category[at])));
  };
  const step = (by) => () => {
    const at = trail.indexOf(row);
    if (at >= 0 && trail[at + by] !== undefined) goTo(`image/${trail[at + by]}`);
  };
  const keys = bind("image", {
    following: step(1),
    previous: step(-1),
    confirm: () => decide({ do: "accept", rows: [row] }),
    move: async () => {
      const action = await askMove("Move to", [row], { without: here.category });
      if (action) await decide(action);
    },
    reject: () => decide({ do: "reject", rows: [row], category: here.category[0] }),
    like: () => goTo(`like/${row}`),
    bin: () => decide({ do: here.category[0] === NOWHERE ? "put back" : "bin", rows: [row] }),
    back: () => goTo(here.category[0] === NOWHERE ? "bin" : `category/${here.category[0]}`),
  });
  return { title: file, keys, update, close() {} };
}
