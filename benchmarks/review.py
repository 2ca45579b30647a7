"""How fast a run is reviewed: a simulated person, and several ways to ask.

    python benchmarks/review.py simulate RUN... --out results.jsonl
    python benchmarks/review.py table results.jsonl
    python benchmarks/review.py versus before.jsonl after.jsonl
    python benchmarks/review.py merges RUN... --factors 1.3 1.6
    python benchmarks/review.py likely RUN... --factors 1.3 1.6
    python benchmarks/review.py label RUN --policies ours --minutes 10 --out FOLDER

RUN is the folder of a run whose true classes are known. The person drives the HTTP interface of the review, judges only
images that were shown, and takes the time of the keystroke-level model: 0.28 s for a key, 0.2 for a click, 1.1 to
point, 0.4 to move a hand to the mouse, 1.35 to decide, and --looks seconds for each picture. With --misses 0.05 every
twentieth intruder is overlooked, every twentieth single image taken for one of another class, and every twentieth
question to merge or to split answered wrongly. Typing a name takes 9 keys and one decision, choosing a name that exists
4 keys.

Policies, all on the same run and features:
one       images in random order, each with a hotkey
morpho-P  MorphoCluster's protocol with pages of P images: look at the most typical page of each category; if it is one
          class, page through the nearest open images, doubling the step until the first bad page, then bisecting; pages
          that were skipped are accepted unseen. A page is bad if more than a tolerated share of it is; of 0, 0.05, 0.1
          and 0.2 the table takes, for each run, the fastest that has a precision of at least 0.95, in hindsight
ours      the queue of the review, with its audits

simulate writes a line per run, policy and look, with the number of settled and of right images over time. versus
compares two such files by sets of runs: until 95 % of the open images are right, and until nothing is left to do.
merges clusters the features of a run into more clusters than there are classes, and lets the person answer questions to
merge only, 2 × (k − true k) of them at most. likely counts how often categories that may be one are one, and those that
may be two are two, by how likely that was said to be, on runs as sorted and on such clusters. label reviews for some
minutes and writes the reviewed run to a folder, to be sorted again.
"""

import argparse
import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.reviews import Client, serving, session_of
from support.sample_run import sample_run

from sortal.clustering.kmeans import SemiSupervisedKMeans
from sortal.discovery.grouping.clusters import smooth
from sortal.discovery.reviewing.advice import Advice
from sortal.reviews.growing import ALLOWED
from sortal.reviews.history import Review
from sortal.reviews.loading import load_run, save_run
from sortal.reviews.questions import Guide
from sortal.reviews.session import Session
from sortal.runs.run import KNOWN, LABELLED, NEW, Run
from sortal.system.distributed import alone

KEY, CLICK, POINT, HAND, DECIDE = 0.28, 0.2, 1.1, 0.4, 1.35
ANSWER, MARK = DECIDE + KEY, POINT + CLICK
NEW_NAME, OLD_NAME = DECIDE + 9 * KEY, DECIDE + 4 * KEY
Policy = Callable[["Desk", float], None]
TOLERANCES = (0.0, 0.05, 0.1, 0.2)
ENOUGH = 0.95  # precision


@dataclass
class Person:
    """Knows the class of an image when it is shown, and takes time."""

    truth: np.ndarray
    look: float
    misses: float
    seed: int
    seconds: float = 0.0
    gestures: int = 0
    shown: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.draw = np.random.default_rng(self.seed)

    def see(self, rows: list[int]) -> list[str]:
        """Look at pictures."""
        self.seconds += self.look * len(rows)
        self.shown.update(rows)
        return [str(self.truth[row]) for row in rows]

    def wrong(self, rows: list[int], name: str) -> list[int]:
        """Return those of the rows just seen that are not of this class, as far as they are noticed."""
        bad = [row for row in rows if self.truth[row] != name]
        return [row for row in bad if not self.slips()]

    def slips(self) -> bool:
        """Return whether something is misread this time."""
        return bool(self.draw.random() < self.misses)

    def answer(self, marks: int = 0) -> None:
        """Press a key, after choosing images with the mouse."""
        self.seconds += ANSWER + (2 * HAND + marks * MARK if marks else 0)
        self.gestures += 1 + marks

    def type(self, known: bool) -> None:
        """Type a name, or choose one that exists."""
        self.seconds += OLD_NAME if known else NEW_NAME
        self.gestures += 1


