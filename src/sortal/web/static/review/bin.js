// The bin: images that belong to no category, as people have said.

import { Grid } from "/static/review/grid.js";
import { openImage } from "/static/review/image.js";
import { bind } from "/static/review/keys.js";
import { askMove } from "/static/review/names.js";
import { decide, get } from "/static/review/state.js";
import { needsImages, toolbar, toolsOf } from "/static/review/toolbar.js";
import { make } from "/static/shared/dom.js";
import { counted, thousands } from "/static/shared/text.js";

const MEANING = "They belong to no category: nobody is asked about them, and nothing is learned from them.";
const BUTTONS = { putBack: "Put back", move: "Move" };

export async function binPage(view) {
  const count = make("span", { className: "chosen", role: "status" });
  const tell = () => {
    const [all, chosen] = [grid.count, grid.chosen.size];
    count.textContent = chosen ? `${thousands(chosen)} of ${thousands(all)} chosen` : counted(all, "image");
  };
  const open = (row) => openImage(row, grid.data.rows);
  const grid = new Grid(await get("/api/bin"), { named: true, changed: tell, open });
  const withChosen = (action) => needsImages(() => [...grid.chosen], async (rows) => {
    const decision = await action(rows);
    if (decision && (await decide(decision, grid.data.version))) grid.choose([]);
  });
  const actions = {
    putBack: withChosen((rows) => ({ do: "put back", rows })),
    move: withChosen((rows) => askMove(`Move ${counted(rows.length, "image")} to`, rows)),
    chooseInView: () => grid.choose(grid.rowsInView()),
  };
  const bar = toolbar(count, ...toolsOf("bin", actions, BUTTONS));
  const head = make("div", { className: "head" }, make("h1", { textContent: "Bin" }));
  view.replaceChildren(
    make("section", {}, head, make("p", { className: "small", textContent: MEANING }), bar, grid.element),
  );
  grid.element.focus({ preventScroll: true });
  tell();
  const update = async () => {
    const data = await get("/api/bin");
    if (data.version >= grid.data.version) grid.show(data); // not an older answer that came late
  };
  return { title: "Bin", keys: bind("bin", actions), update, close: () => grid.close() };
}
