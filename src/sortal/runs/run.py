"""A run: every image in a category, the categories, and the facts of how it was made."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from html import escape
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sortal.errors import InputError
from sortal.images.columns import GROUP_COLUMN, NO_COLUMNS, Columns
from sortal.images.decoding import Quarantined
from sortal.images.image_set import ImageSet, image_set
from sortal.images.moments import Moments
from sortal.images.review_states import SEEN, SETTLED, ReviewState, words_of
from sortal.runs.confidence import Confidence
from sortal.runs.facts import KChoice, Metrics, RunFacts
from sortal.system.csv_tables import Column, data_frame
from sortal.system.open_folder import CACHE, own_folder
from sortal.system.text import plural

# Files of a run's folder that other packages name; storage.py has the others.
MODEL, LOG, REPORT = "model", "log.jsonl", "report.html"  # MODEL.safetensors and MODEL.json
INITIAL = "initial.safetensors"  # the trained part of the backbone as it was before training
DECISIONS = "decisions.jsonl"  # of people who reviewed the run
LABEL_TO_CHECK = 0.3  # doubt above which people are asked to check a label
NOWHERE = -1  # category of images in the bin: they belong to none, as a person has said
LAST_ID = 2**62  # of a category: arrays hold what follows it, too

CategoryKind = Literal["known", "new"]
LABELLED, KNOWN, NEW, UNSURE, OTHER = STATUSES = ("labelled", "known", "new", "unsure", "other")
DOUBTFUL_STATUSES = (UNSURE, OTHER)  # of images that may not belong to their category


@dataclass(frozen=True, kw_only=True, eq=False)
class Assignments:
    """The category of every image, one row each."""

    files: tuple[str, ...]  # names as the user wrote them
    folders: NDArray[np.int64]  # (n,) index of the image's source
    contents: tuple[str, ...]  # digests
    labels: tuple[str | None, ...]  # names of classes; None is unlabelled
    truth: tuple[str | None, ...]  # names of classes where known; for evaluation only
    category_id: NDArray[np.int64]  # (n,) of a labelled image its class, else the most likely; NOWHERE in the bin
    status: NDArray[np.str_]  # (n,) one of STATUSES
    confidence: NDArray[np.float64]  # (n,) that the category is the right one; 1 for labelled images
    distance: NDArray[np.float64]  # (n,) to the centre of the own category
    next_category_id: NDArray[np.int64]  # (n,) the most likely of the others; −1 without another category
    next_distance: NDArray[np.float64]  # (n,) to its centre; NaN without another category
    apart: NDArray[np.float64]  # (n,) how much farther from similar images than is usual; 0 is usual
    reviewed: NDArray[np.int64]  # (n,) the ReviewState of each
    group: NDArray[np.int64]  # (n,) shared by images of the same moment, from 0

    @property
    def moments(self) -> int:
        """The number of images if those of the same moment count once."""
        return len(np.unique(self.group))

    @property
    def counted_once(self) -> str:
        """What images that count once are called: those of a moment, or of a group where the user has given any."""
        return "moment" if self.columns.get(GROUP_COLUMN) is None else GROUP_COLUMN

    doubt: NDArray[np.float64]  # (n,) that the label is wrong, by the labels of similar images; 0 without a label
    suggested_id: NDArray[np.int64]  # (n,) the category that these have; −1 where none is suggested
    columns: Columns = NO_COLUMNS  # what else the user's table says of the images

    def together(self, *, groups: bool = True) -> Moments:
        """Return which images belong together: copies, those of the same moment, and those of given `groups`."""
        copies = Moments.grouped(np.unique(np.array(self.contents), return_inverse=True)[1])
        found = copies.joined(Moments.grouped(self.group))
        return found.joined(Moments.grouped(self.columns.groups(len(self)))) if groups else found

    @property
    def seen(self) -> NDArray[np.bool_]:
        """The mask (n,) of images whose category a person has decided after seeing them."""
        return np.isin(self.reviewed, SEEN)

    @property
    def settled(self) -> NDArray[np.bool_]:
        """The mask (n,) of images whose category a person has decided, seen or unseen."""
        return np.isin(self.reviewed, SETTLED)

    @property
    def binned(self) -> NDArray[np.bool_]:
        """The mask (n,) of images that belong to no category, as a person has said."""
        return np.equal(self.reviewed, ReviewState.BINNED)

    @property
    def labels_to_check(self) -> NDArray[np.int64]:
        """The rows whose labels a person should check, the most doubtful first."""
        rows = np.flatnonzero(self.doubt > LABEL_TO_CHECK)
        return rows[np.argsort(-self.doubt[rows], kind="stable")]

    def __len__(self) -> int:
        return len(self.files)

    def __repr__(self) -> str:
        used = len(np.unique(self.category_id[~self.binned]))
        return f"<Assignments: {plural(len(self), 'image')} in {plural(used, 'category', 'categories')}>"

    def select(self, rows: NDArray[np.bool_]) -> "Assignments":
        """Return the rows of a mask (n,)."""
        return self.take(np.flatnonzero(rows))

    def take(self, order: NDArray[np.int64]) -> "Assignments":
        """Return the rows in this order."""
        rows = order.tolist()
        columns: dict[str, Any] = {
            name: column[order] if isinstance(column, np.ndarray) else tuple(column[row] for row in rows)
            for name, column in vars(self).items()
            if name != "columns"
        }
        return Assignments(**columns, columns=self.columns.take(rows))

    def joined(self, other: "Assignments") -> "Assignments":
        """Return these rows followed by the others, whose groups are numbered on."""
        other = replace(other, group=other.group + self.group.max(initial=-1) + 1)
        columns: dict[str, Any] = {
            name: np.concatenate([column, more]) if isinstance(column, np.ndarray) else column + more
            for (name, column), more in zip(vars(self).items(), vars(other).values(), strict=True)
            if name != "columns"
        }
        return Assignments(**columns, columns=self.columns.followed(len(self), other.columns, len(other)))


@dataclass(frozen=True, kw_only=True)
class Category:
    """A known class, or one that was found. It is identified by its id, which is never reused."""

    id: int
    name: str
    kind: CategoryKind
    former: tuple[str, ...] = ()  # other names of its class, in labels that were given before it was renamed or merged
    made: bool = False  # whether a person has named, merged, split or kept it: a statement about all its images
    kept_apart: tuple[int, ...] = ()  # ids of categories that a person has said it is not to be merged with
    weight: int = 0  # images that its centre is the mean of
    size: int = 0  # images of every status
    labelled: int = 0
    unsure: int = 0
    other: int = 0
    cohesion: float | None = None  # 1: its images are all alike; 0: as varied as all images; None without images
    nearest_known_id: int | None = None  # id of the known category whose centre is nearest, itself excepted
    typical: tuple[str, ...] = ()  # files, the most typical first: sure ones nearest to the centre, then the others


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Added images that are far from every category: perhaps a category of their own."""

    id: int
    files: tuple[str, ...]  # the most typical first
    folders: tuple[int, ...]  # index of each file's source: two may have a file of the same name
    nearest_id: int  # of the category whose centre is nearest


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """The result of sorting images, and the folder it is saved in.

    `folder`: where it is saved.
    `facts`: how it was made: settings, images, versions, hashes, timings, notes.
    `assignments`: the category of every image, with status and confidence, one row each.
    `categories`: one record each, with id, name, kind (known or new), size and typical images.
    `k`: a record of how many categories there are, `run.k.k`, and how that was chosen.
    `confidence`: how confidence is computed and calibrated.
    `metrics`: accuracy and more on unlabelled images; None where no true class is known.
    `features`: (n, d), a row of length 1 per image.
    `centres`: (k, d), a row per category.
    `quarantine`: images that could not be read; they are in no other table.
    `candidates`: groups of added images that may be categories of their own.
    `head`: (k, d + 1), weights and biases of a classifier, where one was trained.
    `rejected`: contents of images, and ids of categories that they do not belong to.
    `decisions`: lines of the journal that this state takes into account.

    Row j of the centres, of the head and of the confidence's arrays belongs to `categories[j]`.

    >>> run = sortal.load_run("photos-run")  # doctest: +SKIP
    >>> [category.name for category in run.categories if category.kind == "new"]  # doctest: +SKIP
    ['new 1', 'new 2']
    >>> run.to_pandas().query("status == 'unsure'").file_name  # doctest: +SKIP
    """

    folder: Path
    facts: RunFacts
    assignments: Assignments
    categories: tuple[Category, ...]
    k: KChoice
    confidence: Confidence
    metrics: Metrics | None
    features: NDArray[np.float32]
    centres: NDArray[np.float32]
    quarantine: tuple[Quarantined, ...]
    candidates: tuple[Candidate, ...] = ()
    head: NDArray[np.float32] | None = None
    rejected: frozenset[tuple[str, int]] = frozenset()
    decisions: int = 0

    def __post_init__(self) -> None:
        (k, d), a, c = self.centres.shape, self.assignments, self.confidence
        sizes = {category.id: category.size for category in self.categories}
        own = {j: n for j, n in sizes.items() if n}
        following = {*a.next_category_id.tolist(), *a.suggested_id.tolist()}
        rules = (
            (len(sizes) == len(self.categories) == k, "every category must have an id of its own and a centre",
             "categories.csv, centres.npy"),
            (max(sizes, default=-1) < self.facts.next_id <= LAST_ID, "the next id must be above that of every category",
             "run.json, categories.csv"),
            (sizes_of(a.category_id[~a.binned]) == own, "the sizes of categories must be those of the assignments",
             "categories.csv, assignments.csv"),
            ((a.category_id[a.binned] == NOWHERE).all(), "images in the bin must be in no category",
             "assignments.csv"),
            ({-1, *sizes} >= following, "every next or suggested category must exist",
             "assignments.csv, categories.csv"),
            (self.features.shape == (len(a), d), "every image must have features as long as the centres",
             "assignments.csv, features.npy, centres.npy"),
            (c.suits(k), "every category must have a usual distance",
             "categories.csv, confidence.json"),
            (self.head is None or self.head.shape == (k, d + 1), "a classifier must have a row for each category",
             "head.npy, categories.csv"),
        )  # fmt: skip
        for holds, rule, files in rules:
            if not holds:
                raise ValueError(f"{rule} ({files})")

    @property
    def report(self) -> Path:
        return self.folder / REPORT

    @property
    def cache(self) -> Path:
        """The folder of the stages' results."""
        return own_folder(self.folder) / CACHE

    @property
    def names(self) -> dict[int, str]:
        """The name of each category, by id."""
        return {category.id: category.name for category in self.categories}

    def paths(self) -> list[str]:
        """Return the path of each image."""
        if any(source.folder is None for source in self.facts.images):
            raise InputError("The images of this run were given as an array, so they have no files.")
        rows = zip(self.assignments.files, self.assignments.folders.tolist(), strict=True)
        return [self.facts.images[at].path_of(file) for file, at in rows]

    def images(self) -> ImageSet:
        """Return the images as they were read, without the unreadable ones."""
        a = self.assignments
        return image_set(a.files, paths=self.paths(), labels=a.labels, truth=a.truth, columns=a.columns)

    def part(self, rows: NDArray[np.int64]) -> "Run":
        """Return a run of only the images in `rows`, in this order and in the same categories."""
        a = self.assignments.take(rows)
        sizes = sizes_of(a.category_id)
        categories = tuple(replace(each, size=sizes.get(each.id, 0)) for each in self.categories)
        return replace(self, assignments=a, categories=categories, features=np.asarray(self.features[rows]))

    def counts(self) -> dict[str, int]:
        """Count the images of each status, without those in the bin."""
        a = self.assignments
        return {status: int(((a.status == status) & ~a.binned).sum()) for status in STATUSES}

    def to_json(self) -> dict[str, Any]:
        """Summarise the result; the tables are in the folder."""
        return {
            "folder": str(self.folder),
            "report": str(self.report),
            "images": len(self.assignments),
            "moments": self.assignments.moments,
            "status": self.counts(),
            "binned": int(self.assignments.binned.sum()),
            "k": asdict(self.k),
            "metrics": None if self.metrics is None else asdict(self.metrics),
            "categories": [asdict(category) for category in self.categories],
            "candidates": [asdict(candidate) for candidate in self.candidates],
            "quarantine": [asdict(bad) for bad in self.quarantine],
            "notes": list(self.facts.notes),
        }

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame with one row per image, as in assignments.csv, and the columns of your table."""
        own = {column.name: column.array() for column in self.assignments.columns.each}  # a group that was given, too
        return data_frame([*(dict(columns_of(self.assignments, self.names)) | own).items()])

    def __repr__(self) -> str:
        new = sum(category.kind == NEW for category in self.categories)
        counts = ", ".join(f"{count:,} {status}" for status, count in self.counts().items())
        if binned := int(self.assignments.binned.sum()):
            counts += f", {binned:,} in the bin"
        return (
            f"<Run: {plural(len(self.assignments), 'image')} ({counts}) in "
            f"{plural(len(self.categories), 'category', 'categories')}, "
            f"{new:,} of them new; {str(self.report)!r}>"
        )

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(each.name)}</td><td>{each.kind}</td><td>{each.size:,}</td></tr>"
            for each in self.categories
        )
        html = f"<p><i>{escape(repr(self)[1:-1])}</i></p><table>{rows}</table>"
        return html.encode("utf-8", "backslashreplace").decode("utf-8")


def sizes_of(category: NDArray[np.int64]) -> dict[int, int]:
    """Return the number of images of each category that has any, by id; `category` (n,) has the ids."""
    ids, counts = np.unique(category, return_counts=True)
    return dict(zip(ids.tolist(), counts.tolist(), strict=True))


def columns_of(a: Assignments, names: Mapping[int, str]) -> list[tuple[str, Column]]:
    """Return the columns of assignments.csv; `names` are those of the categories, by id."""
    has_truth = any(truth is not None for truth in a.truth)
    return [
        ("file_name", a.files),
        ("label", a.labels),
        *([("truth", a.truth)] if has_truth else []),
        ("category", [names.get(i) for i in a.category_id.tolist()]),
        ("category_id", a.category_id),
        ("status", a.status.tolist()),
        ("confidence", a.confidence),
        ("distance", a.distance),
        ("next_category", [names.get(i) for i in a.next_category_id.tolist()]),
        ("next_category_id", a.next_category_id),
        ("next_distance", a.next_distance),
        ("apart", a.apart),
        ("reviewed", words_of(a.reviewed)),
        ("group", a.group),
        ("doubt", a.doubt),
        ("suggested", [names.get(i) for i in a.suggested_id.tolist()]),
        ("suggested_id", a.suggested_id),
        ("folder", a.folders),
        ("content", a.contents),
    ]
