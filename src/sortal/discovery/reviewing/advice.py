"""Advice for a review that takes clustering or another model: parts of a category, a refit, names."""

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sortal.errors import InputError, NoSpaceError
from sortal.images.store.pixel_store import PixelStore
from sortal.reviews.actions import Refit
from sortal.reviews.history import Review
from sortal.runs.confidence import Features, Ints
from sortal.runs.run import Run
from sortal.system import cache
from sortal.system.progress import Runtime
from sortal.system.regular_files import read_regular
from sortal.web.report.highlights import Comparison, compare_categories

if TYPE_CHECKING:
    from sortal.learning.image_text import ImageText

NAMES_SUGGESTED = 5  # names
MOST_EMBEDDED = 5000  # embeddings of pictures
LONGEST_WORD = 200  # characters of a name
MOST_WORDS = 100_000  # names
WORDS_AT_ONCE = 256  # names between two reports of progress
PICTURES_AT_ONCE = 64  # that are embedded at once
SAVED_AFTER = 4096  # pictures, so that little is lost when a review ends
Embeddings = NDArray[np.float32]


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
                threading.Thread(target=self._look).start()  # not a daemon, which could abort the process at its end
            [wanted] = self._model.embed_words([text])
        parts = [*self._parts]
        scores = np.concatenate([np.empty(0, np.float32), *(part @ wanted for part in parts)])
        return self._order[np.argsort(-scores, kind="stable")]

    def _look(self) -> None:
        """Embed the pictures that have not been looked at, until the process ends."""
        done = saved = sum(map(len, self._parts))
        while done < len(self._order) and threading.main_thread().is_alive():
            rows = self._order[done : done + PICTURES_AT_ONCE].tolist()
            self._parts.append(self._model.embed_images([self._store.image(row) for row in rows]))
            done += len(rows)
            if done - saved >= SAVED_AFTER or done == len(self._order):
                saved = done
                with suppress(OSError, NoSpaceError):  # the search does without
                    cache.save_arrays(self._place, {"pictures": np.concatenate(self._parts)})


@dataclass(eq=False)
class Advice:
    """Makes proposals by clustering or by an image-text model; heavy libraries are imported when first needed."""

    run: Run
    store: PixelStore
    device: str  # to cluster on
    words: Sequence[str] = ()
    model: "ImageText | None" = None
    embedded: Embeddings | None = None  # (m, d) of the words
    sight: Sight | None = None
    _pictures: dict[int, Embeddings] = field(default_factory=dict)  # of images by row

    def parts(self, rows: Ints, anchored: Ints, count: int) -> list[Ints]:
        """Divide rows into parts by semi-supervised k-means; those that are `anchored` stay in the first."""
        from sortal.discovery.grouping import shared_kmeans
        from sortal.system.distributed import alone

        labels = np.where(np.isin(rows, anchored), 0, -1)
        if int((labels < 0).sum()) + int((labels == 0).any()) < count:
            return []
        x = np.array(self.run.features[rows])
        if len(np.unique(x, axis=0)) < count:
            return []
        seed = self.run.facts.settings.seed
        given = labels if (labels == 0).any() else None
        found = shared_kmeans.fit(x, given, count, n_init=10, seed=seed, processes=alone(self.device)).labels
        parts = [rows[found == number] for number in range(count)]
        if not all(map(len, parts)):
            return []
        first, *others = parts if (labels == 0).any() else sorted(parts, key=len, reverse=True)
        return [first, *sorted(others, key=len, reverse=True)]

    def refit(self, review: Review) -> Refit:
        """Cluster again, with the decisions as constraints."""
        from sortal.discovery.reviewing.refitting import refit
        from sortal.system.distributed import alone

        return refit(review, alone(self.device))

    def names(self, rows: Ints, others: Sequence[Ints]) -> list[str]:
        """Suggest the words that describe these images best; `others` are typical images of all categories."""
        if self.model is None or self.embedded is None:
            return []
        from sortal.learning.image_text import suggest

        means = np.concatenate([self._embed(each[:1]) for each in others]) if len(others) > 1 else None
        return suggest(self._embed(rows), self.embedded, self.words, NAMES_SUGGESTED, others=means)

    @property
    def sees(self) -> bool:
        """Whether images can be found by what is seen in them."""
        return self.sight is not None

    def seen(self, text: str) -> Ints:
        """Return the rows that have been looked at so far, those that a text describes best first."""
        assert self.sight is not None
        return self.sight.find(text)

    def _embed(self, rows: Ints) -> Embeddings:
        assert self.model is not None
        new = [row for row in rows.tolist() if row not in self._pictures]
        if new:
            if len(self._pictures) > MOST_EMBEDDED:
                self._pictures = {row: self._pictures[row] for row in rows.tolist() if row in self._pictures}
            for row, found in zip(new, self.model.embed_images([self.store.image(row) for row in new]), strict=True):
                self._pictures[row] = found[None]
        return np.concatenate([self._pictures[row] for row in rows.tolist()])


