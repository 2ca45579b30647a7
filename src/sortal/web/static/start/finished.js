// A run: what was found, its report and review, and exports.

import { get, toast } from "/static/review/state.js";
import { button, isolated, make } from "/static/shared/dom.js";
import { counted, thousands } from "/static/shared/text.js";
import {
  answerOf, ask, errorOf, isRunning, keyOf, latest, look, progressOf, redraw, small, start,
} from "/static/start/commands.js";
import { addressOf, nameOf, pathOf } from "/static/start/places.js";

const WAIT_LOOKS = 5; // after how many looks at commands it is asked whether a run is there
const FORMATS = {
  folders: "Folders, one for each category",
  csv: "A table for spreadsheets (CSV)",
  coco: "COCO",
  imagefolder: "Image folder of Hugging Face",
  fiftyone: "FiftyOne",
  labelstudio: "Label Studio",
  "camtrap-dp": "Camtrap DP, of camera traps",
  ecotaxa: "EcoTaxa",
  parquet: "A table (Parquet)",
  embeddings: "Features (Parquet)",
};

function table(run) {
  const rows = run.categories.map(({ name, kind, size, unsure }) => make("tr", {}, make("td", {}, isolated(name)),
    make("td", {}, make("span", { className: `badge ${kind}`, textContent: kind })),
    make("td", { textContent: thousands(size) }), make("td", { textContent: unsure ? thousands(unsure) : "" })));
  const head = ["Category", "", "Images", "Unsure"].map((textContent) => make("th", { textContent, scope: "col" }));
  return make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows));
}

/** Say how many images and categories a run has, and of which kinds. */
export function leadOf({ images, categories, status, binned, unreadable }) {
  const found = categories.filter(({ kind }) => kind === "new").length;
  const parts = Object.entries({ ...status, "in the bin": binned })
    .filter(([, count]) => count)
    .map(([what, count]) => `${thousands(count)} ${what}`);
  return `${counted(images, "image")} in ${counted(categories.length, "category", "categories")}, ` +
    `${thousands(found)} of them new: ${parts.join(", ")}.` +
    (unreadable ? ` ${counted(unreadable, "file")} could not be read.` : "");
}

/** Say how far the number of categories and the confidence of a run can be trusted. */
export function trustOf({ k, estimated, interval, basis, calibrated }) {
  const [low, high] = interval ?? [k, k];
  const number = `k = ${k}, ${estimated ? "estimated" : "given"}${low < high ? `, likely ${low} to ${high}` : ""}.`;
  const confidence = calibrated ? "" : "Confidence is not calibrated: it ranks images, but is no probability.";
  return [number, basis, confidence].filter(Boolean).join(" ");
}

/** Show what a command printed, without what to type next; its tables as they are. */
export function toldBy(text) {
  const lines = text.trim().split("\n").filter((line) => !line.startsWith("To "));
  return lines.join("\n").split(/\n{2,}/).flatMap((part) => (/\S {2,}\S/.test(part)
    ? make("pre", { textContent: part })
    : part.split("\n").map((line) => make("p", {}, isolated(line)))));
}

/** The folders around one. */
const around = async (at) =>
  (await get(`/api/listing?at=${encodeURIComponent(at.split("/").slice(0, -1).join("/"))}`)).folders;
const ownOf = async (at) => (await around(at)).find(({ name }) => name === nameOf(at));
/** Whether a run is being made that is not there yet. */
const isMade = (folder) => Boolean(folder?.is_busy && !folder.is_run);

/** A run that is being made, until it is there or given up. */
function waitingPage(view, at) {
  view.replaceChildren(make("section", {}, make("h1", {}, isolated(nameOf(at))),
    make("p", { className: "lead", role: "status", textContent: "This is being sorted, by a command that a page " +
      "or a terminal has started. It goes on by itself, and its result appears here." })));
  let looks = 0;
  return {
    title: nameOf(at),
    async update() {
      looks += 1;
      if (looks % WAIT_LOOKS === 0 && !isMade(await ownOf(at))) dispatchEvent(new HashChangeEvent("hashchange"));
    },
  };
}

/** Sort another folder with a run: which one, the name of the table, and whether its images are added to the run. */
function predicting(at, folders) {
  const images = make("select", {}, ...folders.map(({ name }) => make("option", { value: name, textContent: name })));
  const table = make("input", { type: "text", maxLength: 200, spellcheck: false });
  const update = make("input", { type: "checkbox" });
  const suggest = () => { table.value = `${images.value}-sorted.csv`; };
  images.addEventListener("change", suggest);
  suggest();
  const beside = (name) => pathOf(at.split("/").slice(0, -1).join("/"), name);
  const sort = () => start({ kind: "predict", at, images: beside(images.value), name: table.value,
    ...(update.checked && { update: "yes" }) });
  const told = make("div", { role: "status" });
  const box = make("div", { className: "panel" }, make("h2", { textContent: "More images" }),
    small("Sort another folder into these categories, without learning again."),
    make("label", { className: "field" }, "Folder, beside the run", images),
    make("label", { className: "field" }, "Table of the result, beside the run", table),
    make("label", { className: "radio" }, update, make("span", { textContent: "Add them to the run" })),
    make("p", { className: "line" }, button("Sort them", sort)), told);
  return { box: folders.length > 0 && box, told };
}

