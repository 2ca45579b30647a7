"""The notebooks in examples/ run from top to bottom, and are stored without output."""

import json
from pathlib import Path
from typing import Any

import pytest
from support import tiny_folder

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))


def cells_of(notebook: Path) -> list[dict[str, Any]]:
    """Return the cells of code."""
    content = json.loads(notebook.read_text(encoding="utf-8"))
    return [cell for cell in content["cells"] if cell["cell_type"] == "code"]


def test_notebooks_are_stored_without_output() -> None:
    assert [notebook.name for notebook in NOTEBOOKS] == ["digits.ipynb"]
    for cell in (cell for notebook in NOTEBOOKS for cell in cells_of(notebook)):
        assert (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.thorough
def test_the_notebook_of_the_digits_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    with tiny_folder.quickly():
        for number, cell in enumerate(cells_of(NOTEBOOKS[0])):
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    assert len(names["table"]) == len(names["images"]) == 1797
    assert names["run"].metrics.accuracy.all > 0.5, "categories mean something, even without training"
    assert names["sheet"].size == (320, 320)
    assert len(names["again"].labels_) == 1797
    assert {path.name for path in tmp_path.iterdir()} == {"digits", "digits-run", "digits.csv"}
