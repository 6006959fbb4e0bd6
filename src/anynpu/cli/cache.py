"""anynpu cache: what is kept."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import click

from anynpu.cli.command import Group
from anynpu.cli.table import print_json, print_table
from anynpu.cli.verb import Common, flag, verb
from anynpu.errors import ConfigError, IntegrityError
from anynpu.files import forget_hashes
from anynpu.runtime.vitisai_cache import CompileCache, Compiled
from anynpu.store import Entry

UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
SIZE = re.compile(r"(\d{1,15}(?:\.\d+)?)([kmg]?)")


@click.group(cls=Group)
def cache() -> None:
    """The store of built steps. Every step of a build is kept under the digest of its inputs, options and tools.

    Next to it lies what a runtime compiled for the NPU of this machine when a model was first opened there.
    """


@verb(Common, group=cache)
def dir_(asked: Common) -> int:
    """Print the cache folder."""
    folder = str(asked.store().cache)
    if asked.json:
        print_json("cache-dir", {"path": folder})
    else:
        click.echo(folder)
    return 0


@verb(Common, group=cache)
def ls(asked: Common) -> int:
    """List what is kept."""
    store = asked.store()
    entries, compiled = list(store.entries()), list(CompileCache(store.cache).entries())
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
    if asked.json:
        print_json("cache", {"entries": rows, "compiled": _compiled_rows(compiled)})
        return 0
    print_table(rows)
    print_table(_compiled_rows(compiled), title="compiled for the NPU of this machine")
    more = f"; {len(compiled)} compiled for an NPU, {_mib(compiled)}" if compiled else ""
    click.echo(f"{len(rows)} steps, {_mib(entries)}{more}", err=True)
    return 0


def _size(entries: Sequence[Entry] | Sequence[Compiled]) -> int:
    return sum(entry.size for entry in entries)


def _mib(entries: Sequence[Entry] | Sequence[Compiled]) -> str:
    return f"{_size(entries) / 2**20:.1f} MiB"


def _compiled_rows(compiled: Sequence[Compiled]) -> list[dict[str, str]]:
    return [
        {
            "key": c.key[:12],
            "chip": c.chip or "not finished",
            "model": str(c.about.get("model", ""))[:12],
            "KiB": f"{c.size / 1024:.1f}",
            "used": time.strftime("%Y-%m-%d %H:%M", time.localtime(c.used)),
        }
        for c in compiled
    ]


@verb(Common, group=cache)
def verify(asked: Common) -> int:
    """Hash every file again; exit status 8 if one has changed."""
    results = list(asked.store().verify())
    bad = [{"address": address, "complaint": complaint} for address, complaint in results if complaint]
    if asked.json:
        print_json("cache-verify", {"steps": len(results), "damaged": bad})
    else:
        click.echo(f"{len(results)} steps, {len(bad)} damaged")
        for row in bad:
            click.echo(f"  {row['complaint']}")
    return IntegrityError.exit_status if bad else 0


@dataclass(frozen=True, kw_only=True)
class Prune(Common):
    """What `cache prune` drops."""

    older_than: float | None = flag("Drop what has not been used for this many days.", None, minimum=0, metavar="DAYS")
    max_size: str | None = flag("Drop what was used longest ago until this is left: 500M, 2G.", None, metavar="SIZE")


@verb(Prune, group=cache)
def prune(asked: Prune) -> int:
    """Drop what has not been used for long, and what killed builds left."""
    older_than, max_size, store = asked.older_than, asked.max_size, asked.store()
    if older_than is not None and not math.isfinite(older_than):
        raise ConfigError(f"--older-than {older_than}: a number of days was expected")
    entries = sorted(store.entries(), key=lambda e: e.used)
    doomed = [e for e in entries if older_than is not None and e.used < time.time() - 86400 * older_than]
    if max_size is not None:
        size = SIZE.fullmatch(max_size.strip().lower())
        if size is None:
            raise ConfigError(f"--max-size {max_size}: a size such as 500M or 2G was expected")
        limit, kept = int(float(size[1]) * UNITS[size[2]]), _size(entries) - _size(doomed)
        for entry in entries:
            if kept > limit and entry not in doomed:
                doomed.append(entry)
                kept -= entry.size
    removed = [entry for entry in doomed if store.remove(entry.address)]
    npu = CompileCache(store.cache)
    old = [c for c in npu.entries() if older_than is not None and c.used < time.time() - 86400 * older_than]
    for compiled in old:
        npu.remove(compiled.key)
    trainings, trained = (0, 0) if older_than is None else store.drop_trainings(time.time() - 86400 * older_than)
    swept = store.sweep() + trainings
    forget_hashes(store.cache)
    _removed(asked, len(removed), _size(removed) + _size(old) + trained, swept, len(old), len(doomed) - len(removed))
    return 0


@dataclass(frozen=True, kw_only=True)
class Clear(Common):
    """What `cache clear` drops."""

    yes: bool = flag("Do not ask.", False)
    npu: bool = flag("Only what was compiled for the NPU of this machine.", False)


@verb(Clear, group=cache)
def clear(asked: Clear) -> int:
    """Drop everything, or only what was compiled for the NPU of this machine."""
    store, yes, npu = asked.store(), asked.yes, asked.npu
    entries, cached = [] if npu else list(store.entries()), CompileCache(store.cache)
    compiled = list(cached.entries())
    models = f"{len(compiled)} compiled models"
    what = models if npu else f"{len(entries)} steps" + (f" and {models}" if compiled else "")
    if not yes and not sys.stdin.isatty():
        raise ConfigError(f"drop {what} from {store.cache}? nobody can answer here", "give --yes")
    if not yes:
        click.confirm(f"drop {what} from {store.cache}?", abort=True, err=True)
    kept = 0 if npu else store.clear()
    cached.clear()
    here = set(store.addresses())
    gone = [entry for entry in entries if entry.address not in here]
    _removed(asked, len(gone), _size(gone) + _size(compiled), 0, len(compiled), kept)
    return 0


def _removed(asked: Common, count: int, size: int, swept: int, compiled: int, in_use: int) -> None:
    if asked.json:
        print_json("cache-removed", {"steps": count, "compiled": compiled, "bytes": size, "in_use": in_use})
        return
    if in_use:
        click.echo(f"{in_use} steps are in use by a build that runs now; they stay", err=True)
    more = f", {compiled} compiled for an NPU" if compiled else ""
    click.echo(f"removed {count} steps{more}, {size / 2**20:.1f} MiB, and {swept} remains of killed builds")
