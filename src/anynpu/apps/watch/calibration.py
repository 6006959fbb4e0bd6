"""How unusual is too unusual: thresholds with a stated rate of false alarms.

Time is cut into blocks of six hours. Of every block the highest score of each test of each series is kept. A series'
own blocks say what its scores usually reach (their median and spread); scores are divided by that. What is left over
is calibrated over the same metric of all hosts, by split conformal prediction on blocks: the threshold of a test is the
order statistic of past blocks that a new block exceeds with at most the stated probability, if hosts and blocks are
exchangeable. Blocks, because scores of neighbouring samples depend on each other and those of blocks hardly do. The
rate of false alarms per host-week is shared out evenly among tests and metrics.

A block whose score is more than twice what the body of blocks (their 50 and 90 % quantiles) leads to expect of the
tail is taken for a real fault and left out. Lesser alarms count: were they left out as well, every false alarm would
lower the threshold and bring the next.

What a series itself has reached in two of its blocks is a habit of its own (a job that the rest of the fleet does not
run), and only what goes well beyond it is an alarm. An anomaly that outlasts its block is not a habit, unless the
series does the same in two weeks at the same time: a weekly job may run through midnight.
"""

from __future__ import annotations

import math

import numpy as np

from anynpu.apps.watch.registry import Doubles, Flags, Floats, Indices

BLOCK_S = 6 * 3600
BLOCKS_A_WEEK = 28
KEPT = 112
"""Blocks of four weeks."""
WEEKS = KEPT // BLOCKS_A_WEEK
UNKNOWN = 8
"""Blocks at the beginning that count for nothing: two days, in which the course of the day is not known yet."""
FEWEST = 8
"""Blocks that a series then needs before its tests can alarm: two days more."""
SETTLED = 56
"""Blocks after which the scores of a series are good enough to calibrate with: two weeks, for only then the course of
the week is known. Earlier blocks are forgotten a week later."""
SPREADS = 3.0
LEARN_PART = 4
"""Thresholds are worked out anew when a quarter of all series have closed a block: the agents of a large fleet close
theirs one by one, and every time costs more the larger the fleet is."""
HABIT, HABIT_MARGIN = 2, 1.3
"""What a series has reached in this many of its blocks is a habit; an alarm must go this many times beyond it."""
GROSS = 2.0


