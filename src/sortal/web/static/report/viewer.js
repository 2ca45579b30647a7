// The data of the page, thumbnails, and the viewer of one image.

const data = JSON.parse(byId("data").textContent);
const { images, categories } = data;
const STATUSES = ["labelled", "known", "new", "unsure", "other"];
const STACKED = "Images of its group";
const wrong = new Set(images.wrong);
const urls = new Map(); // of sheets

/** The address of a sheet, which becomes an object URL when it is first needed. */
function urlOf(group, at) {
  const key = `${group} ${at}`;
  if (!urls.has(key)) {
    const bytes = Uint8Array.from(atob(data.sheets[group].images[at]), (character) => character.charCodeAt(0));
    urls.set(key, URL.createObjectURL(new Blob([bytes], { type: "image/webp" })));
  }
  return urls.get(key);
}

const findPicture = (image) => locatePicture(image, data.sheets, data.width, data.height);

/** Draw the picture of an image in a square frame. */
function frame(image) {
  const place = findPicture(image);
  if (!place) {
    return make("span", { className: "frame" }, make("span", { className: "picture none", textContent: "no preview" }));
  }
  const picture = make("span", { className: place.crisp ? "picture crisp" : "picture" });
  for (const name of ["side", "w", "h", "x", "y", "sw", "sh"]) picture.style.setProperty(`--${name}`, place[name]);
  picture.style.backgroundImage = `url("${urlOf(place.group, place.sheet)}")`;
  return make("span", { className: "frame" }, picture);
}

const mark = (status) => make("i", { className: `mark ${STATUSES[status]}`, ariaHidden: "true" });
const lastPart = (file) => file.slice(file.lastIndexOf("/") + 1) || file;

/** Say how surely an image was sorted: in percent if they mean something. */
function sureness(image) {
  const status = STATUSES[images.status[image]];
  if (status === "labelled") return status;
  return data.calibrated ? percent(images.confidence[image]) : sureWord(status === "unsure", status === "other", false);
}

/** List what is known about an image, as [name, value] pairs. */
function describe(image) {
  const [status, sure] = [STATUSES[images.status[image]], sureness(image)];
  const pairs = [["Category", categories[images.category[image]].name], ["Status", status]];
  if (sure !== status) pairs.push(["Confidence", sure]);
  const [next, truth] = [images.next[image], images.truth[image]];
  const suggested = categories[images.suggested[image]];
  if (suggested) pairs.push(["Label to check", `looks like ${suggested.name}`]);
  if (next !== images.category[image] && categories[next]) pairs.push(["Next nearest", categories[next].name]);
  if (truth !== null) pairs.push(["True class", truth + (wrong.has(image) ? " (different)" : "")]);
  if (images.group[image]) pairs.push(["Group", images.group[image]]);
  return pairs;
}

/** List what the columns of a table say about an image. */
const cellsOf = (image) =>
  data.columns.map(({ name, values, of }) => [name, values[of[image]]]).filter(([, value]) => value);

const stackOf = new Map(); // images of a moment on this page, by the first
images.file.forEach((_, image) => {
  const first = images.moment[image] ?? image;
  if (!stackOf.has(first)) stackOf.set(first, []);
  stackOf.get(first).push(image);
});
const stackWith = (image) => stackOf.get(images.moment[image] ?? image);

/** Create a thumbnail that opens the viewer, which then steps through the list. */
function thumbnail(image, list, caption = lastPart(images.file[image])) {
  const status = images.status[image];
  const details = describe(image).map(([name, value]) => `${name}: ${value}`).join("\n");
  const [there, size] = [stackWith(image).length, images.stack[image] ?? 1];
  const told = there < size ? `${STACKED}: ${thousands(there)} of ${thousands(size)} are on this page` : STACKED;
  const stack = size > 1 && make("span", { className: "stack", textContent: `×${size}`, title: told });
  const cross = { className: "wrong", textContent: "✕", title: "Belongs to a different class" };
  return button(
    frame(image),
    () => openViewer(image, list),
    { className: "thumb", title: `${images.file[image]}\n${details}` },
    make(
      "span",
      { className: "line" },
      mark(status),
      data.calibrated ? sureness(image) : STATUSES[status],
      wrong.has(image) && make("span", cross),
    ),
    stack,
    isolated(caption, "file"),
  );
}