export async function finishedPage(view, at) {
  const above = await around(at);
  if (isMade(above.find(({ name }) => name === nameOf(at)))) return waitingPage(view, at);
  const more = predicting(at, above.filter((each) => !each.is_run && !each.is_export && !each.is_busy));
  const run = await get(`/api/run?at=${encodeURIComponent(at)}`);
  const name = nameOf(at);
  const mine = (asked) => asked.at === at;
  let opening = null; // the review that opens as soon as it is ready

  const showReport = async () => {
    const answer = await ask("/api/show", { at });
    if (answer && !answer.shown) link.replaceChildren("To see the report, open this file: ", isolated(run.report));
    else if (answer) toast("The report opens in another tab.");
  };
  const openReview = async () => {
    const found = latest("review", mine);
    const command = found && isRunning(found) ? found : await start({ kind: "review", at });
    opening = command && command.number;
    await look();
  };
  const follow = async (command) => {
    opening = null;
    const found = await ask("/api/link", { number: command.number });
    if (!found) return;
    window.open(found.link, "_blank", "noopener"); // which a browser may block
    const here = make("a", { href: found.link, target: "_blank", rel: "noopener", textContent: "Open it here" });
    link.replaceChildren(here, " if no tab has opened.");
  };

  function reviewing(command) {
    if (!command || !isRunning(command)) return reporting(command);
    if (!command.has_link) return progressOf(command);
    const end = () => ask("/api/stop", { number: command.number }).then(() => link.replaceChildren()).then(look);
    return make("p", { className: "line" }, "The review is open.", button("End it", end));
  }
  const reporting = (command) => command &&
    (isRunning(command) ? progressOf(command) : command.state === "failed" && errorOf(command));
  async function saying(command) {
    if (command?.state !== "done") return [reporting(command)];
    return toldBy(await answerOf(command));
  }

  const link = make("p", { className: "small" });
  const working = make("div");
  const format = make("select", { ariaLabel: "Format" }, ...Object.keys(FORMATS).filter((each) => each in run.formats)
    .map((value) => make("option", { value, textContent: FORMATS[value] })));
  const out = make("input", { type: "text", maxLength: 200, spellcheck: false, ariaLabel: "Name" });
  const suggest = () => {
    const extension = run.formats[format.value];
    out.value = `${name}${extension === `.${format.value}` ? "" : `-${format.value}`}${extension}`;
  };
  suggest();
  format.addEventListener("change", suggest);
  const exported = make("div", { role: "status" });
  const exportNow = () => start({ kind: "export", at, format: format.value, name: out.value });

  view.replaceChildren(make("section", {},
    make("h1", {}, isolated(name)),
    make("p", { className: "lead", textContent: leadOf(run) }),
    small(trustOf(run)),
    make("div", { className: "line" }, button("Review", openReview, { className: "primary" }),
      button("Open the report", showReport),
      make("a", { className: "button", href: addressOf("sort", at) }, "Sort again"),
      run.reviewed && button("Draw the report again", () => start({ kind: "report", at }))),
    make("p", { className: "small" }, "Review: look at the categories, name them, and correct what is wrong. ",
      "The report is ", isolated(run.report), "."),
    working, link,
    make("div", { className: "two-panels" },
      make("div", { className: "panel" }, make("h2", { textContent: "Categories" }), table(run)),
      make("div", { className: "panel" }, make("h2", { textContent: "Export" }),
        small("With what was decided in the review. Your files stay as and where they are."),
        make("label", { className: "field" }, "Format", format),
        make("label", { className: "field" }, "Name, beside the run", out),
        make("p", { className: "line" }, button("Export", exportNow)), exported), more.box)));

  return {
    title: name,
    async update() {
      const review = latest("review", mine);
      if (review && opening === review.number && review.has_link) await follow(review);
      const report = latest("report", mine);
      await redraw(working, [keyOf(review), keyOf(report)], () => [reviewing(review), reporting(report)]);
      const command = latest("export", mine);
      await redraw(exported, keyOf(command), () => saying(command));
      const predicted = latest("predict", mine);
      await redraw(more.told, keyOf(predicted), () => saying(predicted));
    },
  };
}
