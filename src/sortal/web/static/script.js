// Data of the page, and thumbnails.

const data = JSON.parse(document.getElementById("data").textContent);
const { images, categories } = data;
const STATUSES = ["labelled", "known", "new", "unsure"];
const wrong = new Set(images.wrong);

const colourOfStatus = (status) => getComputedStyle(document.documentElement).getPropertyValue(`--${STATUSES[status]}`);

// Pictures are side by side on sheets. A sheet becomes an object URL when it is first needed.

const urls = new Map();

function urlOf(group, at) {
  const key = `${group} ${at}`;
  if (!urls.has(key)) {
    const bytes = Uint8Array.from(atob(data.sheets[group].images[at]), (character) => character.charCodeAt(0));
    urls.set(key, URL.createObjectURL(new Blob([bytes], { type: "image/webp" })));
  }
  return urls.get(key);
}

/** Locate the picture of an image; null if it has none. */
function findPicture(image) {
  let at = image;
  for (const [group, sheets] of data.sheets.entries()) {
    if (at < sheets.count) {
      if (!data.width[image]) return null;
      const { cell, columns } = sheets;
      const perSheet = columns * columns;
      const onSheet = Math.min(perSheet, sheets.count - at + (at % perSheet));
      const [width, height] = [data.width[image], data.height[image]];
      return {
        group,
        sheet: Math.floor(at / perSheet),
        crisp: sheets.crisp,
        side: Math.max(width, height),
        width,
        height,
        x: (at % columns) * cell + Math.floor((cell - width) / 2),
        y: Math.floor((at % perSheet) / columns) * cell + Math.floor((cell - height) / 2),
        sheetWidth: Math.min(columns, onSheet) * cell,
        sheetHeight: Math.ceil(onSheet / columns) * cell,
      };
    }
    at -= sheets.count;
  }
  return null;
}

/** Draw the picture of an image in a square frame. */
function frame(image) {
  const found = findPicture(image);
  if (!found) return make("span", { className: "frame" }, make("span", { className: "picture none", textContent: "no preview" }));
  const picture = make("span", { className: found.crisp ? "picture crisp" : "picture" });
  const places = { side: found.side, w: found.width, h: found.height, x: found.x, y: found.y, sw: found.sheetWidth, sh: found.sheetHeight };
  for (const [name, value] of Object.entries(places)) picture.style.setProperty(`--${name}`, value);
  picture.style.backgroundImage = `url("${urlOf(found.group, found.sheet)}")`;
  return make("span", { className: "frame" }, picture);
}

const mark = (status) => make("i", { className: `mark ${STATUSES[status]}`, ariaHidden: "true" });
const lastPart = (file) => file.slice(file.lastIndexOf("/") + 1) || file;

/** List what is known about an image, as [name, value] pairs. */
function describe(image) {
  const pairs = [
    ["Category", categories[images.category[image]].name],
    ["Status", STATUSES[images.status[image]]],
    ["Confidence", percent(images.confidence[image])],
  ];
  const next = images.next[image];
  if (next !== images.category[image] && categories[next]) pairs.push(["Next nearest", categories[next].name]);
  if (images.truth[image] !== null) pairs.push(["True class", images.truth[image] + (wrong.has(image) ? " (different)" : "")]);
  return pairs;
}

/** Create a thumbnail that opens the viewer. */
function thumbnail(image) {
  const status = images.status[image];
  const details = describe(image).map(([name, value]) => `${name}: ${value}`).join("\n");
  const button = make(
    "button",
    { type: "button", className: "thumb", title: `${images.file[image]}\n${details}` },
    frame(image),
    make("span", { className: "line" }, mark(status), status === 0 ? "labelled" : percent(images.confidence[image]), wrong.has(image) ? make("span", { className: "wrong", textContent: "✕", title: "Belongs to a different class" }) : null),
    isolated(lastPart(images.file[image]), "file"),
  );
  button.addEventListener("click", () => openViewer(image));
  return button;
}

function openViewer(image) {
  const viewer = byId("viewer");
  viewer.querySelector(".big").replaceChildren(frame(image));
  byId("viewer-title").replaceChildren(isolated(images.file[image]));
  viewer.querySelector("dl").replaceChildren(
    ...describe(image).map(([name, value]) => make("div", {}, make("dt", { textContent: name }), make("dd", {}, isolated(value)))),
  );
  const button = byId("viewer-map");
  button.textContent = theMap.has(image) ? "Show on the map" : "Show its category on the map";
  button.onclick = () => {
    viewer.close();
    theMap.show(images.category[image], image);
  };
  viewer.showModal();
}

for (const element of document.querySelectorAll("[data-group]")) {
  element.append(...data.groups[Number(element.dataset.group)].map(thumbnail));
}
