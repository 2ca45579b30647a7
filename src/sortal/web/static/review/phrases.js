// Sentences about a run under review.

import { counted, percent, sureWord, thousands } from "/static/shared/text.js";

/** Say how good what was accepted unseen is, as far as audits tell. */
export function acceptedUnseen({ images, sampled, low, high }) {
  if (!images) return "";
  const share = `${percent(low)} to ${percent(high)} of them are right, by a sample of ${thousands(sampled)}.`;
  return `${counted(images, "image")} accepted unseen: ${sampled ? share : "No sample of them has been checked yet."}`;
}

/** Say which files are not what was sorted. */
export function lostFiles({ changed, missing, unreadable, files }) {
  const count = changed + missing + unreadable;
  if (!count) return "";
  const parts = Object.entries({ changed, missing, unreadable })
    .filter(([, number]) => number)
    .map(([what, number]) => `${thousands(number)} ${what}`);
  const more = count > 3 ? ` and ${thousands(count - 3)} more` : "";
  const names = `${files.slice(0, 3).join(", ")}${more}`;
  const [are, them] = count === 1 ? ["is", "it"] : ["are", "them"];
  return [
    `${counted(count, "file")} ${are} not what was sorted: ${parts.join(", ")} (${names}).`,
    `Nothing can be decided about ${them}. Put the earlier files back, or run sortal discover again.`,
  ].join(" ");
}

/** Say how surely an image of these columns was sorted. */
export const sureness = ({ confidence, other }, index, { unsure_below: below, calibrated }) =>
  sureWord(confidence[index] < below, other[index], calibrated);

/** Say what is left to do in a category. */
export function leftToDo({ size, settled, unsure, other }) {
  if (settled === size) return size ? "all settled" : "empty";
  const doubts = [unsure && `${thousands(unsure)} unsure`, other && `${thousands(other)} fitting nowhere`];
  const which = doubts.filter(Boolean).join(", ");
  return `${thousands(size - settled)} left to settle${which && ` (${which})`}`;
}

/** Say how a category stands. */
export function categoryFacts(category) {
  const { size, lost } = category;
  const facts = [counted(size, "image"), leftToDo(category), lost && `${thousands(lost)} not what was sorted`];
  return facts.filter(Boolean).join(" · ");
}

/** Say what goes into the bin: so many that are chosen; if none is, all of so many, where that is offered. */
export function intoBin(chosen, all = 0) {
  if (!chosen) return all ? `All ${thousands(all)} into the bin` : "The chosen into the bin";
  return `The ${thousands(chosen)} chosen into the bin`;
}

/** Say what it means to confirm so many images but those that are wrong. */
export function consequence(images, wrong) {
  if (!wrong) return `Confirm all ${thousands(images)}`;
  return wrong < images ? `Confirm ${thousands(images - wrong)}, remove ${thousands(wrong)}` : `Remove all ${wrong}`;
}

/** Say which page is shown, and what follows from the answers, by which so many of those seen are wrong. */
export function growthFacts({ number, pages, open, seen, unseen, skipped }, answers, wrong) {
  const place = `Page ${thousands(number + 1)} of ${thousands(pages)}`;
  return [
    `${place}, by confidence, the highest first, of ${counted(open, "open image")}.`,
    answers && ` So far ${thousands(seen - wrong)} seen and ${thousands(unseen)} unseen would be accepted.`,
    answers && " Nothing is decided before the last answer.",
    skipped > 0 && ` If these are right, ${thousands(skipped)} ${answers ? "more" : "before"} are accepted unseen.`,
  ].filter(Boolean);
}