/** Fill an element with pages of thumbnails. */
function fillPages(element, list, size, captionOf) {
  const thumbs = make("div", { className: "thumbs" });
  const place = make("span", { className: "small" });
  const before = button("← Previous", () => show(start - size));
  const after = button("Next →", () => show(start + size));
  let start = 0;
  const show = (next) => {
    start = next;
    const end = Math.min(start + size, list.length);
    thumbs.replaceChildren(...list.slice(start, end).map((image) => thumbnail(image, list, captionOf?.(image))));
    place.textContent = `${thousands(start + 1)}–${thousands(end)} of ${thousands(list.length)}`;
    before.disabled = start === 0;
    after.disabled = end === list.length;
  };
  const pager = make("p", { className: "pager" }, before, place, after);
  element.replaceChildren(thumbs, ...(list.length > size ? [pager] : []));
  show(0);
}

/** Return the address of the original of an image, or null if it has none. */
function originalOf(image) {
  const { url } = data.sources[images.source[image]];
  return images.url[image] ?? (url && url + images.file[image].split("/").map(encodeURIComponent).join("/"));
}

function pathOf(image) {
  const { name } = data.sources[images.source[image]];
  const file = images.file[image];
  return name === null || file.startsWith("/") ? file : `${name.replace(/\/$/, "")}/${file}`;
}

const viewer = byId("viewer");
const viewed = { list: [], at: 0 };

function openViewer(image, list) {
  Object.assign(viewed, { list, at: list.indexOf(image) });
  showViewed();
  if (!viewer.open) viewer.showModal();
}

/** Show the image that the viewer is at: the original where the browser finds it, or else its thumbnail. */
function showViewed() {
  const { list, at } = viewed;
  const image = list[at];
  const big = viewer.querySelector(".big");
  big.replaceChildren(frame(image));
  const url = originalOf(image);
  if (url) {
    const original = make("img", { alt: images.file[image] });
    original.addEventListener("load", () => {
      if (viewed.list[viewed.at] !== image || !viewer.open) return;
      original.classList.toggle("crisp", original.naturalWidth < 100);
      big.replaceChildren(original);
    });
    original.src = url;
  }
  byId("viewer-title").replaceChildren(isolated(lastPart(images.file[image])));
  const pairs = [...describe(image), ...cellsOf(image), ["File", pathOf(image)]];
  viewer.querySelector("dl").replaceChildren(...definitions(pairs));
  const stack = stackWith(image);
  byId("viewer-stack").replaceChildren(
    ...(stack.length > 1 ? stack.map((each) => stackButton(each, image, stack)) : []),
  );
  byId("viewer-place").textContent = `${thousands(at + 1)} of ${thousands(list.length)}`;
  viewer.querySelector(".pager").hidden = list.length === 1;
  byId("before").disabled = at === 0;
  byId("after").disabled = at === list.length - 1;
  byId("viewer-map").textContent = theMap.has(image) ? "Show on the map" : "Show its category on the map";
}

/** Create a small picture of an image of a group, which the viewer then steps through. */
function stackButton(image, current, stack) {
  const title = images.file[image];
  return button(frame(image), () => openViewer(image, stack), { title, ariaCurrent: String(image === current) });
}

function step(by) {
  const next = viewed.at + by;
  if (next < 0 || next >= viewed.list.length) return;
  viewed.at = next;
  showViewed();
}

/** Close all dialogs and go elsewhere on the page. */
function leaveFor(go) {
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
  const image = viewed.list[viewed.at];
  go(images.category[image], image);
}

byId("before").addEventListener("click", () => step(-1));
byId("after").addEventListener("click", () => step(1));
viewer.addEventListener("keydown", (event) => {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (by === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  step(by);
});
viewer.addEventListener("close", () => viewer.querySelector(".big").replaceChildren());
byId("viewer-map").addEventListener("click", () => leaveFor((category, image) => theMap.show(category, image)));
byId("viewer-category").addEventListener("click", () => leaveFor((category) => showCategory(category)));

const listed = (text) => text.split(" ").filter(Boolean).map(Number);
for (const element of document.querySelectorAll("[data-frames]")) {
  element.append(...listed(element.dataset.frames).map(frame));
}
for (const element of document.querySelectorAll("[data-images]")) {
  const list = listed(element.dataset.images);
  const asked = element.classList.contains("labels");
  const captionOf = (image) => [images.category[image], images.suggested[image]].map((id) => categories[id].name);
  element.append(...list.map((image) => thumbnail(image, list, asked ? captionOf(image).join(" / ") : undefined)));
}
