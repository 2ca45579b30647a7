// The map of the images: pan, zoom, hover, and a lasso that chooses.

import { thumb } from "/static/review/pictures.js";
import { categoryOf, REVIEWED, state } from "/static/review/state.js";
import { colourOf, isolated, make, percent } from "/static/shared/shared.js";

const SPAN = 9999;
const MARGIN = 20;
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);

const COLOURS = {
  category: (data, at) => colourOf(data.category[at]),
  status: (data, at) => style(`--${data.labelled[at] ? "labelled" : data.confidence[at] < state.unsure_below ? "unsure" : categoryOf(data.category[at])?.kind ?? "new"}`),
  confidence: (data, at) => `oklch(${0.35 + 0.5 * data.confidence[at]} 0.13 ${30 + 210 * data.confidence[at]})`,
  reviewed: (data, at) => style(["--line", "--known", "--new", "--astray", "--labelled"][data.labelled[at] ? 1 : data.reviewed[at]]),
};

export class PointMap {
  /** `chosen` is called with the rows inside a lasso, `open` with a row that was clicked. */
  constructor({ chosen, open }) {
    this.canvas = make("canvas", { tabIndex: 0, role: "application", ariaLabel: "Map of the images. Drag draws a lasso; with Alt, or the middle button, it pans. Plus and minus zoom, arrow keys pan, 0 resets." });
    this.tip = make("div", { id: "tip", hidden: true });
    this.element = make("div", { className: "stage" }, this.canvas, this.tip);
    this.chosen = chosen;
    this.open = open;
    this.colour = "category";
    this.view = { scale: 1, x: 0, y: 0 };
    this.data = { rows: [], x: [], y: [] };
    this.lit = new Set();
    this.lasso = [];
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.canvas);
    this.canvas.addEventListener("pointerdown", (event) => this.press(event));
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    this.canvas.addEventListener("wheel", (event) => { event.preventDefault(); this.zoom(Math.exp(-Math.max(-120, Math.min(120, event.deltaY)) * 0.004), ...this.inside(event)); }, { passive: false });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  close() {
    this.observer.disconnect();
  }

  show(data) {
    this.data = data;
    this.redraw();
  }

  /** Highlight rows; the others stay visible. */
  light(rows) {
    this.lit = new Set(rows);
    this.redraw();
  }

  colourBy(what) {
    this.colour = what;
    this.redraw();
  }

  resize() {
    ({ width: this.width, height: this.height } = this.canvas.getBoundingClientRect());
    this.canvas.width = Math.round(this.width * (devicePixelRatio || 1));
    this.canvas.height = Math.round(this.height * (devicePixelRatio || 1));
    this.redraw();
  }

  placeOf(at) {
    const { scale, x, y } = this.view;
    return [x + scale * (MARGIN + (this.data.x[at] / SPAN) * (this.width - 2 * MARGIN)), y + scale * (MARGIN + (this.data.y[at] / SPAN) * (this.height - 2 * MARGIN))];
  }

