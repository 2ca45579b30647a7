"""Signs that a run has failed, or that parts of it deserve a look: each in a sentence, with a way out."""

import numpy as np

from sortal.errors import listing
from sortal.runs.confidence import ENOUGH, Features
from sortal.runs.run import UNSURE, Run
from sortal.system.text import plural
from sortal.web.report.highlights import Comparison

COLLAPSED = 0.98  # mean cosine similarity from which features tell nothing apart; healthy runs have 0 to 0.75
SEPARATE = 0.7  # share of labelled images whose nearest one is of their class, below which classes are mixed up
MOST_ASKED = 2000  # labelled images that this is computed for
MANY_UNSURE = 0.5  # share of the unlabelled images that are unsure
SUMMED_AT_ONCE = 2**14  # images


def symptoms(run: Run, compared: Comparison) -> list[str]:
    """Describe what is wrong with a run, the worst first; what its confidence rests on precedes single categories."""
    found = []
    alike = mean_cosine(run.features)
    collapsed = alike >= COLLAPSED
    if collapsed:
        found.append(
            f"The features have collapsed: all images look nearly the same to the network (mean cosine similarity "
            f"{alike:.3f}), so the categories mean little. Lower the learning rate, or use other weights."
        )
    free = np.array([label is None for label in run.assignments.labels], dtype=bool)
    unsure = int(((run.assignments.status == UNSURE) & free).sum())
    if unsure and unsure >= MANY_UNSURE * free.sum():
        ways = "" if collapsed else f" {_surer(run)}"
        found.append(
            f"{unsure:,} of {plural(int(free.sum()), 'unlabelled image is', 'unlabelled images are')} unsure.{ways}"
        )
    if not collapsed and (share := _apart(run)) < SEPARATE:
        found.append(
            f"Your labelled classes are hardly told apart: for only {share:.0%} of labelled images, the nearest other "
            "one is of the same class. Use another backbone or other weights, or train for longer."
        )
    if run.k.estimated and run.k.k == run.k.known and run.k.wish is None:
        found.append(
            "No new category was found. If you expect some, ask for finer categories, give the number of classes, or "
            "label other images."
        )
    if not run.confidence.calibrated:
        found.append(_basis(run.confidence.held_out))
    if empty := [each.name for each in run.categories if not each.size]:
        has = "category has" if len(empty) == 1 else "categories have"
        found.append(f"{len(empty):,} {has} no image at all: {listing(empty)}. k is larger than what was found.")
    single = [each.name for each in run.categories if each.size == 1 and not each.labelled]
    if single:
        has = "category has" if len(single) == 1 else "categories have"
        found.append(f"{len(single):,} {has} only one image: {listing(single)}. k may be too large.")
    if compared.alike:
        names = [" and ".join(run.names[each] for each in pair) for pair in compared.alike]
        found.append(f"These categories look alike, so each pair may be one class: {listing(names)}.")
    if compared.mixed:
        names = [run.names[each] for each in compared.mixed]
        found.append(
            f"{'This category looks' if len(names) == 1 else 'These categories look'} mixed: {listing(names)}."
        )
    return found


def _apart(run: Run) -> float:
    """Return the share of labelled images whose nearest labelled image is of the same class; 1 for too few to tell."""
    labels = np.array([label or "" for label in run.assignments.labels])
    names, counts = np.unique(labels, return_counts=True)
    rows = np.flatnonzero(np.isin(labels, names[(counts > 1) & (names != "")]))
    if len(rows) < ENOUGH or len(np.unique(labels[rows])) < 2:
        return 1.0
    rows = np.sort(np.random.default_rng(0).permutation(rows)[:MOST_ASKED])
    x = np.asarray(run.features[rows], dtype=np.float64)
    alike = x @ x.T
    np.fill_diagonal(alike, -np.inf)
    return float(np.mean(labels[rows][alike.argmax(axis=1)] == labels[rows]))


def mean_cosine(x: Features) -> float:
    """Return the mean cosine similarity of all pairs of rows (n, d), which have length 1."""
    n = len(x)
    if n < 2:
        return 0.0
    total = np.zeros(x.shape[1])
    for start in range(0, n, SUMMED_AT_ONCE):
        total += np.asarray(x[start : start + SUMMED_AT_ONCE], dtype=np.float64).sum(axis=0)
    return float((total @ total - n) / (n * (n - 1)))


def _surer(run: Run) -> str:
    if run.facts.settings.method == "kmeans":
        return "k-means uses the backbone as it is; a method that trains on the images usually separates them better."
    return "Label some of them, or use another backbone; check k, and look at the map in the report."


def _basis(held_out: int) -> str:
    why = f"as fewer than {ENOUGH} labelled images could be held out from training"
    if not held_out:
        return (
            f"Confidence rests on distances alone, {why}. It is not calibrated: it ranks images, but is no probability."
        )
    return f"Confidence rests on {plural(held_out, 'held-out image')} only, so it is not calibrated. Label more images."
