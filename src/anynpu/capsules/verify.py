"""Does a capsule still hold what was installed, and does it work? Every file's digest, and the probe command."""

from __future__ import annotations

import os
import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from anynpu import schema
from anynpu.artifact import hash_file
from anynpu.capsules.capsule import FILES, RECEIPT, Capsule, Receipt, find, log_of, read_receipt
from anynpu.capsules.python import ask
from anynpu.errors import IntegrityError, ToolFailed

PROBE_S = 300


@dataclass(frozen=True)
class Verified:
    """What is wrong with a capsule (nothing, if it is sound), and how much was looked at."""

    name: str
    version: str
    files: int
    seconds: float
    complaints: tuple[str, ...]


def verify(name: str, cache: Path | None = None, timeout_s: float = PROBE_S) -> Verified:
    """Hashes every file that was installed and runs the probe; of the user's own tool, the probe alone."""
    started = time.monotonic()
    capsule = find(name, cache)
    root, receipt, complaints = capsule.root, read_receipt(capsule.root), list[str]()
    files = listed(root, receipt) if receipt else {}
    for file, digest in files.items():
        path = root / file
        if not path.exists() and not path.is_symlink():
            complaints.append(f"{file}: missing")
        elif _digest(path) != digest:
            complaints.append(f"{file}: changed since it was installed")
    if receipt:
        present, python = packages_of(root), ask(root / "bin" / "python")
        for package, version in receipt.packages.items():
            if present.get(package) != version:
                complaints.append(f"{package} {version}: {present.get(package, 'nothing')} is there instead")
        if python is None or python.version != receipt.python:
            state = f"is {python.version}" if python else "does not run any more"
            complaints.append(f"its Python was {receipt.python} and {state}")
    log = log_of(capsule.installed.toolchain, cache)
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        probe(capsule, log, timeout_s)
    except ToolFailed as failure:
        complaints.append(f"{failure.message} (log: {log})")
    return Verified(capsule.name, capsule.version, len(files), time.monotonic() - started, tuple(complaints))


def probe(capsule: Capsule, log: Path, timeout_s: float) -> None:
    """Runs the command that shows that the tool works, or raises ToolFailed."""
    chain = capsule.installed.toolchain
    if not chain.probe:
        return
    with tempfile.TemporaryDirectory(prefix="anynpu-probe-") as scratch:
        done = capsule.run(chain.probe, cwd=Path(scratch), log=log, timeout_s=timeout_s)
    if not re.search(chain.expects, done.output):
        message = f"{chain.probe[0]} ended well but did not say what it should ({chain.expects})"
        raise chain.failed(message, log, done.argv, said=done.output)


def inventory(root: Path) -> tuple[dict[str, str], int]:
    """Returns the digest of every file below a folder, compiled ones too, since those are what runs; and their size."""
    digests, size = {}, 0
    for folder, inner, files in os.walk(root):
        links = [name for name in inner if (Path(folder) / name).is_symlink()]
        inner[:] = sorted(set(inner) - set(links))
        for name in sorted(files + links):
            path = Path(folder) / name
            if Path(folder) != root or name not in (RECEIPT, FILES):
                digests[str(path.relative_to(root))] = _digest(path)
                size += path.lstat().st_size
    return digests, size


def _digest(path: Path) -> str:
    return f"link:{path.readlink()}" if path.is_symlink() else hash_file(path)


def listed(root: Path, receipt: Receipt) -> dict[str, str]:
    """Returns the digest that every file had when it was installed."""
    path = root / FILES
    if not path.is_file() or hash_file(path) != receipt.files:
        raise IntegrityError(f"{path}: missing or changed", f"anynpu tool remove {receipt.name}, then install it again")
    files: dict[str, str] = schema.read_json(path)
    return files


def packages_of(root: Path) -> dict[str, str]:
    """Returns the packages in an environment and their versions, as pip noted them down."""
    versions = {}
    for entry in sorted(root.glob("lib/python3.*/site-packages/*.dist-info")):
        name, _, version = entry.name.removesuffix(".dist-info").rpartition("-")
        versions[name.lower().replace("_", "-")] = version
    return versions
