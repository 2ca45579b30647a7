// A folder before and while it is sorted: labels, what a check finds, what it will cost, and how far it is.

import { get } from "/static/review/state.js";
import { button, definitions, isolated, make } from "/static/shared/dom.js";
import { counted, thousands } from "/static/shared/text.js";
import {
  answerOf, ask, errorOf, few, isRunning, keyOf, latest, look, notesOf, progressOf, redraw, same, small, start,
  time,
} from "/static/start/commands.js";
import { findingsOf } from "/static/start/findings.js";
import { addressOf, nameOf, runOf } from "/static/start/places.js";

const NETWORKS = { auto: "a large one, trained on photographs", convnet: "a small one, for images of up to 32 pixels" };
const USUAL_METHOD = "sortal";
const AS_BEFORE = { "": "as in the result" };
const WISHES = { usual: "as usual", finer: "more, smaller ones", coarser: "fewer, larger ones" };
const inUnit = (bytes, unit) => Math.max(bytes / unit, 0.1).toFixed(1);
const size = (bytes) => (bytes >= 1e9 ? `${inUnit(bytes, 1e9)} GB` : `${inUnit(bytes, 1e6)} MB`);

const field = (text, input) => make("label", { className: "field" }, text, input);
const choice = (options) => make("select", {}, ...Object.entries(options).map(([value, textContent]) =>
  make("option", { value, textContent })));

/** Ask where labels come from. */
function labelChoice(found, tables, onChange) {
  const classes = found.folders.filter(({ name, is_run }) => !is_run && name !== "unlabelled").map(({ name }) => name);
  const named = classes.length ? ` (${few(classes, 4)})` : ", but there are none here";
  const table = choice(Object.fromEntries(tables.map((each) => [each, each])));
  const options = [
    ["folders", `Folders: the name of each is a class${named}`, classes.length],
    ["table", "A table: its column file_name says which image, its column label which class", tables.length],
    ["none", "None: sort by looks alone", true],
  ];
  const usual = found.tables.length ? "table" : classes.length ? "folders" : "none";
  const rows = options.map(([value, text, possible]) => {
    const input = make("input", { type: "radio", name: "labels", value, disabled: !possible });
    input.checked = value === usual;
    return make("label", { className: possible ? "radio" : "radio soft" }, input, make("span", {}, isolated(text)));
  });
  if (!tables.length) rows[1].querySelector("span").textContent += " (there is none in this folder or beside it)";
  table.addEventListener("input", () => { rows[1].querySelector("input").checked = true; });
  const which = tables.length > 0 && make("label", { className: "field table" }, "Table", table);
  const legend = make("legend", { textContent: "Where do labels come from?" });
  const box = make("fieldset", { className: "panel" }, legend, rows[0], rows[1], which, rows[2]);
  box.addEventListener("change", onChange);
  const chosen = () => box.querySelector("input:checked").value;
  return { box, value: () => (chosen() === "table" ? { labels: "table", table: table.value } : { labels: chosen() }) };
}

