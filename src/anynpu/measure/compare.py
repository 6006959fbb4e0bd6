"""Is B better, worse or no different from A? The record of the kind "compare".

schema_version, kind, anynpu, at       1, "compare", the version that compared, when (UTC)
a, b                   {name, artifact (digest), fingerprint, executed, chip, tools, options}; a is the reference
reference, candidate, executed         the two digests, and the two lines saying what ran them
same_network           whether the fingerprints are equal; if not, every line says "not comparable"
level, margin          of the tests; the smallest relative difference of interest
latency                null, or (`counts` in its place, where instructions were counted and not time)
  unit, input, order   "ms" (of counts "instructions"); what was run; the order of launches, such as "ABBAABBAAB"
  launches             {a: [[...], ...], b: [[...], ...]}: every sample of every launch
  summary              {a, b}: of all samples of a side, as measure.stats.Summary says
  medians              {a, b}: what the ratio is of, the geometric mean of the medians of the launches (or blocks)
  ratio                {median, low, high, confidence}: B over A; above 1 is slower (more instructions)
  replicates           "launches", or "blocks" where there was one launch and its parts stand for launches
  p_value, p_adjusted  of the permutation test; after Holm's correction over all that is judged
  equivalent           whether the whole interval lies within the margin
  verdict              "better", "worse", "no difference" or "not comparable"; null if it broke off
accuracy               null, or {metric, samples, a, b, a_interval, b_interval, difference [mean, low, high], test,
                       only_a_right, only_b_right, higher_is_better, p_value, p_adjusted, verdict}
outputs, min_sqnr_db   null, or the fidelity of each output; the floor it was held to
outputs_verdict        null, "same" or "different"
outputs_shortfall      in what they differ, as in a build's gate; "" if they do not
host                   {cpus, governor, load, load_after}
partial, failure       whether a device failed on the way, and its words; all samples until then are kept
verdict, notes         over everything; sentences that belong to the figures
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from anynpu.artifact import Artifact
from anynpu.errors import ConfigError
from anynpu.measure.inference import Launches, bootstrap_ratio, holm, log_medians, permutation_test
from anynpu.measure.paired import FEW, Paired
from anynpu.measure.stats import TIME_UNITS, summarize, trend
from anynpu.schema import to_dict

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


@dataclass(frozen=True)
class SideInfo:
    """Who a side is."""

    name: str
    artifact: str = ""
    fingerprint: str = ""
    executed: str = ""
    chip: str = ""
    tools: Mapping[str, str] | None = None
    options: Mapping[str, Any] | None = None


def fewest_launches(level: float, metrics: int = 1) -> int:
    """Returns the least launches of each side with which a permutation test can reach the level at all."""
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
            f"{samples.size} samples of one launch are too few to compare", f"{FEWEST_SAMPLES} are the least"
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
    found = Latency(mid_a, mid_b, ratio, low, high, p_value, p_value, kind_a, "", equivalent)
    return _decided(found, p_value, rules)


def _decided(found: Latency, p_adjusted: float, rules: Rules) -> Latency:
    verdict = verdict_of(-math.log(found.ratio), p_adjusted, rules.level, math.log1p(rules.margin))
    return replace(found, p_adjusted=p_adjusted, verdict=verdict)


def verdict_of(gain: float, p_value: float, level: float, margin: float) -> str:
    """Returns the verdict on a gain (negative is a loss): a difference is significant and not below the margin."""
    if p_value > level or abs(gain) < margin or gain == 0:
        return SAME
    return BETTER if gain > 0 else WORSE


def judge(
    latency: Latency | None, accuracy: Paired | None, rules: Rules
) -> tuple[Latency | None, dict[str, Any] | None]:
    """Returns both with their p-values corrected for being several (Holm) and the verdicts that follow."""
    given = [x.p_value for x in (latency, accuracy) if x is not None]
    adjusted = list(holm(given))
    if latency is not None:
        latency = _decided(latency, adjusted.pop(0), rules)
    if accuracy is None:
        return latency, None
    p_value = adjusted.pop(0)
    scale = 1.0 if accuracy.higher_is_better else max(accuracy.a, accuracy.b, 1e-300)
    verdict = verdict_of(accuracy.gain / scale, p_value, rules.level, 0.0)
    return latency, {**to_dict(accuracy, whole=True), "p_adjusted": p_value, "verdict": verdict}


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
    outputs: Mapping[str, Any] | None = None,
    min_sqnr_db: float | None = None,
    outputs_shortfall: str = "",
    host: Mapping[str, Any] | None = None,
    failure: str = "",
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Returns the whole record; a measurement that broke off is kept and not judged."""
    latency = None if measured is None or failure else judge_latency(measured.a, measured.b, rules)
    latency, scores = judge(latency, accuracy, rules)
    same = a.fingerprint == b.fingerprint
    fidelity = None if outputs is None else ("different" if outputs_shortfall else "same")
    said = [*notes, *_notes(measured, latency, accuracy), *_busy(host or {})]
    timed = None if measured is None else _latency_record(measured, latency, rules)
    is_time = measured is None or measured.unit in TIME_UNITS
    for part in (timed, scores):
        if part is not None and not same and part["verdict"] is not None:
            part["verdict"] = NOT_COMPARABLE
    return {
        "schema_version": 1,
        "kind": "compare",
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "a": to_dict(a, whole=True),
        "b": to_dict(b, whole=True),
        "reference": a.artifact,
        "candidate": b.artifact,
        "executed": [a.executed, b.executed],
        "same_network": same,
        "level": rules.level,
        "margin": rules.margin,
        "latency": timed if is_time else None,
        "counts": None if is_time else timed,
        "accuracy": scores,
        "outputs": outputs,
        "min_sqnr_db": min_sqnr_db,
        "outputs_verdict": fidelity,
        "outputs_shortfall": outputs_shortfall,
        "host": dict(host or {}),
        "partial": bool(failure),
        "failure": failure,
        "verdict": _whole_verdict(timed, scores, fidelity, same, bool(failure)),
        "notes": said,
    }


