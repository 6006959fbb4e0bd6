"""From what the user wrote after -m to one float ONNX artifact; `pipeline/tflite_source.py` reads .tflite files."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anynpu import schema, tool
from anynpu.artifact import MANIFEST, Artifact, Estimates, Manifest, PassEffect, hash_file
from anynpu.errors import ConfigError, ToolMissing
from anynpu.schema import Json
from anynpu.source import zoo
from anynpu.source.dependencies import Dependencies, installed
from anynpu.source.kinds import TFLITE_ENDINGS, reject_other_kinds
from anynpu.source.original import Original, PassesChanged, Proof, read_original
from anynpu.source.torch_module import TorchReference, parse_reference, source_files, training_files
from anynpu.tasks.card import Card
from anynpu.tensors import DTYPES, TensorSpec

if TYPE_CHECKING:
    import onnx

    from anynpu.graph.heads import CutDetector

AXES = "NCDHWTLSF"
COLOURS = ("RGB", "BGR", "GRAY")
FORMS = "give net.onnx, net.tflite, file.py:Class, package.module:factory or zoo:NAME"


@dataclass(frozen=True)
class ModelSource:
    """A model as the user names it, with all that its file does not say."""

    model: str
    checkpoint: str = ""
    trust_checkpoint: bool = False
    arguments: Mapping[str, Json] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    layouts: Mapping[str, str] = field(default_factory=dict)
    channels: Mapping[str, str] = field(default_factory=dict)
    output_names: tuple[str, ...] = ()
    fixed: Mapping[str, str] = field(default_factory=dict)
    """Values of inputs that never change, as the user wrote them."""
    end_at: tuple[str, ...] = ()
    """The tensors that become the outputs of an ONNX file; by default it ends where it ends."""
    keep_outputs: bool = False
    """Whether outputs stay whole whose parts are of different range."""

    def __post_init__(self) -> None:
        for name, order in self.channels.items():
            if order not in COLOURS:
                raise ConfigError(
                    f"--channels {name}={order}: no such order of channels", f"known: {', '.join(COLOURS)}"
                )
        for name, layout in self.layouts.items():
            if len({*layout.upper()}) != len(layout):
                raise ConfigError(f"--layout {name}={layout}: names an axis twice")
            if not layout or not {*layout.upper()} <= {*AXES}:
                raise ConfigError(
                    f"--layout {name}={layout}: no such layout",
                    f"one letter of {AXES} for each axis, such as NCHW or NF",
                )
        for name, dtype in self.dtypes.items():
            if dtype not in DTYPES:
                raise ConfigError(f"--dtype {name}={dtype}: no such type", "known: " + ", ".join(DTYPES))
        if len({*self.output_names}) != len(self.output_names) or not all(self.output_names):
            raise ConfigError(f"--output-names {','.join(self.output_names)}: names that differ were expected")
        if len({*self.end_at}) != len(self.end_at) or not all(self.end_at):
            raise ConfigError(f"--end-at {','.join(self.end_at)}: names that differ were expected")
        if self.trust_checkpoint and not self.checkpoint:
            raise ConfigError("--trust-checkpoint has no effect without --ckpt", "give --ckpt FILE, or leave it out")

    @property
    def as_given(self) -> ModelSource:
        """The same model with the outputs that it has; a TFLite file's are never touched."""
        return self if self.kind == "tflite" else replace(self, keep_outputs=True)

    @property
    def kind(self) -> str:
        if self.model.startswith("zoo:"):
            return "zoo"
        if self.model.lower().endswith(TFLITE_ENDINGS):
            return "tflite"
        if ":" in self.model and not Path(self.model).exists():
            return "torch"
        return "onnx"

    @property
    def zoo_name(self) -> str:
        """The name in the zoo, or an empty string."""
        return self.model.removeprefix("zoo:") if self.kind == "zoo" else ""

    def reference(self) -> TorchReference:
        return parse_reference(self.model, self.arguments)


def as_text(value: Any) -> str:
    """Returns the value of a fixed input as the command line writes it: numbers with commas between them."""
    return value if isinstance(value, str) else ",".join(str(number) for number in np.asarray(value).reshape(-1))


