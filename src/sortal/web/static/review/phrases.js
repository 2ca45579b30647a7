// Sentences about a run under review.

import { counted, percent, thousands } from "/static/shared/text.js";

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

/** Say how a category stands. */
export function categoryFacts({ size, settled, unsure, other, confidence, lost }) {
  const facts = [
    counted(size, "image"),
    `${percent(size ? settled / size : 1)} settled`,
    unsure && `${thousands(unsure)} unsure`,
    other && `${thousands(other)} fitting nowhere`,
    confidence !== null && `${percent(confidence)} sure`,
    lost && `${thousands(lost)} not what was sorted`,
  ];
  return facts.filter(Boolean).join(" · ");
}