class Moment(NamedTuple):
    """How far a review is: images settled, right, accepted unseen, and confirmed though wrong."""

    seconds: float
    settled: int
    right: int
    unseen: int
    mistaken: int
    gestures: int


@dataclass
class Desk:
    """The review as a page sees it, and a record of how it went."""

    client: Client
    person: Person
    track: list[Moment] = field(default_factory=list)
    claims: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.version = self.client.get("/api/version")["version"]
        self.refresh()

    def refresh(self) -> None:
        self.names = {each["id"]: each["name"] for each in self.client.get("/api/overview")["categories"]}
        self.classes = {str(each) for each in self.person.truth}

    def decide(self, **action: Any) -> None:
        answer = self.client.decide(self.version, **action)
        assert answer.code == 200, answer.body
        self.version = answer.json()["version"]
        self.note()

    def note(self) -> None:
        """Record what is settled and right now; the person does not know it."""
        session = self.client.session
        review, free = session._review, session.run.assignments.status != LABELLED
        names = {each.id: each.name for each in review.categories.values()}
        mine = review.settled & free
        rows, unseen = np.flatnonzero(mine), review.unseen & mine
        right = np.array([names.get(int(review.category[row])) == self.person.truth[row] for row in rows], dtype=bool)
        self.track.append(
            Moment(
                seconds=round(self.person.seconds, 2),
                settled=len(rows),
                right=int(right.sum()),
                unseen=int(unseen.sum()),
                mistaken=int((~right & ~unseen[rows]).sum()),
                gestures=self.person.gestures,
            )
        )

    def class_of(self, category: int, seen: list[str]) -> str:
        """Return the class of a category: by its name, or what most of the pictures are."""
        name = self.names[category]
        return name if name in self.classes else Counter(seen).most_common(1)[0][0]

    def name(self, category: int, name: str) -> int:
        """Give a category its name; one that has it already is merged with it. Return its id."""
        if self.names[category] == name:
            return category
        same = [each for each, other in self.names.items() if other == name and each != category]
        self.person.type(known=bool(same))
        if same:
            self.decide(do="merge", categories=[same[0], category])
        else:
            self.decide(do="rename", category=category, name=name)
        self.refresh()
        return same[0] if same else category

    def found(self, name: str) -> int | None:
        return next((each for each, other in self.names.items() if other == name), None)


# Policies


def ours(desk: Desk, until: float) -> None:
    """Answer what the queue asks, until time is up or nothing is left."""
    answers = {"grow": _grow, "merge": _merge, "split": _split, "audit": _audit, "page": _page, "image": _image}
    answers |= {"label": _image, "other": _other}
    while desk.person.seconds < until and (items := desk.client.get("/api/queue")["items"]):
        answers[items[0]["kind"]](desk, items[0])


def _grow(desk: Desk, item: dict[str, Any]) -> None:
    person, number, answers, wrong, name = desk.person, item["categories"][0], "", list[int](), ""
    shown: list[int] = []
    while (found := desk.client.get(f"/api/grow/{number}?answers={answers}"))["number"] is not None:
        rows = [*found["typical"], *found["page"]]
        shown += rows
        seen = person.see(rows)
        name = name or desk.class_of(number, seen)
        bad = person.wrong(rows, name)
        if len(bad) <= 1:
            wrong, answers = [*wrong, *bad], answers + "y"
            person.answer(len(bad))
        else:
            answers += "m" if len(bad) <= ALLOWED * len(rows) else "n"
            person.answer()
    desk.decide(do="grow", category=number, answers=answers, shown=shown, wrong=wrong)
    if {*answers} - {"n"}:
        desk.name(number, name)


def _merge(desk: Desk, item: dict[str, Any]) -> None:
    kinds = [
        desk.class_of(each, desk.person.see(rows)) for each, rows in zip(item["categories"], item["rows"], strict=True)
    ]
    desk.person.answer()
    same = (kinds[0] == kinds[1]) != desk.person.slips()
    desk.decide(do="merge" if same else "keep", categories=item["categories"])
    desk.refresh()


def _split(desk: Desk, item: dict[str, Any]) -> None:
    kinds = [Counter(desk.person.see(list(rows))).most_common(1)[0][0] for rows in item["rows"]]
    desk.person.answer()
    number = item["categories"][0]
    if (kinds[0] == kinds[1]) != desk.person.slips():
        desk.decide(do="keep", categories=[number])
        return
    parts = desk.client.get(f"/api/parts/{number}?parts=2")["parts"]
    desk.decide(do="split", rows=parts[1])
    desk.refresh()


