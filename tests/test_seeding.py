"""Seeding: SplitMix64 as published, the D² law against exact probabilities, and what must leave no trace."""

from collections import Counter, defaultdict
from itertools import permutations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest
from sklearn.datasets import load_digits
from torch import Tensor

from sortal.points import Points
from sortal.seeding import Seeds, exponentials, mix, row_keys

untimed = settings(deadline=None)
WORD = 1 << 64
GOLDEN, MIX1, MIX2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
CHANCE = 1e-5  # below it, a p-value is no accident: there are some sixty of them here
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def signed(z: int) -> int:
    return (z + WORD // 2) % WORD - WORD // 2


def splitmix(z: int) -> int:
    """One output of SplitMix64 in whole numbers."""
    z = (z + GOLDEN) % WORD
    z = (z ^ (z >> 30)) * MIX1 % WORD
    z = (z ^ (z >> 27)) * MIX2 % WORD
    return z ^ (z >> 31)


def splitmix_inverse(z: int) -> int:
    for shift, factor in ((31, MIX2), (27, MIX1), (30, 1)):
        z ^= (z >> shift) ^ (z >> 2 * shift)
        z = z * pow(factor, -1, WORD) % WORD
    return (z - GOLDEN) % WORD


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def shuffled(n: int, seed: int = 1) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def seeded(points: Points, restarts: int, fixed: Tensor | None = None, candidates: int = 1) -> Seeds:
    """Seeds of restarts 0, 1, ...; `fixed` are places as they are."""
    first = points.x[:0] if fixed is None else (fixed.double() - points.mean).to(points.x.dtype)
    return Seeds(points, row_keys(points), list(range(restarts)), first, candidates)


def rows_of(seeds: Seeds, x: Tensor, skip: int = 0) -> Tensor:
    """(g, k): which row of x each centre drawn is, the first of its copies; it must be one."""
    centres = seeds.centres[:, skip:].double() + seeds.points.mean
    distance = (centres[:, :, None] - x.double()).square().sum(3).sqrt()
    least, index = distance.min(2)
    assert least.max() <= 1e-5 * x.abs().max()
    return index


# Random numbers


def test_mix_is_splitmix64() -> None:
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC, 0x1B39896A51A8749B]
    states = [signed(i * GOLDEN % WORD) for i in range(5)]
    assert [int(z) % WORD for z in mix(torch.tensor(states))] == published


@untimed
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_mix_agrees_with_whole_numbers_and_loses_nothing(values: list[int]) -> None:
    mixed = mix(torch.tensor(values)).tolist()
    assert mixed == [signed(splitmix(z % WORD)) for z in values]
    assert [signed(splitmix_inverse(z % WORD)) for z in mixed] == values


@dtypes
def test_clocks_are_exponential_over_rows_and_over_restarts(dtype: torch.dtype) -> None:
    keys = row_keys(Points(torch.arange(20_000, dtype=dtype)[:, None]))
    for clocks in (exponentials(keys, [5], dtype)[0], exponentials(keys[:1], list(range(20_000)), dtype)[:, 0]):
        assert clocks.dtype == dtype
        assert kstest(clocks.double().numpy(), "expon").pvalue > CHANCE
        assert float(clocks.double().mean()) == pytest.approx(1, abs=0.03)  # four standard errors
    pair = exponentials(keys, [5, 6], dtype).double()
    assert abs(float(torch.corrcoef(pair)[0, 1])) < 0.03
    assert abs(float(torch.corrcoef(torch.stack([pair[0, 1:], pair[0, :-1]]))[0, 1])) < 0.03


def test_clocks_depend_on_seed_and_key_alone() -> None:
    keys = row_keys(Points(normal(50, 3)))
    clocks = exponentials(keys, [3, 4, 5], torch.float64)
    some = torch.tensor([7, 3, 20])
    torch.testing.assert_close(exponentials(keys[some], [5, 3], torch.float64), clocks[[2, 0]][:, some], rtol=0, atol=0)
    assert len(torch.unique(clocks)) == clocks.numel()


