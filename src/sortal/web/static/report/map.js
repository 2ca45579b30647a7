// The map of the report, and its legend.

const theMap = (() => {
  const points = data.map;
  const SHAPES = { labelled: "square", known: "disc", new: "diamond", unsure: "ring", other: "triangle" };
  const HINT = "Select a category in the list to zoom to it.";
  const pointOf = new Map(points.image.map((image, point) => [image, point])); // −1 is an image without a record
  pointOf.delete(-1);
  let colour = "category"; // or "status"
  let lit = null; // the highlighted category or status

  /** What the tooltip of a point shows; one without a record has only a category and a status. */
  function tooltip(point) {
    const image = points.image[point];
    const category = categories[points.category[point]].name;
    const pairs = image < 0 ? [["Category", category], ["Status", STATUSES[points.status[point]]]] : describe(image);
    const lines = pairs.map(([name, value]) => {
      const before = make("span", { className: "soft", textContent: `${name}: ` });
      return make("div", { className: "clamp" }, before, isolated(value));
    });
    if (image < 0) return lines;
    const file = make("div", { className: "clamp" }, make("b", {}, isolated(images.file[image])));
    return [...(findPicture(image) ? [frame(image)] : []), file, ...lines];
  }

  const map = new PointMap(byId("canvas"), byId("tip"), {
    data: points,
    valueOf: (point) => points[colour][point],
    colourOf: (value) => (colour === "category" ? categoryColour(value) : styleColour(`--${STATUSES[value]}`)),
    shapeOf: (point) => SHAPES[STATUSES[points.status[point]]],
    describe: tooltip,
    clickOn(point) {
      const image = points.image[point];
      return image < 0 ? null : () => openViewer(image, categories[points.category[point]].members);
    },
  });

  function zoomTo(category, pinned = -1) {
    map.frame(points.category.flatMap((each, point) => (each === category ? [point] : [])), pinned);
  }

  function light(value) {
    lit = value;
    map.canvas.dataset.lit = lit === null ? "" : String(lit);
    map.light(lit === null ? null : (point) => points[colour][point] === lit);
    const byCategory = colour === "category";
    const link = byCategory && lit !== null;
    byId("lit").replaceChildren(
      link ? make("a", { href: `#category-${lit}` }, "See ", isolated(categories[lit].name)) : byCategory ? HINT : "",
    );
    for (const each of byId("legend").children) each.ariaPressed = String(Number(each.dataset.value) === lit);
  }

  function legendLine({ id, name, size }) {
    const byStatus = colour === "status";
    const select = () => {
      light(lit === id ? null : id);
      if (byStatus) return;
      if (lit === null) map.zoom(0);
      else zoomTo(id);
    };
    const line = button(
      byStatus ? mark(id) : swatchOf(categories[id]),
      select,
      { title: name, ariaPressed: String(id === lit) },
      isolated(name, "name"),
      make("span", { className: "n", textContent: thousands(size) }),
    );
    line.dataset.value = id;
    return line;
  }

  function drawLegend() {
    const byStatus = colour === "status";
    const statuses = () => STATUSES.map((name, id) => {
      return { id, name, size: points.status.filter((status) => status === id).length };
    });
    const entries = byStatus ? statuses() : inLegend(categories, byId("legend-search").value.trim());
    byId("legend-search").hidden = byStatus || categories.length <= 12;
    byId("legend").replaceChildren(...entries.map(legendLine));
  }

  choice("colour", "colour", (next) => {
    colour = next;
    light(null);
    drawLegend();
  });
  byId("legend-search").addEventListener("input", drawLegend);
  byId("zoom-in").addEventListener("click", () => map.zoom(1.6));
  byId("zoom-out").addEventListener("click", () => map.zoom(1 / 1.6));
  byId("zoom-reset").addEventListener("click", () => {
    light(null);
    map.zoom(0);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    drawLegend();
    map.redraw();
  });
  drawLegend();

  return {
    has: (image) => pointOf.has(image),
    /** Highlight a category and zoom to it, circle an image of it, and scroll to the map. */
    show(category, image = -1) {
      byId("colour").querySelector('[data-colour="category"]').click();
      byId("legend-search").value = "";
      drawLegend();
      light(category);
      map.pinned = pointOf.get(image) ?? -1;
      zoomTo(category, map.pinned);
      byId("legend").querySelector(`[data-value="${category}"]`)?.scrollIntoView({ block: "nearest" });
      byId("map").scrollIntoView();
      map.canvas.focus({ preventScroll: true });
    },
    places: () => points.x.map((_, point) => map.placeOf(point)),
  };
})();
