"""The images that a run does not learn on: read once, passed through the network and sorted, without storing pixels."""

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

import numpy as np
import torch
from numpy.typing import NDArray

from sortal.config import Precision, Rounds
from sortal.discovery.grouping.bursts import groups_of_one_class, what_groups_hold
from sortal.discovery.grouping.outliers import apartness
from sortal.discovery.job import Job
from sortal.discovery.results import features_of, named_at_source, sources_of, with_images
from sortal.discovery.stages import SortingResult, Stages
from sortal.errors import Reason, listing
from sortal.images.check import contradictory
from sortal.images.decoding import DIGEST_SIZE, Quarantined
from sortal.images.image_set import ImageSet
from sortal.images.moments import Moments
from sortal.images.review_states import ReviewState
from sortal.images.store.crops import CropReader
from sortal.images.store.index import Index
from sortal.images.store.packing import Settings, look_up, pack, store_pictures
from sortal.images.store.pixel_store import PixelStore, open_store
from sortal.images.store.vector_rows import digests_of
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.features import FeatureCache, normalised
from sortal.learning.frozen import CROPS_AT_ONCE, FrozenEncoder, in_streams, streams_of, views_at_once
from sortal.reviews.carrying import EarlierReview
from sortal.runs.building import assess, contents_of, unassigned
from sortal.runs.categories import ids_of, rows_of
from sortal.runs.confidence import Features
from sortal.runs.run import KNOWN, NOWHERE, Assignments, Run
from sortal.system.device import choose_compute
from sortal.system.mapped_arrays import scratch
from sortal.system.open_folder import make_folder
from sortal.system.progress import Runtime
from sortal.system.text import plural
from sortal.system.workers import JsonObject
from sortal.web.report import report, summary

COMMIT_EVERY = 10.0  # seconds between files of features; a kill loses at most what was read since
READING = "Sorting the other images"


def sort_rest(
    job: Job,
    chosen: NDArray[np.bool_],
    found: SortingResult,
    readable: NDArray[np.bool_],
    backbone: Backbone,
    stages: Stages,
    runtime: Runtime,
) -> SortingResult:
    """Add the images that were not `chosen` (n,) to a run of those that were; `readable` is a mask of the latter.

    The result has all images of the job in their order. Categories, centres and the images that were learned on stay as
    they are, up to rounding: figures are computed for all images together.
    """
    images, run = job.images.select(~chosen), found.run
    read = _read(job, images, backbone, runtime)
    rows = np.concatenate([np.flatnonzero(chosen)[readable], np.flatnonzero(~chosen)[read.readable]])
    images, learned = _without_contradictions(job, rows, run, images.select(read.readable), read, stages)
    order = np.argsort(rows)
    place = np.argsort(order)
    everything = job.images.select(np.isin(np.arange(len(job.images)), rows))
    hold = run.facts.groups_hold or what_groups_hold(everything, job.settings.groups)
    given = groups_of_one_class(everything, hold or "one")
    if not isinstance(job.recipe.losses, Rounds):
        given = Moments.single(len(everything))
    read = _with_means(run, read, given.of[place])
    new, lost = _assigned(job, run, learned, images, read)
    if lost:
        stages.note(
            f"No labelled image of these classes was learned on, so their images count as unlabelled: {listing(lost)}."
        )
    x = scratch((len(rows), run.features.shape[1]), job.cache)
    x[place[: len(run.features)]], x[place[len(run.features) :]] = run.features, read.x
    assignments = _together(learned.joined(new), len(learned), given.of[place])
    if isinstance(job.recipe.losses, Rounds):
        assignments = _with_groups(_with_copies(assignments).take(order), everything, given)
    else:
        assignments = assignments.take(order)
    at = {file: row for row, file in enumerate(job.images.files)}
    whole = with_images(
        run,
        assignments,
        x,
        facts=replace(run.facts, images=sources_of(job, everything), groups_hold=hold),
        quarantine=tuple(sorted((*run.quarantine, *read.quarantine), key=lambda bad: at[bad.file])),
    )
    if read.quarantine:
        stages.note(f"{plural(len(read.quarantine), 'file')} could not be read and will be left out.")
    rest = "category of the other is" if len(new) == 1 else f"categories of the other {len(new):,} are"
    stages.note(f"Learned on {plural(len(run.features), 'image')}; the {rest} predicted.")
    whole = stages.recorded_in(whole)
    return replace(found, run=whole, store=pixels_of(whole, everything, runtime=runtime))


