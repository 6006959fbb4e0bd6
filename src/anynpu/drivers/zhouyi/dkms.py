"""DKMS: the module is built again for every kernel that is installed later."""

from __future__ import annotations

from pathlib import Path

from anynpu.drivers.plan import Step
from anynpu.drivers.root import Root
from anynpu.drivers.zhouyi.kernel import ARCH, Kernel
from anynpu.drivers.zhouyi.tree import PATCHED, Tree
from anynpu.errors import ConfigError

NAME = "aipu"
DKMS_TREE, SOURCE_TREE, INSTALL_TREE = "/var/lib/dkms", "/usr/src", "/lib/modules"
DKMS_ARCH = "aarch64"


def conf(version: str, cross: str = "", compiler: str = "") -> str:
    """Returns dkms.conf; without AUTOINSTALL a new kernel would silently come without the module."""
    extra = f" ARCH={ARCH} CROSS_COMPILE={cross}" if cross else ""
    extra += f" CC={compiler}" if compiler else ""
    # The machine's own strip does not know the other processor's files.
    strip = 'STRIP[0]="no"\n' if cross else ""
    make = f"make -C ${{kernel_source_dir}} M=${{dkms_tree}}/{NAME}/{version}/build{extra}"
    return (
        f'PACKAGE_NAME="{NAME}"\n'
        f'PACKAGE_VERSION="{version}"\n'
        f'BUILT_MODULE_NAME[0]="{NAME}"\n'
        'DEST_MODULE_LOCATION[0]="/updates/dkms"\n'
        f'MAKE[0]="{make} modules"\n'
        f'CLEAN="{make} clean"\n'
        f'{strip}AUTOINSTALL="yes"\n'
    )


def source_folder(root: Root, version: str) -> Path:
    """Returns where DKMS expects the source."""
    return root.real(f"{SOURCE_TREE}/{NAME}-{version}")


def trees(root: Root) -> tuple[str, ...]:
    """Returns the flags that keep DKMS inside another root."""
    if root.is_host:
        return ()
    pairs = (("--dkmstree", DKMS_TREE), ("--sourcetree", SOURCE_TREE), ("--installtree", INSTALL_TREE))
    return tuple(word for flag, path in pairs for word in (flag, str(root.real(path))))


def target(kernel: Kernel) -> tuple[str, ...]:
    """Returns the flags that say for which kernel DKMS builds."""
    flags = ("-k", kernel.release)
    return (*flags, "-a", DKMS_ARCH, "--kernelsourcedir", str(kernel.folder)) if kernel.cross else flags


def steps(tree: Tree, kernel: Kernel, root: Root) -> list[Step]:
    """Returns what gives DKMS the patched source and makes it build and install the module for a kernel."""
    if tree.kind != PATCHED:
        raise ConfigError(
            f"{tree.folder}: {tree.kind}: DKMS would build it for kernels that it does not fit",
            f"anynpu driver zhouyi patch {tree.folder}",
        )
    admin, source, flags = root.is_host, source_folder(root, tree.version), trees(root)
    package = f"{NAME}/{tree.version}"
    plan = forget(root, tree.version)
    text = conf(tree.version, kernel.cross, kernel.compiler)
    return [
        *plan,
        Step("a folder for the source, where DKMS looks for it", ("mkdir", "-p", str(source)), needs_root=admin),
        Step("the patched source", ("cp", "-r", f"{tree.folder}/.", str(source)), needs_root=admin),
        Step("its dkms.conf, with AUTOINSTALL", write=source / "dkms.conf", content=text, needs_root=admin),
        Step("tell DKMS of it", ("dkms", "add", package, *flags), needs_root=admin),
        Step("build the module", ("dkms", "build", package, *target(kernel), *flags), needs_root=admin),
        Step("install the module", ("dkms", "install", package, *target(kernel), *flags), needs_root=admin),
    ]


def forget(root: Root, version: str) -> list[Step]:
    """Returns what makes DKMS forget a version, and takes its source away; nothing where there is none."""
    admin, plan = root.is_host, []
    if root.exists(f"{DKMS_TREE}/{NAME}/{version}"):
        argv = ("dkms", "remove", f"{NAME}/{version}", "--all", *trees(root))
        plan.append(Step("the module that DKMS has built, for every kernel", argv, needs_root=admin))
    if root.exists(f"{SOURCE_TREE}/{NAME}-{version}"):
        argv = ("rm", "-rf", "--", str(source_folder(root, version)))
        plan.append(Step("the source that DKMS has", argv, needs_root=admin))
    return plan


def versions(root: Root) -> tuple[str, ...]:
    """Returns every version of the driver that DKMS knows or has the source of."""
    registered = {name for name in root.names(f"{DKMS_TREE}/{NAME}") if not name.startswith("kernel-")}
    sources = {name.removeprefix(f"{NAME}-") for name in root.names(SOURCE_TREE) if name.startswith(f"{NAME}-")}
    return tuple(sorted(registered | sources))
