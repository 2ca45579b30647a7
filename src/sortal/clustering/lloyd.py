"""Lloyd's iterations of k-means for many restarts at once, doing only work that can change an assignment.

Each row has a centre, an upper bound on its score there, and a lower bound on its score at every other centre. When the
centres have moved, those that moved far are scored against all rows (one matrix product for all restarts); for the
others, the bounds are widened by the distance moved. A row whose bounds do not overlap keeps its centre; the rest are
scored against all centres. A cost model chooses which centres count as far. Centres that did not move cost nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from sortal.clustering.cluster_sums import ClusterSums, LabelledSums
from sortal.clustering.points import Points, nearest, scores, slices
from sortal.clustering.seeding import Seeds, row_keys

MAX_ITER = 100  # of a restart where many ks are compared
FEW_CHANGES = 5e-4  # share of the rows: then a restart that changes fewer ends, as its score hardly changes any more
SAMPLE = 1024  # rows to predict the cost of an iteration from
CHEAP = {"cpu": 1 << 26, "cuda": 1 << 37}  # multiplications that are faster than finding out which are needed
GATHER = 32  # copying a row costs about as much as scoring it against this many centres
SHRINK = 0.7  # drop finished restarts, at the cost of a copy, when at most this fraction is running
# Group restarts if the least needs at least this fraction of the most: on a GPU, padding is cheaper than more launches.
RAGGED = {"cpu": 0.75, "cuda": 0.2, "mps": 0.2}


@dataclass
class LloydState:
    """State of g restarts of k-means; centres are relative to the mean of the data."""

    centres: Tensor  # (g, k, d)
    bias: Tensor  # (g, k) contribution of each centre to a score
    lengths: Tensor  # (g, k)
    assigned: Tensor  # (g, m) int64
    upper: Tensor  # (g, m) bound on the score at the row's centre
    lower: Tensor  # (g, m) bound on the scores at all other centres
    absent: Tensor | None = None  # (g, k) mask of centres that a restart does not have, if some have fewer than others
    table: Tensor | None = None  # (g, k, m) all scores, if they fit in one array and are up to date

    @classmethod
    def at(cls, points: Points, centres: Tensor, absent: Tensor | None = None) -> Self:
        """Assign every row to the nearest of the given centres (g, k, d) that are not `absent` (g, k)."""
        shape = len(centres), points.count
        assigned = torch.zeros(shape, dtype=torch.int64, device=centres.device)
        state = cls._new(points, centres, assigned, centres.new_empty(shape), centres.new_empty(shape))
        state.absent = absent
        state._weigh(points)
        state.assign(points)
        return state

    @classmethod
    def seeded(cls, seeds: Seeds) -> Self:
        """Continue from the assignments of the seeding."""
        return cls._new(seeds.points, seeds.centres, seeds.nearest.clone(), seeds.best.clone(), seeds.second.clone())

    @classmethod
    def joined(cls, states: Sequence[Self], points: Points) -> Self:
        """Join restarts with any numbers of centres, so that they run at once."""
        if len(states) == 1:
            return states[0]
        centres, absent = padded([state.centres for state in states])
        rows = (torch.cat([getattr(state, name) for state in states]) for name in ("assigned", "upper", "lower"))
        joined = cls._new(points, centres, *rows)
        joined.absent = absent
        joined._weigh(points)
        return joined

    def _weigh(self, points: Points) -> None:
        """Set the bias of all centres: infinite, so that no row is nearest, where they are absent."""
        bias = points.bias(self.centres)
        self.bias = bias if self.absent is None else bias.masked_fill_(self.absent, torch.inf)

    @classmethod
    def _new(cls, points: Points, centres: Tensor, assigned: Tensor, upper: Tensor, lower: Tensor) -> Self:
        bias = torch.stack([points.bias(one) for one in centres])
        return cls(centres.clone(), bias, torch.linalg.vector_norm(centres, dim=2), assigned, upper, lower)

    def assign(self, points: Points, moved: Tensor | None = None) -> None:
        """Assign every row to the nearest centre, given the mask of centres that moved, (g, k); in ties rows stay."""
        g, k, d = self.centres.shape
        slack, bias, centres = points.slack(self.lengths), self.bias.flatten(), self.centres.view(g * k, d)
        quick = self.centres.numel() * points.count <= CHEAP.get(bias.device.type, 0) >> 6
        pieces = []
        for part, rows in points.chunks(g * k):
            if moved is None or self.table is None or quick:
                table = scores(bias, centres, rows).view(g, k, -1)
            else:  # reuse the scores of centres that did not move
                which, table = moved.flatten().nonzero()[:, 0], self.table
                table.view(g * k, -1)[which] = scores(bias[which], centres[which], rows)
            found = nearest(table, self.assigned[:, part], slack[:, part], self.centres, rows.expand(g, -1, -1), points)
            pieces.append(found)
            self.table = table if len(rows) == points.count else None
        if pieces:
            whole = pieces[0] if len(pieces) == 1 else [torch.cat(values, 1) for values in zip(*pieces, strict=True)]
            self.assigned, self.upper, self.lower = whole

    def __getitem__(self, restarts: Tensor) -> "LloydState":
        some: dict[str, Any] = {name: None if t is None else t[restarts] for name, t in vars(self).items()}
        return LloydState(**some)


def padded(centres: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Join centres of several restarts each, (g, k, d) with any k: (all, most, d), and the mask of the padding."""
    most = max(each.shape[1] for each in centres)
    whole = [torch.nn.functional.pad(each, (0, 0, 0, most - each.shape[1])) for each in centres]
    counts = torch.tensor([each.shape[1] for each in centres for _ in range(len(each))])
    absent = torch.arange(most) >= counts[:, None]
    return torch.cat(whole), absent.to(centres[0].device)


