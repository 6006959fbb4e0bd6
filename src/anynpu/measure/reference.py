"""Whether a float model is worth comparing with: what its outputs do over the user's own samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anynpu import schema
from anynpu.artifact import Artifact
from anynpu.errors import AnyNpuError, Finding
from anynpu.measure.samples import SampleSet
from anynpu.measure.variation import is_quiet
from anynpu.runtime.base import stored_inputs
from anynpu.tensors import Array, by_name

FEWEST_SAMPLES = 4
"""Fewer that differ say nothing: four may well get the same answer of a healthy model, and are not judged."""
NOISE = 1e-6
HARDLY = 1e-3
"""An output that moves by less, relative to its largest value, is named."""
PROBABILITIES = ("Softmax", "Sigmoid")
"""What gives them."""
RECTIFIERS = ("Relu", "Clip", "ThresholdedRelu")
MAX_MODEL_BYTES = 512 * 2**20
MASKS = 3
SHARE = 0.1
"""Three times a tenth of the input is changed: a model that reads more than a few elements moves every time."""
MAX_READ = 4
MANY_ELEMENTS = 64
MAX_RUNS = 96

Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]


@dataclass(frozen=True)
class Reference:
    """Findings on a float model: `unfit` makes every comparison with it void, `warnings` do not."""

    unfit: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def judge_reference(truth: Artifact, samples: SampleSet, outputs: Mapping[str, Array], run: Run) -> Reference:
    """Returns what the outputs of the float model on the samples say of it; `run` runs it on one sample."""
    differing = len({tuple(hash(values.tobytes()) for values in sample.values()) for sample in samples})
    if differing < FEWEST_SAMPLES:
        return Reference(tuple(map(str, findings_at_import(truth))))
    real = {name: values for name, values in outputs.items() if values.dtype.kind == "f"}
    moves = {}  # by how much each output moves over the samples, relative to its largest value
    for name, values in real.items():
        top = float(np.abs(values).max())
        moves[name] = float(np.ptp(np.asarray(values, np.float64), axis=0).max()) / top if top else 0.0
    still = [name for name, moved in moves.items() if moved <= NOISE]
    numbers = [values for values in outputs.values() if values.dtype.kind != "f"]
    sentences = {name: _standstill(name, moves[name], differing, truth, outputs[name]) for name in real}
    causes = _dead_rectifiers(truth, samples)
    warnings = [sentences[name] for name in real if sentences[name] and name not in still]
    warnings += _narrow_readers(samples, [name for name in real if name not in still], run)
    if still and len(still) == len(real) and all((values == values[:1]).all() for values in numbers):
        return Reference((*(sentences[name] for name in still), *causes), tuple(warnings))
    return Reference((), (*(sentences[name] for name in still), *warnings, *causes))


def findings_at_import(model: Artifact) -> list[Finding]:
    """Returns what random inputs showed of a float model: all that is known of it where samples say nothing."""
    return [schema.from_dict(Finding, each, "finding") for each in model.manifest.details.get("degenerate", ())]


def _standstill(name: str, moved: float, samples: int, truth: Artifact, values: Array) -> str:
    """Returns the sentence on an output that hardly moves or that its last function holds at 0 or 1, or nothing."""
    last = truth.manifest.details.get("output_operators", {}).get(name, "")
    off = np.minimum(np.abs(values), np.abs(1 - values))
    saturated = last in PROBABILITIES and np.count_nonzero(off > NOISE) <= off.size // 100
    why = f": its {last} is saturated, every value is 0 or 1" if saturated else ""
    if moved <= NOISE:
        return f"output '{name}' of the float model gives the same values for {samples} differing samples{why}"
    if moved <= HARDLY:
        return (
            f"output '{name}' of the float model hardly depends on the input: over {samples} samples it moves by "
            f"{moved:.1g} of its largest value{why}"
        )
    if saturated:
        return f"output '{name}' of the float model{why}, for all {samples} samples"
    if is_quiet(values):
        return (
            f"output '{name}' of the float model stays within {off.max():.1g} of 0 or 1 for all {samples} samples: "
            "they do not show what it tells apart"
        )
    return ""


def _dead_rectifiers(truth: Artifact, samples: SampleSet) -> list[str]:
    """Returns a sentence for each rectifier inside the float model that gives one and the same value throughout."""
    operators = truth.manifest.details.get("operators", {})
    if truth.manifest.format != "onnx" or not any(kind in operators for kind in RECTIFIERS):
        return []
    if truth.main.stat().st_size > MAX_MODEL_BYTES:
        return []
    import onnx

    from anynpu.runtime.ort import OrtInner

    nodes = onnx.load(truth.main, load_external_data=False).graph.node
    alive = {node.output[0]: node for node in nodes if node.op_type in RECTIFIERS}
    like = by_name((*truth.manifest.inputs, *truth.manifest.outputs))
    try:
        inner: Any = OrtInner(truth)
        dead: dict[str, Array] = {}
        for index, sample in enumerate(samples):
            names = list(dead) if index else list(alive)
            values = inner.tensors(stored_inputs(inner, sample, like), names)
            first = dead or {name: values[name].ravel()[:1] for name in names if values[name].size > 1}
            dead = {name: one for name, one in first.items() if (values[name] == one).all()}
            if not dead:
                return []
    except AnyNpuError:  # an operator that runs only when fused; the outputs are judged all the same
        return []
    named = [f"{alive[name].op_type} '{alive[name].name or name}' gives only {one[0]:g}" for name, one in dead.items()]
    return [f"{text} for all {len(samples)} samples: nothing passes it" for text in named]


def _narrow_readers(samples: SampleSet, names: Sequence[str], run: Run) -> list[str]:
    """Returns a sentence for each output that only a few elements of the input can change."""
    rows = list(samples.first(8))
    start = rows[0]
    others = sorted(rows[1:], key=lambda row: sum(np.count_nonzero(row[n] != start[n]) for n in row), reverse=True)
    probe = _Probe(run, start, others[0])
    if len(probe.places) <= MAX_READ or not names:
        return []
    rng = np.random.default_rng(0)
    suspects: set[str] = set()
    for _ in range(MASKS):
        suspects |= probe.unmoved(probe.places[rng.random(len(probe.places)) < SHARE])
    total, narrow = sum(values.size for values in start.values()), []
    for name in (name for name in names if name in suspects):
        places = probe.readers(name)
        few = len(places) == 1 or total >= MANY_ELEMENTS
        if places and few and all(probe.reads_only(name, places, other) for other in others):
            which = ", ".join(probe.named(place) for place in places)
            narrow.append(f"output '{name}' of the float model reads {len(places)} of {total} input elements: {which}")
    return narrow


@dataclass
class _Probe:
    """Finds the elements of the input that change an output: sample `a` with some of them taken from sample `b`."""

    run: Run
    a: Mapping[str, Array]
    b: Mapping[str, Array]
    runs: int = 0
    places: Array = field(init=False)
    start: Mapping[str, Array] = field(init=False)

    def __post_init__(self) -> None:
        self.places = np.flatnonzero(np.concatenate([(self.a[n] != self.b[n]).ravel() for n in self.a]))
        self.start = self.run(self.a)

    def unmoved(self, places: Array) -> set[str]:
        """Returns the outputs that stay as they are when these elements change."""
        self.runs += 1
        got = self.run(_mixed(self.a, self.b, places))
        return {name for name in got if np.array_equal(got[name], self.start[name])}

    def reads_only(self, name: str, places: Sequence[int], other: Mapping[str, Array]) -> bool:
        """Returns whether another sample gives the same output once it has these elements."""
        got = self.run(_mixed(other, self.a, np.asarray(places)))
        return np.array_equal(got[name], self.start[name])

    def readers(self, name: str) -> list[int]:
        """Returns the elements that change an output, or nothing where they are more than a few."""
        regions = [self.places]
        while any(len(region) > 1 for region in regions):
            halves = [half for region in regions for half in np.array_split(region, 2) if len(half)]
            regions = [half for half in halves if name not in self.unmoved(half)]
            if not 0 < len(regions) <= MAX_READ or self.runs > MAX_RUNS:
                return []
        return [int(region[0]) for region in regions]

    def named(self, place: int) -> str:
        """Returns an element of the input as people write it."""
        for name, values in self.a.items():
            if place < values.size:
                return f"{name}{list(map(int, np.unravel_index(place, values.shape)))}"
            place -= values.size
        raise IndexError(place)


def _mixed(sample: Mapping[str, Array], other: Mapping[str, Array], places: Array) -> dict[str, Array]:
    """Returns a sample with the elements at `places`, counted through all inputs, taken from another."""
    mixed, at = {}, 0
    for name, values in sample.items():
        flat = values.ravel().copy()
        mine = places[(places >= at) & (places < at + flat.size)] - at
        flat[mine] = other[name].ravel()[mine]
        mixed[name], at = flat.reshape(values.shape), at + flat.size
    return mixed
