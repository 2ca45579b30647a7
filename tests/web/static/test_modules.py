"""The logic of pages: modules without a document, whose functions are called in an empty page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pytest

from sortal.web.app.routes import STATIC_FILE
from sortal.web.report.report import SCRIPTS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route
STATIC = files("sortal.web").joinpath("static")
HOME = "http://sortal.invalid"
Call = Callable[..., Any]


@pytest.fixture(scope="module")
def call(browser: Browser) -> Iterator[Call]:
    """Call a function of a module by its path and name; a text with => is evaluated with the module as `m`."""
    page = browser.new_page()

    def answer(route: Route) -> None:
        path = route.request.url.removeprefix(HOME)
        if path == "/":
            route.fulfill(body="<!doctype html>", content_type="text/html")
        else:
            script = STATIC.joinpath(path.removeprefix("/static/")).read_text("utf-8")
            route.fulfill(body=script, content_type="text/javascript")

    page.route("**/*", answer)
    page.goto(HOME)

    def run(module: str, what: str, *given: Any) -> Any:
        code = f"m.{what}" if "=>" not in what else f"({what})"
        script = f"async ([path, given]) => {{ const m = await import(path); return {code}(...given); }}"
        return page.evaluate(script, [f"/static/{module}.js", given])

    yield run
    page.close()


def test_every_script_is_served_is_readable_and_is_part_of_the_report_only_if_it_can_be() -> None:
    scripts = {
        f"{folder.name}/{each.name}": each.read_text("utf-8")
        for folder in STATIC.iterdir()
        for each in folder.iterdir()
        if each.name.endswith(".js")
    }
    assert {*SCRIPTS} == {each for each in scripts if not each.startswith(("review/", "start/"))}
    for name, text in scripts.items():
        assert STATIC_FILE.fullmatch(name)
        assert max(map(len, text.splitlines())) <= 120, name


def test_an_element_leaves_out_children_that_are_not_there(call: Call) -> None:
    made = "() => m.make('p', {}, undefined, null, false, 'here', 0).textContent"
    assert call("shared/dom", made) == "here0"


def test_a_table_that_a_command_printed_stays_a_table(call: Call) -> None:
    text = "3 images: 3 known.\n\nCategory  Images\nash            3\n\nTable: a.csv\nTo add them: sortal predict\n"
    shown = call("start/finished", "(text) => m.toldBy(text).map((each) => [each.tagName, each.textContent])", text)
    assert shown == [["P", "3 images: 3 known."], ["PRE", "Category  Images\nash            3"], ["P", "Table: a.csv"]]


def test_numbers_are_written_for_people(call: Call) -> None:
    assert [call("shared/text", "percent", value) for value in (None, 0, 0.005, 0.994, 1)] == [
        "n/a",
        "0%",
        "1%",
        "99%",
        "100%",
    ]
    assert call("shared/text", "counted", 1, "image") == "1 image"
    assert call("shared/text", "counted", 12345, "category", "categories") == "12,345 categories"


# The map


def test_a_view_is_zoomed_around_the_pointer_and_fills_the_canvas(call: Call) -> None:
    start = {"scale": 1, "x": 0, "y": 0}
    assert call("shared/geometry", "zoomed", start, 2, 100, 50) == {"scale": 2, "x": -100, "y": -50}
    assert call("shared/geometry", "zoomed", {"scale": 50, "x": 0, "y": 0}, 2, 0, 0)["scale"] == 60, "no further"
    away = {"scale": 2, "x": 30, "y": -900}
    assert call("shared/geometry", "bounded", away, 400, 300) == {"scale": 2, "x": 0, "y": -300}
    reset = call("shared/geometry", "zoomed", away, 0, 200, 150)
    assert call("shared/geometry", "bounded", reset, 400, 300) == start
    assert [call("shared/geometry", "pixelOf", at, 500) for at in (0, 9999)] == [24, 476]


def test_a_frame_leaves_outliers_out_and_is_never_too_close(call: Call) -> None:
    assert call("shared/geometry", "ends", [*range(100), 10**6]) == [5, 95]
    everything = call("shared/geometry", "framed", [0, 9999], [0, 9999], 500, 500)
    assert everything == {"scale": 1, "x": 0, "y": 0}
    point = call("shared/geometry", "framed", [5000, 5000], [4999, 4999], 1048, 1048)
    assert point["scale"] == pytest.approx(0.7 * 12)
    assert point["x"] + point["scale"] * (24 + 5000 / 9999 * 1000) == pytest.approx(524), "in the middle"


def test_points_are_found_by_the_pointer_and_by_a_lasso(call: Call) -> None:
    places = [[10, 10], [20, 10], [90, 90]]
    near = "(places, hidden, x, y) => m.nearest(places.length, (at) => at === hidden ? null : places[at], x, y, 14)"
    assert call("shared/geometry", near, places, -1, 18, 10) == 1
    assert call("shared/geometry", near, places, 1, 18, 10) == 0, "the nearest that counts"
    assert call("shared/geometry", near, places, -1, 50, 50) == -1, "none is within reach"
    hook = [[0, 0], [30, 0], [30, 30], [20, 30], [20, 10], [0, 10]]
    inside = [call("shared/geometry", "isInside", hook, x, y) for x, y in ((5, 5), (25, 25), (10, 20), (40, 5))]
    assert inside == [True, True, False, False]
    assert [call("shared/geometry", "radiusOf", n, 1) for n in (400, 401, 2001, 10001)] == [5, 3.6, 2.6, 1.2]
    assert call("shared/geometry", "tipPlace", [390, 5], 100, 80, 400, 300) == [274, 8], "left of the point, inside"


def test_names_on_a_map_do_not_overlap_and_outliers_do_not_move_them(call: Call) -> None:
    boxes = [[0, 0, 40, 16], [30, 10, 40, 16], [30, 20, 40, 16], [100, 0, 10, 16]]
    assert call("shared/geometry", "apart", boxes) == [0, 2, 3], "the second overlaps the first"
    data = {"x": [5, 1, 3, 9999, 7], "y": [2, 2, 8, 9, 0]}
    assert call("shared/geometry", "middle", [0, 1, 2, 3], data) == [5, 8]


# The report


def category(number: int, **values: Any) -> dict[str, Any]:
    usual = {"name": f"new {number}", "new": True, "size": 5, "confidence": 0.5, "cohesion": 0.5}
    return {"id": number, "unsure": 0, "other": 0, **usual, **values}


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"sort": "new"}, [1, 2, 0, 3]),
        ({"sort": "size"}, [0, 1, 2, 3]),
        ({"sort": "doubt"}, [2, 0, 1, 3]),
        ({"sort": "loose"}, [2, 1, 0, 3]),
        ({"sort": "tight"}, [0, 1, 2, 3]),
        ({"sort": "name"}, [3, 0, 2, 1]),
        ({"filter": "known"}, [0, 3]),
        ({"filter": "unsure"}, [2]),
        ({"filter": "other"}, [1]),
        ({"search": "NEW"}, [1, 2]),
    ],
    ids=str,
)
def test_categories_are_filtered_searched_and_sorted(call: Call, chosen: dict[str, str], expected: list[int]) -> None:
    categories = [
        category(0, name="b", new=False, size=9, cohesion=0.9),
        category(1, name="new 10", size=6, other=1, cohesion=0.6, confidence=0.9),
        category(2, name="new 2", size=6, unsure=2, confidence=0.2, cohesion=0.1),
        category(3, name="a", new=False, size=0, confidence=None, cohesion=None),
    ]
    wanted = {"filter": "all", "search": "", "sort": "id", **chosen}
    assert [each["id"] for each in call("report/order", "matching", categories, wanted)] == expected
    assert [each["id"] for each in call("report/order", "inLegend", categories, "")] == [1, 2, 0]


def test_a_picture_is_located_on_its_sheet(call: Call) -> None:
    groups = [
        {"cell": 10, "columns": 2, "count": 5, "crisp": True},
        {"cell": 20, "columns": 3, "count": 2, "crisp": False},
    ]
    sizes = [8, 8, 8, 8, 6, 0, 16], [8, 8, 8, 4, 8, 0, 10]
    fourth = call("report/sheets", "locatePicture", 3, groups, *sizes)
    place = {"side": 8, "w": 8, "h": 4, "x": 11, "y": 13, "sw": 20, "sh": 20}
    assert fourth == {"group": 0, "sheet": 0, "crisp": True, **place}
    fifth = call("report/sheets", "locatePicture", 4, groups, *sizes)
    assert (fifth["sheet"], fifth["x"], fifth["sw"], fifth["sh"]) == (1, 2, 10, 10), "alone on the second sheet"
    assert call("report/sheets", "locatePicture", 5, groups, *sizes) is None, "it has no pixels"
    last = call("report/sheets", "locatePicture", 6, groups, *sizes)
    assert (last["group"], last["x"], last["y"], last["sw"]) == (1, 22, 5, 40)
    assert call("report/sheets", "locatePicture", 7, groups, *sizes) is None, "it is on no sheet"


# The review


def test_a_grid_knows_which_images_are_where(call: Call) -> None:
    """Three columns of 100 pixels, in lines that are 120 pixels high with their labels; 10 images."""
    shape = call("review/grid_layout", "shapeOf", 300, 90, 10)
    assert shape == {"columns": 3, "line": 120, "count": 10}
    narrow = [call("review/grid_layout", "shapeOf", width, 132, 1) for width in (0, 100, 400)]
    assert [(each["columns"], each["line"]) for each in narrow] == [(1, 152), (1, 120), (3, 153)]
    assert call("review/grid_layout", "heightOf", shape) == 4 * 120
    assert call("review/grid_layout", "touching", 100, 200, shape) == [0, 5]
    assert call("review/grid_layout", "touching", -500, 10**6, shape) == [0, 9]
    assert call("review/grid_layout", "wholeLines", 100, 120 * 3 - 1, shape) == [3, 5]
    assert call("review/grid_layout", "wholeLines", 10, 100, shape) == [3, 5], "one line at least"
    places = [call("review/grid_layout", "indexAt", x, y, 300, shape) for x, y in ((150, 10), (299, 400), (10, 400))]
    assert places == [1, -1, 9]
    box = {"left": 150, "right": 250, "top": 100, "bottom": 200}
    assert call("review/grid_layout", "indicesIn", box, 300, shape) == [1, 2, 4, 5]
    assert call("review/grid_layout", "indicesIn", {**box, "top": 370, "bottom": 900}, 300, shape) == []


def test_keys_walk_and_ranges_have_both_ends(call: Call) -> None:
    steps = {"ArrowLeft": 3, "ArrowRight": 5, "ArrowUp": 1, "ArrowDown": 7, "Home": 0, "End": 9, "x": None}
    shape = {"columns": 3, "line": 120, "count": 10}
    assert {key: call("review/grid_layout", "moved", 4, key, shape) for key in steps} == steps
    assert call("review/grid_layout", "moved", 9, "ArrowDown", shape) == 9
    for ends in ((1, 3), (3, 1)):
        assert call("review/grid_layout", "range", [10, 11, 12, 13, 14], *ends) == [11, 12, 13]


def test_every_page_has_each_key_once_and_events_mean_keys(call: Call) -> None:
    keys = call("review/keys", "() => m.KEYS")
    for page, entries in keys.items():
        used = [key for key, _ in entries.values()]
        assert len(used) == len({*used}), page
        if page not in ("always", "question", "grow"):  # growing takes back its own answers first
            assert not {*used} & {key for key, _ in keys["always"].values()}, page
    usual = {"ctrlKey": False, "metaKey": False, "shiftKey": False, "altKey": False}
    for event, expected in (
        ({"key": "c"}, "c"),
        ({"key": "ArrowLeft"}, "←"),
        ({"key": "z", "ctrlKey": True}, "Ctrl-Z"),
        ({"key": "Z", "metaKey": True, "shiftKey": True}, "Ctrl-Shift-Z"),
        ({"key": "c", "ctrlKey": True}, None),
        ({"key": "c", "altKey": True}, None),
    ):
        assert call("review/keys", "keyOf", {**usual, **event}) == expected
    assert [call("review/keys", "labelOf", key) for key in ("A", "a", "Ctrl-Z")] == ["Shift-A", "a", "Ctrl-Z"]


def choices(call: Call, wanted: str, **options: Any) -> tuple[list[Any], int]:
    """The ids and names that can be chosen, and the line that is highlighted."""
    categories = [{"id": 0, "name": "oak"}, {"id": 1, "name": "red oak"}, {"id": 2, "name": "ash"}]
    usual = {
        "categories": categories,
        "words": ["oak leaf", "ash"],
        "suggested": [],
        "similar": [],
        "without": [],
        "create": "New",
        "existing": True,
        "required": False,
    }
    found = call("review/name_choices", "nameChoices", wanted, {**usual, **options})
    return [each.get("id", each.get("name")) for each in found["entries"]], found["at"]


def test_a_name_is_chosen_among_categories_words_and_what_is_typed(call: Call) -> None:
    assert choices(call, "") == (["", 2, 0, 1], 1), "the first category, after a name that is made up"
    assert choices(call, "oak") == ([0, 1, "oak leaf"], 0), "the name itself, not a new one"
    assert choices(call, "oa") == (["oa", 0, 1, "oak leaf"], 0), "typing means a new name"
    assert choices(call, "Oak")[0][0] == "Oak", "another spelling is another name"
    assert choices(call, "oak", without=[0]) == (["oak", 1, "oak leaf"], 0)
    assert choices(call, "", similar=[1]) == (["", 1, 2, 0], 1), "what is similar comes first"
    assert choices(call, "", required=True, suggested=["elm", "oak"]) == (["elm", 2, 0, 1], -1), "nothing is taken"
    assert choices(call, "x", create="") == ([], -1)
    assert choices(call, "oak", existing=False) == (["oak", "oak leaf"], 0)


def question(kind: str, *rows: int, categories: tuple[int, ...] = ()) -> dict[str, Any]:
    return {"kind": kind, "categories": [*categories], "images": len(rows), "rows": [[*rows]]}


def test_a_question_stays_until_it_is_answered_or_put_off(call: Call) -> None:
    items = [question("grow", 1, 2, categories=(4,)), question("image", 7, 8), question("page", 3, categories=(5,))]
    pick = """(items, asked, later, start) => {
        const found = m.nextQuestion(items, { later: new Set(later), asked, start });
        return found && [found.kind, found.rows, m.questionKey(found)];
    }"""
    kind, _, grow = call("review/queue", pick, items, None, [], "")
    assert kind == "grow"
    kind, rows, first = call("review/queue", pick, items, None, [grow], "")
    assert (kind, rows) == ("image", [[7]]), "images are asked one by one"
    kind, rows, second = call("review/queue", pick, items, None, [grow, first], "")
    assert (kind, rows) == ("image", [[8]])
    assert call("review/queue", pick, items, second, [grow], "")[1] == [[8]], "it stays while it is asked"
    undo = "(items, undone, asked) => m.nextQuestion(items, { later: new Set(), undone, asked, start: '' }).rows"
    assert call("review/queue", undo, items, first, second) == [[7]], "unless another was undone"
    assert call("review/queue", undo, items, "gone", second) == [[8]]
    address = "(item) => decodeURIComponent(m.questionAddress(item).replace('#/next/', ''))"
    keys = [call("review/queue", address, item) for item in items]
    assert keys[:2] == [grow, first]
    shuffled = [items[1], items[2], items[0]]
    picked = [call("review/queue", pick, shuffled, second, [], key)[:2] for key in keys]
    assert picked == [["grow", [[1, 2]]], ["image", [[7]]], ["page", [[3]]]], "wherever it is in the queue"
    assert call("review/queue", pick, items, None, [], "gone")[0] == "grow", "it is not asked any more"
    labels = question("label", 3, 4)
    go_on = "(items, last) => m.nextQuestion(items, { later: new Set(), asked: null, start: '', last }).rows"
    assert call("review/queue", go_on, [*items, labels], "label") == [[3]], "who checks labels goes on"
    assert call("review/queue", go_on, [*items, labels], "page") == items[0]["rows"]
    last = call("review/queue", pick, items, None, [grow, first, second], "")[2]
    assert call("review/queue", pick, items, None, [grow, first, second, last], "") is None
    assert call("review/queue", pick, [], None, [], grow) is None


def test_answers_are_added_and_taken_back(call: Call) -> None:
    grown = """() => {
        const one = new m.Growth().and("y", [1, 2], [2]);
        const two = one.and("n", [3], []);
        return [two, two.back(), two.back().back().back()].map(({ answers, shown, wrong }) => [answers, shown, wrong]);
    }"""
    assert call("review/queue", grown) == [["yn", [1, 2, 3], [2]], ["y", [1, 2], [2]], ["", [], []]]
    wrong = "() => new m.Growth().and('y', [1, 2], [2]).and('n', [3], [3]).wrongAfter('y')"
    assert call("review/queue", wrong) == 1
    page = {"number": 1, "pages": 3, "open": 40, "seen": 13, "unseen": 4, "skipped": 0}
    facts = call("review/phrases", "growthFacts", page, "y", 2)
    assert facts[1] == " So far 11 seen and 4 unseen would be accepted."


def test_sentences_have_the_right_number(call: Call) -> None:
    lost = {"changed": 1, "missing": 0, "unreadable": 0, "files": ["a.jpg"]}
    assert call("review/phrases", "lostFiles", lost).startswith("1 file is not what was sorted: 1 changed (a.jpg).")
    many = {"changed": 2, "missing": 3, "unreadable": 0, "files": ["a", "b", "c", "d"]}
    text = call("review/phrases", "lostFiles", many)
    assert "5 files are not what was sorted: 2 changed, 3 missing (a, b, c and 2 more). Nothing can be" in text
    assert call("review/phrases", "lostFiles", {**lost, "changed": 0}) == ""
    seen = {"images": 40, "sampled": 20, "low": 0.83, "high": 1}
    expected = "40 images accepted unseen: 83% to 100% of them are right, by a sample of 20."
    assert call("review/phrases", "acceptedUnseen", seen) == expected
    assert "No sample" in call("review/phrases", "acceptedUnseen", {**seen, "sampled": 0})


def test_a_category_says_what_is_left_to_do(call: Call) -> None:
    empty = {"size": 0, "settled": 0, "unsure": 0, "other": 0, "lost": 0}
    assert call("review/phrases", "categoryFacts", empty) == "0 images · empty"
    done = {**empty, "size": 57, "settled": 57}
    assert call("review/phrases", "categoryFacts", done) == "57 images · all settled"
    some = {"size": 5, "settled": 1, "unsure": 2, "other": 1, "lost": 1}
    expected = "5 images · 4 left to settle (2 unsure, 1 fitting nowhere) · 1 not what was sorted"
    assert call("review/phrases", "categoryFacts", some) == expected
    assert call("review/phrases", "leftToDo", {**done, "settled": 56}) == "1 left to settle"
    columns = {"confidence": [0.3, 0.5, 0.2], "other": [0, 0, 1]}
    for calibrated, sure in ((True, "sure"), (False, "not calibrated")):
        run = {"unsure_below": 0.5, "calibrated": calibrated}
        words = [call("review/phrases", "sureness", columns, index, run) for index in range(3)]
        assert words == ["unsure", sure, "fits nowhere"]
    said = [call("review/phrases", "consequence", 14, wrong) for wrong in (0, 3, 14)]
    assert said == ["Confirm all 14", "Confirm 11, remove 3", "Remove all 14"]
    said = [call("review/phrases", "intoBin", *counts) for counts in ((0,), (2,), (0, 9), (2, 9))]
    assert said == [f"{what} into the bin" for what in ("The chosen", "The 2 chosen", "All 9", "The 2 chosen")]


def test_a_finished_run_counts_the_bin_apart(call: Call) -> None:
    status = {"labelled": 1200, "known": 5, "new": 0, "unsure": 0, "other": 1}
    run = {"images": 1209, "categories": [{"kind": "known"}, {"kind": "new"}], "status": status, "unreadable": 0}
    found = "1,209 images in 2 categories, 1 of them new: 1,200 labelled, 5 known, 1 other"
    assert call("start/finished", "leadOf", {**run, "binned": 3}) == f"{found}, 3 in the bin."
    lost = call("start/finished", "leadOf", {**run, "binned": 0, "unreadable": 1})
    assert lost == f"{found}. 1 file could not be read."
    trust = {"k": 12, "estimated": True, "interval": [8, 15], "basis": "As a trial.", "calibrated": False}
    said = call("start/finished", "trustOf", trust)
    assert said.startswith("k = 12, estimated, likely 8 to 15. As a trial. Confidence is not calibrated")
    given = {**trust, "estimated": False, "interval": None, "basis": "", "calibrated": True}
    assert call("start/finished", "trustOf", given) == "k = 12, given."


def test_images_of_a_group_are_stacked(call: Call) -> None:
    data = {"version": 3, "rows": [4, 7, 2, 9, 5], "group": [1, -1, 1, 1, -1], "lost": [1, 0, 0, 0, 0]}
    data["labelled"] = [1, 0, 0, 1, 0]
    parts = "({...s, stacks: [...s.stacks], labelledRows: [...s.labelledRows]})"
    found = call("review/stacks", f"data => {{ const s = m.stacked(data); return {parts}; }}", data)
    assert found["labelledRows"] == [4, 9]  # of all rows, also of those that are not shown
    assert (found["rows"], found["lost"], found["version"]) == ([2, 7, 5], [0, 0, 0], 3)  # not the lost one
    assert found["stacks"] == [[2, [2, 9]], [7, [7]], [5, [5]]]
    rows = call("review/stacks", "data => m.unstacked(m.stacked(data), [2, 5])", data)
    assert rows == [2, 9, 5]
    assert call("review/stacks", "unstacked", {}, [1, 2]) == [1, 2]