def _audit(desk: Desk, item: dict[str, Any]) -> None:
    session, rows = desk.client.session, list(item["rows"][0])
    desk.person.see(rows)
    wrong = [row for row in rows if desk.person.wrong([row], desk.names[int(session._review.category[row])])]
    desk.person.answer(len(wrong))
    desk.decide(do="audit", rows=rows, wrong=wrong)
    desk.refresh()
    desk.claims = claims(session, desk.person.truth)


def _page(desk: Desk, item: dict[str, Any]) -> None:
    number, rows = item["categories"][0], list(item["rows"][0])
    seen = desk.person.see(rows)
    name = desk.class_of(number, seen)
    wrong = desk.person.wrong(rows, name)
    desk.person.answer(len(wrong))
    desk.decide(do="page", category=number, rows=rows, wrong=wrong)
    if len(wrong) < len(rows):
        desk.name(number, name)


def _image(desk: Desk, item: dict[str, Any]) -> None:
    """One image with hotkeys for the most similar categories."""
    row = item["rows"][0][0]
    _label(desk, row, [*(found := desk.client.get(f"/api/near/{row}"))[KNOWN], *found[NEW]])


def _other(desk: Desk, item: dict[str, Any]) -> None:
    """Images that fit no category: confirm what is right nevertheless, and say of each other one what it is."""
    rows = list(item["rows"][0])
    seen, category = desk.person.see(rows), desk.client.session._review.category
    right = [row for row, name in zip(rows, seen, strict=True) if desk.names[int(category[row])] == name]
    if right:
        desk.person.answer(len(right))
        desk.decide(do="accept", rows=right)
    for row in rows:
        if row not in right:
            _label(desk, row, None)


def _label(desk: Desk, row: int, keys: list[int] | None) -> None:
    """Say which class an image is: by a key, by choosing its name, or by typing a new one."""
    (name,) = desk.person.see([row])
    if desk.person.slips():
        name = str(desk.person.draw.choice(sorted(desk.classes - {name})))
    there = desk.found(name)
    if there is None:
        desk.person.type(known=False)
        desk.decide(do="create", rows=[row], name=name)
        desk.refresh()
        return
    if keys is None or there in keys:
        desk.person.answer()
    else:
        desk.person.type(known=True)
    desk.decide(do="move", rows=[row], category=there)


def one(desk: Desk, until: float) -> None:
    """Label images in random order, each with a hotkey."""
    free = np.flatnonzero(desk.client.session.run.assignments.status != LABELLED)
    for row in np.random.default_rng(desk.person.seed).permutation(free).tolist():
        if desk.person.seconds >= until:
            return
        _label(desk, row, None)


def morpho(desk: Desk, until: float, *, page: int, tolerance: float) -> None:
    """Validate and grow every category, the largest first."""
    run, person = desk.client.session.run, desk.person
    x, settled, hidden = np.asarray(run.features, dtype=np.float64), run.assignments.status == LABELLED, 0
    for category in sorted(run.categories, key=lambda each: -each.size):
        if person.seconds >= until or category.id not in desk.names:
            continue
        centre = run.centres[[each.id for each in run.categories].index(category.id)]
        order = np.argsort(((x - centre) ** 2).sum(axis=1), kind="stable")
        own = order[(run.assignments.category_id[order] == category.id) & ~settled[order]][:page].tolist()
        if not own:
            continue
        name = desk.class_of(category.id, person.see(own))
        person.answer()
        if len(person.wrong(own, name)) > max(tolerance, 0.1) * len(own):
            continue  # not one class
        rows = order[~settled[order]]
        pages = [rows[start : start + page].tolist() for start in range(0, len(rows), page)]
        good = _doubling(person, pages, name, tolerance)
        taken = [row for number in range(good) for row in pages[number]]
        unseen = [row for row in taken if row not in person.shown]
        settled[taken] = True
        to = desk.name(category.id, name)
        desk.decide(do="move", rows=taken, category=to)
        hidden += len(unseen)
        desk.track[-1] = desk.track[-1]._replace(unseen=hidden)


def _doubling(person: Person, pages: list[list[int]], name: str, tolerance: float) -> int:
    """Return how many pages are accepted, of which the first has been seen."""
    low, high, step = 0, len(pages), 1
    while high - low > 1:
        at = min(low + step, len(pages) - 1) if high == len(pages) else (low + high) // 2
        step *= 2
        person.see(pages[at])
        bad = person.wrong(pages[at], name)
        person.answer()
        if len(bad) > tolerance * len(pages[at]):
            high = at
        else:
            low = at
    return low + 1


