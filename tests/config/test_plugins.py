"""Code that a person names: loaded from there and from nowhere else; what is wrong with it is one sentence."""

import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from sortal.config import (
    METHODS,
    REFERENCES,
    MethodSource,
    line_of_method,
    load_method,
    method_source,
    not_loaded,
    registered,
)
from sortal.config.plugins import GROUP, load_object
from sortal.errors import InputError

CODE = """
from dataclasses import dataclass
from sortal.config import register

@dataclass(frozen=True)
class Settings:
    share: float = 0.5

class Mine:
    {body}

class Unregistered(Mine):
    pass

RECORD = register("{name}", Mine, losses=Settings)
"""


@pytest.fixture(autouse=True)
def unchanged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    methods, references = dict(METHODS), dict(REFERENCES)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    yield
    for table, before in ((METHODS, methods), (REFERENCES, references)):
        table.clear()
        table.update(before)  # type: ignore[arg-type]
    for name, module in [*sys.modules.items()]:
        if str(tmp_path) in str(getattr(module, "__file__", None)):
            del sys.modules[name]


def write(path: Path, text: str = "", *, name: str = "mine", body: str = "pass") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text or CODE.format(name=name, body=body))
    return path


def install(place: Path, *, point: str = "short = papers.mine:Mine", files: str = "") -> None:
    """Make a package with a method, as pip does, where Python looks for packages."""
    write(place / "papers" / "mine.py", name="papers-mine")
    write(place / "papers" / "__init__.py", "\n")
    write(place / "papers-1.0.dist-info" / "METADATA", "Metadata-Version: 2.1\nName: papers\nVersion: 1.0\n")
    write(place / "papers-1.0.dist-info" / "entry_points.txt", f"[{GROUP}]\n{point}\n")
    write(place / "papers-1.0.dist-info" / "RECORD", files or "\n")
    sys.path.append(str(place))


def test_a_file_is_loaded_once_and_again_after_it_has_changed(tmp_path: Path) -> None:
    write(tmp_path / "my_method.py", body="number = 1")
    assert load_method("my_method.py:Mine") == "my_method.py:Mine"
    found = registered("my_method.py:Mine")
    assert found is not None
    assert found.learner is load_object(f"{tmp_path}/my_method.py:Mine"), "however the file is named"
    assert (found.name, found.learner.number) == ("mine", 1)
    assert load_method("mine") == "mine"
    assert load_method(found.learner) == "my_method:Mine"
    assert load_method(found) == "mine"
    write(tmp_path / "my_method.py", body="number = 2  # another size")
    load_method("my_method.py:Mine")
    again = registered("mine")
    assert again is not None
    assert again.learner.number == 2  # type: ignore[union-attr]
    with pytest.raises(InputError, match=r"^A method must be registered, but Mine is not\."):
        load_method(found.learner)


def test_a_module_and_an_entry_point_are_loaded_only_when_they_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path)
    assert "short" in metadata.entry_points(group=GROUP).names
    assert registered("papers-mine") is None
    assert load_method("short") == "short"
    found = registered("short")
    assert found is not None
    assert found.name == "papers-mine"
    assert load_method("papers.mine:Mine") == "papers.mine:Mine"
    assert registered("papers.mine:Mine") is found
    assert load_method("nobody") == "nobody"
    assert registered("nobody") is None


@pytest.mark.parametrize("files", ["", "papers/mine.py,,\n"], ids=["entry point", "files of the package"])
def test_a_method_of_a_package_says_so_and_how_to_get_it_where_that_is_missing(tmp_path: Path, files: str) -> None:
    install(tmp_path, files=files, point="" if files else "short = papers.mine:Mine")
    name = load_method("papers.mine:Mine" if files else "short")
    source = method_source(name)
    assert source == MethodSource(code="papers.mine:Mine", package="papers", version="1.0")
    there = not_loaded(name, source)
    assert "is not loaded" in str(there)
    assert f"Name it if you trust it (method={name!r})" in str(there), "it is still installed"
    sys.path.remove(str(tmp_path))
    said = str(not_loaded(name, source))
    assert said.startswith(
        f"The method of this run, {name!r}, is 'papers.mine:Mine' of the package 'papers 1.0', which"
    )
    assert said.endswith("Install that package if you trust it, then name the method (method='papers.mine:Mine').")


