"""Seeding: SplitMix64 as published, the D² law against exact probabilities, and independence of row order."""

from collections import Counter, defaultdict
from itertools import permutations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from sklearn.datasets import load_digits
from torch import Tensor

from sortal.clustering import seeding
from sortal.clustering.points import Points
from sortal.clustering.seeding import Seeds, exponentials, row_keys, splitmix64

untimed = settings(deadline=None, max_examples=50)
WORD = 1 << 64
GOLDEN, MIX1, MIX2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
CHANCE = 1e-5  # a smaller p-value is no accident: there are only ten of them here
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def splitmix(z: int) -> int:
    """Compute one output of SplitMix64 in Python integers."""
    z = (z + GOLDEN) % WORD
    z = (z ^ (z >> 30)) * MIX1 % WORD
    z = (z ^ (z >> 27)) * MIX2 % WORD
    return z ^ (z >> 31)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def shuffled(n: int, seed: int = 1) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def seeded(points: Points, restarts: int, fixed: Tensor | None = None, candidates: int = 1) -> Seeds:
    """Make the seeds of restarts 0, 1, ...; `fixed` are in the coordinates of the data."""
    first = points.x[:0] if fixed is None else (fixed.double() - points.mean).to(points.x.dtype)
    return Seeds(points, row_keys(points), list(range(restarts)), first, candidates)


def rows_of(seeds: Seeds, x: Tensor, skip: int = 0) -> Tensor:
    """Find the row of x, the first of its copies, that each drawn centre is, (g, k)."""
    centres = seeds.centres[:, skip:].double() + seeds.points.mean
    distance = (centres[:, :, None] - x.double()).square().sum(3).sqrt()
    same = distance <= 1e-5 * x.abs().max()  # centres are rounded; other rows are much farther
    assert same.any(2).all()
    return same.int().argmax(2)


# Random numbers


@untimed
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_splitmix64_matches_the_published_numbers(values: list[int]) -> None:
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [splitmix(i * GOLDEN % WORD) for i in range(3)] == published
    assert [z % WORD for z in splitmix64(torch.tensor(values)).tolist()] == [splitmix(z % WORD) for z in values]