# Measuring


def claims(session: Session, truth: np.ndarray) -> list[dict[str, Any]]:
    """Return what audits claim of each category and of all, and the truth of it."""
    review, found = session._review, []
    audited = [each for each in review.categories.values() if each.tally.sampled]
    for ids in [*([each.id] for each in audited), [each.id for each in audited]]:
        said = review.precision(ids)
        rows = np.flatnonzero(review.unseen & np.isin(review.category, ids)).tolist()
        right = sum(review.categories[int(review.category[row])].name == truth[row] for row in rows)
        right += sum(review.categories[each].tally.right for each in ids)
        if ids and said.sampled:
            found.append({"categories": len(ids), "low": said.low, "high": said.high, "true": right / said.images})
    return found


@contextmanager
def desk_at(folder: Path, *, look: float, misses: float, seed: int) -> Iterator[Desk]:
    """Serve a copy of a run to a person."""
    with TemporaryDirectory() as place:
        copy = Path(place) / "run"
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("cache", "*.safetensors", "decisions*"))
        run = load_run(copy, raw=True)
        session = session_of(run)
        advisor = Advice(run=run, store=session.store, device="cpu")
        session = Session(
            run=run, store=session.store, originals=session.originals, place=session.place, advisor=advisor
        )
        with serving(session) as client:
            truth = np.array(run.assignments.truth)
            yield Desk(client.enter(), Person(truth=truth, look=look, misses=misses, seed=seed))


def policies() -> dict[str, Policy]:
    found: dict[str, Policy] = {"one": one, "ours": ours}
    for page, tolerance in product((20, 50), TOLERANCES):
        found[f"morpho-{page} {tolerance}"] = partial(morpho, page=page, tolerance=tolerance)
    return found


def simulate(arguments: argparse.Namespace) -> None:
    """Let a person review each run by each policy; what the file already has is not repeated."""
    done = set()
    if arguments.out and arguments.out.exists():
        rows = map(json.loads, arguments.out.read_text().splitlines())
        done = {(each["run"], each["policy"], each["look"], each["misses"]) for each in rows}
    wanted = [name for name in policies() if not arguments.policies or name.split()[0] in arguments.policies]
    for folder, name, look, misses in product(arguments.runs, wanted, arguments.looks, arguments.misses):
        if (folder.name, name, look, misses) in done:
            continue
        line = review(folder, name, look, misses, arguments.minutes)
        print(json.dumps({key: value for key, value in line.items() if key not in ("track", "claims")}), flush=True)
        if arguments.out:
            with arguments.out.open("a") as file:
                file.write(json.dumps(line) + "\n")


def review(folder: Path, policy: str, look: float, misses: float, minutes: float) -> dict[str, Any]:
    """Review a run by a policy, and return how it went."""
    seed = int(folder.name.rpartition("-")[2]) if folder.name[-1:].isdigit() else 0
    with desk_at(folder, look=look, misses=misses, seed=seed) as desk:
        policies()[policy](desk, 60 * minutes)
        end = desk.track[-1]
        return {
            "run": folder.name,
            "policy": policy,
            "look": look,
            "misses": misses,
            "seconds": round(desk.person.seconds, 1),
            "gestures": desk.person.gestures,
            "settled": end.settled,
            "right": end.right,
            "unseen": end.unseen,
            "mistaken": end.mistaken,
            "free": int((desk.client.session.run.assignments.status != LABELLED).sum()),
            "classes": len({*desk.names.values()} & desk.classes),
            "true": len(desk.classes),
            "claims": desk.claims,
            "track": desk.track,
        }


