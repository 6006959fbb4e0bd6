"""anynpu show of an ONNX file whose inputs have dimensions that are not fixed: as it is, before any shape is stated."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anynpu.cli.table import print_table
from anynpu.errors import on_one_line
from anynpu.records.parts import as_json
from anynpu.report.figures import count
from anynpu.source.load import ModelSource

if TYPE_CHECKING:
    import onnx


def read_open(source: ModelSource) -> onnx.ModelProto | None:
    """Returns the model of an ONNX file with open dimensions that no --shape states, or None."""
    if source.kind != "onnx" or not Path(source.model).is_file():
        return None
    from anynpu.graph.shapes import inputs_of, shape_of
    from anynpu.source.onnx_file import read

    model = read(Path(source.model))
    waiting = [v for v in inputs_of(model) if v.name not in source.shapes]
    return model if any(isinstance(dim, str) for value in waiting for dim in shape_of(value)) else None


def show_open(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]], format: str) -> int:
    """Prints tensors and operators of such a model, and the flag that states its shapes."""
    from anynpu.graph.fingerprint import fingerprint
    from anynpu.graph.shapes import dtype_of, inputs_of, shape_of

    tensors = [
        {"kind": kind, "name": value.name, "shape": list(shape_of(value)), "dtype": dtype_of(value)}
        for kind, values in (("input", inputs_of(model)), ("output", list(model.graph.output)))
        for value in values
    ]
    kinds = [node.op_type for node in model.graph.node]
    stated = {v.name: list(shapes.get(v.name, ())) or _example(shape_of(v)) for v in inputs_of(model)}
    record = {
        "schema_version": 1,
        "kind": "open-model",
        "format": "onnx",
        "fingerprint": fingerprint(model),
        "tensors": tensors,
        "operators": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "parameters": sum(_size(tensor.dims) for tensor in model.graph.initializer),
        "fix": " ".join(f"--shape {name}={','.join(map(str, shape))}" for name, shape in stated.items()),
    }
    if format == "json":
        click.echo(as_json(record), nl=False)
    else:
        _show(record)
    return 0


def _example(shape: tuple[int | str, ...]) -> list[int]:
    """Returns a shape that fits: a batch of one, and 224 for other dimensions that are open."""
    return [dim if isinstance(dim, int) else 1 if at == 0 else 224 for at, dim in enumerate(shape)]


def _size(dims: Any) -> int:
    size = 1
    for dim in dims:
        size *= dim
    return size


def _show(record: Mapping[str, Any]) -> None:
    click.echo("format       onnx, with dimensions that are not fixed")
    click.echo(f"fingerprint  {record['fingerprint']}")
    print_table(
        [
            {"": t["kind"], "name": t["name"], "shape": "x".join(map(str, t["shape"])), "type": t["dtype"]}
            for t in record["tensors"]
        ]
    )
    click.echo(f"cost         {count(record['parameters'])} parameters; MACs and memory depend on the shapes")
    click.echo(on_one_line("operators    " + ", ".join(f"{n} {kind}" for kind, n in record["operators"].items())))
    click.echo(on_one_line(f"note         a chip needs fixed shapes: {record['fix']}"))
