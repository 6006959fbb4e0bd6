"""anynpu run: executing an artifact."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np

from anynpu.artifact import Artifact
from anynpu.cli import options
from anynpu.cli.command import Command, refuse_unused
from anynpu.cli.receipt import lines
from anynpu.cli.table import print_table
from anynpu.errors import ConfigError
from anynpu.files import check_free, write_whole
from anynpu.pipeline.output import as_json
from anynpu.pipeline.record import receipt
from anynpu.pipeline.steps import own_version
from anynpu.report import figures
from anynpu.runtime import trial
from anynpu.runtime.base import open_artifact, open_session, run_stored
from anynpu.runtime.versions import versions_of
from anynpu.runtime.watch import watch
from anynpu.tensors import Array, TensorSpec

ON_BOARD = "anynpu.on_board"
DEVICE = click.option(
    "--on",
    "device",
    metavar="DEVICE",
    help="ort, litert, tflm, ...; generated C: host, qemu or serial:PORT[@BAUD]. The format's reference if not said.",
)
TIMEOUT = click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    help="Seconds that a board may take for an answer, beside 30 for every inference.",
)
STRICT = click.option(
    "--strict", is_flag=True, help="Refuse a .cix file whose container says other than its program; else a warning."
)


@click.command(cls=Command)
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("-i", "--input", "inputs", required=True, metavar="FILE", help="x.npy, or x.npz with an array per input.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the outputs to this .npz file.")
@options.OVERWRITE
@DEVICE
@STRICT
@TIMEOUT
@options.apply(options.COMMON)
@click.pass_context
def run(ctx: click.Context, /, artifact: Path, inputs: str, output: Path | None, **given: Any) -> int:
    """Run an artifact on one input and show what comes out.

    Arrays are in the layout that `anynpu show` prints. Real numbers are quantised by the input's own scale and zero
    point; integers of the input's own type are taken as they are. Outputs are real numbers. A runtime that may leave
    operators to the CPU tells at the end which ran on the NPU.

    \b
    anynpu run out/tflm -i image.npy -o scores.npz
    anynpu run out/cortex-m4 -i image.npy --on qemu
    """
    if output is not None:
        check_free(output, given["overwrite"], (inputs, artifact))
    else:
        refuse_unused(ctx, "there is no -o", "overwrite")
    subject = open_artifact(artifact, given["strict"])
    stored = read_stored(Path(inputs), subject.manifest.inputs)
    session, running = open_on(subject, given)
    try:
        outputs = run_stored(session, stored)
        versions = versions_of(session)
    finally:
        session.close()
    real = {spec.name: spec.to_real(outputs[spec.name]) for spec in session.outputs}
    if output is not None:
        packed = io.BytesIO()
        np.savez(packed, **real)
        write_whole(output, packed.getvalue())
    more: dict[str, Any] = {"versions": versions} if versions else {}
    more |= {"memory": running.memory()} if running else {}
    if found := receipt(getattr(session, "placement", None)):
        more["receipt"] = found
    _show_outputs(given["format"], session.what, real, more)
    return 0


def open_on(artifact: Artifact, given: Mapping[str, Any]) -> tuple[Any, Any]:
    """Returns a session on the device that the flags name, and what runs there where that is our firmware."""
    from anynpu.firmware import run as firmware

    format, device = artifact.manifest.format, given["device"]
    if device is None and format == "c":
        device = "host"
    ctx = click.get_current_context(silent=True)  # there is none in the threads of a bench
    if device is None or not firmware.is_board(device):
        if ctx is not None and not ctx.meta.get(ON_BOARD):
            refuse_unused(ctx, "nothing runs on a board", "timeout")
        trial.require(artifact, device)
        return open_session(artifact, device), None
    if ctx is not None:
        ctx.meta[ON_BOARD] = True
    running = firmware.start(artifact, device, options.store(given), {"anynpu": own_version()}, given["timeout"])
    watch(running.session)
    return running.session, running


def _show_outputs(format: str, what: str, real: dict[str, Array], more: Mapping[str, Any]) -> None:
    if format == "json":
        values = {name: {"shape": list(a.shape), "values": a.ravel().tolist()} for name, a in real.items()}
        record = {"schema_version": 1, "kind": "run", "executed": what, "outputs": values}
        click.echo(as_json({**record, **more}), nl=False)
        return
    click.echo(f"executed: {what}{figures.versions_of(more)}")
    print_table(
        [
            {
                "output": name,
                "shape": "x".join(map(str, a.shape)),
                "min": f"{a.min():.5g}",
                "max": f"{a.max():.5g}",
                "mean": f"{a.mean():.5g}",
                "argmax": str(int(a.argmax())),
            }
            for name, a in real.items()
        ]
    )
    for line in lines(more["receipt"]) if "receipt" in more else ():
        click.echo(line)


def _stored(spec: TensorSpec, array: Array) -> Array:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ConfigError(f"input {spec.name} holds NaN or infinite values")
    if str(array.dtype) == spec.dtype:
        return array
    if array.dtype.kind != "f":
        raise ConfigError(f"input {spec.name} holds {array.dtype}; {spec.dtype} or real numbers were expected")
    return spec.to_stored(array)


def read_stored(path: Path, specs: tuple[TensorSpec, ...]) -> dict[str, Array]:
    """Returns the inputs in a file as the model stores them; a name that the model does not have is left for later."""
    from anynpu.quantize.calibration import read_arrays

    given = read_arrays(path, specs)
    stored = {spec.name: _stored(spec, given[spec.name]) for spec in specs if spec.name in given}
    return {**given, **stored}