def identify(source: ModelSource) -> dict[str, str]:
    """Returns digests of every file the model comes from, without importing or parsing any of it."""
    if source.keep_outputs and source.kind == "tflite":
        raise ConfigError("--keep-outputs has no effect: a TFLite file keeps its outputs", "leave it out")
    if source.kind != "torch":
        what = {"onnx": "an ONNX file", "tflite": "a TFLite file"}.get(source.kind, "a model of the zoo")
        if source.checkpoint or source.arguments:
            raise ConfigError(f"--ckpt and --arg go with a PyTorch model, not with {what}", FORMS)
        if source.fixed and source.kind != "onnx":
            raise ConfigError(f"--fix goes with an ONNX file, not with {what}")
        if source.end_at and source.kind not in ("onnx", "tflite"):
            raise ConfigError(f"--end-at goes with an ONNX or a TFLite file, not with {what}")
        for flag, stated in (("--dtype", source.dtypes), ("--output-names", source.output_names)):
            if stated:
                raise ConfigError(f"{flag} goes with a PyTorch model, not with {what}", FORMS)
    elif source.fixed:
        raise ConfigError("--fix goes with an ONNX file", "give a PyTorch model its value with --arg, or a wrapper")
    elif source.end_at:
        raise ConfigError(
            "--end-at goes with an ONNX or a TFLite file", "let the module return what lies in front of the rest"
        )
    elif unknown := [name for name in source.dtypes if name not in source.shapes]:
        near = schema.near(unknown[0], source.shapes)
        raise ConfigError(f"--dtype {unknown[0]}=...: no --shape names such an input{near}")
    if source.kind == "zoo":
        files: tuple[Path, ...] = zoo.files(source.zoo_name)
    elif source.kind == "torch":
        files = source_files(source.reference())
        files += training_files(files)
        if source.checkpoint:
            files += (existing(Path(source.checkpoint), "checkpoint"),)
    elif source.kind == "tflite":
        return {"model": hash_file(existing(Path(source.model), "model"))}
    else:
        path = existing(Path(source.model), "model")
        data = path.read_bytes()
        reject_other_kinds(path, data)
        if b"location" not in data:
            return {"model": hash_file(path)}
        # A model that keeps weights in other files is read: its digest is that of all of them.
        from anynpu.source.onnx_file import read

        return {"model": hashlib.sha256(read(path).SerializeToString(deterministic=True)).hexdigest()}
    return {"model": hashlib.sha256("".join(hash_file(f) for f in files).encode()).hexdigest()}


def existing(path: Path, what: str) -> Path:
    """Returns the path of a file, or says what is there in its place."""
    if not path.exists():
        known = [p.name for p in path.parent.glob("*") if p.is_file()] if path.parent.is_dir() else []
        raise ConfigError(f"{path}: no such {what}{schema.near(path.name, known)}", FORMS if what == "model" else "")
    if (path / MANIFEST).is_file():
        raise ConfigError(f"{path}: is built already, not a {what}", "anynpu show, run and bench take its folder")
    if path.is_dir():
        keras = f"pip install tf2onnx; python -m tf2onnx.convert --saved-model {path} --output net.onnx"
        hint = keras if (path / "saved_model.pb").is_file() else FORMS
        raise ConfigError(f"{path}: is a folder, not a {what}", hint if what == "model" else "")
    return path


def tools(source: ModelSource) -> dict[str, str]:
    """Returns the tools that the import runs, with their versions."""
    if source.kind == "tflite":
        return {name: tool.version_of(name) for name in ("ai-edge-litert", "numpy")}
    versions = {name: tool.version_of(name) for name in ("onnx", "onnx-ir")}
    if source.kind != "onnx":
        versions |= {name: tool.version_of(name) for name in ("torch", "numpy")}
        with contextlib.suppress(ToolMissing):  # export by tracing, the only one before torch 2.5, needs none
            versions["onnxscript"] = tool.version_of("onnxscript")
    return versions


@dataclass(frozen=True)
class Imported:
    """A float model in its folder, with the proof that it computes what the user's does."""

    manifest: Manifest
    proof: Proof
    dependencies: Dependencies | None = None
    """What the user's code read meanwhile."""


def import_model(source: ModelSource, out: str, task: Card | None = None) -> Manifest:
    """Writes the float ONNX model and returns its manifest; it is proved on random numbers."""
    return _imported(source, out, task, lambda manifest: []).manifest