def merges(arguments: argparse.Namespace) -> None:
    """Count the true merges that are found on runs with too many categories."""
    for folder, factor in product(arguments.runs, arguments.factors):
        with TemporaryDirectory() as place:
            run = over_clustered(load_run(folder, raw=True), factor, Path(place) / "run")
            truth = np.array(run.assignments.truth)
            kinds = {each.id: _majority(truth[run.assignments.category_id == each.id]) for each in run.categories}
            wanted, allowed = len(kinds) - len({*kinds.values()}), 2 * (len(kinds) - len({*truth.tolist()}))
            with serving(session_of(run)) as client:
                client.enter()
                found = asked = 0
                while asked < allowed:
                    items = [each for each in client.get("/api/queue")["items"] if each["kind"] == "merge"]
                    if not items:
                        break
                    pair, shown = items[0]["categories"], items[0]["rows"]
                    same = _majority(truth[list(shown[0])]) == _majority(truth[list(shown[1])])
                    assert client.decide(asked, do="merge" if same else "keep", categories=pair).code == 200
                    asked, found = asked + 1, found + (same and kinds[pair[0]] == kinds[pair[1]])
            print(
                f"{folder.name} k {len(kinds)}: {found} of {wanted} merges, {asked} of {allowed} questions", flush=True
            )


def likely(arguments: argparse.Namespace) -> None:
    """Count the merges and splits that are right, by how likely they were said to be."""
    found = dict[tuple[str, bool], list[tuple[float, bool]]]()
    for folder, factor in product(arguments.runs, (None, *arguments.factors)):
        with TemporaryDirectory() as place:
            run = load_run(folder, raw=True)
            run = run if factor is None else over_clustered(run, factor, Path(place) / "run")
            guide, state = Guide(run, Advice(run=run, store=session_of(run).store, device="cpu")), Review(run)
            for question in chain(*guide.likely(state, state.confidence(), among=len(run.categories))):
                merging = question.kind == "merge"
                ids = question.categories
                parts = [*map(state.members, ids)] if merging else guide.parts(state, ids[0], 2)
                kinds = {_majority(np.array(run.assignments.truth)[part]) for part in parts}
                right = len(kinds) == (1 if merging else 2)
                found.setdefault((question.kind, factor is None), []).append((question.likely or 0.0, right))
    print("| question | runs | from | to | asked | right |\n|---|---|---|---|---|---|")
    for (kind, as_sorted), pairs in sorted(found.items()):
        for low in np.arange(10) / 10:
            here = [right for said, right in pairs if low <= said < low + 0.1 + (low == 0.9)]
            runs, share = "as sorted" if as_sorted else "cut up", f"{np.mean(here):.2f}" if here else "–"
            print(f"| {kind} | {runs} | {low:.1f} | {low + 0.1:.1f} | {len(here)} | {share} |")


def over_clustered(run: Run, factor: float, folder: Path) -> Run:
    """Cluster the images of a run into more categories than there are classes."""
    labels = [label for label in run.assignments.labels if label is not None]
    known, x = sorted({*labels}), np.array(run.features)
    y = np.array([known.index(label) if label is not None else -1 for label in run.assignments.labels])
    k = round(factor * len({*run.assignments.truth}))
    clusters = SemiSupervisedKMeans(k, n_init=10, random_state=0).fit(smooth(x, 8, alone("cpu")), y).labels_
    made = sample_run(images=len(x), categories=k, known=len(known), features=x, category=clusters)
    a = replace(made.assignments, truth=run.assignments.truth)
    confidence = replace(made.confidence, temperature=run.confidence.temperature)
    save_run(replace(made, folder=folder, assignments=a, confidence=confidence))
    return load_run(folder, raw=True)


def _majority(names: np.ndarray) -> str:
    return str(Counter(names.tolist()).most_common(1)[0][0])


def label(arguments: argparse.Namespace) -> None:
    """Review a run for some minutes, and keep the reviewed run."""
    folder = arguments.runs[0]
    with desk_at(folder, look=0.2, misses=0.0, seed=0) as desk:
        policies()[arguments.policies[0]](desk, 60 * arguments.minutes)
        shutil.copytree(desk.client.session.run.folder, arguments.out)
        print(folder.name, arguments.policies[0], desk.track[-1], flush=True)


