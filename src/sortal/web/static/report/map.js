// The map: points on a canvas to pan, zoom, hover over and highlight.

const theMap = (() => {
  const SPAN = 9999;
  const MARGIN = 24;
  const points = data.map;
  const canvas = byId("canvas");
  const context = canvas.getContext("2d");
  const tip = byId("tip");
  const view = { scale: 1, x: 0, y: 0 }; // zoom factor, and the position of the upper left corner in pixels
  let [width, height] = [1, 1];
  let colour = "category";
  let lit = null; // the highlighted category or status, depending on `colour`
  let at = -1; // the point under the pointer
  let pinned = -1; // the point shown from a card
  const touches = new Map();
  const pointOf = new Map(points.image.map((image, point) => [image, point])); // −1 is an image without a record
  pointOf.delete(-1);

  const valueOf = (point) => points[colour][point];
  const placeOf = (point) => [
    view.x + view.scale * (MARGIN + (points.x[point] / SPAN) * (width - 2 * MARGIN)),
    view.y + view.scale * (MARGIN + (points.y[point] / SPAN) * (height - 2 * MARGIN)),
  ];
  const SIZES = [[10000, 1.2], [2000, 2.6], [400, 3.6], [-1, 5]]; // the radius for more points than this
  const radius = () => Math.min(9, SIZES.find(([least]) => points.x.length > least)[1] * Math.sqrt(view.scale));

  /** Trace a shape per status, so that colour is not the only difference. */
  function trace(status, x, y, r) {
    context.beginPath();
    if (status === 0) context.rect(x - r * 0.85, y - r * 0.85, r * 1.7, r * 1.7);
    else if (status === 2) {
      context.moveTo(x, y - r * 1.3);
      context.lineTo(x + r * 1.3, y);
      context.lineTo(x, y + r * 1.3);
      context.lineTo(x - r * 1.3, y);
      context.closePath();
    } else context.arc(x, y, status === 3 ? r * 0.9 : r, 0, 7);
  }

  function drawPoint(point, colours, r) {
    const [x, y] = placeOf(point);
    if (x < -20 || y < -20 || x > width + 20 || y > height + 20) return;
    const status = points.status[point];
    trace(status, x, y, r);
    if (status === 3) {
      context.strokeStyle = colours[valueOf(point)];
      context.lineWidth = Math.max(1.3, r * 0.45);
      context.stroke();
    } else {
      context.fillStyle = colours[valueOf(point)];
      context.fill();
    }
  }

  const swatches = new Map();
  const swatch = document.createElement("canvas").getContext("2d", { willReadFrequently: true });

  /** Convert a colour of the style sheet to the number that it is in a picture, at an opacity from 0 to 1. */
  function packed(name, opacity) {
    if (!swatches.has(name)) {
      swatch.fillStyle = name;
      swatch.fillRect(0, 0, 1, 1);
      const [red, green, blue] = swatch.getImageData(0, 0, 1, 1).data;
      swatches.set(name, (blue << 16) | (green << 8) | red);
    }
    return (swatches.get(name) | (Math.round(255 * opacity) << 24)) >>> 0;
  }

  /** Draw small points as squares of pixels, which is faster than shapes, and shapes could not be told apart. */
  function fillSquares(picture, colours, shows, r) {
    const pixels = new Uint32Array(picture.data.buffer);
    const ratio = devicePixelRatio || 1;
    const side = Math.max(1, Math.round(2 * r * ratio));
    for (let point = 0; point < points.x.length; point++) {
      const value = valueOf(point);
      if (!shows(value)) continue;
      const [x, y] = placeOf(point);
      const left = Math.round(x * ratio - side / 2);
      const top = Math.round(y * ratio - side / 2);
      if (left < 0 || top < 0 || left + side > picture.width || top + side > picture.height) continue;
      for (let line = top; line < top + side; line++) pixels.fill(colours[value], line * picture.width + left, line * picture.width + left + side);
    }
  }

  function ring(point, r) {
    const [x, y] = placeOf(point);
    context.beginPath();
    context.arc(x, y, r + 4, 0, 7);
    context.strokeStyle = getComputedStyle(document.body).color;
    context.lineWidth = 2;
    context.stroke();
  }

  let asked = false;
  function redraw() {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      const ratio = devicePixelRatio || 1;
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, width, height);
      const colours = colour === "category" ? categories.map((each) => colourOf(each.id)) : STATUSES.map((_, status) => colourOfStatus(status));
      const r = radius();
      const picture = r < 2 ? context.createImageData(canvas.width, canvas.height) : null;
      for (const bright of lit === null ? [true] : [false, true]) {
        const opacity = bright ? 0.88 : 0.1;
        const size = bright && lit !== null ? r * 1.25 : r;
        const shows = (value) => (lit === null || value === lit) === bright;
        if (picture) fillSquares(picture, colours.map((each) => packed(each, opacity)), shows, size);
        else {
          context.globalAlpha = opacity;
          for (let point = 0; point < points.x.length; point++) if (shows(valueOf(point))) drawPoint(point, colours, size);
        }
      }
      if (picture) context.putImageData(picture, 0, 0);
      context.globalAlpha = 1;
      if (pinned >= 0) ring(pinned, r + 2);
      if (at >= 0) ring(at, r);
    });
  }

  function resize() {
    ({ width, height } = canvas.getBoundingClientRect());
    if (!width || !height) return;
    canvas.width = Math.round(width * (devicePixelRatio || 1));
    canvas.height = Math.round(height * (devicePixelRatio || 1));
    applyView();
  }

  function applyView() {
    view.x = Math.min(0, Math.max(width * (1 - view.scale), view.x));
    view.y = Math.min(0, Math.max(height * (1 - view.scale), view.y));
    canvas.classList.toggle("zoomed", view.scale > 1);
    canvas.dataset.scale = view.scale.toFixed(3);
    point(-1);
    redraw();
  }

  function zoom(factor, x = width / 2, y = height / 2) {
    const scale = Math.min(60, Math.max(1, view.scale * factor));
    view.x = x - ((x - view.x) * scale) / view.scale;
    view.y = y - ((y - view.y) * scale) / view.scale;
    view.scale = scale;
    applyView();
  }

  /** Zoom to the points of a category, but for outliers, and to one of its points. */
  function zoomTo(category, point = -1) {
    const own = points.category.flatMap((each, at) => (each === category ? [at] : []));
    if (!own.length) return zoom(0);
    const [left, right, top, bottom] = ["x", "y"].flatMap((axis) => {
      const sorted = own.map((at) => points[axis][at]).sort((a, b) => a - b);
      const ends = [0.05, 0.95].map((share) => sorted[Math.round(share * (sorted.length - 1))]);
      return point < 0 ? ends : [Math.min(ends[0], points[axis][point]), Math.max(ends[1], points[axis][point])];
    });
    const least = SPAN / 12;
    view.scale = Math.min(12, Math.max(1, 0.7 / Math.max(right - left, bottom - top, least) * SPAN));
    const middle = (low, high, size) => MARGIN + ((low + high) / 2 / SPAN) * (size - 2 * MARGIN);
    view.x = width / 2 - view.scale * middle(left, right, width);
    view.y = height / 2 - view.scale * middle(top, bottom, height);
    applyView();
  }

  function nearest(x, y, reach) {
    let [best, distance] = [-1, reach * reach];
    for (let each = 0; each < points.x.length; each++) {
      if (lit !== null && valueOf(each) !== lit) continue;
      const [px, py] = placeOf(each);
      const far = (px - x) ** 2 + (py - y) ** 2;
      if (far < distance) [best, distance] = [each, far];
    }
    return best;
  }

  /** Show the tooltip of a point; hide it for −1. */
  function point(next) {
    if (next === at) return;
    at = next;
    tip.hidden = at < 0;
    canvas.style.cursor = at < 0 || points.image[at] < 0 ? "" : "pointer";
    if (at >= 0) {
      const image = points.image[at];
      const known = image >= 0 ? describe(image) : [["Category", categories[points.category[at]].name], ["Status", STATUSES[points.status[at]]]];
      const lines = known.map(([name, value]) => make("div", { className: "clamp" }, make("span", { className: "soft", textContent: `${name}: ` }), isolated(value)));
      const first = image < 0 ? [] : [...(findPicture(image) ? [frame(image)] : []), make("div", { className: "clamp" }, make("b", {}, isolated(images.file[image])))];
      tip.replaceChildren(...first, ...lines);
      const [x, y] = placeOf(at);
      const left = x + 16 + tip.offsetWidth > width ? x - 16 - tip.offsetWidth : x + 16;
      const top = Math.min(Math.max(8, y - tip.offsetHeight / 2), height - tip.offsetHeight - 8);
      tip.style.transform = `translate(${Math.max(4, Math.min(left, width - tip.offsetWidth - 4))}px, ${Math.max(4, top)}px)`;
    }
    redraw();
  }

  const inside = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const spread = ([a, b]) => Math.hypot(a[0] - b[0], a[1] - b[1]);
  let dragged = 0;

  canvas.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "touch") canvas.setPointerCapture(event.pointerId);
    touches.set(event.pointerId, inside(event));
    dragged = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const now = inside(event);
    const before = touches.get(event.pointerId);
    if (!before) return point(nearest(...now, 14));
    const old = [...touches.values()];
    touches.set(event.pointerId, now);
    dragged += Math.hypot(now[0] - before[0], now[1] - before[1]);
    if (touches.size === 2) {
      const all = [...touches.values()];
      const middle = [(all[0][0] + all[1][0]) / 2, (all[0][1] + all[1][1]) / 2];
      view.x += middle[0] - (old[0][0] + old[1][0]) / 2;
      view.y += middle[1] - (old[0][1] + old[1][1]) / 2;
      zoom(spread(all) / Math.max(1, spread(old)), ...middle);
    } else if (view.scale > 1 && dragged > 3) {
      canvas.classList.add("dragging");
      view.x += now[0] - before[0];
      view.y += now[1] - before[1];
      applyView();
    }
  });
  const release = (event) => {
    const touched = touches.delete(event.pointerId);
    canvas.classList.remove("dragging");
    if (!touched || event.type !== "pointerup" || dragged > 6) return;
    const found = nearest(...inside(event), event.pointerType === "touch" ? 24 : 14);
    if (event.pointerType === "touch") point(found);
    else if (found >= 0 && points.image[found] >= 0) openViewer(points.image[found], categories[points.category[found]].members);
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", (event) => event.pointerType !== "touch" && point(-1));
  canvas.addEventListener("touchmove", (event) => event.touches.length > 1 && event.preventDefault(), { passive: false });

  // Keep scrolling the page when the map moves under the pointer.
  let scrolled = -Infinity;
  addEventListener("scroll", () => { scrolled = performance.now(); }, { passive: true });
  canvas.addEventListener("wheel", (event) => {
    if (performance.now() - scrolled < 250 || (view.scale === 1 && event.deltaY > 0 && !event.ctrlKey)) return;
    event.preventDefault();
    const pixels = event.deltaY * (event.deltaMode ? 30 : 1);
    zoom(Math.exp(-Math.max(-120, Math.min(120, pixels)) * (event.ctrlKey ? 0.01 : 0.003)), ...inside(event));
  }, { passive: false });

  const KEYS = { "+": () => zoom(1.4), "=": () => zoom(1.4), "-": () => zoom(1 / 1.4), 0: () => zoom(0) };
  const ARROWS = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (ARROWS[event.key] && view.scale > 1) {
      view.x += ARROWS[event.key][0];
      view.y += ARROWS[event.key][1];
      applyView();
    } else if (KEYS[event.key]) KEYS[event.key]();
    else return;
    event.preventDefault();
  });
  byId("zoom-in").addEventListener("click", () => zoom(1.6));
  byId("zoom-out").addEventListener("click", () => zoom(1 / 1.6));
  byId("zoom-reset").addEventListener("click", () => { light(null); zoom(0); });

  function legend() {
    const wanted = byId("legend-search").value.trim().toLowerCase();
    const byStatus = colour === "status";
    const entries = byStatus
      ? STATUSES.map((name, id) => ({ id, name, size: points.status.filter((status) => status === id).length }))
      : categories.filter((each) => each.size && each.name.toLowerCase().includes(wanted)).sort((a, b) => Number(b.new) - Number(a.new) || b.size - a.size || a.id - b.id);
    byId("legend-search").hidden = byStatus || categories.length <= 12;
    byId("legend").replaceChildren(...entries.map((each) => {
      const sign = byStatus ? mark(each.id) : make("i", { className: "swatch", ariaHidden: "true" });
      if (!byStatus) sign.style.setProperty("--swatch", colourOf(each.id));
      const button = make("button", { type: "button", title: each.name, ariaPressed: String(each.id === lit) }, sign, isolated(each.name, "name"), make("span", { className: "n", textContent: thousands(each.size) }));
      button.dataset.value = each.id;
      button.addEventListener("click", () => {
        light(lit === each.id ? null : each.id);
        if (!byStatus) lit === null ? zoom(0) : zoomTo(each.id);
      });
      return button;
    }));
  }

  function light(value) {
    lit = value;
    pinned = -1;
    canvas.dataset.lit = lit === null ? "" : String(lit);
    const link = lit !== null && colour === "category" ? make("a", { href: `#category-${lit}` }, "See ", isolated(categories[lit].name)) : null;
    byId("lit").replaceChildren(link ?? (colour === "category" ? "Select a category in the list to zoom to it." : ""));
    for (const button of byId("legend").children) button.ariaPressed = String(Number(button.dataset.value) === lit);
    point(-1);
    redraw();
  }

  function colourBy(next) {
    colour = next;
    light(null);
    legend();
  }

  choice("colour", "colour", colourBy);
  byId("legend-search").addEventListener("input", legend);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { legend(); redraw(); });
  new ResizeObserver(resize).observe(canvas);
  legend();
  resize();

  return {
    has: (image) => pointOf.has(image),
    /** Highlight a category and zoom to it, circle an image of it, and scroll to the map. */
    show(category, image = -1) {
      byId("colour").querySelector('[data-colour="category"]').click();
      byId("legend-search").value = "";
      legend();
      light(category);
      pinned = pointOf.get(image) ?? -1;
      zoomTo(category, pinned);
      byId("legend").querySelector(`[data-value="${category}"]`)?.scrollIntoView({ block: "nearest" });
      byId("map").scrollIntoView();
      canvas.focus({ preventScroll: true });
    },
    places: () => points.x.map((_, each) => placeOf(each)),
  };
})();
