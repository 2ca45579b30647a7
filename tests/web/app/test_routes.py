"""What pages are answered, and that no decision is lost."""

from __future__ import annotations

import errno
import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from support.reviews import Client, saved_run, serving, session_of
from support.sample_run import HOSTILE

from sortal.images.decoding import digest
from sortal.images.originals import Originals
from sortal.reviews import journal
from sortal.reviews.actions import ACTIONS as ACTIONS_OF_PEOPLE
from sortal.reviews.actions import Rename
from sortal.reviews.loading import load_run
from sortal.runs.run import DECISIONS, Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return saved_run(tmp_path / "a run")


@pytest.fixture
def client(run: Run) -> Iterator[Client]:
    with serving(session_of(run)) as client:
        yield client.enter()


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app/server.py",
        "/static/..%2fapp/server.py",
        "/static/%2e%2e%2f%2e%2e%2f__init__.py",
        "/static/report/page.html.bak",
        "/static/review/.css",
        "/static/",
        "/thumb/-1",
        "/thumb/72",
        "/thumb/99999999999999999999999",
        "/thumb/1/../../x",
        "/image/%00",
        "/image/etc%2fpasswd",
        "/api/category/77",
        "/api/near/72",
        "//etc/passwd",
    ],
)
def test_paths_that_lead_nowhere_are_not_found(client: Client, path: str) -> None:
    assert client.ask("GET", path).code == 404


def test_a_page_sees_categories_images_and_its_decisions(run: Run, client: Client) -> None:
    overview = client.get("/api/overview")
    assert (overview["version"], overview["images"], overview["undo"]) == (0, 72, None)
    assert [each["name"] for each in overview["categories"]] == [*run.names.values()]
    a = run.assignments
    assert overview["settled"] == (a.status == "labelled").sum()
    for order in ("doubt", "typical"):
        found = client.get(f"/api/category/4?order={order}")
        assert sorted(found["rows"]) == np.flatnonzero(a.category_id == 4).tolist()
    assert found["rows"] == sorted(found["rows"], key=lambda row: a.distance[row])
    rows = client.get("/api/category/4?order=doubt")["rows"]
    sure = [a.confidence[row] for row in rows if a.status[row] != "labelled"]
    assert sure == sorted(sure)

    answer = client.decide(0, do="create", rows=rows[:3], name="fern")
    assert (answer.code, answer.json()["words"]) == (200, "Put 3 images into the new category 'fern'")
    assert client.decide(1, do="accept", rows=rows[3:5]).code == 200
    overview = client.get("/api/overview")
    assert overview["categories"][-1]["name"] == "fern"
    assert overview["categories"][-1]["settled"] == 3
    assert overview["states"] == {
        "no": 67,
        "confirmed": 2,
        "moved": 3,
        "rejected": 0,
        "accepted unseen": 0,
        "binned": 0,
    }
    assert overview["undo"] == "confirmed 2 images"
    assert client.decide(2, do="undo").json()["words"] == "Undid: confirmed 2 images"
    assert client.get("/api/overview")["redo"] == "confirmed 2 images"
    assert client.decide(3, do="redo").json()["words"] == "Redid: confirmed 2 images"
    found = client.get(f"/api/images?rows={rows[0]},{rows[3]}")
    assert (found["reviewed"], found["category"]) == ([2, 1], [6, 4])
    assert found["file"] == [a.files[rows[0]], a.files[rows[3]]]
    near = client.get(f"/api/near/{rows[0]}")
    assert near["new"][0] == 6
    assert rows[0] not in near["rows"]
    reviewed = load_run(run.folder)
    assert reviewed.decisions == 4
    assert reviewed.assignments.category_id[rows[:3]].tolist() == [6, 6, 6]


