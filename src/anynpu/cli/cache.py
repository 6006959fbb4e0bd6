"""anynpu cache: what is kept."""

from __future__ import annotations

import shutil
import time
from typing import Any

import click

from anynpu.cli import options
from anynpu.cli.table import print_table
from anynpu.errors import ConfigError, IntegrityError
from anynpu.pipeline.output import as_json
from anynpu.store import Store, writing

UNITS = {"k": 2**10, "m": 2**20, "g": 2**30}


@click.group()
def cache() -> None:
    """The store of built steps. Every step of a build is kept under the digest of its inputs, options and tools."""


@cache.command("dir")
@options.apply(options.COMMON)
@click.pass_context
def dir_(ctx: click.Context, /, **_: Any) -> int:
    """Print the cache folder."""
    click.echo(str(options.store(ctx.params).cache))
    return 0


@cache.command()
@options.apply(options.COMMON)
@click.pass_context
def ls(ctx: click.Context, /, **_: Any) -> int:
    """List what is kept."""
    entries = list(options.store(ctx.params).entries())
    rows = [
        {
            "address": e.address[:12],
            "step": e.artifact.manifest.step.name if e.artifact.manifest.step else "",
            "chip": e.artifact.manifest.step.platform if e.artifact.manifest.step else "",
            "format": e.artifact.manifest.format,
            "KiB": f"{e.size / 1024:.1f}",
            "used": time.strftime("%Y-%m-%d %H:%M", time.localtime(e.used)),
        }
        for e in entries
    ]
    if ctx.params["format"] == "json":
        click.echo(as_json({"schema_version": 1, "kind": "cache", "entries": rows}), nl=False)
        return 0
    print_table(rows)
    click.echo(f"{len(rows)} steps, {sum(e.size for e in entries) / 2**20:.1f} MiB", err=True)
    return 0


@cache.command()
@options.apply(options.COMMON)
@click.pass_context
def verify(ctx: click.Context, /, **_: Any) -> int:
    """Hash every file again; exit status 8 if one has changed."""
    results = list(options.store(ctx.params).verify())
    bad = [{"address": address, "complaint": complaint} for address, complaint in results if complaint]
    if ctx.params["format"] == "json":
        click.echo(
            as_json({"schema_version": 1, "kind": "cache-verify", "steps": len(results), "damaged": bad}), nl=False
        )
    else:
        click.echo(f"{len(results)} steps, {len(bad)} damaged")
        for row in bad:
            click.echo(f"  {row['complaint']}")
    return IntegrityError.exit_status if bad else 0


@cache.command()
@click.option("--older-than", type=float, metavar="DAYS", help="Drop what was not used for so many days.")
@click.option("--max-size", metavar="SIZE", help="Drop what was used longest ago until this is left: 500M, 2G.")
@options.apply(options.COMMON)
@click.pass_context
def prune(ctx: click.Context, /, older_than: float | None, max_size: str | None, **_: Any) -> int:
    """Drop what has not been used for long, and what killed builds left."""
    store = options.store(ctx.params)
    entries = sorted(store.entries(), key=lambda e: e.used)
    doomed = [e for e in entries if older_than is not None and e.used < time.time() - 86400 * older_than]
    if max_size is not None:
        limit, kept = _bytes(max_size), sum(e.size for e in entries) - sum(e.size for e in doomed)
        for entry in entries:
            if kept > limit and entry not in doomed:
                doomed.append(entry)
                kept -= entry.size
    for entry in doomed:
        store.remove(entry.address)
    swept = store.sweep()
    _removed(ctx, len(doomed), sum(e.size for e in doomed), swept)
    return 0


@cache.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@options.apply(options.COMMON)
@click.pass_context
def clear(ctx: click.Context, /, yes: bool, **_: Any) -> int:
    """Drop everything."""
    store = options.store(ctx.params)
    entries = list(store.entries())
    if not yes:
        click.confirm(f"drop {len(entries)} steps from {store.cache}?", abort=True, err=True)
    _clear(store)
    _removed(ctx, len(entries), sum(e.size for e in entries), 0)
    return 0


def _clear(store: Store) -> None:
    for entry in list(store.verify()):
        store.remove(entry[0])
    store.sweep()
    with writing(store.cache):
        shutil.rmtree(store.cache / "logs", ignore_errors=True)


def _removed(ctx: click.Context, count: int, size: int, swept: int) -> None:
    if ctx.params["format"] == "json":
        click.echo(as_json({"schema_version": 1, "kind": "cache-removed", "steps": count, "bytes": size}), nl=False)
    else:
        click.echo(f"removed {count} steps, {size / 2**20:.1f} MiB, and {swept} remains of killed builds")


def _bytes(text: str) -> int:
    number, unit = (text[:-1], UNITS.get(text[-1:].lower())) if text[-1:].isalpha() else (text, 1)
    try:
        return int(float(number) * (unit or 0)) if unit else int("no unit")
    except ValueError:
        raise ConfigError(f"--max-size {text}: a size such as 500M or 2G was expected") from None
