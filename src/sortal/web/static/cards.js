// Category cards: filtered, searched, sorted, and drawn in batches.

const BATCH = 30;
const FILTERS = {
  all: () => true,
  known: (category) => !category.new,
  new: (category) => category.new,
  unsure: (category) => category.unsure > 0,
};
const last = (value) => value ?? Infinity; // categories without a value come last
const ORDERS = {
  size: (a, b) => b.size - a.size,
  doubt: (a, b) => last(a.confidence) - last(b.confidence),
  loose: (a, b) => last(a.cohesion) - last(b.cohesion),
  tight: (a, b) => last(a.cohesion === null ? null : -a.cohesion) - last(b.cohesion === null ? null : -b.cohesion),
  id: () => 0,
  name: (a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }),
};

const chosen = { filter: "all", search: "", sort: "size", matches: [], drawn: 0 };

function row(title, list) {
  if (!list.length) return [];
  return [make("h4", { textContent: title }), make("div", { className: "thumbs" }, ...list.map(thumbnail))];
}

function factsOf(category) {
  const facts = [[thousands(category.size), category.size === 1 ? "image" : "images", ""]];
  if (category.labelled) facts.push([thousands(category.labelled), "labelled", ""]);
  if (category.unsure) facts.push([thousands(category.unsure), "unsure", ""]);
  if (category.cohesion !== null) facts.push([category.cohesion.toFixed(2), "cohesion", "Mean cosine similarity of its images to its centre; 1 means that they are all alike"]);
  if (category.confidence !== null) facts.push([percent(category.confidence), "confidence", "Mean confidence of its unlabelled images"]);
  return facts.map(([value, name, title]) => make("span", { title }, make("b", { textContent: value }), ` ${name}`));
}

function card(category) {
  const all = category.typical.length === category.size;
  const swatch = make("i", { className: "swatch", ariaHidden: "true" });
  swatch.style.setProperty("--swatch", colourOf(category.id));
  const show = make("button", { type: "button", textContent: "Show on map", ariaLabel: `Show ${category.name} on the map` });
  show.addEventListener("click", () => theMap.show(category.id));
  const nearest = category.new && category.nearest !== null ? make("span", {}, "Nearest known class: ", isolated(categories[category.nearest].name)) : null;
  const kind = category.new ? "new" : "known";
  const article = make(
    "article",
    { className: "panel" },
    make(
      "div",
      { className: "card" },
      make("div", { className: "top" }, swatch, make("h3", { title: category.name }, isolated(category.name)), make("span", { className: `badge ${kind}`, textContent: kind })),
      make("p", { className: "facts-line" }, ...factsOf(category)),
      ...row(all ? "All images, most typical first" : "Most typical", category.typical),
      ...row("Least confident", category.doubtful),
      category.size ? make("div", { className: "bottom" }, nearest, show) : nearest,
    ),
  );
  article.dataset.category = category.id;
  return article;
}

function draw(count) {
  const next = chosen.matches.slice(chosen.drawn, chosen.drawn + count);
  byId("cards").append(...next.map(card));
  chosen.drawn += next.length;
  const left = chosen.matches.length - chosen.drawn;
  byId("more").hidden = left === 0;
  byId("more").textContent = `Show ${thousands(Math.min(BATCH * 2, left))} more`;
  byId("all").hidden = left <= BATCH * 2;
  byId("all").textContent = `Show all ${thousands(chosen.matches.length)}`;
  const shown = counted(chosen.matches.length, "category", "categories");
  const inThem = counted(chosen.matches.reduce((sum, each) => sum + each.size, 0), "image", "images");
  byId("count").textContent = chosen.matches.length ? `${shown} with ${inThem}${left ? `; showing the first ${thousands(chosen.drawn)}` : ""}` : "No category matches.";
}

function redraw() {
  const wanted = chosen.search.toLowerCase();
  chosen.matches = categories
    .filter((each) => FILTERS[chosen.filter](each) && each.name.toLowerCase().includes(wanted))
    .sort((a, b) => ORDERS[chosen.sort](a, b) || a.id - b.id);
  chosen.drawn = 0;
  byId("cards").replaceChildren();
  draw(BATCH);
}

/** Make buttons exclusive: one is pressed at a time. */
function choice(id, name, onChoice) {
  const buttons = [...byId(id).querySelectorAll("button")];
  for (const button of buttons) {
    button.addEventListener("click", () => {
      for (const each of buttons) each.ariaPressed = String(each === button);
      onChoice(button.dataset[name]);
    });
  }
  return buttons;
}

categories.forEach((category, id) => Object.assign(category, { id }));
byId("cards").style.setProperty("--card", categories.length > 120 ? "21rem" : "28rem");
for (const button of choice("filter", "filter", (filter) => { chosen.filter = filter; redraw(); })) {
  button.querySelector("span").textContent = thousands(categories.filter(FILTERS[button.dataset.filter]).length);
}
byId("search").addEventListener("input", (event) => { chosen.search = event.target.value.trim(); redraw(); });
byId("sort").addEventListener("change", (event) => { chosen.sort = event.target.value; redraw(); });
byId("more").addEventListener("click", () => draw(BATCH * 2));
byId("all").addEventListener("click", () => draw(Infinity));
addEventListener("beforeprint", () => draw(Infinity));
redraw();
