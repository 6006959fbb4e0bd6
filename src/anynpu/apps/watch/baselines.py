"""What is normal for a series at this hour of this day of the week, robustly: medians and quantiles of four weeks.

A bucket is a quarter of an hour. Of every bucket the median, the highest and the lowest value are kept for four weeks,
aligned with the week; buckets in which the series was anomalous are left out. From these come

- the season: the course of the day, and of each day of the week as far as it differs by more than chance,
- the level: the median of the last week without the season,
- the scale: how far bucket medians usually are from both, by the hour,
- the envelope: how high and low single samples go at this time of day.
"""

from __future__ import annotations

import numpy as np

from anynpu.apps.watch.registry import Floats, Indices

BUCKET_S = 900
DAY = 96
WEEK = 7 * DAY
SLOTS = 4 * WEEK
NEAR = 2
"""Buckets by which what a job does may come early or late."""


def ranked(values: Floats, share: float, axis: int) -> Floats:
    """Returns a quantile along an axis (the nearest rank above), leaving NaN out; NaN where there is nothing else."""
    ordered = np.sort(values, axis=axis)
    count = np.count_nonzero(~np.isnan(ordered), axis=axis, keepdims=True)
    place = np.clip(np.ceil(share * count).astype(np.int64) - 1, 0, None)
    return np.take_along_axis(ordered, place, axis=axis).squeeze(axis)


def middle(values: Floats, axis: int) -> Floats:
    """Returns the median along an axis, leaving NaN out."""
    ordered = np.sort(values, axis=axis)
    count = np.count_nonzero(~np.isnan(ordered), axis=axis, keepdims=True)
    low = np.take_along_axis(ordered, np.clip((count - 1) // 2, 0, None), axis=axis)
    high = np.take_along_axis(ordered, np.clip(count // 2, 0, ordered.shape[axis] - 1), axis=axis)
    return np.asarray((low + np.where(count > 0, high, np.nan)).squeeze(axis) / 2, np.float32)


def around(values: Floats, reach: int) -> Floats:
    """Returns the mean over neighbours along the last axis, which is a circle; NaN counts for nothing."""
    present = ~np.isnan(values)
    filled = np.where(present, values, 0)
    total, count = np.zeros_like(filled), np.zeros(filled.shape, np.float32)
    for shift in range(-reach, reach + 1):
        total += np.roll(filled, shift, -1)
        count += np.roll(present, shift, -1)
    return np.asarray(np.where(count > 0, total / np.maximum(count, 1), np.nan), np.float32)


def widest(values: Floats, reach: int) -> Floats:
    """Returns the highest of neighbours along the last axis, which is a circle."""
    highest = values
    for shift in range(-reach, reach + 1):
        highest = np.fmax(highest, np.roll(values, shift, -1))
    return highest


class Baselines:
    """The history of many series, and what is normal by it."""

    def __init__(self) -> None:
        self.size = 0
        self.mid, self.high, self.low = (np.full((0, SLOTS), np.nan, np.float32) for _ in range(3))
        self.season = np.zeros((0, WEEK), np.float32)
        self.scale, self.top, self.bottom, self.spread = (np.ones((0, DAY), np.float32) for _ in range(4))
        self.level = np.full(0, np.nan, np.float32)
        self.floor = np.zeros(0, np.float32)

    def grow(self, floors: Floats) -> None:
        """Makes room for more series, each with the change that is too small to matter."""
        more = len(floors)
        for name, fill in (("mid", np.nan), ("high", np.nan), ("low", np.nan), ("season", 0.0), ("scale", 1.0)):
            _extend(self, name, more, fill)
        for name, fill in (("top", 0.0), ("bottom", 0.0), ("spread", 1.0), ("level", np.nan)):
            _extend(self, name, more, fill)
        self.floor = np.concatenate([self.floor, floors])
        self.size += more

    def keep(self, series: Indices, slots: Indices, mid: Floats, high: Floats, low: Floats) -> None:
        """Writes the figures of a finished bucket, one slot a series."""
        self.mid[series, slots], self.high[series, slots], self.low[series, slots] = mid, high, low

    def forget(self, series: int, slots: Indices) -> None:
        """Leaves buckets of a series out of what is normal."""
        for history in (self.mid, self.high, self.low):
            history[series, slots] = np.nan

    def shift(self, series: int, by: float) -> None:
        """Moves what is normal for one series: a new level has been accepted."""
        for history in (self.mid, self.high, self.low):
            history[series] += by
        self.level[series] += by

    def refresh(self, series: Indices, slot: int) -> None:
        """Works out what is normal for some series anew; `slot` is the bucket that is now."""
        for part in np.array_split(series, max(1, len(series) // 2000)):
            mid, count = self.mid[part], len(part)
            overall = middle(mid, 1)
            floor = np.maximum(self.floor[part], 0.01 * np.abs(overall) * (self.floor[part] == 0) + 1e-6)
            season = _season(mid - overall[:, None], floor)
            flat = mid - np.tile(season, 4)
            level = middle(flat[:, (slot - np.arange(WEEK)) % SLOTS], 1)
            level = np.where(np.isnan(level), middle(flat, 1), level)
            self.season[part], self.level[part] = season, level
            rest = (flat - level[:, None]).reshape(count, 28, DAY)
            whole = 1.4826 * middle(np.abs(rest.reshape(count, -1)), 1)
            hourly = 1.4826 * around(middle(np.abs(rest), 1), 4)
            self.scale[part] = np.maximum(np.fmax(hourly, 0.5 * whole[:, None]), floor[:, None])
            usual = np.tile(season, 4) + level[:, None]
            for history, name, sign in ((self.high, "top", 1), (self.low, "bottom", -1)):
                reach = widest(sign * (history[part] - usual), NEAR).reshape(count, 28, DAY)
                edge = np.fmax(ranked(reach, 0.9, 1), 0)
                getattr(self, name)[part] = np.where(np.isnan(edge), 0, edge)
                if sign > 0:
                    about = 1.4826 * around(middle(np.abs(reach - middle(reach, 1)[:, None]), 1), 4)
            self.spread[part] = np.fmax(np.fmax(about, self.scale[part]), 2 * floor[:, None])


def _extend(owner: Baselines, name: str, more: int, fill: float) -> None:
    array = getattr(owner, name)
    setattr(owner, name, np.concatenate([array, np.full((more, *array.shape[1:]), fill, array.dtype)]))


def _season(values: Floats, floor: Floats) -> Floats:
    """Returns the course of the week: that of the day, and what a day of the week adds if that is more than chance."""
    count = len(values)
    days = values.reshape(count, 28, DAY)
    daily = around(middle(days, 1), 1)
    daily = np.where(np.isnan(daily), 0, daily)
    weekly = middle((days - daily[:, None]).reshape(count, 4, 7, DAY), 1)
    weeks = np.count_nonzero(~np.isnan((days - daily[:, None]).reshape(count, 4, 7, DAY)), axis=1)
    noise = 1.4826 * middle(np.abs(days - daily[:, None]).reshape(count, -1), 1)
    smooth = around(weekly, 4)
    smooth = np.where(np.isnan(smooth), 0, smooth)
    chance = np.maximum(noise, floor)[:, None, None] ** 2 * 1.57 / np.maximum(weeks, 1) / 3
    power = np.mean(smooth**2, axis=2, keepdims=True)
    trust = np.clip(1 - chance / np.maximum(power, 1e-12), 0, 1) * (weeks >= 2)
    return np.asarray((daily[:, None] + trust * smooth).reshape(count, WEEK), np.float32)