def test_pictures_are_kept_by_the_browser(client: Client) -> None:
    first = client.ask("GET", "/thumb/3")
    assert (first.code, first.headers["content-type"], first.body[:4]) == (200, "image/webp", b"RIFF")
    again = client.ask("GET", "/thumb/3", If_None_Match=first.headers["etag"])
    assert (again.code, again.body) == (304, b"")
    assert client.ask("GET", "/image/3").code == 200


def test_the_file_of_an_image_is_shown_if_it_has_more_pixels_than_the_store(client: Client, tmp_path: Path) -> None:
    files = {"large": (3000, 1500), "turned": (400, 200), "small": (8, 8), "changed": (500, 500)}
    paths, contents = [], []
    for name, shape in files.items():
        paths.append(str(tmp_path / f"{name}.png"))
        exif = Image.Exif()
        exif[0x0112] = 6 if name == "turned" else 1  # turned by a quarter
        Image.new("RGB", shape, (200, 30, 30)).save(paths[-1], exif=exif)
        contents.append("0" if name == "changed" else digest(Path(paths[-1]).read_bytes()))
    text = tmp_path / "text.svg"
    text.write_text("<svg xmlns='http://www.w3.org/2000/svg' width='900' height='900'/>")
    paths += [str(text), str(tmp_path / "missing.jpg")]
    contents += [digest(text.read_bytes()), "0"]
    client.session.originals = Originals(paths, contents)
    answers = [client.ask("GET", f"/original/{row}") for row in range(len(paths))]
    assert [answer.code for answer in answers] == [200, 200, 204, 204, 204, 204]
    shown = [Image.open(io.BytesIO(answer.body)) for answer in answers[:2]]
    assert [(each.format, each.size, len(each.getexif())) for each in shown] == [
        ("JPEG", (2560, 1280), 0),
        ("JPEG", (200, 400), 0),
    ]
    assert client.ask("GET", "/original/72").code == 404


def test_thin_files_are_shown_and_a_run_cannot_ask_for_huge_ones(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No JPEG has more than 65,535 pixels on a side, and a stranger's run may name any limit of its own."""
    paths = [str(tmp_path / name) for name in ("thin.png", "large.png")]
    for path, shape in zip(paths, ((1, 70_000), (400, 400)), strict=True):
        Image.new("RGB", shape).save(path)
    client.session.originals = Originals(paths, [digest(Path(path).read_bytes()) for path in paths])
    thin = client.ask("GET", "/original/0")
    assert (thin.code, Image.open(io.BytesIO(thin.body)).size) == (200, (1, 2560))
    monkeypatch.setattr("sortal.web.app.routes.MAX_PIXELS", 400 * 400 - 1)
    assert client.ask("GET", "/original/1").code == 204


def test_whoever_has_not_seen_the_last_decision_decides_nothing(run: Run, client: Client) -> None:
    assert client.decide(0, do="rename", category=4, name="fern").code == 200
    for seen in (0, 2, -1):
        answer = client.decide(seen, do="rename", category=5, name="moss")
        assert answer.code == 409
        assert answer.json()["version"] == 1
    assert client.decide(0, do="undo").json()["missed"] == ["Renamed 'new 1' to 'fern'"]
    assert load_run(run.folder).names == {**run.names, 4: "fern"}


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ({"do": "rename", "category": 99, "name": "x"}, "no category with the id 99"),
        ({"do": "rename", "category": 4, "name": "new 2"}, "Merge them instead"),
        ({"do": "move", "rows": [72], "category": 1}, "rows must be numbers from 0 to 71"),
        ({"do": "move", "rows": ["1"], "category": 1}, "rows must be numbers"),
        ({"do": "move", "rows": [True], "category": 1}, "rows must be numbers"),
        ({"do": "move", "rows": [], "category": 1}, "one or more"),
        ({"do": "dance"}, "do must be one of"),
        ({"do": "undo"}, "nothing to undo"),
        ({}, "do must be one of"),
    ],
)
def test_impossible_decisions_are_explained(run: Run, client: Client, action: dict[str, Any], message: str) -> None:
    answer = client.decide(0, **action)
    assert answer.code == 400
    assert message in answer.json()["message"]
    assert client.get("/api/version") == {"version": 0}
    assert not (run.folder / DECISIONS).exists()


