"""The destination of an export: nothing else is replaced, and it appears whole or not at all."""

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from support.exports import (
    FILES,
    FOLDERS,
    HOW,
    LINKED,
    PLAIN,
    UNDEMANDING,
    UNSURE,
    a_run,
    content,
    files_below,
    written,
)
from support.sample_run import sample_run

from sortal.errors import InputError
from sortal.exchange.export import EXPORT_FORMATS, export
from sortal.exchange.format import LeftOut, Request
from sortal.reviews.loading import save_run
from sortal.runs.facts import ImageSource
from sortal.system.progress import Runtime


def test_existing_files_are_not_overwritten(tmp_path: Path) -> None:
    run = a_run(tmp_path, PLAIN)
    (tmp_path / "t").write_text("mine")
    (tmp_path / "d").mkdir()
    (tmp_path / "d/mine").write_text("mine")
    for name in FILES:
        with pytest.raises(InputError, match=r"already exists.*force=True"):
            export(run, name, tmp_path / "t")
        with pytest.raises(InputError, match=r"is one file, got .* which is a folder"):
            export(run, name, tmp_path / "d", force=True)
    for name in FOLDERS:
        with pytest.raises(InputError, match=r"must be new or empty.*force=True"):
            export(run, name, tmp_path / "d")
        with pytest.raises(InputError, match="was not written by an export"):
            export(run, name, tmp_path / "d", force=True)
        with pytest.raises(InputError, match=r"is a folder, got .* which is a file"):
            export(run, name, tmp_path / "t", force=True)
    for name in ("csv", "folders"):
        with pytest.raises(InputError, match=r"Cannot write the export '.*': (Not a directory|File exists)"):
            export(run, name, tmp_path / "t/out")
    with pytest.raises(InputError, match=r"Cannot write .*: File name too long"):
        export(run, "folders", tmp_path / ("x" * 300))
    assert (tmp_path / "t").read_text() == (tmp_path / "d/mine").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["d", "photos", "t"]


