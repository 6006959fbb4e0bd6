"""A .tflite file as the model of a build: what is read from it, and the proof that LiteRT runs it as it was given."""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from anynpu import schema, tool
from anynpu.artifact import Artifact, Estimates, Manifest
from anynpu.errors import ConfigError, DeviceError, Finding, IntegrityError, Unsupported
from anynpu.graph import passes
from anynpu.lowering.clean import CLEANING
from anynpu.lowering.read import from_bytes
from anynpu.lowering.write import to_bytes
from anynpu.measure.fidelity import compare_outputs
from anynpu.measure.samples import read_samples
from anynpu.quantize.tflite_given import FLOAT, GivenFile, open_axes, read_given, with_shapes
from anynpu.quantize.tflite_plain import State
from anynpu.runtime.base import run_real
from anynpu.runtime.litert import LiteRtInner, LiteRtSession
from anynpu.runtime.tflite_file import read_model, read_specs, text
from anynpu.source import load
from anynpu.source.load import Imported, ModelSource
from anynpu.source.original import Proof
from anynpu.targets.flatbuffer import TfliteOperator, operators
from anynpu.targets.tflite_given import WHAT
from anynpu.targets.tflite_outline import outline
from anynpu.tasks.card import Card
from anynpu.tensors import Array, TensorSpec, by_name

MODEL = "model.tflite"
PROBES = 8
STEPS = 8
"""How many runs in a row a file that keeps states is compared over."""
MAX_PROVED, MIN_PROVED, MAX_MACS = 64, 4, 1_000_000_000
ONNX_NAMES = {"SOFTMAX": "Softmax", "LOGISTIC": "Sigmoid"}
"""The last operators that the proof knows something about, under the names that it knows them by."""
MOVES = ("RESHAPE", "SQUEEZE", "EXPAND_DIMS", "TRANSPOSE", "CAST", "QUANTIZE", "DEQUANTIZE")
TABLES = {"GATHER": 1, "EMBEDDING_LOOKUP": 0}
"""Operators that look something up, and which of their inputs holds the numbers."""

Feeds = dict[str, Array]


def import_and_prove(source: ModelSource, out: str, task: Card | None = None) -> Imported:
    """Writes the model into a folder and returns its manifest, with the proof on samples that the parent process makes
    for its inputs (runs in a child process)."""
    if task is not None and task.yolo is not None and task.yolo.decode == "host":
        raise ConfigError(
            "the task card leaves the decode of the boxes to the host, and only an ONNX model can be cut there",
            'give the ONNX model, or a card with decode = "model"',
        )
    path = Path(source.model)
    source_file = read_given(path, source.end_at)
    file = Path(out) / MODEL
    content = _shaped(source_file, source, file)
    file.write_bytes(cleaned(content) if source_file.format == FLOAT and not source_file.custom else content)
    ops = operators(file)
    manifest = _described(file, ops, source_file, source, task)
    model = Artifact(Path(out), manifest)
    session = _opened(model, source_file)
    from anynpu.graph.degenerate import differing, judge_outputs, scaled

    reached = {spec.name for spec in manifest.inputs}
    for op in ops:
        if any(t is not None and t.name in reached for t in op.inputs):
            reached |= {t.name for t in op.outputs}
    names = [spec.name for spec in manifest.outputs]
    feeds = differing(scaled(_random_feeds(manifest))) if manifest.format == FLOAT else []
    findings = judge_outputs(names, {*names} - reached, feeds, lambda feed: _run(session, feed), random=True)
    manifest = replace(
        manifest,
        notes=(*manifest.notes, *map(str, findings)),
        details={**manifest.details, "degenerate": [vars(finding) for finding in findings]},
    )
    folders = tool.ask(manifest)
    return Imported(manifest, _proved(path, model, source_file, session, folders, bool(source.shapes)))


def _shaped(source_file: GivenFile, request: ModelSource, file: Path) -> bytes:
    """Returns the file with the shapes that the user states; axes that are left open without one raise."""
    file.write_bytes(source_file.content)
    inputs, _ = read_specs(file)
    graph = read_model(source_file.content).subgraphs[0]
    left_open = {text(graph.tensors[i].name): open_axes(graph.tensors[i]) for i in graph.inputs}
    for name, shape in request.shapes.items():
        if name not in left_open:
            raise ConfigError(f"the model has no input '{name}'{schema.near(name, left_open)}")
        own = by_name(inputs)[name].shape
        if len(shape) != len(own) or any(
            a != b for axis, (a, b) in enumerate(zip(shape, own, strict=True)) if axis not in left_open[name]
        ):
            raise ConfigError(f"--shape {name}={','.join(map(str, shape))}: the file says {list(own)}")
    missing = [Finding("shape", f"axes {list(axes)} are left open", n) for n, axes in left_open.items() if axes]
    missing = [finding for finding in missing if finding.where not in request.shapes]
    if missing:
        hint = f"give --shape {missing[0].where}=1,..., or convert the model with fixed shapes"
        raise ConfigError(f"input {missing[0]}", hint)
    return with_shapes(source_file.content, dict(request.shapes)) if any(left_open.values()) else source_file.content