def pixels_of(run: Run, images: ImageSet, *, runtime: Runtime = Runtime()) -> PixelStore:
    """Return the pixels of a run's images; after learning on a sample, only of that and of what the report shows.

    They are those of the contents that were sorted, whatever the files are now.
    """
    facts, folder = run.facts, run.cache / "pixels"
    settings = Settings.of(facts.backbone, facts.settings.max_pixels)
    contents, shown = np.array(run.assignments.contents, dtype=f"S{DIGEST_SIZE}"), np.ones(len(images), dtype=bool)
    if run.facts.settings.learn_on is not None:
        detail = next(each for each in report.DETAILS if len(run.categories) <= each.most)
        cards = summary.cards(run, typical=detail.typical, doubtful=detail.doubtful)
        rows = [row for card in cards for row in (*card.typical, *card.doubtful)]
        shown = np.isin(np.arange(len(images)), [*rows, *summary.farthest(run)])
    if facts.features is not None:
        paths = tuple(path if at else "" for path, at in zip(images.paths, shown.tolist(), strict=True))
        return store_pictures(replace(images, paths=paths), contents, folder, settings=settings, runtime=runtime)
    now = pack(images.select(shown), folder, settings=settings, runtime=runtime)
    differ = np.flatnonzero(shown)[now.digests != contents[shown]].tolist()
    if differ:
        which = listing([images.files[row] for row in differ])
        runtime.note(
            f"{plural(len(differ), 'file')} changed since the run was made, or cannot be read: {which}. "
            "The report shows what was sorted, as far as its pixels are stored."
        )
    index = Index(folder / settings.key)
    return open_store(index, [each if each in index.stored else "" for each in run.assignments.contents])


@dataclass(frozen=True, kw_only=True, eq=False)
class StreamedRows:
    """Images that were read: which of them could be, and the contents and features of those."""

    readable: NDArray[np.bool_]  # (n,)
    contents: NDArray[np.bytes_]  # (readable,)
    x: Features  # (readable, d), rows of length 1
    quarantine: tuple[Quarantined, ...]


def _read(job: Job, images: ImageSet, backbone: Backbone, runtime: Runtime) -> StreamedRows:
    """Compute the features of images, or take them from the cache."""
    if images.features is not None:
        return _given(job, images, backbone, runtime)
    settings = Settings.of(backbone.spec, job.settings.max_pixels)
    return read_once(images, backbone.to(job.device), job.cache, settings, job.recipe.training.precision, runtime)


def read_once(
    images: ImageSet, backbone: Backbone, cache: Path, settings: Settings, precision: Precision, runtime: Runtime
) -> StreamedRows:
    """Compute the features of images without storing their pixels; what is in the cache is not computed again."""
    compute = choose_compute(backbone.device, precision=precision, compiled=False, worthwhile=False)
    encoder = FrozenEncoder(backbone, compute, whole=True)
    features = FeatureCache(cache / "features", encoder, settings.key)
    stream = _Stream(encoder, features, Index(cache / "streamed" / settings.key))
    contents = stream.run(images, settings, runtime)
    failures = [stream.failures.get(row) or stream.failed.get(each) for row, each in enumerate(contents)]
    readable = np.array([failure is None for failure in failures], dtype=bool)
    digests = np.array(contents, dtype=f"S{DIGEST_SIZE}")[readable]
    x = normalised(features.load(digests, scratch((len(digests), backbone.spec.width), cache)))
    bad = [Quarantined(file, *why) for file, why in zip(images.files, failures, strict=True) if why is not None]
    return StreamedRows(readable=readable, contents=digests, x=x, quarantine=tuple(bad))


def _given(job: Job, images: ImageSet, backbone: Backbone, runtime: Runtime) -> StreamedRows:
    """Apply the head to feature vectors."""
    assert images.features is not None
    n, contents = len(images), digests_of(images.features)
    bare = replace(images, paths=("",) * n)  # no picture is needed
    settings = Settings.of(backbone.spec)
    store = store_pictures(bare, contents, job.cache / "pixels", settings=settings, runtime=runtime)
    x = features_of(job, backbone, store, runtime)
    return StreamedRows(readable=np.ones(n, dtype=bool), contents=contents, x=x, quarantine=())


