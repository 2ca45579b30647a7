"""How far confidence is off when few labelled images were held out.

    python benchmarks/calibration.py RUN... --held 0 3 6 10 19 20 --draws 20

RUNs have a truth. Unlabelled images of known classes stand in for held-out ones: so many are drawn, the temperature is
fitted to them and to what is usual, and the calibration error is measured on all other unlabelled images. The stability
of categories stays that of the run. Prints a table of means over draws, in percent.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from sortal import Run, load_run, metrics
from sortal.runs.categories import rows_of
from sortal.runs.confidence import calibrate, place
from sortal.runs.evaluation import calibration_error


def errors(run: Run, held: int, draws: int) -> list[float]:
    """Return the calibration error on unlabelled images for each draw of held-out ones."""
    a, x = run.assignments, np.asarray(run.features)
    free = np.array([label is None for label in a.labels])
    row = rows_of(run.categories, a.category_id)
    known = {each.name: at for at, each in enumerate(run.categories) if each.kind == "known"}
    right = {*metrics.match(a.select(free).truth, a.select(free).category_id, old=[*known]).items()}
    is_right = np.array([pair in right for pair in zip(a.category_id.tolist(), a.truth, strict=True)])
    old = np.flatnonzero(free & np.array([truth in known for truth in a.truth]))
    found = []
    for seed in range(draws if held else 1):
        mask = np.zeros(len(a), dtype=bool)
        mask[np.random.default_rng(seed).choice(old, size=min(held, len(old) // 2), replace=False)] = True
        truth = np.array([known.get(name or "", 0) for name in a.truth])
        fitted = calibrate(x, run.centres, row, held_out=mask, truth=truth, unsure_below=0.5, head=run.head)
        same = replace(run.confidence, temperature=fitted.temperature)
        sure = same.of(place(x, run.centres, fitted.temperature, row=row, head=run.head))
        rest = free & ~mask
        found.append(100 * (calibration_error(is_right[rest], sure[rest]) or 0.0))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--held", nargs="+", type=int, default=[0, 1, 3, 6, 10, 19, 20, 50])
    parser.add_argument("--draws", type=int, default=20)
    arguments = parser.parse_args()
    print("| run | " + " | ".join(f"{each} held out" for each in arguments.held) + " |")
    print("|---" * (1 + len(arguments.held)) + "|")
    for path in arguments.runs:
        run = load_run(path)
        cells = [f"{np.mean(errors(run, each, arguments.draws)):.1f}" for each in arguments.held]
        print(f"| {path.name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