@dtypes
@pytest.mark.parametrize("word", [0, WORD - 1, WORD - 1 - 2**11, 2**63])
def test_every_clock_runs(word: int, dtype: torch.dtype) -> None:
    """Also the first and the last of all random numbers: a clock at zero would be 0/0 for a copy of a centre."""
    key = torch.tensor([signed(splitmix_inverse(word) ^ splitmix(9))])
    clock = float(exponentials(key, [9], dtype))
    assert 0 < clock < 40


# Keys

SETS = {
    "normal": normal(500, 8),
    "binary": torch.unique((normal(500, 32) > 0).float(), dim=0),
    "signs": torch.unique(normal(500, 32).sign(), dim=0),
    "digits": torch.from_numpy(load_digits().data[:, 1:]),  # whole numbers 0–16, no two rows alike
}


@dtypes
@pytest.mark.parametrize("name", SETS)
def test_keys_are_of_the_content_and_not_of_the_order(name: str, dtype: torch.dtype) -> None:
    x = SETS[name].to(dtype)
    keys, order = row_keys(Points(x)), shuffled(len(x))
    assert len(torch.unique(keys)) == len(x)
    assert int((row_keys(Points(x[order])) != keys[order]).sum()) == 0


@pytest.mark.parametrize("name", SETS)
def test_keys_of_the_same_numbers_are_the_same_in_either_precision(name: str) -> None:
    x = SETS[name].float()
    assert torch.equal(row_keys(Points(x)), row_keys(Points(x.double())))


def test_keys_of_many_rows_of_signs_do_not_collide() -> None:
    """Where all floats end in the same zero bits, a hash must not."""
    x = torch.where(normal(300_000, 40) > 0, 1.0, -1.0)
    keys, order = row_keys(Points(x)), shuffled(len(x))
    assert int((row_keys(Points(x[order])) != keys[order]).sum()) == 0


@pytest.mark.parametrize("x", [1 + 1e-12 * normal(500, 8).double(), 1e100 * normal(500, 8).double()], ids=["ε", "huge"])
def test_keys_tell_rows_apart_that_float32_cannot(x: Tensor) -> None:
    keys, order = row_keys(Points(x)), shuffled(500)
    assert int((row_keys(Points(x[order])) != keys[order]).sum()) == 0


@dtypes
def test_copies_have_keys_of_their_own_that_any_order_shares_out(dtype: torch.dtype) -> None:
    x = normal(40, 3).to(dtype).repeat(5, 1)
    keys, order = row_keys(Points(x)), shuffled(200)
    assert len(torch.unique(keys)) == 200
    again = torch.empty_like(keys)
    again[order] = row_keys(Points(x[order]))
    assert torch.equal(again.view(5, 40).sort(0).values, keys.view(5, 40).sort(0).values)


@dtypes
def test_keys_see_every_bit_but_the_sign_of_zero(dtype: torch.dtype) -> None:
    x = torch.tensor([[0.0, 1.0, 2.0]], dtype=dtype)
    key = row_keys(Points(x))
    assert torch.equal(row_keys(Points(torch.tensor([[-0.0, 1.0, 2.0]], dtype=dtype))), key)
    changed = [x.flip(1), -x, x.nextafter(torch.tensor(9, dtype=dtype)), x[:, [0, 2, 1]], x[:, :2]]
    assert len({int(row_keys(Points(other))) for other in [x, *changed]}) == 6


def test_keys_do_not_depend_on_where_the_rows_lie() -> None:
    x = normal(30, 6)
    keys, free = row_keys(Points(x)), torch.arange(0, 30, 2)
    assert torch.equal(row_keys(Points(x.T.contiguous().T)), keys)
    assert torch.equal(row_keys(Points(x, budget=1)), keys)
    assert torch.equal(row_keys(Points(x, free)), keys[free])
    assert torch.equal(row_keys(Points(x, free, budget=1)), keys[free])
    assert row_keys(Points(x, free[:0])).shape == (0,)


# The D² law

LINE = [[0.0], [1.0], [3.0]]
UNEVEN = [[0.0, 0.0], [1.0, 0.3], [0.2, 2.1], [3.3, 1.0], [-2.6, -1.2], [7.0, 6.0]]
PAIRED = [[0.0, 0.0], [1.0, 0.1], [0.0, 2.3], [3.0, 1.0], [-2.0, -1.4], [4.1, -1.0]]  # the fourth and the last
PLANE = [[0.0, 0.0], [1.0, 0.0], [0.0, 2.0], [3.0, 1.0], [-2.0, -1.0]]


