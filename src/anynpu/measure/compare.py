"""Is B better, worse or no different from A? The form of what it comes to is `records.compare`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from anynpu.artifact import Artifact
from anynpu.errors import ConfigError
from anynpu.measure.paired import FEW, Paired
from anynpu.measure.significance import Launches, bootstrap_ratio, holm, log_medians, permutation_test
from anynpu.measure.stats import TIME_UNITS, summarize, trend
from anynpu.records.compare import (
    Accuracy,
    CompareRecord,
    Conditions,
    LatencyVersus,
    Medians,
    Ratio,
    SideInfo,
    SideSummaries,
)
from anynpu.records.compare import Launches as LaunchesForm
from anynpu.records.parts import now
from anynpu.records.shared import Fidelity, Summary

BETTER, WORSE, SAME, NOT_COMPARABLE = "better", "worse", "no difference", "not comparable"
BLOCKS = 10
FEWEST_SAMPLES = 4
ONE_LAUNCH = "one launch of each side: what changes from launch to launch is not in the interval (parts of it stand in)"


@dataclass(frozen=True)
class Rules:
    """How a difference is judged."""

    level: float = 0.05
    margin: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise ConfigError(f"level {self.level:g}: a number between 0 and 1 was expected")
        if not 0 <= self.margin < 1:
            raise ConfigError(f"margin {self.margin:g}: a share from 0 to 1 was expected, such as 1%")


@dataclass(frozen=True)
class Latency:
    """The ratio of medians, B over A, with its interval and the test that there is no difference."""

    a: float
    """The geometric mean of the medians of A's launches; `b` of B's. The ratio is b / a."""
    b: float
    ratio: float
    low: float
    high: float
    p_value: float
    p_adjusted: float
    replicates: str
    verdict: str
    equivalent: bool


@dataclass(frozen=True)
class Measured:
    """Samples of both sides by launch, and their conditions."""

    a: Launches
    b: Launches
    unit: str = "ms"
    input: str = ""
    order: str = ""


def fewest_launches(level: float, metrics: int = 1) -> int:
    """Returns the minimum number of launches of each side with which a permutation test can reach the level at all."""
    count = 2
    while metrics * 2 / math.comb(2 * count, count) > level:
        count += 1
    return count


def as_launches(launches: Launches) -> tuple[list[Any], str]:
    """Returns the units of replication: the launches, or ten successive parts of the only one."""
    if len(launches) != 1:
        return list(launches), "launches"
    samples = np.asarray(launches[0], np.float64)
    if samples.size < FEWEST_SAMPLES:
        raise ConfigError(
            f"{samples.size} samples of one launch are too few to compare", f"{FEWEST_SAMPLES} is the minimum"
        )
    return np.array_split(samples, min(BLOCKS, samples.size)), "blocks"


def judge_latency(a: Launches, b: Launches, rules: Rules, seed: int = 0) -> Latency:
    """Returns the latency of B against A; better or worse needs the level and, as point estimate, the margin."""
    (units_a, kind_a), (units_b, kind_b) = as_launches(a), as_launches(b)
    if kind_a != kind_b:
        raise ConfigError("one side has several launches and the other one", "measure both in the same way")
    rng = np.random.default_rng(seed)
    ratio, low, high = bootstrap_ratio(units_a, units_b, 1 - rules.level, rng)
    p_value = permutation_test(units_a, units_b, rng)
    edge = 1 + rules.margin
    equivalent = 1 / edge <= low and high <= edge
    mid_a, mid_b = (math.exp(float(log_medians(units).mean())) for units in (units_a, units_b))
    latency = Latency(mid_a, mid_b, ratio, low, high, p_value, p_value, kind_a, "", equivalent)
    return _decided(latency, p_value, rules)


def _decided(latency: Latency, p_adjusted: float, rules: Rules) -> Latency:
    verdict = verdict_of(-math.log(latency.ratio), p_adjusted, rules.level, math.log1p(rules.margin))
    return replace(latency, p_adjusted=p_adjusted, verdict=verdict)


def verdict_of(gain: float, p_value: float, level: float, margin: float) -> str:
    """Returns the verdict on a gain (negative is a loss): a difference is significant and not below the margin."""
    if p_value > level or abs(gain) < margin or gain == 0:
        return SAME
    return BETTER if gain > 0 else WORSE


def judge(latency: Latency | None, accuracy: Paired | None, rules: Rules) -> tuple[Latency | None, Accuracy | None]:
    """Returns both with their p-values corrected for being several (Holm) and the verdicts that follow."""
    adjusted = list(holm([x.p_value for x in (latency, accuracy) if x is not None]))
    if latency is not None:
        latency = _decided(latency, adjusted.pop(0), rules)
    if accuracy is None:
        return latency, None
    p_value = adjusted.pop(0)
    scale = 1.0 if accuracy.higher_is_better else max(accuracy.a, accuracy.b, 1e-300)
    verdict = verdict_of(accuracy.gain / scale, p_value, rules.level, 0.0)
    return latency, Accuracy(**vars(accuracy), p_adjusted=p_value, verdict=verdict)


def overall(verdicts: Sequence[str | None]) -> str:
    """Returns the verdict over several: worse if anything is worse."""
    for verdict in (NOT_COMPARABLE, WORSE, BETTER):
        if verdict in verdicts:
            return verdict
    return SAME


def side_of(artifact: Artifact, executed: str = "") -> SideInfo:
    """Returns who an artifact is."""
    manifest, step = artifact.manifest, artifact.manifest.step
    info = SideInfo(str(artifact.path), artifact.digest, manifest.fingerprint, executed)
    if step is None:
        return info
    return replace(info, chip=step.platform or step.name, tools=dict(step.tools), options=dict(step.options))


def record_of(
    a: SideInfo,
    b: SideInfo,
    rules: Rules,
    *,
    measured: Measured | None = None,
    accuracy: Paired | None = None,
    outputs: Mapping[str, Fidelity] | None = None,
    min_sqnr_db: float | None = None,
    outputs_shortfall: str = "",
    host: Conditions | None = None,
    failure: str = "",
    notes: Sequence[str] = (),
) -> CompareRecord:
    """Returns the whole record; a measurement that broke off is kept and not judged."""
    latency = None if measured is None or failure else judge_latency(measured.a, measured.b, rules)
    latency, scores = judge(latency, accuracy, rules)
    same = a.fingerprint == b.fingerprint
    fidelity = None if outputs is None else ("different" if outputs_shortfall else "same")
    timed = None if measured is None else _versus(measured, latency, rules)
    is_time = measured is None or measured.unit in TIME_UNITS
    if not same and timed is not None and timed.verdict is not None:
        timed = replace(timed, verdict=NOT_COMPARABLE)
    if not same and scores is not None:
        scores = replace(scores, verdict=NOT_COMPARABLE)
    verdicts = [part.verdict for part in (timed, scores) if part is not None]
    verdicts += [WORSE] if fidelity == "different" else []
    return CompareRecord(
        schema_version=1,
        kind="compare",
        at=now(),
        a=a,
        b=b,
        reference=a.artifact,
        candidate=b.artifact,
        executed=(a.executed, b.executed),
        same_network=same,
        level=rules.level,
        margin=rules.margin,
        latency=timed if is_time else None,
        counts=None if is_time else timed,
        accuracy=scores,
        outputs=outputs,
        min_sqnr_db=min_sqnr_db,
        outputs_verdict=fidelity,
        outputs_shortfall=outputs_shortfall,
        host=host,
        partial=bool(failure),
        failure=failure,
        verdict=None if failure else overall(verdicts) if same else NOT_COMPARABLE,
        notes=(*notes, *_notes(measured, latency, accuracy, host)),
    )


def _versus(measured: Measured, judged: Latency | None, rules: Rules) -> LatencyVersus:
    versus = LatencyVersus(
        unit=measured.unit,
        input=measured.input,
        order=measured.order,
        launches=LaunchesForm(a=tuple(map(tuple, measured.a)), b=tuple(map(tuple, measured.b))),
        summary=SideSummaries(a=_summary(measured.a), b=_summary(measured.b)),
    )
    if judged is None:
        return versus
    return replace(
        versus,
        medians=Medians(a=judged.a, b=judged.b),
        ratio=Ratio(median=judged.ratio, low=judged.low, high=judged.high, confidence=1 - rules.level),
        replicates=judged.replicates,
        p_value=judged.p_value,
        p_adjusted=judged.p_adjusted,
        equivalent=judged.equivalent,
        verdict=judged.verdict,
    )


def _summary(launches: Launches) -> Summary | None:
    samples = [value for launch in launches for value in launch]
    return summarize(samples) if samples else None


def _notes(
    measured: Measured | None, latency: Latency | None, accuracy: Paired | None, host: Conditions | None
) -> list[str]:
    notes = []
    if latency is not None and latency.replicates == "blocks":
        notes.append(ONE_LAUNCH)
    if latency is not None and measured is not None:
        for letter, side in (("A", measured.a), ("B", measured.b)):
            drifting = sum(trend(launch).p_value < 0.01 for launch in side)
            if drifting:
                what = "latency" if measured.unit in TIME_UNITS else f"number of {measured.unit}"
                notes.append(f"{letter}: the {what} drifts within {drifting} of {len(side)} launches")
    if accuracy is not None and accuracy.samples < FEW:
        notes.append(f"{accuracy.samples} labelled samples are few: read the interval, not the accuracy")
    if host is not None and host.load is not None and host.cpus is not None and host.load > host.cpus:
        load = f"load {host.load:g} on {host.cpus} CPUs"
        notes.append(f"the machine was busy before the first launch ({load}): the times are not its best")
    return notes
