"""Files that have changed since they were sorted are left out of every format."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.exports import HOW, LINKED, PLAIN, UNDEMANDING, a_run, content, files_below
from support.sample_run import as_sorted

from sortal.exchange import image_formats
from sortal.exchange.export import export
from sortal.exchange.format import How, Request, group_names, is_there, rows_of
from sortal.images.columns import NO_COLUMNS, Columns
from sortal.images.decoding import MAX_BYTES
from sortal.images.image_set import image_set
from sortal.images.originals import digest_of
from sortal.images.reading import read_images
from sortal.images.store.packing import pack
from sortal.runs.run import Run
from sortal.system.progress import Runtime
from sortal.web.report import summary


def replaced(path: str, *, keep_time: bool = False) -> None:
    """Put another file of the same size in the place of one, with the same time of change if asked for."""
    old, then = content(path), os.stat(path)
    Path(f"{path}.new").write_bytes(old[:-1] + bytes([old[-1] ^ 1]))
    os.replace(f"{path}.new", path)
    if keep_time:
        os.utime(path, ns=(then.st_atime_ns, then.st_mtime_ns))


def remember(run: Run) -> None:
    """Let the cache of a run know its files, as that of one does that was sorted."""
    a = run.assignments
    pack(image_set(a.files, paths=run.paths(), labels=a.labels), run.cache / "pixels", runtime=Runtime(workers=1))


@pytest.mark.parametrize(
    ("name", "how"), [*((name, "hardlink") for name in UNDEMANDING), *(("folders", h) for h in HOW)]
)
def test_files_that_have_changed_are_left_out_and_named(name: str, how: How, tmp_path: Path) -> None:
    run = a_run(tmp_path, PLAIN)
    remember(run)
    old = content(run.paths()[1])
    assert export(run, name, tmp_path / "before", how=how).changed == ()
    replaced(run.paths()[1])
    os.utime(run.paths()[2])  # another time, and the same content
    done = export(run, name, tmp_path / "out", how=how)
    assert (done.images, done.missing, done.changed) == (4, (), ("b.png",))
    out = [path for path in (tmp_path / "out", *(tmp_path / "out").rglob("*")) if path.is_file()]
    assert not any(content(run.paths()[1]) in content(path) or b"b.png" in content(path) for path in out)
    Path(run.paths()[1]).write_bytes(old)  # back again
    assert export(run, name, tmp_path / "again", how=how).changed == ()


@pytest.mark.parametrize("name", [*LINKED, "coco", "labelstudio"])
@pytest.mark.parametrize("cached", [False, True])
def test_a_file_that_pretends_not_to_have_changed_is_read(name: str, cached: bool, tmp_path: Path) -> None:
    run = a_run(tmp_path, PLAIN)
    if cached:
        remember(run)
    replaced(run.paths()[3], keep_time=True)
    assert export(run, name, tmp_path / "out").changed == ("test_1.png",)


@pytest.mark.parametrize("how", HOW)
def test_a_file_larger_than_any_image_has_changed_and_is_not_read(how: How, tmp_path: Path) -> None:
    """A file with holes may claim terabytes."""
    run = a_run(tmp_path, PLAIN)
    os.truncate(run.paths()[1], MAX_BYTES + 1)
    with open(run.paths()[1], "rb") as file:
        assert digest_of(file) == ""
        assert file.tell() == 0
    done = export(run, "folders", tmp_path / "out", how=how)
    assert (done.images, done.changed) == (4, ("b.png",))


@pytest.mark.parametrize("how", HOW)
def test_copies_of_a_file_that_has_changed_stay(how: How, tmp_path: Path) -> None:
    run = a_run(tmp_path, PLAIN)
    Path(run.paths()[1]).write_bytes(content(run.paths()[0]))
    run = as_sorted(run)
    replaced(run.paths()[0])
    done = export(run, "folders", tmp_path / "out", how=how)
    assert (done.images, done.changed) == (4, ("a.png",))
    assert (tmp_path / "out/cat/b.png").exists()


@pytest.mark.parametrize("how", ["hardlink", "copy"])
def test_a_file_that_is_replaced_while_it_is_exported_is_left_out(
    how: How, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file changes after it was checked, and before it is linked or copied."""
    run = a_run(tmp_path, PLAIN)

    def replacing(request: Request, number: int) -> bool:
        found = is_there(request, number)
        if number == 1 and how == "copy":
            replaced(request.rows[number].path)
        return found

    def linking(source: str, target: Path) -> None:
        if source.endswith("b.png"):
            replaced(source)
        link(source, target)

    link = os.link
    monkeypatch.setattr(image_formats, "is_there", replacing)
    monkeypatch.setattr(os, "link", linking)
    done = export(run, "folders", tmp_path / "out", how=how)
    assert (done.images, done.changed) == (4, ("b.png",))
    assert files_below(tmp_path / "out") == {
        "cat/a.png", "cat/a (2).png", "new 1/test_1.png", "new 1/d.png", "index.csv"
    }  # fmt: skip


def test_groups_do_not_say_where_the_images_are(tmp_path: Path) -> None:
    run = a_run(tmp_path, PLAIN)
    paths = [str(tmp_path / "photos" / "c")] * 2 + [""] * 3
    columns = Columns.infer(["group"], [paths])
    run = replace(run, assignments=replace(run.assignments, columns=columns, group=np.array([0, 0, 1, 2, 2])))
    alike = ["near-duplicates 3"] * 2
    assert group_names(run) == [os.path.join("photos", "c")] * 2 + ["", *alike]
    assert group_names(run, absolute_paths=True) == [*paths[:3], *alike]
    assert [row.group for row in rows_of(run)] == group_names(run)
    assert summary.images(run, [0, 1, 2])["group"] == {0: os.path.join("photos", "c"), 1: os.path.join("photos", "c")}
    export(run, "csv", tmp_path / "t.csv")
    again = read_images(tmp_path / "photos", labels=tmp_path / "t.csv").columns.get("group")
    assert again is not None
    assert {*again.cells} == {"", os.path.join("photos", "c")}  # those that were found are found again
    none = replace(run, assignments=replace(run.assignments, columns=NO_COLUMNS))
    export(none, "csv", tmp_path / "n.csv")
    assert read_images(tmp_path / "photos", labels=tmp_path / "n.csv").columns.names == ()
