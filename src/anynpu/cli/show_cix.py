"""anynpu show model.cix: what a .cix file says, without the vendor's library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np

from anynpu import schema
from anynpu.cli.table import print_json, print_table
from anynpu.report.figures import kib
from anynpu.runtime.noe.artifact import manifest_of
from anynpu.runtime.noe.cix import Cix, CixTensor, read_cix
from anynpu.schema import JsonObject
from anynpu.tensors import TensorSpec


def show_cix(path: Path, format: str, strict: bool = False) -> int:
    """Prints a .cix file: its tensors in both conventions, its target, its compiler and its sections."""
    cix = read_cix(path, strict or None)
    manifest = manifest_of(cix, ".")
    tensors = [
        (kind, tensor, spec)
        for kind, stored, specs in (("input", cix.inputs, manifest.inputs), ("output", cix.outputs, manifest.outputs))
        for tensor, spec in zip(stored, specs, strict=True)
    ]
    if format == "json":
        print_json("cix", _record(path, cix, manifest.fingerprint, tensors))
        return 0
    click.echo(f"format       cix {_dotted(cix.version)}, {kib(cix.file_size)} KiB")
    click.echo(f"model        {cix.name or '-'}")
    click.echo(f"target       {cix.target} (instruction set {cix.target.isa}, configuration {cix.target.config})")
    click.echo(f"compiler     {cix.build_version}")
    click.echo(f"fingerprint  {manifest.fingerprint}")
    print_table(
        [
            {
                "": kind,
                "name": tensor.name,
                "shape": "x".join(map(str, tensor.shape)),
                "type": tensor.dtype,
                "layout": spec.layout or "not stated",
                "bytes": f"{tensor.nbytes:,}",
                "scale, zero point": f"{ours.scale[0]:.6g}, {ours.zero_point[0]}"
                if (ours := spec.quantization)
                else "-",
                "vendor's": f"{np.float32(tensor.vendor_scale)!s}, {tensor.vendor_zero_point}",
            }
            for kind, tensor, spec in tensors
        ]
    )
    click.echo("ours: real = (stored - zero point) * scale; vendor's: real = (stored + zero point) / scale")
    for sentence in cix.warnings:
        click.echo(f"warning: {sentence}; the program counts")
    parts = [("section", s) for s in cix.sections] + [("note", n) for n in cix.notes]
    print_table([{"": kind, "name": part.name, "bytes": f"{part.size:,}"} for kind, part in parts])
    return 0


def _record(path: Path, cix: Cix, fingerprint: str, tensors: Sequence[tuple[str, CixTensor, TensorSpec]]) -> JsonObject:
    rows = [
        {
            **{"kind": kind, "index": tensor.index, "nbytes": tensor.nbytes},
            **schema.to_dict(spec, whole=True),
            "vendor": {
                "dtype": tensor.vendor_dtype,
                "scale": tensor.vendor_scale,
                "zero_point": tensor.vendor_zero_point,
            },
        }
        for kind, tensor, spec in tensors
    ]
    return {
        **{"path": str(path), "name": cix.name, "version": _dotted(cix.version)},
        **{"size": cix.file_size, "fingerprint": fingerprint, "build_version": cix.build_version},
        "target": {"name": str(cix.target), **schema.to_dict(cix.target, whole=True)},
        "tensors": rows,
        "warnings": list(cix.warnings),
        "sections": schema.to_dict(cix.sections, whole=True),
        "notes": schema.to_dict(cix.notes, whole=True),
    }


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
