// Numbers and sureness in words.

export const thousands = (value) => value.toLocaleString("en-US");
export const percent = (value) => (value === null ? "n/a" : `${Math.round(100 * value)}%`);
export const counted = (value, one, many = `${one}s`) => `${thousands(value)} ${value === 1 ? one : many}`;

/** Say how surely an image was sorted: by a word, as confidence may be no probability, and none is sure then. */
export function sureWord(unsure, other, calibrated) {
  if (other) return "fits nowhere";
  if (unsure) return "unsure";
  return calibrated ? "sure" : "not calibrated";
}