@dataclass(frozen=True)
class RestartResult:
    """The outcome of one restart."""

    restart: int
    centres: Tensor  # (k, d) relative to the mean
    assigned: Tensor  # (m,)
    gap: Tensor  # (m,) lower bound on the score at every other centre minus upper bound on that at the row's own
    spread: float  # inertia minus the squared distances to the mean, which are the same for every restart
    n_iter: int


def restarts(
    points: Points, fixed: LabelledSums, k: int, n_init: int, seed: int, *, candidates: int, max_iter: int, tol: float
) -> Iterator[RestartResult]:
    """Run n_init restarts, as many at once as fit in memory; `tol` is relative to the variance of the data."""
    tol *= points.variance()
    for seeds in seed_groups(points, fixed, range(seed, seed + n_init), k, candidates):
        first = seeds.seeds[0] - seed
        runs = lloyd(points, fixed, LloydState.seeded(seeds.grow(k)), max_iter=max_iter, tol=tol)
        del seeds  # as large as the state
        for ended in runs:
            yield replace(ended, restart=first + ended.restart)


def seed_groups(points: Points, fixed: LabelledSums, seeds: Sequence[int], k: int, candidates: int) -> Iterator[Seeds]:
    """Yield the starting centres of restarts, in groups that fit in memory with k centres each."""
    keys, first = row_keys(points), (fixed.means - points.mean).to(points.x.dtype)
    size = restarts_at_once(points, k)
    for start in range(0, len(seeds), size):
        yield Seeds(points, keys, list(seeds[start : start + size]), first, candidates)


