"""From what the user wrote after -m to one float ONNX artifact."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anynpu import schema, tool
from anynpu.artifact import Artifact, Estimates, Manifest, hash_file
from anynpu.errors import ConfigError
from anynpu.source import zoo
from anynpu.source.torch_module import TorchReference, parse_reference, source_files
from anynpu.tasks.card import Card
from anynpu.tensors import DTYPES, TensorSpec

if TYPE_CHECKING:
    import onnx

AXES = "NCDHWTLSF"
COLOURS = ("RGB", "BGR", "GRAY")
FORMS = "give net.onnx, file.py:Class, package.module:factory or zoo:NAME"


@dataclass(frozen=True)
class ModelSource:
    """A model as the user names it, with all that its file does not say."""

    model: str
    checkpoint: str = ""
    trust_checkpoint: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    layouts: Mapping[str, str] = field(default_factory=dict)
    channels: Mapping[str, str] = field(default_factory=dict)
    output_names: tuple[str, ...] = ()

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
        if self.trust_checkpoint and not self.checkpoint:
            raise ConfigError("--trust-checkpoint has no effect without --ckpt", "give --ckpt FILE, or leave it out")

    @property
    def kind(self) -> str:
        if self.model.startswith("zoo:"):
            return "zoo"
        if ":" in self.model and not Path(self.model).exists():
            return "torch"
        return "onnx"

    @property
    def zoo_name(self) -> str:
        """The name in the zoo, or an empty string."""
        return self.model.removeprefix("zoo:") if self.kind == "zoo" else ""

    def reference(self) -> TorchReference:
        return parse_reference(self.model, self.arguments)


def identify(source: ModelSource) -> dict[str, str]:
    """Returns digests of every file the model comes from, without importing or parsing any of it."""
    if source.kind != "torch":
        _reject_torch_only(source)
    elif unknown := [name for name in source.dtypes if name not in source.shapes]:
        near = schema.near(unknown[0], source.shapes)
        raise ConfigError(f"--dtype {unknown[0]}=...: no --shape names such an input{near}")
    if source.kind == "zoo":
        files: tuple[Path, ...] = zoo.files(source.zoo_name)
    elif source.kind == "torch":
        files = source_files(source.reference())
        if source.checkpoint:
            files += (_existing(Path(source.checkpoint), "checkpoint"),)
    else:
        return {"model": _onnx_digest(_existing(Path(source.model), "model"))}
    return {"model": hashlib.sha256("".join(hash_file(f) for f in files).encode()).hexdigest()}


def _existing(path: Path, what: str) -> Path:
    if not path.exists():
        known = [p.name for p in path.parent.glob("*") if p.is_file()] if path.parent.is_dir() else []
        raise ConfigError(f"{path}: no such {what}{schema.near(path.name, known)}", FORMS if what == "model" else "")
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder, not a {what}", FORMS if what == "model" else "")
    return path


def _reject_torch_only(source: ModelSource) -> None:
    """Raises for what only a PyTorch model has a use for: an ONNX file and the zoo bring it themselves."""
    what = "an ONNX file" if source.kind == "onnx" else "a model of the zoo"
    if source.checkpoint or source.arguments:
        raise ConfigError(f"--ckpt and --arg go with a PyTorch model, not with {what}", FORMS)
    for flag, stated in (("--dtype", source.dtypes), ("--output-names", source.output_names)):
        if stated:
            raise ConfigError(f"{flag} goes with a PyTorch model, not with {what}", FORMS)


def _onnx_digest(path: Path) -> str:
    """Returns the digest of a model with all its weights; one that keeps them in other files is read to get it."""
    if b"location" not in path.read_bytes():
        return hash_file(path)
    from anynpu.source.onnx_file import read

    return hashlib.sha256(read(path).SerializeToString(deterministic=True)).hexdigest()


def tools(source: ModelSource) -> dict[str, str]:
    """Returns the tools that the import runs, with their versions."""
    from anynpu.graph.simplify import tool_versions

    found = {"onnx": tool.version_of("onnx"), **tool_versions()}
    if source.kind != "onnx":
        found |= {name: tool.version_of(name) for name in ("torch", "onnxscript")}
    return found


def import_model(source: dict[str, Any], out: str, task: dict[str, Any] | None = None) -> dict[str, Any]:
    """Writes the float ONNX model and returns its manifest as JSON data (runs in a child process)."""
    import onnx

    from anynpu.graph.cost import cost
    from anynpu.graph.degenerate import input_dependence
    from anynpu.graph.fingerprint import fingerprint
    from anynpu.graph.indices import index_sizes
    from anynpu.graph.shapes import make_static
    from anynpu.graph.simplify import simplify

    request = schema.from_dict(ModelSource, source, "model source")
    card = schema.from_dict(Card, task, "task") if task else None
    shapes = {name: list(shape) for name, shape in request.shapes.items()}
    model = simplify(make_static(_read(request), shapes))
    model, card, said = _without_decode(model, card)
    onnx.save(model, str(Path(out) / "model.onnx"))
    counted = cost(model)
    findings = input_dependence(model)
    manifest = Manifest(
        format="onnx",
        main="model.onnx",
        inputs=_with_channels(_specs(model, request, model.graph.input), card),
        outputs=_specs(model, request, model.graph.output),
        fingerprint=fingerprint(model),
        estimates=Estimates(
            source="counted from the graph, at 32 bits",
            macs=counted.macs,
            parameters=counted.parameters,
            sram_bytes=4 * counted.peak_activation_elements,
            flash_bytes=counted.weight_bytes,
        ),
        notes=(*said, *(str(finding) for finding in findings)),
        details={
            "degenerate": [vars(f) for f in findings],
            "operators": _histogram(model),
            "index_sizes": index_sizes(model),
            "output_operators": _last(model),
        },
        task=schema.to_dict(card) if card else {},
    )
    answer: dict[str, Any] = schema.to_dict(manifest)
    return answer


def _without_decode(model: onnx.ModelProto, card: Card | None) -> tuple[onnx.ModelProto, Card | None, tuple[str, ...]]:
    """Returns a detector that decodes on the host without its own decode, others unchanged.

    The card that comes back says of the head what the model says; the notes tell where that is not what it said.
    """
    from anynpu.graph.heads import cut_decode

    if card is None or card.yolo is None or card.yolo.decode != "host":
        return model, card, ()
    cut, head = cut_decode(model)
    if card.yolo.version != head.version:
        raise ConfigError(
            f"the task card says version {card.yolo.version}, the model has a head of version {head.version}",
            f'give a card with version = "{head.version}" under [yolo]',
        )
    found = replace(card.yolo, strides=head.strides, reg_max=head.reg_max or card.yolo.reg_max, anchors=head.anchors)
    names = [name for name in ("strides", "reg_max", "anchors") if getattr(found, name) != getattr(card.yolo, name)]
    notes = [f"the card's {name} of the head are replaced by the model's own: {getattr(found, name)}" for name in names]
    outputs = ", ".join(value.name for value in cut.graph.output)
    return cut, replace(card, yolo=found), (f"cut before the decode, which the host does: {outputs}", *notes)


def _with_channels(inputs: tuple[TensorSpec, ...], card: Card | None) -> tuple[TensorSpec, ...]:
    """Returns the inputs with the card's order of colours on the image input where the user states none."""
    if card is None or card.preprocess is None:
        return inputs
    order = card.preprocess.channels
    return tuple(replace(s, channels=order) if {*"CHW"} <= {*s.layout} and not s.channels else s for s in inputs)