@pytest.mark.parametrize("name", UNDEMANDING)
def test_force_replaces_an_export_and_an_interrupted_export_leaves_the_old_one(name: str, tmp_path: Path) -> None:
    if name in FOLDERS:
        (tmp_path / "out").mkdir()  # an empty folder may be used
    export(a_run(tmp_path, UNSURE), name, tmp_path / "out")
    if name in FOLDERS:
        (tmp_path / "out/more.png").write_text("of the old one")
    run = a_run(tmp_path, PLAIN)
    export(run, name, tmp_path / "out", force=True)
    export(run, name, tmp_path / "new/below")  # missing folders are created
    before = written(tmp_path / "out")
    assert before == written(tmp_path / "new/below")

    def stop(_: str, done: int, __: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    if name in FOLDERS:
        with pytest.raises(KeyboardInterrupt):
            export(a_run(tmp_path, UNSURE), name, tmp_path / "out", force=True, runtime=Runtime(progress=stop))
        assert written(tmp_path / "out") == before
    assert sorted(os.listdir(tmp_path)) == ["new", "out", "photos"]


def test_copies_are_suggested_if_links_fail_and_a_failed_rename_leaves_the_old_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_run(tmp_path, PLAIN)
    export(run, "folders", tmp_path / "out")
    rename = os.rename

    def refuse(source: str, target: str, **named: Any) -> None:
        if target == "out" and not source.endswith(".old"):
            raise PermissionError(errno.EACCES, "Permission denied")
        rename(source, target, **named)

    unlinked = Mock(side_effect=OSError(errno.EXDEV, "Invalid cross-device link"))
    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(InputError, match=r"Cannot write .*: Permission denied"):
        export(run, "folders", tmp_path / "out", force=True)
    for how in HOW[:2]:
        monkeypatch.setattr(os, how.replace("hard", ""), unlinked)
        with pytest.raises(InputError, match=r"Invalid cross-device link.*a\.png.*how='copy'"):
            export(run, "folders", tmp_path / "other", how=how)
    assert "cat/a.png" in files_below(tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["out", "photos"]


def test_an_export_never_overlaps_the_images_or_the_run(tmp_path: Path) -> None:
    run = replace(a_run(tmp_path, PLAIN), folder=tmp_path / "out/run")
    run.folder.mkdir(parents=True)
    (run.folder / "assignments.csv").write_text("the run's")
    taken = [run.folder / "assignments.csv", *map(Path, run.paths())]
    before = [*map(content, taken)]
    for name in FILES:
        for path in taken[:2]:
            with pytest.raises(InputError, match=r"is one of the run's images|must be outside the run"):
                export(run, name, path, force=True)
    for at in ("photos", ".", "photos/c", "out"):
        (tmp_path / at / ".sortal-export.json").write_text("{}")
        for name in FOLDERS:
            with pytest.raises(InputError, match=r"outside the run and its images.*which is or (contains|lies in)"):
                export(run, name, tmp_path / at, force=True)
    (run.folder / "cache").mkdir()
    for at in ("new", "cache/new"):
        for name in (*FILES, *FOLDERS):
            with pytest.raises(InputError, match=r"must be outside the run"):
                export(run, name, run.folder / at)
    os.symlink(tmp_path / "photos", tmp_path / "link")
    for folder in ("photos", "link"):  # by either name
        source = ImageSource(folder=str(tmp_path / folder), images=len(run.assignments), paths={})
        run = replace(run, facts=replace(run.facts, images=(source,)))
        for name in LINKED:
            with pytest.raises(InputError, match="would read it as more images"):
                export(run, name, tmp_path / "photos/sorted")
    assert [*map(content, taken)] == before


def test_images_given_as_a_list_can_be_exported_next_to_them(tmp_path: Path) -> None:
    run = a_run(tmp_path, PLAIN)
    names = tuple(f"given/{i}.png" for i in range(len(PLAIN)))
    source = ImageSource(folder=str(tmp_path), images=len(names), paths=dict(zip(names, run.paths(), strict=True)))
    facts = replace(run.facts, images=(source,))
    listed = replace(run, facts=facts, assignments=replace(run.assignments, files=names))
    assert export(listed, "folders", tmp_path / "out").images == len(PLAIN)
    assert content(tmp_path / "out/cat/0.png") == content(tmp_path / "photos/a.png")
    export(listed, "coco", tmp_path / "coco.json")
    found = [image["file_name"] for image in json.loads(content(tmp_path / "coco.json"))["images"]]
    assert [str(tmp_path / name) for name in found] == listed.paths(), "names that open in the folder"
    with pytest.raises(InputError, match="outside the run and its images"):
        export(listed, "folders", tmp_path / "photos", force=True)
    everywhere = replace(run, facts=replace(facts, images=(replace(source, paths={"a.png": "/a.png"}),)))
    assert export(everywhere, "folders", tmp_path / "out", force=True).missing == run.assignments.files


def test_exports_never_replace_a_pipe_or_a_device(tmp_path: Path) -> None:
    run, pipe = replace(sample_run(), folder=tmp_path / "run"), tmp_path / "pipe"
    save_run(run)
    os.mkfifo(pipe)
    for name in ("csv", "folders"):
        with pytest.raises(InputError, match=r"pipe': it is a pipe\. Choose another place"):
            export(run, name, pipe, force=True)
    assert pipe.is_fifo()


def before_it_ends(name: str, do: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something once, when the next export has been written but is not at its place yet."""
    format_ = EXPORT_FORMATS[name]

    def write(request: Request) -> LeftOut:
        monkeypatch.setitem(EXPORT_FORMATS, name, format_)
        left = format_.write(request)
        do()
        return left

    monkeypatch.setitem(EXPORT_FORMATS, name, replace(format_, write=write))


@pytest.mark.parametrize("name", UNDEMANDING)
@pytest.mark.parametrize("force", [False, True])
def test_what_appears_while_an_export_is_made_is_not_replaced(
    name: str, force: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even with force, which is about what was there when the person said so."""
    run, out = a_run(tmp_path, PLAIN), tmp_path / "out"

    def appear() -> None:
        out.mkdir()
        (out / "thesis.txt").write_text("mine")

    before_it_ends(name, appear, monkeypatch)
    with pytest.raises(InputError, match=r"has been written there meanwhile, and stays\. Choose another place"):
        export(run, name, out, force=force)
    assert (out / "thesis.txt").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["out", "photos"]


@pytest.mark.parametrize("name", UNDEMANDING)
@pytest.mark.parametrize("force", [False, True])
def test_of_two_exports_to_one_place_exactly_one_is_written(
    name: str, force: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second begins and ends while the first is being made."""
    run, out = a_run(tmp_path, PLAIN), tmp_path / "out"
    if force:
        export(run, name, out)
    before_it_ends(name, lambda: export(run, name, out, force=force), monkeypatch)
    with pytest.raises(InputError, match=r"has been written there meanwhile, and stays\. Choose another place"):
        export(run, name, out, force=force)
    assert sorted(os.listdir(tmp_path)) == ["out", "photos"]
    export(run, name, tmp_path / "alone")
    assert written(out) == written(tmp_path / "alone")