def compare(run: Run, store: PixelStore, seed: int, device: str) -> Comparison:
    """Find the categories of a run that may be one, and those that may be two."""

    def advisor(part: Run) -> Advice:
        return Advice(run=part, store=store, device=device)

    return compare_categories(run, store.heights > 0, advisor, seed=seed)


def advise(run: Run, store: PixelStore, *, words: Path | None, text_model: Path | None, runtime: Runtime) -> Advice:
    """Read the names a person has given; with a local image-text model, embed them, and let it see pictures."""
    names = read_words(words) if words is not None else ()
    if text_model is None:
        return Advice(run=run, store=store, device=runtime.device, words=names)
    from sortal.learning.image_text import load_image_text

    model = load_image_text(text_model, device=runtime.device)
    there = [content for content, height in zip(run.assignments.contents, store.heights, strict=True) if height]
    sight = Sight(model, store, _place(run, "seen", text_model, there), seed=run.facts.settings.seed)
    embedded = _embedded(model, names, _place(run, "words", text_model, names), runtime) if names else None
    device = runtime.device
    return Advice(run=run, store=store, device=device, words=names, model=model, embedded=embedded, sight=sight)


def read_words(path: Path) -> tuple[str, ...]:
    """Read a file with one name per line."""
    try:
        lines = read_regular(path).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(f"The names in {str(path)!r} cannot be read: {why}.") from error
    names = tuple(dict.fromkeys(line.strip() for line in lines if line.strip()))
    if not names or len(names) > MOST_WORDS:
        raise InputError(f"A file of names must have 1 to {MOST_WORDS:,} of them, one per line, got {len(names):,}.")
    for name in names:
        if len(name) > LONGEST_WORD or not name.isprintable():
            raise InputError(
                f"A name must have 1 to {LONGEST_WORD} printable characters, got {name[:40]!r} in {str(path)!r}."
            )
    return names


def _place(run: Run, what: str, model: Path, items: Sequence[str]) -> Path:
    """Return where embeddings of items by a model are cached."""
    files = sorted((each.name, each.stat().st_size, each.stat().st_mtime_ns) for each in model.iterdir())
    return run.cache / what / f"{cache.key(what, str(model.resolve()), files, items)}.safetensors"


def _embedded(model: "ImageText", names: Sequence[str], path: Path, runtime: Runtime) -> Embeddings:
    """Embed names, or read what was embedded before: a large model takes minutes for a long list."""
    with suppress(ValueError, KeyError):
        return (cache.load_arrays(path) or {})["words"]
    parts = []
    for start in range(0, len(names), WORDS_AT_ONCE):
        runtime.progress("Reading the names", start, len(names))
        parts.append(model.embed_words(names[start : start + WORDS_AT_ONCE]))
    found = np.concatenate(parts)
    cache.save_arrays(path, {"words": found})
    return found
