"""anynpu show --quantisation: how every tensor of a build is stored, or how two builds differ in that."""

from __future__ import annotations

from pathlib import Path

import click

from anynpu import schema
from anynpu.artifact import Artifact
from anynpu.cli.table import print_table
from anynpu.errors import ConfigError
from anynpu.records.parts import as_json
from anynpu.records.quantisation import FILE, Quantisation, TensorForm, differences


def show_quantisation(folder: Path, against: Path | None, format: str) -> int:
    """Prints the quantisation of an artifact, or the tensors that it stores differently from another."""
    quantisation = read_quantisation(folder)
    if against is None:
        if format == "json":
            head = {"schema_version": 1, "kind": "quantisation"}
            click.echo(as_json({**head, **schema.to_dict(quantisation)}), nl=False)
        else:
            print_table([_row(name, form) for name, form in quantisation.tensors.items()])
            for name in quantisation.floats:
                click.echo(f"in floating point: {quantisation.operators[name].kind} {name}")
        return 0
    changed = differences(quantisation, read_quantisation(against))
    if format == "json":
        head = {"schema_version": 1, "kind": "quantisation-differences", "a": str(folder), "b": str(against)}
        click.echo(as_json({**head, "tensors": schema.to_dict(changed)}), nl=False)
        return 0
    print_table([{"tensor": e.tensor, "differs in": e.what, "A": e.a or "-", "B": e.b or "-"} for e in changed])
    click.echo(f"{len(changed)} of {len(quantisation.tensors)} tensors differ")
    return 0


def read_quantisation(folder: Path) -> Quantisation:
    """Returns the quantisation next to an artifact, whose files are as they were made."""
    artifact = Artifact.open(folder)
    if not (folder / FILE).is_file():
        raise ConfigError(
            f"{folder}: has no {FILE}: its format ({artifact.manifest.format}) was not quantised by anynpu",
            "build with a quantising compiler: cpu, tflite, tflm, Ethos-U",
        )
    quantisation: Quantisation = schema.from_dict(Quantisation, schema.read_json(folder / FILE), str(folder / FILE))
    return quantisation


def _row(name: str, form: TensorForm) -> dict[str, str]:
    one = len(form.scale) == 1
    several = f"{len(form.scale)} along axis {form.axis}" if form.scale else "-"
    return {
        "tensor": name,
        "type": form.dtype,
        "scale": f"{form.scale[0]:.6g}" if one else several,
        "zero point": str(form.zero_point[0]) if one else "-",
        "range": f"{form.range[0]:.4g} to {form.range[1]:.4g}" if form.range else "-",
        "from": form.origin or "-",
    }
