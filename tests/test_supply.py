"""The bill of materials and the audit of dependencies."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import audit
import cpu_build
import pytest
import sbom
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


def test_the_bill_lists_what_is_needed_once_with_its_version_and_nothing_else() -> None:
    found = sbom.bill()
    components = {each["name"]: each for each in found["components"]}
    assert len(components) == len(found["components"])
    assert {"torch", "pillow", "timm", "starlette", "h11"} <= components.keys()  # the last one is needed by uvicorn
    assert not {"sortal", "pytest", "mypy", "tensorboard"} & components.keys()
    assert components["pillow"]["version"] == version("pillow")
    assert found["metadata"]["component"]["version"] == version("sortal")
    refs = {each["bom-ref"] for each in (*components.values(), found["metadata"]["component"])}
    assert {each["ref"] for each in found["dependencies"]} == refs
    assert {other for each in found["dependencies"] for other in each["dependsOn"]} <= refs


def test_extras_and_what_only_an_extra_of_another_package_needs_are_listed_on_request() -> None:
    plain, more = ({each["name"] for each in sbom.bill(extras)["components"]} for extras in ((), ("tensorboard",)))
    assert {"tensorboard", "grpcio"} <= more - plain


def test_a_missing_package_makes_no_bill(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sbom, "needed", lambda *_: [Requirement("no-such-package")])
    monkeypatch.setattr(sys, "argv", ["sbom.py"])
    assert sbom.main() == 2
    printed = capsys.readouterr()
    assert "no-such-package is required but not installed" in printed.err
    assert not printed.out


def test_the_command_prints_json() -> None:
    done = subprocess.run([sys.executable, ROOT / "supply/sbom.py"], capture_output=True, check=True)
    assert json.loads(done.stdout) == sbom.bill()


CLEAN: dict[str, Any] = {"name": "a", "version": "1", "vulns": []}
SKIPPED = {"name": "b", "skip_reason": "Dependency not found on PyPI and could not be audited: b (1)"}
BAD = {
    "name": "c",
    "version": "2",
    "vulns": [{"id": "PYSEC-0", "fix_versions": ["3"]}, {"id": "X", "fix_versions": []}],
}


@pytest.mark.parametrize(
    ("packages", "code"), [([CLEAN, SKIPPED], 0), ([CLEAN, BAD], 1), ([SKIPPED], 2), ([SKIPPED, BAD], 1), ([], 2)]
)
def test_an_audit_without_answers_is_no_clean_one(packages: list[dict[str, Any]], code: int) -> None:
    found = audit.judge({"dependencies": packages})
    assert found.code == code
    assert found.skipped == (("b",) if SKIPPED in packages else ())
    if BAD in packages:
        assert found.advisories == ("c 2: PYSEC-0, fixed in 3", "c 2: X, fixed in no version")


@pytest.mark.parametrize(
    ("torch", "torchvision", "wanted", "said"),
    [
        (
            "2.12.0+cpu, 2.11.0+cpu, 2.9.1+cpu, 2.9.0",
            "0.26.0+cpu, 0.24.1+cpu, 0.25.0",
            ("2.11.0+cpu", "0.26.0+cpu"),
            "",
        ),
        ("2.11.1+cpu, 2.9.1+cpu, 2.8.0+cpu", "0.26.0+cpu, 0.24.0+cpu, 0.23.0+cpu", ("2.8.0+cpu", "0.23.0+cpu"), ""),
        ("2.13.0, 2.13.0+cpu", "0.28.0", None, r"of torch 2\.13\.0, but none of torchvision 0\.28\.0, which"),
        (
            "2.13.0+cpu, 2.9.1+cpu",
            "0.25.0+cpu",
            None,
            r"torch 2\.9\.1, .* torchvision 0\.24\.1, and of torch 2\.13\.0, .* torchvision 0\.28\.0, which",
        ),
        ("2.10.0, 2.10.0+cu128", "0.25.0, 0.25.0+cpu", None, r"no CPU build of torch 2\.6 or later"),
        ("2.5.1+cpu", "0.20.1+cpu", None, r"no CPU build of torch 2\.6 or later"),
        ("", "", None, r"no CPU build of torch 2\.6 or later"),
    ],
    ids=["nearest and newer", "only pairs", "no torchvision", "another torchvision", "no torch", "too old", "no index"],
)
def test_cpu_builds_are_the_nearest_pair_that_any_index_has(
    torch: str,
    torchvision: str,
    wanted: tuple[str, str] | None,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Everything else stays as it is pinned; what is missing is named."""
    versions = {"torch": torch, "torchvision": torchvision}
    pins = tmp_path / "constraints.txt"
    pins.write_text("open-clip-torch==3.3.0\ntorch==2.10.0\ntorchvision==0.25.0\nzipp==1\n")
    monkeypatch.setattr(cpu_build, "PINS", pins)
    monkeypatch.setattr(cpu_build, "listed", lambda name: f"{name} (1.0)\nAvailable versions: {versions[name]}\n")
    assert cpu_build.main() == (0 if wanted else 1)
    out, error = capsys.readouterr()
    assert re.search(said, error)
    assert bool(error) != bool(wanted)
    printed = out.splitlines()
    if wanted:
        names = [f"torch=={wanted[0]}", f"torchvision=={wanted[1]}"]
        assert printed == ["open-clip-torch==3.3.0", *names, "zipp==1"]
    else:
        assert not printed


def test_pip_lists_versions_in_the_form_that_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a folder with a wheel of a CPU build, which need not be valid to be listed."""
    (tmp_path / "torch-2.7.0+cpu-py3-none-any.whl").touch()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert cpu_build.cpu_builds(cpu_build.listed("torch")) == {(2, 7, 0)}


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_the_tag_of_a_release_is_no_text_of_the_shell() -> None:
    """A tag may contain quotes, and what make or a shell would run."""
    tag = 'v1";echo$(shell echo made);"'
    command, environment = ["make", "--dry-run", "release"], {**os.environ, "TAG": tag}
    made = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert "supply/release.py --repository" in made.stdout
    assert "echomade" not in made.stdout
    assert "v1" not in made.stdout.partition("supply/release.py --repository")[2]
