"""The old classes of each benchmark, from the JSON files in splits/."""

import json
from dataclasses import dataclass
from importlib.resources import files

from sortal.system.json_records import read_record


@dataclass(frozen=True, kw_only=True)
class ClassSplit:
    """The old classes of a benchmark, numbered from 0 in the data set's own order."""

    n_classes: int
    old: tuple[int, ...]
    ilsvrc: tuple[int, ...] = ()  # ImageNet-100: the number of each class among the 1,000 sorted WordNet ids
    wnids: tuple[str, ...] = ()  # ImageNet-100: the WordNet id of each class


def read(name: str) -> ClassSplit:
    path = files("sortal.images.datasets") / "splits" / f"{name}.json"
    return read_record(ClassSplit, json.loads(path.read_text(encoding="utf-8")))
