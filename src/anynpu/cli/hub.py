"""anynpu hub: compiled models for the Zhouyi NPU from CIX's model hub."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from anynpu import schema
from anynpu.cli import flags
from anynpu.cli.command import Group
from anynpu.cli.progress import observer
from anynpu.cli.table import print_table
from anynpu.records.parts import as_json
from anynpu.runtime.noe.hub_cards import HubModel, HubTensor
from anynpu.source import fetch
from anynpu.source import hub as models

BASE = click.option("--base", metavar="ADDRESS", default="", help="https://, file:// or a folder [ANYNPU_HUB].")


@click.group(cls=Group)
def hub() -> None:
    """Compiled models for the Zhouyi NPU, from CIX's model hub or a copy of it.

    \b
    Examples:
      anynpu hub list
      anynpu hub show yolov8n
      anynpu hub get yolov8n -o yolov8n
      anynpu hub get clip-text --tokenizer bpe_simple_vocab_16e6.txt.gz -o clip-text
      anynpu hub get clip-visual --base /mnt/ai_model_hub_25_Q3
    """


@hub.command("list")
@BASE
@flags.apply(flags.COMMON)
@click.pass_context
def list_(ctx: click.Context, /, base: str, **_: Any) -> int:
    """List the models that have a card."""
    found = [models.model(name) for name in models.names()]
    if ctx.params["format"] == "json":
        rows = [_record(model, base) for model in found]
        click.echo(as_json({"schema_version": 1, "kind": "hub", "models": rows}), nl=False)
        return 0
    print_table([{"name": m.name, "what": m.title, "task": _task(m), "inputs": _shapes(m)} for m in found])
    click.echo(f"from {models.base_address(base)}", err=True)
    return 0


@hub.command()
@click.argument("name")
@BASE
@flags.apply(flags.COMMON)
@click.pass_context
def show(ctx: click.Context, /, name: str, base: str, **_: Any) -> int:
    """Show the card of a model: what it takes and gives, its licence, where it lies."""
    model = models.model(name)
    if ctx.params["format"] == "json":
        click.echo(as_json({"schema_version": 1, "kind": "hub-model", **_record(model, base)}), nl=False)
        return 0
    click.echo(f"{model.name}: {model.title}\n{model.meaning}")
    for what, text in {
        "address": _address(model, base),
        "size": f"{model.megabytes[0]} to {model.megabytes[1]} MiB",
        "sha256": model.sha256 or "not known: the first download is remembered",
        "task": _task(model),
        "tokenizer": model.tokenizer or "-",
        "licence": model.licence,
        "source": model.source,
    }.items():
        click.echo(f"{what:<10} {text}")
    tensors = [("input", t) for t in model.inputs] + [("output", t) for t in model.outputs]
    print_table([_row(kind, tensor) for kind, tensor in tensors])
    return 0


@hub.command()
@click.argument("name")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder of the artifact [NAME].")
@click.option("--tokenizer", metavar="FILE", default="", help="The tokenizer of a model that reads text.")
@click.option("--renew", is_flag=True, help="Accept another file than was fetched from there before.")
@click.option("--overwrite", is_flag=True, help="Replace a folder that anynpu made.")
@click.option("--timeout", type=click.FloatRange(0.1), default=30.0, show_default=True, help="Seconds of silence.")
@BASE
@flags.apply(flags.COMMON)
@click.pass_context
def get(
    ctx: click.Context,
    /,
    name: str,
    output: Path | None,
    tokenizer: str,
    renew: bool,
    overwrite: bool,
    timeout: float,
    base: str,
    **_: Any,
) -> int:
    """Fetch a model, check it against its card, and make an artifact folder of it."""
    model = models.model(name)
    started = time.monotonic()
    with observer(ctx.params["quiet"]) as watch:
        watch.started(name, "get")
        made = models.get(
            model,
            output or Path(name),
            base=base,
            tokenizer=tokenizer,
            cache=flags.store(ctx.params).cache,
            renew=renew,
            overwrite=overwrite,
            timeout_s=timeout,
            progress=watch.progress,
        )
        watch.finished(name, "get", time.monotonic() - started, False)
    _tell(ctx, made)
    return 0


def _tell(ctx: click.Context, made: models.Fetched) -> None:
    manifest = made.artifact.manifest
    if ctx.params["format"] == "json":
        record = {
            **{"schema_version": 1, "kind": "hub-get", "path": str(made.artifact.path), "address": made.address},
            **{"sha256": made.sha256, "known": made.known, "notes": list(manifest.notes)},
            "inputs": schema.to_dict(manifest.inputs, whole=True),
            "outputs": schema.to_dict(manifest.outputs, whole=True),
        }
        click.echo(as_json(record), nl=False)
        return
    click.echo(str(made.artifact.path))
    word = "as known before" if made.known else "not known before; remembered for the next time"
    click.echo(f"sha256 {made.sha256}, {word}", err=True)
    for note in manifest.notes:
        click.echo(note, err=True)


def _address(model: HubModel, base: str) -> str:
    return fetch.join(models.base_address(base), model.path)


def _record(model: HubModel, base: str) -> dict[str, Any]:
    data: dict[str, Any] = schema.to_dict(model, whole=True)
    return {"name": data.pop("name"), "address": _address(model, base), **data}


def _task(model: HubModel) -> str:
    return model.task or (model.card.kind if model.card else "-")


def _shapes(model: HubModel) -> str:
    return ", ".join("x".join(map(str, t.shape)) for t in model.inputs)


def _row(kind: str, tensor: HubTensor) -> dict[str, str]:
    quantised = "-" if tensor.scale is None else f"{tensor.scale:g}, {tensor.zero_point}"
    return {
        "": kind,
        "shape": "x".join(map(str, tensor.shape)),
        "type": " or ".join(tensor.dtypes) or "not known",
        "layout": " ".join(filter(None, (tensor.layout, tensor.channels))) or "-",
        "vendor's scale, zero point": quantised,
    }
