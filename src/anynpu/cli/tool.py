"""anynpu tool: vendors' toolchains, and the compilers and runtimes that are here."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from anynpu import plugins
from anynpu.capsules import capsule as capsules
from anynpu.capsules import install as installing
from anynpu.capsules import toolchain
from anynpu.capsules.checkout import find_checkout
from anynpu.capsules.verify import PROBE_S
from anynpu.capsules.verify import verify as verify_capsule
from anynpu.cli.command import Group
from anynpu.cli.table import print_json, print_record, print_table
from anynpu.cli.verb import Common, argument, flag, verb
from anynpu.errors import IntegrityError, ToolFailed, ToolMissing


@click.group(cls=Group)
def tool() -> None:
    """The compilers and runtimes that anynpu drives, and the vendors' toolchains in environments of their own.

    \b
    Examples:
      anynpu tool list
      anynpu tool show cvi
      anynpu tool install cvi --accept-licence
      anynpu tool verify cvi
      anynpu tool remove cvi
    """


@dataclass(frozen=True, kw_only=True)
class Named(Common):
    """A toolchain by its name."""

    name: str = argument(metavar="NAME")


@dataclass(frozen=True, kw_only=True)
class Install(Named):
    """A toolchain to install."""

    accept_licence: bool = flag("Accept the vendor's licence; it is asked for once.", False)
    timeout: float = flag("Maximum seconds for the whole installation.", installing.LIMIT_S, minimum=1, shown=True)


@verb(Install, group=tool)
def install(asked: Install) -> int:
    """Install a vendor's toolchain into an environment of its own under the cache folder.

    NAME is one of `anynpu tool list`, or a file.toml of your own in the same form. A variable such as CIXBUILD_PATH
    (`anynpu tool show NAME` names it) makes anynpu use your own installation instead.

    \b
    Examples:
      anynpu tool install cvi --accept-licence
      anynpu tool install ./mine.toml --timeout 600
    """
    chain = toolchain.read_toolchain(asked.name)
    cache, accepted = asked.store().cache, asked.accept_licence

    def tell(line: str) -> None:
        if not asked.quiet:
            click.echo(f"{chain.name}: {line}", err=True)

    if chain.wanted and capsules.read_receipt(capsules.place(chain, cache)) is None:
        tell(f"{chain.title}; about {chain.megabytes} MB and {chain.minutes:g} minutes")
        tell(f"licence: {chain.licence}")
        somebody_answers = sys.stdin.isatty() and sys.stderr.isatty()
        if not accepted and not installing.accepted(chain, cache) and somebody_answers:
            accepted = click.confirm("do you accept this licence?", err=True)
    capsule = installing.install(asked.name, cache=cache, accept_licence=accepted, timeout_s=asked.timeout, report=tell)
    details = {"name": capsule.name, "version": capsule.version, "root": str(capsule.root)}
    _print(asked, {"kind": "tool-installed", **details})
    return 0


def _print(asked: Common, record: Mapping[str, object]) -> None:
    if asked.json:
        print_record({"schema_version": 1, **record})
    else:
        width = max(map(len, record))
        for key, value in record.items():
            if key != "kind":
                click.echo(f"{key:<{width}}  {', '.join(value) if isinstance(value, list) else value}")


@verb(Named, group=tool)
def show(asked: Named) -> int:
    """Show what a toolchain needs, how it is come by, and whether it is here."""
    chain = toolchain.read_toolchain(asked.name)
    cache = asked.store().cache
    row = _toolchain(asked.name, cache)
    record = {
        "kind": "tool",
        "name": chain.name,
        "title": chain.title,
        "state": row["state"],
        "detail": row["detail"],
        "python": chain.python,
        "machine": chain.machine,
        "packages": list(chain.wanted),
        "moved aside": list(chain.aside),
        "written": list(chain.stubs),
        "megabytes": chain.megabytes,
        "variable": chain.variable,
        "licence": chain.licence,
        "accepted": "yes" if installing.accepted(chain, cache) else "no",
        "get": chain.get,
        "source": chain.source,
    }
    _print(asked, record)
    return 0


@dataclass(frozen=True, kw_only=True)
class Verify(Named):
    """A toolchain to examine."""

    timeout: float = flag("Seconds for the probe command.", PROBE_S, minimum=1, shown=True)


@verb(Verify, group=tool)
def verify(asked: Verify) -> int:
    """Hash every installed file again and run the probe command; exit status 8 if something is wrong."""
    report = verify_capsule(asked.name, asked.store().cache, asked.timeout)
    if asked.json:
        print_json("tool-verify", {**vars(report), "complaints": list(report.complaints)})
    else:
        verdict = f"{len(report.complaints)} complaints" if report.complaints else "sound"
        click.echo(f"{report.name} {report.version}: {report.files} files, {verdict} ({report.seconds:.1f} s)")
        for line in report.complaints:
            click.echo(f"  {line}")
    return IntegrityError.exit_status if report.complaints else 0


@verb(Named, group=tool)
def remove(asked: Named) -> int:
    """Remove a toolchain that anynpu has installed; your own stays."""
    count = installing.remove(asked.name, asked.store().cache)
    _print(asked, {"kind": "tool-removed", "name": asked.name, "removed": count})
    return 0


def _row(kind: str, name: str, state: str, detail: str) -> dict[str, str]:
    return {"kind": kind, "name": name, "state": state, "detail": detail}


def _toolchain(name: str, cache: Path) -> dict[str, str]:
    try:
        capsule, chain = capsules.find(name, cache), toolchain.read_toolchain(name)
        clone = find_checkout(chain) if chain.checkout else None
    except ToolMissing as missing:
        return _row("toolchain", name, "missing", f"{missing.message}: {missing.hint}")
    with_clone = f", {clone.version} in {clone.path}" if clone else ""
    return _row("toolchain", name, "ready", f"{capsule.version} in {capsule.root}{with_clone}")


@verb(Common, group=tool)
def list_(asked: Common) -> int:
    """List toolchains, compilers and runtimes, their versions, and what is missing."""
    cache = asked.store().cache
    rows = [_toolchain(name, cache) for name in toolchain.names()]
    for name in plugins.names("targets"):
        try:
            tools = plugins.load("targets", name)().tools()
            state, detail = "ready", ", ".join(f"{k} {v}" for k, v in tools.items()) or "nothing needed"
        except ToolMissing as missing:
            state, detail = "missing", f"{missing.message}: {missing.hint}"
        except ToolFailed as broken:
            state, detail = "broken", broken.message
        rows.append(_row("compiler", name, state, detail))
    for name in plugins.names("sessions"):
        try:
            session = plugins.load("sessions", name)
            reason = session.missing()
            state, detail = "missing" if reason else "ready", reason or session.what
        except ToolFailed as broken:
            state, detail = "broken", broken.message
        rows.append(_row("runtime", name, state, detail))
    if asked.json:
        print_json("tools", {"tools": rows})
    else:
        print_table(rows)
    return 0
