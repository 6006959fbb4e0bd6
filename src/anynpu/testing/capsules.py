"""Fake vendor environments for tests: a folder with programs and Python packages, as an environment variable names it.

    root = write_environment(tmp_path / "rknn", {"rknn/api.py": FAKE}, {"rknn-toolkit2": "2.5.0"})
    monkeypatch.setenv("RKNN_TOOLKIT2_PATH", str(root))

`bin/python` is this Python with the fake packages before its own, so the real worker script runs and talks to them.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"


def write_environment(
    root: Path, packages: Mapping[str, str], versions: Mapping[str, str], programs: Mapping[str, str] | None = None
) -> Path:
    """Writes an environment and returns its folder: packages by file below site-packages, programs by name in `bin`.

    `versions` are the packages that pip would list. A program is the text of a Python script.
    """
    site = root / "lib" / PYTHON / "site-packages"
    for name, text in packages.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name, version in versions.items():
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (root / "bin").mkdir(parents=True, exist_ok=True)
    own = os.pathsep.join(filter(None, [str(site), *sys.path]))
    line = f'PYTHONPATH={shlex.quote(own)} exec {shlex.quote(sys.executable)} "$@"'
    _program(root / "bin" / "python", f"#!/bin/sh\n{line}\n")
    for name, text in (programs or {}).items():
        _program(root / "bin" / name, f"#!{root / 'bin' / 'python'}\n{text}")
    return root


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
