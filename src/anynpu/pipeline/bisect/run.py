"""Runs two executions side by side, whole and in parts, until the smallest part is found (in a child process)."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from anynpu import tool
from anynpu.artifact import hash_file
from anynpu.errors import AccuracyError, ConfigError, DeviceError, IntegrityError, ToolFailed, Unsupported
from anynpu.measure import calibrated
from anynpu.pipeline.bisect.bundle import write_bundle
from anynpu.pipeline.bisect.executions import Compiled, Direct, Ran, Rows
from anynpu.pipeline.bisect.opening import Named, execution, named
from anynpu.pipeline.bisect.pairing import difference, disagrees, places_like, require_one_model, worst_of
from anynpu.pipeline.bisect.search import Difference, expected_runs, find
from anynpu.pipeline.bisect.shared import Part, SharedGraph, share
from anynpu.quantize.calibration import Dataset, load_data
from anynpu.records.bisect import BisectRecord, BisectRun, BisectSide, GuiltyOperator, OutputDifference
from anynpu.records.parts import now, own_version
from anynpu.runtime.base import choose
from anynpu.seals import with_seal
from anynpu.store import Store
from anynpu.tasks.images import Preprocess
from anynpu.tensors import Array, Quantization, by_name, relayout

FLOAT_DB, INTEGER_DB = 60.0, 20.0
"""Below this two executions disagree by default: both in floating point, and where one of them rounds."""
EXACT = "exact"
_REFUSALS = (Unsupported, ToolFailed, IntegrityError, DeviceError, AccuracyError)


@dataclass(frozen=True)
class Asked:
    """What is bisected; the names are those of the flags."""

    a: str
    b: str
    data: str = ""
    preprocess: Preprocess | None = None
    limit: int = 16
    tolerance: str = ""
    on_a: str = ""
    on_b: str = ""
    different_networks: bool = False
    out: str = ""
    cache: str = ""


@dataclass
class Bench:
    """Both sides ready to run, what they share, and every run so far."""

    a: Direct | Compiled
    b: Direct | Compiled
    graph: SharedGraph
    samples: Rows
    tolerance_db: float | None
    scratch: Path
    on: tuple[str, str] = ("", "")
    sample: int = 0
    recorded: Mapping[str, Array] = field(default_factory=dict)
    runs: list[BisectRun] = field(default_factory=list)
    results: dict[Part, tuple[Ran, Ran]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def recorder(self) -> Direct:
        """Returns A, or what A was compiled from: its inner tensors are what goes into every part."""
        if isinstance(self.a, Direct):
            return self.a
        kind: Any = choose(self.a.before.manifest.format)
        return Direct(self.a.name, kind.what, self.a.file, kind, self.a.before, kind.name)

    def record(self) -> None:
        """Keeps every shared tensor for the sample on which the sides are furthest apart."""
        row = self.samples[self.sample]
        inner = tuple(unit.tensor for unit in self.graph.units)
        with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
            answer = self.recorder().run(Part(self.graph.inputs, inner), [row], (), Path(folder))
        self.recorded = {**answer.outputs[0], **row}

    def calibration(self, part: Part) -> Rows:
        """Returns the inputs of a part for all samples, where a side has to be compiled."""
        if not any(isinstance(side, Compiled) for side in (self.a, self.b)):
            return ()
        inner = tuple(name for name in part.inputs if name not in self.graph.inputs)
        if not inner:
            return [{name: row[name] for name in part.inputs} for row in self.samples]
        with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
            answer = self.recorder().run(Part(self.graph.inputs, inner), self.samples, (), Path(folder))
        return [{**row, **values} for row, values in zip(self.samples, answer.outputs, strict=True)]

    def pairs(self) -> set[str]:
        """Returns the tensors that a side rounds by operators of their own."""
        return {n for side in (self.a, self.b) for n, place in side.places.items() if place.fed != place.read}

    def attempt(self, part: Part) -> Difference | None:
        """Runs a part on both sides with the recorded values; None where one of them cannot be cut or run there."""
        if part in self.results:
            return self._judged(part)
        rows = [{name: self.recorded[name] for name in part.inputs}]
        try:
            calibration = self.calibration(part)
            sides = []
            for side in (self.a, self.b):
                folder = Path(tempfile.mkdtemp(dir=self.scratch))
                sides.append(side.run(part, rows, calibration, folder))
        except _REFUSALS as error:
            self.runs.append(BisectRun(units=self._units(part), inputs=part.inputs, outputs=part.outputs))
            note = f"a part could not be run by itself and was left out of the search: {error.message}"
            if note not in self.notes:
                self.notes.append(note)
            return None
        self.results[part] = sides[0], sides[1]
        difference = self._judged(part)
        self.runs.append(
            BisectRun(
                units=self._units(part),
                inputs=part.inputs,
                outputs=part.outputs,
                worst=difference.tensor,
                sqnr_db=round(difference.sqnr_db, 3),
                disagrees=difference.disagrees,
            )
        )
        count = sum(run.sqnr_db is not None for run in self.runs)
        tool.report_progress(count, max(count, expected_runs(len(self.graph))))
        return difference

    def _units(self, part: Part) -> int:
        return sum(len(self.graph.before(name, 0, len(self.graph))) for name in part.outputs[:1])

    def _judged(self, part: Part) -> Difference:
        worst = self.worst(part)
        return Difference(worst.tensor, worst.sqnr_db, disagrees(worst, self.tolerance_db))

    def worst(self, part: Part) -> OutputDifference:
        """Returns the worst output of a part that was run."""
        a, b = self.results[part]
        return worst_of(a.outputs[0], b.outputs[0])


def bisect(asked: Asked) -> BisectRecord:
    """Returns the record of a bisection, and writes its bundle (runs in a child process)."""
    with tempfile.TemporaryDirectory(prefix="anynpu-bisect-") as folder:
        bench, record = _opened(asked, Path(folder))
        if record.agree:
            return with_seal(record)
        _require_inputs(bench)
        bench.record()
        whole = Difference(record.whole.tensor, record.whole.sqnr_db, True)
        culprit = find(bench.graph, whole, bench.attempt, bench.pairs())
        if culprit.part not in bench.results and bench.attempt(culprit.part) is None:
            raise ToolFailed(
                "the two disagree, but no part of the model can be run by itself",
                hint="; ".join(bench.notes),
            )
        operators = tuple(
            GuiltyOperator(name=node.name, kind=node.kind, tensor=unit.tensor)
            for unit in culprit.units
            for node in unit.nodes
        )
        notes = list(bench.notes)
        if culprit.rounded_inputs:
            notes.append("with inputs that are not rounded the two agree: the fault needs the rounded inputs")
        if not culprit.alone:
            notes.append(f"no operator disagrees by itself: over these {len(operators)} the errors add up to it")
        # Of operators that one side runs as one, the one with the weights gives the name.
        named_after = max(culprit.units[0].nodes, key=lambda node: node.macs or 0, default=None)
        record = with_seal(
            replace(
                record,
                runs=tuple(bench.runs),
                guilty=next((each for each in operators if named_after and each.name == named_after.name), None),
                operators=operators,
                difference=bench.worst(culprit.part),
                alone=culprit.alone,
                notes=(*record.notes, *notes),
            )
        )
        if asked.out:
            write_bundle(Path(asked.out), record, culprit.part, bench)
        return record


def _opened(request: Asked, scratch: Path) -> tuple[Bench, BisectRecord]:
    """Returns both sides ready to be cut, and the record of the whole model."""
    one, other = named(request.a, request.b), named(request.b, request.a)
    prints = {side.fingerprint[:12] for side in (one, other) if side.fingerprint}
    if len(prints) > 1 and not request.different_networks:
        raise ConfigError(
            f"{one.text} and {other.text} are different models (fingerprints {one.fingerprint[:12]} and "
            f"{other.fingerprint[:12]})",
            "name two executions of one model; --different-networks goes on all the same",
        )
    store = Store(Path(request.cache) if request.cache else None)
    a, b = execution(one, request.on_a or None, store), execution(other, request.on_b or None, store)
    a.places, b.places = a.file.places(), places_like(b.file, a.file)
    require_one_model(a.file, b.file, (request.a, request.b), b.places)
    names = [spec.name for spec in a.file.inputs], [spec.name for spec in a.file.outputs]
    graph = share(a.file.outline, *names, {*a.places} & {*b.places})
    data = _samples(request, one, other, a)
    samples = [data.sample(index) for index in range(len(data))]
    rounding = any(side.file.quantised or isinstance(side, Compiled) for side in (a, b))
    usual_db = INTEGER_DB if rounding else FLOAT_DB
    tolerance_db = None if request.tolerance == EXACT else float(request.tolerance or usual_db)
    bench = Bench(a, b, graph, samples, tolerance_db, scratch, (request.on_a, request.on_b))
    on_a, on_b = (side.run_whole(graph.whole, samples) for side in (a, b))
    differences = [worst_of(x, y) for x, y in zip(on_a, on_b, strict=True)]
    bench.sample = min(range(len(differences)), key=lambda index: differences[index].sqnr_db)
    worst = differences[bench.sample]
    agree = not disagrees(worst, bench.tolerance_db)
    whole = BisectRun(
        units=len(graph),
        inputs=graph.inputs,
        outputs=graph.outputs,
        worst=worst.tensor,
        sqnr_db=round(worst.sqnr_db, 3),
        disagrees=not agree,
    )
    bench.runs.append(whole)
    tool.report_progress(1, 1 if agree else expected_runs(len(graph)))
    if not agree:
        for side in (a, b):
            if isinstance(side, Compiled):
                side.require_same_tools()
    record = BisectRecord(
        schema_version=1,
        kind="bisect",
        anynpu=own_version(),
        at=now(),
        a=_side(a, one),
        b=_side(b, other),
        samples=len(samples),
        tolerance_db=bench.tolerance_db,
        agree=agree,
        whole=worst,
        sample=bench.sample,
        cuts=len(graph),
        runs=tuple(bench.runs),
        notes=("the samples are random numbers",) if data.random else (),
    )
    return bench, record


def _samples(request: Asked, one: Named, other: Named, a: Direct | Compiled) -> Dataset:
    """Returns the samples that the user names, or the known answers' inputs that an artifact carries."""
    own = by_name(a.file.inputs)
    if request.data:
        known = [k for side in (one, other) if side.artifact and (k := calibrated.read(side.artifact)) is not None]
        steps = request.preprocess
        if steps is None and Path(request.data).is_dir():
            steps = next((each.preprocess for each in known if each.preprocess is not None), None)
        plain = tuple(replace(s, dtype="float32", quantization=None) if s.quantization else s for s in own.values())
        # Samples come in the layout of the float model, as `anynpu build` takes them.
        specs = next((each.inputs for each in known if {s.name for s in each.inputs} == {*own}), plain)
        data = load_data(request.data, specs, steps, request.limit)
        moved = {s.name: relayout(data.inputs[s.name], s.layout, own[s.name].layout) for s in specs}
        return replace(data, inputs=moved)
    for side in (one, other):
        if (carried := _carried(side, a)) is not None:
            return carried
    raise ConfigError("there are no samples to run", "give --data FILE; --data random:8 if any numbers will do")


