"""Files of feature vectors from strangers: damaged anywhere, they are read or refused in words, and run no code."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from support.damage import Code
from support.world import Trial

from sortal.errors import InputError
from sortal.images.vector_sets import read_features

ROWS, WIDTH = 6, 3


def _write(path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)
    names, labels = [f"tile {row}" for row in range(ROWS)], ["oak", "elm", "", "", "", ""]
    if path.suffix == ".npy":
        np.save(path, x)
    elif path.suffix == ".npz":
        np.savez_compressed(path, features=x, file_name=np.array(names), label=np.array(labels))
    elif path.suffix == ".safetensors":
        from safetensors.numpy import save_file

        save_file({"features": x}, path)
    elif path.suffix == ".csv":
        rows = [",".join([name, label, *map(str, row)]) for name, label, row in zip(names, labels, x, strict=True)]
        path.write_text("\n".join(["id,label,f0,f1,f2", *rows]))
    else:
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"id": names, "label": labels, "features": list(x)}), path)


def _survives(path: Path) -> None:
    """Read a file, which gives rows of finite numbers or an error that names it."""
    try:
        found = read_features(path).features
    except InputError as error:
        if path.name not in error.message:
            raise
    else:
        assert found is not None
        assert np.isfinite(found).all()


@pytest.mark.attack(most=40)
@pytest.mark.parametrize("kind", [".npy", ".npz", ".safetensors", ".csv", ".parquet"])
def test_damage(trial: Trial, kind: str) -> None:
    """Change, cut or repeat bytes."""
    path = trial.folder / f"x{kind}"
    _write(path)
    whole = path.read_bytes()
    for _ in range(3 if kind == ".parquet" else 30):
        content = bytearray(whole)
        for _ in range(trial.random.randint(1, 4)):
            at = trial.random.randrange(len(content))
            content[at] = trial.random.randrange(256)
        if trial.random.random() < 0.3:
            del content[trial.random.randrange(len(content)) :]
        path.write_bytes(bytes(content))
        _survives(path)


@pytest.mark.attack(most=2)
def test_claims_and_code(trial: Trial) -> None:
    """Claim terabytes, pack zeros a thousand times over, and hide code in arrays."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776, 4), }\n"
    array = trial.folder / "x.npy"
    array.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    marker = trial.folder / "marker"
    np.save(trial.folder / "code.npy", np.array([[Code(marker)]], dtype=object), allow_pickle=True)
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((2**15, 2**10), np.float32))
    with zipfile.ZipFile(trial.folder / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("features.npy", buffer.getvalue())
    for name in ("x.npy", "code.npy", "bomb.npz"):
        with pytest.raises(InputError, match=name):
            read_features(trial.folder / name)
    assert not marker.exists()