/** Ask for settings that most people leave as they are; if there is a result, those that stay are its own. */
function settingsChoice({ at, is_run }, run, isAgain, methods, weightFiles, onChange) {
  const kept = isAgain ? AS_BEFORE : {};
  const usual = (text) => (isAgain ? AS_BEFORE[""] : text);
  const k = make("input", { type: "number", min: 1, placeholder: usual("estimated") });
  const epochs = make("input", { type: "number", min: 0, placeholder: usual("as it suits") });
  const wish = choice({ ...kept, ...WISHES });
  const network = choice({ ...kept, ...NETWORKS });
  const method = choice({ ...kept, [USUAL_METHOD]: "", ...methods });
  const files = Object.fromEntries(weightFiles.map((each) => [each, each]));
  const weights = choice({ "": usual("as published"), ...files });
  const named = make("input", { type: "text", maxLength: 200, spellcheck: false,
    placeholder: "such as vit_small_patch14_dinov2" });
  const out = make("input", { type: "text", value: run, maxLength: 200, spellcheck: false });
  const box = make("details", { className: "panel settings" }, make("summary", { textContent: "Settings" }),
    make("div", { className: "fields" }, field("Number of categories", k), field("Categories", wish),
      field("Network", network), field("Rounds through the images (epochs)", epochs),
      !is_run && field("Folder of the result, beside the images", out), field("Method", method),
      weightFiles.length > 0 && field("Weights of the network", weights),
      weightFiles.length > 0 && field("Name of the network that these weights are of", named)));
  box.addEventListener("change", onChange);
  const value = () => {
    const given = {};
    if (named.value.trim()) given.backbone = named.value.trim();
    else if (network.selectedIndex) given.backbone = network.value;
    if (k.value) given.k = Number(k.value);
    else if (wish.selectedIndex) given.granularity = wish.value;
    if (epochs.value) given.epochs = Number(epochs.value);
    if (method.selectedIndex) given.method = method.value;
    return { run: out.value, settings: given, ...(weights.value && { weights: weights.value }) };
  };
  /** Choose the small network, unless the person or an earlier run has chosen one. */
  const suitTiny = () => {
    if (network.dataset.suited || isAgain) return;
    network.dataset.suited = "yes";
    network.value = "convnet";
  };
  network.addEventListener("change", () => { network.dataset.suited = "yes"; });
  return { box, value, suitTiny };
}

function costOf(forecast) {
  const seconds = Object.values(forecast.seconds).reduce((sum, each) => sum + each, 0);
  const kinds = `${thousands(forecast.labelled)} labelled in ${counted(forecast.classes, "class", "classes")}`;
  return make("div", {},
    make("p", { className: "figure", textContent: `about ${time(seconds)}` }),
    make("dl", { className: "costs" }, ...definitions([
      ["Images", `${thousands(forecast.images)}: ${kinds}, ${thousands(forecast.unlabelled)} unlabelled`],
      ["Disk", `about ${size(forecast.disk)}; ${size(forecast.free_disk)} free`],
      ["Memory", `about ${size(forecast.memory)}`],
      ["Computed on", forecast.device],
      ["Network", forecast.backbone],
    ])),
    make("div", {}, ...forecast.notes.map((note) => make("p", { className: "small" }, isolated(note)))));
}

/** Show a command that looks ahead: how far it is, what it found, or why it failed. */
async function aheadOf(command, show, before = "Waiting…") {
  if (!command) return [small(before)];
  if (isRunning(command)) return [progressOf(command)];
  if (command.state === "failed") return [errorOf(command)];
  if (command.state === "stopped") {
    const again = () => ask("/api/again", { number: command.number }).then(look);
    return [make("p", { className: "line" }, make("span", { textContent: "Stopped." }), button("Look again", again))];
  }
  return [show(await answerOf(command)), notesOf(command)];
}

