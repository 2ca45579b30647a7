"""The card of a run: what it was made of and how, how accurate it is as far as that is known, and its limits."""

from collections import Counter
from dataclasses import dataclass

from sortal.config import VECTORS
from sortal.exchange.naming import folder_names, last_part
from sortal.images.review_states import ReviewState, words_of
from sortal.runs.categories import is_generated
from sortal.runs.facts import Metrics
from sortal.runs.run import KNOWN, NEW, Run
from sortal.system.text import duration, percent, plural, readable

SMALL_CATEGORY = 10  # of a category, from which little can be learned
LONGEST_LIST = 1000  # characters of a list of names


@dataclass(frozen=True, kw_only=True)
class RunCard:
    """Facts of a run under headings, each with a name; and sentences on what it cannot do."""

    facts: dict[str, list[tuple[str, str]]]
    limits: list[str]


def card_of(run: Run) -> RunCard:
    """Describe a run by what is measured or recorded. Nothing says where its images are on this computer."""
    facts = {
        "Data": _data(run),
        "Labels": _labels(run),
        "Categories": _categories(run),
        "How it was made": _making(run),
        "How accurate it is": _accuracy(run),
    }
    return RunCard(facts=facts, limits=_limits(run))


def noun_of(run: Run) -> str:
    """Return what one row of a run is called."""
    return "image" if run.facts.features is None else "feature vector"


def _data(run: Run) -> list[tuple[str, str]]:
    a, facts = run.assignments, run.facts
    folders = [name for name in folder_names(facts.images) if name] if facts.folders else []
    rows = [(f"{noun_of(run)}s", f"{len(a):,}")]
    if a.moments < len(a):
        rows.append((f"{a.counted_once}s", f"{a.moments:,}; {noun_of(run)}s of one count once"))
    if folders:
        rows.append(("from", _listed(folders)))
    if run.quarantine:
        rows.append(("unreadable", plural(len(run.quarantine), "file")))
    if facts.updates:
        rows.append(("added later", plural(sum(each.images for each in facts.updates), noun_of(run))))
    if a.columns.names:
        rows.append(("columns", _listed(a.columns.names)))
    return rows


def _labels(run: Run) -> list[tuple[str, str]]:
    a = run.assignments
    counts = Counter(label for label in a.labels if label is not None)
    rows = [(f"labelled {noun_of(run)}s", f"{sum(counts.values()):,} of {len(a):,}")]
    if counts:
        fewest, most = min(counts.values()), max(counts.values())
        each = f"{fewest:,} each" if fewest == most else f"{fewest:,} to {plural(most, noun_of(run))} each"
        rows.append(("labelled classes", f"{len(counts):,}, {each}"))
    reviewed = Counter(word for word in words_of(a.reviewed) if word != ReviewState.OPEN.word)
    rows += [("reviewed by people", ", ".join(f"{n:,} {word}" for word, n in reviewed.items()))] if reviewed else []
    return rows


def _categories(run: Run) -> list[tuple[str, str]]:
    known = [each.name for each in run.categories if each.kind == KNOWN]
    new = [each.name for each in run.categories if each.kind == NEW]
    k = run.k
    interval = (
        f", likely {k.interval[0]:,} to {k.interval[1]:,}" if k.interval and k.interval[0] < k.interval[1] else ""
    )
    counts = run.counts()
    return [
        ("number", f"{len(run.categories):,}; k was {'estimated' if k.estimated else 'given'}: {k.k:,}{interval}"),
        *([("trust in k", k.basis)] if k.basis else []),
        ("known", f"{len(known):,}{': ' if known else ''}{_listed(known)}"),
        ("new", f"{len(new):,}{': ' if new else ''}{_listed(new)}"),
        ("unsure", f"{plural(counts['unsure'], noun_of(run))}, and {counts['other']:,} fitting no category"),
    ]


def _making(run: Run) -> list[tuple[str, str]]:
    facts, spec, training = run.facts, run.facts.backbone, run.facts.training
    rows = [("method", last_part(facts.settings.method))]
    if spec.name != VECTORS:
        size = f"{spec.image_size} × {spec.image_size} pixels, {spec.width:,} features"
        rows += [("backbone", f"{last_part(spec.name)}; {size}"), ("weights", last_part(facts.weights))]
    if training is not None:
        rows.append(("training", f"{plural(training.epochs, 'epoch')} in {duration(training.seconds)}"))
    version = facts.versions.get("sortal", "")
    rows += [("seed", str(facts.settings.seed)), ("made", f"{facts.finished[:10]} by Sortal {version}".strip())]
    return [(name, readable(value)) for name, value in rows]


def accuracies(scores: Metrics) -> dict[str, float | None]:
    """Return what the accuracy is on, and how large it is: under the best match, and of known classes by name, too."""
    found = scores.accuracy
    return {
        "all classes": found.all,
        "known classes": found.old,
        "known classes by name": scores.known_accuracy,
        "new classes": found.new,
    }


def _accuracy(run: Run) -> list[tuple[str, str]]:
    scores, c, rows = run.metrics, run.confidence, list[tuple[str, str]]()
    if scores is None:
        rows.append(("measured", f"no: no true class of an unlabelled {noun_of(run)} is known"))
    else:
        rows.append(("measured on", plural(scores.images, f"unlabelled {noun_of(run)}") + " of known truth"))
        rows += ((f"accuracy, {name}", percent(value)) for name, value in accuracies(scores).items())
        if scores.calibration_error.all is not None:
            rows.append(("confidence is off by", f"{percent(scores.calibration_error.all)} on average"))
    basis = (
        f"calibrated on {plural(c.held_out, f'labelled {noun_of(run)}')} held out" if c.calibrated else "not calibrated"
    )
    return [*rows, ("confidence", basis)]


def _limits(run: Run) -> list[str]:
    spec, c, noun = run.facts.backbone, run.confidence, noun_of(run)
    limits = [
        f"{'An' if noun == 'image' else 'A'} {noun} of a class that is not among the categories is sorted into the "
        f"nearest one; its confidence is mostly lower, and below {percent(c.unsure_below, 0)} its status is unsure."
    ]
    if spec.name != VECTORS:
        limits.append(
            f"Images are seen as their central {spec.image_size} × {spec.image_size} pixels, after their shorter side "
            f"was resized to {spec.shorter_side}: what is smaller, or at the edge, is not seen."
        )
    if unnamed := sum(each.kind == NEW and is_generated(each.name) for each in run.categories):
        limits.append(
            f"{plural(unnamed, 'new category is a group', 'new categories are groups')} of {noun}s that are alike and "
            "that no person has named; one may be part of a class, or several classes."
        )
    if not c.calibrated:
        limits.append(
            f"Confidence ranks {noun}s, but is no probability: only {plural(c.held_out, f'labelled {noun}')} could be "
            "held out to calibrate it."
        )
    elif any(each.kind == NEW for each in run.categories):
        limits.append("Confidence was calibrated on known classes; on new categories it is an extrapolation.")
    if few := sum(each.size < SMALL_CATEGORY for each in run.categories):
        limits.append(f"{plural(few, 'category has', 'categories have')} fewer than {SMALL_CATEGORY} {noun}s.")
    if run.metrics is None:
        limits.append(f"Its accuracy on new {noun}s has not been measured.")
    else:
        limits.append(f"Accuracy was measured on the {noun}s that were sorted, not on {noun}s from elsewhere.")
    return limits


def _listed(names: tuple[str, ...] | list[str]) -> str:
    return readable(", ".join(map(readable, names)), LONGEST_LIST)