def _carried(side: Named, a: Direct | Compiled) -> Dataset | None:
    """Returns the inputs of the known answers that lie in an artifact, as real numbers."""
    from anynpu.arrays import read_npz
    from anynpu.artifact import EVIDENCE

    file = side.path / EVIDENCE / "vectors.npz"
    if side.artifact is None or not file.is_file():
        return None
    arrays = read_npz(file)
    specs = {f"input:{spec.name}": spec for spec in side.artifact.manifest.inputs}
    if not {*specs} <= {*arrays}:
        return None
    like = by_name(a.file.inputs)
    real = {
        spec.name: relayout(spec.to_real(arrays[key]), spec.layout, like[spec.name].layout)
        for key, spec in specs.items()
    }
    return Dataset(real, None, str(file))


def _require_inputs(bench: Bench) -> None:
    """Raises where the samples lie outside what a side can store: nothing behind that can agree."""
    row = bench.samples[bench.sample]
    for letter, side in (("A", bench.a), ("B", bench.b)):
        for name in bench.graph.inputs:
            low, high = _limits(side, name)
            values = row[name]
            if values.dtype.kind != "f" or (low <= values.min() and values.max() <= high):
                continue
            error = difference(name, values, values.clip(low, high))
            if disagrees(error, INTEGER_DB if bench.tolerance_db is None else min(bench.tolerance_db, INTEGER_DB)):
                raise ConfigError(
                    f"the disagreement is in the inputs already: {letter} stores {name} from {low:.4g} to {high:.4g}, "
                    f"and the sample has values from {values.min():.4g} to {values.max():.4g}",
                    "calibrate with samples like these, or prepare these as the calibration samples were (-P)",
                )


def _limits(side: Direct | Compiled, name: str) -> tuple[float, float]:
    """Returns the smallest and the largest number that a side can store of an input."""
    tensor = side.file.outline.tensors.get(side.places[name].fed)
    spec = by_name(side.file.inputs).get(name)
    kind, rule = (spec.dtype, spec.quantization) if spec else ("", None)
    if rule is None and tensor is not None and len(tensor.scale) == 1:
        kind, rule = tensor.dtype, Quantization(tensor.scale, tensor.zero_point or (0,))
    if rule is None or not kind.startswith(("int", "uint")) or rule.axis is not None:
        return -math.inf, math.inf
    ends = rule.dequantize(np.asarray([np.iinfo(kind).min, np.iinfo(kind).max]))
    return float(ends[0]), float(ends[1])


def _side(side: Direct | Compiled, text: Named) -> BisectSide:
    digest = text.artifact.digest if text.artifact else hash_file(text.path)
    return BisectSide(
        name=text.text,
        executed=side.what,
        digest=digest,
        fingerprint=text.fingerprint,
        versions=dict(side.versions),
    )
