"""What is published: the distributions are complete, their page has no broken links, and every version is the same."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from functools import partial
from pathlib import Path

import index_page
import journey
import pytest
import release
from packaging.requirements import Requirement

import sortal
from sortal.images.datasets import digits

ROOT = Path(__file__).parents[1]
ADDRESS = "https://code.example/sortal"


def test_links_and_pictures_lead_to_the_version_that_is_published() -> None:
    text = (
        "![a](docs/a.png) [b](docs/b.md#c) [here](#d) [there](https://x.example/e) `[f](g)`\n"
        '<img src="docs/h.gif" width="1"> <a href="docs/i.md">\n```\n[j](k)\n```\n'
    )
    assert index_page.absolute(text, ADDRESS, "v1") == (
        f"![a]({ADDRESS}/raw/v1/docs/a.png) [b]({ADDRESS}/blob/v1/docs/b.md#c) "
        "[here](#d) [there](https://x.example/e) `[f](g)`\n"
        f'<img src="{ADDRESS}/raw/v1/docs/h.gif" width="1"> <a href="{ADDRESS}/blob/v1/docs/i.md">\n```\n[j](k)\n```\n'
    )


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel and the source distribution of this checkout, built without a network."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, index_page.ADDRESS: ADDRESS}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_the_distributions_have_every_file(distributions: Path) -> None:
    wheel, source = next(distributions.glob("*.whl")), next(distributions.glob("*.tar.gz"))
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this is no checkout")
    files = [each for each in listed.stdout.splitlines() if (ROOT / each).exists()]
    assert "src/sortal/py.typed" in files
    assert release.incomplete(wheel, source, files) == []
    assert release.incomplete(wheel, source, [*files, "src/sortal/x", "examples/y", ".ci/z"]) == [
        "sortal/x",
        "examples/y",
        "src/sortal/x",
    ]


def test_the_page_of_an_index_needs_nothing_beside_it(distributions: Path) -> None:
    unpacked = distributions / "unpacked"
    shutil.unpack_archive(next(distributions.glob("*.whl")), unpacked, "zip")
    about, _, page = next(unpacked.glob("*/METADATA")).read_text(encoding="utf-8").partition("\n\n")
    assert f"Version: {sortal.__version__}\n" in about
    assert f"Project-URL: Repository, {ADDRESS}\n" in about
    prose = re.sub(index_page.CODE, "", page, flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"", prose)
    assert f"{ADDRESS}/raw/v{sortal.__version__}/docs/" in page
    assert [each for pair in links for each in pair if each and not each.startswith(("https://", "#"))] == []


def test_every_place_names_one_version(tmp_path: Path) -> None:
    for file in ("src/sortal/__init__.py", "CHANGELOG.md", "CITATION.cff", "conda/recipe.yaml"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, tmp_path / file)
    assert release.contradictions(tmp_path, f"v{sortal.__version__}") == []
    (tmp_path / "CITATION.cff").write_text("version: 0.0.1\n")
    assert release.contradictions(tmp_path, "v0.0.1") == [
        f"CITATION.cff does not name the version {sortal.__version__}",
        f"the tag v0.0.1 is not v{sortal.__version__}",
    ]


def test_the_conda_recipe_needs_what_the_package_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    other_names = {"torch": "pytorch", "matplotlib": "matplotlib-base", "huggingface-hub": "huggingface_hub"}
    wanted = [Requirement(each) for each in project["dependencies"]]
    recipe = (ROOT / "conda/recipe.yaml").read_text(encoding="utf-8").partition("  run:\n")[2].partition("tests:")[0]
    assert re.findall("- (.+)", recipe) == [
        f"python {project['requires-python']}",
        *(f"{other_names.get(each.name, each.name)} {each.specifier}" for each in wanted),
    ]


def test_every_extra_is_tested_by_itself() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {*release.EXTRAS} == {*project["optional-dependencies"]} - {"bench", "dev"}
    assert [each for each in (*release.EXTRAS.values(), *release.LOWEST) if not (ROOT / each).exists()] == []


def test_all_tests_run_before_a_release_and_in_workflows() -> None:
    """Those that `make test` leaves out, too."""
    recipes = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.findall(r"pytest (-m (?:\"not thorough\"|thorough))", recipes) == ['-m "not thorough"', "-m thorough"]
    assert {"tests", "thorough"} < release.STEPS.keys()
    for file in (".ci/run", ".github/workflows/tests.yml"):
        if (ROOT / file).exists():  # a source distribution has neither
            assert re.findall(r"make (test|thorough)\b", (ROOT / file).read_text("utf-8")) == ["test", "thorough"]


def test_torch_is_pinned_to_the_build_that_the_tests_ran_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "ROOT", tmp_path)
    (tmp_path / ".venv").mkdir()
    usual = ["-c", "constraints.txt"]
    named = [*usual, "-c", "constraints-cpu.txt"]

    def pins(torch: str) -> list[str]:
        monkeypatch.setattr(release, "run", lambda *_: f"{torch}\n")
        return release.pins()

    assert (pins("2.10.0"), pins("2.10.0+cpu")) == (usual, named)
    (tmp_path / ".venv/pins.txt").write_text("torch==2.9.1+cpu\ntorchvision==0.24.1+cpu\n")
    assert (pins("2.10.0"), pins("2.10.0+cpu")) == (usual, named)
    assert pins("2.9.1+cpu") == ["-c", ".venv/pins.txt"]


def test_a_release_stops_at_what_fails_and_goes_on_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[str] = []
    failing = {"two"}

    def step(name: str, _: release.Release) -> None:
        made.append(name)
        if name in failing:
            raise release.ReleaseError("not yet")

    names = ["one", "two", "three"]
    monkeypatch.setattr(release, "STEPS", {name: partial(step, name) for name in names})
    seconds: dict[str, float] = {}
    assert not release.check(release.Release("", ""), names, seconds, seconds.update)
    assert (made, [*seconds]) == (["one", "two"], ["one"])
    assert capsys.readouterr().err == "two: not yet\n"
    failing.clear()
    assert release.check(release.Release("", ""), names, seconds, seconds.update)
    assert (made, [*seconds]) == (["one", "two", "two", "three"], names)


def test_what_was_passed_counts_for_the_same_commit_while_its_distributions_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "ROOT", tmp_path)
    monkeypatch.setattr(release, "PASSED", tmp_path / "passed.json")
    assert release.passed("a") == {}
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist/x.whl").write_bytes(b"built")
    release.keep("a", {"lint": 3, "build": 4, "use": 5})
    assert (release.passed("a"), release.passed("b")) == ({"lint": 3, "build": 4, "use": 5}, {})
    (tmp_path / "dist/x.whl").write_bytes(b"built by hand")
    assert release.passed("a") == {"lint": 3}
    (tmp_path / "dist/x.whl").unlink()
    assert release.passed("a") == {"lint": 3}
    with pytest.raises(release.ReleaseError, match="no wheel"):
        _ = release.Release("", "").wheel


def test_the_journey_starts_with_a_folder_for_each_known_kind(tmp_path: Path) -> None:
    digits.write(tmp_path / "digits", labelled=0.5, seed=0)
    journey.own_folder(tmp_path / "digits", tmp_path / "photos")
    images = [each.relative_to(tmp_path / "photos") for each in (tmp_path / "photos").rglob("*.png")]
    assert {each.parent.name for each in images} == {*"01234", "unlabelled"}
    assert Counter(len(each.parts) for each in images) == {2: 10 * journey.EACH}


def test_the_journey_says_what_failed(tmp_path: Path) -> None:
    way = journey.Journey(Path(shutil.which("false") or ""), tmp_path)
    with pytest.raises(journey.JourneyError, match=r"^sortal check x\n"):
        way.go("check", "x")
    assert re.fullmatch(r"\| `sortal check x` \| [\d.]+ \| [\d.]+ \|", way.table().splitlines()[-1])
