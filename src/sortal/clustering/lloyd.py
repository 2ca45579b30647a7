"""Lloyd's iterations of k-means, for many restarts at once, doing only work that can change an assignment.

For every row three things are kept: its centre, an upper bound on its score there, and a lower bound on its score at
every other centre. After the centres moved, those that moved far are scored against all rows (one matrix product for
all restarts); for the others the bounds are widened by how far they moved. A row whose bounds still part keeps its
centre, whatever the exact values; the rest are scored against all centres. Which centres count as far is chosen each
time by the cost it predicts. Centres that did not move cost nothing at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from sortal.members import Fixed, Members
from sortal.points import Points, nearest, scores
from sortal.seeding import Seeds, row_keys

SAMPLE = 1024  # rows that the cost of an iteration is predicted from
CHEAP = {"cpu": 1 << 26, "cuda": 1 << 37}  # multiplications that take less time than finding out which are needed
GATHER = 32  # copying a row out costs about as much as scoring it against this many centres
SHRINK = 0.7  # what has ended is cleared away, at the cost of a copy, when this share or less is still running
# Restarts are computed together while the least of them needs this share of what the most needs: on a GPU padding costs
# less than one more round of launches.
RAGGED = {"cpu": 0.75, "cuda": 0.2, "mps": 0.2}


@dataclass
class State:
    """g restarts of k-means in progress; centres are relative to the mean of the data."""

    centres: Tensor  # (g, k, d)
    bias: Tensor  # (g, k) what each centre adds to a score
    lengths: Tensor  # (g, k)
    assigned: Tensor  # (g, m) int64
    upper: Tensor  # (g, m) score at the own centre, or more
    lower: Tensor  # (g, m) score at every other centre, or less
    table: Tensor | None = None  # (g, k, m) all scores, where they fit in one array and are up to date

    @classmethod
    def at(cls, points: Points, centres: Tensor) -> State:
        """Every row at the nearest of the given centres (g, k, d)."""
        g = len(centres)
        state = cls(
            centres=centres.clone(),
            bias=torch.stack([points.bias(one) for one in centres]),
            lengths=torch.linalg.vector_norm(centres, dim=2),
            assigned=torch.zeros(g, points.count, dtype=torch.int64, device=centres.device),
            upper=centres.new_empty(g, points.count),
            lower=centres.new_empty(g, points.count),
        )
        state.place(points)
        return state

    @classmethod
    def seeded(cls, seeds: Seeds) -> State:
        """Every row where the seeding left it."""
        centres, points = seeds.centres, seeds.points
        return cls(
            centres=centres.clone(),
            bias=torch.stack([points.bias(one) for one in centres]),
            lengths=torch.linalg.vector_norm(centres, dim=2),
            assigned=seeds.nearest.clone(),
            upper=seeds.best.clone(),
            lower=seeds.second.clone(),
        )

    def place(self, points: Points, moved: Tensor | None = None) -> None:
        """Give every row the nearest centre, knowing which have moved since the last time, (g, k); ties stay."""
        g, k, _ = self.centres.shape
        slack = points.slack(self.lengths)
        for part, rows in points.chunks(g * k):
            table = self._scored(rows, moved) if len(rows) == points.count else self._scored(rows)
            found = nearest(table, self.assigned[:, part], slack[:, part], self.centres, rows.expand(g, -1, -1), points)
            self.assigned[:, part], self.upper[:, part], self.lower[:, part] = found
            self.table = table if len(rows) == points.count else None

    def _scored(self, rows: Tensor, moved: Tensor | None = None) -> Tensor:
        """(g, k, r): the scores of rows at all centres; those of centres that did not move are in the table."""
        g, k, d = self.centres.shape
        bias, centres = self.bias.flatten(), self.centres.view(g * k, d)
        if moved is None or self.table is None:
            return scores(bias, centres, rows).view(g, k, -1)
        which = moved.flatten().nonzero()[:, 0]
        self.table.view(g * k, -1)[which] = scores(bias[which], centres[which], rows)
        return self.table

    def __getitem__(self, restarts: Tensor) -> State:
        kept = {field.name: getattr(self, field.name)[restarts] for field in fields(self) if field.name != "table"}
        return State(**kept, table=None if self.table is None else self.table[restarts])


@dataclass(frozen=True)
class Ended:
    """A restart that ran to its end."""

    restart: int
    centres: Tensor  # (k, d) relative to the mean
    assigned: Tensor  # (m,)
    spread: float  # inertia, less the squared distance of all rows to the mean (the same for every restart)
    n_iter: int


def restarts(
    points: Points, fixed: Fixed, k: int, n_init: int, seed: int, *, candidates: int, max_iter: int, tol: float
) -> Iterator[Ended]:
    """Run n_init restarts, as many at a time as memory allows; `tol` is relative to the variance of the data."""
    keys, tol = row_keys(points), tol * points.variance()
    first = (fixed.means - points.mean).to(points.x.dtype)
    size = at_once(points, k)
    for start in range(0, n_init, size):
        numbers = range(start, min(start + size, n_init))
        state = State.seeded(Seeds(points, keys, [seed + r for r in numbers], first, candidates).grow(k))
        for ended in lloyd(points, fixed, state, max_iter=max_iter, tol=tol):
            yield replace(ended, restart=start + ended.restart)


def at_once(points: Points, k: int) -> int:
    """How many restarts of k centres fit in memory: what they keep may be a few times the budget of one array."""
    room = max(1, 8 * points.budget // (3 * k * points.x.shape[1] + 8 * points.count))
    return min(map(int, points.shards.objects(room)))  # the same in all processes


def lloyd(points: Points, fixed: Fixed, state: State, *, max_iter: int, tol: float) -> Iterator[Ended]:
    """Iterate until no row changes its centre (or the centres move by `tol` or less, squared and summed)."""
    number = list(range(len(state.centres)))
    _score_doubtful(points, state)
    members = Members.of(points, fixed, state.assigned, state.centres.shape[1])
    touched = torch.ones_like(state.bias, dtype=torch.bool)
    running = touched.any(1)
    for n_iter in range(1, max_iter + 1):
        touched |= _refill(points, state, members, running)
        shift = _recentre(points, state, members, touched & running[:, None])
        changed, touched = _reassign(points, state, members, shift)
        done = running & ((changed == 0) | (shift.square().sum(1) <= tol) | (n_iter == max_iter))
        ended = done.nonzero()[:, 0]
        if not len(ended):
            continue
        for place in ended.tolist():
            centres = state.centres[place].clone()
            spread = members.spread(points, place, centres)
            yield Ended(number[place], centres, state.assigned[place].clone(), spread, n_iter)
        running &= ~done
        live = running.nonzero()[:, 0]
        if not len(live):
            return
        if len(live) <= SHRINK * len(running):
            number = [number[place] for place in live.tolist()]
            state, members, touched, running = state[live], members[live], touched[live], running[live]


def _refill(points: Points, state: State, members: Members, running: Tensor) -> Tensor:
    """Give the empty centres a row each; which centres gained or lost one, (g, k)."""
    touched = torch.zeros_like(state.bias, dtype=torch.bool)
    for r in ((members.counts == 0).any(1) & running).nonzero()[:, 0].tolist():
        before = state.assigned.clone()
        rows = members.refill(points, r, state.centres[r], state.assigned[r])
        state.upper[r, rows], state.lower[r, rows] = torch.inf, -torch.inf
        pairs = torch.stack([torch.full_like(rows, r), rows], 1)
        touched |= members.move(points, pairs, before, state.assigned)
    return touched


def _recentre(points: Points, state: State, members: Members, touched: Tensor) -> Tensor:
    """Move the touched centres to the means of their members; how far each went, (g, k). An empty one stays."""
    shift = torch.zeros_like(state.bias)
    for some in points.pieces((touched & (members.counts > 0)).nonzero(), 8 * points.x.shape[1]):
        which = (some[:, 0], some[:, 1])
        means = members.means(which).sub_(points.mean).to(state.centres.dtype)
        state.bias[which] = points.bias(means)
        shift[which] = torch.linalg.vector_norm(means - state.centres[which], dim=1)
        state.centres[which] = means
        state.lengths[which] = torch.linalg.vector_norm(means, dim=1)
    return shift


def _reassign(points: Points, state: State, members: Members, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Give every row the nearest centre, and move it from sum to sum.

    How many rows changed in each restart, (g,), and which centres gained or lost one, (g, k).
    """
    before = state.assigned.clone()
    if state.centres.numel() * points.count <= CHEAP.get(shift.device.type, 0):
        state.place(points, shift > 0)
    else:
        state.table = None
        far = _far(points, state, shift)
        _widen(points, state, shift, far)
        _score_far(points, state, far)
        _score_doubtful(points, state)
    changed = state.assigned != before
    touched = members.move(points, changed.nonzero(), before, state.assigned)
    return points.shards.sum(changed.sum(1)), touched


