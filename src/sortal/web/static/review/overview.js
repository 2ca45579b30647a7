// The first page: what to do next, and all categories.

import { bind } from "/static/review/keys.js";
import { shown } from "/static/review/names.js";
import { acceptedUnseen, categoryFacts, lostFiles } from "/static/review/phrases.js";
import { thumb } from "/static/review/pictures.js";
import { inWords } from "/static/review/questions.js";
import { questionAddress } from "/static/review/queue.js";
import { get, goTo, state } from "/static/review/state.js";
import { make } from "/static/shared/dom.js";
import { counted } from "/static/shared/text.js";

const FIRST = 5; // questions that are listed
// Kinds of which the first is listed, wherever it is in the queue
const ALWAYS = ["label", "candidate", "disputed", "name", "union"];
const REFIT = "Refit the categories to your decisions";

export function overview(view) {
  const queue = make("ol", { className: "queue" });
  const cards = make("div", { className: "tiles-of" });
  const intro = make("p", { className: "intro", role: "status", textContent: "Looking for questions…" });
  const unseen = make("p", { className: "small" });
  const lost = make("p", { className: "warning", role: "status" });
  const bin = make("p", { className: "more" }, make("a", { href: "#/bin" }));
  const refit = make("p", { className: "more" }, make("a", { href: "#/refit", textContent: REFIT }));
  view.replaceChildren(
    make("section", {}, make("h2", { textContent: "Next" }), intro, lost, queue, unseen, refit),
    make("section", {}, make("h2", { textContent: "Categories" }), cards, bin),
  );
  const update = async () => {
    const filled = state.categories.filter(({ size }) => size);
    const largestFirst = filled.sort((a, b) => b.size - a.size || a.id - b.id);
    cards.replaceChildren(...largestFirst.map(card));
    bin.hidden = !state.binned;
    bin.firstChild.textContent = `Bin: ${counted(state.binned, "image")} in no category`;
    unseen.textContent = acceptedUnseen(state.unseen.overall);
    lost.textContent = lostFiles(state.lost);
    lost.hidden = !lost.textContent;
    const { items } = await get("/api/queue");
    intro.textContent = introduction(items.length);
    const first = ALWAYS.map((kind) => items.findIndex((item) => item.kind === kind));
    const listed = items.map(questionLink).filter((_, at) => at < FIRST || first.includes(at));
    queue.replaceChildren(...listed);
  };
  const walk = (step) => {
    const links = [...view.querySelectorAll("a")];
    const at = links.indexOf(document.activeElement);
    links[Math.min(links.length - 1, Math.max(0, at + step))]?.focus();
  };
  const keys = bind("overview", { down: () => walk(1), up: () => walk(-1), refit: () => goTo("refit") });
  return { title: "Overview", update, close() {}, keys };
}

function introduction(questions) {
  if (questions) {
    return "Questions that settle the most images per second come first. Each is one screen, answered by one key.";
  }
  if (state.settled < state.images) return "Nothing is left to ask.";
  return "Every image is settled. Nothing is left to sort: export the run, or look at any category.";
}

function questionLink(item) {
  const [what, textContent] = inWords(item);
  const why = make("span", { className: "why", textContent });
  return make("li", {}, make("a", { href: questionAddress(item) }, what, why));
}

function card(category) {
  const { id, kind, size, settled, typical } = category;
  const unseen = state.unseen.categories[id];
  const blind = unseen && !unseen.sampled ? counted(unseen.images, "image") : "";
  const unchecked = blind && ` · ${blind} accepted unseen, not checked`;
  const bar = make("i");
  bar.style.width = `${(100 * settled) / size}%`;
  const badge = make("span", { className: `badge ${kind}`, textContent: kind });
  return make(
    "a",
    { className: "panel", href: `#/category/${id}` },
    make("div", { className: "top" }, make("h3", {}, shown(category)), badge),
    make("p", { className: "small", textContent: categoryFacts(category) + unchecked }),
    make("div", { className: "strip" }, ...typical.map((row) => thumb(row))),
    make("div", { className: "meter" }, bar),
  );
}
