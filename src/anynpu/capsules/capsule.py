"""An installed tool in its environment, ours or the user's own.

    <cache>/capsules/NAME-0123456789ab/               a virtual environment; the digits are those of its recipe
    <cache>/capsules/NAME-0123456789ab/files.json     every file's digest
    <cache>/capsules/NAME-0123456789ab/capsule.json   written last: what was installed, and the digest of files.json
    <cache>/capsules/licences/NAME.json               the licence that the user has accepted
    <cache>/logs/capsule-NAME.log                     what pip and the probe printed

An environment knows its own path and cannot be moved: it is made where it stays, and counts from the moment that
capsule.json is there. The next install clears away what a killed one left.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from anynpu import schema, tool
from anynpu.capsules.toolchain import Installed, Toolchain, installed, read_toolchain
from anynpu.capsules.toolchain import find as find_own
from anynpu.errors import AnyNpuError, ToolMissing
from anynpu.files import default_cache_dir, usual_cache_dir

RECEIPT, FILES = "capsule.json", "files.json"


@dataclass(frozen=True)
class Receipt:
    """What an install has put there."""

    name: str
    recipe: str
    python: str
    made: str
    seconds: float
    bytes: int
    packages: Mapping[str, str]
    files: str
    schema_version: int = 1
    kind: str = "capsule"


@dataclass(frozen=True)
class Capsule:
    """A tool that is here: the root of its environment, its Python where it has one, and how to call it."""

    name: str
    root: Path
    python: Path | None
    installed: Installed

    @property
    def version(self) -> str:
        return self.installed.version

    def environment(self) -> dict[str, str]:
        """Returns the variables that it runs with; its own programs come first on the PATH."""
        path = os.pathsep.join([str(self.installed.program.parent), os.environ.get("PATH", os.defpath)])
        return {**self.installed.environment(), "PATH": path, "PYTHONNOUSERSITE": "1"}

    def run(
        self, argv: Sequence[str], *, cwd: Path, log: Path, timeout_s: float = 600, called: str = ""
    ) -> tool.Completed:
        """Runs one of its programs; a failure raises ToolFailed with the hint that its words deserve."""
        own = self.installed.program.parent / argv[0]
        line = [str(own) if own.is_file() else argv[0], *argv[1:]]
        return self.installed.run(
            line, cwd=cwd, log=log, timeout_s=timeout_s, environment=self.environment(), called=called
        )


def find(name: str, cache: Path | None = None) -> Capsule:
    """Returns the tool, the user's own where its variable names one, or raises ToolMissing with the way to get it.

    One that is not in the chosen cache folder is taken from the usual one.
    """
    chain = read_toolchain(name)
    if os.environ.get(chain.variable) or not chain.wanted:
        return capsule_of(find_own(name))
    for folder in (cache, usual_cache_dir()):
        if read_receipt(root := place(chain, folder)) is not None:
            return at(chain, root)
    raise ToolMissing(f"{chain.name} is not installed", f"anynpu tool install {name}")


def at(chain: Toolchain, root: Path) -> Capsule:
    """Returns the capsule in a folder, finished or not."""
    return capsule_of(installed(chain, root / "bin" / chain.program))


def capsule_of(own: Installed) -> Capsule:
    """Returns an installed tool as a capsule."""
    folder = own.program.parent
    root = folder.parent if folder.name == "bin" else folder
    python = root / "bin" / "python"
    return Capsule(own.toolchain.name, root, python if python.exists() else None, own)


def home(cache: Path | None) -> Path:
    """Returns the folder of all capsules."""
    return (cache or default_cache_dir()) / "capsules"


def place(chain: Toolchain, cache: Path | None) -> Path:
    """Returns where the capsule of these facts stands or will stand."""
    return home(cache) / f"{chain.name}-{chain.recipe[:12]}"


def log_of(chain: Toolchain, cache: Path | None) -> Path:
    """Returns the log of its installs and probes."""
    return (cache or default_cache_dir()) / "logs" / f"capsule-{chain.name}.log"


def read_receipt(root: Path) -> Receipt | None:
    """Returns what was installed there; None for what is absent, unfinished or damaged."""
    try:
        return schema.from_dict(Receipt, schema.read_json(root / RECEIPT), str(root / RECEIPT))
    except AnyNpuError:
        return None
