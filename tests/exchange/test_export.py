"""Every format: each image is exported or reported as missing, whatever it is called."""

import os
from pathlib import Path

import pytest
from pyarrow import parquet
from support.exports import HOSTILE, PLAIN, a_run, content, of_pixels

from sortal.errors import InputError
from sortal.exchange.export import EXPORT_FORMATS, ExportResult, export
from sortal.runs.run import Run
from sortal.system.progress import Runtime


@pytest.mark.parametrize("name", EXPORT_FORMATS)
def test_every_image_is_exported_or_reported_as_missing(name: str, hostile: Run, tmp_path: Path) -> None:
    before = {path: (content(path), os.stat(path).st_mtime_ns) for path in hostile.paths()}
    reports: list[tuple[str, int, int]] = []
    done = export(hostile, name, tmp_path / "out", runtime=Runtime(progress=lambda *each: reports.append(each)))
    n = len(HOSTILE)
    assert done == ExportResult(format=name, out=tmp_path / "out", images=n, missing=())
    assert reports[-1] == ("Exporting", n, n)
    assert {path: (content(path), os.stat(path).st_mtime_ns) for path in hostile.paths()} == before
    assert sorted(os.listdir(tmp_path)) == ["out", "photos"]  # no temporary files

    run = a_run(tmp_path, PLAIN)
    (tmp_path / "photos/b.png").unlink()
    (tmp_path / "photos/d.png").write_bytes(b"")
    done = export(run, name, tmp_path / "less")
    table = name in ("csv", "parquet", "embeddings")  # needs no image files
    left = (done.images, done.missing, done.changed)
    assert left == ((5, (), ()) if table else (3, ("b.png",), ("d.png",)))
    files = [tmp_path / "less", *(tmp_path / "less").rglob("*")]
    found = [content(path) for path in files if path.is_file()]
    if name in ("parquet", "embeddings"):
        found = [str(parquet.read_table(tmp_path / "less").to_pylist()).encode()]
    assert any(b"b.png" in each for each in found) == table
    with pytest.raises(InputError, match=r"how must be one of hardlink, symlink, copy, got 'move'\."):
        export(run, name, tmp_path / "none", how="move")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"format must be one of csv, .*labelstudio, got 'xlsx'\."):
        export(run, "xlsx", tmp_path / "none")
    if not table:
        with pytest.raises(InputError, match="given as an array"):
            export(of_pixels(run), name, tmp_path / "none")
    assert not (tmp_path / "none").exists()
