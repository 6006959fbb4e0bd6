"""anynpu.compare: is B better, worse or no different?"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from anynpu.api.feed import judging_samples, usual_metric
from anynpu.api.live import Samples, samples_file
from anynpu.artifact import Artifact
from anynpu.errors import AnyNpuError, ConfigError
from anynpu.files import cache_chosen
from anynpu.measure.compare import (
    NOT_COMPARABLE,
    WORSE,
    Measured,
    Rules,
    fewest_launches,
    record_of,
    side_of,
)
from anynpu.measure.launch import Job, conditions, interleave
from anynpu.measure.threshold import sentences
from anynpu.records.compare import CompareRecord, SideInfo
from anynpu.records.parts import own_version
from anynpu.records.shared import Fidelity, Threshold
from anynpu.runtime import trial
from anynpu.runtime.base import choose, open_artifact, open_session
from anynpu.seals import with_seal
from anynpu.tasks.card import names_of
from anynpu.tasks.images import Preprocess

if TYPE_CHECKING:
    from anynpu.measure.paired import Paired

LEVEL_SHARE, MARGIN_PERCENT, MIN_SQNR_DB = 0.05, 1.0, 10.0
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Asked:
    """What is compared, and when a difference counts; the names are those of the flags."""

    rules: Rules = field(default_factory=lambda: Rules(LEVEL_SHARE, MARGIN_PERCENT / 100))
    data: str = ""
    preprocess: Preprocess | None = None
    limit: int = 100
    metric: str = ""
    min_sqnr_db: float = MIN_SQNR_DB
    timed: bool = False
    launches: int = 5
    seconds: float = 0.5
    runs: int = 30
    on: str | None = None
    different_networks: bool = False

    def __post_init__(self) -> None:
        if not math.isfinite(self.min_sqnr_db):
            raise ConfigError(f"--min-sqnr {self.min_sqnr_db}: a number of decibels was expected")


class Comparison:
    """A verdict on B against A, with the figures behind it."""

    def __init__(self, record: CompareRecord) -> None:
        self.record = record

    @property
    def verdict(self) -> str:
        """better, worse, no difference, ... by latency and accuracy, as far as those were compared."""
        return str(self.record.verdict)

    @property
    def outputs(self) -> str:
        """Whether the outputs agree: same, different, or "" where they were not compared."""
        return self.record.outputs_verdict or ""

    @property
    def sqnr_db(self) -> float | None:
        """Signal to noise of the worst output of B against A, in dB."""
        outputs = self.record.outputs
        return min(fidelity.sqnr_db for fidelity in outputs.values()) if outputs else None

    @property
    def ratio(self) -> tuple[float, float, float] | None:
        """The median latency of B by that of A, and the ends of its interval."""
        ratio = self.record.measured.ratio if self.record.measured else None
        if ratio is None or ratio.median is None or ratio.low is None or ratio.high is None:
            return None
        return ratio.median, ratio.low, ratio.high

    @property
    def worse(self) -> bool:
        """Whether `anynpu compare` would end with status 1."""
        return self.record.verdict == WORSE or self.record.outputs_verdict == "different"

    def __str__(self) -> str:
        lines = [f"verdict: {self.verdict}"]
        if self.sqnr_db is not None:
            lines.append(f"outputs: {self.outputs}, {self.sqnr_db:.1f} dB")
        if self.ratio is not None:
            lines.append("latency: B / A = {:.4g} [{:.4g}, {:.4g}]".format(*self.ratio))
        if accuracy := self.record.accuracy:
            lines.append(f"{accuracy.metric}: A {accuracy.a:.4g}, B {accuracy.b:.4g}: {accuracy.verdict}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.record.notes)])

    def __repr__(self) -> str:
        return f"<anynpu.Comparison {self.verdict}>"

    def _repr_html_(self) -> str:
        from anynpu.report.html.markup import el

        return str(el("pre", str(self)))


def compare(
    a: str | PathLike[str],
    b: str | PathLike[str],
    data: Samples | None = None,
    *,
    time: bool = False,
    preprocess: Preprocess | None = None,
    limit: int = Asked.limit,
    metric: str = "",
    min_sqnr: float = MIN_SQNR_DB,
    launches: int = Asked.launches,
    seconds: float = Asked.seconds,
    runs: int = Asked.runs,
    on: str | None = None,
    different_networks: bool = False,
    level: float = LEVEL_SHARE,
    margin: float = MARGIN_PERCENT / 100,
    cache_dir: str | PathLike[str] | None = None,
) -> Comparison:
    """Judges artifact B against artifact A: their outputs and accuracies on `data`, their latencies with `time`.

    The names are those of the flags of `anynpu compare`; `margin` is a share.
    """
    rules = Rules(level, margin)
    with tempfile.TemporaryDirectory(prefix="anynpu-") as folder:
        asked = Asked(
            rules,
            samples_file(data, Path(folder), "data"),
            preprocess,
            limit,
            metric,
            min_sqnr,
            time,
            launches,
            seconds,
            runs,
            on,
            different_networks,
        )
        with cache_chosen(Path(cache_dir) if cache_dir else None):
            record, failure = compare_artifacts(Path(a), Path(b), asked)
    if failure is not None:
        raise failure
    gate = (
        *((Threshold("min_sqnr", min_sqnr, MIN_SQNR_DB, "dB", "the keyword min_sqnr"),) if asked.data else ()),
        Threshold("level", level, LEVEL_SHARE, "", "the keyword level"),
        Threshold("margin", 100 * margin, MARGIN_PERCENT, "%", "the keyword margin"),
    )
    return Comparison(sealed_record(record, gate))


def sealed_record(record: CompareRecord, gate: tuple[Threshold, ...]) -> CompareRecord:
    """Returns a comparison as a whole record, with the thresholds in force."""
    notes = (*record.notes, *sentences(gate))
    return with_seal(replace(record, gate=gate, notes=notes, anynpu=own_version()))


def same_network(a: SideInfo, b: SideInfo, different_networks: bool) -> list[str]:
    """Raises for different networks, or returns the label that they get when that was asked for."""
    if a.fingerprint == b.fingerprint:
        return []
    text = f"different networks (fingerprints {a.fingerprint[:12] or '-'} and {b.fingerprint[:12] or '-'})"
    if not different_networks:
        raise ConfigError(
            f"{a.name} and {b.name} are {text}", "--different-networks compares them and labels every figure"
        )
    return [f"{NOT_COMPARABLE}: {text}"]


def compare_artifacts(
    path_a: Path, path_b: Path, asked: Asked, progress: Progress = lambda done, total: None
) -> tuple[CompareRecord, AnyNpuError | None]:
    """Returns the comparison of two artifacts, and what broke it off if something did."""
    if not asked.data and not asked.timed:
        raise ConfigError(
            "what is to be compared?", "give --data for outputs and accuracy, --time for latency, or both"
        )
    a, b = open_artifact(path_a), open_artifact(path_b)
    side_a, side_b = side_of(a), side_of(b)
    notes = same_network(side_a, side_b, asked.different_networks)
    answers = Answers()
    if asked.data:
        answers = _outputs(a, b, asked, not notes)
        side_a, side_b = replace(side_a, executed=answers.executed[0]), replace(side_b, executed=answers.executed[1])
    measured = host = failure = None
    if asked.timed:
        least = fewest_launches(asked.rules.level, 2 if (answers.accuracy is not None) else 1)
        if asked.launches < least:
            raise ConfigError(
                f"--launches {asked.launches}: too few for a verdict at level {asked.rules.level:g}",
                f"{least} launches of each side is the minimum",
            )
        host = conditions()
        choose(a.manifest.format), choose(b.manifest.format, asked.on)  # raises before anything is launched
        one, other = (Job(x.path, on, asked.seconds, asked.runs) for x, on in ((a, None), (b, asked.on)))
        timed = interleave(one, other, asked.launches, progress)
        measured = Measured(timed.a.launches, timed.b.launches, "ms", timed.a.input, timed.order)
        host = replace(host, load_after=conditions().load)
        failure = timed.failure
        side_a = replace(side_a, executed=timed.a.executed or side_a.executed)
        side_b = replace(side_b, executed=timed.b.executed or side_b.executed)
    record = record_of(
        side_a,
        side_b,
        asked.rules,
        measured=measured,
        accuracy=answers.accuracy,
        outputs=answers.outputs,
        min_sqnr_db=None if answers.outputs is None else asked.min_sqnr_db,
        outputs_shortfall=answers.shortfall,
        host=host,
        failure=failure.message if failure else "",
        notes=[*notes, *answers.notes],
    )
    return record, failure


@dataclass(frozen=True)
class Answers:
    """What two artifacts gave for the same samples: how far outputs agree, and accuracies where there are labels."""

    executed: tuple[str, str] = ("", "")
    outputs: Mapping[str, Fidelity] | None = None
    shortfall: str = ""
    accuracy: Paired | None = None
    notes: tuple[str, ...] = ()


def _outputs(a: Artifact, b: Artifact, asked: Asked, same: bool) -> Answers:
    from anynpu.measure.execution import run_all
    from anynpu.measure.labels import read_labels, require_fit, require_metric
    from anynpu.measure.paired import PAIRED_METRICS, SQUARED_ERROR, compare_accuracy, metric_of
    from anynpu.measure.samples import SampleSet
    from anynpu.measure.verify import cautions, compared, shortfall

    require_metric(asked.metric, PAIRED_METRICS)
    data = judging_samples(asked.data, a.manifest.inputs, asked.preprocess, asked.limit, a, b)
    metric, labels, specs = asked.metric, None, a.manifest.outputs
    if data.labels is not None:
        metric = metric or usual_metric(asked.data) or metric_of(data.labels, specs)
        if metric != SQUARED_ERROR:
            require_fit(metric, a.manifest.inputs, specs)
        labels = read_labels(metric, data.labels, data.folders, specs, names_of(a), asked.data)
    elif metric:
        raise ConfigError(f"--metric {metric}: the data has no labels")
    samples = SampleSet(data.inputs, None if labels is None else labels.values)
    trial.require(a)
    trial.require(b, asked.on)  # raises before A has run
    with closing(open_session(a)) as on_a:
        outputs_a = run_all(on_a, samples, a)
    with closing(open_session(b, asked.on)) as on_b:
        outputs_b = run_all(on_b, samples, a if same else b)
    notes = [f"{len(samples)} samples" + (" of RANDOM data" * data.random), *(labels.notes if labels else ())]
    fidelity = short = accuracy = None
    if same:
        fidelity = compared(outputs_a, outputs_b, a)
        short = shortfall(fidelity, asked.min_sqnr_db)
        notes += [f"warning: {text}" for text in cautions(fidelity, data.random)]
    if samples.labels is not None:
        accuracy = compare_accuracy(metric, samples.inputs, outputs_a, outputs_b, samples.labels)
    return Answers((on_a.what, on_b.what), fidelity, short.message if short else "", accuracy, tuple(notes))