def test_ids_of_new_categories_are_the_servers(run: Run, client: Client) -> None:
    for seen, category in enumerate((10**12, 2**70, 0, -1)):
        assert client.decide(seen, do="create", rows=[seen], category=category, name=f"new {seen + 10}").code == 200
    assert sorted(load_run(run.folder).names)[-4:] == [6, 7, 8, 9]
    for path in (f"/static/{'x' * 300}.js", f"/thumb/{'9' * 5000}"):
        assert client.ask("GET", path).code == 404


def test_bodies_that_are_no_decisions_are_refused(client: Client) -> None:
    kind = {"Content_Type": "application/json"}
    for body, headers, code in (
        (b"{}", {"Content_Type": "text/plain"}, 415),
        (b"{", kind, 400),
        (b"[]", kind, 400),
        (b"[" * 100_000, kind, 400),
        (b'{"seen": "0", "action": {}}', kind, 400),
        (b'{"seen": 0}', kind, 400),
        (b"\xff\xfe", kind, 400),
        (b'"' + b"x" * (17 * 2**20) + b'"', kind, 413),
    ):
        assert client.ask("POST", "/api/decide", body, **headers).code == code


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
VERBS = (*ACTIONS_OF_PEOPLE, "page")
FIELDS = {
    "do": st.sampled_from(VERBS) | JSON,
    "rows": st.lists(st.integers(-2, 80), max_size=5) | JSON,
    "images": st.lists(st.text(max_size=34), max_size=3) | JSON,
    "category": st.integers(-2, 12) | JSON,
    "categories": st.lists(st.integers(-2, 12), max_size=4) | JSON,
    "answers": st.text("ymn", max_size=6) | JSON,
    "wrong": st.lists(st.integers(-2, 80), max_size=3) | JSON,
    "shown": st.lists(st.integers(-2, 80), max_size=5) | JSON,
    "seen": st.lists(st.text(max_size=34), max_size=3) | JSON,
    "name": st.sampled_from(["fern", "", "x" * 300, *HOSTILE]) | JSON,
}
ACTIONS = st.fixed_dictionaries({}, optional=FIELDS)


def test_nothing_makes_the_server_fail(tmp_path: Path) -> None:
    """Any request gets an answer below 500, and the state stays one that can be loaded."""
    run = saved_run(tmp_path / "run")
    with serving(session_of(run)) as client:
        client.enter()

        @settings(max_examples=250, suppress_health_check=list(HealthCheck))
        @given(ACTIONS | JSON, st.just("now") | JSON)
        def attempt(action: Any, seen: Any) -> None:
            now = client.get("/api/version")["version"]
            body = json.dumps({"seen": now if seen == "now" else seen, "action": action}).encode()
            assert client.ask("POST", "/api/decide", body, Content_Type="application/json").code < 500

        attempt()
        numbered = ("category", "near", "like", "grow", "parts", "names")
        paths = (*(f"/api/{each}/" for each in numbered), "/api/grow/4?answers=", "/api/parts/4?parts=")
        paths += (
            "/api/images?rows=",
            "/api/search?text=",
            "/api/like/4?most=",
            "/thumb/",
            "/image/",
            "/static/",
            "/api/",
        )

        @settings(max_examples=150, suppress_health_check=list(HealthCheck))
        @given(st.sampled_from(paths), st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=24))
        def visit(path: str, rest: str) -> None:
            assert client.ask("GET", path + rest.replace("\\", "")).code < 500

        visit()
        assert client.get("/api/overview")["images"] == 72
        assert client.get("/api/map")["rows"]
        assert client.get("/api/queue")["items"]
    load_run(run.folder)


