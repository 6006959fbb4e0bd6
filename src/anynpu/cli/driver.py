"""anynpu driver: the kernel driver of an NPU, from a cloned tree to a loaded module and back."""

from __future__ import annotations

import getpass
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from anynpu.cli import flags
from anynpu.cli.command import Group
from anynpu.cli.table import print_table
from anynpu.drivers import plan as plans
from anynpu.drivers.plan import Step
from anynpu.drivers.root import Root
from anynpu.drivers.zhouyi import build as builds
from anynpu.drivers.zhouyi import dkms as dkms_
from anynpu.drivers.zhouyi import install as installs
from anynpu.drivers.zhouyi import kernel as kernels
from anynpu.drivers.zhouyi import signing, userspace
from anynpu.drivers.zhouyi import tree as trees
from anynpu.drivers.zhouyi import udev as udevs
from anynpu.drivers.zhouyi import verify as verifies
from anynpu.drivers.zhouyi.edits import LOST
from anynpu.errors import AnyNpuError, ConfigError
from anynpu.records.parts import as_json

TREE = click.argument("tree", type=click.Path(path_type=Path))
KERNEL = (
    click.option("--kdir", type=click.Path(path_type=Path), help="Kernel headers; the running kernel's if not said."),
    click.option("--arch", metavar="ARCH", default="", help="arm64: the headers are not for this machine's processor."),
    click.option("--cross", metavar="PREFIX", default="", help="Cross compiler's prefix: aarch64-linux-gnu-."),
    click.option("--cc", metavar="PROGRAM", default="", help="The compiler, where it is not the one the headers name."),
)
ROOT = (
    click.option("--root", type=click.Path(path_type=Path), default=Path("/"), help="Another machine's files, not /."),
)
RUN = (
    click.option("--yes", is_flag=True, help="Run the steps; without it they are only shown."),
    click.option(
        "--dry-run", is_flag=True, help="Show the steps and run nothing (this is what happens without --yes)."
    ),
)
SIGN = (
    click.option("--key", type=click.Path(path_type=Path), help="Your private key, to sign the module (Secure Boot)."),
    click.option("--cert", type=click.Path(path_type=Path), help="The certificate that belongs to --key."),
)
WHO = (
    click.option("--group", default=udevs.GROUP, show_default=True, help="The group that may use the NPU."),
    click.option("--user", default="", help="A user who joins the group."),
)
UMD = (click.option("--umd", type=click.Path(path_type=Path), help="Install this cix-noe-umd package file too."),)


@click.group(cls=Group)
def driver() -> None:
    """The kernel driver of an NPU. Every command is shown before it runs; nothing changes the system without --yes."""


@driver.group()
def zhouyi() -> None:
    """The Zhouyi Z3 NPU of CIX SKY1 (CD8180; Orange Pi 6 Plus), from the vendor's source that you have cloned.

    \b
    anynpu driver zhouyi plan driver          what there is to do, and every command
    anynpu driver zhouyi patch driver         make the source fit every kernel from 6.1 on; --revert undoes it
    anynpu driver zhouyi build driver -o out  build aipu.ko and check it
    anynpu driver zhouyi dkms driver --yes    build it again for every kernel that comes later
    """


@zhouyi.command()
@TREE
@flags.apply(KERNEL, WHO, UMD, ROOT, flags.COMMON)
@click.pass_context
def plan(ctx: click.Context, /, tree: Path, **given: Any) -> int:
    """Show the state of a tree and every step to a working NPU; run nothing.

    The last two, on the board: `modprobe` loads the module, `anynpu doctor` says whether the NPU is ready.

    \b
    anynpu driver zhouyi plan driver
    anynpu driver zhouyi plan driver --kdir linux-headers-6.12-arm64 --arch arm64 --cross aarch64-linux-gnu-
    """
    found, root = trees.recognise(tree), Root(given["root"])
    steps, trouble = _whole_plan(found, root, given)
    if given["format"] == "json":
        click.echo(
            as_json({**_record("plan", found), "steps": [s.record() for s in steps], "trouble": trouble}), nl=False
        )
        return 0
    _show_tree(found)
    _show(steps)
    for line in trouble:
        click.echo(f"not planned: {line}")
    return 0


