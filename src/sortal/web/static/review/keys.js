// Every key of the review. Pages bind their actions to them; buttons and the list of keys are made from this table.

export const KEYS = {
  always: {
    help: ["?", "this list"],
    undo: ["Ctrl-Z", "undo"],
    redo: ["Ctrl-Shift-Z", "redo"],
    overview: ["h", "overview"],
    next: ["q", "next question"],
    map: ["v", "map"],
    search: ["/", "search"],
    larger: ["+", "larger pictures"],
    smaller: ["-", "smaller pictures"],
  },
  overview: {
    down: ["j", "next line"],
    up: ["k", "previous line"],
    open: ["Enter", "open it"],
    refit: ["f", "refit the categories to your decisions"],
  },
  category: {
    confirmPage: ["a", "confirm all in view but the chosen"],
    confirm: ["c", "confirm the chosen"],
    move: ["m", "move the chosen"],
    reject: ["w", "wrong here: to the most similar other category"],
    bin: ["x", "into the bin: in no category"],
    split: ["s", "split the chosen off"],
    propose: ["S", "propose a split"],
    rename: ["r", "rename"],
    merge: ["g", "merge into another"],
    confirmAll: ["A", "confirm the whole category"],
    following: ["]", "next category to settle"],
    previous: ["[", "previous one"],
    beside: ["p", "beside another category"],
    walk: ["arrows, space", "walk and choose"],
    range: ["Shift-arrows, Shift-click", "choose a range"],
    chooseInView: ["e", "choose all in view"],
    chooseAll: ["Ctrl-A, Escape", "choose all, none"],
    look: ["Enter, double click", "look at an image"],
    like: ["l", "more like this"],
  },
  pair: {
    move: ["m", "move the chosen to the other side"],
    confirm: ["c", "confirm the chosen"],
    reject: ["w", "wrong here"],
    bin: ["x", "into the bin"],
    mergeBoth: ["g", "merge the two"],
    keep: ["n", "different: never ask to merge them"],
  },
  map: {
    confirm: ["c", "confirm those in the lasso, or the chosen of them"],
    move: ["m", "move them"],
    bin: ["x", "into the bin: in no category"],
    split: ["s", "split them off their category"],
    like: ["l", "more like this"],
    lasso: ["drag", "draw a lasso"],
    pan: ["Alt-drag, arrows", "pan"],
    zoom: ["wheel, + −", "zoom"],
  },
  image: {
    following: ["→", "next image"],
    previous: ["←", "previous image"],
    confirm: ["c", "confirm"],
    move: ["m", "move"],
    reject: ["w", "wrong here"],
    bin: ["x", "into the bin, or back out of it"],
    like: ["l", "more like this"],
    back: ["Escape", "back to its category"],
  },
  search: {
    confirm: ["c", "confirm the chosen"],
    move: ["m", "move the chosen"],
    bin: ["x", "into the bin: in no category"],
    split: ["s", "split the chosen off their category"],
    chooseInView: ["e", "choose all in view"],
    like: ["l", "more like this"],
    back: ["Escape", "back"],
  },
  bin: {
    putBack: ["x", "put the chosen back, to the most similar category"],
    move: ["m", "move the chosen"],
    walk: ["arrows, space", "walk and choose"],
    chooseInView: ["e", "choose all in view"],
    chooseAll: ["Ctrl-A, Escape", "choose all, none"],
    look: ["Enter, double click", "look at an image"],
  },
  refit: { yes: ["y", "take it: one step, which can be undone"], no: ["n", "drop it"] },
  splitting: { yes: ["y", "split like this"], back: ["Escape", "back"] },
  // Questions, by kind
  grow: {
    all: ["y", "yes, all but the chosen"],
    most: ["m", "most: at most a quarter is wrong"],
    bad: ["n", "no, more are wrong"],
    take: ["t", "stop here: accept what was right so far"],
    bin: ["x", "the chosen into the bin"],
    rename: ["r", "name it"],
    split: ["S", "propose a split"],
    back: ["Ctrl-Z", "back"],
  },
  merge: {
    yes: ["y", "the same: merge"],
    no: ["n", "different: never ask again"],
    beside: ["p", "look at both"],
  },
  split: { yes: ["y", "two classes: split"], no: ["n", "one class: never ask again"], parts: ["p", "other parts"] },
  audit: {
    yes: ["y", "all but the chosen are right"],
    bin: ["x", "the same, and the chosen into the bin"],
  },
  page: {
    yes: ["y", "confirm all but the chosen"],
    no: ["n", "none of them"],
    bin: ["x", "the chosen into the bin"],
    rename: ["r", "name it"],
  },
  other: {
    bin: ["x", "the chosen, or all if none is: into the bin"],
    confirm: ["c", "confirm the chosen where they are"],
    move: ["m", "move the chosen"],
  },
  candidate: {
    yes: ["y", "a new class: name it"],
    no: ["n", "not one class: they stay, and are not asked about again"],
    similar: ["s", "all but the chosen: of the similar category"],
    move: ["m", "all but the chosen: of another category"],
    bin: ["x", "the chosen, or all if none is: into the bin"],
  },
  single: { move: ["m", "another"], bin: ["x", "none: into the bin"] },
  label: {
    yes: ["y", "keep the label"],
    no: ["n", "wrong: move it to the other class"],
    move: ["m", "neither: move it elsewhere"],
    bin: ["x", "neither: into the bin"],
  },
  disputed: {
    yes: ["y", "leave it where it is"],
    no: ["n", "the other is right"],
    move: ["m", "neither: move it elsewhere"],
    bin: ["x", "neither: into the bin"],
  },
  name: { yes: ["y", "keep the name"], no: ["n", "the other name"], other: ["r", "neither: another name"] },
  union: { yes: ["y", "the same: merge"], no: ["n", "different: keep them apart"], beside: ["p", "look at both"] },
  question: { later: ["u", "later: not sure"], open: ["o", "open the category"] },
};

const ARROWS = { ArrowRight: "→", ArrowLeft: "←" };

/** The keys of a page with its actions; those without an action are only listed. */
export function bind(page, actions) {
  return Object.entries(KEYS[page]).map(([name, [key, what]]) => ({ key, what, action: actions[name] }));
}

/** How a key is called on buttons and in the list of keys. */
export const labelOf = (key) => (/^[A-Z]$/.test(key) ? `Shift-${key}` : key);

/** The key of the table that an event of the keyboard means; null for a key of the browser. */
export function keyOf({ key, ctrlKey, metaKey, shiftKey, altKey }) {
  if (altKey) return null;
  if (!ctrlKey && !metaKey) return ARROWS[key] ?? key;
  if (key.toLowerCase() !== "z") return null;
  return shiftKey ? "Ctrl-Shift-Z" : "Ctrl-Z";
}