def test_a_full_disk_is_explained_and_changes_nothing(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.decide(0, do="rename", category=4, name="fern").code == 200
    before = client.get("/api/overview")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        answer = client.decide(1, do="rename", category=5, name="moss")
    assert answer.code == 400
    assert "No space left on device. Nothing has changed" in answer.json()["message"]
    assert client.get("/api/overview") == before
    assert client.decide(1, do="rename", category=5, name="moss").code == 200


def test_many_pages_decide_at_once_and_nothing_is_lost(run: Run, client: Client) -> None:
    done: list[str] = []

    def work(number: int) -> None:
        for step in range(8):
            name = f"{number}-{step}"
            while True:
                seen = client.get("/api/version")["version"]
                answer = client.decide(seen, do="rename", category=number % 6, name=name)
                if answer.code == 200:
                    done.append(name)
                    break
                assert answer.code == 409

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    lines = journal.read(run.folder / DECISIONS, run.facts)
    names = [each.action.name for each in lines if isinstance(each.action, Rename)]
    assert sorted(names) == sorted(done)
    assert len(names) == 48


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "not enough memory"),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), "failed to map segment"),
        (OSError(errno.EMFILE, "Too many open files"), "Too many open files"),
    ],
    ids=["memory", "library", "descriptors"],
)
def test_what_the_machine_lacks_is_said_to_the_page(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def lacking(*_: object) -> NoReturn:
        raise error

    with serving(session_of(run)) as client:
        client.enter()
        monkeypatch.setattr(client.session, "queue", lacking)
        answer = client.ask("GET", "/api/queue")
        assert (answer.code, said in answer.json()["message"]) == (503, True)
        monkeypatch.setattr("sortal.reviews.journal.open_held", lacking)
        answer = client.decide(0, do="rename", category=4, name="moss")
        assert answer.code in (400, 503)
        assert said in answer.json()["message"]
        assert "permit writing" not in answer.json()["message"]
        assert client.get("/api/version") == {"version": 0}


def test_a_run_that_takes_the_place_of_the_one_under_review_is_left_alone(tmp_path: Path, run: Run) -> None:
    saved_run(tmp_path / "other", images=60)
    with serving(session_of(run)) as client:
        client.enter()
        assert client.decide(0, do="rename", category=4, name="fern").code == 200
        (run.folder).rename(tmp_path / "away")
        (tmp_path / "other").rename(run.folder)
        before = {path.name: path.read_bytes() for path in run.folder.iterdir()}
        for answer in (client.decide(1, do="rename", category=5, name="moss"), client.ask("GET", "/api/map")):
            assert (answer.code, "another one was put there" in answer.json()["message"]) == (503, True)
        assert {path.name: path.read_bytes() for path in run.folder.iterdir()} == before
        load_run(run.folder)
        (run.folder).rename(tmp_path / "other")
        assert client.decide(1, do="rename", category=5, name="moss").code == 503, "there is none"
        (tmp_path / "away").rename(run.folder)
        assert client.decide(1, do="rename", category=5, name="moss").code == 200
    assert load_run(run.folder).names == {**run.names, 4: "fern", 5: "moss"}


@pytest.mark.parametrize("decided", [False, True])
def test_two_reviews_whose_folders_change_places_do_not_write_into_each_other(tmp_path: Path, decided: bool) -> None:
    runs = [saved_run(tmp_path / name, images=images) for name, images in (("a", 72), ("b", 60))]
    with serving(session_of(runs[0])) as first, serving(session_of(runs[1])) as second:
        for each in (first, second):
            each.enter()
            assert not decided or each.decide(0, do="rename", category=4, name="fern").code == 200
        for source, target in (("a", "c"), ("b", "a"), ("c", "b")):
            (tmp_path / source).rename(tmp_path / target)
        for each in (first, second):
            assert each.decide(int(decided), do="rename", category=5, name="moss").code == 503
    assert {load_run(tmp_path / name).decisions for name in "ab"} == {int(decided)}
