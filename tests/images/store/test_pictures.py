"""Pictures of feature vectors: those that can be read, and a neutral tile for all others."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from sortal.images.decoding import DIGEST_SIZE
from sortal.images.store.packing import NEUTRAL_TILE, Settings, store_pictures
from sortal.images.store.vector_rows import digests_of
from sortal.images.vector_sets import features_in_memory
from sortal.system.progress import Runtime


def test_rows_without_a_readable_picture_show_a_tile_and_are_sorted_nevertheless(tmp_path: Path) -> None:
    Image.fromarray(np.full((20, 30, 3), 200, np.uint8)).save(tmp_path / "a.png")
    (tmp_path / "damaged.png").write_bytes(b"no picture")
    files = [str(tmp_path / name) for name in ("a.png", "damaged.png", "missing.png")]
    images = features_in_memory(np.array([[1.0, 2.0], [3.0, 1.0], [1.0, 2.0]]), files=files)
    assert images.features is not None
    contents = digests_of(images.features)
    settings, quiet = Settings(shorter_side=16), Runtime(workers=1)
    store = store_pictures(images, contents, tmp_path / "store", settings=settings, runtime=quiet)
    assert store.present.all()
    assert not store.quarantine
    assert store.digests.tolist() == contents.tolist()
    assert (store.image(0) == 200).all()
    assert all((store.image(row) == NEUTRAL_TILE[0, 0]).all() for row in (1, 2))
    assert store.facts["width"].tolist() == [30, 0, 0]  # a tile is no picture that others could look like
    assert store.vectors is not None
    np.testing.assert_allclose(np.linalg.norm(store.vectors.rows, axis=1), 1, rtol=1e-6)
    some = store.select(np.array([False, True, True]))
    assert some.vectors is not None
    assert len(some.vectors) == len(some) == 2


def test_pictures_of_a_saved_run_need_no_vectors(tmp_path: Path) -> None:
    images = replace(features_in_memory(np.eye(2)), features=None)
    contents = np.array(["a", "b"], dtype=f"S{DIGEST_SIZE}")
    store = store_pictures(images, contents, tmp_path, settings=Settings(shorter_side=16), runtime=Runtime(workers=1))
    assert store.vectors is None
    assert store.digests.tolist() == [b"a", b"b"]
