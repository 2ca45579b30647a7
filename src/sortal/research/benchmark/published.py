"""Published figures: DINO ViT-B/16, accuracy on unlabelled images with true k, in %.

k-means, RankStats+, UNO+ and GCD, the numbers of classes and the ablation: Vaze, Han, Vedaldi, Zisserman, Generalized
Category Discovery, CVPR 2022. SimGCD: Wen, Zhao, Qi, Parametric Classification for Generalized Category Discovery: A
Baseline Study, ICCV 2023, means of five runs. LegoGCD: Cao et al., Solving the Catastrophic Forgetting Problem in
Generalized Category Discovery, CVPR 2024. DebGCD: Liu, Han, DebGCD: Debiased Learning with Distribution Guidance for
Generalized Category Discovery, ICLR 2025, at the epoch with the best true accuracy. RLCD: Liu et al., Generalized
Category Discovery via Reciprocal Learning and Class-Wise Distribution Regularization, ICML 2025; All only. Hyp-SelEx:
Liu, He, Han, Hyperbolic Category Discovery, CVPR 2025.
"""

from typing import TypeAlias

Shares: TypeAlias = tuple[float | None, ...]  # all, old, new; None is unknown


def _read(table: str) -> dict[str, dict[str, Shares]]:
    """Return the figures of each data set by column."""
    header, *rows = (line.split() for line in table.splitlines())
    return {
        dataset: {row: _shares(cell) for row, cell in zip(header, cells, strict=True) if cell != "-"}
        for dataset, *cells in rows
    }


def _shares(cell: str) -> Shares:
    return tuple(None if each == "-" else float(each) for each in cell.split("/"))


ACCURACY = _read("""\
              kmeans         rankstats      uno            gcd            simgcd
cifar10       83.6/85.7/82.5 46.8/19.2/60.5 68.6/98.3/53.8 91.5/97.9/88.2 97.0/93.9/98.5
cifar100      52.0/52.2/50.8 58.2/77.6/19.3 69.5/80.6/47.2 73.0/76.2/66.5 79.8/81.1/77.4
imagenet100   72.7/75.5/71.3 37.1/61.6/24.8 70.3/95.0/57.9 74.1/89.8/66.3 83.6/92.4/79.1
cub           34.3/38.9/32.1 33.3/51.6/24.2 35.1/49.0/28.1 51.3/56.6/48.7 61.5/65.7/59.4
stanford_cars 12.8/10.6/13.8 28.3/61.8/12.1 35.5/70.5/18.6 39.0/57.6/29.9 53.4/71.5/44.6
fgvc_aircraft 16.0/14.4/16.8 26.9/36.4/22.2 40.3/56.4/32.2 45.0/41.1/46.9 54.3/59.4/51.7
herbarium19   12.9/12.9/12.8 27.9/55.8/12.8 28.3/53.7/14.7 35.4/51.0/27.0 44.2/57.6/37.0
""")
RIVAL_FIGURES = _read("""\
              legogcd        rlcd     debgcd         cms            selex          hyp-selex
cub           63.8/71.9/59.8 70.0/-/- 66.3/71.8/63.5 68.2/76.5/64.0 73.6/75.3/72.8 79.8/75.8/81.8
stanford_cars 57.3/75.7/48.4 64.9/-/- 65.3/81.6/57.4 56.9/76.1/47.6 58.5/75.6/50.3 62.9/80.0/54.7
fgvc_aircraft 55.0/61.5/51.7 60.6/-/- 61.7/63.9/60.6 56.0/63.4/52.3 57.1/64.7/53.3 65.9/67.3/65.1
cifar100      81.8/81.4/82.5 83.4/-/- 83.0/84.6/79.9 82.3/85.7/75.5 82.3/85.3/76.3 82.4/85.1/77.0
imagenet100   86.3/94.5/82.1 86.9/-/- 85.9/94.3/81.6 84.7/95.6/79.2 83.1/93.6/77.8 86.8/94.6/82.8
herbarium19   45.1/57.4/38.4 46.4/-/- 44.7/59.4/36.8 36.4/54.9/26.4 39.6/54.9/31.3 -
""")
ABLATION = _read("""\
              1              2              3              4              5              6
cifar100      34.0/34.8/32.4 52.0/52.2/50.8 54.6/54.1/53.7 60.5/72.2/35.0 71.1/78.3/56.6 73.0/76.2/66.5
herbarium19   12.1/12.5/11.9 12.9/12.9/12.8 14.3/15.1/13.9 17.8/22.7/15.4 28.7/32.1/26.9 35.4/51.0/27.0
""")
BY_TABLE = {"table2": ACCURACY, "table3": ACCURACY, "table5": ABLATION, "table6": ACCURACY, "rivals": RIVAL_FIGURES}
CLASS_COUNTS: dict[str, tuple[int, int]] = {  # estimated, true
    "cifar10": (9, 10),
    "cifar100": (100, 100),
    "imagenet100": (109, 100),
    "cub": (231, 200),
    "stanford_cars": (230, 196),
    "herbarium19": (520, 683),
}


def accuracy(preset: str) -> Shares | None:
    """Return the published accuracies of the preset of this name; None for Sortal's own method."""
    table, dataset, row = preset.split("/")
    return BY_TABLE[table][dataset].get(row)
