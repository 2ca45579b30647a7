"""k-means++ seeding for many restarts at once, independent of the order of rows and of their process.

Each row has an exponential clock per restart, drawn from a hash of the row's *content*, whose rate is D²: the squared
distance to the nearest centre so far. The first clock to ring determines the next centre. As exponential clocks have no
memory, each ring is a fresh draw proportional to D², so one random number per row serves all draws of a restart, and
processes need to agree only on the first ring.
"""

from typing import Self

import torch
from torch import Tensor

from sortal.clustering.points import Points, best_two, scores


def splitmix64(z: Tensor) -> Tensor:
    """Hash int64 to int64 by SplitMix64."""
    z = z + (0x9E3779B97F4A7C15 - (1 << 64))
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * (0xBF58476D1CE4E5B9 - (1 << 64))
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * (0x94D049BB133111EB - (1 << 64))
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


def row_keys(points: Points) -> Tensor:
    """Hash the content of each row, (m,) int64; copies of a row are numbered, so that all keys differ."""
    device, d = points.x.device, points.x.shape[1]
    odd = splitmix64(torch.arange(2 * d, device=device)).view(2, d) | 1
    keys = torch.empty(points.count, dtype=torch.int64, device=device)
    for part, rows in points.chunks(6 * d):
        single = rows.to(torch.float32) + 0.0  # no negative zero
        keys[part] = _fold(single.view(torch.int32) * odd[0]).sum(1)
        if rows.dtype == torch.float64:  # the rest beyond float32, which adds 0 if there is none
            rest = torch.where(single.isfinite(), rows - single, rows) + 0.0
            keys[part] += _fold(rest.view(torch.int64) * odd[1]).sum(1)
    everyone, start = points.processes.concat(keys)
    ordered, order = everyone.sort(stable=True)
    place = torch.arange(len(ordered), device=device)
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[1:] = ordered[1:] != ordered[:-1]
    copy = torch.empty_like(ordered)
    copy[order] = place - torch.where(first, place, 0).cummax(0).values
    return splitmix64(keys + splitmix64(copy[start : start + points.count]))


def _fold(z: Tensor) -> Tensor:
    """Fold the upper half of each int64 into its lower half, as products of round floats end in zero bits."""
    return z ^ ((z >> 32) & 0xFFFFFFFF)


def salts(seeds: list[int], draws: range, device: torch.device) -> Tensor:
    """Hash the seed of each restart and the number of each draw, (g, draws)."""
    numbers = torch.arange(draws.start, draws.stop, device=device)
    return splitmix64(splitmix64(torch.tensor(seeds, dtype=torch.int64, device=device))[:, None] + numbers)


def exponentials(keys: Tensor, salt: Tensor, dtype: torch.dtype) -> Tensor:
    """Draw (g, m) from Exp(1), as a function of the salt of a restart's draw, (g, 1), and the key of the row.

    `keys` is (m,), shared by all restarts, or (g, m).
    """
    device = keys.device
    keys, salt = (keys.cpu(), salt.cpu()) if device.type == "mps" else (keys, salt)
    uniform = (((splitmix64(keys ^ salt) >> 11) & ((1 << 53) - 1)).double() + 0.5) * 2.0**-53
    return uniform.log_().neg_().clamp_min_(1e-30).to(dtype).to(device)