def _distances(points: Points, state: State, rows: slice) -> tuple[Tensor, Tensor]:
    """The bounds of some rows as distances, opened by what rounding may have hidden: (g, r), (g, r)."""
    norms, slack = points.norms[rows], points.slack(state.lengths, rows)
    upper = (state.upper[:, rows] + norms + slack).clamp_min_(0).sqrt_()
    lower = (state.lower[:, rows] + norms - slack).clamp_min_(0).sqrt_()
    return upper, lower


def _far(points: Points, state: State, shift: Tensor) -> Tensor:
    """(g, k) bool: the centres to score against all rows, so that the predicted cost of this iteration is least."""
    g, k = shift.shape
    if not points.count:
        return torch.zeros_like(shift, dtype=torch.bool)
    every = slice(None, None, max(1, points.count // SAMPLE))
    upper, lower = _distances(points, state, every)
    gap, _ = (lower - upper - shift.gather(1, state.assigned[:, every])).sort(1)
    fall, order = shift.sort(1, descending=True)
    beyond = torch.cat([fall, fall.new_zeros(g, 1)], 1)  # (g, k + 1): the largest shift left when i centres are far
    doubtful = torch.searchsorted(gap, beyond.contiguous()).to(shift.dtype) / gap.shape[1]
    doubtful[beyond == 0] = 0  # what stood still is bounded by what it was
    cost = torch.arange(k + 1, device=shift.device) + doubtful * (k + GATHER)
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(k, device=shift.device).expand(g, k))
    return (rank < cost.argmin(1, keepdim=True)) & (shift > 0)


def _widen(points: Points, state: State, shift: Tensor, far: Tensor) -> None:
    """Bounds for the centres that will not be scored: a row's distance changes by no more than the centre moved."""
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


def _score_far(points: Points, state: State, far: Tensor) -> None:
    """Score all rows against the far centres: exact where the own centre is far, and the best of the others."""
    g, k, d = state.centres.shape
    arange = torch.arange(k, device=far.device)
    for group, most in _alike(far.sum(1)):
        need = far[group]
        columns = need.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :most]  # (l, most)
        valid = need.gather(1, columns)
        slot = torch.zeros(len(group), k, dtype=torch.int64, device=far.device)
        slot.scatter_(1, columns, arange[:most].expand(len(group), most))
        picked = state.centres.view(g * k, d)[(group[:, None] * k + columns).flatten()]
        offset = state.bias[group].gather(1, columns).masked_fill(~valid, torch.inf).flatten()
        for part, rows in points.chunks(len(picked)):
            table = scores(offset, picked, rows).view(len(group), most, -1)
            assigned = state.assigned[group, part]
            own_far = need.gather(1, assigned)
            place = slot.gather(1, assigned)[:, None]
            own = table.gather(1, place)
            table.scatter_(1, place, own.masked_fill(own_far[:, None], torch.inf))
            state.upper[group, part] = torch.where(own_far, own[:, 0], state.upper[group, part])
            state.lower[group, part] = torch.minimum(state.lower[group, part], table.amin(1))


