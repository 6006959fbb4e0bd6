"""The flags of `anynpu driver zhouyi`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from anynpu.cli.verb import Common, argument, flag
from anynpu.drivers.root import Root
from anynpu.drivers.zhouyi import kernel as kernels
from anynpu.drivers.zhouyi import udev as udevs
from anynpu.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class TreeFlags(Common):
    """The vendor's source, or what was built of it."""

    tree: Path = argument()


@dataclass(frozen=True, kw_only=True)
class OptionalTree(Common):
    """The same, where nothing may be named."""

    tree: Path | None = argument(None)


@dataclass(frozen=True, kw_only=True)
class KernelFlags(Common):
    """The kernel that a module is for, and its compiler."""

    kdir: Path | None = flag("Kernel headers; the running kernel's by default.", None)
    arch: str = flag("arm64: the headers are not for this machine's processor.", "", metavar="ARCH")
    cross: str = flag("Cross compiler's prefix: aarch64-linux-gnu-.", "", metavar="PREFIX")
    cc: str = flag("The compiler, where it is not the one the headers name.", "", metavar="PROGRAM")

    def kernel(self, root: Root) -> kernels.Kernel:
        """Returns the kernel that the flags name."""
        return kernels.find(self.kdir, arch=self.arch, cross=self.cross, compiler=self.cc, root=root)

    def words(self) -> tuple[str, ...]:
        """Returns the flags of the kernel as they would be typed again."""
        named = (("--kdir", self.kdir), ("--arch", self.arch), ("--cross", self.cross), ("--cc", self.cc))
        return tuple(str(word) for name, value in named if value for word in (name, value))


@dataclass(frozen=True, kw_only=True)
class RootFlags:
    """The machine that is changed, by its files."""

    root: Path = flag("Another machine's files, not /.", Path("/"))


@dataclass(frozen=True, kw_only=True)
class RunFlags(RootFlags, Common):
    """Whether the steps are run, or only shown."""

    yes: bool = flag("Run the steps; without it they are only shown.", False)
    dry_run: bool = flag("Show the steps and run nothing (this is what happens without --yes).", False)

    def runs(self) -> bool:
        if self.yes and self.dry_run:
            raise ConfigError("--yes and --dry-run contradict each other")
        return self.yes


@dataclass(frozen=True, kw_only=True)
class WhoFlags:
    """Who may use the NPU."""

    group: str = flag("The group that may use the NPU.", udevs.GROUP, shown=True)
    user: str = flag("A user who joins the group.", "")


@dataclass(frozen=True, kw_only=True)
class PackageFlags:
    """The vendor's library."""

    umd: Path | None = flag("Install this cix-noe-umd package file too.", None)


@dataclass(frozen=True, kw_only=True)
class Plan(TreeFlags, KernelFlags, WhoFlags, PackageFlags, RootFlags):
    """Everything on the way to a working NPU."""


@dataclass(frozen=True, kw_only=True)
class Patch(TreeFlags):
    """What becomes of the source."""

    revert: bool = flag("Take our changes out again; every byte is as it was.", False)
    dry_run: bool = flag("Show the difference and write nothing.", False)


@dataclass(frozen=True, kw_only=True)
class BuildModule(TreeFlags, KernelFlags):
    """Where the module goes."""

    output: Path | None = flag("Folder for aipu.ko; aipu-RELEASE by default.", None, "-o")
    dry_run: bool = flag("Show the command and run nothing.", False)


@dataclass(frozen=True, kw_only=True)
class Verify(OptionalTree, RootFlags):
    """A module, and the kernel that it must fit."""

    kdir: Path | None = flag("Headers of the kernel that the module must fit.", None)


@dataclass(frozen=True, kw_only=True)
class Install(TreeFlags, KernelFlags, PackageFlags, RunFlags):
    """A module to install, signed or not."""

    key: Path | None = flag("Your private key, to sign the module (Secure Boot).", None)
    cert: Path | None = flag("The certificate that belongs to --key.", None)


@dataclass(frozen=True, kw_only=True)
class Dkms(TreeFlags, KernelFlags, RunFlags):
    """A source for DKMS."""


@dataclass(frozen=True, kw_only=True)
class Udev(OptionalTree, WhoFlags, RunFlags):
    """Who may use the NPU."""


@dataclass(frozen=True, kw_only=True)
class Remove(OptionalTree, RunFlags):
    """What is undone."""
