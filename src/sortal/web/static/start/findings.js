// What a check found.

import { isolated, make } from "/static/shared/dom.js";
import { counted, thousands } from "/static/shared/text.js";
import { few, small } from "/static/start/commands.js";

const MOST_CLASSES = 12; // of which the images are counted
const MOST_LISTED = 10; // files of a finding

const group = ({ files }) => few(files, 4, " = ");
const unreadable = ({ file, reason, detail }) => `${file}: ${reason}, ${detail}`;
const more = (count) => count > 0 && make("li", { textContent: `and ${thousands(count)} more` });

function finding(title, rows, bad = false) {
  if (!rows.length) return null;
  const listed = rows.slice(0, MOST_LISTED).map((row) => make("li", {}, isolated(row)));
  return make("details", { className: bad ? "finding bad" : "finding" },
    make("summary", { textContent: `${title}: ${thousands(rows.length)}` }),
    make("ul", {}, ...listed, more(rows.length - MOST_LISTED)));
}

function classesOf(found) {
  const known = found.classes.filter(({ name }) => name !== null).sort((one, other) => other.images - one.images);
  const rows = known.slice(0, MOST_CLASSES).map(({ name, images }) =>
    make("li", {}, isolated(name), " ", make("span", { className: "small", textContent: thousands(images) })));
  return make("ul", { className: "classes" }, ...rows, more(known.length - MOST_CLASSES));
}

export function findingsOf(found) {
  const labelled = `${thousands(found.labelled)} labelled in ${counted(found.classes.length - 1, "class", "classes")}`;
  const of = (kind, groups) => (groups ?? []).filter((each) => each.kind === kind).map(group);
  const equal = (kind) => of(kind, found.duplicates);
  const alike = (kind) => of(kind, found.near_duplicates);
  const findings = [
    finding("Classes named like cameras, stations, days or memory cards", found.like_places, true),
    finding("Unreadable, left out", found.unreadable.map(unreadable), true),
    finding("The same image with two labels, ignored", equal("two labels"), true),
    finding("The same image labelled and unlabelled", equal("labelled and unlabelled")),
    finding("The same image more than once", equal("same")),
    finding("Nearly the same image, with two labels", alike("two labels")),
    finding("Nearly the same image, labelled and unlabelled", alike("labelled and unlabelled")),
    finding("Nearly the same image", alike("same")),
    finding("Names of classes that differ only in case or spaces", found.alike_names.map((names) => names.join(" = "))),
    finding("Tiny images", found.tiny),
    finding("Rotated by their EXIF data", found.rotated),
    finding("More than 8 bits per channel", found.deep),
    finding("Other files, ignored", found.ignored),
  ].filter(Boolean);
  const others = `${thousands(found.images - found.labelled)} unlabelled`;
  return make("div", {},
    make("p", { textContent: `${counted(found.images, "image")}: ${labelled}, ${others}.` }),
    classesOf(found), found.groups > 0 &&
      small(`${counted(found.grouped, "image")} in ${counted(found.groups, "group")}, which stay together.`),
    ...findings,
    !findings.length && small("Every image can be used, and nothing looks odd."));
}
