"""The graph of a build, layer by layer: what each operator is, where it runs, what it costs and how far it is off."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from anynpu import schema
from anynpu.artifact import Artifact
from anynpu.errors import AnyNpuError
from anynpu.measure.execution import run_all
from anynpu.measure.fidelity import compare_outputs
from anynpu.measure.layers import Counting, Inner, LayerError, Match, compare_layers, sample_count
from anynpu.measure.samples import SampleSet, read_samples
from anynpu.pipeline.stream_error import keep_inner
from anynpu.records.build import GraphForm, GraphNode, GraphTensor
from anynpu.runtime.base import choose, stored_inputs
from anynpu.tensors import by_name
from anynpu.training.files import RECORD

if TYPE_CHECKING:
    from anynpu.graph.outline import NodeOutline, Outline, TensorOutline
    from anynpu.quantize.net import Form

T = TypeVar("T")
FILE = "layers.json"
PER_LAYER = "per_layer.csv"
CYCLES, MILLISECONDS = "cycles (Vela estimate)", "ms (measured, onnxruntime profile)"
INSTRUCTIONS = "instructions (expected, a count and not time)"
_ONNX, _TFLITE = ("onnx", "onnx-ort"), ("tflite", "tflite-float")
BESIDE = "quantised"
"""What a manifest calls the quantised ONNX model that lies next to a vendor's file."""
_NAMED = 5
"""How many tensors a note names before it counts the rest."""


@dataclass(frozen=True)
class View:
    """An artifact's outline, which of its tensors are which of the float model's, and how both are run."""

    outline: Outline
    matches: tuple[Match, ...]
    subject: Callable[[], Inner]
    reference: Callable[[], Inner]
    notes: tuple[str, ...] = ()
    twin: Artifact | None = None


def drawable(chain: Sequence[Artifact]) -> Artifact | None:
    """Returns the last artifact of a chain whose nodes can be read, or None; nothing computes on the null device."""
    if chain[-1].manifest.format == "null":
        return None
    return next((a for a in reversed(chain) if readable(a) is not None), None)


def readable(artifact: Artifact) -> Artifact | None:
    """Returns an artifact with nodes that can be read: itself, or the quantised ONNX model next to what a vendor's
    compiler made of it; None where there is neither."""
    manifest = artifact.manifest
    if manifest.format in (*_ONNX, *_TFLITE):
        return artifact
    beside = manifest.details.get(BESIDE)
    return replace(artifact, manifest=replace(manifest, format="onnx-ort", main=beside)) if beside else None


def float_twin(chain: Sequence[Artifact]) -> Artifact | None:
    """Returns the float TFLite model of a chain, whose tensors are those of the quantised one."""
    return next((a for a in reversed(chain) if a.manifest.format == "tflite-float"), None)


def untrained_twin(chain: Sequence[Artifact]) -> Artifact | None:
    """Returns the float TFLite model of a chain that must compute what the user's model does; a trained one does not,
    and its writer was proved on the untrained one."""
    twin = float_twin(chain)
    return None if twin is None or (twin.path / RECORD).is_file() else twin


def empty(of: str, note: str) -> GraphForm:
    """Returns a graph of which nothing is known but why."""
    return GraphForm(nodes=(), of=of, notes=(note,))


