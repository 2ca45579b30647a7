// Category cards: filtered, searched, sorted, and drawn in batches; galleries of all images.

const BATCH = 30;
const PAGE = 60; // images of a gallery at once
const FILTERS = {
  all: () => true,
  known: (category) => !category.new,
  new: (category) => category.new,
  unsure: (category) => category.unsure > 0,
};
const last = (value) => value ?? Infinity; // categories without a value come last
const ORDERS = {
  new: (a, b) => Number(b.new) - Number(a.new) || b.size - b.unsure - a.size + a.unsure || b.confidence - a.confidence,
  size: (a, b) => b.size - a.size,
  doubt: (a, b) => last(a.confidence) - last(b.confidence),
  loose: (a, b) => last(a.cohesion) - last(b.cohesion),
  tight: (a, b) => last(a.cohesion === null ? null : -a.cohesion) - last(b.cohesion === null ? null : -b.cohesion),
  id: () => 0,
  name: (a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }),
};

const chosen = { filter: "all", search: "", sort: "new", matches: [], drawn: 0 };

function row(title, shown, list = shown) {
  if (!shown.length) return [];
  return [make("h4", { textContent: title }), make("div", { className: "thumbs" }, ...shown.map((image) => thumbnail(image, list)))];
}

/** Say how many of so many images are on the page. */
const sampled = (shown, all) => (shown < all ? `${thousands(shown)} of ${counted(all, "image")} are shown, to keep this file small.` : "");

function openGallery(category) {
  const dialog = byId("all-images");
  const list = category.members.filter(findPicture);
  byId("all-images-title").replaceChildren(isolated(category.name));
  byId("all-images-note").textContent = sampled(list.length, category.size) || `${counted(category.size, "image")}, the most typical first.`;
  fillPages(dialog.querySelector(".gallery"), list, PAGE);
  dialog.showModal();
  dialog.scrollTop = 0;
}

function factsOf(category) {
  const facts = [[thousands(category.size), category.size === 1 ? "image" : "images", ""]];
  if (category.labelled) facts.push([thousands(category.labelled), "labelled", ""]);
  if (category.unsure) facts.push([thousands(category.unsure), "unsure", ""]);
  if (category.cohesion !== null) facts.push([percent(category.cohesion), "cohesion", "100% if its images are all the same, 0% if they vary as much as all images do"]);
  if (category.confidence !== null) facts.push([percent(category.confidence), "confidence", "Mean confidence of its unlabelled images"]);
  return facts.map(([value, name, title]) => make("span", { title }, make("b", { textContent: value }), ` ${name}`));
}

function card(category) {
  const all = category.typical.length === category.size;
  const swatch = make("i", { className: "swatch", ariaHidden: "true" });
  swatch.style.setProperty("--swatch", colourOf(category.id));
  const show = make("button", { type: "button", textContent: "Show on map", ariaLabel: `Show ${category.name} on the map` });
  show.addEventListener("click", () => theMap.show(category.id));
  const gallery = make("button", { type: "button", className: "whole", textContent: `All ${counted(category.size, "image")}`, ariaLabel: `All ${counted(category.size, "image")} of ${category.name}` });
  gallery.addEventListener("click", () => openGallery(category));
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
      ...row(all ? "All images, most typical first" : "Most typical", category.typical, category.members),
      ...row("Least confident", category.doubtful),
      category.size ? make("div", { className: "bottom" }, nearest, ...(all ? [] : [gallery]), show) : nearest,
    ),
  );
  article.dataset.category = category.id;
  article.id = `category-${category.id}`;
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

/** Scroll to the card of a category, drawing it first if need be. */
function showCategory(id) {
  if (!chosen.matches.includes(categories[id])) {
    byId("search").value = chosen.search = "";
    byId("filter").querySelector('[data-filter="all"]').click();
  }
  if (!byId(`category-${id}`)) draw(chosen.matches.indexOf(categories[id]) + 1 - chosen.drawn);
  for (const each of document.querySelectorAll("#cards .sought")) each.classList.remove("sought");
  const article = byId(`category-${id}`);
  article.classList.add("sought");
  article.scrollIntoView({ block: "center" });
}

function followLink() {
  const id = Number(/^#category-(\d+)$/.exec(location.hash)?.[1] ?? -1);
  if (categories[id]) showCategory(id);
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
addEventListener("hashchange", followLink);
followLink();

if (byId("doubtful")) {
  const doubtful = images.status.flatMap((status, image) => (status === 3 && findPicture(image) ? [image] : []));
  doubtful.sort((a, b) => images.confidence[a] - images.confidence[b]);
  const nameOf = (category) => categories[category]?.name ?? "";
  const between = (image) => [images.category[image], images.next[image]].map(nameOf).filter(Boolean).join(" / ");
  fillPages(byId("doubtful"), doubtful, PAGE / 2, between);
  const all = categories.reduce((sum, category) => sum + category.unsure, 0);
  byId("doubtful").append(make("p", { className: "small", textContent: sampled(doubtful.length, all) }));
}
