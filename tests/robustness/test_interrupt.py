"""Ctrl-C and SIGTERM during a build: exit status 130, no traceback, no output, no children, a sound store."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from small_net import left_behind, write_net

GENERATOR = """
import time
from pathlib import Path
def slow():
    Path("here").write_text("")
    time.sleep(60)
    yield
"""
MODULE = """
import time
from pathlib import Path
Path("here").write_text("")
time.sleep(60)
"""


def interrupt(folder: Path, cache: Path, number: int, *arguments: str) -> tuple[int, str]:
    """Starts a build, sends the signal once it has left the file `here`, and returns how it ended."""
    argv = [sys.executable, "-m", "anynpu", "build", *arguments, "-o", "out", "--cache-dir", str(cache)]
    process = subprocess.Popen(argv, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (folder / "here").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    assert (folder / "here").exists(), process.communicate(timeout=5)[1]
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    return process.returncode, told


def check(folder: Path, cache: Path, cli: Callable, ended: tuple[int, str]) -> None:
    status, told = ended
    assert status == 130, told
    assert "anynpu: interrupted" in told and "Traceback" not in told
    assert not [name for name in left_behind(folder) if name.startswith((".", "out"))]
    assert not list((cache / "scratch").glob("*"))
    assert cli("cache", "verify", "--cache-dir", str(cache)).returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_in_the_command_itself(tmp_path: Path, cli: Callable, number: int) -> None:
    write_net(tmp_path / "net.onnx")
    (tmp_path / "data.py").write_text(GENERATOR)
    flags = ("-m", "net.onnx", "-t", "cpu", "--data", "data.py:slow")
    check(tmp_path, tmp_path / "cache", cli, interrupt(tmp_path, tmp_path / "cache", number, *flags))


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc to look at processes")
def test_interrupted_while_a_child_works(tmp_path: Path, cli: Callable, nothing_runs: Callable[[Path], None]) -> None:
    pytest.importorskip("torch")
    (tmp_path / "net.py").write_text(MODULE)
    flags = ("-m", "net.py:Net", "--shape", "x=1,3", "-t", "null")
    ended = interrupt(tmp_path, tmp_path / "cache", signal.SIGINT, *flags)
    nothing_runs(tmp_path / "cache")
    check(tmp_path, tmp_path / "cache", cli, ended)
