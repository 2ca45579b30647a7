// The map of images: points on a canvas to pan, zoom, hover over and highlight, and a lasso where it is wanted.

import { styleColour } from "/static/shared/dom.js";
import {
  apart, bounded, ends, framed, isInside, nearest, pixelOf, radiusOf, tipPlace, zoomed,
} from "/static/shared/geometry.js";

const REACH = { touch: 24, mouse: 14 }; // pixels between the pointer and a point that it means
const OPACITY = { lit: 0.88, dim: 0.12 };
const LABEL_FONT = "600 12px system-ui, sans-serif";
const LABEL_HEIGHT = 16; // pixels
const LONGEST_LABEL = 24; // characters
const SMALLEST_SHAPE = 2; // pixels: smaller points are squares
const ARROWS = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
const ZOOMS = { "+": 1.4, "=": 1.4, "-": 1 / 1.4, 0: 0 };

/** Trace a point, by default as a disc. */
const TRACES = {
  square: (context, x, y, r) => context.rect(x - r * 0.85, y - r * 0.85, r * 1.7, r * 1.7),
  diamond: (context, x, y, r) => {
    const side = r * 1.3;
    context.moveTo(x, y - side);
    context.lineTo(x + side, y);
    context.lineTo(x, y + side);
    context.lineTo(x - side, y);
    context.closePath();
  },
  triangle: (context, x, y, r) => {
    const side = r * 1.25;
    context.moveTo(x, y - side);
    context.lineTo(x + side, y + side * 0.8);
    context.lineTo(x - side, y + side * 0.8);
    context.closePath();
  },
  ring: (context, x, y, r) => context.arc(x, y, r * 0.9, 0, 7),
  disc: (context, x, y, r) => context.arc(x, y, r, 0, 7),
};

export class PointMap {
  /**
   * Draw points with the coordinates `data.x` and `data.y` on a canvas.
   *
   * `valueOf(point)` is what decides the colour of a point, and `colourOf(value)` that colour; `shapeOf(point)` names
   * its shape. `describe(point)` returns what its tooltip shows, and `clickOn(point)` the function that a click calls,
   * or null. With `choose(points)`, dragging draws a lasso, and Alt or the middle button pans. `labels` are texts at
   * coordinates, [text, x, y], the most important first.
   */
  constructor(canvas, tip, { data, valueOf, colourOf, shapeOf = () => "disc", describe, clickOn, choose = null }) {
    Object.assign(this, { canvas, tip, data, valueOf, colourOf, shapeOf, describe, clickOn, choose });
    this.labels = [];
    this.context = canvas.getContext("2d");
    this.view = { scale: 1, x: 0, y: 0 };
    [this.width, this.height] = [1, 1];
    this.isLit = null; // which points are highlighted; null if none are
    this.at = -1; // the point under the pointer
    this.pinned = -1; // a point with a circle around it
    this.lasso = [];
    this.touches = new Map();
    this.packedColours = new Map();
    this.swatch = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(canvas);
    this.listen();
    this.resize();
  }

  close() {
    this.observer.disconnect();
    removeEventListener("scroll", this.noteScroll);
  }

  /** Show other points. */
  show(data) {
    this.data = data;
    this.point(-1);
    this.redraw();
  }

  /** Highlight the points of which `isLit` is true; null highlights none. */
  light(isLit) {
    this.isLit = isLit;
    this.pinned = -1;
    this.point(-1);
    this.redraw();
  }

  get count() {
    return this.data.x.length;
  }

  placeOf(point) {
    const { scale, x, y } = this.view;
    return [
      x + scale * pixelOf(this.data.x[point], this.width),
      y + scale * pixelOf(this.data.y[point], this.height),
    ];
  }

