"""anynpu tool: vendors' toolchains, and the compilers and runtimes that are here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from anynpu import plugins
from anynpu.capsules import capsule as capsules
from anynpu.capsules import install as installing
from anynpu.capsules import toolchain
from anynpu.capsules.checkout import find_checkout
from anynpu.capsules.verify import PROBE_S
from anynpu.capsules.verify import verify as verify_capsule
from anynpu.cli import flags
from anynpu.cli.command import Group
from anynpu.cli.table import print_table
from anynpu.errors import IntegrityError, ToolFailed, ToolMissing
from anynpu.records.parts import as_json


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


NAME = click.argument("name", metavar="NAME")


@tool.command()
@NAME
@click.option("--accept-licence", is_flag=True, help="Accept the vendor's licence; it is asked for once.")
@click.option(
    "--timeout", type=click.FloatRange(1), default=installing.LIMIT_S, show_default=True, help="Seconds for all of it."
)
@flags.apply(flags.COMMON)
@click.pass_context
def install(ctx: click.Context, /, name: str, accept_licence: bool, timeout: float, **_: Any) -> int:
    """Install a vendor's toolchain into an environment of its own under the cache folder.

    NAME is one of `anynpu tool list`, or a file.toml of your own in the same form. A variable such as CIXBUILD_PATH
    (`anynpu tool show NAME` names it) makes anynpu use your own installation instead.

    \b
    Examples:
      anynpu tool install cvi --accept-licence
      anynpu tool install ./mine.toml --timeout 600
    """
    chain = toolchain.read_toolchain(name)
    cache = flags.store(ctx.params).cache

    def tell(line: str) -> None:
        if not ctx.params["quiet"]:
            click.echo(f"{chain.name}: {line}", err=True)

    if chain.wanted and capsules.read_receipt(capsules.place(chain, cache)) is None:
        tell(f"{chain.title}; about {chain.megabytes} MB and {chain.minutes:g} minutes")
        tell(f"licence: {chain.licence}")
        accept_licence = accept_licence or _asked(chain, cache)
    made = installing.install(name, cache=cache, accept_licence=accept_licence, timeout_s=timeout, report=tell)
    _print(ctx, {"kind": "tool-installed", "name": made.name, "version": made.version, "root": str(made.root)})
    return 0


def _asked(chain: toolchain.Toolchain, cache: Path) -> bool:
    """Asks for the licence where somebody can answer."""
    if installing.accepted(chain, cache) or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    return click.confirm("do you accept this licence?", err=True)


def _print(ctx: click.Context, record: dict[str, Any]) -> None:
    if ctx.params["format"] == "json":
        click.echo(as_json({"schema_version": 1, **record}), nl=False)
    else:
        width = max(map(len, record))
        for key, value in record.items():
            if key != "kind":
                click.echo(f"{key:<{width}}  {', '.join(value) if isinstance(value, list) else value}")


@tool.command()
@NAME
@flags.apply(flags.COMMON)
@click.pass_context
def show(ctx: click.Context, /, name: str, **_: Any) -> int:
    """Show what a toolchain needs, how it is come by, and whether it is here."""
    chain = toolchain.read_toolchain(name)
    cache = flags.store(ctx.params).cache
    row = _toolchain(name, cache)
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
    _print(ctx, record)
    return 0


@tool.command()
@NAME
@click.option(
    "--timeout", type=click.FloatRange(1), default=PROBE_S, show_default=True, help="Seconds for the probe command."
)
@flags.apply(flags.COMMON)
@click.pass_context
def verify(ctx: click.Context, /, name: str, timeout: float, **_: Any) -> int:
    """Hash every installed file again and run the probe command; exit status 8 if something is wrong."""
    found = verify_capsule(name, flags.store(ctx.params).cache, timeout)
    if ctx.params["format"] == "json":
        record = {"schema_version": 1, "kind": "tool-verify", **vars(found), "complaints": list(found.complaints)}
        click.echo(as_json(record), nl=False)
    else:
        verdict = f"{len(found.complaints)} complaints" if found.complaints else "sound"
        click.echo(f"{found.name} {found.version}: {found.files} files, {verdict} ({found.seconds:.1f} s)")
        for line in found.complaints:
            click.echo(f"  {line}")
    return IntegrityError.exit_status if found.complaints else 0


@tool.command()
@NAME
@flags.apply(flags.COMMON)
@click.pass_context
def remove(ctx: click.Context, /, name: str, **_: Any) -> int:
    """Remove a toolchain that anynpu has installed; your own stays."""
    count = installing.remove(name, flags.store(ctx.params).cache)
    _print(ctx, {"kind": "tool-removed", "name": name, "removed": count})
    return 0


def _row(kind: str, name: str, state: str, detail: str) -> dict[str, str]:
    return {"kind": kind, "name": name, "state": state, "detail": detail}


def _compiler(name: str) -> dict[str, str]:
    try:
        target = plugins.load("targets", name)()
        detail = ", ".join(f"{k} {v}" for k, v in target.tools().items()) or "nothing needed"
        return _row("compiler", name, "ready", detail)
    except ToolMissing as missing:
        return _row("compiler", name, "missing", f"{missing.message}: {missing.hint}")
    except ToolFailed as broken:
        return _row("compiler", name, "broken", broken.message)


def _runtime(name: str) -> dict[str, str]:
    try:
        session = plugins.load("sessions", name)
    except ToolFailed as broken:
        return _row("runtime", name, "broken", broken.message)
    reason = session.missing()
    return _row("runtime", name, "missing" if reason else "ready", reason or session.what)


def _toolchain(name: str, cache: Path) -> dict[str, str]:
    try:
        found, chain = capsules.find(name, cache), toolchain.read_toolchain(name)
        clone = find_checkout(chain) if chain.checkout else None
    except ToolMissing as missing:
        return _row("toolchain", name, "missing", f"{missing.message}: {missing.hint}")
    with_clone = f", {clone.version} in {clone.path}" if clone else ""
    return _row("toolchain", name, "ready", f"{found.version} in {found.root}{with_clone}")


@tool.command("list")
@flags.apply(flags.COMMON)
@click.pass_context
def list_(ctx: click.Context, /, **_: Any) -> int:
    """List toolchains, compilers and runtimes, their versions, and what is missing."""
    cache = flags.store(ctx.params).cache
    rows = [
        *(_toolchain(name, cache) for name in toolchain.names()),
        *(_compiler(name) for name in plugins.names("targets")),
        *(_runtime(name) for name in plugins.names("sessions")),
    ]
    if ctx.params["format"] == "json":
        click.echo(as_json({"schema_version": 1, "kind": "tools", "tools": rows}), nl=False)
    else:
        print_table(rows)
    return 0
