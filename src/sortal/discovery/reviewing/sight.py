"""Images by what is seen in them: embeddings of all pictures, made in the background, compared with those of texts."""

import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sortal.errors import NoSpaceError
from sortal.images.store.pixel_store import PixelStore
from sortal.runs.confidence import Features, Ints
from sortal.system import cache

if TYPE_CHECKING:
    from sortal.learning.image_text import ImageText

PICTURES_AT_ONCE = 64  # that are embedded at once
SAVED_AFTER = 4096  # pictures, so that little is lost when a review ends


class Sight:
    """Finds pictures that a text describes among those that have been looked at; the others follow in random order."""

    def __init__(self, model: "ImageText", store: PixelStore, place: Path, *, seed: int) -> None:
        self._model, self._store, self._place = model, store, place
        self._order = np.random.default_rng(seed).permutation(np.flatnonzero(store.heights > 0))
        self._lock = threading.Lock()  # of the model, whose mask depends on the text
        self._started = False
        self._parts: list[Features] = []  # embeddings (m, d) of the first of this order
        with suppress(ValueError, KeyError):
            if saved := cache.load_arrays(place):
                self._parts = [saved["pictures"][: len(self._order)]]

    def find(self, text: str) -> Ints:
        """Return the rows that have been looked at, those that the text describes best first; begin to look at all."""
        with self._lock:
            if not self._started:
                self._started = True
                threading.Thread(target=self._look, daemon=True).start()
            [wanted] = self._model.embed_words([text])
        parts = [*self._parts]
        scores = np.concatenate([np.empty(0, np.float32), *(part @ wanted for part in parts)])
        return self._order[np.argsort(-scores, kind="stable")]

    def _look(self) -> None:
        """Embed the pictures that have not been looked at."""
        done = saved = sum(map(len, self._parts))
        while done < len(self._order):
            rows = self._order[done : done + PICTURES_AT_ONCE].tolist()
            self._parts.append(self._model.embed_images([self._store.image(row) for row in rows]))
            done += len(rows)
            if done - saved >= SAVED_AFTER or done == len(self._order):
                saved = done
                with suppress(OSError, NoSpaceError):  # the search does without
                    cache.save_arrays(self._place, {"pictures": np.concatenate(self._parts)})
