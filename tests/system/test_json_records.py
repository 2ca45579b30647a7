"""Records survive a round trip through JSON, and what does not fit is reported."""

import json
import re
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

import pytest

from sortal.system.json_records import read_record


class Point(NamedTuple):
    x: float
    y: int


@dataclass(frozen=True)
class Small:
    a: int
    b: bool = True


@dataclass(frozen=True)
class Large:
    name: str
    k: int | Literal["auto"]
    share: float | None
    pair: tuple[int, str]
    points: tuple[Point, ...]
    small: Small | Point | None
    times: dict[str, float]
    paths: dict[str, str]


LARGE = Large("x", "auto", None, (1, "a"), (Point(0.5, 2),), Small(3), {"a": 1.5}, {"b": "c"})
OTHER = replace(LARGE, k=3, share=1.0, points=(), small=Point(1.0, 2), times={})


@pytest.mark.parametrize("large", [LARGE, OTHER, replace(LARGE, small=None)])
def test_records_survive_a_round_trip(large: Large) -> None:
    assert read_record(Large, json.loads(json.dumps(asdict(large)))) == large
    assert read_record(Small, {"a": 1}) == Small(1)
    whole = read_record(Point, [1, 2])
    assert (whole, type(whole.x)) == (Point(1.0, 2), float)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": 1}, "Large.name must be str, got '1'"),
        ({"k": "Auto"}, "Large.k must be int, got 'Auto'"),
        ({"k": True}, "Large.k must be int, got 'True'"),
        ({"k": 1.0}, "Large.k must be int, got '1.0'"),
        ({"share": "1"}, "Large.share must be float, got '1'"),
        ({"share": 10**400}, f"Large.share must be float, got '1{59 * '0'}'"),
        ({"pair": [1]}, "Large.pair must be a list of 2, got '[1]'"),
        ({"points": {}}, "Large.points must be a list, got '{}'"),
        ({"points": [[1, 2], [1, "2"]]}, "Large.points[1][1] must be int, got '2'"),
        ({"small": {"a": 1, "c": 2}}, "Large.small has an unknown key 'c'"),
        ({"small": {"b": True}}, "Large.small has no key 'a'"),
        ({"times": {"a": None}}, "Large.times.a must be float, got 'None'"),
        ({"paths": []}, "Large.paths must be an object, got '[]'"),
        ({"more": 1}, "Large has an unknown key 'more'"),
    ],
)
def test_what_does_not_fit_is_reported(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        read_record(Large, {**json.loads(json.dumps(asdict(LARGE))), **changes})