def _whole_plan(found: trees.Tree, root: Root, given: dict[str, Any]) -> tuple[list[Step], list[str]]:
    """Returns the steps from the tree as it is to a working NPU, and why some cannot be planned here."""
    words, trouble = ("anynpu", "driver", "zhouyi"), []
    steps: list[Step] = []
    if found.kind in (trees.VENDOR, trees.PARTLY):
        steps.append(Step("make the source fit every kernel", (*words, "patch", str(found.folder))))
    elif found.kind == trees.BY_HAND:
        trouble.append("patched by hand, for some kernels only: restore the vendor's files, then patch")
    elif found.kind == trees.CHANGED:
        trouble += [f"{state.file}: {state.why}" for state in found.states if state.state == LOST]
    try:
        kernel = _kernel(given, root)
        argv = (*words, "build", str(found.folder), *_kernel_words(given), "-o", f"aipu-{kernel.release}")
        steps.append(Step(f"try it: build for kernel {kernel.release} and check the module", argv))
    except AnyNpuError as error:
        trouble.append(f"{error.message} ({error.hint})")
    if found.kind not in (trees.BY_HAND, trees.CHANGED):
        argv = (*words, "dkms", str(found.folder), *_kernel_words(given), "--yes")
        steps.append(Step("install it, for this kernel and those that come", argv, needs_root=True))
        steps += signing.dkms_steps(signing.secure_boot())
    steps += [*udevs.steps(root, given["group"], given["user"]), *userspace.steps(root, given["umd"])]
    if found.kind not in (trees.BY_HAND, trees.CHANGED):
        steps += [installs.load(), Step("see that the NPU is ready, or what keeps it from that", ("anynpu", "doctor"))]
    return steps, trouble


@zhouyi.command()
@TREE
@click.option("--revert", is_flag=True, help="Take our changes out again; every byte is as it was.")
@click.option("--dry-run", is_flag=True, help="Show the difference and write nothing.")
@flags.apply(flags.COMMON)
@click.pass_context
def patch(ctx: click.Context, /, tree: Path, revert: bool, dry_run: bool, **given: Any) -> int:
    """Make the source build on every kernel from 6.1 on.

    Seven small changes find their places by the names of functions and macros. They only insert lines, each with a
    marker, under conditions on the kernel's version. A tree that is patched already stays as it is.

    \b
    anynpu driver zhouyi patch driver --dry-run
    anynpu driver zhouyi patch driver
    anynpu driver zhouyi patch driver --revert
    """
    found = trees.recognise(tree)
    rewrites = trees.reverted(found) if revert else trees.patched(found)
    if not dry_run:
        trees.write(rewrites)
        found = trees.recognise(tree)
    if given["format"] == "json":
        files = [{"file": rewrite.name, "diff": rewrite.diff()} for rewrite in rewrites]
        click.echo(as_json({**_record("patch", found), "revert": revert, "dry_run": dry_run, "files": files}), nl=False)
        return 0
    if dry_run:
        click.echo("".join(rewrite.diff() for rewrite in rewrites), nl=False)
        return 0
    _show_tree(found)
    names = ", ".join(rewrite.name for rewrite in rewrites)
    click.echo(f"{'reverted' if revert else 'patched'}: {names}" if names else "nothing to do", err=True)
    return 0


@zhouyi.command()
@TREE
@flags.apply(KERNEL)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder for aipu.ko; aipu-RELEASE if not said.")
@click.option("--dry-run", is_flag=True, help="Show the command and run nothing.")
@flags.apply(flags.COMMON)
@click.pass_context
def build(ctx: click.Context, /, tree: Path, output: Path | None, dry_run: bool, **given: Any) -> int:
    """Build aipu.ko in a copy of the tree, and check what came out.

    \b
    anynpu driver zhouyi build driver
    anynpu driver zhouyi build driver --kdir headers --arch arm64 --cross aarch64-linux-gnu- -o out
    """
    found, kernel = trees.recognise(tree), _kernel(given, Root())
    out = output or Path(f"aipu-{kernel.release}")
    step = Step(f"build for kernel {kernel.release}, in a copy of the tree", kernel.make(Path("COPY"), "modules"))
    if dry_run:
        return _tell("build", [step], given, tree=found)
    if not given["quiet"]:
        click.echo(f"# {step.why}\n{step.command()}", err=True)
    made = builds.build(found, kernel, out)
    checks = verifies.checks(verifies.read(made.module), kernel.release)
    extra = {"module": str(made.module), "log": str(made.log), "seconds": round(made.seconds, 1)}
    return _judge("build", made.module, checks, {**extra, "warnings": made.warnings}, given)


