// A grid of any number of images, of which only those in view are elements; and which of them are chosen.

import { LOST, placeholder, thumb } from "/static/review/pictures.js";
import { REVIEWED } from "/static/review/state.js";
import { make, percent } from "/static/shared/shared.js";

const CELL = 132;
const LABEL = 20;
const BEYOND = 3; // lines above and below the view

export class Grid {
  /** `data` has the columns of the server; `changed` is called when the selection changes. */
  constructor(data, { changed = () => {}, open = () => {} } = {}) {
    this.element = make("div", { className: "grid", tabIndex: 0, role: "listbox", ariaLabel: "Images", ariaMultiSelectable: "true" });
    this.changed = () => {};
    this.open = open;
    this.cells = new Map(); // by index
    this.spare = new Map(); // of images that may be drawn again, by row
    this.empty = make("p", { className: "state", textContent: "No images here.", hidden: true });
    this.element.append(this.empty);
    this.chosen = new Set(); // rows
    this.cursor = 0;
    this.anchor = 0;
    this.columns = 1;
    this.show(data);
    this.changed = changed;
    this.observer = new ResizeObserver(() => this.layout());
    this.observer.observe(this.element);
    this.scrolled = () => this.draw();
    addEventListener("scroll", this.scrolled, { passive: true });
    this.element.addEventListener("pointerdown", (event) => this.press(event));
    this.element.addEventListener("click", (event) => {
      const at = this.touched ? this.indexAt(event) : -1;
      if (at >= 0) this.toggle(at);
    });
    this.element.addEventListener("dblclick", (event) => this.open(this.data.rows[this.indexAt(event)]));
    this.element.addEventListener("keydown", (event) => this.key(event));
  }

  close() {
    this.observer.disconnect();
    removeEventListener("scroll", this.scrolled);
  }

  /** Show other images; what was chosen stays chosen as far as it is still there. */
  show(data) {
    this.data = data;
    this.indexOf = new Map(data.rows.map((row, index) => [row, index]));
    this.chosen = new Set([...this.chosen].filter((row) => this.canChoose(row)));
    this.cursor = Math.min(this.cursor, Math.max(0, data.rows.length - 1));
    this.anchor = this.cursor;
    // Cells of images that stay are used again, so that their pictures do not flicker.
    this.spare = new Map([...this.cells.values()].map((cell) => [Number(cell.dataset.row), cell]));
    this.cells.clear();
    this.layout();
    for (const cell of this.spare.values()) cell.remove();
    this.spare.clear();
    this.empty.hidden = data.rows.length > 0;
    this.changed();
  }

  layout() {
    this.columns = Math.max(1, Math.floor((this.element.clientWidth || CELL) / CELL));
    const lines = Math.ceil(this.data.rows.length / this.columns);
    this.element.style.height = `${lines * (CELL + LABEL)}px`;
    for (const [index, cell] of this.cells) this.place(index, cell);
    this.draw();
  }

  place(index, cell) {
    const side = this.element.clientWidth / this.columns || CELL;
    cell.style.left = `${(index % this.columns) * side}px`;
    cell.style.top = `${Math.floor(index / this.columns) * (CELL + LABEL)}px`;
    cell.style.width = `${side}px`;
    cell.style.height = `${CELL + LABEL}px`;
  }

  /** The first and the last index whose images are in view. */
  visible() {
    const { top } = this.element.getBoundingClientRect();
    const line = CELL + LABEL;
    const first = Math.max(0, Math.floor(-top / line));
    const last = Math.floor((innerHeight - top) / line);
    return [first * this.columns, Math.min(this.data.rows.length, (last + 1) * this.columns) - 1];
  }

  /** The first and the last index of whole lines that nothing covers. */
  seen() {
    const { top } = this.element.getBoundingClientRect();
    const line = CELL + LABEL;
    const covered = Math.max(0, ...[...document.querySelectorAll(".bar, .sticky")].filter((each) => getComputedStyle(each).position === "sticky").map((each) => each.getBoundingClientRect().bottom));
    const first = Math.max(0, Math.ceil((covered - top) / line));
    const last = Math.max(first, Math.floor((innerHeight - top) / line) - 1);
    return [first * this.columns, Math.min(this.data.rows.length, (last + 1) * this.columns) - 1];
  }

  draw() {
    const [first, last] = this.visible();
    const from = Math.max(0, first - BEYOND * this.columns);
    const to = Math.min(this.data.rows.length - 1, last + BEYOND * this.columns);
    for (const [index, cell] of this.cells) {
      if (index >= from && index <= to) continue;
      cell.remove();
      this.cells.delete(index);
    }
    for (let index = from; index <= to; index++) if (!this.cells.has(index)) this.add(index);
    this.mark();
  }

  add(index) {
    const { rows, confidence, reviewed, labelled, lost } = this.data;
    const done = lost[index] ? "" : labelled[index] ? "labelled" : reviewed[index] ? REVIEWED[reviewed[index]] : "";
    const spare = this.spare.get(rows[index]);
    this.spare.delete(rows[index]);
    const image = lost[index] ? placeholder(LOST[lost[index]]) : spare?.querySelector("img") ?? thumb(rows[index]);
    const line = make("span", { className: "line" }, make("span", { textContent: percent(confidence[index]) }), make("span", { className: "done", textContent: done }));
    const cell = spare ?? make("div", { className: "cell", role: "option", id: `image-${rows[index]}` });
    cell.ariaLabel = `Image ${index + 1} of ${rows.length}, ${percent(confidence[index])} sure${done ? `, ${done}` : ""}${lost[index] ? `. ${LOST[lost[index]]}.` : ""}`;
    cell.ariaDisabled = String(Boolean(lost[index]));
    cell.dataset.row = rows[index];
    cell.replaceChildren(image, line);
    this.place(index, cell);
    this.cells.set(index, cell);
    if (!spare) this.element.append(cell);
  }

