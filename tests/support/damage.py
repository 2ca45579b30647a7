"""Ways to damage a file: bytes that do not fit, values that do not make sense, code, claims of sizes, and links."""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
import random
import shutil
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from support.swapping import make, remove

SECRET = "hunter2-correct-horse-battery-staple"  # stands in a file outside, and must not show up anywhere
TERABYTE = 2**40


@dataclass(frozen=True)
class Scene:
    """Where a file is damaged: the folder it belongs to, a folder outside it, and a file that only code would make."""

    random: random.Random
    root: Path
    outside: Path
    marker: Path
    swapped: list[str] = field(default_factory=list)  # names of further files that were damaged

    @property
    def secret(self) -> Path:
        return self.outside / "secret.txt"


Damage: TypeAlias = Callable[[Path, Scene], None]


def scene(generator: random.Random, root: Path, folder: Path) -> Scene:
    """Make a folder with a secret beside the one that will be damaged."""
    outside = folder / "outside"
    outside.mkdir()
    found = Scene(generator, root, outside, folder / "marker")
    found.secret.write_text(f"{SECRET}\n")
    return found


class Code:
    """A value whose pickle creates a file when it is loaded."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


# Bytes that do not fit


def flip(path: Path, here: Scene) -> None:
    """Change some bytes."""
    content = bytearray(path.read_bytes() or b"\0")
    for _ in range(here.random.choice((1, 3, 30))):
        content[here.random.randrange(len(content))] ^= here.random.randrange(1, 256)
    path.write_bytes(content)


def cut(path: Path, here: Scene) -> None:
    """Cut a file off."""
    os.truncate(path, here.random.randrange(max(path.stat().st_size, 1)))


def empty(path: Path, here: Scene) -> None:
    path.write_bytes(b"")


def prepend(path: Path, here: Scene) -> None:
    path.write_bytes(here.random.randbytes(here.random.choice((1, 8, 100))) + path.read_bytes())


def noise(path: Path, here: Scene) -> None:
    path.write_bytes(here.random.randbytes(5000))


def swap(path: Path, here: Scene) -> None:
    """Exchange a file with another one of its folder."""
    other = here.random.choice([each for each in files_of(here.root) if each != path])
    content = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(content)
    here.swapped.append(other.name)


def copy_other(path: Path, here: Scene) -> None:
    """Replace a file by a copy of another one with the same extension, if there is one."""
    others = [each for each in files_of(here.root) if each != path]
    alike = [each for each in others if each.suffix == path.suffix]
    path.write_bytes(here.random.choice(alike or others).read_bytes())


# Values that do not make sense

NUMBERS = ("-1", "0", "1e999", "-1e999", "NaN", "1e-320", "9223372036854775808", "9" * 10_000, "0.5", "true", "null")
TEXTS = (
    "",
    "x",
    "../../outside/secret.txt",
    "a" * 100_000,
    "\0",
    "\ud800",
    "<script>alert(1)</script>",
    "\x1b[2J",
    "=1",
)
VALUES = (
    *NUMBERS,
    *(json.dumps(text) for text in TEXTS),
    "[]",
    "{}",
    "[" * 100_000 + "]" * 100_000,
    '{"a":' * 5000 + "1",
)
PLACEHOLDER = "damaged value"


def bend(path: Path, here: Scene) -> None:
    """Replace a value of a JSON or CSV file by a hostile one; of another file, some bytes."""
    try:
        text = path.read_bytes().decode()
        if path.suffix == ".csv":
            path.write_bytes(_bent_table(text, here.random).encode("utf-8", "surrogatepass"))
            return
        lines = text.split("\n") if path.suffix == ".jsonl" else [text]
        at = here.random.randrange(len(lines))
        lines[at] = _bent_json(lines[at], here.random)
        path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    except ValueError:
        flip(path, here)


def _bent_json(text: str, generator: random.Random) -> str:
    tree = [json.loads(text)]
    places: list[tuple[Any, Any]] = []

    def visit(value: Any) -> None:
        keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        for key in keys:
            places.append((value, key))
            visit(value[key])

    visit(tree)
    holder, key = generator.choice(places)
    what = generator.choice(("value", "value", "value", "none", "more"))
    if what == "none":
        del holder[key]
    elif what == "more" and isinstance(holder, dict):
        holder["more"] = PLACEHOLDER
    else:
        holder[key] = PLACEHOLDER
    return ",".join(json.dumps(each, indent=1) for each in tree).replace(
        json.dumps(PLACEHOLDER), generator.choice(VALUES), 1
    )


def _bent_table(text: str, generator: random.Random) -> str:
    rows = [*csv.reader(io.StringIO(text, newline=""))]
    row = generator.choice(rows)
    at = generator.randrange(len(row))
    what = generator.choice(("cell", "cell", "cell", "column", "row", "more", "twice", "shift"))
    if what == "cell":
        row[at] = generator.choice((*NUMBERS, *TEXTS))
    elif what == "column":
        for each in rows:
            del each[at]
    elif what == "row":
        rows.remove(row)
    elif what == "more":
        row.append("more")
    elif what == "twice":
        rows.append([*row])
    else:
        row.insert(at, "")
    out = io.StringIO()
    csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(rows)
    return out.getvalue()


# Code


def pickled(path: Path, here: Scene) -> None:
    path.write_bytes(pickle.dumps(Code(here.marker)))


def pickled_array(path: Path, here: Scene) -> None:
    """Write an array of objects, which NumPy stores as a pickle."""
    array = np.array([Code(here.marker)], dtype=object)
    with path.open("wb") as file:
        np.lib.format.write_array(file, array, allow_pickle=True)


def pickled_archive(path: Path, here: Scene) -> None:
    """Write an archive as torch.save does, whose pickle is code."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"weight": Code(here.marker)}, protocol=2))
        archive.writestr("archive/version", "3\n")