  redraw() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => {
      this.asked = false;
      const context = this.canvas.getContext("2d");
      const ratio = devicePixelRatio || 1;
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, this.width, this.height);
      const radius = Math.min(8, (this.data.rows.length > 2000 ? 2.4 : 3.4) * Math.sqrt(this.view.scale));
      const known = new Map(); // colours that were computed
      for (const bright of this.lit.size ? [false, true] : [true]) {
        context.globalAlpha = bright ? 0.9 : 0.22;
        for (let at = 0; at < this.data.rows.length; at++) {
          if (this.lit.size && this.lit.has(this.data.rows[at]) !== bright) continue;
          const [x, y] = this.placeOf(at);
          if (x < -9 || y < -9 || x > this.width + 9 || y > this.height + 9) continue;
          const key = this.colour === "category" ? this.data.category[at] : this.colour === "confidence" ? Math.round(20 * this.data.confidence[at]) : `${this.data.labelled[at]} ${this.data.reviewed[at]} ${this.data.category[at]} ${this.data.confidence[at] < state.unsure_below}`;
          if (!known.has(key)) known.set(key, COLOURS[this.colour](this.data, at));
          context.fillStyle = known.get(key);
          context.beginPath();
          context.arc(x, y, bright && this.lit.size ? radius * 1.3 : radius, 0, 7);
          context.fill();
        }
      }
      context.globalAlpha = 1;
      if (this.lasso.length > 1) {
        context.beginPath();
        this.lasso.forEach(([x, y], at) => (at ? context.lineTo(x, y) : context.moveTo(x, y)));
        context.closePath();
        context.fillStyle = `color-mix(in srgb, ${style("--accent")} 16%, transparent)`;
        context.strokeStyle = style("--accent");
        context.lineWidth = 1.5;
        context.fill();
        context.stroke();
      }
    });
  }

  inside(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  nearest(x, y) {
    let [best, distance] = [-1, 12 * 12];
    for (let at = 0; at < this.data.rows.length; at++) {
      const [px, py] = this.placeOf(at);
      const far = (px - x) ** 2 + (py - y) ** 2;
      if (far < distance) [best, distance] = [at, far];
    }
    return best;
  }

  press(event) {
    const pans = event.altKey || event.button === 1;
    if (event.button > 1) return;
    let before = this.inside(event);
    this.lasso = pans ? [] : [before];
    this.tip.hidden = true;
    const move = (now) => {
      const next = this.inside(now);
      if (pans) {
        this.view.x += next[0] - before[0];
        this.view.y += next[1] - before[1];
      } else this.lasso.push(next);
      before = next;
      this.redraw();
    };
    const end = () => {
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", end);
      removeEventListener("pointercancel", end);
      if (pans) return;
      const drawn = this.lasso;
      this.lasso = [];
      if (drawn.length > 3) this.chosen(this.within(drawn));
      else {
        const at = this.nearest(...before);
        if (at >= 0) this.open(this.data.rows[at]);
        else this.chosen([]);
      }
      this.redraw();
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", end);
    addEventListener("pointercancel", end);
    this.canvas.focus({ preventScroll: true });
    event.preventDefault();
  }

  /** The rows whose points lie inside a polygon (even-odd rule). */
  within(polygon) {
    return this.data.rows.filter((_, at) => {
      const [x, y] = this.placeOf(at);
      let odd = false;
      for (let i = 0, j = polygon.length - 1; i < polygon.length; j = i++) {
        const [[xi, yi], [xj, yj]] = [polygon[i], polygon[j]];
        if (yi > y !== yj > y && x < ((xj - xi) * (y - yi)) / (yj - yi) + xi) odd = !odd;
      }
      return odd;
    });
  }

  hover(event) {
    if (event.buttons) return;
    const [x, y] = this.inside(event);
    const at = this.nearest(x, y);
    this.tip.hidden = at < 0;
    if (at < 0) return;
    const picture = thumb(this.data.rows[at], { width: 120, height: 120 });
    const line = `${percent(this.data.confidence[at])} sure, ${this.data.labelled[at] ? "labelled" : `reviewed: ${REVIEWED[this.data.reviewed[at]]}`}`;
    this.tip.replaceChildren(picture, make("div", {}, make("b", {}, isolated(categoryOf(this.data.category[at])?.name ?? ""))), make("div", { className: "soft", textContent: line }));
    this.tip.style.transform = `translate(${Math.min(x + 16, this.width - 250)}px, ${Math.max(4, Math.min(y - 60, this.height - 190))}px)`;
  }

  zoom(factor, x = this.width / 2, y = this.height / 2) {
    const scale = Math.min(60, Math.max(1, this.view.scale * factor));
    const keep = (from, at) => (scale === 1 ? 0 : at - ((at - from) * scale) / this.view.scale);
    this.view = { scale, x: keep(this.view.x, x), y: keep(this.view.y, y) };
    this.redraw();
  }

  key(event) {
    const pans = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
    const zooms = { "+": 1.4, "=": 1.4, "-": 1 / 1.4, 0: 0 };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in pans) {
      this.view.x += pans[event.key][0];
      this.view.y += pans[event.key][1];
      this.redraw();
    } else if (event.key in zooms) this.zoom(zooms[event.key]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
