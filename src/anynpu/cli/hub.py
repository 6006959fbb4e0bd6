"""anynpu hub: compiled models for the Zhouyi NPU from CIX's model hub."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import click

from anynpu import schema
from anynpu.cli.command import Group
from anynpu.cli.progress import observer
from anynpu.cli.table import print_json, print_table
from anynpu.cli.verb import Common, argument, flag, verb
from anynpu.runtime.noe.hub_cards import HubModel
from anynpu.source import fetch
from anynpu.source import hub as models


@dataclass(frozen=True, kw_only=True)
class Hub(Common):
    """Where the hub is."""

    base: str = flag("https://, file:// or a folder [ANYNPU_HUB].", "", metavar="ADDRESS")


@dataclass(frozen=True, kw_only=True)
class Named(Hub):
    """A model of the hub."""

    name: str = argument()


@dataclass(frozen=True, kw_only=True)
class Get(Named):
    """A model to fetch."""

    output: Path | None = flag("Folder of the artifact [NAME].", None, "-o")
    tokenizer: str = flag("The tokenizer of a model that reads text.", "", metavar="FILE")
    renew: bool = flag("Accept another file than was fetched from there before.", False)
    overwrite: bool = flag("Replace a folder that anynpu made.", False)
    timeout: float = flag("Seconds without data before it gives up.", 30.0, minimum=0.1, shown=True)


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


@verb(Hub, group=hub)
def list_(asked: Hub) -> int:
    """List the models that have a card."""
    listed = [models.model(name) for name in models.names()]
    if asked.json:
        rows = [_record(model, asked.base) for model in listed]
        print_json("hub", {"models": rows})
        return 0
    print_table(
        [
            {
                "name": m.name,
                "what": m.title,
                "task": _task(m),
                "inputs": ", ".join("x".join(map(str, t.shape)) for t in m.inputs),
            }
            for m in listed
        ]
    )
    click.echo(f"from {models.base_address(asked.base)}", err=True)
    return 0


@verb(Named, group=hub)
def show(asked: Named) -> int:
    """Show the card of a model: what it takes and gives, its licence, where it lies."""
    model = models.model(asked.name)
    if asked.json:
        print_json("hub-model", _record(model, asked.base))
        return 0
    click.echo(f"{model.name}: {model.title}\n{model.meaning}")
    for what, text in {
        "address": _address(model, asked.base),
        "size": f"{model.megabytes[0]} to {model.megabytes[1]} MiB",
        "sha256": model.sha256 or "not known: the first download is remembered",
        "task": _task(model),
        "tokenizer": model.tokenizer or "-",
        "licence": model.licence,
        "source": model.source,
    }.items():
        click.echo(f"{what:<10} {text}")
    tensors = [("input", t) for t in model.inputs] + [("output", t) for t in model.outputs]
    print_table(
        [
            {
                "": kind,
                "shape": "x".join(map(str, tensor.shape)),
                "type": " or ".join(tensor.dtypes) or "not known",
                "layout": " ".join(filter(None, (tensor.layout, tensor.channels))) or "-",
                "vendor's scale, zero point": "-" if tensor.scale is None else f"{tensor.scale:g}, {tensor.zero_point}",
            }
            for kind, tensor in tensors
        ]
    )
    return 0


@verb(Get, group=hub)
def get(asked: Get) -> int:
    """Fetch a model, check it against its card, and make an artifact folder of it."""
    model = models.model(asked.name)
    started = time.monotonic()
    with observer(asked.quiet) as watch:
        watch.started(asked.name, "get")
        fetched = models.get(
            model,
            asked.output or Path(asked.name),
            base=asked.base,
            tokenizer=asked.tokenizer,
            cache=asked.store().cache,
            renew=asked.renew,
            overwrite=asked.overwrite,
            timeout_s=asked.timeout,
            progress=watch.progress,
        )
        watch.finished(asked.name, "get", time.monotonic() - started, False)
    manifest = fetched.artifact.manifest
    if asked.json:
        tensors = {"inputs": manifest.inputs, "outputs": manifest.outputs}
        print_json(
            "hub-get",
            {
                **{"path": str(fetched.artifact.path), "address": fetched.address, "sha256": fetched.sha256},
                **{"known": fetched.known, "notes": list(manifest.notes)},
                **schema.to_dict(tensors, whole=True),
            },
        )
        return 0
    click.echo(str(fetched.artifact.path))
    word = "as known before" if fetched.known else "not known before; remembered for the next time"
    click.echo(f"sha256 {fetched.sha256}, {word}", err=True)
    for note in manifest.notes:
        click.echo(note, err=True)
    return 0


def _address(model: HubModel, base: str) -> str:
    return fetch.join(models.base_address(base), model.path)


def _record(model: HubModel, base: str) -> dict[str, object]:
    data: dict[str, object] = schema.to_dict(model, whole=True)
    return {"name": data.pop("name"), "address": _address(model, base), **data}


def _task(model: HubModel) -> str:
    return model.task or (model.card.kind if model.card else "-")
