"""How well a dry run keeps its word: what it predicts, and how long the command then takes, each in a new process.

    python benchmarks/forecast.py discover FOLDER --out RUN --backbone convnet
    python benchmarks/forecast.py predict RUN FOLDER --update

Any command of `sortal` that has `--dry-run`; --out must be new. Prints a row of the seconds that were predicted in all,
those that the whole command took, their ratio, and both for each stage of which a run keeps a record.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from time import perf_counter


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs=argparse.REMAINDER, help="the command with its arguments and options")
    words = parser.parse_args().words
    if not words:
        parser.error("a command is required, for example: discover FOLDER --out RUN")
    command = [sys.executable, "-m", "sortal", *words]
    started = perf_counter()
    said = subprocess.run([*command, "--dry-run", "--json"], check=True, stdout=subprocess.PIPE, text=True).stdout
    planning = perf_counter() - started
    predicted: dict[str, float] = json.loads(said)["seconds"]
    started = perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    took = perf_counter() - started
    true: dict[str, float] = {}
    if words[0] == "discover" and "--out" in words:
        true = json.loads(Path(words[words.index("--out") + 1], "run.json").read_text())["timings"]
    stages = [
        f"{name} {each:.1f}" + (f" ({true[name]:.1f})" if name in true else "") for name, each in predicted.items()
    ]
    total = sum(predicted.values())
    print("| predicted | true | ratio | dry run | by stage (true) |")
    print("| --- | --- | --- | --- | --- |")
    print(f"| {total:.1f} s | {took:.1f} s | {total / took:.2f} | {planning:.1f} s | {', '.join(stages)} |")


if __name__ == "__main__":
    main()
