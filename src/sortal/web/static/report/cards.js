// Category cards: filtered, searched, sorted, and drawn in batches; galleries of all images.

const BATCH = 30; // cards
const GALLERY_PAGE = 60; // images of a gallery at once
const COUNTED_ONCE = {
  moment: "Images of the same moment, which are nearly the same, count once",
  group: "Images of a group, or of the same moment, count once",
};
const COHESION = "100% if its images are all the same, 0% if they vary as much as all images do";
const CONFIDENCE = "Mean confidence of its unlabelled images";
const chosen = { filter: "all", search: "", sort: "new" };
const drawn = { matches: [], count: 0 };

function thumbnailRow(title, shown, list = shown) {
  if (!shown.length) return [];
  const thumbs = shown.map((image) => thumbnail(image, list));
  return [make("h4", { textContent: title }), make("div", { className: "thumbs" }, ...thumbs)];
}

/** Say how many of so many images are on the page. */
const sampled = (shown, all) =>
  shown < all ? `${thousands(shown)} of ${counted(all, "image")} are shown, to keep this file small.` : "";

function openGallery(category) {
  const dialog = byId("all-images");
  const list = category.members.filter(findPicture);
  byId("all-images-title").replaceChildren(isolated(category.name));
  byId("all-images-note").textContent =
    sampled(list.length, category.size) || `${counted(category.size, "image")}, the most typical first.`;
  fillPages(dialog.querySelector(".gallery"), list, GALLERY_PAGE);
  dialog.showModal();
  dialog.scrollTop = 0;
}

function factsOf({ size, moments, labelled, unsure, other, cohesion, confidence }) {
  const facts = [
    [thousands(size), size === 1 ? "image" : "images", ""],
    moments < size && [thousands(moments), moments === 1 ? data.unit : `${data.unit}s`, COUNTED_ONCE[data.unit]],
    labelled && [thousands(labelled), "labelled", ""],
    unsure && [thousands(unsure), "unsure", ""],
    other && [thousands(other), "fitting nowhere", "Unlike all images of this collection"],
    cohesion !== null && [percent(cohesion), "cohesion", COHESION],
    data.calibrated && confidence !== null && [percent(confidence), "confidence", CONFIDENCE],
  ];
  return facts
    .filter(Boolean)
    .map(([value, name, title]) => make("span", { title }, make("b", { textContent: value }), ` ${name}`));
}

function swatchOf(category) {
  const swatch = make("i", { className: "swatch", ariaHidden: "true" });
  swatch.style.setProperty("--swatch", categoryColour(category.id));
  return swatch;
}

/** Link a card to its nearest known class, its gallery unless all images are shown, and the map. */
function cardBottom(category, all) {
  const nearestKnown = category.new && category.nearest !== null ? categories[category.nearest].name : null;
  const near = nearestKnown !== null && make("span", {}, "Nearest known class: ", isolated(nearestKnown));
  if (!category.size) return near;
  const whole = `All ${counted(category.size, "image")}`;
  const wholeLabel = { className: "whole", ariaLabel: `${whole} of ${category.name}` };
  return make(
    "div",
    { className: "bottom" },
    near,
    !all && button(whole, () => openGallery(category), wholeLabel),
    button("Show on map", () => theMap.show(category.id), { ariaLabel: `Show ${category.name} on the map` }),
  );
}

function cardOf(category) {
  const all = category.typical.length === category.size;
  const kind = category.new ? "new" : "known";
  const top = make(
    "div",
    { className: "top" },
    swatchOf(category),
    make("h3", { title: category.name }, isolated(category.name)),
    make("span", { className: `badge ${kind}`, textContent: kind }),
  );
  const card = make(
    "div",
    { className: "card" },
    top,
    make("p", { className: "facts-line" }, ...factsOf(category)),
    ...thumbnailRow(all ? "All images, most typical first" : "Most typical", category.typical, category.members),
    ...thumbnailRow("Least sure", category.doubtful),
    cardBottom(category, all),
  );
  const article = make("article", { className: "panel", id: `category-${category.id}` }, card);
  article.dataset.category = category.id;
  return article;
}

function drawCards(count) {
  const next = drawn.matches.slice(drawn.count, drawn.count + count);
  byId("cards").append(...next.map(cardOf));
  drawn.count += next.length;
  const left = drawn.matches.length - drawn.count;
  byId("more").hidden = left === 0;
  byId("more").textContent = `Show ${thousands(Math.min(BATCH * 2, left))} more`;
  byId("all").hidden = left <= BATCH * 2;
  byId("all").textContent = `Show all ${thousands(drawn.matches.length)}`;
  const shown = counted(drawn.matches.length, "category", "categories");
  const inThem = counted(drawn.matches.reduce((sum, each) => sum + each.size, 0), "image");
  const first = left ? `; showing the first ${thousands(drawn.count)}` : "";
  byId("count").textContent = drawn.matches.length ? `${shown} with ${inThem}${first}` : "No category matches.";
}

function choose(changes) {
  Object.assign(chosen, changes);
  Object.assign(drawn, { matches: matching(categories, chosen), count: 0 });
  byId("cards").replaceChildren();
  drawCards(BATCH);
}

/** Scroll to the card of a category, drawing it first if need be. */
function showCategory(id) {
  if (!drawn.matches.includes(categories[id])) {
    byId("search").value = chosen.search = "";
    byId("filter").querySelector('[data-filter="all"]').click();
  }
  if (!byId(`category-${id}`)) drawCards(drawn.matches.indexOf(categories[id]) + 1 - drawn.count);
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
  for (const each of buttons) {
    each.addEventListener("click", () => {
      for (const other of buttons) other.ariaPressed = String(other === each);
      onChoice(each.dataset[name]);
    });
  }
  return buttons;
}

categories.forEach((category, id) => Object.assign(category, { id }));
byId("cards").style.setProperty("--card", categories.length > 120 ? "21rem" : "28rem");
for (const each of choice("filter", "filter", (filter) => choose({ filter }))) {
  each.querySelector("span").textContent = thousands(categories.filter(FILTERS[each.dataset.filter]).length);
}
byId("search").addEventListener("input", (event) => choose({ search: event.target.value.trim() }));
byId("sort").addEventListener("change", (event) => choose({ sort: event.target.value }));
byId("more").addEventListener("click", () => drawCards(BATCH * 2));
byId("all").addEventListener("click", () => drawCards(Infinity));
addEventListener("beforeprint", () => drawCards(Infinity));
choose({});
addEventListener("hashchange", followLink);
followLink();

/** Fill an element, if the page has it, with the images of a status in this order, one of each moment. */
function showAll(id, status, key) {
  if (!byId(id)) return;
  const is = STATUSES.indexOf(status);
  const there = images.status.flatMap((each, image) => (each === is && findPicture(image) ? [image] : []));
  there.sort((a, b) => key(a) - key(b));
  const moments = new Set();
  const list = there.filter((image) => moments.size < moments.add(images.moment[image] ?? image).size);
  const nameOf = (category) => categories[category]?.name ?? "";
  const between = (image) => [images.category[image], images.next[image]].map(nameOf).filter(Boolean).join(" / ");
  fillPages(byId(id), list, GALLERY_PAGE / 2, between);
  const all = categories.reduce((sum, category) => sum + category[status], 0);
  byId(id).append(make("p", { className: "small", textContent: sampled(there.length, all) }));
}
showAll("doubtful", "unsure", (image) => images.confidence[image]);
showAll("apart", "other", (image) => -images.apart[image]);