  /** The labels that can be read, with the places of their middles: inside the canvas, and apart from each other. */
  readable() {
    const { scale, x, y } = this.view;
    this.context.font = LABEL_FONT;
    const placed = this.labels.map(([text, across, down]) => {
      const short = text.length > LONGEST_LABEL ? `${text.slice(0, LONGEST_LABEL)}…` : text;
      const wide = this.context.measureText(short).width;
      const left = x + scale * pixelOf(across, this.width) - wide / 2;
      const top = y + scale * pixelOf(down, this.height) - LABEL_HEIGHT / 2;
      const within = Math.max(4, Math.min(left, this.width - wide - 4));
      const outside = left + wide < 0 || left > this.width || top + LABEL_HEIGHT < 0 || top > this.height;
      return outside ? null : [short, [within, top, wide, LABEL_HEIGHT]];
    }).filter(Boolean);
    return apart(placed.map(([, box]) => box)).map((at) => placed[at]);
  }

  // The view

  resize() {
    const { width, height } = this.canvas.getBoundingClientRect();
    if (!width || !height) return;
    [this.width, this.height] = [width, height];
    this.canvas.width = Math.round(width * (devicePixelRatio || 1));
    this.canvas.height = Math.round(height * (devicePixelRatio || 1));
    this.look(this.view);
  }

  look(view) {
    this.view = bounded(view, this.width, this.height);
    this.canvas.classList.toggle("zoomed", this.view.scale > 1);
    this.canvas.dataset.scale = this.view.scale.toFixed(3);
    this.point(-1);
    this.redraw();
  }

  pan(x, y) {
    this.look({ ...this.view, x: this.view.x + x, y: this.view.y + y });
  }

  /** Zoom by a factor around a pixel; a factor of 0 resets the view. */
  zoom(factor, x = this.width / 2, y = this.height / 2) {
    this.look(zoomed(this.view, factor, x, y));
  }

  /** Zoom to some points, but for outliers, and to one of them in any case. */
  frame(points, pinned = -1) {
    if (!points.length) return this.zoom(0);
    const [horizontal, vertical] = [this.data.x, this.data.y].map((axis) => {
      const [low, high] = ends(points.map((point) => axis[point]));
      return pinned < 0 ? [low, high] : [Math.min(low, axis[pinned]), Math.max(high, axis[pinned])];
    });
    this.look(framed(horizontal, vertical, this.width, this.height));
  }

  // Drawing