def import_and_prove(source: ModelSource, out: str, task: Card | None = None) -> Imported:
    """Does the same on samples that the parent process makes for the inputs, and records what the user's code reads
    (runs in a child process)."""
    if source.kind != "torch":
        return _imported(source, out, task, tool.ask)
    import torch  # noqa: F401  # not read by the user's code

    from anynpu.source.recorder import Recorder

    reference = source.reference()
    files = source_files(reference)
    folder = Path(reference.location).resolve().parent if reference.is_file else None
    mentioned = [str(value) for value in source.arguments.values()]
    with Recorder(folder, own_folders(files), mentioned).watching() as recorder:
        imported = _imported(source, out, task, tool.ask)
    dependencies = replace(recorder.found(), result=hash_file(Path(out) / imported.manifest.main))
    return replace(imported, dependencies=dependencies)


def own_folders(files: Sequence[Path]) -> list[Path]:
    """Returns the folders of installed packages that a model is taken from: their code counts as the user's."""
    return [file.parent for file in files if installed(str(file))]


def _imported(request: ModelSource, out: str, card: Card | None, samples: Callable[[Manifest], list[str]]) -> Imported:
    """Returns manifest and proof; `samples` gives the folders of samples for a model.

    Passes that turn out to change results on the samples are left out, and the rest runs again.
    """
    from anynpu.graph.simplify import simplify

    original = read_original(request)
    whole, effects = simplify(original.graph)
    manifest, detector = _written(whole, original, effects, request, card, Path(out))
    folders = samples(manifest)
    try:
        proof = original.prove(whole, folders, detector)
    except PassesChanged as change:
        whole, effects = simplify(original.graph, change.feeds)
        manifest, detector = _written(whole, original, effects, request, card, Path(out))
        proof = original.prove(whole, folders, detector)
    return Imported(manifest, proof)


def _written(
    whole: onnx.ModelProto,
    original: Original,
    effects: tuple[PassEffect, ...],
    request: ModelSource,
    card: Card | None,
    out: Path,
) -> tuple[Manifest, CutDetector | None]:
    """Writes the float model and returns its manifest, and how to prove that a detector was cut rightly."""
    import onnx

    from anynpu.graph import passes
    from anynpu.graph.cost import cost
    from anynpu.graph.degenerate import input_dependence
    from anynpu.graph.fingerprint import fingerprint
    from anynpu.graph.indices import index_sizes
    from anynpu.graph.shapes import VIEWS, maker_behind

    model, card, cut_notes, detector = _cut(whole, card, request.keep_outputs)
    onnx.save(model, str(out / "model.onnx"))
    counted = cost(model)
    findings = input_dependence(model)
    dropped = passes.notes(effects)
    name, added = "cut-decode" if detector else "outputs-apart", len(model.graph.node) - len(whole.graph.node)
    cut = [PassEffect(name, 1 if detector else len(cut_notes), added)] if model is not whole else []
    kinds = [node.op_type for node in model.graph.node]
    makers = {name: node for node in model.graph.node for name in node.output}
    computed_by = {}
    for value in model.graph.output:
        node = maker_behind(value.name, makers, (*VIEWS, "Transpose", "Identity", "Cast"))  # which only move values
        computed_by[value.name] = "" if node is None else node.op_type
    manifest = Manifest(
        format="onnx",
        main="model.onnx",
        inputs=with_channels(_specs(model, request, model.graph.input), card),
        outputs=_specs(model, request, model.graph.output),
        fingerprint=fingerprint(model),
        estimates=Estimates(
            source="counted from the graph, at 32 bits",
            macs=counted.macs,
            parameters=counted.parameters,
            sram_bytes=4 * counted.peak_activation_elements,
            flash_bytes=counted.weight_bytes,
        ),
        notes=(*original.notes, *dropped, *cut_notes, *(str(finding) for finding in findings)),
        details={
            "degenerate": [vars(f) for f in findings],
            "operators": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
            "frozen": [*original.notes, *dropped, *(cut_notes if detector is None else ())],
            "index_sizes": index_sizes(model),
            "output_operators": computed_by,
        },
        task=schema.to_dict(card) if card else {},
        passes=(*original.effects, *effects, *cut),
    )
    return manifest, detector


