"""Journals that nobody has written by deciding: lines of every verb, about what is there and what is not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from sortal.errors import InputError
from sortal.reviews import actions, journal
from sortal.reviews.history import Review
from sortal.runs.run import Run

IDS = (*range(9), -1, 2**40, 10**30)
NAMES = ("oak", "Elm", "new 1", "x" * 300, "", "a\x00b", "\ud800")
IMPORTED = "import-1"
KEYS = ("", "a", "b", "b.1", "c.x.1", IMPORTED)


def put(path: Path, run: Run, lines: Sequence[dict[str, Any]]) -> Path:
    header = {"format": journal.JOURNAL_FORMAT, "run": journal.run_key(run.facts)}
    path.write_text("".join(f"{json.dumps(each)}\n" for each in (header, *lines)))
    return path


def random_line(run: Run, review: Review, random: Random) -> dict[str, Any]:
    """Make up a line of any verb; half of them about what is there."""
    sane = random.random() < 0.8
    contents = (*run.assignments.contents, *(() if sane else ("?", "")))
    ids = (*review.categories,) if sane else IDS
    verb = random.choice([*actions.ACTIONS])

    def some(least: int = 1) -> list[str]:
        return random.sample(contents, random.randint(least if sane else 0, 4))

    one = random.choice(ids)
    name = f"{random.choice('abcd')}{random.randint(0, 9)}" if sane else random.choice(NAMES)
    several = random.sample(ids, min(len(ids), random.randint(1, 3)))
    images = some()
    own = [
        content for content in contents if content in review._rows and review.category[review._rows[content][0]] == one
    ]
    new = review.next_id if sane else random.choice(IDS)
    fields: dict[str, dict[str, Any]] = {
        "rename": {"category": one, "name": name},
        "merge": {"categories": several},
        "split": {"images": own[:2] if sane else images, "category": new, "name": name},
        "create": {"images": images, "category": new, "name": name},
        "move": {"images": images, "category": one},
        "accept": {"images": images},
        "accept category": {"category": one},
        "reject": {"images": own[:2] if sane else images, "category": one},
        "grow": {"category": one, "seen": images[:1], "unseen": images[1:3], "wrong": images[3:]},
        "audit": {"right": images[:1], "wrong": images[1:2]},
        "keep": {"categories": several},
        "withdraw": {"wish": random.choice(KEYS)},
        "refit": {
            "images": images,
            "to": [random.choice((*ids, new)) for _ in images],
            "names": random.choice(([], [name])),
            "categories": random.choice(([], [new], several, [*several, new])),
            "stability": [random.random() for _ in range(random.randint(0, 4))],
        },
    }  # fmt: skip
    line = {"do": verb, **fields.get(verb, {})}
    if not sane and random.random() < 0.2:
        line[random.choice([*line])] = random.choice((None, [], {}, -1, "x", 1e400, True))
    return {**line, "key": random.choice(KEYS) if random.random() < 0.5 else random.randbytes(4).hex()}


def random_journal(run: Run, random: Random) -> list[dict[str, Any]]:
    """Make up lines that mostly follow from each other: what cannot be carried out is there only now and then."""
    review, lines = Review(run), list[dict[str, Any]]()
    broken = random.random() < 0.3
    for _ in range(random.randint(1, 25)):
        line = random_line(run, review, random)
        try:
            review.take(actions.from_json({name: each for name, each in line.items() if name != "key"}))
        except (InputError, ValueError):
            if random.random() < 0.1:
                line["disputed"] = "why not"
            elif not broken or random.random() < 0.8:
                continue
        lines.append(line)
    return lines