  redraw() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => {
      this.asked = false;
      this.draw();
    });
  }

  draw() {
    const ratio = devicePixelRatio || 1;
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.context.clearRect(0, 0, this.width, this.height);
    const [radius, colours] = [radiusOf(this.count, this.view.scale), new Map()];
    const colourOf = (point) => {
      const value = this.valueOf(point);
      if (!colours.has(value)) colours.set(value, this.colourOf(value));
      return colours.get(value);
    };
    const small = radius < SMALLEST_SHAPE;
    const picture = small ? this.context.createImageData(this.canvas.width, this.canvas.height) : null;
    for (const bright of this.isLit ? [false, true] : [true]) {
      const opacity = bright ? OPACITY.lit : OPACITY.dim;
      const size = bright && this.isLit ? radius * 1.25 : radius;
      const shows = (point) => !this.isLit || this.isLit(point) === bright;
      this.context.globalAlpha = opacity;
      if (picture) this.fillSquares(picture, (point) => this.packed(colourOf(point), opacity), shows, size);
      else this.fillShapes(colourOf, shows, size);
    }
    if (picture) this.context.putImageData(picture, 0, 0);
    this.context.globalAlpha = 1;
    this.drawLabels();
    if (this.pinned >= 0) this.ring(this.pinned, radius + 2);
    if (this.at >= 0) this.ring(this.at, radius);
    if (this.lasso.length > 1) this.drawLasso();
  }

  /** Draw points in a shape each, so that colour is not the only difference. */
  fillShapes(colourOf, shows, radius) {
    const { context } = this;
    for (let point = 0; point < this.count; point++) {
      if (!shows(point)) continue;
      const [x, y] = this.placeOf(point);
      if (x < -20 || y < -20 || x > this.width + 20 || y > this.height + 20) continue;
      const shape = this.shapeOf(point);
      context.beginPath();
      TRACES[shape](context, x, y, radius);
      if (shape === "ring") {
        context.strokeStyle = colourOf(point);
        context.lineWidth = Math.max(1.3, radius * 0.45);
        context.stroke();
      } else {
        context.fillStyle = colourOf(point);
        context.fill();
      }
    }
  }

  /** Draw small points as squares of pixels, which is faster than shapes, and shapes could not be told apart. */
  fillSquares(picture, packedOf, shows, radius) {
    const pixels = new Uint32Array(picture.data.buffer);
    const ratio = devicePixelRatio || 1;
    const side = Math.max(1, Math.round(2 * radius * ratio));
    for (let point = 0; point < this.count; point++) {
      if (!shows(point)) continue;
      const [left, top] = this.placeOf(point).map((at) => Math.round(at * ratio - side / 2));
      if (left < 0 || top < 0 || left + side > picture.width || top + side > picture.height) continue;
      for (let line = top; line < top + side; line++) {
        const start = line * picture.width + left;
        pixels.fill(packedOf(point), start, start + side);
      }
    }
  }

  /** Convert a colour of a style sheet to the number that it is in a picture, at an opacity from 0 to 1. */
  packed(name, opacity) {
    if (!this.packedColours.has(name)) {
      this.swatch.fillStyle = name;
      this.swatch.fillRect(0, 0, 1, 1);
      const [red, green, blue] = this.swatch.getImageData(0, 0, 1, 1).data;
      this.packedColours.set(name, (blue << 16) | (green << 8) | red);
    }
    return (this.packedColours.get(name) | (Math.round(255 * opacity) << 24)) >>> 0;
  }

  drawLabels() {
    const { context } = this;
    Object.assign(context, { lineWidth: 3, lineJoin: "round", textBaseline: "middle" });
    const readable = this.readable();
    this.canvas.dataset.labels = readable.map(([text]) => text).join("\n");
    for (const [text, [left, top, , height]] of readable) {
      context.strokeStyle = styleColour("--page");
      context.fillStyle = styleColour("--text");
      context.strokeText(text, left, top + height / 2);
      context.fillText(text, left, top + height / 2);
    }
  }

  ring(point, radius) {
    const [x, y] = this.placeOf(point);
    this.context.beginPath();
    this.context.arc(x, y, radius + 4, 0, 7);
    this.context.strokeStyle = getComputedStyle(document.body).color;
    this.context.lineWidth = 2;
    this.context.stroke();
  }

  drawLasso() {
    const { context } = this;
    context.beginPath();
    for (const [x, y] of this.lasso) context.lineTo(x, y);
    context.closePath();
    context.fillStyle = `color-mix(in srgb, ${styleColour("--accent")} 16%, transparent)`;
    context.strokeStyle = styleColour("--accent");
    context.lineWidth = 1.5;
    context.fill();
    context.stroke();
  }

  // The pointer and the keyboard

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => this.release(event));
    canvas.addEventListener("pointercancel", (event) => this.release(event));
    canvas.addEventListener("pointerleave", (event) => event.pointerType !== "touch" && this.point(-1));
    canvas.addEventListener("touchmove", (event) => event.touches.length > 1 && event.preventDefault(), {
      passive: false,
    });
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("keydown", (event) => this.key(event));
    this.scrolled = -Infinity;
    this.noteScroll = () => { this.scrolled = performance.now(); };
    addEventListener("scroll", this.noteScroll, { passive: true });
  }

  inside(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  /** The point that the pointer means, or −1; where some are highlighted, one of those. */
  pointNear(x, y, reach) {
    const placeOf = (point) => (this.isLit && !this.choose && !this.isLit(point) ? null : this.placeOf(point));
    return nearest(this.count, placeOf, x, y, reach);
  }

  /** Show the tooltip of a point; hide it for −1. */
  point(next) {
    if (next === this.at) return;
    this.at = next;
    this.tip.hidden = next < 0;
    this.canvas.classList.toggle("pointing", next >= 0 && this.clickOn(next) !== null);
    if (next >= 0) {
      this.tip.replaceChildren(...this.describe(next));
      const { offsetWidth, offsetHeight } = this.tip;
      const [left, top] = tipPlace(this.placeOf(next), offsetWidth, offsetHeight, this.width, this.height);
      this.tip.style.transform = `translate(${left}px, ${top}px)`;
    }
    this.redraw();
  }

  press(event) {
    if (event.button > 1) return;
    const place = this.inside(event);
    if (event.pointerType !== "touch") this.canvas.setPointerCapture(event.pointerId);
    this.touches.set(event.pointerId, place);
    this.dragged = 0;
    const draws = this.choose && this.touches.size === 1 && !event.altKey && event.button === 0;
    this.lasso = draws ? [place] : [];
    if (draws) this.point(-1);
    if (event.button === 1) event.preventDefault(); // which would scroll the page
  }

  move(event) {
    const now = this.inside(event);
    const before = this.touches.get(event.pointerId);
    if (!before) return this.point(this.pointNear(...now, REACH.mouse));
    const old = [...this.touches.values()];
    this.touches.set(event.pointerId, now);
    this.dragged += Math.hypot(now[0] - before[0], now[1] - before[1]);
    if (this.touches.size === 2) this.pinch(old, [...this.touches.values()]);
    else if (this.lasso.length) {
      this.lasso.push(now);
      this.redraw();
    } else if (this.view.scale > 1 && this.dragged > 3) {
      this.canvas.classList.add("dragging");
      this.pan(now[0] - before[0], now[1] - before[1]);
    }
  }

  pinch(before, now) {
    const middle = ([a, b]) => [(a[0] + b[0]) / 2, (a[1] + b[1]) / 2];
    const spread = ([a, b]) => Math.hypot(a[0] - b[0], a[1] - b[1]);
    const [[x0, y0], [x, y]] = [middle(before), middle(now)];
    const moved = { ...this.view, x: this.view.x + x - x0, y: this.view.y + y - y0 };
    this.look(zoomed(moved, spread(now) / Math.max(1, spread(before)), x, y));
  }

  release(event) {
    const touched = this.touches.delete(event.pointerId);
    const lasso = this.lasso;
    this.lasso = [];
    this.canvas.classList.remove("dragging");
    this.redraw();
    if (!touched || event.type !== "pointerup") return;
    if (lasso.length > 3 && this.dragged > 6) return this.choose(this.within(lasso));
    if (this.dragged > 6) return;
    const touch = event.pointerType === "touch";
    const point = this.pointNear(...this.inside(event), touch ? REACH.touch : REACH.mouse);
    if (touch && !this.choose) this.point(point);
    else if (point >= 0) this.clickOn(point)?.();
    else this.choose?.([]);
  }

  /** The points inside a polygon. */
  within(polygon) {
    return this.data.x.map((_, point) => point).filter((point) => isInside(polygon, ...this.placeOf(point)));
  }

  /** Zoom, but keep scrolling the page when the map moves under the pointer. */
  wheel(event) {
    const recently = performance.now() - this.scrolled < 250;
    if (recently || (this.view.scale === 1 && event.deltaY > 0 && !event.ctrlKey)) return;
    event.preventDefault();
    const pixels = event.deltaY * (event.deltaMode ? 30 : 1);
    const speed = event.ctrlKey ? 0.01 : 0.003;
    this.zoom(Math.exp(-Math.max(-120, Math.min(120, pixels)) * speed), ...this.inside(event));
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in ARROWS && this.view.scale > 1) this.pan(...ARROWS[event.key]);
    else if (event.key in ZOOMS) this.zoom(ZOOMS[event.key]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
