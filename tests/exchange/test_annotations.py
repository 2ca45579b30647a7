"""Annotations in files of other tools: what is none is refused; test_importing.py has those that are read."""

from pathlib import Path

import pytest

from sortal.errors import InputError
from sortal.exchange.annotations import read_annotations


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.json", b"{", "is not valid JSON"),
        ("x.json", b'{"images": []}', "must be a JSON or JSON-MIN export"),
        ("x.json", b"[1]", "must be a JSON or JSON-MIN export"),
        ("x.json", b'[{"data": 3}]', "is damaged"),
        ("x.json", b'[{"data": {}, "annotations": [{"result": [{"type": "choices"}]}]}]', "is damaged"),
        ("x.csv", b"file_name,label\na,b\n", "must be one that `sortal export` wrote"),
        ("x.txt", b"", "is not valid JSON"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    others = ((tmp_path / "none.json", "cannot be read"), (tmp_path, "must contain"))
    for file, why in ((tmp_path / name, message), *others):
        with pytest.raises(InputError, match=why):
            read_annotations(file)