def _score_doubtful(points: Points, state: State) -> None:
    """Score the rows whose bounds do not part against all centres of their restart."""
    slack = points.slack(state.lengths)
    doubtful = state.upper > state.lower - slack
    for group, most in _alike(doubtful.sum(1)):
        pairs = doubtful[group].nonzero()
        run, row = pairs[:, 0], pairs[:, 1]
        # The rows of each restart side by side, (l, most), padded with row 0: what is found for the padding is dropped.
        ends = doubtful[group].sum(1).cumsum(0)
        place = torch.arange(len(run), device=run.device) - torch.nn.functional.pad(ends, (1, 0))[run]
        index = torch.zeros(len(group), most, dtype=torch.int64, device=run.device)
        index[run, place] = row
        found = _nearest_in_pieces(points, state, group, index, slack)
        where = (group[run], row)
        state.assigned[where], state.upper[where], state.lower[where] = (value[run, place] for value in found)


def _nearest_in_pieces(points: Points, state: State, group: Tensor, index: Tensor, slack: Tensor) -> list[Tensor]:
    """Centre, score and runner-up's score of the rows `index` (l, r) of the restarts `group` (l,)."""
    k, d = state.centres.shape[1:]
    centres, offset, runs = state.centres[group], state.bias[group][:, :, None], group[:, None]
    pieces = []
    step = max(1, points.budget // (len(group) * (k + d)))
    for start in range(0, index.shape[1], step):
        some = index[:, start : start + step]
        rows = points.take(some)
        table = torch.baddbmm(offset, centres, rows.transpose(1, 2), alpha=-2)
        pieces.append(nearest(table, state.assigned[runs, some], slack[runs, some], centres, rows, points))
    return [torch.cat(values, 1) for values in zip(*pieces, strict=True)] if len(pieces) > 1 else list(pieces[0])


def _alike(needs: Tensor) -> Iterator[tuple[Tensor, int]]:
    """Restarts that need something, (g,) -> groups of nearly equal need, and the most that one of the group needs."""
    share = RAGGED.get(needs.device.type, 0.5)
    order = needs.argsort(descending=True)
    amounts = needs[order].tolist()
    start = 0
    for i in range(1, len(amounts) + 1):
        if i == len(amounts) or amounts[i] < share * amounts[start]:
            if amounts[start]:
                yield order[start:i], amounts[start]
            start = i
