"""What the start page can ask for, and the commands that it can start."""

from __future__ import annotations

import json
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import SortedRun
from support.reviews import Answer, Client, wait_for

from sortal.errors import InputError
from sortal.exchange.export import EXPORT_FORMATS
from sortal.web.start.children import Children
from sortal.web.start.home import Home
from sortal.web.start.start_routes import COMMAND_WORDS

from .conftest import serving_start


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory, sorted_run: SortedRun) -> Path:
    top = tmp_path_factory.mktemp("home")
    (top / "photos").mkdir()
    (top / "photos" / "labels.csv").write_text("file_name,label\na.png,ash\n")
    (top / "photos" / "a.png").write_bytes(b"no image")
    sorted_run.copy(top / "photos-run")
    return top


@pytest.fixture(scope="module")
def client(top: Path) -> Iterator[Client]:
    with serving_start(top) as client:
        yield client.enter()


def post(client: Client, path: str, **body: Any) -> Answer:
    return client.ask("POST", path, json.dumps(body).encode(), Content_Type="application/json")


def words(top: Path, kind: str, **asked: Any) -> list[str]:
    return COMMAND_WORDS[kind](Home(top), asked.pop("at", "photos"), asked)


def test_requests_become_the_commands_that_a_person_would_type(top: Path) -> None:
    photos, run = str(top / "photos"), str(top / "photos-run")
    assert words(top, "check", labels="none") == ["check", photos, "--folders", "ignore", "--json"]
    table = ["--labels", f"{photos}/labels.csv", "--unlisted", "unlabelled", "--placeholders", "unlabelled"]
    assert words(top, "check", labels="table", table="photos/labels.csv") == ["check", photos, *table, "--json"]
    usual = ["discover", photos, "--placeholders", "unlabelled", "--out", run]
    assert words(top, "sort", labels="folders", run="photos-run") == [*usual, "--json", "--yes"]
    settings = {"k": 8, "epochs": 0, "backbone": "convnet", "granularity": "usual"}
    chosen = ["--k", "8", "--granularity", "usual", "--backbone", "convnet", "--epochs", "0"]
    asked = words(top, "forecast", run="photos-run", settings=settings)
    assert asked == [*usual, *chosen, "--json", "--yes", "--dry-run"]
    assert words(top, "review", at="photos-run") == ["review", run, "--no-browser"]
    assert words(top, "report", at="photos-run") == ["report", run]
    assert words(top, "sample", at="") == ["sample", "digits", str(top / "digits")]
    (top / "net.safetensors").write_text("")
    tuned = words(top, "sort", run="photos-run", settings={"method": "gcd"}, weights="net.safetensors")
    assert tuned == [*usual, "--method", "gcd", "--weights", f"{top}/net.safetensors", "--json", "--yes"]
    named = words(top, "sort", run="photos-run", settings={"backbone": "vit_small_patch14_dinov2.lvd142m"})
    assert named == [*usual, "--backbone", "vit_small_patch14_dinov2.lvd142m", "--json", "--yes"]
    again = words(top, "sort", at="photos-run", labels="none", run="photos-run", settings={"k": 8})
    assert again == ["discover", run, "--k", "8", "--json", "--yes"], "all else is as in the run"
    predicted = words(top, "predict", at="photos-run", images="photos", name="x.csv")
    assert predicted == ["predict", run, photos, "--csv", str(top / "x.csv")]
    assert words(top, "predict", at="photos-run", images="photos", name="x.csv", update="yes")[-1] == "--update"
    for name in EXPORT_FORMATS:
        out = words(top, "export", at="photos-run", format=name, name="x")
        assert out == ["export", run, "--format", name, "--out", str(top / "x")]


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        ("check", {"at": "../photos"}),
        ("check", {"at": "photos", "labels": "table", "table": "../labels.csv"}),
        ("check", {"at": "photos", "labels": ["table"]}),
        ("sort", {"run": "../elsewhere"}),
        ("sort", {"run": ".hidden"}),
        ("sort", {"run": ""}),
        ("sort", {"run": "run", "settings": {"weights": "/etc/passwd"}}),
        ("sort", {"run": "run", "settings": {"method": "evil.py:Method"}}),
        ("sort", {"run": "run", "settings": {"backbone": "evil.py:net"}}),
        ("sort", {"run": "run", "settings": {"backbone": "photos-run/model.json"}}),
        ("sort", {"run": "run", "settings": {"backbone": "model.json"}}),
        ("sort", {"run": "run", "settings": {"backbone": "hf-hub:owner/net"}}),
        ("sort", {"run": "run", "settings": {"backbone": ["convnet"]}}),
        ("sort", {"run": "run", "weights": "photos/labels.csv"}),
        ("sort", {"run": "run", "weights": "../net.safetensors"}),
        ("predict", {"at": "photos-run", "images": "../elsewhere", "name": "x.csv"}),
        ("predict", {"at": "photos-run", "images": "photos", "name": "../x.csv"}),
        ("sort", {"run": "run", "settings": {"k": "--force"}}),
        ("sort", {"run": "run", "settings": {"k": 0}}),
        ("sort", {"run": "run", "settings": ["k"]}),
        ("sort", {"at": "", "run": "run"}),
        ("export", {"at": "photos-run", "format": "exe", "name": "x"}),
        ("export", {"at": "photos-run", "format": "csv", "name": "../x.csv"}),
        ("review", {"at": "/"}),
    ],
)
def test_nothing_else_becomes_a_command(top: Path, kind: str, asked: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        words(top, kind, **asked)


def test_a_check_goes_on_whoever_looks_and_tells_what_it_found(client: Client) -> None:
    started = post(client, "/api/start", kind="check", at="photos", labels="none", other=float("nan")).json()
    assert (started["kind"], started["state"]) == ("check", "running")
    assert started["asked"] == {"kind": "check", "at": "photos", "labels": "none"}, "nothing else is kept"

    def found() -> Any:
        return next(each for each in client.get("/api/commands")["commands"] if each["number"] == started["number"])

    wait_for(lambda: found()["state"] == "done")
    health = client.get(f"/api/answer/{started['number']}")
    assert (health["images"], len(health["unreadable"]), health["ignored"]) == (1, 1, ["labels.csv"])


def test_errors_are_the_sentences_of_commands(client: Client, top: Path) -> None:
    started = post(client, "/api/start", kind="export", at="photos", format="csv", name="x.csv").json()
    wait_for(lambda: client.get("/api/commands")["commands"][-1]["state"] == "failed")
    failed = client.get("/api/commands")["commands"][-1]
    assert failed["number"] == started["number"]
    assert failed["error"].startswith(f"A run must be a folder that sortal discover wrote, got '{top}/photos'")
    again = post(client, "/api/again", number=started["number"])
    assert again.json()["asked"] == started["asked"]
    assert post(client, "/api/stop", number=again.json()["number"]).code == 200
    (top / "x.csv").symlink_to(top.parent)
    assert post(client, "/api/again", number=started["number"]).code == 400, "what it would write to is a link now"


def test_a_run_is_described_and_its_report_shown(
    client: Client, top: Path, sorted_run: SortedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = client.get("/api/run?at=photos-run")
    assert found["images"] == len(sorted_run.run.assignments) == sum(each["size"] for each in found["categories"])
    assert (sum(found["status"].values()), found["binned"]) == (found["images"], 0)
    assert found["formats"].keys() == EXPORT_FORMATS.keys()
    assert (found["calibrated"], found["estimated"]) == (
        sorted_run.run.confidence.calibrated,
        sorted_run.run.k.estimated,
    )
    shown: list[str] = []
    monkeypatch.setattr(webbrowser, "open", shown.append)
    assert post(client, "/api/show", at="photos-run").json() == {"shown": False}
    with serving_start(top, shows=True) as other:
        assert post(other.enter(), "/api/show", at="photos-run").json() == {"shown": True}
        wait_for(lambda: shown)
        assert shown == [(top / "photos-run" / "report.html").as_uri()]
        assert post(other, "/api/show", at="photos").code == 400


def test_whoever_has_no_key_learns_and_starts_nothing(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "key", None)
    for path in ("/api/version", "/api/commands", "/api/listing", "/api/run?at=photos-run", "/api/answer/1"):
        assert client.ask("GET", path).code == 403
    for path in ("/api/start", "/api/stop", "/api/again", "/api/link", "/api/show"):
        assert post(client, path, kind="check", at="photos").code == 403
    assert client.ask("GET", "/").code == 200
    assert b"photos" not in client.ask("GET", "/").body


def test_other_sites_and_malformed_requests_are_refused(client: Client) -> None:
    before = len(client.get("/api/commands")["commands"])
    body = json.dumps({"kind": "check", "at": "photos"}).encode()
    assert client.ask("POST", "/api/start", body, Content_Type="application/json", Origin="http://evil").code == 403
    assert client.ask("POST", "/api/start", body, Content_Type="application/json", Host="evil:1").code == 403
    assert client.ask("POST", "/api/start", body, Content_Type="text/plain").code == 415
    assert client.ask("POST", "/api/start", b"[]", Content_Type="application/json").code == 400
    assert client.ask("GET", "/api/start").code == 405
    for asked in ({}, {"kind": "sh"}, {"kind": 1}, {"kind": "check", "at": 5}, {"kind": "check", "at": ".."}):
        assert post(client, "/api/start", **asked).code == 400
    for text in (b"NaN", b"1e999", b'{"epochs": NaN}', b"[NaN]"):
        body = b'{"kind": "check", "at": "photos", "settings": ' + text + b"}"
        assert client.ask("POST", "/api/start", body, Content_Type="application/json").code == 400
    assert post(client, "/api/start", kind="check", at="photos", name="x" * 5000).code == 400
    assert client.ask("GET", "/api/listing?at=..%2F..").code == 400
    assert post(client, "/api/stop", number=999).code == 400
    assert len(client.get("/api/commands")["commands"]) == before


def test_a_review_gives_links_and_ends_with_the_page(top: Path) -> None:
    """Whatever ends the page: nobody could ask for a link any more, and the run would stay locked."""
    review = Children().start("review", {}, words(top, "review", at="photos-run"))
    wait_for(lambda: review.has_link or not review.is_running)
    links = {review.link() for _ in range(2)}
    assert len(links) == 2, review.error
    assert review._process.stdin is not None
    review._process.stdin.close()  # as the system does when the page is killed
    wait_for(lambda: not review.is_running)
    assert (review.state, review.error) == ("done", "")
