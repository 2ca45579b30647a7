"""What was measured on a sample, scaled: times as functions of events, by hand."""

from typing import Any

import numpy as np

from sortal.config import Training
from sortal.images import image_set
from sortal.trial import Learning, Pace, Trial, learning, pace, sample


def a_trial(**changes: Any) -> Trial:
    values: dict[str, Any] = {
        "check": Pace(fixed=1.0, each=0.01),
        "pixels": Pace(fixed=2.0, each=0.02),
        "features": Pace(fixed=0.0, each=0.5),
        "learning": Learning(fixed=3.0, view=0.25, step=2.0),
        "comparing": 4.0,
        "k": 5.0,
        "clusters": 6.0,
        "report": 7.0,
        "page": 1000,
        "stored": 300.0,
        "base": 10_000,
        "working": 2000,
        "tiny": False,
        "unreadable": (),
    }
    return Trial(**{**values, **changes})


def test_pace_tells_starting_from_going_on() -> None:
    # 2 s until the first of 5 came, then one a second, and 1 s to end: 3 s that are not theirs, less the first one's.
    events = {"Reading": [(0, 10.0), (1, 12.0), (2, 13.0), (3, 14.0), (4, 15.0), (5, 16.0)]}
    assert pace(events, 7.0) == Pace(fixed=2.0, each=1.0)
    assert pace(events, 7.0).seconds(100) == 102.0
    two_kinds = {"Looking": [(0, 0.0), (1, 1.0), (3, 2.0)], "Storing": [(0, 2.0), (1, 4.0), (3, 8.0)]}
    assert pace(two_kinds, 10.0) == Pace(fixed=10.0 - 3 * 0.5 - 3 * 2.0, each=2.5)
    assert pace({"Reading": [(0, 1.0), (1, 3.0)]}, 2.5) == Pace(fixed=0.5, each=2.0)
    assert pace({}, 2.5) == Pace(fixed=2.5, each=0.0)


def test_steps_are_timed_once_they_are_warm() -> None:
    # 64 views took 8 s; then a slow step, steps of 1 s, and one that was held up; 2 s before and after.
    events = {
        "Computing tokens": [(0, 1.0), (64, 9.0)],
        "Learning": [(0, 9.0), (1, 19.0), (2, 20.0), (3, 21.0), (4, 25.0)],
    }
    assert learning(events, 26.0, warm=1) == Learning(fixed=26.0 - 8 - 4, view=0.125, step=1.0)
    assert learning(events, 26.0, warm=9).step == 4.0  # the last of too few
    # Without a trunk there are steps alone.
    steps = {"Learning": [(0, 0.0), (1, 3.0), (2, 4.0)]}
    assert learning(steps, 6.0, warm=1) == Learning(fixed=4.0, view=0.0, step=1.0)


def test_time_to_learn_grows_with_epochs() -> None:
    one = Learning(fixed=0.0, view=0.0, step=0.5)
    assert one.seconds(1000, Training(epochs=10), None) == 10 * 7 * 0.5  # 7 batches of 128
    assert one.seconds(5, Training(epochs=10), None) == 10 * 0.5  # an epoch has a step at least
    assert Learning(fixed=9.0).seconds(5, Training(epochs=0), None) == 0
    # Views that are kept go through the trunk once.
    one, training = Learning(fixed=1.0, view=0.25, step=2.0), Training(epochs=10, batch_size=50)
    assert one.seconds(100, training, 8) == 1 + 100 * 8 * 0.25 + 20 * 2
    assert one.seconds(100, training, None) == 1 + 20 * 2 * 50 * 0.25 + 20 * 2


def test_stages_add_up() -> None:
    stages = a_trial().stages(100, Training(epochs=1, batch_size=100), 2)
    assert tuple(stages) == ("check", "pixels", "learn", "features", "k", "clusters", "report")
    assert list(stages.values()) == [1 + 1 + 4, 2 + 2, 3 + 200 * 0.25 + 2, 50, 5, 6, 7]


def test_a_sample_is_from_all_over_and_has_both_kinds() -> None:
    labels = [None] * 500 + ["a"] * 5 + [None] * 495
    images = image_set([str(i) for i in range(1000)], paths=["x"] * 1000, labels=labels)
    rows = np.flatnonzero(sample(images, 64))
    assert len(rows) == 64
    assert images.labelled[rows].any()
    assert np.diff(rows).max() < 20
    assert rows[-1] == 999
    assert sample(images, 5000).all()
