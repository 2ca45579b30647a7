"""Attack Sortal for a while, and print a table of what was tried and what failed.

    python -m attacks --minutes 60 --seed 0
    python -m attacks --only kills/discover --trial 17

Each attack gets its least number of trials first, then all get the same share of the time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from attacks.campaign import PLACE, Row, campaign, table, try_once
from attacks.catalogue import ATTACKS

LIBRARIES = ("sortal", "torch", "pillow", "numpy")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="trials at the same time")
    parser.add_argument("--only", default="", help="attacks whose name starts with this")
    parser.add_argument("--trial", type=int, help="repeat the trial of this number")
    parser.add_argument("--json", type=Path, help="write the table to this file as well")
    arguments = parser.parse_args()
    attacks = [each for each in ATTACKS if each.id.startswith(arguments.only)]
    if not attacks:
        parser.error(f"no attack begins with {arguments.only!r}; there are {', '.join(each.id for each in ATTACKS)}")
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {PLACE: folder, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        if arguments.trial is not None:
            outcomes = [try_once(each.id, arguments.trial, arguments.seed) for each in attacks]
            print("\n".join(filter(None, (each.problem for each in outcomes))) or "Sortal withstood.")
            return int(any(each.problem for each in outcomes))
        rows = {each.id: Row(each.id) for each in attacks}
        try:
            for name, number, outcome in campaign(attacks, arguments.seed, 60 * arguments.minutes, arguments.jobs):
                row = rows[name]
                row.trials, row.tried = row.trials + 1, row.tried + outcome.tried
                row.seconds += outcome.seconds
                if outcome.problem:
                    row.failed += 1
                    print(f"FAILED {name}, trial {number}, seed {arguments.seed}\n{outcome.problem}", flush=True)
        except KeyboardInterrupt:
            print("Interrupted.")
    versions = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    python = f"Python {platform.python_version()}"
    print(f"\nSeed {arguments.seed}, {platform.machine()}, {os.cpu_count()} cores, {python}, {versions}\n")
    print(table([*rows.values()]))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows.values()], indent=1) + "\n")
    return int(any(row.failed for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