def law(
    places: list[list[float]], copies: list[int], draws: int, fixed: list[list[float]], candidates: int = 1
) -> dict[tuple[int, ...], float]:
    """The probability of every sequence of places drawn, by enumeration of the rows that may ring first, in order.

    Candidates often leave exactly the same: two rows that only win each other. The one that rang first is taken.
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


def test_the_law_of_three_points_by_hand() -> None:
    assert law(LINE, [1, 1, 1], 2, []) == pytest.approx(
        {(0, 1): 1 / 30, (0, 2): 9 / 30, (1, 0): 1 / 15, (1, 2): 4 / 15, (2, 0): 3 / 13, (2, 1): 4 / 39}
    )
    assert law(LINE, [1, 3, 1], 1, [[0.0]]) == pytest.approx({(1,): 3 / 12, (2,): 9 / 12})
    # The better of two: 1 leaves 4 and 3 leaves 3 · 1, so that 3 is taken unless both are copies of 1.
    assert law(LINE, [1, 3, 1], 1, [[0.0]], 2) == pytest.approx({(1,): 3 / 12 * 2 / 11, (2,): 1 - 3 / 12 * 2 / 11})


@pytest.mark.parametrize(
    ("places", "copies", "draws", "fixed", "candidates"),
    [
        (LINE, [1, 1, 1], 1, [], 1),
        (LINE, [1, 1, 1], 2, [], 1),
        (LINE, [2, 5, 1], 2, [], 1),
        (PLANE, [1, 1, 1, 1, 1], 3, [], 1),
        (PLANE, [4, 1, 3, 1, 2], 3, [], 1),
        (PLANE, [1, 1, 1, 1, 1], 2, [[0.0, 1.0], [2.0, 0.0]], 1),
        (PLANE, [4, 1, 3, 1, 2], 3, [[1.0, 0.0]], 1),
        (UNEVEN, [1, 1, 1, 1, 1, 1], 3, [], 2),
        (UNEVEN, [2, 1, 3, 1, 1, 1], 3, [], 2),
        (UNEVEN, [1, 1, 1, 1, 1, 1], 3, [[4.0, 4.5]], 3),
        (PAIRED, [1, 1, 1, 1, 1, 1], 3, [[0.3, -0.4]], 2),
        (PAIRED, [1, 1, 1, 1, 1, 1], 2, [[0.3, -0.4]], 3),
        ([*PAIRED, [4.0, -0.2]], [1, 1, 1, 1, 1, 1, 1], 3, [[0.3, -0.4]], 2),
        ([*PAIRED, [4.0, -0.2]], [1, 1, 1, 1, 1, 1, 1], 2, [[0.3, -0.4]], 3),
    ],
    ids=[
        "first",
        "pairs",
        "pairs of copies",
        "triples",
        "triples of copies",
        "labelled",
        "labelled, on a row",
        "the better of two",
        "the better of two copies",
        "the best of three, labelled",
        "equally good two",
        "equally good three",
        "the better of seven",
        "the best of seven",
    ],
)
@pytest.mark.parametrize(
    ("dtype", "scale", "offset"),
    [
        (torch.float32, 1, 0),
        (torch.float64, 1, 0),
        (torch.float32, 1, 30),
        (torch.float32, 1000, 0),
        (torch.float32, 1e-17, 0),
    ],
    ids=["float32", "float64", "offset", "thousands", "tiny"],
)
def test_draws_follow_the_d2_law(
    places: list[list[float]],
    copies: list[int],
    draws: int,
    fixed: list[list[float]],
    candidates: int,
    dtype: torch.dtype,
    scale: float,
    offset: float,
) -> None:
    distinct = torch.tensor(places, dtype=dtype) * scale + offset
    x = distinct.repeat_interleave(torch.tensor(copies), 0)
    first = (torch.tensor(fixed, dtype=dtype).view(-1, x.shape[1])) * scale + offset
    n = 20_000
    seeds = seeded(Points(x), n, first, candidates).grow(len(fixed) + draws)
    drawn = Counter(tuple(row) for row in rows_of(seeds, distinct, skip=len(fixed)).tolist())
    expected = law(places, copies, draws, fixed, candidates)
    assert drawn.keys() <= expected.keys()
    # What is expected fewer than five times counts together, as the test wants it.
    rare = {sequence for sequence, p in expected.items() if n * p < 5}
    common = [sequence for sequence in expected if sequence not in rare]
    observed = [drawn[sequence] for sequence in common] + [sum(drawn[sequence] for sequence in rare)]
    hoped = [n * expected[sequence] for sequence in common] + [n * sum(expected[sequence] for sequence in rare)]
    keep = slice(None) if rare else slice(-1)
    if len(common) > 1:
        assert chisquare(observed[keep], hoped[keep]).pvalue > CHANCE


def test_more_candidates_than_rows_are_left() -> None:
    x = normal(6, 2)
    seeds = Seeds(Points(x), row_keys(Points(x)), [0, 1, 2], x[:0], 9).grow(6)
    assert sorted(rows_of(seeds, x, skip=0)[0].tolist()) == list(range(6))
    assert Seeds(Points(x), row_keys(Points(x)), [0], x[:0], 9).grow(8).centres.isfinite().all()


def test_greedy_starts_are_better() -> None:
    x = torch.cat([normal(60, 8) * 0.4 + 3 * normal(20, 8)[j] for j in range(20)])
    points, keys = Points(x), row_keys(Points(x))
    cost = [
        (Seeds(points, keys, list(range(30)), x[:0], w).grow(20).best + points.norms).sum(1).mean() for w in (1, 2, 5)
    ]
    assert cost[0] > cost[1] > cost[2]


# Growth

candidates = pytest.mark.parametrize("candidates", [1, 3])
labelled = pytest.mark.parametrize("fixed", [None, normal(2, 4, seed=7)], ids=["plain", "labelled"])


@st.composite
def grids(draw: st.DrawFn) -> Tensor:
    """Rows of small whole numbers, many of them copies, anywhere."""
    d = draw(st.integers(1, 3))
    rows = draw(st.lists(st.lists(st.integers(-2, 2), min_size=d, max_size=d), min_size=1, max_size=25))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    return torch.tensor(rows, dtype=dtype) + draw(st.sampled_from([0, 5, 100]))


@untimed
@given(grids(), st.integers(1, 4))
@example(torch.tensor([[100.0, 100.0]] * 3 + [[99.0, 100.0], [100.0, 99.0]]), 2)
def test_no_row_is_drawn_twice_while_another_is_left(x: Tensor, candidates: int) -> None:
    distinct, points = torch.unique(x, dim=0), Points(x)
    seeds = seeded(points, 4, candidates=candidates).grow(len(distinct))
    assert rows_of(seeds, distinct).sort(1).values.tolist() == [list(range(len(distinct)))] * 4
    copies = torch.unique(x, dim=0, return_inverse=True)[1].sort().values.tolist()
    assert rows_of(seeds.grow(len(x)), distinct).sort(1).values.tolist() == [copies] * 4


def test_copies_of_a_centre_weigh_nothing_however_many_and_whatever_rounding_says() -> None:
    distinct = normal(5, 16) + 10_000
    x = distinct.repeat_interleave(torch.tensor([2000, 2000, 1, 1, 1]), 0)
    seeds = seeded(Points(x), 50).grow(5)
    assert rows_of(seeds, distinct).sort(1).values.tolist() == [[0, 1, 2, 3, 4]] * 50


@untimed
@given(grids(), st.integers(1, 4), st.integers(1, 3))
def test_more_centres_than_rows_are_defined(x: Tensor, more: int, candidates: int) -> None:
    seeds = seeded(Points(x), 2, x[:1] + 1, candidates).grow(1 + len(x) + more)
    assert seeds.centres.isfinite().all()
    rows_of(seeds, x, skip=1)


def same(one: Seeds, other: Seeds) -> bool:
    return all(
        torch.equal(getattr(one, name), getattr(other, name)) for name in ("centres", "nearest", "best", "second")
    )


@candidates
@labelled
def test_the_first_centres_are_the_start_of_fewer(fixed: Tensor | None, candidates: int) -> None:
    points = Points(normal(100, 4))
    nine, five = (seeded(points, 6, fixed, candidates).grow(k) for k in (9, 5))
    assert five.drawn == 5
    assert torch.equal(nine.centres[:, :5], five.centres)
    assert same(five.grow(9), nine)
    assert same(five.grow(3), nine)  # nothing to draw
    if fixed is not None:
        torch.testing.assert_close(nine.centres[:, :2] + points.mean.float(), fixed.expand(6, -1, -1))


@dtypes
@pytest.mark.parametrize("offset", [0, 20])
@pytest.mark.parametrize("c", [0, 1, 3])
def test_nearest_best_and_second_are_those_of_an_oracle(c: int, offset: float, dtype: torch.dtype) -> None:
    x = (normal(200, 5) + offset).to(dtype)
    points = Points(x, budget=64)
    seeds = seeded(points, 4, (normal(c, 5, seed=8) + offset).to(dtype))
    for k in sorted({c, 1, 2, 12}):
        seeds.grow(k)
        if not seeds.drawn:
            continue
        places = seeds.centres.double() + points.mean
        squared = (x.double()[None, :, None] - places[:, None]).square().sum(3)  # (g, n, k)
        values, order = squared.sort(2)
        off = 1e-4 * (1 + offset) if dtype == torch.float32 else 1e-10
        torch.testing.assert_close((seeds.best + points.norms).double(), values[:, :, 0], rtol=0, atol=off)
        if seeds.drawn == 1:
            assert (seeds.second == torch.inf).all()
            continue
        torch.testing.assert_close((seeds.second + points.norms).double(), values[:, :, 1], rtol=0, atol=off)
        clear = values[:, :, 1] - values[:, :, 0] > 2 * off
        assert clear.double().mean() > 0.9
        assert torch.equal(seeds.nearest[clear], order[:, :, 0][clear])


def test_a_tie_goes_to_the_centre_that_was_there_first() -> None:
    x = torch.tensor([[0.0], [2.0], [1.0]])
    seeds = seeded(Points(x), 20).grow(2)
    for nearest, drawn in zip(seeds.nearest.tolist(), rows_of(seeds, x).tolist(), strict=True):
        if 2 not in drawn:
            assert nearest[2] == 0
    assert (rows_of(seeds, x) != 2).all(1).any()
    between = seeded(Points(x), 1, x[:2])
    assert between.nearest.tolist() == [[0, 1, 0]]
    assert between.best[0, 2] == between.second[0, 2]


@candidates
@dtypes
@labelled
def test_the_order_of_rows_changes_no_centre(fixed: Tensor | None, dtype: torch.dtype, candidates: int) -> None:
    x, skip = normal(300, 4).to(dtype), 0 if fixed is None else 2
    x[250:] = x[:50]
    order = shuffled(300)
    for offset in (0, 100):
        x, fixed = x + offset, None if fixed is None else fixed + offset
        one = seeded(Points(x), 10, fixed, candidates).grow(20)
        other = seeded(Points(x[order]), 10, fixed, candidates).grow(20)
        assert torch.equal(rows_of(one, x, skip), rows_of(other, x, skip))
    assert len({tuple(row) for row in rows_of(one, x, skip).tolist()}) == 10  # every restart goes its own way


@candidates
def test_the_centres_of_a_restart_depend_on_its_seed_alone(candidates: int) -> None:
    x = normal(300, 4)
    points, keys = Points(x), row_keys(Points(x))
    alone = Seeds(points, keys, [4], x[:0], candidates).grow(20)
    among = Seeds(points, keys, [3, 4, 5], x[:0], candidates).grow(20)
    small = Points(torch.cat([x, x + 50]), torch.arange(300), mean=points.mean, budget=100)
    piecemeal = Seeds(small, row_keys(small), [4], x[:0], candidates).grow(20)
    assert torch.equal(rows_of(alone, x)[0], rows_of(among, x)[1])
    assert torch.equal(rows_of(alone, x), rows_of(piecemeal, x))


def test_no_rows_may_be_left_to_draw_from() -> None:
    x = normal(4, 3)
    seeds = seeded(Points(x, torch.empty(0, dtype=torch.int64)), 2, x)
    assert seeds.centres.shape == (2, 4, 3)
    assert seeds.best.shape == seeds.nearest.shape == (2, 0)