def _cut(
    model: onnx.ModelProto, card: Card | None, keep_outputs: bool
) -> tuple[onnx.ModelProto, Card | None, tuple[str, ...], CutDetector | None]:
    """Returns a detector that decodes on the host without its own decode, and how to prove that; of a model without a
    card outputs whose parts are of different range come apart; others are unchanged.

    The card that comes back says of the head what the model says; the notes tell where that is not what it said.
    """
    from anynpu.graph.heads import CutDetector, cut_decode
    from anynpu.graph.outputs import apart

    if card is None and not keep_outputs:
        parts, said = apart(model)
        return parts, None, said, None
    if card is None or card.yolo is None or card.yolo.decode != "host":
        return model, card, (), None
    cut, head = cut_decode(model)
    if card.yolo.version != head.version:
        raise ConfigError(
            f"the task card says version {card.yolo.version}, the model has a head of version {head.version}",
            f'give a card with version = "{head.version}" under [yolo]',
        )
    yolo = replace(card.yolo, strides=head.strides, reg_max=head.reg_max or card.yolo.reg_max, anchors=head.anchors)
    names = [name for name in ("strides", "reg_max", "anchors") if getattr(yolo, name) != getattr(card.yolo, name)]
    notes = [f"the card's {name} of the head are replaced by the model's own: {getattr(yolo, name)}" for name in names]
    outputs = ", ".join(value.name for value in cut.graph.output)
    notes.insert(0, f"cut before the decode, which the host does: {outputs}")
    return cut, replace(card, yolo=yolo), tuple(notes), CutDetector(model, cut, head)


def with_channels(inputs: tuple[TensorSpec, ...], card: Card | None) -> tuple[TensorSpec, ...]:
    """Returns the inputs with the card's order of colours on the image input where the user states none."""
    if card is None or card.preprocess is None:
        return inputs
    order = card.preprocess.channels
    return tuple(replace(s, channels=order) if {*"CHW"} <= {*s.layout} and not s.channels else s for s in inputs)


def _specs(model: onnx.ModelProto, source: ModelSource, values: Any) -> tuple[TensorSpec, ...]:
    """Returns typed specs; a layout is what the operators say, or what the user says where they say nothing."""
    from onnx.helper import tensor_dtype_to_np_dtype

    from anynpu.graph.layouts import read_layouts

    read = read_layouts(model)
    initializers = {tensor.name for tensor in model.graph.initializer}
    specs = []
    for value in values:
        if value.name in initializers:
            continue
        kind = value.type.tensor_type
        shape = tuple(dim.dim_value for dim in kind.shape.dim)
        spec = TensorSpec(value.name, shape, str(tensor_dtype_to_np_dtype(kind.elem_type)))
        specs.append(
            replace(spec, layout=stated_layout(spec, read, source), channels=source.channels.get(spec.name, ""))
        )
    return tuple(specs)


def stated_layout(spec: TensorSpec, read: Mapping[str, str], source: ModelSource) -> str:
    """Returns the layout that the operators or the user say; two that differ raise."""
    stated = source.layouts.get(spec.name, "").upper()
    if source.kind == "zoo" and not stated and spec.name == zoo.card(source.zoo_name).input_name:
        stated = zoo.card(source.zoo_name).layout
    layout = read.get(spec.name, "")
    if stated and layout and stated != layout:
        raise ConfigError(
            f"--layout {spec.name}={stated}: the model's own operators say {layout}", "leave it out, or correct it"
        )
    if stated and len(stated) != len(spec.shape):
        raise ConfigError(f"--layout {spec.name}={stated}: the input has {len(spec.shape)} axes: {list(spec.shape)}")
    return stated or layout


def check_stated(source: ModelSource, model: Artifact) -> None:
    """Raises for a layout, type or channel order stated for a tensor that the model does not have."""
    known = [s.name for s in (*model.manifest.inputs, *model.manifest.outputs)]
    for flag, stated in (("--layout", source.layouts), ("--channels", source.channels), ("--dtype", source.dtypes)):
        for name in stated:
            if name not in known:
                raise ConfigError(f"{flag} {name}=...: the model has no tensor {name}{schema.near(name, known)}")
    for spec in (*model.manifest.inputs, *model.manifest.outputs):
        if not (order := source.channels.get(spec.name, "")):
            continue
        depth = 1 if order == "GRAY" else 3
        axes = [spec.shape[spec.layout.index("C")]] if "C" in spec.layout else spec.shape[1:]
        if len(spec.shape) < 3 or depth not in axes:
            raise ConfigError(
                f"--channels {spec.name}={order}: {spec.name} is {list(spec.shape)} {spec.layout}".rstrip()
                + f", which has not {depth} channel{'s' * (depth > 1)}"
            )
