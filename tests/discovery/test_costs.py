"""Costs: sums of parts that are known."""

from dataclasses import replace
from typing import Any

from support.costs import measurements, work

from sortal.config import Discovery
from sortal.discovery import defaults
from sortal.discovery.costs import (
    CHECK_SECONDS,
    CLUSTER_SECONDS,
    CLUSTER_SECONDS_ON_CPU,
    COMPARE_SECONDS_ON_CPU,
    EPOCH_SECONDS,
    K_SECONDS,
    K_SECONDS_ON_CPU,
    RECORD_BYTES,
    REPORT_SECONDS,
    SAVE_SECONDS,
    disk,
    memory,
    model_bytes,
    seconds,
)
from sortal.discovery.sampling import TABLE_BYTES
from sortal.learning import token_cache
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.features import LARGEST_FEATURE_FILE
from sortal.learning.methods import make

SMALL = Discovery(backbone="convnet", method="gcd", epochs=3)
ORDER = ("pixels", "check", "learn", "features", "k", "clusters", "report")


def test_the_size_of_a_model_counts_its_weights_and_two_checkpoints() -> None:
    """RankStats trains the small network and 3 outputs by 512 features and a bias, UNO the same without biases."""
    backbone = load_backbone("convnet")
    model = sum(4 * value.numel() for value in backbone.net.state_dict().values())
    assert model_bytes(backbone, None) == model
    by_method: dict[str, int] = {"rankstats": 513, "uno": 512}
    for name, outputs in by_method.items():
        recipe = defaults.recipe_for(replace(SMALL, method=name), 40, on_gpu=False)
        method = make(recipe, backbone, k=3, known=[0, 1])
        assert model_bytes(backbone, method) == model + 4 * (model + 4 * 3 * outputs), "weights and momentum, twice"


def test_disk_space_is_the_sum_of_its_parts() -> None:
    """10 images of 3 features: pixels, a report as large, features twice, the model and tables."""
    needed = 10 * 300 + 10 * 300 + 10 * 2 * 12 + 70 + 10 * TABLE_BYTES
    few = work(learned=10)
    assert disk(few, measurements(), 70, None) == needed
    assert disk(few, measurements(), 70, token_cache.TokenPlan(50, "file")) == needed + 50
    assert disk(few, measurements(), 70, token_cache.TokenPlan(50, "memory")) == needed
    counted = disk(replace(few, counts=2), measurements(), 70, None)
    assert counted == needed + 10 * 2 * 12 + 2 * 70, "each round has features and a model"
    assert disk(replace(few, counts=2, pilot=True), measurements(), 70, None) == counted + 10 * 12 + 70
    assert disk(replace(few, rest=5), measurements(), 70, None) == needed + 5 * (2 * 12 + TABLE_BYTES)


def test_memory_is_that_of_the_largest_stage() -> None:
    few, large = work(learned=10), measurements(base=7, working=10**9)
    names = 10 * RECORD_BYTES
    assert memory(few, large, None) == 7 + names + 10**9
    assert memory(few, large, token_cache.TokenPlan(50, "memory")) == 7 + names + 10**9 + 50
    assert memory(few, large, token_cache.TokenPlan(50, "device")) == 7 + names + 10**9
    small = measurements(base=7, working=0)
    assert memory(work(learned=10, width=10**5), small, None) == 7 + names + 3 * 4 * 10 * 10**5, "features three times"
    many = memory(work(learned=10**6, width=1000), small, None)
    assert many == 7 + 10**6 * RECORD_BYTES + 2 * LARGEST_FEATURE_FILE, "large ones are in files"


def test_times_are_counts_multiplied_by_rates() -> None:
    def times(order: tuple[str, ...] = ORDER, **changes: Any) -> dict[str, float]:
        return seconds(order, work(**changes), measurements(crop=0.125), 10**9)

    k, clusters = (fixed + 100_000 * 2 * 3 * each for fixed, each in (K_SECONDS, CLUSTER_SECONDS))
    usual = times(learned=100_000, through_trunk=80, steps=20.5)
    assert usual == {
        "pixels": 2000.0,
        "check": round(100_000 * CHECK_SECONDS, 3),
        "learn": 80 * 0.125 + 20.5 * 2,
        "features": 25_000.0,
        "k": round(k, 3),
        "clusters": round(2 * clusters, 3),
        "report": round(REPORT_SECONDS[0] + 8000 * REPORT_SECONDS[1], 3),
    }
    counted = times(learned=100_000, counts=2)
    k, clusters = (each + 100_000 * 2 * 3 * rate for each, rate in ((k, K_SECONDS[1]), (clusters, CLUSTER_SECONDS[1])))
    assert counted["learn"] == round(25_000 + 2 * (25_000 + 2 * (k + clusters)), 3)
    assert times(learned=100_000, counts=2, pilot=True)["learn"] == round(counted["learn"] + 25_000, 3)
    assert counted["clusters"] == round(4 * clusters, 3)
    kept = times(learned=100_000, counts=2, kept=True)
    assert kept["learn"] == round(25_000 + 2 * 2 * (k + clusters), 3), "only the first pass is a whole one"
    assert kept["features"] == 0
    assert counted["k"] == round(k, 3), "features of contrast are beside those of a classifier"
    first = times(order=("pixels", "check", "k", "learn", "features", "clusters", "report"), learned=100_000)
    assert first["k"] == round(usual["k"] + 25_000, 3), "k is estimated on features of its own"
    neither = times(learned=100_000, estimates_k=False, clusters=False)
    assert (neither["k"], neither["clusters"]) == (0, 0)


def test_training_ends_epochs_and_saves_its_rounds() -> None:
    """Ends of epochs are counted on a GPU alone; elsewhere their health is a share of a step."""

    def learned(**changes: Any) -> float:
        return seconds(ORDER, work(**changes), measurements(), 10**9)["learn"]

    saved = SAVE_SECONDS * 10**9
    assert learned(epochs=50) == round(50 * EPOCH_SECONDS + saved, 3)
    assert learned(epochs=50, on_gpu=False) == round(saved, 3)
    assert learned() == 0, "nothing is saved where nothing is trained"
    counted = {"counts": 4, "pilot": True, "kept": True}
    assert round(learned(epochs=50, **counted) - learned(**counted), 3) == round(50 * EPOCH_SECONDS + 6 * saved, 3)


def test_sortals_own_method_compares_images_first_which_takes_time_without_a_gpu() -> None:
    found = seconds(ORDER, work(learned=100, counts=1, k=0, on_gpu=False), measurements(threads=4, view=0.0), 0)
    assert found["learn"] == round(100 * COMPARE_SECONDS_ON_CPU * 2 / 4, 3)


def test_a_cpu_clusters_in_proportion_and_a_gpu_takes_its_time_for_few_images() -> None:
    def times(**changes: Any) -> tuple[float, float]:
        found = seconds(ORDER, work(**changes), measurements(threads=1), 0)
        return found["k"], found["clusters"]

    product = 100_000 * 2 * 3
    one_thread = (2 * product * K_SECONDS_ON_CPU, 2 * 2 * product * CLUSTER_SECONDS_ON_CPU)
    assert times(learned=100_000, on_gpu=False) == tuple(round(each, 3) for each in one_thread)
    assert times(learned=1, on_gpu=False) == (0, 0)
    assert times(learned=1) == (round(K_SECONDS[0], 3), round(2 * CLUSTER_SECONDS[0], 3))
