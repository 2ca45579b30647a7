// What a person can choose while typing a name.

const MOST_WORDS = 20;

const startsLike = (name, wanted) => name.toLowerCase().startsWith(wanted.toLowerCase());
const contains = (name, wanted) => name.toLowerCase().includes(wanted.toLowerCase());

/** The categories whose names contain what is typed: similar ones first, then those that begin with it. */
function matching(wanted, categories, similar) {
  const rank = ({ id }) => (similar.includes(id) ? similar.indexOf(id) : similar.length);
  return categories
    .filter(({ name }) => contains(name, wanted))
    .sort(
      (a, b) =>
        rank(a) - rank(b) ||
        startsLike(b.name, wanted) - startsLike(a.name, wanted) ||
        a.name.localeCompare(b.name, undefined, { numeric: true }),
    );
}

/**
 * List what can be chosen when `wanted` is typed: { id } for a category, { name, why } for a new name.
 * `at` is the line to highlight. Whatever is highlighted is taken, never something that only begins like it; where a
 * name is required, nothing is highlighted before one is typed or chosen.
 */
export function nameChoices(wanted, { categories, words, suggested, similar, without, create, existing, required }) {
  const others = categories.filter(({ id, size, unnamed }) => !without.includes(id) && (size || !unnamed));
  const match = existing ? matching(wanted, others, similar) : [];
  const same = others.find(({ name }) => name === wanted);
  const taken = new Set(categories.map(({ name }) => name));
  const fits = (word) => !taken.has(word) && word !== wanted && contains(word, wanted);
  const offered = create ? suggested.filter(fits) : [];
  const listed = create && wanted ? words.filter(fits).slice(0, MOST_WORDS) : [];
  const entries = [
    ...offered.map((name) => ({ name, why: "suggested" })),
    ...match.map(({ id }) => ({ id })),
    ...listed.filter((word) => !offered.includes(word)).map((name) => ({ name })),
  ];
  const nothing = required && !wanted;
  if (create && !nothing && !(same && existing)) entries.unshift({ name: wanted });
  if (nothing) return { entries, at: -1 };
  // Typing means a new name unless it is exactly that of a category.
  if (wanted && same && existing) return { entries, at: entries.findIndex(({ id }) => id === same.id) };
  const at = wanted || !match.length || !create ? 0 : 1;
  return { entries, at: Math.min(at, entries.length - 1) };
}
