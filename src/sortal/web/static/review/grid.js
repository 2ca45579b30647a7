// A grid of any number of images, of which only those in view are elements; and which of them are chosen.

import {
  heightOf, indexAt, indicesIn, moved, range, shapeOf, touching, wholeLines,
} from "/static/review/grid_layout.js";
import { sureness } from "/static/review/phrases.js";
import { large, lostPicture, thumb } from "/static/review/pictures.js";
import { arrange, join, leave, SIZES } from "/static/review/sizes.js";
import { categoryOf, goTo, state } from "/static/review/state.js";
import { make } from "/static/shared/dom.js";

const BEYOND = 3; // lines above and below the view
const COVERED = 170; // pixels at the top of the window that bars may cover
const COARSE = 280; // pixels of a cell that a thumbnail is too coarse for

export const NONE_HERE = "No images here."; // said where a grid is empty

/** The columns that a grid needs; without any images. */
export const NO_IMAGES = Object.fromEntries(
  ["rows", "category", "confidence", "reviewed", "labelled", "other", "lost", "folder"].map((name) => [name, []]),
);

/** What has been said of an image, in words; empty if nothing has. */
export function reviewedWord({ reviewed, labelled }, index) {
  if (labelled[index]) return "labelled";
  const word = reviewed[index] ? state.reviewed_words[reviewed[index]] : "";
  return word === "binned" ? "in the bin" : word; // as the pages call it
}

export class Grid {
  /**
   * `data` has the columns of the server; `changed` is called when the selection changes; `named` shows categories.
   * A click adds to the choice; with a `word`, which is written on what is chosen, boxes do, too; `fixed` allows none.
   * `ofGroups` says that an image stands for all of its group, wherever they are.
   */
  constructor(data, options = {}) {
    const { changed = () => {}, open = () => {}, named = false, word = "", fixed = false, ofGroups = false } = options;
    const role = { role: "listbox", ariaLabel: "Images", ariaMultiSelectable: "true" };
    this.element = make("div", { className: "grid", tabIndex: 0, ...role });
    this.changed = () => {};
    this.open = open;
    this.named = named;
    this.word = word;
    this.fixed = fixed;
    this.ofGroups = ofGroups;
    this.cells = new Map(); // by index
    this.spare = new Map(); // of images that may be drawn again, by row
    this.empty = make("p", { className: "state", textContent: NONE_HERE, hidden: true });
    this.element.append(this.empty);
    this.chosen = new Set(); // rows
    this.seen = new Set(); // rows that have been in view
    this.cursor = 0;
    this.anchor = 0;
    this.side = SIZES[0];
    this.show(data);
    this.changed = changed;
    this.observer = new ResizeObserver(() => {
      this.layout();
      arrange();
    });
    this.observer.observe(this.element);
    join(this);
    this.scrolled = () => {
      this.draw();
      this.look();
    };
    addEventListener("scroll", this.scrolled, { passive: true });
    this.element.addEventListener("pointerdown", (event) => this.press(event));
    this.element.addEventListener("click", (event) => {
      const at = this.touched ? this.indexOfEvent(event) : -1;
      if (at >= 0) this.toggle(at);
    });
    this.element.addEventListener("dblclick", (event) => this.openAt(this.indexOfEvent(event)));
    this.element.addEventListener("keydown", (event) => this.key(event));
  }

  close() {
    leave(this);
    this.observer.disconnect();
    removeEventListener("scroll", this.scrolled);
  }

  get count() {
    return this.data.rows.length;
  }

  /** Show other images; what was chosen stays chosen as far as it is still there. */
  show(data) {
    this.data = data;
    this.ofFolders = new Set(data.folder).size > 1; // which tell images apart
    this.indexOf = new Map(data.rows.map((row, index) => [row, index]));
    this.chosen = new Set([...this.chosen].filter((row) => this.canChoose(row)));
    this.cursor = Math.min(this.cursor, Math.max(0, this.count - 1));
    this.anchor = this.cursor;
    // Cells of images that stay are used again, so that their pictures do not flicker.
    this.spare = new Map([...this.cells.values()].map((cell) => [Number(cell.dataset.row), cell]));
    this.cells.clear();
    this.layout();
    for (const cell of this.spare.values()) cell.remove();
    this.spare.clear();
    this.empty.hidden = this.count > 0;
    this.changed();
    arrange();
  }

