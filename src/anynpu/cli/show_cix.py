"""anynpu show model.cix: what a .cix file says, without the vendor's library."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np

from anynpu import schema
from anynpu.artifact import Manifest
from anynpu.cli.table import print_table
from anynpu.records.parts import as_json
from anynpu.report.figures import kib
from anynpu.runtime.noe.artifact import manifest_of
from anynpu.runtime.noe.cix import Cix, CixTensor, read_cix
from anynpu.schema import JsonObject
from anynpu.tensors import TensorSpec


def show_cix(path: Path, format: str, strict: bool = False) -> int:
    """Prints a .cix file: its tensors in both conventions, its target, its compiler and its sections."""
    cix = read_cix(path, strict or None)
    manifest = manifest_of(cix, ".")
    if format == "json":
        click.echo(as_json(_record(path, cix, manifest)), nl=False)
        return 0
    click.echo(f"format       cix {_dotted(cix.version)}, {kib(cix.file_size)} KiB")
    click.echo(f"model        {cix.name or '-'}")
    click.echo(f"target       {cix.target} (instruction set {cix.target.isa}, configuration {cix.target.config})")
    click.echo(f"compiler     {cix.build_version}")
    click.echo(f"fingerprint  {manifest.fingerprint}")
    print_table([_row(*each) for each in _tensors(cix, manifest)])
    click.echo("ours: real = (stored - zero point) * scale; vendor's: real = (stored + zero point) / scale")
    for sentence in cix.warnings:
        click.echo(f"warning: {sentence}; the program counts")
    parts = [("section", s) for s in cix.sections] + [("note", n) for n in cix.notes]
    print_table([{"": kind, "name": part.name, "bytes": f"{part.size:,}"} for kind, part in parts])
    return 0


def _tensors(cix: Cix, manifest: Manifest) -> Iterator[tuple[str, CixTensor, TensorSpec]]:
    """Gives every tensor as the file says it, and as an artifact has it."""
    both = (("input", cix.inputs, manifest.inputs), ("output", cix.outputs, manifest.outputs))
    for kind, tensors, specs in both:
        for tensor, spec in zip(tensors, specs, strict=True):
            yield kind, tensor, spec


def _row(kind: str, tensor: CixTensor, spec: TensorSpec) -> dict[str, str]:
    ours = spec.quantization
    return {
        "": kind,
        "name": tensor.name,
        "shape": "x".join(map(str, tensor.shape)),
        "type": tensor.dtype,
        "layout": spec.layout or "not stated",
        "bytes": f"{tensor.nbytes:,}",
        "scale, zero point": f"{ours.scale[0]:.6g}, {ours.zero_point[0]}" if ours else "-",
        "vendor's": f"{np.float32(tensor.vendor_scale)!s}, {tensor.vendor_zero_point}",
    }


def _record(path: Path, cix: Cix, manifest: Manifest) -> JsonObject:
    tensors = [
        {
            **{"kind": kind, "index": tensor.index, "nbytes": tensor.nbytes},
            **schema.to_dict(spec, whole=True),
            "vendor": {
                "dtype": tensor.vendor_dtype,
                "scale": tensor.vendor_scale,
                "zero_point": tensor.vendor_zero_point,
            },
        }
        for kind, tensor, spec in _tensors(cix, manifest)
    ]
    return {
        **{"schema_version": 1, "kind": "cix", "path": str(path), "name": cix.name, "version": _dotted(cix.version)},
        **{"size": cix.file_size, "fingerprint": manifest.fingerprint, "build_version": cix.build_version},
        "target": {"name": str(cix.target), **schema.to_dict(cix.target, whole=True)},
        "tensors": tensors,
        "warnings": list(cix.warnings),
        "sections": schema.to_dict(cix.sections, whole=True),
        "notes": schema.to_dict(cix.notes, whole=True),
    }


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