@zhouyi.command()
@click.argument("tree", type=click.Path(path_type=Path), required=False)
@click.option("--kdir", type=click.Path(path_type=Path), help="Headers of the kernel that the module must fit.")
@flags.apply(ROOT, flags.COMMON)
@click.pass_context
def verify(ctx: click.Context, /, tree: Path | None, kdir: Path | None, root: Path, **given: Any) -> int:
    """Check a module without loading it: aipu.ko, a folder that holds it, or the installed one.

    \b
    anynpu driver zhouyi verify out/aipu.ko
    anynpu driver zhouyi verify
    """
    machine = Root(root)
    release = kernels.running() if machine.is_host and kernels.machine() in kernels.ARM64_MACHINES else ""
    if kdir is not None:
        release = kernels.find(kdir, cross="-").release
    if tree is not None:
        path = verifies.find(tree)
    else:
        installed = verifies.installed(machine, release)
        if not installed:
            raise ConfigError(f"no aipu.ko is installed below {root}", "`anynpu driver zhouyi dkms TREE` installs one")
        path = machine.real(installed[0])
    return _judge("verify", path, verifies.checks(verifies.read(path), release), {"module": str(path)}, given)


@zhouyi.command()
@TREE
@flags.apply(KERNEL, SIGN, UMD, ROOT, RUN, flags.COMMON)
@click.pass_context
def install(ctx: click.Context, /, tree: Path, **given: Any) -> int:
    """Install a built module for one kernel, and the vendor's library package.

    TREE is aipu.ko or the folder that `build` wrote. For kernels that come later, use `dkms` instead. A library
    package that its own script left half-configured is repaired.

    \b
    anynpu driver zhouyi install out
    sudo anynpu driver zhouyi install out --umd cix-noe-umd_2.0.2_arm64.deb --yes
    """
    root, module = Root(given["root"]), verifies.find(tree)
    kernel = _kernel(given, root)
    bad = [check for check in verifies.checks(verifies.read(module), kernel.release) if not check.ok]
    if bad:
        raise ConfigError(f"{module}: {bad[0].name}: {bad[0].found}", bad[0].hint)
    secure = signing.secure_boot()
    steps = installs.steps(module, kernel, root, key=given["key"], certificate=given["cert"], secure=secure)
    return _do("install", [*steps, *userspace.steps(root, given["umd"])], given)


@zhouyi.command()
@TREE
@flags.apply(KERNEL, ROOT, RUN, flags.COMMON)
@click.pass_context
def dkms(ctx: click.Context, /, tree: Path, **given: Any) -> int:
    """Give the patched source to DKMS, which builds it for this kernel and for every one that is installed later.

    \b
    anynpu driver zhouyi dkms driver
    sudo anynpu driver zhouyi dkms driver --yes
    """
    found, root = trees.recognise(tree), Root(given["root"])
    steps = dkms_.steps(found, _kernel(given, root), root) + signing.dkms_steps(signing.secure_boot())
    return _do("dkms", steps, given, found)


@zhouyi.command()
@click.argument("tree", type=click.Path(path_type=Path), required=False)
@flags.apply(WHO, ROOT, RUN, flags.COMMON)
@click.pass_context
def udev(ctx: click.Context, /, tree: Path | None, **given: Any) -> int:
    """Let one group use the NPU: the driver opens /dev/aipu to every local user.

    \b
    anynpu driver zhouyi udev
    sudo anynpu driver zhouyi udev --group render --user alice --yes
    """
    return _do("udev", udevs.steps(Root(given["root"]), given["group"], given["user"]), given)


@zhouyi.command()
@click.argument("tree", type=click.Path(path_type=Path), required=False)
@flags.apply(ROOT, RUN, flags.COMMON)
@click.pass_context
def remove(ctx: click.Context, /, tree: Path | None, **given: Any) -> int:
    """Undo install, dkms and udev, and, where TREE is named, patch.

    \b
    anynpu driver zhouyi remove
    sudo anynpu driver zhouyi remove driver --yes
    """
    found = trees.recognise(tree) if tree else None
    rewrites = trees.reverted(found) if found else []
    steps = installs.remove_steps(Root(given["root"]))
    if found and rewrites:
        argv = ("anynpu", "driver", "zhouyi", "patch", str(found.folder), "--revert")
        return _do("remove", steps, given, found, Step("our changes in the tree", argv), lambda: trees.write(rewrites))
    return _do("remove", steps, given, found)


def _kernel(given: dict[str, Any], root: Root) -> kernels.Kernel:
    return kernels.find(given["kdir"], arch=given["arch"], cross=given["cross"], compiler=given["cc"], root=root)