def table(path: Path) -> None:
    """Print each policy at its end, how much sooner ours has as many right, and how often intervals hold the truth."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for look, misses in sorted({(each["look"], each["misses"]) for each in lines}):
        print(f"\n{look} s a look, {misses:.0%} of intruders overlooked\n")
        print("| run | policy | min | right/min | a gesture | precision | recall | classes | unseen | ours sooner |")
        print("|---" * 10 + "|")
        for run in sorted({each["run"] for each in lines}):
            by = {each["policy"]: each for each in lines if _where(each) == (run, look, misses)}
            chosen = [by.get("one")]
            for page in ("morpho-50", "morpho-20"):
                good = [each for name, each in by.items() if name.startswith(page) and _precision(each) >= ENOUGH]
                chosen.append(max(good, key=_rate, default=None))
            for each in filter(None, [*chosen, by.get("ours")]):
                print(
                    f"| {run} | {each['policy']} | {each['seconds'] / 60:.1f} | {_rate(each):.0f} "
                    f"| {each['right'] / each['gestures']:.1f} | {_precision(each):.3f} "
                    f"| {each['right'] / each['free']:.2f} | {each['classes']} of {each['true']} "
                    f"| {each['unseen'] / max(each['settled'], 1):.2f} | {_sooner(each, by.get('ours'))} |"
                )
    said = [each for line in lines for each in line["claims"]]
    for what, some in (("a category", [c for c in said if c["categories"] == 1]), ("all", said)):
        some = [c for c in some if what == "a category" or c["categories"] > 1]
        held = sum(c["low"] - 1e-9 <= c["true"] <= c["high"] + 1e-9 for c in some)
        print(f"\nIntervals of {what} that hold the truth: {held} of {len(some)}")


def versus(before: Path, after: Path) -> None:
    """Print what both took until 95 % are right and until the end, and what was wrong then, as means over runs."""
    both = [[json.loads(line) for line in path.read_text().splitlines()] for path in (before, after)]
    shared = {_which(each) for each in both[0]} & {_which(each) for each in both[1]}
    print("| runs | misread | | s to 95 % | gestures | min to end | gestures | confirmed wrong | unseen wrong | open |")
    print("|---" * 10 + "|")
    for kind, misses in sorted({(run.rpartition("-")[0], misses) for run, _, _, misses in shared}):
        for name, lines in zip(("before", "after"), both, strict=True):
            here = [e for e in lines if _which(e) in shared and e["run"].startswith(kind) and e["misses"] == misses]
            found = np.array([_course(each) for each in here])
            means = enumerate(found.mean(axis=0))
            cells = [f"{value:.1f}" if at in (2, 4) else f"{value:.0f}" for at, value in means]
            late = np.isnan(found[:, 0]).sum()
            cells[:2] = [f"never in {late} of {len(here)}"] * 2 if late else cells[:2]
            print(f"| {kind} ({len(here)}) | {misses:.0%} | {name} | {' | '.join(cells)} |")


def _which(line: dict[str, Any]) -> tuple[str, str, float, float]:
    return line["run"], line["policy"], line["look"], line["misses"]


def _course(line: dict[str, Any]) -> tuple[float, ...]:
    """Return seconds and gestures until 95 % are right; minutes, gestures and mistakes at the end."""
    track = [Moment(*each) for each in line["track"]]
    at = next((each for each in track if each.right >= ENOUGH * line["free"]), None)
    early = (np.nan, np.nan) if at is None else (at.seconds, at.gestures)
    wrong = line["settled"] - line["right"]
    return (
        *early,
        line["seconds"] / 60,
        line["gestures"],
        line["mistaken"],
        wrong - line["mistaken"],
        line["free"] - line["settled"],
    )


def _where(line: dict[str, Any]) -> tuple[str, float, float]:
    return line["run"], line["look"], line["misses"]


def _sooner(line: dict[str, Any], ours: dict[str, Any] | None) -> str:
    """Return the time of a policy, divided by our time to as many right images, and our precision then."""
    if ours is None or line is ours:
        return ""
    at = next((each for each in ours["track"] if each[2] >= line["right"]), None)
    return "–" if at is None else f"{line['seconds'] / at[0]:.2f} ({at[2] / at[1]:.3f})"


def _precision(line: dict[str, Any]) -> float:
    return float(line["right"] / max(line["settled"], 1))


def _rate(line: dict[str, Any]) -> float:
    return float(60 * line["right"] / max(line["seconds"], 1))


def main() -> None:
    if sys.argv[1:2] == ["table"]:
        table(Path(sys.argv[2]))
        return
    if sys.argv[1:2] == ["versus"]:
        versus(Path(sys.argv[2]), Path(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("simulate", "merges", "likely", "label"))
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--looks", nargs="+", type=float, default=[0.1, 0.2, 0.4])
    parser.add_argument("--misses", nargs="+", type=float, default=[0.0, 0.05])
    parser.add_argument("--policies", nargs="+", default=[])
    parser.add_argument("--factors", nargs="+", type=float, default=[1.3, 1.6])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    {"simulate": simulate, "merges": merges, "likely": likely, "label": label}[arguments.what](arguments)


if __name__ == "__main__":
    main()
