// Which question comes next, and the answers while a category is grown.

const ONE_BY_ONE = ["image", "label"]; // kinds whose images are a question each, so that any can be put off

/** Tell questions apart, whatever their likelihood is by now. */
export const questionKey = ({ kind, categories, images, rows }) =>
  JSON.stringify([kind, ...(ONE_BY_ONE.includes(kind) ? rows[0] : [categories, images, rows.flat().slice(0, 3)])]);

// Kinds that two people are not asked of one category
const ABOUT_CATEGORIES = ["grow", "page", "merge", "split", "name", "union"];
const LONGEST_KEY = 120; // characters

/** What a page tells the server that it asks: the key of a question, and the categories that it is about. */
export function asking(item) {
  if (!item) return "";
  const about = ABOUT_CATEGORIES.includes(item.kind) ? item.categories.join(",") : "";
  return `${questionKey(item).slice(0, LONGEST_KEY)} ${about}`;
}

/** Whether someone else is asked a question, or another one about the same category. */
export function isTaken(item, taken) {
  const [key, about] = asking(item).split(" ");
  const ids = about.split(",").filter(Boolean);
  return taken.some((other) => {
    const [theirs, categories] = other.split(" ");
    return theirs === key || categories.split(",").some((id) => ids.includes(id));
  });
}

/** The questions of an item: one for each image, where they are asked one by one. */
export function single(item) {
  if (!ONE_BY_ONE.includes(item.kind)) return [item];
  const [rows, ...beside] = item.rows;
  return rows.map((row) => ({ ...item, rows: [[row], ...beside] }));
}

/** The address of a question, which stays the same wherever it is in the queue. */
export const questionAddress = (item) => `#/next/${encodeURIComponent(questionKey(single(item)[0]))}`;

/**
 * Choose the next question of the server's `items`, given the keys of those put off until `later`.
 * The one that a link asks for, `start`, comes first; one that was `undone` comes back; else the one that is `asked`
 * stays as long as it is still in the queue, all by their keys.
 * Whoever has begun to check labels, the `last` kind of question, goes on with them. What others are asked, which is
 * `taken`, comes last.
 */
export function nextQuestion(items, { later, undone, asked, start, last, taken = [] }) {
  const open = items.flatMap(single).filter((item) => !later.has(questionKey(item)));
  const left = taken.length ? [...open].sort((a, b) => isTaken(a, taken) - isTaken(b, taken)) : open;
  const known = [start, undone, asked].map((key) => left.find((item) => questionKey(item) === key)).find(Boolean);
  if (known) return known;
  return (last === "label" && left.find(({ kind }) => kind === last)) || (left[0] ?? null);
}

const GROWTH_KEY = "sortal-growth"; // in the storage of this tab

/** Keep the answers so far of a question about a category, which become a decision with the last one. */
export const keepGrowth = (of, growth) => sessionStorage.setItem(GROWTH_KEY, JSON.stringify({ of, ...growth }));

/** The answers that were kept of the same question, or none. */
export function keptGrowth(of) {
  const kept = JSON.parse(sessionStorage.getItem(GROWTH_KEY) ?? "null");
  return new Growth(JSON.stringify(kept?.of) === JSON.stringify(of) ? kept.pages : []);
}

/** The answers while a category is grown: a letter for each page, with what it showed and what was chosen as wrong. */
export class Growth {
  constructor(pages = []) {
    this.pages = pages;
  }

  get answers() {
    return this.pages.map(({ letter }) => letter).join("");
  }

  get shown() {
    return this.pages.flatMap(({ rows }) => rows);
  }

  get wrong() {
    return this.pages.flatMap(({ wrong }) => wrong);
  }

  /** How many images were chosen as wrong on pages with this answer. */
  wrongAfter(answer) {
    return this.pages.filter(({ letter }) => letter === answer).flatMap(({ wrong }) => wrong).length;
  }

  /** The answers with one more. */
  and(letter, rows, wrong) {
    return new Growth([...this.pages, { letter, rows, wrong }]);
  }

  /** The answers without the last one. */
  back() {
    return new Growth(this.pages.slice(0, -1));
  }
}