@pytest.mark.parametrize("word", [0, -1])
def test_exponentials_are_positive_and_finite(word: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even for the smallest and the largest random word: a time of 0 would be 0/0 for a copy of a centre."""
    monkeypatch.setattr(seeding, "splitmix64", lambda z: torch.full_like(z, word))
    for dtype in (torch.float32, torch.float64):
        assert 0 < float(exponentials(torch.tensor([7]), torch.tensor([[9]]), dtype)) < 40


# Keys

SETS = {
    "binary": torch.unique((normal(500, 32) > 0).float(), dim=0),
    "digits": torch.from_numpy(load_digits().data[:, 1:]),  # whole numbers 0–16, no two rows alike
    "signs": torch.where(normal(300_000, 40) > 0, 1.0, -1.0),  # all floats end in the same zero bits
    "alike in float32": 1 + 1e-12 * normal(500, 8).double(),
    "infinite in float32": 1e100 * normal(500, 8).double(),
}


@pytest.mark.parametrize("name", SETS)
def test_keys_depend_on_content_and_not_on_order_or_precision(name: str) -> None:
    x = SETS[name]
    order = shuffled(len(x))
    for same in (x, x.float(), x.double()) if name not in ("alike in float32", "infinite in float32") else (x,):
        keys = row_keys(Points(same))
        assert torch.equal(row_keys(Points(x)), keys)
        assert torch.equal(row_keys(Points(same[order])), keys[order])
    assert len(torch.unique(keys)) == len(x)


@dtypes
def test_keys_tell_copies_apart_and_depend_on_every_bit_but_the_sign_of_zero(dtype: torch.dtype) -> None:
    x = normal(40, 3).to(dtype).repeat(5, 1)
    keys, order = row_keys(Points(x)), shuffled(200)
    assert len(torch.unique(keys)) == 200
    again = torch.empty_like(keys)
    again[order] = row_keys(Points(x[order]))
    assert torch.equal(again.view(5, 40).sort(0).values, keys.view(5, 40).sort(0).values), "copies swap keys"
    x = torch.tensor([[0.0, 1.0, 2.0]], dtype=dtype)
    changed = [x.flip(1), -x, x.nextafter(torch.tensor(9, dtype=dtype)), x[:, [0, 2, 1]], x[:, :2]]
    assert len({int(row_keys(Points(other))) for other in [x, x * torch.tensor([-1, 1, 1]), *changed]}) == 6


def test_keys_do_not_depend_on_the_memory_layout() -> None:
    x = normal(30, 6)
    keys, free = row_keys(Points(x)), torch.arange(0, 30, 2)
    for same in (Points(x.T.contiguous().T), Points(x, budget=1)):
        assert torch.equal(row_keys(same), keys)
    for some in (Points(x, free), Points(x, free, budget=1)):
        assert torch.equal(row_keys(some), keys[free])
    assert row_keys(Points(x, free[:0])).shape == (0,)


# The D² law

UNEVEN = [[0.0, 0.0], [1.0, 0.3], [0.2, 2.1], [3.3, 1.0], [-2.6, -1.2], [7.0, 6.0]]
PAIRED = [[0.0, 0.0], [1.0, 0.1], [0.0, 2.3], [3.0, 1.0], [-2.0, -1.4], [4.1, -1.0]]  # the fourth and the last
PLANE = [[0.0, 0.0], [1.0, 0.0], [0.0, 2.0], [3.0, 1.0], [-2.0, -1.0]]


def law(
    places: list[list[float]], copies: list[int], draws: int, fixed: list[list[float]], candidates: int = 1
) -> dict[tuple[int, ...], float]:
    """Compute the probability of every sequence of places by enumerating the candidates in order.

    Candidates often tie exactly: two rows that only win each other. The first candidate is taken.
    """

    def squared(a: list[float], b: list[float]) -> float:
        return sum((p - q) ** 2 for p, q in zip(a, b, strict=True))

    rows = [i for i, n in enumerate(copies) for _ in range(n)]
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(draws):
        longer: defaultdict[tuple[int, ...], float] = defaultdict(float)
        for sequence, before in found.items():
            centres = fixed + [places[i] for i in sequence]
            weight = [min((squared(places[i], c) for c in centres), default=1.0) for i in rows]
            left = [
                round(sum(min(w, squared(places[r], place)) for w, r in zip(weight, rows, strict=True)), 9)
                for place in places
            ]
            moving = [r for r in range(len(rows)) if weight[r]]
            for order in permutations(moving, min(candidates if centres else 1, len(moving))):
                probability, total = before, sum(weight)
                for r in order:
                    probability *= weight[r] / total
                    total -= weight[r]
                longer[(*sequence, min((rows[r] for r in order), key=left.__getitem__))] += probability
        found = dict(longer)
    return found


# Places, copies of each, rows to draw, labelled means, candidates.
LAWS: dict[str, tuple[list[list[float]], list[int], int, list[list[float]], int]] = {
    "triples of copies": (PLANE, [4, 1, 3, 1, 2], 3, [], 1),
    "labelled, on a row": (PLANE, [4, 1, 3, 1, 2], 3, [[1.0, 0.0]], 1),
    "the better of two copies": (UNEVEN, [2, 1, 3, 1, 1, 1], 3, [], 2),
    "the best of three, labelled": (UNEVEN, [1, 1, 1, 1, 1, 1], 3, [[4.0, 4.5]], 3),
    "equally good two": (PAIRED, [1, 1, 1, 1, 1, 1], 3, [[0.3, -0.4]], 2),
}


@pytest.mark.parametrize(
    ("name", "dtype", "scale", "offset"),
    [
        *((name, torch.float32, 1, 0) for name in LAWS),
        ("labelled, on a row", torch.float64, 1, 0),
        ("the best of three, labelled", torch.float64, 1, 0),
        ("equally good two", torch.float32, 1, 30),
        ("the better of two copies", torch.float32, 1e-17, 0),
    ],
)
def test_draws_follow_the_d2_law(name: str, dtype: torch.dtype, scale: float, offset: float) -> None:
    places, copies, draws, fixed, candidates = LAWS[name]
    distinct = torch.tensor(places, dtype=dtype) * scale + offset
    x = distinct.repeat_interleave(torch.tensor(copies), 0)
    first = (torch.tensor(fixed, dtype=dtype).view(-1, x.shape[1])) * scale + offset
    n = 20_000
    seeds = seeded(Points(x), n, first, candidates).grow(len(fixed) + draws)
    drawn = Counter(tuple(row) for row in rows_of(seeds, distinct, skip=len(fixed)).tolist())
    expected = law(places, copies, draws, fixed, candidates)
    assert drawn.keys() <= expected.keys()
    # Sequences expected fewer than five times share a bin, as the chi-square test requires.
    bins: defaultdict[tuple[int, ...] | None, list[float]] = defaultdict(lambda: [0, 0])
    for sequence, p in expected.items():
        together = bins[sequence if n * p >= 5 else None]
        together[0] += drawn[sequence]
        together[1] += n * p
    assert chisquare(*zip(*bins.values(), strict=True)).pvalue > CHANCE


# Growth


@st.composite
def grids(draw: st.DrawFn) -> Tensor:
    """Draw rows of small integers, many of them copies, at any offset."""
    d = draw(st.integers(1, 3))
    rows = draw(st.lists(st.lists(st.integers(-2, 2), min_size=d, max_size=d), min_size=1, max_size=25))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    return torch.tensor(rows, dtype=dtype) + draw(st.sampled_from([0, 5, 100]))


@untimed
@given(grids(), st.integers(1, 4), st.integers(1, 4))
@example(torch.tensor([[100.0, 100.0]] * 3 + [[99.0, 100.0], [100.0, 99.0]]), 2, 1)
def test_no_row_is_drawn_twice_while_another_is_left(x: Tensor, candidates: int, more: int) -> None:
    distinct, points = torch.unique(x, dim=0), Points(x)
    seeds = seeded(points, 4, candidates=candidates).grow(len(distinct))
    assert rows_of(seeds, distinct).sort(1).values.tolist() == [list(range(len(distinct)))] * 4
    copies = torch.unique(x, dim=0, return_inverse=True)[1].sort().values.tolist()
    assert rows_of(seeds.grow(len(x)), distinct).sort(1).values.tolist() == [copies] * 4
    beyond = seeded(points, 2, x[:1] + 1, candidates).grow(1 + len(x) + more)  # any rows will do
    assert beyond.centres.isfinite().all()
    rows_of(beyond, x, skip=1)


def test_copies_of_a_centre_have_no_weight_despite_rounding() -> None:
    distinct = normal(5, 16) + 10_000
    x = distinct.repeat_interleave(torch.tensor([2000, 2000, 1, 1, 1]), 0)
    seeds = seeded(Points(x), 50).grow(5)
    assert rows_of(seeds, distinct).sort(1).values.tolist() == [[0, 1, 2, 3, 4]] * 50


@dtypes
@pytest.mark.parametrize(("c", "offset"), [(0, 0), (1, 0), (3, 20)])
def test_nearest_best_and_second_match_an_oracle(c: int, offset: float, dtype: torch.dtype) -> None:
    x = (normal(200, 5) + offset).to(dtype)
    points = Points(x, budget=64)
    seeds = seeded(points, 4, (normal(c, 5, seed=8) + offset).to(dtype))
    for k in sorted({max(c, 1), 2, 12}):
        seeds.grow(k)
        places = seeds.centres.double() + points.mean
        squared = (x.double()[None, :, None] - places[:, None]).square().sum(3)  # (g, n, k)
        values, order = torch.cat([squared, torch.full((4, 200, 1), torch.inf)], 2).sort(2)
        # Scores lack the norms, which are rounded too.
        off = points.slack(torch.linalg.vector_norm(seeds.centres, dim=2)) + points.digits * points.norms
        assert ((seeds.best + points.norms - values[:, :, 0]).abs() <= off).all()
        if seeds.centres.shape[1] == 1:
            assert (seeds.second == torch.inf).all()
        else:
            assert ((seeds.second + points.norms - values[:, :, 1]).abs() <= off).all()
        clear = values[:, :, 1] - values[:, :, 0] > 2 * off
        assert clear.double().mean() > 0.9
        assert torch.equal(seeds.nearest[clear], order[:, :, 0][clear])


def test_a_tie_goes_to_the_earlier_centre() -> None:
    x = torch.tensor([[0.0], [2.0], [1.0]])
    seeds = seeded(Points(x), 20).grow(2)
    for nearest, drawn in zip(seeds.nearest.tolist(), rows_of(seeds, x).tolist(), strict=True):
        if 2 not in drawn:
            assert nearest[2] == 0
    assert (rows_of(seeds, x) != 2).all(1).any()
    between = seeded(Points(x), 1, x[:2])
    assert between.nearest.tolist() == [[0, 1, 0]]
    assert between.best[0, 2] == between.second[0, 2]
    none = seeded(Points(x, torch.empty(0, dtype=torch.int64)), 2, x)  # no row is left to draw from
    assert (none.centres.shape, none.best.shape, none.nearest.shape) == ((2, 3, 1), (2, 0), (2, 0))


@pytest.mark.parametrize("candidates", [1, 3])
@pytest.mark.parametrize("fixed", [None, normal(2, 4, seed=7)], ids=["plain", "labelled"])
def test_centres_depend_on_rows_and_seed_alone(fixed: Tensor | None, candidates: int) -> None:
    """Not on the order of the rows, on other restarts, on the memory layout, or on how many are drawn."""
    x, skip = normal(300, 4), 0 if fixed is None else 2
    x[250:] = x[:50]
    order = shuffled(300)
    for offset in (0, 100):
        x, fixed = x + offset, None if fixed is None else fixed + offset
        one = seeded(Points(x), 10, fixed, candidates).grow(20)
        other = seeded(Points(x[order]), 10, fixed, candidates).grow(20)
        assert torch.equal(rows_of(one, x, skip), rows_of(other, x, skip))
    assert len({tuple(row) for row in rows_of(one, x, skip).tolist()}) == 10  # restarts differ
    points, first = Points(x), one.centres[0, :skip]
    if fixed is not None:
        torch.testing.assert_close(first + points.mean.float(), fixed)
    small = Points(torch.cat([x, x + 50]), torch.arange(300), mean=points.mean, budget=100)
    for some in (points, small):
        alone = Seeds(some, row_keys(some), [4], first, candidates).grow(20)
        assert torch.equal(rows_of(alone, x, skip)[0], rows_of(one, x, skip)[4])
    few = seeded(points, 10, fixed, candidates).grow(5)
    assert few.centres.shape[1] == 5
    assert torch.equal(one.centres[:, :5], few.centres)
    for k in (20, 3):  # there is nothing to draw for 3
        few.grow(k)
        for name in ("centres", "nearest", "best", "second"):
            assert torch.equal(getattr(few, name), getattr(one, name)), (k, name)
