"""The Python that a tool wants: found through pyenv, uv and the PATH, and asked for its version."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from anynpu import tool
from anynpu.errors import ToolFailed, ToolMissing

ASK = "import sys, venv, ensurepip; print('%d.%d.%d' % sys.version_info[:3]); print(sys.executable)"
PATIENCE_S = 20


@dataclass(frozen=True)
class Python:
    """An interpreter that can make environments."""

    path: Path
    version: str


def find_python(version: str, purpose: str) -> Python:
    """Returns a Python of that version ("3.10"), or raises ToolMissing with the ways to get one."""
    for candidate in _candidates(version):
        python = ask(candidate)
        if python and python.version.rpartition(".")[0] == version:
            return python
    raise ToolMissing(
        f"{purpose} needs Python {version}, and there is none in pyenv, uv or the PATH",
        f"`pyenv install {version}` or `uv python install {version}` brings it; then install {purpose} again",
    )


def ask(program: Path) -> Python | None:
    """Returns what an interpreter says about itself; None if it does not run or cannot make environments."""
    with tempfile.TemporaryDirectory(prefix="anynpu-python-") as scratch:
        folder = Path(scratch)
        try:
            done = tool.run([str(program), "-I", "-c", ASK], cwd=folder, log=folder / "log", timeout_s=PATIENCE_S)
        except (ToolFailed, ToolMissing, OSError):
            return None
    lines = done.output.splitlines()
    return Python(Path(lines[1]), lines[0]) if len(lines) == 2 else None


def _candidates(version: str) -> Iterator[Path]:
    name = f"python{version}"
    if ".".join(map(str, sys.version_info[:2])) == version:
        yield Path(sys.executable)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    uv = Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv" / "python")
    for folder in (*_newest(pyenv, f"{version}.*"), *_newest(uv, f"cpython-{version}.*")):
        yield folder / "bin" / name
    if program := shutil.which(name):
        yield Path(program)


def _newest(folder: Path, pattern: str) -> list[Path]:
    def patch(path: Path) -> int:
        digits = path.name.removeprefix("cpython-").split(".")[2].partition("-")[0]
        return int(digits) if digits.isdigit() else -1

    return sorted((p for p in folder.glob(pattern) if len(p.name.split(".")) > 2), key=patch, reverse=True)