  // Drawing

  /** Make room for pictures of another size. */
  reshape(side) {
    this.shape = shapeOf(this.element.clientWidth, side, this.count);
    this.element.style.height = `${heightOf(this.shape)}px`;
  }

  /** Draw pictures in another size; sharper ones if that is large. */
  resize(side) {
    const sharper = side >= COARSE !== this.side >= COARSE;
    this.side = side;
    if (sharper) {
      for (const cell of this.cells.values()) cell.remove();
      this.cells.clear();
    }
    this.layout();
    this.look();
  }

  layout() {
    this.reshape(this.side);
    if (!this.element.clientWidth) return; // it is not on the page yet
    for (const [index, cell] of this.cells) this.place(index, cell);
    this.draw();
  }

  place(index, cell) {
    const { columns, line } = this.shape;
    const side = this.element.clientWidth / columns || this.side;
    cell.style.left = `${(index % columns) * side}px`;
    cell.style.top = `${Math.floor(index / columns) * line}px`;
    cell.style.width = `${side}px`;
    cell.style.height = `${line}px`;
  }

  /** The first and the last index of whole lines that nothing covers. */
  inView() {
    const { top } = this.element.getBoundingClientRect();
    const bars = [...document.querySelectorAll(".bar, .sticky")];
    const placed = (position) => bars.filter((each) => getComputedStyle(each).position === position);
    const covered = Math.max(0, ...placed("sticky").map((each) => each.getBoundingClientRect().bottom));
    const end = Math.min(innerHeight, ...placed("fixed").map((each) => each.getBoundingClientRect().top));
    return wholeLines(covered - top, end - top, this.shape);
  }

  /** The rows of the images in view. */
  rowsInView() {
    const [first, last] = this.inView();
    return this.data.rows.slice(first, last + 1);
  }

  /** Remember what has been in view. */
  look() {
    if (this.element.clientWidth) for (const row of this.rowsInView()) this.seen.add(row);
  }

  draw() {
    const { top } = this.element.getBoundingClientRect();
    const [first, last] = touching(-top, innerHeight - top, this.shape);
    const from = Math.max(0, first - BEYOND * this.shape.columns);
    const to = Math.min(this.count - 1, last + BEYOND * this.shape.columns);
    for (const [index, cell] of this.cells) {
      if (index >= from && index <= to) continue;
      cell.remove();
      this.cells.delete(index);
    }
    for (let index = from; index <= to; index++) if (!this.cells.has(index)) this.add(index);
    this.mark();
  }

  add(index) {
    const { rows, category, lost } = this.data;
    const [row, gone] = [rows[index], lost[index]];
    const done = gone ? "" : reviewedWord(this.data, index);
    const sure = sureness(this.data, index, state);
    const spare = this.spare.get(row);
    this.spare.delete(row);
    const image = gone ? lostPicture(gone) : spare?.querySelector("img") ?? (this.side >= COARSE ? large : thumb)(row);
    const doneMark = make("span", { className: "done", textContent: done });
    const doubt = ["unsure", "fits nowhere"].includes(sure) ? sure : "";
    const folder = this.ofFolders ? this.data.folder[index] : "";
    const own = this.data.cell?.[index] || doubt || folder;
    const textContent = this.named ? categoryOf(category[index])?.name ?? "" : own;
    const line = make("span", { className: "line" }, make("bdi", { textContent }), doneMark);
    const size = (this.ofGroups ? this.data.stack[index] : this.data.stacks?.get(row))?.length ?? 1;
    const stack = size > 1 && make("span", { className: "stack", textContent: `×${size}` });
    const word = this.word && make("bdi", { className: "word", textContent: this.word });
    const cell = spare ?? make("div", { className: "cell", role: "option", id: `image-${row}` });
    const why = gone ? `. ${state.lost_words[gone]}.` : "";
    const group = size > 1 ? `, with ${size - 1} more of its group` : "";
    cell.ariaLabel = `Image ${index + 1} of ${rows.length}${group}, ${done || sure}${why}`;
    cell.title = folder;
    cell.classList.toggle("stacked", size > 1);
    cell.ariaDisabled = String(Boolean(gone));
    cell.dataset.row = row;
    cell.replaceChildren(...[image, line, stack, word].filter(Boolean));
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
    const active = this.count ? `image-${this.data.rows[this.cursor]}` : "";
    this.element.setAttribute("aria-activedescendant", active);
  }

