"""From a .tflite file to C files with their figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from anynpu.errors import Finding, IntegrityError, Unsupported
from anynpu.firmware.generator.cost import expected
from anynpu.firmware.generator.folding import fold_padding, fold_tables
from anynpu.firmware.generator.graph import ABSENT, Graph, Node, NotQuantised, read_graph
from anynpu.firmware.generator.layer import MAX_RANK, Layer, Refused, require
from anynpu.firmware.generator.operators import EMITTERS
from anynpu.firmware.generator.planner import Plan, plan, with_room
from anynpu.firmware.generator.source import Names, Writer
from anynpu.firmware.generator.types import C_TYPES
from anynpu.firmware.generator.variants import PLAIN, Core, choose, variants

Settings = Names


@dataclass(frozen=True)
class LayerFigures:
    """A layer in figures: which kernels it got, and how many instructions are expected, of plain C too."""

    index: int
    kind: str
    name: str
    variant: str
    kernels: tuple[str, ...]
    macs: int
    expected_instructions: int | None
    plain_instructions: int | None
    output: str
    """The shape of what it makes first."""
    tensors: tuple[int, ...]
    """What it makes, by the numbers in the model's file."""


@dataclass(frozen=True)
class Generated:
    """The files, and what was counted while they were made."""

    files: dict[str, str] = field(repr=False)
    arena_bytes: int
    arena_bound: int
    constant_bytes: int
    macs: int
    kernels: tuple[str, ...]
    in_place: int
    largest_constants: tuple[tuple[str, int], ...]
    largest_layer: str
    layers: tuple[LayerFigures, ...]
    kinds: dict[str, str] = field(repr=False)
    """What each constant is, by its symbol: weights, channels, table, tensors and so on."""
    sizes: dict[str, int]
    """The bytes of all constants of a kind."""

    def write(self, folder: Path) -> None:
        """Writes the files into a folder."""
        for name, text in self.files.items():
            (folder / name).write_text(text, "utf-8", newline="\n")


def layers_of(graph: Graph, core: Core = PLAIN) -> tuple[list[Layer], list[Finding]]:
    """Returns the layers of all operators, with the kernels that suit the core, and why some have none."""
    findings = []
    for number in (*graph.inputs, *graph.outputs):
        tensor = graph.tensors[number]
        if tensor.constant:
            findings.append(Finding("border", "an input or output that is a constant", tensor.name))
        if tensor.dtype not in C_TYPES or len(tensor.shape) > MAX_RANK:
            words = f"a tensor of {tensor.dtype} with {len(tensor.shape)} axes"
            findings.append(Finding("border", words, tensor.name))
    forms = []
    fixed = frozenset(number for number, tensor in graph.tensors.items() if tensor.constant)
    for node in graph.nodes:
        try:
            options = _forms(graph, node, core, fixed)
            forms.append(options)
            if options[0].alias in fixed:
                fixed |= {node.outputs[0]}
        except Refused as reason:
            findings.append(Finding("operator", f"operator {node.kind} {reason.message}", node.name))
    layers = choose(forms, core)
    # An output may be a constant under another shape.
    constant = {n for n, tensor in graph.tensors.items() if tensor.constant}
    for layer in layers:
        if layer.alias in constant:
            constant.add(layer.node.outputs[0])
    names = [graph.tensors[n].name for n in graph.outputs if n in constant and not graph.tensors[n].constant]
    return layers, findings + [Finding("border", "an output that is a constant", name) for name in names]


def _forms(graph: Graph, node: Node, core: Core, fixed: frozenset[int]) -> list[Layer]:
    """Returns the layer in plain C, then as each extension of the core has kernels for it."""
    emitter = EMITTERS.get(node.kind)
    if emitter is None:
        raise Refused("is not one that the C generator has a kernel for")
    read = node.inputs[:1] if node.kind == "RESHAPE" else node.inputs  # the shape of a number has no elements
    touched = [graph.tensors[n] for n in (*read, *node.outputs) if n != ABSENT]
    require(all(size > 0 for tensor in touched for size in tensor.shape), "has an empty tensor")
    try:
        return [emitter(graph, node), *variants(graph, node, core, fixed)]
    except NotQuantised as plain_number:
        raise Refused(f"has no kernel for {plain_number.dtype}") from None
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise IntegrityError(f"operator {node.kind} {node.name}: is damaged ({error})") from error


def findings(path: Path) -> tuple[Finding, ...]:
    """Returns every reason why no C can be generated for a model."""
    return tuple(layers_of(fold_tables(fold_padding(read_graph(path))))[1])


def generate(path: Path, settings: Settings) -> Generated:
    """Returns the C files of a quantised .tflite model; what it cannot express raises Unsupported, all at once."""
    graph = fold_tables(fold_padding(read_graph(path)))
    layers, refused = layers_of(graph, settings.core)
    if refused:
        raise Unsupported(
            f"{len(refused)} of {len(graph.nodes)} operators have no C kernel: " + "; ".join(map(str, refused[:5])),
            refused,
            "anynpu check lists all of them",
        )
    layers = with_room(graph, layers)
    layout = plan(graph, layers)
    writer = Writer(graph, layers, layout, settings)
    return _generated(graph, layers, layout, writer)


def _generated(graph: Graph, layers: Sequence[Layer], layout: Plan, writer: Writer) -> Generated:
    sizes = {symbol: (constant.bytes, about) for symbol, (constant, about) in writer.constants().items()}
    largest = sorted(sizes.values(), key=lambda item: -item[0])[:5]
    endings = {symbol: symbol.rsplit("_", 1)[-1] for symbol in sizes}
    kinds = {symbol: "tensors" if ending.isdigit() else ending for symbol, ending in endings.items()}
    by_kind = dict.fromkeys(kinds.values(), 0)
    for symbol, (size, _) in sizes.items():
        by_kind[kinds[symbol]] += size
    peak = graph.nodes[layout.peak_step] if graph.nodes else None
    figures = [
        LayerFigures(
            index=layer.node.index,
            kind=layer.node.kind,
            name=layer.node.name,
            variant=layer.variant,
            kernels=tuple(call.kernel for call in layer.calls),
            macs=layer.node.macs,
            expected_instructions=expected(layer),
            plain_instructions=expected(layer) if layer.variant == "plain" else layer.plain_instructions,
            output="x".join(map(str, graph.output(layer.node).shape)),
            tensors=layer.node.outputs,
        )
        for layer in layers
    ]
    return Generated(
        files=writer.files(),
        arena_bytes=layout.bytes,
        arena_bound=layout.bound,
        constant_bytes=sum(size for size, _ in sizes.values()),
        macs=sum(n.macs for n in graph.nodes),
        kernels=tuple(sorted({c.kernel for a in layers for c in a.calls})),
        in_place=layout.in_place,
        largest_constants=tuple((about, size) for size, about in largest),
        largest_layer=f"{peak.kind} {peak.name}" if peak else "",
        layers=tuple(figures),
        kinds=kinds,
        sizes=by_kind,
    )