class _Stream:
    """Images on their way through the network; what was computed is in the cache before the index mentions it."""

    def __init__(self, encoder: FrozenEncoder, features: FeatureCache, index: Index) -> None:
        self.encoder, self.features, self.index = encoder, features, index
        self.failures: dict[int, tuple[Reason, str]] = {}  # by row
        self.failed: dict[str, tuple[Reason, str]] = dict(index.unreadable)  # by content
        self._have = features.contents()
        self._size = encoder.backbone.spec.image_size
        self._rows = views_at_once(encoder.backbone, CROPS_AT_ONCE)
        self._streams = streams_of(encoder.backbone)
        self._batch = np.empty((self._streams * self._rows, self._size, self._size, 3), np.uint8)
        self._waiting: list[str] = []  # contents of the crops in the batch
        self._computed: list[tuple[list[str], Features]] = []  # since the last commit
        self._records: list[JsonObject] = []

    def run(self, images: ImageSet, settings: Settings, runtime: Runtime) -> list[str]:
        """Read the images that are not in the cache, and return the content of each; "" if it could not be read."""
        contents, items, stamps = look_up(images, self.index, self._knows)
        runtime.progress(READING, len(images) - len(items), len(images))
        if not items:
            return contents
        reader = CropReader(self._size, settings, 2 * len(self._batch), self._knows, runtime.workers)
        committed = monotonic()
        with closing(reader.read(items, self.index.home)) as crops:
            for done, crop in enumerate(crops, start=len(images) - len(items) + 1):
                contents[crop.row] = crop.digest
                if crop.pixels is not None:
                    self._batch[len(self._waiting)] = crop.pixels
                    self._waiting.append(crop.digest)
                if len(self._waiting) == len(self._batch):
                    self._encode()
                if crop.failure is not None:
                    self.failures[crop.row] = crop.failure
                    self.failed.setdefault(crop.digest, crop.failure)
                if crop.row in stamps and (crop.failure is None or crop.lasting):
                    why = {"unreadable": [*crop.failure]} if crop.failure is not None else {}
                    file = {"path": os.path.abspath(images.paths[crop.row]), "stamp": stamps[crop.row]}
                    self._records.append({**file, "digest": crop.digest, **why})
                if monotonic() - committed > COMMIT_EVERY:
                    self._commit()
                    committed = monotonic()
                runtime.progress(READING, done, len(images))
        self._commit()
        return contents

    def _knows(self, content: str) -> bool:
        return content in self._have or content in self.failed

    def _encode(self) -> None:
        if not self._waiting:
            return
        device = self.encoder.backbone.device

        def encode(pixels: torch.Tensor) -> torch.Tensor:
            unflipped = torch.zeros(len(pixels), dtype=torch.bool, device=device)
            return self.encoder(pixels.to(device), unflipped).float().cpu()

        parts = torch.from_numpy(self._batch[: len(self._waiting)]).split(self._rows)
        rows = torch.cat([*in_streams(encode, parts, self._streams)]).numpy()
        self._computed.append((self._waiting, rows))
        self._waiting = []

    def _commit(self) -> None:
        """Write features, then the files that they are of."""
        self._encode()
        if self._computed:
            contents = [each for part, _ in self._computed for each in part]
            rows = np.concatenate([rows for _, rows in self._computed])
            self.features.add(np.array(contents, dtype=f"S{DIGEST_SIZE}"), rows)
            self._have.update(contents)
            self._computed = []
        make_folder(self.index.home)
        for record in self._records:
            self.index.add(record)
        self._records = []
        self.index.flush()


def _with_copies(a: Assignments) -> Assignments:
    """Return assignments in which copies are of the moment of the first of them, as where all images are learned on.

    Other images of a moment are found among those that were learned on only, whose pixels are stored.
    """
    _, first, copies = np.unique(np.array(a.contents), return_index=True, return_inverse=True)
    return replace(a, group=Moments.grouped(a.group[first][copies]).of)


def _with_means(run: Run, read: StreamedRows, groups: NDArray[np.int64]) -> StreamedRows:
    """Return what was read, in which images of one of the groups have the same features, as where all are learned on.

    `groups` (n,) are those of the images of the run, then of what was read. Features are those of an image that was
    learned on, or else the mean.
    """
    learned = len(run.features)
    moments = Moments.grouped(groups[learned:])
    several, there = moments.sizes[moments.of] > 1, np.isin(groups[learned:], groups[:learned])
    if not (several | there).any():
        return read
    found = read.x if read.x.flags.writeable else read.x.copy()
    of = Moments.grouped(moments.of[several])
    found[several] = of.of_images(of.means(found[several]))
    rows, places = np.unique(groups[:learned], return_index=True)
    found[there] = run.features[places[np.searchsorted(rows, groups[learned:][there])]]
    return replace(read, x=found)