  mark() {
    for (const [index, cell] of this.cells) {
      const chosen = this.chosen.has(this.data.rows[index]);
      cell.classList.toggle("chosen", chosen);
      cell.ariaSelected = String(chosen);
      cell.classList.toggle("cursor", index === this.cursor && document.activeElement === this.element);
    }
    this.element.setAttribute("aria-activedescendant", this.data.rows.length ? `image-${this.data.rows[this.cursor]}` : "");
  }

  /** Whether an image is here and can be seen: nothing can be decided about one whose file is gone or has changed. */
  canChoose(row) {
    return this.indexOf.has(row) && !this.data.lost[this.indexOf.get(row)];
  }

  choose(rows, { add = false } = {}) {
    if (!add) this.chosen.clear();
    for (const row of rows) if (this.canChoose(row)) this.chosen.add(row);
    this.mark();
    this.changed();
  }

  toggle(index) {
    const row = this.data.rows[index];
    if (!this.chosen.delete(row) && this.canChoose(row)) this.chosen.add(row);
    this.mark();
    this.changed();
  }

  range(to, add = false) {
    const [low, high] = [Math.min(this.anchor, to), Math.max(this.anchor, to)];
    this.choose(this.data.rows.slice(low, high + 1), { add });
  }

  indexAt(event) {
    const box = this.element.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left) / box.width) * this.columns);
    const index = Math.floor((event.clientY - box.top) / (CELL + LABEL)) * this.columns + Math.min(Math.max(column, 0), this.columns - 1);
    return index < this.data.rows.length ? index : -1;
  }

  /** A click chooses; a drag draws a box around what it chooses. */
  press(event) {
    this.touched = event.pointerType === "touch"; // a tap chooses by its click; anything else scrolls
    if (event.button !== 0 || this.touched) return;
    const start = { x: event.pageX, y: event.pageY };
    const keep = event.ctrlKey || event.metaKey ? [...this.chosen] : [];
    let box = null;
    const move = (now) => {
      if (!box && Math.hypot(now.pageX - start.x, now.pageY - start.y) < 6) return;
      if (!box) this.element.append((box = make("div", { className: "box" })));
      const area = this.element.getBoundingClientRect();
      const [left, top] = [area.left + scrollX, area.top + scrollY];
      const [x0, x1] = [Math.min(start.x, now.pageX) - left, Math.max(start.x, now.pageX) - left];
      const [y0, y1] = [Math.min(start.y, now.pageY) - top, Math.max(start.y, now.pageY) - top];
      Object.assign(box.style, { left: `${x0}px`, top: `${y0}px`, width: `${x1 - x0}px`, height: `${y1 - y0}px` });
      const side = area.width / this.columns;
      const rows = [];
      for (let line = Math.max(0, Math.floor(y0 / (CELL + LABEL))); line <= Math.floor(y1 / (CELL + LABEL)); line++) {
        for (let column = Math.max(0, Math.floor(x0 / side)); column <= Math.min(this.columns - 1, Math.floor(x1 / side)); column++) {
          const row = this.data.rows[line * this.columns + column];
          if (row !== undefined) rows.push(row);
        }
      }
      this.choose([...keep, ...rows]);
    };
    const end = (last) => {
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", end);
      removeEventListener("pointercancel", end);
      if (box || last.type === "pointercancel") return box?.remove();
      const index = this.indexAt(last);
      if (index < 0) return this.choose([]);
      if (last.shiftKey) this.range(index, last.ctrlKey || last.metaKey);
      else if (last.ctrlKey || last.metaKey) this.toggle(index);
      else this.choose(this.chosen.size === 1 && this.chosen.has(this.data.rows[index]) ? [] : [this.data.rows[index]]);
      this.cursor = index;
      if (!last.shiftKey) this.anchor = index;
      this.mark();
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", end);
    addEventListener("pointercancel", end);
    this.element.focus({ preventScroll: true });
    event.preventDefault();
  }

  key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns, Home: -Infinity, End: Infinity };
    const last = this.data.rows.length - 1;
    if (last < 0 || event.altKey) return;
    if (event.key in steps) {
      this.cursor = Math.min(last, Math.max(0, this.cursor + steps[event.key]));
      if (event.shiftKey) this.range(this.cursor);
      else this.anchor = this.cursor;
      this.scrollTo(this.cursor);
      this.draw();
    } else if (event.key === " ") {
      this.toggle(this.cursor);
      this.anchor = this.cursor;
    } else if (event.key === "Enter") this.open(this.data.rows[this.cursor]);
    else if (event.key.toLowerCase() === "a" && (event.ctrlKey || event.metaKey)) this.choose(this.data.rows);
    else if (event.key === "Escape" && this.chosen.size) this.choose([]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  scrollTo(index) {
    const line = Math.floor(index / this.columns) * (CELL + LABEL);
    const { top } = this.element.getBoundingClientRect();
    const y = top + line;
    if (y < 170) scrollBy({ top: y - 170, behavior: "instant" });
    else if (y + CELL + LABEL > innerHeight) scrollBy({ top: y + CELL + LABEL - innerHeight + 12, behavior: "instant" });
  }
}
