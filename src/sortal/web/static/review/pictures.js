// Pictures of images, requested when they come into view, by scripts: the key is a header, not part of an address.

import { request } from "/static/review/entry.js";
import { state } from "/static/review/state.js";
import { make } from "/static/shared/dom.js";

const AT_ONCE = 6; // requests that browsers send to one server at the same time
const KEPT = 3000; // pictures whose bytes stay here
const AHEAD = "600px"; // around the window

const kept = new Map(); // addresses of bytes by path, the last used at the end
const waiting = []; // elements without a picture
let busy = 0;
const near = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      near.unobserve(target);
      waiting.push(target);
    }
    next();
  },
  { rootMargin: AHEAD },
);

/** Make an element that shows the small picture of an image. */
export function thumb(row, properties = {}) {
  return picture(`/thumb/${row}`, properties);
}

/** Make an element that shows an image as large as it is stored. */
export function large(row, properties = {}) {
  return picture(`/image/${row}`, properties);
}

/** Make an element that shows an image as it is stored, and soon its file, if that has more to show. */
export function original(row, properties = {}) {
  const image = large(row, properties);
  sharpen(image, `/original/${row}`).catch(() => {}); // what is stored stays
  return image;
}

async function sharpen(image, path) {
  const answer = await request(path);
  if (answer.status !== 200) return;
  const url = URL.createObjectURL(await answer.blob());
  image.addEventListener("load", () => URL.revokeObjectURL(url), { once: true }); // files are not kept
  Object.assign(image.dataset, { path });
  image.src = url;
}

function picture(path, properties) {
  const image = make("img", { alt: "", decoding: "async", draggable: false, ...properties });
  image.dataset.path = path;
  const url = kept.get(path);
  if (url) show(image, path, url);
  else near.observe(image);
  return image;
}

/** What stands in the place of a picture that cannot be shown. */
function placeholder(reason) {
  return make("span", { className: "lost", role: "img", ariaLabel: reason, title: reason, textContent: reason });
}

/** What stands in the place of an image that is lost; `lost` is the number of what became of its file. */
export const lostPicture = (lost) => placeholder(state.lost_words[lost]);

function show(image, path, url) {
  kept.delete(path);
  kept.set(path, url);
  image.src = url;
}

function next() {
  while (busy < AT_ONCE && waiting.length) {
    const image = waiting.shift();
    if (!image.isConnected) continue; // it was scrolled away meanwhile
    busy += 1;
    load(image).finally(() => {
      busy -= 1;
      next();
    });
  }
}

async function load(image) {
  const { path } = image.dataset;
  try {
    if (!kept.has(path)) {
      const answer = await request(path);
      if (!answer.ok) {
        const { message } = await answer.json().catch(() => ({}));
        image.replaceWith(placeholder(answer.status === 410 ? message : "No picture"));
        return;
      }
      keep(path, URL.createObjectURL(await answer.blob()));
    }
    if (image.dataset.path === path) show(image, path, kept.get(path)); // unless its file came first
  } catch {
    image.replaceWith(placeholder("No picture")); // the server does not answer, which others say
  }
}

function keep(path, url) {
  kept.set(path, url);
  for (const [old, address] of kept) {
    if (kept.size <= KEPT) break;
    URL.revokeObjectURL(address); // elements that show it go on to
    kept.delete(old);
  }
}