def pickled_arrays(path: Path, here: Scene) -> None:
    """Write an .npz of objects."""
    with path.open("wb") as file:
        np.savez(file, weight=np.array([Code(here.marker)], dtype=object))


def pickled_text(path: Path, here: Scene) -> None:
    """Hide a pickle, and words that some readers execute, in the text of JSON."""
    code = pickle.dumps(Code(here.marker), protocol=0).decode()
    path.write_text(json.dumps({"format": "sortal run 2", "py/reduce": code, "__reduce__": code, "!!python": code}))


def pickled_metadata(path: Path, here: Scene) -> None:
    """Hide a pickle in the metadata of safetensors."""
    code = pickle.dumps(Code(here.marker), protocol=0).decode()
    path.write_bytes(safetensors({"__metadata__": {"sortal": code, "digest": code}}))


# Claims of sizes


def safetensors(header: Any, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def claim_array(path: Path, here: Scene) -> None:
    """Write the header of an array of a terabyte."""
    rows = here.random.choice((TERABYTE // 4, TERABYTE // 4 // 512, 2**62))
    shape = (rows,) if here.random.random() < 0.3 else (rows, 512)
    header = {"descr": here.random.choice(("<f4", "<f8", "|V1000000000")), "fortran_order": False, "shape": shape}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.write(bytes(1000))


def claim_header(path: Path, here: Scene) -> None:
    """Claim a header of safetensors that is longer than any disk."""
    path.write_bytes(struct.pack("<Q", here.random.choice((2**60, 2**64 - 1, 2**31))) + b'{"a":{}}' + bytes(100))


def claim_tensor(path: Path, here: Scene) -> None:
    """Claim tensors of a terabyte, or that overlap."""
    big = {"dtype": "F32", "shape": [TERABYTE // 4], "data_offsets": [0, TERABYTE]}
    overlapping = {"dtype": "F32", "shape": [25], "data_offsets": [0, 100]}
    wrapped = {"dtype": "F32", "shape": [2**33, 2**33], "data_offsets": [0, 0]}
    name = here.random.choice(("weight", "features", "clusters", "agreement", "a" * 100_000))
    header = here.random.choice(({name: big}, {name: overlapping, "other": overlapping}, {name: wrapped}))
    path.write_bytes(safetensors(header, bytes(100)))


def grow(path: Path, here: Scene) -> None:
    """Extend a file to a terabyte of zeros, which take no space on the disk."""
    try:
        os.truncate(path, TERABYTE)
    except OSError:  # a file system with smaller files
        os.truncate(path, 2**34)


def nest(path: Path, here: Scene) -> None:
    opening, closing = here.random.choice(
        (("[", "]"), ('{"a":', "}"), ('{"format": "sortal run 2", "images": [', "]}"))
    )
    depth = 100_000
    path.write_text(opening * depth + "1" + (closing * depth if here.random.random() < 0.5 else ""))


def widen(path: Path, here: Scene) -> None:
    """Write one long line: JSON of many values, a table with a cell of megabytes, or a long number."""
    kind = here.random.randrange(4)
    if kind == 0:
        path.write_text("[" + "[]," * 2_000_000 + "0]")
    elif kind == 1:
        path.write_text('"file_name","' + "x" * 20_000_000 + '"\n"a","b"\n')
    elif kind == 2:
        path.write_text("9" * 10_000_000)
    else:
        path.write_text('{"format": "sortal run 2", "x": "' + "\\u0041" * 3_000_000 + '"}')


# Links, and what is no file


def no_file(kind: str) -> Damage:
    """Return what replaces a file or folder by something of a kind of `swapping.make`."""

    def replace(path: Path, here: Scene) -> None:
        remove(str(path))
        make(str(path), kind, str(here.secret))

    return replace


def as_file(path: Path, here: Scene) -> None:
    remove(str(path))
    path.write_text("x")


def as_device(path: Path, here: Scene) -> None:
    """Link to a file without end."""
    remove(str(path))
    path.symlink_to(here.random.choice(("/dev/zero", "/dev/urandom", "/dev/full", "/dev/null")))


def as_link_to_copy(path: Path, here: Scene) -> None:
    """Move a file or folder out, and link to it."""
    target = here.outside / path.name
    shutil.move(path, target)
    path.symlink_to(target)


def as_dangling_link(path: Path, here: Scene) -> None:
    """Link to a file that does not exist yet, and must not come to exist."""
    remove(str(path))
    path.symlink_to(here.outside / "new")


WRECKS: dict[str, Damage] = {
    "flipped": flip,
    "cut off": cut,
    "empty": empty,
    "prepended": prepend,
    "noise": noise,
    "swapped": swap,
    "copy of another": copy_other,
}
BENDS: dict[str, Damage] = {"bent": bend}
CODE: dict[str, Damage] = {
    "pickle": pickled,
    "array of objects": pickled_array,
    "archive of torch": pickled_archive,
    "archive of NumPy": pickled_arrays,
    "JSON": pickled_text,
    "metadata": pickled_metadata,
}
CLAIMS: dict[str, Damage] = {
    "array": claim_array,
    "header": claim_header,
    "tensor": claim_tensor,
    "sparse file": grow,
    "nesting": nest,
    "width": widen,
}
NO_FILES: dict[str, Damage] = {
    "folder": no_file("folder"),
    "pipe": no_file("pipe"),
    "socket": no_file("socket"),
    "device": as_device,
    "link to a secret": no_file("out"),
    "link to a copy": as_link_to_copy,
    "loop": no_file("loop"),
    "dangling link": as_dangling_link,
}
ALL: dict[str, Damage] = {**WRECKS, **BENDS, **CODE, **CLAIMS, **NO_FILES}
NO_FOLDERS: dict[str, Damage] = {"file": as_file, **{kind: NO_FILES[kind] for kind in NO_FILES if kind != "folder"}}
# Of a file that people name, which may well be a link to another one
GIVEN: dict[str, Damage] = {
    kind: change for kind, change in ALL.items() if kind not in ("link to a secret", "link to a copy", "device")
} | {"bent again": bend, "bent once more": bend}


def files_of(folder: Path) -> list[Path]:
    """List the plain files of a folder in a fixed order, but for locks."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