def test_a_method_of_a_file_says_which_and_others_say_what_they_can(tmp_path: Path) -> None:
    path = write(tmp_path / "my_method.py")
    load_method("my_method.py:Mine")
    source = method_source("mine")
    assert source == MethodSource(code=f"{path}:Mine"), "from anywhere"
    assert method_source("gcd") is None, "ours"
    assert f"Name it if you trust it (method={source.code!r})" in str(not_loaded("mine", source)), (
        "not by its name, as benchmarks do"
    )
    assert "Name it if you trust it (method='b.py:B')" in str(not_loaded("b.py:B", None))
    assert "the run does not say where its code is. Install" in str(not_loaded("mine", None)), "as of earlier versions"
    nameless = MethodSource(code="a:B", package="")
    assert "which is not installed" in str(not_loaded("mine", nameless))


def test_an_error_in_a_method_is_found_in_its_own_code_wherever_it_was_raised(tmp_path: Path) -> None:
    path = write(tmp_path / "my_method.py", body="def losses(self):\n        return int(self)")
    load_method("my_method.py:Mine")
    with pytest.raises(TypeError) as caught:
        load_object("my_method.py:Mine")().losses()
    assert line_of_method(caught.value) == f", in line 11 of {str(path)!r}"
    with pytest.raises(ValueError, match="invalid literal") as other:
        int("x")
    assert line_of_method(other.value) == ""


def test_modules_beside_a_file_can_be_imported_but_replace_no_library(tmp_path: Path) -> None:
    write(tmp_path / "code" / "beside.py", "VALUE = 3\n")
    write(tmp_path / "code" / "colorsys.py", "raise SystemExit\n")
    write(
        tmp_path / "code" / "uses.py",
        "import colorsys\nimport beside\nclass A:\n    class B: value = beside.VALUE\n",
    )
    assert load_object("code/uses.py:A.B").value == 3


@pytest.mark.parametrize(
    ("name", "text", "reference", "said"),
    [
        ("a.py", "1/0\n", "a.py:X", r"^'a.py:X' cannot be loaded: ZeroDivisionError: .*, in line 1 of '.*a.py'\.$"),
        ("b.py", "x = (\n", "b.py:X", r"^'b.py:X' cannot be loaded: SyntaxError: .*, in line 1 of '.*b.py'\.$"),
        (
            "c.py",
            "import no_such\n",
            "c.py:X",
            r"ModuleNotFoundError: .* 'no_such', in line 1 of '.*c.py'",
        ),
        ("d.py", "x = 1\n", "d.py:X", r"^'d.py' must define 'X', but it does not\. Check the name\.$"),
        ("d.py", "x = 1\n", "d.py:x", r"^A method must be registered, but 1 is not\."),
        ("e.py", "", "e.py:Unregistered", r"^A method must be registered, but Unregistered is not\."),
        (
            "json.py",
            "x = 1\n",
            "json.py:x",
            r"^The name of a file of code must be new, but 'json.py' is that of",
        ),
        ("a-b.py", "x = 1\n", "a-b.py:x", r"^The name of a file of code must be new, but 'a-b.py' is not a word\."),
        ("f.py", "x = 1\n", "g.py:x", r"^The file 'g.py' of 'g.py:x' does not exist\. Check the path\.$"),
        ("f.py", "x = 1\n", "no_such.module:x", r"^'no_such.module:x' cannot be loaded: ModuleNotFoundError: "),
        ("h.py", CODE.format(name="gcd", body="pass"), "h.py:Mine", r"^The name of a method must be new, got 'gcd'"),
    ],
)
def test_what_is_wrong_with_code_is_said_in_a_sentence(
    tmp_path: Path, name: str, text: str, reference: str, said: str
) -> None:
    write(tmp_path / name, text)
    with pytest.raises(InputError, match=said):
        load_method(reference)
    assert name == "json.py" or Path(name).stem not in sys.modules or text in ("x = 1\n", "")