def _histogram(model: onnx.ModelProto) -> dict[str, int]:
    kinds = [node.op_type for node in model.graph.node]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


_SAME_VALUES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity", "Cast")


def _last(model: onnx.ModelProto) -> dict[str, str]:
    """Returns the operator that computes the values of each output; those that only move them do not count."""
    makers = {name: node for node in model.graph.node for name in node.output}
    found = {}
    for value in model.graph.output:
        node = makers.get(value.name)
        while node is not None and node.op_type in _SAME_VALUES:
            node = makers.get(node.input[0])
        found[value.name] = "" if node is None else node.op_type
    return found


def _read(source: ModelSource) -> onnx.ModelProto:
    from anynpu.source.torch_module import export_onnx, load_module

    if source.kind == "onnx":
        from anynpu.source.onnx_file import read

        return read(Path(source.model))
    if source.kind == "zoo":
        card = zoo.card(source.zoo_name)
        shapes = {card.input_name: card.input_shape, **source.shapes}
        module = zoo.model(source.zoo_name)
        return export_onnx(module, shapes, {card.input_name: "float32"}, card.output_names)
    if not source.shapes:
        raise ConfigError("a PyTorch model does not say what its inputs look like", "give --shape NAME=1,3,224,224")
    checkpoint = Path(source.checkpoint) if source.checkpoint else None
    module = load_module(source.reference(), checkpoint, source.trust_checkpoint)
    dtypes = {name: source.dtypes.get(name, "float32") for name in source.shapes}
    return export_onnx(module, source.shapes, dtypes, source.output_names or None)


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
        specs.append(replace(spec, layout=_layout(spec, read, source), channels=source.channels.get(spec.name, "")))
    return tuple(specs)


def _layout(spec: TensorSpec, read: Mapping[str, str], source: ModelSource) -> str:
    stated = source.layouts.get(spec.name, "").upper()
    if source.kind == "zoo" and not stated and spec.name == zoo.card(source.zoo_name).input_name:
        stated = zoo.card(source.zoo_name).layout
    found = read.get(spec.name, "")
    if stated and found and stated != found:
        raise ConfigError(
            f"--layout {spec.name}={stated}: the model's own operators say {found}", "leave it out, or correct it"
        )
    if stated and len(stated) != len(spec.shape):
        raise ConfigError(f"--layout {spec.name}={stated}: the input has {len(spec.shape)} axes: {list(spec.shape)}")
    return stated or found


def check_stated(source: ModelSource, model: Artifact) -> None:
    """Raises for a layout, type or channel order stated for a tensor that the model does not have."""
    known = [s.name for s in (*model.manifest.inputs, *model.manifest.outputs)]
    for flag, stated in (("--layout", source.layouts), ("--channels", source.channels), ("--dtype", source.dtypes)):
        for name in stated:
            if name not in known:
                raise ConfigError(f"{flag} {name}=...: the model has no tensor {name}{schema.near(name, known)}")
    for spec in (*model.manifest.inputs, *model.manifest.outputs):
        _check_colours(spec, source.channels.get(spec.name, ""))


def _check_colours(spec: TensorSpec, order: str) -> None:
    """Raises for an order of colours stated for a tensor that has no such channels."""
    if not order:
        return
    depth = 1 if order == "GRAY" else 3
    axes = [spec.shape[spec.layout.index("C")]] if "C" in spec.layout else spec.shape[1:]
    if len(spec.shape) < 3 or depth not in axes:
        raise ConfigError(
            f"--channels {spec.name}={order}: {spec.name} is {list(spec.shape)} {spec.layout}".rstrip()
            + f", which has not {depth} channel{'s' * (depth > 1)}"
        )