def inspect(candidate: str, reference: str, floating: str, data: str, inner: str) -> object:
    """Returns nodes and tensors of an artifact with errors and times as the JSON of a `GraphForm` (runs in a child
    process).

    The float model's tensors for the first samples are written to the file `inner`: streams are compared with them.
    """
    compiled, truth = Artifact.open(Path(candidate)), Artifact.open(Path(reference))
    twin = Artifact.open(Path(floating)) if floating else None
    subject = readable(compiled)
    assert subject is not None  # `drawable` chose it
    view = onnx_view(subject, truth) if subject.manifest.format in _ONNX else tflite_view(subject, twin)
    notes = list(view.notes)
    if subject is not compiled:
        notes.append(f"these are the nodes of the quantised model that {compiled.manifest.format} was compiled from")
    everything = read_samples(Path(data))
    macs = sum(node.macs or 0 for node in view.outline.nodes)
    samples = everything.first(sample_count(len(everything), macs, subject.main.stat().st_size))
    errors: dict[str, LayerError] = {}
    times: dict[str, float] = {}
    if not len(samples):
        notes.append(f"no error and time per layer: {macs / 1e9:.1f} GMACs are beyond the budget for one sample")
    else:
        errors = _tried(notes, "error per layer", lambda: _errors(view, truth, samples, notes))
        if view.twin is not None and errors:
            keep_inner(view.reference(), view.matches, samples, truth, Path(inner))
        if compiled.manifest.format == "onnx-ort":
            times = _tried(notes, "time per layer", lambda: _times(view.outline, subject, samples, notes))
    tensors = {name: _tensor(tensor, errors.get(name)) for name, tensor in view.outline.tensors.items()}
    result = GraphForm(
        nodes=tuple(_node(node, tensors, times.get(node.name)) for node in view.outline.nodes),
        time_unit=MILLISECONDS if times else None,
        tensors=tensors,
        of=compiled.manifest.format,
        samples=len(samples) if errors else 0,
        notes=tuple(notes),
    )
    return schema.to_dict(result)


def _tried(notes: list[str], what: str, make: Callable[[], dict[str, T]]) -> dict[str, T]:
    """Returns what `make` finds; an error of ours becomes a note, since a drawing without figures is still one."""
    try:
        return make()
    except AnyNpuError as error:
        notes.append(f"no {what}: {error.message}")
        return {}


def onnx_view(subject: Artifact, truth: Artifact) -> View:
    import onnx

    from anynpu.graph.outline import outline
    from anynpu.runtime.ort import OrtInner

    mine = outline(onnx.load(subject.main))
    if subject.digest == truth.digest:
        note = "these are the nodes of the float model: nothing here reads those of the compiled one"
        return View(mine, (), lambda: OrtInner(subject), lambda: OrtInner(truth), (note,))
    theirs = outline(onnx.load(truth.main))
    matches = tuple(
        Match(name, tensor.value, name)
        for name, tensor in mine.tensors.items()
        if name in theirs.tensors and not tensor.constant
    )
    return View(mine, matches, lambda: OrtInner(subject), lambda: OrtInner(truth))


def tflite_view(subject: Artifact, twin: Artifact | None) -> View:
    from anynpu.runtime.litert import LiteRtInner
    from anynpu.targets.tflite import EQUALIZATION
    from anynpu.targets.tflite_given import WHAT as GIVEN_AS
    from anynpu.targets.tflite_outline import outline, same_tensors, through_padding

    mine = outline(subject.main)
    if twin is None:
        given_as = subject.manifest.details.get(GIVEN_AS)
        note = "the chain has no float TFLite model to compare inner tensors with"
        if given_as:
            note = f"the model was given quantised ({given_as}): there are no float tensors to compare inner ones with"
        return View(mine, (), lambda: LiteRtInner(subject), lambda: LiteRtInner(subject), (note,))
    notes = []
    factors: dict[str, list[float]] = {}
    if any(entry.path == EQUALIZATION for entry in subject.manifest.files):
        lifted = schema.read_json(subject.file(EQUALIZATION))
        factors = through_padding(twin.main, lifted)
        notes.append(f"inner channels of {len(lifted)} tensors were equalised; errors are in units of the float model")
    matches = tuple(
        Match(name, name, other, np.asarray(factors[other]) if other in factors else None)
        for name, other in same_tensors(subject.main, twin.main).items()
    )
    return View(mine, matches, lambda: LiteRtInner(subject), lambda: LiteRtInner(twin), tuple(notes), twin)