class Seeds:
    """Starting centres of one restart per seed; `grow` draws more, and the first k are those of any smaller k.

    Of the first `candidates` rows whose clocks ring, the one that lowers the sum of D² most becomes the centre (greedy
    k-means++). One candidate is k-means++ as published.
    """

    def __init__(self, points: Points, keys: Tensor, seeds: list[int], fixed: Tensor, candidates: int = 1) -> None:
        """`fixed` (c, d): the labelled means, relative to the data mean, shared by all restarts."""
        g, m, c = len(seeds), points.count, fixed.shape[0]
        self.points = points
        self.keys = keys
        self.seeds = seeds
        self.candidates = candidates
        self.clocks = exponentials(keys, salts(seeds, range(1), keys.device), points.x.dtype)
        self.noise = points.processes.sum(points.copies.sum(dtype=points.wide))  # rounding error of a sum of D²
        largest = max(points.processes.gather_objects(float(points.norms.max()) if m else 0.0))
        self.per = 1 / largest if largest > 0 else 1.0  # rates are D² in units of the largest
        self.copies, self.norms = points.copies * self.per, points.norms * self.per
        self.centres = fixed.expand(g, c, -1)  # (g, k, d)
        nearest = torch.zeros(m, dtype=torch.int64, device=fixed.device)
        best, second = points.x.new_full((2, m), torch.inf)
        if c:
            bias = points.bias(fixed)
            for part, rows in points.chunks(c):
                nearest[part], best[part], second[part] = best_two(scores(bias, fixed, rows))
        self.nearest = nearest.repeat(g, 1)  # (g, m) index of the nearest centre
        self.best = best.repeat(g, 1)  # (g, m) its score
        self.second = second.repeat(g, 1)  # (g, m) the second best score

    def grow(self, k: int) -> Self:
        """Draw until every restart has k centres."""
        g, have, d = self.centres.shape
        if k > have:
            self.centres = torch.cat([self.centres, self.centres.new_empty(g, k - have, d)], 1)
        salt = salts(self.seeds, range(have, max(have, k)), self.keys.device)
        for j in range(have, k):
            new, score = self._draw(j, salt[:, j - have : j - have + 1])
            self.centres[:, j] = new
            self._join(j, new, score)
        return self

    def _draw(self, j: int, salt: Tensor) -> tuple[Tensor, Tensor | None]:
        """Draw the next centre of each restart, (g, d), and return the scores of all rows there, (g, m), if known."""
        if j == 0:
            speed = torch.ones_like(self.best)
        else:  # D²; copies of a centre come last, after all other rows have been drawn
            speed = torch.add(self.norms, self.best, alpha=self.per)
            speed.masked_fill_(speed <= self.copies, 1e-37)
        time, index, mine = self._first(self.clocks / speed, self.candidates if j else 1)
        rows = self._rows(index, mine)
        alone = time.shape[1] == 1
        taken, score = (torch.zeros_like(index), None) if alone else self._most_useful(rows, time)
        finite = time.nan_to_num(posinf=0.0)
        self.clocks.addcmul_(finite if alone else finite.amax(1, keepdim=True), speed, value=-1)
        if self.points.count:
            self._reset(salt, time, index, mine, taken)
        return rows[:, 0] if alone else rows[torch.arange(len(rows)), taken[:, 0]], score

    def _reset(self, salt: Tensor, time: Tensor, index: Tensor, mine: Tensor | None, taken: Tensor) -> None:
        """Restart the clocks of the candidates, except for the new centre, which never rings again: its D² is 0."""
        new = torch.full_like(time, torch.inf)
        if new.shape[1] > 1:
            new = exponentials(self.keys[index], salt, time.dtype).masked_fill_(time.isinf(), torch.inf)
            new.scatter_(1, taken, torch.inf)
        if mine is None:
            self.clocks.scatter_(1, index, new)
        else:
            run, place = mine.nonzero(as_tuple=True)
            self.clocks[run, index[run, place]] = new[run, place]

    def _first(self, times: Tensor, wanted: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Find the first clocks to ring over all processes: time, row, and whether the row is ours, all (g, w).

        The last is None if there is only this process.
        """
        shards, here = self.points.processes, min(wanted, times.shape[1])
        time, index = times.min(1, keepdim=True) if here == 1 else times.topk(here, largest=False)
        if shards.size == 1:
            return time, index, None
        missing = (0, wanted - here)
        time = torch.nn.functional.pad(time, missing, value=torch.inf)
        index = torch.nn.functional.pad(index, missing)
        offers = shards.stack(time).permute(1, 0, 2).flatten(1)  # (g, processes × w)
        time, place = offers.topk(wanted, largest=False)
        return time, index.gather(1, place % wanted), place // wanted == shards.rank

    def _rows(self, index: Tensor, mine: Tensor | None) -> Tensor:
        """Return rows of this or another process, relative to the mean, (g, w, d)."""
        points = self.points
        if points.count:
            rows = points.take(index) - points.mean  # in the wide type
        else:
            rows = points.mean.new_zeros(*index.shape, len(points.mean))
        if mine is not None:
            rows = points.processes.sum(rows.masked_fill_(~mine[:, :, None], 0))
        return rows.to(points.x.dtype)

    def _most_useful(self, rows: Tensor, time: Tensor) -> tuple[Tensor, Tensor | None]:
        """Choose the candidate of (g, w, d) with a finite time (g, w) that leaves the least sum of D²: (g, 1).

        Ties go to the first, as rounding must not decide between two neighbours far from everything else. Also return
        the scores of all rows there, (g, m), or None where they were computed in pieces.
        """
        g, w, d = rows.shape
        flat = rows.view(g * w, d)
        bias, left = self.points.bias(flat), self.points.mean.new_zeros(g, w)
        for part, some in self.points.chunks(g * w):
            score = scores(bias, flat, some).view(g, w, -1)
            left += torch.minimum(score, self.best[:, None, part]).sum(2, dtype=left.dtype)
        left = self.points.processes.sum(left).masked_fill_(time.isinf(), torch.inf)
        taken = (left <= left.amin(1, keepdim=True) + self.noise).to(torch.uint8).argmax(1, keepdim=True)
        whole = self.points.count and score.shape[2] == self.points.count
        return taken, score[torch.arange(g), taken[:, 0]] if whole else None

    def _join(self, j: int, new: Tensor, score: Tensor | None) -> None:
        """Update the nearest centre of each row by centre j, (g, d), given the scores of all rows there if known."""
        if score is not None:
            self._compare(j, slice(None), score)
            return
        bias = self.points.bias(new)
        for part, rows in self.points.chunks(new.shape[0]):
            self._compare(j, part, scores(bias, new, rows))

    def _compare(self, j: int, part: slice, score: Tensor) -> None:
        """Compare the scores of some rows at centre j, (g, r), with their best so far."""
        best, second, nearest = self.best[:, part], self.second[:, part], self.nearest[:, part]
        closer = score < best
        torch.minimum(second, torch.maximum(best, score), out=second)
        torch.minimum(best, score, out=best)
        nearest.masked_fill_(closer, j)
