"""Go the way of a newcomer with an installed sortal, offline, and time each step: demo, a folder of one's own, review.

    python supply/journey.py .venv/bin/sortal build/journey

The folder has 400 of the digits, as somebody would have them who knows five kinds: a half of 0 to 4 in folders of their
own, and all others in `unlabelled`. The review is entered by its link, one category gets a name, and the export must
have it. Where other work shares the cores, the time of the processor says more than that of the clock.
"""

import csv
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

OFFLINE = {"HF_HUB_OFFLINE": "1", **dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")}
EACH = 40  # images of each digit
SMALL = ("--backbone", "convnet")  # which needs no weights
NAME = "the first"  # that the review gives
PATIENCE = 600  # seconds that a page has for an answer


class JourneyError(Exception):
    """A step did not do what it should."""


@dataclass
class Journey:
    """The steps so far, each with its seconds by the clock and of the processor."""

    program: Path
    place: Path
    steps: list[tuple[str, float, float]] = field(default_factory=list)

    def go(self, *words: str) -> str:
        """Run a command of sortal and return what it prints."""
        with self.timed(" ".join(("sortal", *words))):
            done = subprocess.run(
                [self.program, *words], cwd=self.place, env=surroundings(), capture_output=True, text=True
            )
        if done.returncode:
            raise JourneyError(f"sortal {' '.join(words)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        begun, used = perf_counter(), processor()
        yield
        self.steps.append((step, perf_counter() - begun, processor() - used))

    def table(self) -> str:
        rows = [f"| `{step}` | {wall:.1f} | {used:.1f} |" for step, wall, used in self.steps]
        return "\n".join(["| step | clock, s | processor, s |", "|---|---|---|", *rows])


def surroundings() -> dict[str, str]:
    """Return the environment, without a network and without the packages of a checkout."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**kept, **OFFLINE, "NO_COLOR": "1"}


def processor() -> float:
    """Return the seconds of the processor that ended children have taken."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def own_folder(sample: Path, out: Path) -> None:
    """Sort some of the digits into folders of the known kinds, and `unlabelled`."""
    seen: Counter[str] = Counter()
    with (sample / "labels.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            seen[row["truth"]] += 1
            if seen[row["truth"]] <= EACH:
                folder = out / (row["label"] or "unlabelled")
                folder.mkdir(parents=True, exist_ok=True)
                shutil.copy(sample / row["file_name"], folder)


def review(journey: Journey, run: str) -> None:
    """Enter a review by its link, name the first new category, and end it by Ctrl-C."""
    words: list[str | Path] = [journey.program, "review", run, "--no-browser"]
    with (
        journey.timed(f"sortal review {run}"),
        subprocess.Popen(words, cwd=journey.place, env=surroundings(), stdout=subprocess.PIPE, text=True) as server,
    ):
        try:
            assert server.stdout is not None
            link = urlsplit(server.stdout.readline().partition(": ")[2].strip())
            origin = f"{link.scheme}://{link.netloc}"
            if answer_to(origin, "/api/overview")[0] != 403:
                raise JourneyError("the review answers somebody without its key")
            token = link.fragment.removeprefix("token=").encode()
            key = answer_to(origin, "/api/enter", token)[1]["key"]
            found = answer_to(origin, "/api/overview", key=key)[1]
            new = next(each for each in found["categories"] if each["kind"] == "new")
            action = {"do": "rename", "category": new["id"], "name": NAME}
            body = json.dumps({"seen": found["version"], "action": action}).encode()
            if answer_to(origin, "/api/decide", body, key)[0] != 200:
                raise JourneyError("the review does not take a name")
            server.send_signal(signal.SIGINT)
            server.wait(PATIENCE)
        except (OSError, StopIteration, subprocess.TimeoutExpired) as error:
            raise JourneyError(f"the review does not answer or end, or found no new category: {error!r}") from error
        finally:
            server.kill()
    if server.returncode:
        raise JourneyError(f"the review ended with {server.returncode}")


def answer_to(origin: str, path: str, body: bytes | None = None, key: str = "") -> tuple[int, Any]:
    """Ask a page of this computer; return the code of the answer and what it holds."""
    headers = {
        "Origin": origin,
        "Content-Type": "application/json",
        **({"Authorization": f"Bearer {key}"} if key else {}),
    }
    try:
        with build_opener(ProxyHandler({})).open(Request(origin + path, body, headers), timeout=PATIENCE) as answer:
            return answer.status, json.load(answer)
    except HTTPError as refused:
        return refused.code, {}


def travel(program: Path, place: Path) -> Journey:
    """Go from the demo to an exported folder; raise JourneyError where something fails."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    journey = Journey(program.absolute(), place)
    journey.go("demo")
    journey.go("sample", "digits", "digits")
    own_folder(place / "digits", place / "photos")
    journey.go("check", "photos")
    journey.go("discover", "photos", *SMALL, "--dry-run")
    journey.go("discover", "photos", *SMALL)
    review(journey, "photos-run")
    journey.go("report", "photos-run")
    journey.go("predict", "photos-run", "digits", "--csv", "more.csv")
    journey.go("export", "photos-run", "--format", "folders", "--out", "sorted")
    if not any((place / "sorted").rglob(f"{NAME}/*.png")):
        raise JourneyError(f"the export has no category {NAME!r}, which the review has named")
    return journey


def main() -> int:
    try:
        print(travel(*map(Path, sys.argv[1:])).table())
    except JourneyError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