def _together(a: Assignments, learned: int, groups: NDArray[np.int64]) -> Assignments:
    """Return assignments in which images of a group are in the category of a labelled one, or else one learned on.

    The first rows were `learned` on. What people have decided stays.
    """
    labelled = np.array([label is not None for label in a.labels], dtype=bool)
    category, first = a.category_id.copy(), dict[int, int]()
    for row in (*np.flatnonzero(labelled).tolist(), *range(learned)):
        if a.category_id[row] != NOWHERE:
            first.setdefault(int(groups[row]), int(a.category_id[row]))
    for row in np.flatnonzero(~labelled & ~a.settled & ~a.binned).tolist():
        category[row] = first.get(int(groups[row]), category[row])
    return replace(a, category_id=category)


def _with_groups(a: Assignments, images: ImageSet, given: Moments) -> Assignments:
    """Return assignments in which images of a given group of one class count once, as where all are learned on."""
    joined = Moments.grouped(a.group).joined(given).split_where(images.labels, given)
    return replace(a, group=joined.of)


def _without_contradictions(
    job: Job, rows: NDArray[np.int64], run: Run, images: ImageSet, read: StreamedRows, stages: Stages
) -> tuple[ImageSet, Assignments]:
    """Return the other images, and assignments of those that were learned on, without contradictory labels.

    `rows` (n,) are the numbers of the images of the run, then of the others, among those of the job.
    """
    learned = len(run.assignments)
    contents = np.array(run.assignments.contents, dtype=f"S{DIGEST_SIZE}")
    torn = contradictory(job.images.labels[rows], np.concatenate([contents, read.contents]))
    news = [group for group in torn if group[-1] >= learned]  # those within the sample are known
    if not news:
        return images, run.assignments
    decided = run.assignments.settled | run.assignments.binned
    inside = [row for group in news for row in group if row < learned and not decided[row]]
    files = (sorted(job.images.files[rows[row]] for row in group) for group in news)
    appear = plural(len(news), "image appears", "images appear")
    named = listing([f"{first} (also {', '.join(copies)})" for first, *copies in files])
    text = f"{appear} under two labels, which contradict each other and are ignored: {named}."
    if inside:
        text += f" {plural(len(inside), 'copy was', 'copies were')} learned on with one of the labels."
    stages.note(text)
    others = [row - learned for group in news for row in group if row >= learned]
    return images.without_labels(others), _predicted(run, inside)


def _predicted(run: Run, rows: Sequence[int]) -> Assignments:
    """Return the assignments of a run, of which some rows are predicted as if label and truth were unknown."""
    a, gone = run.assignments, {*rows}
    labels, truth = (
        tuple(None if row in gone else name for row, name in enumerate(column)) for column in (a.labels, a.truth)
    )
    blank = replace(a, labels=labels, truth=truth)
    new = assess(blank, run.features, run.categories, run.centres, run.confidence, run.head, reassign=True).category_id
    category = a.category_id.copy()
    category[[*rows]] = new[[*rows]]
    return replace(blank, category_id=category)


def _assigned(
    job: Job, run: Run, a: Assignments, images: ImageSet, read: StreamedRows
) -> tuple[Assignments, list[str]]:
    """Sort readable images into the categories of a run; also return classes of labels that it has no category for.

    `a` has those that were learned on. A labelled image, or one that a review has settled, is in its class; a copy of
    one that was learned on is where that is; any other where prediction puts it.
    """
    review = EarlierReview(job.earlier.reviewed, contents_of(read.contents))
    images, _ = review.labelled(images)
    known = {each.name: each.id for each in run.categories if each.kind == KNOWN}
    lost = [name for number, name in enumerate(images.classes) if name not in known and (images.labels == number).any()]
    gone = np.isin(images.labels, [images.classes.index(name) for name in lost])
    images = replace(images, labels=np.where(gone, -1, images.labels))
    blank = named_at_source(job, images, unassigned(images, read.contents))
    learned_from = Moments.grouped(run.assignments.group).means(run.features)
    blank = replace(blank, apart=apartness(read.x, job.processes, reference=learned_from))
    predicted = assess(blank, read.x, run.categories, run.centres, run.confidence, run.head, reassign=True).category_id
    own = rows_of(run.categories, predicted)
    own = review.weighed(own, images.unlabelled, run.categories, read.x, run.centres, run.confidence, run.head)
    own = review.kept_away(own, run.categories, read.x, run.centres)
    category = ids_of(run.categories, own)
    first = np.argsort([label is not None for label in a.labels], kind="stable").tolist()  # a label counts more
    learned = {a.contents[row]: int(a.category_id[row]) for row in first}
    for row, (content, label) in enumerate(zip(blank.contents, blank.labels, strict=True)):
        if label is not None:
            category[row] = known[label]
        elif content in learned:
            category[row] = learned[content]
    category[review.states == ReviewState.BINNED] = NOWHERE
    return replace(blank, category_id=category, reviewed=review.states), lost