def counting(view: View, floating: Artifact, samples: SampleSet, truth: Artifact) -> Counting:
    """Returns a function that leaves of the float model's tensors what counts: rows of padding do not."""
    if len(samples.inputs) < 2:
        return lambda tensors, _: tensors
    from anynpu.quantize.padding import find_padding

    form: Form
    if floating.manifest.format in _ONNX:
        import onnx

        from anynpu.quantize.onnx_net import OnnxForm

        form = OnnxForm(onnx.load(floating.main))
    else:
        from anynpu.lowering.net import LoweredForm
        from anynpu.lowering.read import from_bytes

        form = LoweredForm(from_bytes(floating.main.read_bytes()))
    reference: Any = view.reference()
    like = by_name((*truth.manifest.inputs, *truth.manifest.outputs))
    rows = [stored_inputs(reference, sample, like) for sample in samples]
    padding = find_padding(form, {name: np.concatenate([row[name] for row in rows]) for name in rows[0]})
    if padding is None:
        return lambda tensors, _: tensors
    names = [match.reference for match in view.matches]
    return padding.leaving_out(lambda sample: reference.tensors(sample, names))


def _errors(view: View, truth: Artifact, samples: SampleSet, notes: list[str]) -> dict[str, LayerError]:
    from anynpu.runtime.litert import LiteRtInner
    from anynpu.tool import report_progress

    if not view.matches:
        return {}
    like = (*truth.manifest.inputs, *truth.manifest.outputs)
    counts = counting(view, view.twin or truth, samples, truth)
    errors = compare_layers(view.subject(), view.reference(), view.matches, samples, like, report_progress, counts)
    without = [name for name, t in view.outline.tensors.items() if not t.constant and name not in errors]
    if without:
        named = ", ".join(without[:_NAMED]) + (f" and {len(without) - _NAMED} more" if len(without) > _NAMED else "")
        notes.append(f"tensors without a counterpart in the float model, or with values that are not finite: {named}")
    if view.twin is not None and view.twin.digest == truth.digest:
        notes.append("inner tensors are compared with those of the given float TFLite model")
    elif view.twin is not None:
        # Not by TFLite-Micro, whose float kernels take twenty times as long: inner tensors are not compared with its.
        inner: Any = LiteRtInner(view.twin)
        few = samples.first(2)
        expected, got = run_all(choose(truth.manifest.format)(truth), few, truth), run_all(inner, few, truth)
        worst = min(f.sqnr_db for f in compare_outputs(expected, got).values())
        what = f"the float TFLite model, {worst:.0f} dB from the ONNX model at its outputs"
        notes.append(f"inner tensors are compared with {what}")
    return errors