def restarts_at_once(points: Points, k: int) -> int:
    """Return how many restarts of k centres fit in a few times the budget of one array, alike in all processes."""
    room = max(1, 8 * points.budget // (3 * k * points.x.shape[1] + 8 * points.count))
    return min(map(int, points.processes.gather_objects(room)))


def ks_at_once(points: Points, most: int, restarts: int = 1) -> int:
    """Return of how many ks, up to `most`, the restarts run at once: of several on a GPU, where each launch costs."""
    return max(restarts_at_once(points, most) // restarts, 1) if points.x.device.type == "cuda" else 1


def lloyd(
    points: Points, fixed: LabelledSums, state: LloydState, *, max_iter: int, tol: float, few: int = 0
) -> Iterator[RestartResult]:
    """Iterate until at most `few` rows change centres, or the centres move by at most `tol`, squared and summed."""
    number = list(range(len(state.centres)))
    _score_doubtful(points, state, points.slack(state.lengths))
    members = ClusterSums.of(points, fixed, state.assigned, state.centres.shape[1])
    if (
        state.absent is not None
    ):  # as if a row were there, at the mean: they are not empty, do not move, and add nothing
        members.counts[state.absent], members.sums[state.absent] = 1, points.mean
    touched = torch.ones_like(state.bias, dtype=torch.bool)
    empty = (members.counts == 0).any(1).tolist()
    for n_iter in range(1, max_iter + 1):
        _refill(points, state, members, touched, [r for r, some in enumerate(empty) if some and number[r] >= 0])
        shift = _recentre(points, state, members, touched)
        changed, touched = _reassign(points, state, members, shift)
        still = (changed <= few) | (shift.square().sum(1) <= tol)
        settled, empty = torch.stack([still, (members.counts == 0).any(1)]).tolist()  # the host waits only once
        ended = [r for r, done in enumerate(settled) if number[r] >= 0 and (done or n_iter == max_iter)]
        for r in ended:
            spread, gap = members.spread(points, r, state.centres[r]), state.lower[r] - state.upper[r]
            yield RestartResult(number[r], state.centres[r].clone(), state.assigned[r].clone(), gap, spread, n_iter)
            number[r] = -1
            touched[r] = False
        live = [r for r, one in enumerate(number) if one >= 0]
        if not live:
            return
        if len(live) <= SHRINK * len(number):
            number, empty = [number[r] for r in live], [empty[r] for r in live]
            kept = torch.tensor(live, device=shift.device)
            state, members, touched = state[kept], members[kept], touched[kept]


def _refill(points: Points, state: LloydState, members: ClusterSums, touched: Tensor, runs: list[int]) -> None:
    """Assign a row to each empty centre of some restarts; add the centres that gained or lost one to `touched`."""
    for r in runs:
        before = state.assigned.clone()
        rows = members.refill(points, r, state.centres[r], state.assigned[r])
        state.upper[r, rows], state.lower[r, rows] = torch.inf, -torch.inf
        pairs = torch.stack([torch.full_like(rows, r), rows], 1)
        touched |= members.move(points, pairs, before, state.assigned)


def _recentre(points: Points, state: LloydState, members: ClusterSums, touched: Tensor) -> Tensor:
    """Move the touched centres to the means of their rows, and return the distances, (g, k); empty ones stay."""
    move = touched & (members.counts > 0)
    means = (members.sums / members.counts[:, :, None]).sub_(points.mean).to(state.centres.dtype)
    means = torch.where(move[:, :, None], means, state.centres)
    shift: Tensor = torch.linalg.vector_norm(means - state.centres, dim=2)
    state.centres, state.lengths = means, torch.linalg.vector_norm(means, dim=2)
    state._weigh(points)
    return shift


def _reassign(points: Points, state: LloydState, members: ClusterSums, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Assign every row to the nearest centre and update the sums.

    Return the number of rows that changed per restart, (g,), and the mask of centres that gained or lost one, (g, k).
    """
    before = state.assigned
    if state.centres.numel() * points.count <= CHEAP.get(shift.device.type, 0):
        state.assign(points, shift > 0)
    else:
        state.assigned, state.table = before.clone(), None
        far, slack = _far(points, state, shift), points.slack(state.lengths)
        _widen(points, state, shift, far)
        _score_far(points, state, far, slack)
        _score_doubtful(points, state, slack)
    changed = state.assigned != before
    touched = members.move(points, changed.nonzero(), before, state.assigned)
    return points.processes.sum(changed.sum(1)), touched


def _distances(points: Points, state: LloydState, rows: slice) -> tuple[Tensor, Tensor]:
    """Convert the bounds of some rows to distances, widened by rounding errors: (g, r), (g, r)."""
    norms, slack = points.norms[rows], points.slack(state.lengths, rows)
    upper, lower = state.upper[:, rows] + norms + slack, state.lower[:, rows] + norms - slack
    return upper.clamp_min_(0).sqrt_(), lower.clamp_min_(0).sqrt_()


def _far(points: Points, state: LloydState, shift: Tensor) -> Tensor:
    """Choose the centres to score against all rows, (g, k) bool, so that the predicted cost is least."""
    g, k = shift.shape
    if not points.count:
        return torch.zeros_like(shift, dtype=torch.bool)
    every = slice(None, None, max(1, points.count // SAMPLE))
    upper, lower = _distances(points, state, every)
    gap, _ = (lower - upper - shift.gather(1, state.assigned[:, every])).sort(1)
    fall, order = shift.sort(1, descending=True)
    beyond = torch.cat([fall, fall.new_zeros(g, 1)], 1)  # (g, k + 1) the largest shift left if i centres are far
    doubtful = torch.searchsorted(gap, beyond.contiguous()).to(shift.dtype) / gap.shape[1]
    doubtful[beyond == 0] = 0  # unmoved centres keep their bounds
    cost = torch.arange(k + 1, device=shift.device) + doubtful * (k + GATHER)
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(k, device=shift.device).expand(g, k))
    return (rank < cost.argmin(1, keepdim=True)) & (shift > 0)


def _widen(points: Points, state: LloydState, shift: Tensor, far: Tensor) -> None:
    """Widen the bounds for centres that are not scored: a distance changes by at most the shift of the centre."""
    shift = shift.masked_fill(far, 0)
    moved = shift.amax(1) > 0
    if not moved.any():
        return
    upper, lower = _distances(points, state, slice(None))
    own = shift.gather(1, state.assigned)
    upper = (upper + own).square_() - points.norms
    lower = (lower - shift.amax(1, keepdim=True)).clamp_min_(0).square_() - points.norms
    state.upper = torch.where(own > 0, upper, state.upper)
    state.lower = torch.where(moved[:, None], lower, state.lower)


def _score_far(points: Points, state: LloydState, far: Tensor, slack: Tensor) -> None:
    """Score all rows against the far centres, update both bounds, and move rows that are clearly nearer to another.

    A row stays if its own centre was not scored, or if scores or bounds are too close to tell the nearest.
    """
    g, k, d = state.centres.shape
    arange = torch.arange(k, device=far.device)
    for group, most in _group_by_need(far.sum(1)):
        need = far[group]
        columns = need.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :most]  # (l, most)
        valid = need.gather(1, columns)
        slot = torch.zeros(len(group), k, dtype=torch.int64, device=far.device)
        slot.scatter_(1, columns, arange[:most].expand(len(group), most))
        picked = state.centres.view(g * k, d)[(group[:, None] * k + columns).flatten()]
        offset = state.bias[group].gather(1, columns).masked_fill(~valid, torch.inf).flatten()
        for part, rows in points.chunks(len(picked)):
            table = scores(offset, picked, rows).view(len(group), most, -1)
            assigned, lower = state.assigned[group, part], state.lower[group, part]
            own_far, place = need.gather(1, assigned), slot.gather(1, assigned)
            own = torch.where(own_far, table.gather(1, place[:, None])[:, 0], state.upper[group, part])
            best, first = table.min(1)
            second = table.scatter_(1, first[:, None], torch.inf).amin(1)
            others = torch.minimum(lower, second)
            moves = own_far & (best + slack[group, part] < torch.minimum(own, others))
            others = torch.where(moves | (own_far & (first == place)), others, torch.minimum(lower, best))
            state.assigned[group, part] = torch.where(moves, columns.gather(1, first), assigned)
            state.upper[group, part] = torch.where(moves, best, own)
            state.lower[group, part] = others


def _score_doubtful(points: Points, state: LloydState, slack: Tensor) -> None:
    """Score the rows whose bounds overlap, given their rounding errors (g, m), against all centres of their restart."""
    k, d = state.centres.shape[1:]
    doubtful = state.upper > state.lower - slack
    for group, most in _group_by_need(doubtful.sum(1)):
        pairs = doubtful[group].nonzero()
        run, row = pairs[:, 0], pairs[:, 1]
        # The rows of each restart, (l, most), padded with row 0; the results of the padding are dropped.
        ends = doubtful[group].sum(1).cumsum(0)
        place = torch.arange(len(run), device=run.device) - torch.nn.functional.pad(ends, (1, 0))[run]
        index = torch.zeros(len(group), most, dtype=torch.int64, device=run.device)
        index[run, place] = row
        centres, offset, runs = state.centres[group], state.bias[group][:, :, None], group[:, None]
        pieces = []
        for part in slices(most, len(group) * (k + d), points.budget):
            some = index[:, part]
            rows = points.take(some)
            table = torch.baddbmm(offset, -2 * centres, rows.transpose(1, 2))
            pieces.append(nearest(table, state.assigned[runs, some], slack[runs, some], centres, rows, points))
        found = [torch.cat(values, 1) for values in zip(*pieces, strict=True)]
        where = (group[run], row)
        state.assigned[where], state.upper[where], state.lower[where] = (value[run, place] for value in found)


def _group_by_need(needs: Tensor) -> Iterator[tuple[Tensor, int]]:
    """Group restarts of similar `needs` (g,); yield each group (l,) and its largest need."""
    order = needs.argsort(descending=True)
    amounts, share, start = needs[order].tolist(), RAGGED.get(needs.device.type, 0.5), 0
    for i in range(1, len(amounts) + 1):
        if i == len(amounts) or amounts[i] < share * amounts[start]:
            if amounts[start]:
                yield order[start:i], amounts[start]
            start = i