def _kernel_words(given: dict[str, Any]) -> tuple[str, ...]:
    named = [(f"--{name}", given[name]) for name in ("kdir", "arch", "cross", "cc")]
    return tuple(str(word) for flag, value in named if value for word in (flag, value))


def _runs(given: dict[str, Any]) -> bool:
    if given["yes"] and given["dry_run"]:
        raise ConfigError("--yes and --dry-run contradict each other")
    return bool(given["yes"])


def _do(
    verb: str,
    steps: Sequence[Step],
    given: dict[str, Any],
    tree: trees.Tree | None = None,
    last: Step | None = None,
    do_last: Callable[[], None] = lambda: None,
) -> int:
    """Shows the steps, and runs them where the user said --yes; the last one may be done in this process."""
    every = [*steps, last] if last else list(steps)
    if not _runs(given):
        status = _tell(verb, every, given, tree=tree)
        if every and not given["quiet"]:
            click.echo("nothing was run; --yes runs these steps", err=True)
        return status
    handle, name = tempfile.mkstemp(prefix=f"anynpu-driver-{verb}-", suffix=".log")
    os.close(handle)
    again = f"look at them first, then: sudo anynpu driver zhouyi {verb} ... --yes (you are {getpass.getuser()})"
    plans.run(steps, log=Path(name), tell=_told(given["quiet"]), again=again)
    if last:
        _told(given["quiet"])(len(every), last)
        do_last()
    if given["format"] == "json":
        click.echo(as_json({**_record(verb, tree), "dry_run": False, "steps": [s.record() for s in every]}), nl=False)
    else:
        click.echo(f"{sum(not step.by_hand for step in every)} steps done; log: {name}")
    return 0


def _told(quiet: bool) -> plans.Tell:
    def tell(number: int, step: Step) -> None:
        if step.by_hand:
            click.echo(f"{number}. by hand: {step.why}", err=True)
        elif not quiet:
            click.echo(f"{number}. {step.why}\n   {'# ' if step.needs_root else '$ '}{step.command()}", err=True)

    return tell


def _tell(verb: str, steps: Sequence[Step], given: dict[str, Any], tree: trees.Tree | None = None) -> int:
    if given["format"] == "json":
        click.echo(as_json({**_record(verb, tree), "dry_run": True, "steps": [s.record() for s in steps]}), nl=False)
    else:
        _show(steps)
    return 0


def _show(steps: Sequence[Step]) -> None:
    """Prints every step: `$` before what any user runs, `#` before what needs root."""
    for number, step in enumerate(steps, 1):
        if step.by_hand:
            click.echo(f"{number}. by hand: {step.why}")
            continue
        click.echo(f"{number}. {step.why}\n   {'# ' if step.needs_root else '$ '}{step.command()}")
        for line in step.content.splitlines():
            click.echo(f"   | {line}")
    if not steps:
        click.echo("nothing to do")


def _record(verb: str, tree: trees.Tree | None) -> dict[str, Any]:
    record: dict[str, Any] = {"schema_version": 1, "kind": "driver", "driver": "zhouyi", "verb": verb}
    if tree is not None:
        record |= {"tree": str(tree.folder), "version": tree.version, "tree_kind": tree.kind}
        record["changes"] = [vars(state) for state in tree.states]
    return record


def _show_tree(tree: trees.Tree) -> None:
    click.echo(f"{tree.folder}: driver {tree.version}, {tree.kind}")
    print_table([{"change": s.name, "file": s.file, "state": s.state, "why": s.why or s.sentence} for s in tree.states])


def _judge(
    verb: str, path: Path, checks: Sequence[verifies.Check], extra: dict[str, Any], given: dict[str, Any]
) -> int:
    """Prints the checks of a module and returns 1 where one fails."""
    ok = all(check.ok for check in checks)
    if given["format"] == "json":
        record = {**_record(verb, None), "ok": ok, **extra, "checks": [vars(check) for check in checks]}
        click.echo(as_json(record), nl=False)
    else:
        print_table([{"check": c.name, "ok": "yes" if c.ok else "NO", "found": c.found} for c in checks])
        for check in checks:
            if not check.ok:
                click.echo(f"{check.name}: {check.hint}")
        told = f" in {extra['seconds']} s, {extra['warnings']} warnings" if "seconds" in extra else ""
        click.echo(f"{path}{told}: {'good' if ok else 'do not load it'}")
    return 0 if ok else 1
