"""anynpu show of an ONNX file whose inputs have dimensions that are not fixed: as it is, before any shape is stated."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from anynpu.cli.table import print_json, print_table
from anynpu.errors import on_one_line
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

    tensors = [("input", value) for value in inputs_of(model)] + [("output", value) for value in model.graph.output]
    operators = dict(sorted(Counter(node.op_type for node in model.graph.node).items()))
    parameters = sum(math.prod(tensor.dims) for tensor in model.graph.initializer)
    # A shape that fits: a batch of one, and 224 for other dimensions that are open
    fitting = {
        v.name: shapes.get(v.name, ())
        or [dim if isinstance(dim, int) else 1 if at == 0 else 224 for at, dim in enumerate(shape_of(v))]
        for v in inputs_of(model)
    }
    fix = " ".join(f"--shape {name}={','.join(map(str, shape))}" for name, shape in fitting.items())
    if format == "json":
        rows = [{"kind": k, "name": v.name, "shape": list(shape_of(v)), "dtype": dtype_of(v)} for k, v in tensors]
        cost = {"operators": operators, "parameters": parameters, "fix": fix}
        print_json("open-model", {"format": "onnx", "fingerprint": fingerprint(model), "tensors": rows, **cost})
        return 0
    click.echo("format       onnx, with dimensions that are not fixed")
    click.echo(f"fingerprint  {fingerprint(model)}")
    print_table(
        [
            {"": kind, "name": value.name, "shape": " x ".join(map(str, shape_of(value))), "type": dtype_of(value)}
            for kind, value in tensors
        ]
    )
    click.echo(f"cost         {count(parameters)} parameters; MACs and memory depend on the shapes")
    click.echo(on_one_line("operators    " + ", ".join(f"{n} {kind}" for kind, n in operators.items())))
    click.echo(on_one_line(f"note         a chip needs fixed shapes: {fix}"))
    return 0
