"""A vendor's repository that the user has cloned: a variable names the folder, its sources' digest is its version."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from anynpu.capsules.toolchain import Toolchain
from anynpu.errors import ToolMissing


@dataclass(frozen=True)
class Checkout:
    """A clone that is here."""

    path: Path
    version: str
    note: str
    """A note on a version that is not the one anynpu was written for; empty for that one."""


def find_checkout(chain: Toolchain) -> Checkout:
    """Returns the clone that the tool's variable names, or raises ToolMissing with the way to get one."""
    wanted = chain.checkout
    assert wanted is not None, f"{chain.name} needs no checkout"
    named = os.environ.get(wanted.variable, "")
    if not named:
        raise ToolMissing(f"{wanted.variable} names no checkout of {chain.title.split(',')[0]}", chain.get)
    path = Path(named).absolute()
    if not (path / wanted.holds).is_file():
        raise ToolMissing(f"{wanted.variable}={named}: there is no {wanted.holds} in it", chain.get)
    digest = sources_digest(path, wanted.sources)
    expected = digest == wanted.digest
    version = wanted.commit if expected else f"sha256:{digest[:12]}"
    return Checkout(path, version, "" if expected else f"written for {wanted.commit}, this is {version}")


def sources_digest(root: Path, patterns: tuple[str, ...]) -> str:
    """Returns the digest of the files that a clone runs."""
    total = hashlib.sha256()
    for path in sorted({path for pattern in patterns for path in root.glob(pattern) if path.is_file()}):
        total.update(f"{path.relative_to(root).as_posix()}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()
