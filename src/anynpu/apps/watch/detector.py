"""The detector: samples in, the beginnings and ends of anomalies out.

Six tests look at every series. `sample` compares the median of three samples with how high and low samples go at this
hour; `quarter`, `hour`, `hours` and `day` compare the mean of the last bucket, hour, four hours and day with season and
level; `still` counts for how long a value has not changed. Two more look at hosts: silence, and the clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from anynpu.apps.watch.baselines import BUCKET_S, DAY, SLOTS, WEEK, Baselines
from anynpu.apps.watch.calibration import BLOCK_S, Calibration
from anynpu.apps.watch.registry import Batch, Doubles, Floats, Indices, Registry, unit_of

TESTS = ("sample", "quarter", "hour", "hours", "day", "still")
SAMPLE, QUARTER, HOUR, HOURS, DAYLONG, STILL = range(len(TESTS))
WINDOWS = {QUARTER: 1, HOUR: 4, HOURS: 16, DAYLONG: DAY}
MOST_SAMPLES = 64
"""Samples of one bucket that count: the last of them where there are more."""
BACK_TO_NORMAL = 0.7
"""Share of the threshold below which a series counts as normal again."""
CALM_BUCKETS = 3
ACCEPT_S = 3 * 86_400.0
CLOCK_S = 15.0
"""A clock that moves by more against the collector's has jumped."""
LONGEST_REST_S = 12 * 3600.0
"""A series that normally stands still for longer is not tested for standing still."""
SHORTEST_REST_S = 1200.0
SILENT_INTERVALS, SETTLE_S = 2.5, 600.0
"""After this many intervals without a sample (a reboot, most often) single samples and quarters are not judged for this
long."""
USUAL, TOP, BOTTOM, SPREAD, SCALE = range(5)
HOST_ARRAYS = ("seen_s", "bucket", "block", "longest_gap_s", "offset_s", "unsettled_s")
SERIES_ARRAYS = ("run_since_s", "longest_run_s", "series_seen_s", "anomalous_since_s", "filled", "went_on")
TABLES = ("last", "inside", "extremes", "residuals", "current")


@dataclass
class Anomaly:
    """Something that is not normal, from its beginning to its end."""

    host: int
    series: int | None
    test: str
    opened_s: float
    since_s: float
    value: float
    expected: float
    score: float
    """How many times the threshold."""
    ended_s: float | None = None
    ending: str = ""
    calm: int = 0

    @property
    def key(self) -> tuple[int, int | str]:
        """What there is at most one open anomaly of."""
        if self.test == "missing":
            return self.host, f"missing {'' if self.series is None else self.series}"
        return self.host, self.test if self.series is None else self.series