export async function sortingPage(view, at) {
  const found = await get(`/api/listing?at=${encodeURIComponent(at)}`);
  const above = await get(`/api/listing?at=${encodeURIComponent(at.split("/").slice(0, -1).join("/"))}`);
  const tables = [...found.tables, ...above.tables];
  const methods = await get("/api/methods");
  let left = null; // the command that the person has left, to change the settings
  let wanted = {}; // what was asked ahead, so that it is asked once

  const change = () => look();
  const labels = labelChoice(found, tables, change);
  const weights = found.is_run ? above.weights : [...found.weights, ...above.weights]; // a run has its own inside
  const run = found.is_run ? nameOf(at) : `${nameOf(at)}-run`;
  const earlier = above.folders.find(({ name }) => name === run);
  const settings = settingsChoice(found, run, Boolean(earlier?.is_run), methods, weights, change);
  const asked = (kind) => ({ kind, at, ...(found.is_run ? {} : labels.value()),
    ...(kind === "check" ? {} : settings.value()) });
  const checked = make("div");
  const cost = make("div");
  const sort = async () => {
    const started = await start(asked("sort"));
    if (started) [left, wanted] = [null, {}]; // what looks ahead ends with it
    await look();
  };
  const result = make("a", { href: addressOf("run", runOf(asked("sort"))), textContent: "Open it" });
  const before = make("div", { className: "before" },
    !found.is_run && labels.box,
    !found.is_run && make("div", { className: "panel" }, make("h2", { textContent: "Check" }), checked),
    settings.box,
    make("div", { className: "panel" }, make("h2", { textContent: "What it will take" }), cost),
    earlier?.is_busy && make("p", { className: "warning" }, "The folder of its result is in use: it is being sorted, ",
      "or reviewed, by a command that another page or a terminal has started. ", result, "."),
    earlier?.is_run && !earlier.is_busy && make("p", { className: "small" }, "There is a result already. ", result,
      ", or sort ", found.is_run ? "it" : make("a", { href: addressOf("sort", runOf(asked("sort"))) }, "it"),
      " again: its labels and settings stay as they are, and only what has changed is done again."),
    make("p", { className: "line" }, button("Start sorting", sort, { className: "primary", id: "go" })));
  const during = make("div", { className: "panel during" });
  view.replaceChildren(make("section", {}, make("h1", {}, "Sort ", isolated(found.name), found.is_run && " again"),
    !found.is_run && make("p", {}, make("a", { href: addressOf("in", at), textContent: "Choose another folder" })),
    before, during));

  /** Ask for the check, then for the forecast, once each for the same labels and settings. */
  async function lookAhead() {
    const commands = {};
    for (const kind of found.is_run ? ["forecast"] : ["check", "forecast"]) {
      const request = asked(kind);
      commands[kind] = latest(kind, (each) => same(each, request));
      if (commands[kind]?.replaced && !same(wanted[kind], request)) commands[kind] = null; // nobody has stopped it
      if (commands[kind] ? isRunning(commands[kind]) : true) {
        if (!commands[kind] && !same(wanted[kind], request)) {
          wanted = { ...wanted, [kind]: request };
          await start(request);
        }
        break;
      }
      if (commands[kind].state === "failed") break;
      if (kind === "check" && commands.check.state === "done") {
        const { images, tiny } = await answerOf(commands.check);
        if (tiny.length > images / 2) settings.suitTiny();
      }
    }
    const { check, forecast } = commands;
    const blocked = ["failed", "stopped"].includes(check?.state) && "Not known before the images have been checked.";
    await redraw(checked, keyOf(check), () => aheadOf(check, findingsOf));
    await redraw(cost, [keyOf(forecast), blocked], () => aheadOf(forecast, costOf, blocked || undefined));
  }

  /** Return how long a run takes by the forecast that was made of it. */
  async function expectedOf(command) {
    const forecast = latest("forecast", (each) => same({ ...each, kind: "sort" }, command.asked));
    if (forecast?.state !== "done") return null;
    return Object.values((await answerOf(forecast)).seconds).reduce((sum, each) => sum + each, 0);
  }

  async function watch(command) {
    const again = () => ask("/api/again", { number: command.number }).then(look);
    const back = () => { left = command.number; return look(); };
    const texts = { stopped: "Stopped. What was computed is kept.", failed: "Sorting failed." };
    const expected = await expectedOf(command);
    await redraw(during, keyOf(command), () => [
      make("h2", { textContent: texts[command.state] ?? "Sorting" }),
      ...(isRunning(command)
        ? [progressOf(command, expected),
          small("You can close this page, and sorting goes on. Enter in the terminal prints a link to come back.")]
        : [command.state === "failed" && errorOf(command),
          make("p", { className: "line" },
            button(command.state === "failed" ? "Try again" : "Resume", again, { className: "primary" }),
            button("Change the settings", back))]),
      notesOf(command),
    ]);
  }

  let watched = null;
  return {
    title: `Sort ${found.name}`,
    async update() {
      const command = latest("sort", (each) => each.at === at);
      const shown = command && command.number !== left && command.state !== "done";
      if (command?.state === "done" && watched === command.number) {
        location.hash = addressOf("run", runOf(command.asked));
        return null;
      }
      watched = command && isRunning(command) ? command.number : watched;
      before.hidden = Boolean(shown);
      during.hidden = !shown;
      return shown ? watch(command) : lookAhead();
    },
  };
}