def _whole_verdict(
    latency: Mapping[str, Any] | None,
    accuracy: Mapping[str, Any] | None,
    fidelity: str | None,
    same: bool,
    broken: bool,
) -> str | None:
    if broken:
        return None
    verdicts = [part["verdict"] for part in (latency, accuracy) if part is not None]
    if fidelity == "different":
        verdicts.append(WORSE)
    return overall(verdicts) if same else NOT_COMPARABLE


def _latency_record(measured: Measured, found: Latency | None, rules: Rules) -> dict[str, Any]:
    record: dict[str, Any] = {
        "unit": measured.unit,
        "input": measured.input,
        "order": measured.order,
        "launches": {"a": [list(s) for s in measured.a], "b": [list(s) for s in measured.b]},
        "summary": {name: _summary(side) for name, side in (("a", measured.a), ("b", measured.b))},
    }
    keys = ("medians", "ratio", "replicates", "p_value", "p_adjusted", "equivalent", "verdict")
    if found is None:
        return record | dict.fromkeys(keys)
    ratio = {"median": found.ratio, "low": found.low, "high": found.high, "confidence": 1 - rules.level}
    rest = {name: getattr(found, name) for name in keys[2:]}
    return {**record, "medians": {"a": found.a, "b": found.b}, "ratio": ratio, **rest}


def _summary(launches: Launches) -> dict[str, Any] | None:
    samples = [value for launch in launches for value in launch]
    return summarize(samples).to_json() if samples else None


def _notes(measured: Measured | None, latency: Latency | None, accuracy: Paired | None) -> list[str]:
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
    return notes


def _busy(host: Mapping[str, Any]) -> list[str]:
    load, cpus = host.get("load"), host.get("cpus")
    if load is None or cpus is None or load <= cpus:
        return []
    return [f"the machine was busy before the first launch (load {load:g} on {cpus} CPUs): the times are not its best"]
