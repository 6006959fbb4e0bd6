#!/usr/bin/env python
"""Writes data/toolchains/NAME.lock for the vendors' tools: each package that pip would install, with its digests.

    python scripts/lock_toolchains.py            all of them; `make lock` does this too
    python scripts/lock_toolchains.py qnn cvi    some

Needs uv and the Python that the tool wants. PyTorch is locked in its build without CUDA, which its own index has.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

from anynpu.capsules.install import TORCH_WITHOUT_CUDA
from anynpu.capsules.python import find_python
from anynpu.capsules.toolchain import Toolchain, names, read_toolchain

FOLDER = Path(__file__).parent.parent / "src/anynpu/data/toolchains"
ONLY_CUDA = ("nvidia-", "cuda-", "triton")
HEAD = """\
# Every package of the capsule {name}, for Python {python} on {machine} Linux, with the digests of its archives.
# Written by scripts/lock_toolchains.py.
"""


def resolved(python: Path, wanted: Sequence[str], *flags: str) -> list[dict]:
    """Returns the packages that the wishes come to, with their archives."""
    with tempfile.TemporaryDirectory() as scratch:
        wishes, lock = Path(scratch, "wishes.in"), Path(scratch, "pylock.toml")
        wishes.write_text("\n".join(wanted))
        argv = ["uv", "pip", "compile", "--quiet", "--format", "pylock.toml", "--python", str(python), *flags]
        subprocess.run([*argv, str(wishes), "--output-file", str(lock)], check=True)
        return tomllib.loads(lock.read_text())["packages"]


def digests(package: dict, python: str, machine: str) -> Iterable[str]:
    """Returns the digests of the wheels for that Python and machine; of the source where there is none."""
    tag, found = f"cp{python.replace('.', '')}", []
    for wheel in package.get("wheels", ()):
        _, interpreter, abi, platform = wheel["url"].rpartition("/")[2].removesuffix(".whl").rsplit("-", 3)
        fits = platform == "any" or (machine in platform and "linux" in platform and "musl" not in platform)
        if fits and ("py3" in interpreter or tag in interpreter or abi == "abi3"):
            found.append(wheel["hashes"]["sha256"])
    return found or [package["sdist"]["hashes"]["sha256"]]


def torch_line(python: Path, version: str) -> str:
    """Returns the line of PyTorch's build without CUDA."""
    argv = [str(python), "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps"]
    argv += ["--report", "-", "--extra-index-url", TORCH_WITHOUT_CUDA, f"torch=={version}+cpu"]
    report = json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
    digest = report["install"][0]["download_info"]["archive_info"]["hashes"]["sha256"]
    return f"torch=={version}+cpu --hash=sha256:{digest}"


def lock_text(chain: Toolchain) -> str:
    """Returns the lock file of a tool."""
    python = find_python(chain.python, chain.name).path
    packages = resolved(python, chain.packages)
    if chain.alone:
        packages += resolved(python, chain.alone, "--no-deps")
    lines = [HEAD.format(name=chain.name, python=chain.python, machine=chain.machine).rstrip("\n")]
    for package in sorted(packages, key=lambda package: package["name"]):
        name, version = package["name"], package["version"]
        if name == "torch":
            lines.append(torch_line(python, version.partition("+")[0]))
        elif not name.startswith(ONLY_CUDA):
            found = digests(package, chain.python, chain.machine)
            lines.append(" ".join([f"{name}=={version}", *(f"--hash=sha256:{digest}" for digest in found)]))
    return "\n".join(lines) + "\n"


def main() -> None:
    for name in sys.argv[1:] or names():
        facts = FOLDER / f"{name}.toml"
        chain = read_toolchain(str(facts))
        if chain.wanted:
            (FOLDER / f"{name}.lock").write_text(lock_text(chain), "utf-8")
            print(f"{name}.lock: {chain.title}")


if __name__ == "__main__":
    main()