class Detector:
    """What is known of a fleet, and what is wrong in it now."""

    def __init__(self, registry: Registry, rate: float = 0.5, interval_s: float = 30.0) -> None:
        self.registry, self.interval_s = registry, interval_s
        self.baselines = Baselines()
        self.calibration = Calibration(len(TESTS), rate, least=3.0, prior=2.0)
        self.open: dict[tuple[int, int | str], Anomaly] = {}
        self.hosts, self.size = 0, 0
        self.seen_s, self.block, self.longest_gap_s = np.zeros(0), np.zeros(0), np.zeros(0)
        self.bucket, self.offset_s, self.unsettled_s = np.zeros(0), np.zeros(0), np.zeros(0)
        self.owner, self.zero = np.zeros(0, np.int64), np.zeros(0)
        self.run_since_s, self.longest_run_s, self.series_seen_s = np.zeros(0), np.zeros(0), np.zeros(0)
        self.anomalous_since_s, self.filled = np.zeros(0), np.zeros(0, np.int64)
        self.went_on = np.zeros(0, np.bool_)
        """Whether an anomaly that began in an earlier block ended in this one."""
        self.last = np.zeros((0, 2), np.float32)
        self.inside = np.zeros((0, MOST_SAMPLES), np.float32)
        self.extremes = np.zeros((0, 2), np.float32)
        """Of the bucket that runs: the highest and the lowest median of three samples."""
        self.residuals = np.zeros((0, DAY), np.float32)
        self.current = np.zeros((0, 5), np.float32)
        """Of the bucket that runs: what is usual, how far above and below samples go, the spread, the scale."""

    def grow(self) -> None:
        """Makes room for the hosts and series that are new in the registry."""
        hosts, series = len(self.registry.hosts) - self.hosts, len(self.registry.metrics) - self.size
        fills = {"bucket": -1.0, "offset_s": np.nan, "anomalous_since_s": np.inf}
        for names, more in ((HOST_ARRAYS, hosts), (SERIES_ARRAYS, series)):
            for name in names if more else ():
                array = getattr(self, name)
                setattr(self, name, np.concatenate([array, np.full(more, fills.get(name, 0), array.dtype)]))
        if series:
            units = [unit_of(metric) for metric in self.registry.metrics[self.size :]]
            self.baselines.grow(np.array([unit.floor for unit in units], np.float32))
            self.calibration.grow(np.array(self.registry.kinds[self.size :], np.int64))
            self.zero = np.concatenate([self.zero, [unit.zero for unit in units]])
            self.owner = np.array(self.registry.owners, np.int64)
            for name in TABLES:
                array = getattr(self, name)
                setattr(self, name, np.concatenate([array, np.full((series, array.shape[1]), np.nan, np.float32)]))
        self.hosts, self.size = self.hosts + hosts, self.size + series

    def update(self, batch: Batch) -> list[Anomaly]:
        """Takes samples, of every host those of one bucket, and returns the anomalies that began or ended."""
        self.grow()
        batch = batch.after(self.seen_s)
        if not len(batch.hosts):
            return []
        changes = [*self._roll(batch), *self.heard(batch), *self.clocked(batch), *self._samples(batch)]
        return [*changes, *self._silent_series(batch.hosts)]

    def silent(self, now_s: float, listening_s: float = 0.0) -> list[Anomaly]:
        """Returns hosts that have been silent for too long, as anomalies that began; silence counts from when we began
        to listen."""
        self.grow()
        heard = np.maximum(self.seen_s, listening_s)
        quiet = np.flatnonzero((self.seen_s > 0) & (now_s - heard > self._patience_s()))
        return [
            self._begin(int(host), None, "missing", now_s, self.seen_s[host], now_s - self.seen_s[host])
            for host in quiet
            if (int(host), "missing ") not in self.open
        ]

    def _patience_s(self) -> Doubles:
        """Returns for how long each host may be silent: longer where gaps are usual."""
        return np.maximum(10 * self.interval_s, 1.5 * self.longest_gap_s)

    def _begin(
        self,
        host: int,
        series: int | None,
        test: str,
        now_s: float,
        since_s: float,
        value: float,
        expected: float = 0.0,
        score: float = 1.0,
    ) -> Anomaly:
        anomaly = Anomaly(host, series, test, float(now_s), float(since_s), float(value), float(expected), float(score))
        self.open[anomaly.key] = anomaly
        return anomaly

    def _end(self, anomaly: Anomaly, now_s: float, ending: str) -> Anomaly:
        anomaly.ended_s, anomaly.ending = float(now_s), ending
        self.open.pop(anomaly.key, None)
        if anomaly.series is not None and anomaly.test != "missing":
            self.anomalous_since_s[anomaly.series] = np.inf
            self.went_on[anomaly.series] = anomaly.opened_s < self.block[anomaly.host] * BLOCK_S
            self.residuals[anomaly.series] = np.nan
        return anomaly

    def heard(self, batch: Batch) -> Iterator[Anomaly]:
        """Notes that hosts report, and how long they had not."""
        before = np.concatenate([self.seen_s[batch.hosts][:, None], batch.times_s[:, :-1]], axis=1)
        gaps = np.where(before > 0, batch.times_s - before, 0)
        gaps = np.where(np.isnan(gaps), 0, gaps)
        patience = self._patience_s()[batch.hosts]
        for row in np.flatnonzero(gaps.max(1) > patience):
            host, column = int(batch.hosts[row]), int(gaps[row].argmax())
            anomaly = self.open.get((host, "missing "))
            if anomaly is None:
                since_s = before[row, column]
                anomaly = self._begin(host, None, "missing", since_s + patience[row], since_s, gaps[row, column])
                yield Anomaly(**vars(anomaly))
            yield self._end(anomaly, batch.times_s[row, column], "reports again")
        usual = np.where(gaps < 3600, gaps, 0).max(1)
        usual = np.where(gaps.max(1) > patience, 0, usual)
        back_s = np.take_along_axis(batch.times_s, gaps.argmax(1)[:, None], axis=1)[:, 0]
        silent = gaps.max(1) > SILENT_INTERVALS * self.interval_s
        until_s = back_s + SETTLE_S + 2 * self.interval_s  # a median of three remembers two samples
        self.unsettled_s[batch.hosts] = np.where(silent, until_s, self.unsettled_s[batch.hosts])
        self.longest_gap_s[batch.hosts] = np.maximum(self.longest_gap_s[batch.hosts] * 0.9999, usual)
        self.seen_s[batch.hosts] = np.nanmax(batch.times_s, axis=1)

    def _silent_series(self, hosts: Indices) -> Iterator[Anomaly]:
        """Tells of series that are silent while their host reports, and of those that are heard again."""
        gap = self.seen_s[self.owner] - self.series_seen_s
        patience = self._patience_s()[self.owner]
        for series in np.flatnonzero((self.series_seen_s > 0) & (gap > patience)):
            host, since_s = int(self.owner[series]), float(self.series_seen_s[series])
            if (host, f"missing {series}") not in self.open:
                now_s = since_s + float(patience[series])
                yield self._begin(host, int(series), "missing", now_s, since_s, float(gap[series]))
        for key in [key for key in self.open if str(key[1]).startswith("missing ")]:
            anomaly = self.open[key]
            if anomaly.series is not None and gap[anomaly.series] <= patience[anomaly.series]:
                yield self._end(anomaly, float(self.series_seen_s[anomaly.series]), "reports again")

    def clocked(self, batch: Batch) -> Iterator[Anomaly]:
        """Compares clocks with what they were usually off by."""
        usual = self.offset_s[batch.hosts]
        usual = np.where(np.isnan(usual), batch.offsets_s[:, 0], usual)
        off = np.abs(batch.offsets_s - usual[:, None]) > CLOCK_S
        known = ~np.isnan(batch.offsets_s)
        calm = np.where(known & ~off, batch.offsets_s - usual[:, None], 0).sum(1) / np.maximum(known.sum(1), 1)
        self.offset_s[batch.hosts] = usual + 0.1 * calm
        concerned = off.any(1) | np.array([(int(host), "clock") in self.open for host in batch.hosts])
        for row in np.flatnonzero(concerned):
            host = int(batch.hosts[row])
            for column in np.flatnonzero(known[row]):
                now_s, anomaly = float(batch.times_s[row, column]), self.open.get((host, "clock"))
                offset_s = batch.offsets_s[row, column]
                if off[row, column] and anomaly is None:
                    score = abs(offset_s - usual[row]) / CLOCK_S
                    yield self._begin(host, None, "clock", now_s, now_s, offset_s, usual[row], score)
                elif anomaly is not None and not off[row, column]:
                    yield self._end(anomaly, now_s, "the clock is right again")
                elif anomaly is not None and now_s - anomaly.opened_s > ACCEPT_S:
                    self.offset_s[host] = offset_s
                    yield self._end(anomaly, now_s, "the new offset counts as normal now: it has lasted three days")
                    break

    def _samples(self, batch: Batch) -> Iterator[Anomaly]:
        """Looks at every sample by itself: how far out it is, and for how long the value has stood still."""
        series, times = batch.series, batch.times_s[batch.owner]
        zero = self.zero[series][:, None]
        scaled = np.log10(np.maximum(zero, 1e-9) + np.maximum(batch.values, 0))
        values = np.where(zero > 0, scaled, batch.values).astype(np.float32)
        known = ~np.isnan(values)
        long = np.concatenate([self.last[series], values], axis=1)
        low, high = np.minimum(long[:, :-2], long[:, 1:-1]), np.maximum(long[:, :-2], long[:, 1:-1])
        three = np.maximum(low, np.minimum(high, long[:, 2:]))
        self.extremes[series, 0] = np.fmax(self.extremes[series, 0], np.fmax.reduce(three, axis=1))
        self.extremes[series, 1] = np.fmin(self.extremes[series, 1], np.fmin.reduce(three, axis=1))
        usual, top, bottom, spread, _ = (column[:, None] for column in self.current[series].T)
        out = np.maximum(three - usual - top, usual - bottom - three) / np.maximum(spread, 1e-9)
        out = np.where(np.isnan(out), 0, np.maximum(out, 0))
        out = np.where(times < self.unsettled_s[self.owner[series]][:, None], 0, out)
        # For how long values have not changed; runs that end teach how long that usually is.
        before = np.concatenate([self.last[series][:, 1:], values[:, :-1]], axis=1)
        changed = known & (values != before)
        since = np.where(changed, times, 0)
        since[:, 0] = np.where(changed[:, 0], times[:, 0], self.run_since_s[series])
        since = np.maximum.accumulate(since, axis=1)
        run_s = np.where(known, times - since, 0)
        ended = np.concatenate([(self.series_seen_s - self.run_since_s)[series][:, None], run_s[:, :-1]], axis=1)
        learnt = np.where(changed, ended + self.interval_s, 0).max(1) * np.isinf(self.anomalous_since_s[series])
        self.run_since_s[series] = since[:, -1]
        self.longest_run_s[series] = np.maximum(self.longest_run_s[series], np.where(learnt < 1e8, learnt, 0))
        longest = self.longest_run_s[series][:, None]
        tested = (longest > 0) & (longest < LONGEST_REST_S) & (run_s > SHORTEST_REST_S) & known
        still = np.where(tested, run_s / np.maximum(longest, 10 * self.interval_s), 0).astype(np.float32)
        yield from self._judge(series, times, SAMPLE, out, three, np.broadcast_to(usual, three.shape))
        yield from self._judge(series, times, STILL, still, values, run_s)
        rows, columns = np.nonzero(known)
        places = (self.filled[series][rows] + columns) % MOST_SAMPLES
        self.inside[series[rows], places] = values[rows, columns]
        count = known.shape[1] - np.argmax(known[:, ::-1], axis=1)  # up to the last value of the row
        self.filled[series] += count
        self.last[series] = np.take_along_axis(long, count[:, None] + np.arange(2), axis=1)
        self.series_seen_s[series] = times[np.arange(len(series)), count - 1]

    def _judge(
        self, series: Indices, times: Doubles, test: int, scores: Floats, values: Floats, expected: Doubles | Floats
    ) -> Iterator[Anomaly]:
        """Notes scores, one row a series, and begins an anomaly where one is over the limit."""
        highest = scores.max(1)
        self.calibration.note(series, test, highest)
        limit = self.calibration.limits(series)[:, test]
        normal = np.isinf(self.anomalous_since_s[series])
        for row in np.flatnonzero((highest > limit) & (normal | (test == STILL))):
            number, column = int(series[row]), int(np.argmax(scores[row] > limit[row]))
            now_s = since_s = float(times[row, column])
            if test == STILL:
                since_s = now_s - float(expected[row, column])
            elif test in WINDOWS:
                # it began with the buckets that are off to the same side by more than the scale
                residuals = self.residuals[number][::-1]
                off = residuals * np.sign(residuals[0]) > self.current[number][SCALE]
                since_s -= BUCKET_S * (len(off) if off.all() else int(np.argmin(off)))
            other = self.open.get((int(self.owner[number]), number))
            if other is not None:
                if other.test == TESTS[STILL]:
                    continue
                yield self._end(other, now_s, "is a sensor that stands still")
            self.anomalous_since_s[number] = since_s
            score = float(scores[row, column] / limit[row])
            value, usual = float(values[row, column]), float(expected[row, column])
            yield self._begin(int(self.owner[number]), number, TESTS[test], now_s, since_s, value, usual, score)

    def _roll(self, batch: Batch) -> Iterator[Anomaly]:
        """Ends the buckets of hosts for which a new one begins."""
        buckets = np.floor(batch.times_s[:, 0] / BUCKET_S).astype(np.int64)
        changed = buckets != self.bucket[batch.hosts]
        if not changed.any():
            return
        rolling, now = batch.hosts[changed], np.zeros(self.hosts, np.int64)
        now[batch.hosts] = buckets
        series = self.series_of(rolling)
        before, after = self.bucket[self.owner[series]].astype(np.int64), now[self.owner[series]]
        known = before >= 0
        if known.any():
            yield from self._finish(series[known], before[known], after[known])
        self.bucket[batch.hosts] = buckets
        self._blocks(rolling, now)
        slot, base = after % SLOTS, self.baselines
        usual, hour = base.level[series] + base.season[series, slot % WEEK], slot % DAY
        columns = [usual, *(table[series, hour] for table in (base.top, base.bottom, base.spread, base.scale))]
        self.current[series] = np.stack(columns, axis=1)
        self.inside[series], self.extremes[series], self.filled[series] = np.nan, np.nan, 0

    def series_of(self, hosts: Indices) -> Indices:
        """Returns the series of some hosts, those of one host together."""
        chosen = np.zeros(self.hosts, bool)
        chosen[hosts] = True
        series = np.flatnonzero(chosen[self.owner])
        return series[np.argsort(self.owner[series], kind="stable")]

    def _finish(self, series: Indices, before: Indices, after: Indices) -> Iterator[Anomaly]:
        """Takes the figures of finished buckets, judges the windows that end with them, and keeps what was normal."""
        inside, rows = np.sort(self.inside[series], axis=1), np.arange(len(series))
        count = np.count_nonzero(~np.isnan(inside), axis=1)
        top = np.maximum(count - 1, 0)
        mid = (inside[rows, top // 2] + inside[rows, np.minimum(count // 2, top)]) / 2
        high, low = self.extremes[series].T
        usual, hourly = self.current[series, USUAL], np.maximum(self.current[series, SCALE], 1e-9)
        daily = np.maximum(self.baselines.scale[series].mean(1), 1e-9)
        self.residuals[series] = np.concatenate([self.residuals[series][:, 1:], (mid - usual)[:, None]], axis=1)
        times = np.asarray((before[:, None] + 1.0) * BUCKET_S, np.float64)
        for test, width in WINDOWS.items():
            recent = self.residuals[series, -width:]
            present = np.count_nonzero(~np.isnan(recent), axis=1)
            mean = np.nansum(recent, axis=1) / np.maximum(present, 1)
            scale = hourly if width <= WINDOWS[HOUR] else daily
            score = np.where(present * 2 >= width, np.abs(mean) / scale, 0).astype(np.float32)
            score = np.where(np.isnan(score), 0, score)
            if test == QUARTER:
                score = np.where(times[:, 0] <= self.unsettled_s[self.owner[series]], 0, score)
            yield from self._judge(series, times, test, score[:, None], (mean + usual)[:, None], usual[:, None])
        normal = np.isinf(self.anomalous_since_s[series])
        keep = np.where(normal, 1.0, np.nan).astype(np.float32)
        self.baselines.keep(series, before % SLOTS, mid * keep, high * keep, low * keep)
        yield from self._recover(series[~normal], mid[~normal], times[~normal, 0])
        gap = np.minimum(after - before - 1, SLOTS)
        for row in np.flatnonzero(gap > 0):
            number, length = int(series[row]), int(gap[row])
            slots = (before[row] + 1 + np.arange(length)) % SLOTS
            self.baselines.forget(number, slots)
            moved = min(length, DAY)
            self.residuals[number] = np.concatenate(
                [self.residuals[number][moved:], np.full(moved, np.nan, np.float32)]
            )

    def _recover(self, series: Indices, mid: Floats, times: Doubles) -> Iterator[Anomaly]:
        """Ends anomalies whose series have been normal for a while, and accepts a level that has come to stay."""
        limit = self.calibration.limits(series)
        for row, number in enumerate(int(each) for each in series):
            anomaly = self.open.get((int(self.owner[number]), number))
            if anomaly is None:
                self.anomalous_since_s[number] = np.inf
                continue
            usual, top, bottom, spread, scale = (float(figure) for figure in self.current[number])
            if anomaly.test == "still":
                rest_s = max(float(self.longest_run_s[number]), 10 * self.interval_s)
                calm = times[row] - self.run_since_s[number] < rest_s
            else:
                edge = float(limit[row, SAMPLE]) * spread
                near = abs(float(mid[row]) - usual) / max(scale, 1e-9) < BACK_TO_NORMAL * float(limit[row, QUARTER])
                calm = near and usual - bottom - edge < float(mid[row]) < usual + top + edge
            anomaly.calm = anomaly.calm + 1 if calm else 0
            if anomaly.calm >= CALM_BUCKETS:
                yield self._end(anomaly, float(times[row]), "is normal again")
            elif times[row] - anomaly.since_s > ACCEPT_S:
                if anomaly.test != "still":
                    self.baselines.shift(number, float(np.nanmedian(self.residuals[number])))
                yield self._end(anomaly, float(times[row]), "counts as normal now: it has lasted three days")

    def _blocks(self, rolling: Indices, now: Indices) -> None:
        """Ends the blocks of hosts for which a new one begins, and works out anew what is normal for them."""
        blocks = now[rolling] * BUCKET_S // BLOCK_S
        changed = rolling[(blocks != self.block[rolling]) & (self.block[rolling] > 0)]
        self.block[rolling] = blocks
        if not len(changed):
            return
        series = self.series_of(changed)
        began_s = now[self.owner[series]] * float(BUCKET_S) - BLOCK_S
        left_out = self.anomalous_since_s[series] < began_s
        lasting = np.isfinite(self.anomalous_since_s[series]) | self.went_on[series]
        self.went_on[series] = False
        ended = self.block[self.owner[series]].astype(np.int64) - 1
        self.calibration.close(series, ended, left_out, lasting)
        self.baselines.refresh(series, int(now[changed[0]]) % SLOTS)
        self.calibration.refresh(series, ended + 1)
