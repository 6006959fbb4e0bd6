"""anynpu driver: the kernel driver of an NPU, from a cloned tree to a loaded module and back."""

from __future__ import annotations

import getpass
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from anynpu.cli.command import Group
from anynpu.cli.driver_flags import BuildModule, Dkms, Install, Patch, Plan, Remove, RunFlags, Udev, Verify
from anynpu.cli.table import print_record, print_table
from anynpu.cli.verb import Common, verb
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


@verb(Plan, group=zhouyi)
def plan(asked: Plan) -> int:
    """Show the state of a tree and every step to a working NPU; run nothing.

    The last two, on the board: `modprobe` loads the module, `anynpu doctor` says whether the NPU is ready.

    \b
    anynpu driver zhouyi plan driver
    anynpu driver zhouyi plan driver --kdir linux-headers-6.12-arm64 --arch arm64 --cross aarch64-linux-gnu-
    """
    tree, root = trees.recognise(asked.tree), Root(asked.root)
    words, trouble = ("anynpu", "driver", "zhouyi"), []
    steps: list[Step] = []
    if tree.kind in (trees.VENDOR, trees.PARTLY):
        steps.append(Step("make the source fit every kernel", (*words, "patch", str(tree.folder))))
    elif tree.kind == trees.BY_HAND:
        trouble.append("patched by hand, for some kernels only: restore the vendor's files, then patch")
    elif tree.kind == trees.CHANGED:
        trouble += [f"{state.file}: {state.why}" for state in tree.states if state.state == LOST]
    try:
        kernel = asked.kernel(root)
        argv = (*words, "build", str(tree.folder), *asked.words(), "-o", f"aipu-{kernel.release}")
        steps.append(Step(f"try it: build for kernel {kernel.release} and check the module", argv))
    except AnyNpuError as error:
        trouble.append(f"{error.message} ({error.hint})")
    if tree.kind not in (trees.BY_HAND, trees.CHANGED):
        argv = (*words, "dkms", str(tree.folder), *asked.words(), "--yes")
        steps.append(Step("install it, for this kernel and those that come", argv, needs_root=True))
        steps += signing.dkms_steps(signing.secure_boot())
    steps += [*udevs.steps(root, asked.group, asked.user), *userspace.steps(root, asked.umd)]
    if tree.kind not in (trees.BY_HAND, trees.CHANGED):
        steps += [installs.load(), Step("see that the NPU is ready, or what keeps it from that", ("anynpu", "doctor"))]
    if asked.json:
        print_record({**_record("plan", tree), "steps": [s.record() for s in steps], "trouble": trouble})
        return 0
    _show_tree(tree)
    _show(steps)
    for line in trouble:
        click.echo(f"not planned: {line}")
    return 0


@verb(Patch, group=zhouyi)
def patch(asked: Patch) -> int:
    """Make the source build on every kernel from 6.1 on.

    Seven small changes find their places by the names of functions and macros. They only insert lines, each with a
    marker, under conditions on the kernel's version. A tree that is patched already stays as it is.

    \b
    anynpu driver zhouyi patch driver --dry-run
    anynpu driver zhouyi patch driver
    anynpu driver zhouyi patch driver --revert
    """
    tree = trees.recognise(asked.tree)
    rewrites = trees.reverted(tree) if asked.revert else trees.patched(tree)
    if not asked.dry_run:
        trees.write(rewrites)
        tree = trees.recognise(asked.tree)
    if asked.json:
        files = [{"file": rewrite.name, "diff": rewrite.diff()} for rewrite in rewrites]
        print_record({**_record("patch", tree), "revert": asked.revert, "dry_run": asked.dry_run, "files": files})
        return 0
    if asked.dry_run:
        click.echo("".join(rewrite.diff() for rewrite in rewrites), nl=False)
        return 0
    _show_tree(tree)
    names = ", ".join(rewrite.name for rewrite in rewrites)
    click.echo(f"{'reverted' if asked.revert else 'patched'}: {names}" if names else "nothing to do", err=True)
    return 0


@verb(BuildModule, group=zhouyi)
def build(asked: BuildModule) -> int:
    """Build aipu.ko in a copy of the tree, and check what came out.

    \b
    anynpu driver zhouyi build driver
    anynpu driver zhouyi build driver --kdir headers --arch arm64 --cross aarch64-linux-gnu- -o out
    """
    tree, kernel = trees.recognise(asked.tree), asked.kernel(Root())
    out = asked.output or Path(f"aipu-{kernel.release}")
    step = Step(f"build for kernel {kernel.release}, in a copy of the tree", kernel.make(Path("COPY"), "modules"))
    if asked.dry_run:
        return _tell("build", [step], asked, tree=tree)
    if not asked.quiet:
        click.echo(f"# {step.why}\n{step.command()}", err=True)
    built = builds.build(tree, kernel, out)
    checks = verifies.checks(verifies.read(built.module), kernel.release)
    extra = {"module": str(built.module), "log": str(built.log), "seconds": round(built.seconds, 1)}
    return _judge("build", built.module, checks, {**extra, "warnings": built.warnings}, asked)


@verb(Verify, group=zhouyi)
def verify(asked: Verify) -> int:
    """Check a module without loading it: aipu.ko, a folder that holds it, or the installed one.

    \b
    anynpu driver zhouyi verify out/aipu.ko
    anynpu driver zhouyi verify
    """
    machine = Root(asked.root)
    release = kernels.running() if machine.is_host and kernels.machine() in kernels.ARM64_MACHINES else ""
    if asked.kdir is not None:
        release = kernels.find(asked.kdir, cross="-").release
    if asked.tree is not None:
        path = verifies.find(asked.tree)
    else:
        installed = verifies.installed(machine, release)
        if not installed:
            raise ConfigError(
                f"no aipu.ko is installed below {asked.root}", "`anynpu driver zhouyi dkms TREE` installs one"
            )
        path = machine.real(installed[0])
    return _judge("verify", path, verifies.checks(verifies.read(path), release), {"module": str(path)}, asked)


