"""Published figures: DINO ViT-B/16, accuracy on unlabelled images with true k, in %.

k-means, RankStats+, UNO+ and GCD, the numbers of classes and the ablation: Vaze, Han, Vedaldi, Zisserman, Generalized
Category Discovery, CVPR 2022. SimGCD: Wen, Zhao, Qi, Parametric Classification for Generalized Category Discovery: A
Baseline Study, ICCV 2023, means of five runs.
"""

from dataclasses import dataclass

Triple = tuple[float, float, float]  # all, old, new

ACCURACY: dict[str, dict[str, Triple]] = {
    "cifar10": {
        "kmeans": (83.6, 85.7, 82.5),
        "rankstats": (46.8, 19.2, 60.5),
        "uno": (68.6, 98.3, 53.8),
        "gcd": (91.5, 97.9, 88.2),
        "simgcd": (97.0, 93.9, 98.5),
    },
    "cifar100": {
        "kmeans": (52.0, 52.2, 50.8),
        "rankstats": (58.2, 77.6, 19.3),
        "uno": (69.5, 80.6, 47.2),
        "gcd": (73.0, 76.2, 66.5),
        "simgcd": (79.8, 81.1, 77.4),
    },
    "imagenet100": {
        "kmeans": (72.7, 75.5, 71.3),
        "rankstats": (37.1, 61.6, 24.8),
        "uno": (70.3, 95.0, 57.9),
        "gcd": (74.1, 89.8, 66.3),
        "simgcd": (83.6, 92.4, 79.1),
    },
    "cub": {
        "kmeans": (34.3, 38.9, 32.1),
        "rankstats": (33.3, 51.6, 24.2),
        "uno": (35.1, 49.0, 28.1),
        "gcd": (51.3, 56.6, 48.7),
        "simgcd": (61.5, 65.7, 59.4),
    },
    "stanford_cars": {
        "kmeans": (12.8, 10.6, 13.8),
        "rankstats": (28.3, 61.8, 12.1),
        "uno": (35.5, 70.5, 18.6),
        "gcd": (39.0, 57.6, 29.9),
        "simgcd": (53.4, 71.5, 44.6),
    },
    "fgvc_aircraft": {
        "kmeans": (16.0, 14.4, 16.8),
        "rankstats": (26.9, 36.4, 22.2),
        "uno": (40.3, 56.4, 32.2),
        "gcd": (45.0, 41.1, 46.9),
        "simgcd": (54.3, 59.4, 51.7),
    },
    "herbarium19": {
        "kmeans": (12.9, 12.9, 12.8),
        "rankstats": (27.9, 55.8, 12.8),
        "uno": (28.3, 53.7, 14.7),
        "gcd": (35.4, 51.0, 27.0),
        "simgcd": (44.2, 57.6, 37.0),
    },
}
ABLATION: dict[str, dict[int, Triple]] = {
    "cifar100": {
        1: (34.0, 34.8, 32.4),
        2: (52.0, 52.2, 50.8),
        3: (54.6, 54.1, 53.7),
        4: (60.5, 72.2, 35.0),
        5: (71.1, 78.3, 56.6),
        6: (73.0, 76.2, 66.5),
    },
    "herbarium19": {
        1: (12.1, 12.5, 11.9),
        2: (12.9, 12.9, 12.8),
        3: (14.3, 15.1, 13.9),
        4: (17.8, 22.7, 15.4),
        5: (28.7, 32.1, 26.9),
        6: (35.4, 51.0, 27.0),
    },
}
K: dict[str, tuple[int, int]] = {  # estimated, true
    "cifar10": (9, 10),
    "cifar100": (100, 100),
    "imagenet100": (109, 100),
    "cub": (231, 200),
    "stanford_cars": (230, 196),
    "herbarium19": (520, 683),
}


@dataclass(frozen=True, kw_only=True)
class Published:
    """The published figures of a preset."""

    accuracy: Triple | None = None
    k: tuple[int, int] | None = None  # estimated, true


def of(name: str) -> Published:
    """Return the published figures of the preset of this name; empty for any other name."""
    table, _, rest = name.partition("/")
    dataset, _, row = rest.partition("/")
    if table == "table4":
        return Published(k=K.get(rest))
    if table == "table5":
        return Published(accuracy=ABLATION.get(dataset, {}).get(int(row)) if row.isdecimal() else None)
    return Published(accuracy=ACCURACY.get(dataset, {}).get(row) if table in ("table2", "table3", "table6") else None)
