"""What an anomaly is, in words: which metric, how much, since when, and how the host stands in its fleet."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import numpy as np

from anynpu.apps.watch.baselines import BUCKET_S, WEEK
from anynpu.apps.watch.detector import Anomaly, Detector
from anynpu.apps.watch.registry import unit_of

Kind = Literal["spike", "level", "drift", "leak", "season", "stuck", "missing", "clock", "unlike"]
FEWEST_TO_TREND = 6
NAMES: dict[str, str] = {
    "spike": "spike",
    "level": "change of level",
    "drift": "slow drift",
    "leak": "memory leak",
    "season": "unusual for the hour",
    "stuck": "stuck sensor",
    "missing": "no data",
    "clock": "clock jump",
    "unlike": "unlike the last 20 samples",
}


@dataclass(frozen=True)
class Explanation:
    """An anomaly for people."""

    kind: Kind
    text: str
    value: float | None = None
    usual: float | None = None


def shown(value: float, suffix: str) -> str:
    """Returns a number with its unit, short: 3.4 MB/s, 97 %, 0.46."""
    if suffix in (" B/s", " B"):
        for prefix, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
            if abs(value) >= factor:
                return f"{value / factor:.3g} {prefix}{suffix.strip()}"
    return f"{value:.4g}{suffix}"


def duration(seconds: float) -> str:
    """Returns a time in the unit that suits it."""
    for size, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if abs(seconds) >= 1.5 * size:
            return f"{seconds / size:.3g} {name}"
    return f"{seconds:.3g} s"


def explained(detector: Detector, anomaly: Anomaly) -> Explanation:
    """Returns what an anomaly is as far as is known now."""
    since = datetime.fromtimestamp(anomaly.since_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    if anomaly.test == "clock":
        off = anomaly.value - anomaly.expected
        way = "ahead" if off > 0 else "behind"
        return Explanation("clock", f"the clock jumped {duration(abs(off))} {way} at {since}", anomaly.value)
    if anomaly.test == "unlike":
        text = f"the mean cosine to the last 20 samples is {anomaly.value:.3f}, below {anomaly.expected:.3f}"
        return Explanation("unlike", f"{text}, since {since}", anomaly.value, anomaly.expected)
    if anomaly.series is None:
        return Explanation("missing", f"no samples since {since}", None)
    metric = detector.registry.metrics[anomaly.series]
    if anomaly.test == "missing":
        return Explanation("missing", f"{metric}: no values since {since}, while the host reports", None)
    unit, zero = unit_of(metric), float(detector.zero[anomaly.series])

    def real(value: float) -> float:
        return 10**value - zero if zero else value

    value = real(anomaly.value)
    if anomaly.test == "still":
        longest = max(float(detector.longest_run_s[anomaly.series]), detector.interval_s)
        text = f"{metric} has stood at {shown(value, unit.suffix)} since {since}"
        text += f"; it usually changes within {duration(longest)}"
        return Explanation("stuck", text, value)
    kind, usual = _kind(detector, anomaly, metric), real(anomaly.expected)
    median, rank, count = _fleet(detector, anomaly.series)
    text = f"{metric} {shown(value, unit.suffix)}, usually {shown(usual, unit.suffix)} at this hour, since {since}"
    text += f" ({anomaly.score:.1f} times the threshold)"
    if median is not None and count > 2:
        place = "highest" if rank == 0 else "lowest" if rank == count - 1 else f"number {rank + 1}"
        text += f"; fleet median {shown(real(median), unit.suffix)}, this host is {place} of {count}"
    return Explanation(kind, f"{NAMES[kind]}: {text}", value, usual)


def _kind(detector: Detector, anomaly: Anomaly, metric: str) -> Kind:
    assert anomaly.series is not None
    if anomaly.test == "sample":
        return "spike"
    number = anomaly.series
    residuals = detector.residuals[number]
    lasting = int(min(max((anomaly.opened_s - anomaly.since_s) / BUCKET_S, FEWEST_TO_TREND), len(residuals)))
    recent = residuals[-lasting:]
    recent = recent[~np.isnan(recent)]
    if len(recent) >= FEWEST_TO_TREND and np.ptp(recent) > 0:
        trend = float(np.corrcoef(np.arange(len(recent)), recent)[0, 1]) * np.sign(recent[-1])
        if trend > 0.85 and abs(recent[: len(recent) // 3].mean()) < 0.6 * abs(recent[-3:].mean()):
            return "leak" if "memory" in metric and recent[-1] > 0 else "drift"
    base = detector.baselines
    course = base.season[number] + base.level[number]
    reach = np.tile(base.top[number], WEEK // len(base.top[number]))
    depth = np.tile(base.bottom[number], WEEK // len(base.bottom[number]))
    if float((course - depth).min()) <= anomaly.value <= float((course + reach).max()):
        return "season"
    return "drift" if anomaly.test == "day" else "level"


def _fleet(detector: Detector, series: int) -> tuple[float | None, int, int]:
    """Returns the median of the same metric on all hosts that report, how many are higher, and how many there are."""
    kind = detector.calibration.kind
    same = np.flatnonzero(kind == kind[series])
    values = detector.last[same, 1]
    fresh = ~np.isnan(values) & (detector.series_seen_s[same] > detector.seen_s.max() - 20 * detector.interval_s)
    values = values[fresh]
    if not len(values):
        return None, 0, 0
    return float(np.median(values)), int((values > detector.last[series, 1]).sum()), len(values)