class Calibration:
    """The blocks of every test of every series, and what follows from them."""

    def __init__(self, tests: int, rate: float, least: float, prior: float) -> None:
        self.tests, self.rate, self.least, self.prior = tests, rate, least, prior
        self.now = np.zeros((0, tests), np.float32)
        self.ring = np.full((0, tests, KEPT), np.nan, np.float32)
        self.count = np.zeros(0, np.int64)
        self.usual = np.full((0, tests), np.inf, np.float32)
        """What the scores of a series usually reach, by its own blocks."""
        self.weekly = np.zeros((0, tests, WEEKS, BLOCKS_A_WEEK), np.float32)
        """The blocks of settled series by their place in the week, whatever was wrong in them."""
        self.habit = np.zeros((0, tests), np.float32)
        """What a series has reached so often by itself that it is normal for it, however unusual in its fleet."""
        self.kind = np.zeros(0, np.int64)
        self.pool: list[tuple[Floats, Indices]] = []
        """Of every closed block the scores of settled series, over what they usually reach, and their kinds."""
        self.pooled, self.unpooled = 0, 0
        self.expected, self.threshold = np.zeros((0, tests)), np.zeros((0, tests))
        """By kind: what the body of all blocks leads to expect of the tail, and the threshold."""

    def grow(self, kinds: Indices) -> None:
        """Makes room for more series; series of the same kind have the same metric."""
        more = len(kinds)
        self.now = np.concatenate([self.now, np.zeros((more, self.tests), np.float32)])
        self.ring = np.concatenate([self.ring, np.full((more, self.tests, KEPT), np.nan, np.float32)])
        self.count = np.concatenate([self.count, np.full(more, -UNKNOWN, np.int64)])
        self.usual = np.concatenate([self.usual, np.full((more, self.tests), np.inf, np.float32)])
        self.weekly = np.concatenate([self.weekly, np.zeros((more, *self.weekly.shape[1:]), np.float32)])
        self.habit = np.concatenate([self.habit, np.zeros((more, self.tests), np.float32)])
        self.kind = np.concatenate([self.kind, kinds])
        new = np.full((max(int(self.kind.max()) + 1 - len(self.threshold), 0), self.tests), self.prior)
        self.expected, self.threshold = np.concatenate([self.expected, new]), np.concatenate([self.threshold, new])

    def note(self, series: Indices, test: int, scores: Floats) -> None:
        """Takes scores of one test."""
        self.now[series, test] = np.maximum(self.now[series, test], scores)

    def limits(self, series: Indices) -> Doubles:
        """Returns the scores above which there is an alarm, a column for every test."""
        by_fleet = self.usual[series] * self.threshold[self.kind[series]]
        return np.asarray(np.maximum(by_fleet, self.habit[series]), np.float64)

    def close(self, series: Indices, blocks: Indices, left_out: Flags, lasting: Flags) -> None:
        """Ends a block of each series; `left_out` were anomalous all the while, `lasting` at its beginning or end."""
        scores, kinds = self.now[series], self.kind[series]
        known = (self.count[series] >= SETTLED)[:, None]
        self.weekly[series, :, blocks // BLOCKS_A_WEEK % WEEKS, blocks % BLOCKS_A_WEEK] = np.where(known, scores, 0)
        ratios = scores / self.usual[series]
        kept = ~(left_out | (ratios > GROSS * self.expected[kinds]).any(1))
        chosen = series[kept | ~lasting]
        counted = (kept | ~lasting) & (self.count[series] >= 0)
        self.ring[series[counted], :, self.count[series[counted]] % KEPT] = scores[counted]
        settled = kept & (self.count[series] >= SETTLED)
        if settled.any():
            self.pool.append((ratios[settled], kinds[settled]))
            self.pooled += int(settled.sum())
        self.count[chosen] += 1
        self.ring[chosen[self.count[chosen] == SETTLED + BLOCKS_A_WEEK], :, :SETTLED] = np.nan
        self.now[series] = 0

    def refresh(self, series: Indices, blocks: Indices) -> None:
        """Works out anew what the scores of some series usually reach, and thresholds, for the block that begins."""
        ordered = np.sort(self.ring[series], axis=2)
        count = np.count_nonzero(~np.isnan(ordered[:, 0]), axis=1)
        shape = (len(series), self.tests, 1)
        half = np.broadcast_to(np.clip((count - 1) // 2, 0, None)[:, None, None], shape)
        most = np.broadcast_to(np.clip(np.ceil(0.9 * count).astype(np.int64) - 1, 0, None)[:, None, None], shape)
        median, upper = (np.take_along_axis(ordered, place, 2)[..., 0] for place in (half, most))
        usual = np.maximum(median + SPREADS * np.maximum(upper - median, 0.1 * median), self.least)
        self.usual[series] = np.where((count >= FEWEST)[:, None], usual, np.inf)
        again = np.broadcast_to(np.clip(count - HABIT, 0, None)[:, None, None], shape)
        habit = HABIT_MARGIN * np.take_along_axis(ordered, again, 2)[..., 0]
        around = (blocks[:, None] + np.array([-1, 0, 1])) % BLOCKS_A_WEEK  # a job may be early or late
        at_this_time = np.take_along_axis(self.weekly[series], around[:, None, None, :], axis=3).max(axis=3)
        weekly = HABIT_MARGIN * np.sort(at_this_time, axis=2)[..., -HABIT]
        self.habit[series] = np.maximum(np.where((count >= HABIT)[:, None], habit, 0), weekly)
        self.unpooled += len(series)
        if LEARN_PART * self.unpooled >= len(self.kind):
            self.unpooled = 0
            self._thresholds()

    def _thresholds(self) -> None:
        while self.pool and self.pooled - len(self.pool[0][0]) >= len(self.kind) * KEPT:
            self.pooled -= len(self.pool.pop(0)[0])
        if not self.pool:
            return
        ratios, kinds = (np.concatenate([part[index] for part in self.pool]) for index in (0, 1))
        share = self.rate / BLOCKS_A_WEEK / self.tests / len(np.unique(kinds))
        for kind in range(len(self.threshold)):
            blocks = ratios[kinds == kind]
            if len(blocks) < BLOCKS_A_WEEK:
                continue
            half, most = np.quantile(blocks, 0.5, axis=0), np.quantile(blocks, 0.9, axis=0)
            tail = half + (most - half) * math.log(0.5 / share) / math.log(0.5 / 0.1)
            self.expected[kind] = np.maximum(tail, 1.0)
            for test in range(self.tests):
                normal = blocks[:, test][blocks[:, test] <= GROSS * self.expected[kind, test]]
                # The lowest threshold that this many blocks justify: a tail that is guessed from few is too short.
                lowest = float(np.clip(1 - 0.5 * math.log(max(len(normal), 1) / 200) / math.log(5), 0.5, 1.0))
                self.threshold[kind, test] = max(conformal(normal, share), lowest)


def conformal(scores: Floats, share: float) -> float:
    """Returns what a new score exceeds with at most the given probability.

    With enough scores that is one of them. With fewer, the tail above their 90 % quantile is continued as an
    exponential one: a guess, and the more so the fewer there are.
    """
    ordered = np.sort(scores.astype(np.float64))
    rank = math.ceil((len(ordered) + 1) * (1 - share))
    if rank <= len(ordered):
        return float(ordered[rank - 1])
    edge = float(ordered[max(0, math.ceil(0.9 * len(ordered)) - 1)])
    tail = float(np.mean(ordered[ordered >= edge] - edge))
    return max(float(ordered[-1]), edge + tail * math.log(0.1 / share))