  // Choosing

  /** Whether an image is here and can be seen: nothing can be decided about one whose file is gone or has changed. */
  canChoose(row) {
    return !this.fixed && this.indexOf.has(row) && !this.data.lost[this.indexOf.get(row)];
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

  chooseRange(to, add = false) {
    this.choose(range(this.data.rows, this.anchor, to), { add });
  }

  openAt(index) {
    if (index >= 0) this.open(this.data.rows[index]);
  }

  // The pointer and the keyboard

  indexOfEvent(event) {
    const box = this.element.getBoundingClientRect();
    return indexAt(event.clientX - box.left, event.clientY - box.top, box.width, this.shape);
  }

  /** A click chooses; a drag draws a box around what it chooses. */
  press(event) {
    this.touched = event.pointerType === "touch"; // a tap chooses by its click; anything else scrolls
    if (event.button !== 0 || this.touched) return;
    const start = { x: event.pageX, y: event.pageY };
    const keep = event.ctrlKey || event.metaKey || this.word ? [...this.chosen] : [];
    let box = null;
    const move = (now) => {
      if (!box && Math.hypot(now.pageX - start.x, now.pageY - start.y) < 6) return;
      if (!box) this.element.append((box = make("div", { className: "box" })));
      this.chooseBox(box, start, { x: now.pageX, y: now.pageY }, keep);
    };
    const end = (last) => {
      for (const [type, listener] of Object.entries(listeners)) removeEventListener(type, listener);
      if (box || last.type === "pointercancel") return box?.remove();
      this.clicked(last);
    };
    const listeners = { pointermove: move, pointerup: end, pointercancel: end };
    for (const [type, listener] of Object.entries(listeners)) addEventListener(type, listener);
    this.element.focus({ preventScroll: true });
    event.preventDefault();
  }

  /** Draw a box between two places of the page, and choose what it touches and what is kept. */
  chooseBox(box, start, now, keep) {
    const area = this.element.getBoundingClientRect();
    const [left, top] = [area.left + scrollX, area.top + scrollY];
    const drawn = {
      left: Math.min(start.x, now.x) - left,
      right: Math.max(start.x, now.x) - left,
      top: Math.min(start.y, now.y) - top,
      bottom: Math.max(start.y, now.y) - top,
    };
    const size = { width: drawn.right - drawn.left, height: drawn.bottom - drawn.top };
    for (const [name, pixels] of Object.entries({ left: drawn.left, top: drawn.top, ...size })) {
      box.style[name] = `${pixels}px`;
    }
    const indices = indicesIn(drawn, area.width, this.shape);
    this.choose([...keep, ...indices.map((index) => this.data.rows[index])]);
  }

  clicked(event) {
    const index = this.indexOfEvent(event);
    if (index < 0) return this.word ? undefined : this.choose([]);
    if (event.shiftKey) this.chooseRange(index, event.ctrlKey || event.metaKey || Boolean(this.word));
    else this.toggle(index);
    this.cursor = index;
    if (!event.shiftKey) this.anchor = index;
    this.mark();
  }

  key(event) {
    if (!this.count || event.altKey) return;
    const to = moved(this.cursor, event.key, this.shape);
    if (to !== null) {
      this.cursor = to;
      if (event.shiftKey) this.chooseRange(to, Boolean(this.word));
      else this.anchor = to;
      this.scrollTo(to);
      this.draw();
    } else if (event.key === " ") {
      this.toggle(this.cursor);
      this.anchor = this.cursor;
    } else if (event.key === "Enter") this.openAt(this.cursor);
    else if (event.key.toLowerCase() === "a" && (event.ctrlKey || event.metaKey)) this.choose(this.data.rows);
    else if (event.key === "Escape" && this.chosen.size) this.choose([]);
    else if (event.key === "l" && !event.ctrlKey && !event.metaKey) goTo(`like/${this.data.rows[this.cursor]}`);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  scrollTo(index) {
    const { top } = this.element.getBoundingClientRect();
    const { columns, line } = this.shape;
    const y = top + Math.floor(index / columns) * line;
    if (y < COVERED) scrollBy({ top: y - COVERED, behavior: "instant" });
    else if (y + line > innerHeight) scrollBy({ top: y + line - innerHeight + 12, behavior: "instant" });
  }
}