def _times(outline: Outline, subject: Artifact, samples: SampleSet, notes: list[str]) -> dict[str, float]:
    """Returns the measured time of each node with its conversions; what belongs to no node is noted."""
    from anynpu.runtime.ort import kernel_times

    rows = list(samples)
    runs = (rows * -(-10 // len(rows)))[: max(10, len(rows))] if len(rows) > 1 else rows
    kernels = kernel_times(subject, runs)
    total = sum(kernels.values())
    times: dict[str, float] = {}
    for node in outline.nodes:
        mine = [kernels.pop(name) for name in dict.fromkeys(node.kernels) if name in kernels]
        if mine:
            times[node.name] = sum(mine)
    notes.append(f"times: the median of {len(runs)} runs on one thread of this host, conversions with their node")
    if rest := sum(kernels.values()):
        notes.append(f"{rest:.3f} ms of {total:.3f} belong to kernels of no single node (reordering, the inputs)")
    return times


def _node(node: NodeOutline, tensors: Mapping[str, GraphTensor], time: float | None) -> GraphNode:
    known = [error for name in node.outputs if (error := tensors[name].sqnr_db) is not None]
    return GraphNode(
        name=node.name,
        kind=node.kind,
        device="cpu",
        macs=node.macs,
        inputs=tuple(node.inputs),
        outputs=tuple(node.outputs),
        sqnr_db=min(known) if known else None,
        time=None if time is None else round(time, 6),
    )


def _tensor(tensor: TensorOutline, error: LayerError | None) -> GraphTensor:
    return GraphTensor(
        shape=None if tensor.shape is None else tuple(tensor.shape),
        dtype=tensor.dtype,
        layout=tensor.layout,
        constant=tensor.constant,
        # One scale for each of hundreds of channels is nothing to look at: their span and their number are.
        scale=tuple(float(f"{v:.8g}") for v in _span(tensor.scale)) or None,
        zero_point=_span(tensor.zero_point) or None,
        channels=len(tensor.scale) if len(tensor.scale) > 1 else None,
        sqnr_db=None if error is None else round(error.sqnr_db, 3),
        max_error=None if error is None else float(f"{error.max_error:.6g}"),
    )


def _span(values: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the values, or the smallest and the largest of several."""
    return (min(values), max(values)) if len(values) > 1 else tuple(values)


def graph(layers: GraphForm, final: Artifact) -> GraphForm:
    """Returns the graph of one chip: the one that chips share, with what its own compiler says of each node."""
    placement = final.manifest.placement
    placed = {op.name: op for op in placement.operators} if placement else {}
    nodes = [
        replace(node, device=op.device, reason=op.reason) if (op := placed.get(node.name)) else node
        for node in layers.nodes
    ]
    if final.manifest.format == "c":
        return _with_instructions(replace(layers, nodes=tuple(nodes)), final.manifest.details.get("layers", ()))
    if not any(entry.path == PER_LAYER for entry in final.manifest.files):
        return replace(layers, nodes=tuple(nodes))
    nodes, unowned = _with_cycles(nodes, final.file(PER_LAYER))
    note = (f"{unowned:,} cycles of Vela's estimate belong to operators that it made itself",) if unowned else ()
    return replace(layers, nodes=tuple(nodes), time_unit=CYCLES, notes=(*layers.notes, *note))


def _with_instructions(graph: GraphForm, layers: Sequence[Mapping[str, Any]]) -> GraphForm:
    """Returns the graph with the instructions that each layer of generated C is expected to take."""
    expected = {layer["index"]: layer["expected_instructions"] for layer in layers}
    known = {i: count for i, count in expected.items() if count is not None and i < len(graph.nodes)}
    if not known:
        return graph
    variants = {layer["index"]: layer["variant"] for layer in layers}
    nodes = tuple(
        replace(node, time=known[i], variant=variants[i]) if i in known else node for i, node in enumerate(graph.nodes)
    )
    missing = len(nodes) - len(known)
    rest = f"; {missing} operators have no model of theirs, or became part of another" if missing else ""
    note = f"instructions are what the C generator expects of the kernels it chose{rest}"
    return replace(graph, nodes=nodes, time_unit=INSTRUCTIONS, notes=(*graph.notes, note))


def _with_cycles(nodes: Sequence[GraphNode], path: Path) -> tuple[list[GraphNode], int]:
    """Returns the nodes with the estimates in Vela's file, and the cycles that belong to none of them.

    Vela names the parts of a node it splits by the node with a suffix (mean_0_intermediate).
    """
    cycles: Counter[str] = Counter()  # of each operator that runs on the NPU, by the tensor that it makes
    with path.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            if row["Target"] == "NPU":
                cycles[row["Name"]] += int(float(row["Op Cycles"]))
    known = {node.name: node for node in nodes}
    unowned = 0
    for name, count in cycles.items():
        owner = max((n for n in known if name == n or name.startswith(f"{n}_")), key=len, default=None)
        if owner is None:
            unowned += count
        else:
            known[owner] = replace(known[owner], time=(known[owner].time or 0) + count)
    return [known[node.name] for node in nodes], unowned