@verb(Install, group=zhouyi)
def install(asked: Install) -> int:
    """Install a built module for one kernel, and the vendor's library package.

    TREE is aipu.ko or the folder that `build` wrote. For kernels that come later, use `dkms` instead. A library
    package that its own script left half-configured is repaired.

    \b
    anynpu driver zhouyi install out
    sudo anynpu driver zhouyi install out --umd cix-noe-umd_2.0.2_arm64.deb --yes
    """
    root, module = Root(asked.root), verifies.find(asked.tree)
    kernel = asked.kernel(root)
    bad = [check for check in verifies.checks(verifies.read(module), kernel.release) if not check.ok]
    if bad:
        raise ConfigError(f"{module}: {bad[0].name}: {bad[0].found}", bad[0].hint)
    secure = signing.secure_boot()
    steps = installs.steps(module, kernel, root, key=asked.key, certificate=asked.cert, secure=secure)
    return _do("install", [*steps, *userspace.steps(root, asked.umd)], asked)


@verb(Dkms, group=zhouyi)
def dkms(asked: Dkms) -> int:
    """Give the patched source to DKMS, which builds it for this kernel and for every one that is installed later.

    \b
    anynpu driver zhouyi dkms driver
    sudo anynpu driver zhouyi dkms driver --yes
    """
    tree, root = trees.recognise(asked.tree), Root(asked.root)
    steps = dkms_.steps(tree, asked.kernel(root), root) + signing.dkms_steps(signing.secure_boot())
    return _do("dkms", steps, asked, tree)


@verb(Udev, group=zhouyi)
def udev(asked: Udev) -> int:
    """Let one group use the NPU: the driver opens /dev/aipu to every local user.

    \b
    anynpu driver zhouyi udev
    sudo anynpu driver zhouyi udev --group render --user alice --yes
    """
    return _do("udev", udevs.steps(Root(asked.root), asked.group, asked.user), asked)


@verb(Remove, group=zhouyi)
def remove(asked: Remove) -> int:
    """Undo install, dkms and udev, and, where TREE is named, patch.

    \b
    anynpu driver zhouyi remove
    sudo anynpu driver zhouyi remove driver --yes
    """
    tree = trees.recognise(asked.tree) if asked.tree else None
    rewrites = trees.reverted(tree) if tree else []
    steps = installs.remove_steps(Root(asked.root))
    if tree and rewrites:
        argv = ("anynpu", "driver", "zhouyi", "patch", str(tree.folder), "--revert")
        return _do("remove", steps, asked, tree, Step("our changes in the tree", argv), lambda: trees.write(rewrites))
    return _do("remove", steps, asked, tree)


def _do(
    verb: str,
    steps: Sequence[Step],
    asked: RunFlags,
    tree: trees.Tree | None = None,
    last: Step | None = None,
    do_last: Callable[[], None] = lambda: None,
) -> int:
    """Shows the steps, and runs them where the user said --yes; the last one may be done in this process."""
    every = [*steps, last] if last else list(steps)
    if not asked.runs():
        status = _tell(verb, every, asked, tree=tree)
        if every and not asked.quiet:
            click.echo("nothing was run; --yes runs these steps", err=True)
        return status
    handle, name = tempfile.mkstemp(prefix=f"anynpu-driver-{verb}-", suffix=".log")
    os.close(handle)
    again = f"look at them first, then: sudo anynpu driver zhouyi {verb} ... --yes (you are {getpass.getuser()})"
    plans.run(steps, log=Path(name), tell=_told(asked.quiet), again=again)
    if last:
        _told(asked.quiet)(len(every), last)
        do_last()
    if asked.json:
        print_record({**_record(verb, tree), "dry_run": False, "steps": [s.record() for s in every]})
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


def _tell(verb: str, steps: Sequence[Step], asked: Common, tree: trees.Tree | None = None) -> int:
    if asked.json:
        print_record({**_record(verb, tree), "dry_run": True, "steps": [s.record() for s in steps]})
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


def _record(verb: str, tree: trees.Tree | None) -> dict[str, object]:
    record: dict[str, object] = {"schema_version": 1, "kind": "driver", "driver": "zhouyi", "verb": verb}
    if tree is not None:
        record |= {"tree": str(tree.folder), "version": tree.version, "tree_kind": tree.kind}
        record["changes"] = [vars(state) for state in tree.states]
    return record


def _show_tree(tree: trees.Tree) -> None:
    click.echo(f"{tree.folder}: driver {tree.version}, {tree.kind}")
    print_table([{"change": s.name, "file": s.file, "state": s.state, "why": s.why or s.sentence} for s in tree.states])


def _judge(verb: str, path: Path, checks: Sequence[verifies.Check], extra: dict[str, object], asked: Common) -> int:
    """Prints the checks of a module and returns 1 where one fails."""
    ok = all(check.ok for check in checks)
    if asked.json:
        print_record({**_record(verb, None), "ok": ok, **extra, "checks": [vars(check) for check in checks]})
    else:
        print_table([{"check": c.name, "ok": "yes" if c.ok else "NO", "found": c.found} for c in checks])
        for check in checks:
            if not check.ok:
                click.echo(f"{check.name}: {check.hint}")
        effort = f" in {extra['seconds']} s, {extra['warnings']} warnings" if "seconds" in extra else ""
        click.echo(f"{path}{effort}: {'good' if ok else 'do not load it'}")
    return 0 if ok else 1