def cleaned(content: bytes) -> bytes:
    """Returns a float file behind the passes that one made from ONNX goes through; the proof compares it with the file.

    What our reader does not know stays as it is: whoever quantises the file says so.
    """
    try:
        graph = from_bytes(content)
    except Unsupported:
        return content
    changed, effects = passes.run(CLEANING, graph)
    return to_bytes(changed) if any(effect.changed for effect in effects) else content


def _described(
    file: Path, ops: Sequence[TfliteOperator], source_file: GivenFile, request: ModelSource, card: Card | None
) -> Manifest:
    found_inputs, found_outputs = read_specs(file)
    layouts = _layouts(file, ops)

    def stated(spec: TensorSpec) -> TensorSpec:
        layout = load.stated_layout(spec, layouts, request)
        return replace(spec, layout=layout, channels=request.channels.get(spec.name, ""))

    inputs, outputs = (tuple(map(stated, specs)) for specs in (found_inputs, found_outputs))
    constants = {t.name: t for op in ops for t in op.tensors if t.constant}
    weights = [t for t in constants.values() if t.dtype.startswith("float") or t.scale]
    kinds = [op.custom_code or op.kind for op in ops]
    what = f"given as {source_file.what}"
    if source_file.format == FLOAT and not source_file.same_values:
        what += "; its weights are taken as the float32 that they stand for"
    return Manifest(
        format=source_file.format,
        main=MODEL,
        inputs=load.with_channels(inputs, card),
        outputs=outputs,
        fingerprint=_fingerprint(ops, inputs, outputs),
        estimates=Estimates(
            source="counted from the graph",
            macs=sum(op.macs for op in ops),
            parameters=sum(math.prod(t.shape) for t in weights),
            sram_bytes=_peak_bytes(ops, [spec.name for spec in outputs]),
            flash_bytes=sum(t.bytes for t in constants.values()),
        ),
        notes=(what, *source_file.notes),
        details={
            "degenerate": [],
            "operators": {kind: kinds.count(kind) for kind in sorted({*kinds})},
            "frozen": [what, *source_file.notes],
            "index_sizes": _index_sizes(ops, inputs),
            "output_operators": _last(ops, outputs),
            WHAT: source_file.what,
        },
        task=schema.to_dict(card) if card else {},
    )


def _layouts(file: Path, ops: Sequence[TfliteOperator]) -> dict[str, str]:
    """Returns the layouts that operators say, also through a transpose at the border."""
    known = {name: tensor.layout for name, tensor in outline(file).tensors.items() if tensor.layout}
    for op in ops:
        if op.kind != "TRANSPOSE" or op.inputs[0] is None or op.inputs[1] is None or op.inputs[1].data is None:
            continue
        before, after = op.inputs[0].name, op.outputs[0].name
        order = [int(axis) for axis in op.inputs[1].data]
        if after in known and before not in known:
            known[before] = "".join(known[after][order.index(axis)] for axis in range(len(order)))
        elif before in known and after not in known:
            known[after] = "".join(known[before][axis] for axis in order)
    return known


