"""Pictures of feature vectors, where there are any: the vectors are sorted, the pictures only looked at."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sortal.images.decoding import FACTS
from sortal.images.image_set import ImageSet, image_set
from sortal.images.store.index import Index
from sortal.images.store.packing import Settings, Team, pack
from sortal.images.store.pixel_store import PixelStore, open_store
from sortal.images.store.vector_rows import Vectors, unit_rows
from sortal.system.progress import Runtime

NEUTRAL_TILE = np.full((48, 48, 3), 222, dtype=np.uint8)  # in place of a picture


def store_pictures(
    images: ImageSet,
    contents: NDArray[np.bytes_],
    folder: Path,
    *,
    settings: Settings,
    team: Team | None = None,
    runtime: Runtime = Runtime(),
) -> PixelStore:
    """Store the pictures of feature vectors with these contents (n,); a row without one shows a neutral tile.

    So does one whose picture cannot be read. The store has the vectors, too, if the images do.
    """
    tile = pack(image_set(["tile"], labels=[None], pixels=NEUTRAL_TILE[None]), folder, settings=settings, team=team)
    there = np.array([bool(path) and os.path.isfile(path) for path in images.paths], dtype=bool)
    shown = np.full(len(images), tile.digests[0])
    if there.any():
        found = pack(images.select(there), folder, settings=settings, team=team, runtime=runtime)
        shown[there] = np.where(found.present, found.digests, tile.digests[0])
    store = open_store(Index(folder / settings.key), [each.decode() for each in shown.tolist()])
    facts = np.where(shown == tile.digests[0], np.zeros(1, FACTS), store.facts)
    vectors = None if images.features is None else Vectors(unit_rows(images.features))
    return replace(store, digests=contents, facts=facts, vectors=vectors)