def _fingerprint(ops: Sequence[TfliteOperator], inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> str:
    """Returns the digest of what the file computes: operators, types, scales and constants; names do not count."""
    numbers: dict[str, int] = {}

    def said(tensor: Any) -> Any:
        if tensor is None:
            return None
        data = None if tensor.data is None else hashlib.sha256(tensor.data.tobytes()).hexdigest()
        place = numbers.setdefault(tensor.name, len(numbers))
        return [place, tensor.dtype, list(tensor.shape), list(map(repr, tensor.scale)), list(tensor.zero_point), data]

    def settings(op: TfliteOperator) -> list[str]:
        held = vars(op.options) if op.options is not None else {}
        return [f"{name}={np.asarray(value).tolist()!r}" for name, value in sorted(held.items())]

    for spec in inputs:
        numbers.setdefault(spec.name, len(numbers))
    rows = [[op.kind, op.custom_code, settings(op), [said(t) for t in (*op.inputs, *op.outputs)]] for op in ops]
    return schema.digest([rows, [numbers.get(spec.name, -1) for spec in outputs]])


def _peak_bytes(ops: Sequence[TfliteOperator], outputs: Sequence[str]) -> int:
    """Returns the most that the activations take which are alive at once, in the order of the file."""
    last = {t.name: at for at, op in enumerate(ops) for t in op.tensors if not t.constant}
    last |= dict.fromkeys(outputs, len(ops))
    sizes = {t.name: t.bytes for op in ops for t in op.tensors if not t.constant}
    first: dict[str, int] = {}
    for at, op in enumerate(ops):
        for tensor in op.outputs:
            first.setdefault(tensor.name, at)
    return max(sum(sizes[n] for n in sizes if first.get(n, 0) <= at <= last.get(n, -1)) for at in range(len(ops)))


def _index_sizes(ops: Sequence[TfliteOperator], inputs: Sequence[TensorSpec]) -> dict[str, int]:
    """Returns how many rows the smallest table has that an integer input is looked up in, by the input's name."""
    origin = {spec.name: spec.name for spec in inputs if spec.dtype in ("int32", "int64")}
    sizes: dict[str, int] = {}
    for op in ops:
        first = op.inputs[0] if op.inputs else None
        if op.kind in MOVES and first is not None and first.name in origin:
            origin[op.outputs[0].name] = origin[first.name]
        place = TABLES.get(op.kind)
        indices, table = (op.inputs[place], op.inputs[1 - place]) if place is not None else (None, None)
        if indices is None or table is None or indices.name not in origin:
            continue
        rows = table.shape[getattr(op.options, "axis", 0) or 0]
        sizes[origin[indices.name]] = min(rows, sizes.get(origin[indices.name], rows))
    return sizes


def _last(ops: Sequence[TfliteOperator], outputs: Sequence[TensorSpec]) -> dict[str, str]:
    """Returns the operator that computes the values of each output; those that only move them do not count."""
    makers = {t.name: op for op in ops for t in op.outputs}
    kinds = {}
    for spec in outputs:
        op = makers.get(spec.name)
        while op is not None and op.kind in MOVES and op.inputs[0] is not None:
            op = makers.get(op.inputs[0].name)
        kinds[spec.name] = "" if op is None else ONNX_NAMES.get(op.kind, op.custom_code or op.kind)
    return kinds


def _session(model: Artifact) -> LiteRtSession:
    """Returns the model in LiteRT: a float one on the plain kernels, which are five times as fast here and as good."""
    return LiteRtInner(model) if model.manifest.format == FLOAT else LiteRtSession(model)


def _opened(model: Artifact, source_file: GivenFile) -> LiteRtSession:
    """Returns the model in LiteRT after one run: outputs of another shape than it says, or that change, are refused."""
    try:
        session = _session(model)
    except IntegrityError as error:
        if not source_file.custom:
            raise
        findings = [
            Finding("custom", f"operator {name} is a custom one, which LiteRT has no kernel for")
            for name in source_file.custom
        ]
        hint = f"convert the model without it{_end_before(source_file)}"
        raise Unsupported(f"{findings[0]}", findings, hint) from error
    feed = next(_random_feeds(model.manifest))
    first, second = _run(session, feed), _run(session, feed)
    for spec, one, two in zip(session.outputs, first, second, strict=True):
        if one.shape != spec.shape:
            text = f"has shape {list(one.shape)} when it runs, the file says {list(spec.shape)}"
            hint = f"convert the model with fixed shapes{_end_before(source_file)}"
            raise Unsupported(f"output {spec.name} {text}", [Finding("shape", text, spec.name)], hint)
        if not np.array_equal(one, two, equal_nan=one.dtype.kind == "f"):
            text = "differs when the same input is run twice"
            raise Unsupported(f"output '{spec.name}' {text}", [Finding("state", text, spec.name)])
    return session


def _end_before(source_file: GivenFile) -> str:
    """Returns the end of a hint: the places in front of operators outside TFLite's own set, where there are such."""
    from anynpu.quantize.tflite_end import places_before

    model = read_model(source_file.content)
    places = places_before(model, lambda op: bool(model.operatorCodes[op.opcodeIndex].customCode))
    return f", or end it in front of that: --end-at {','.join(places)}" if source_file.custom and places else ""


def _run(session: LiteRtSession, feed: Mapping[str, Array]) -> list[Array]:
    try:
        return list(session.run(feed).values())
    except (DeviceError, ValueError) as error:
        raise IntegrityError(f"the model does not run in LiteRT: {str(error).splitlines()[0]}") from error


def _random_feeds(manifest: Manifest) -> Iterator[Feeds]:
    """Yields stored inputs: normal numbers, all values of a quantised type, indices that every table has."""
    sizes = manifest.details["index_sizes"]
    for seed in range(PROBES):
        rng = np.random.default_rng(seed)
        yield {spec.name: _random(rng, spec, sizes.get(spec.name, 2)) for spec in manifest.inputs}


def _random(rng: np.random.Generator, spec: TensorSpec, rows: int) -> Array:
    kind = np.dtype(spec.dtype)
    if kind.kind == "f":
        return rng.standard_normal(spec.shape).astype(kind)
    if kind.kind == "b" or kind.itemsize >= 4:
        return rng.integers(0, 2 if kind.kind == "b" else max(rows, 1), spec.shape).astype(kind)
    limits = np.iinfo(kind)
    return rng.integers(limits.min, limits.max, spec.shape, dtype=kind, endpoint=True)


def _proved(
    path: Path, model: Artifact, source_file: GivenFile, session: LiteRtSession, folders: Sequence[str], resized: bool
) -> Proof:
    """Raises unless the model computes what the file does where it is not the file itself; returns what was compared.

    Of a dynamic-range file the two differ by what its own kernels round; how much becomes a note.
    """
    from anynpu.graph.agreement import disagreement, spread

    sets = [read_samples(Path(folder)) for folder in folders]
    rows = [sample for each in sets for sample in each]
    if not source_file.loads or model.main.read_bytes() == source_file.original:
        return Proof(0, len(rows))
    macs = model.manifest.estimates.macs if model.manifest.estimates else 0
    count = min(len(rows), MAX_PROVED, max(MIN_PROVED, MAX_MACS // max(macs or 1, 1)))
    like = by_name((*model.manifest.inputs, *model.manifest.outputs))
    results = {state.output for state in source_file.states}
    names = [spec.name for spec in session.outputs if spec.name not in results]
    feeds: list[Mapping[str, Array]] = [rows[at] for at in spread(len(rows), count)]
    if not rows:
        feeds = [{s.name: s.to_real(feed[s.name]) for s in session.inputs} for feed in _random_feeds(model.manifest)]
    with tempfile.TemporaryDirectory() as folder:
        shapes = {spec.name: spec.shape for spec in session.inputs}
        raw = source_file.original
        (Path(folder) / MODEL).write_bytes(with_shapes(raw, shapes) if resized else raw)
        if source_file.states:
            prove_stream(path, Path(folder), model, source_file.states, feeds)
            return Proof(len(feeds) if rows else 0, len(rows))
        original = _session(Artifact(Path(folder), model.manifest))

        def of(which: Any, feed: Mapping[str, Array]) -> list[Array]:
            answers = run_real(which, feed, like)
            return [np.asarray(answers[name], np.float64) for name in names]

        if source_file.same_values:
            where = disagreement(names, lambda f: of(original, f), lambda f: of(session, f), feeds)
            if where is not None:
                raise IntegrityError(f"{path}: taken apart and put together, it differs: {where}", "report it")
            return Proof(len(feeds) if rows else 0, len(rows))
        pairs = [(of(original, feed), of(session, feed)) for feed in feeds]
    expected, got = (
        {name: np.concatenate([pair[side][at] for pair in pairs]) for at, name in enumerate(names)} for side in (0, 1)
    )
    worst = min(f.sqnr_db for f in compare_outputs(expected, got).values())
    rounding = f"the file's own kernels round activations on the way, {worst:.1f} dB from the float model here"
    return Proof(len(feeds) if rows else 0, len(rows), (f"{source_file.what}: {rounding}",))


def prove_stream(
    path: Path, original: Path, model: Artifact, states: Sequence[State], feeds: Sequence[Mapping[str, Array]]
) -> None:
    """Raises unless the model, handed its states from run to run, gives what the file gives for the same inputs."""
    from anynpu.graph.agreement import disagreement

    manifest, borders = model.manifest, {name for state in states for name in (state.input, state.output)}
    inputs, outputs = (
        tuple(spec for spec in specs if spec.name not in borders) for specs in (manifest.inputs, manifest.outputs)
    )
    like = by_name((*manifest.inputs, *manifest.outputs))
    names = [spec.name for spec in outputs]

    def streamed(of: Artifact, kept: Sequence[State], stream: Mapping[str, Array]) -> list[Array]:
        rows: list[list[Array]] = []
        session: Any = _session(of)
        carried = {state.input: like[state.input].to_real(state.start) for state in kept}
        for step in range(len(stream[inputs[0].name])):
            answers = run_real(session, {spec.name: stream[spec.name][step] for spec in inputs} | carried, like)
            carried = {state.input: answers[state.output] for state in kept}
            rows.append([np.asarray(answers[name], np.float64) for name in names])
        return [np.stack(column) for column in zip(*rows, strict=True)]

    parts = [feeds[at : at + STEPS] for at in range(0, len(feeds), STEPS)]
    streams = [{spec.name: np.stack([feed[spec.name] for feed in part]) for spec in inputs} for part in parts]
    file = Artifact(original, replace(manifest, inputs=inputs, outputs=outputs))
    where = disagreement(names, lambda s: streamed(file, (), s), lambda s: streamed(model, states, s), streams)
    if where is not None:
        raise IntegrityError(f"{path}: with its states as inputs and outputs, it differs: {where}", "report it")
