"""How a refusal must look, whatever was wrong."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from small_net import left_behind, write_net

Refuse = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def net(tmp_path: Path) -> Path:
    """A small ONNX file in the test's folder."""
    return write_net(tmp_path / "net.onnx")


@pytest.fixture
def refuse(tmp_path: Path, cli: Callable) -> Refuse:
    """Calls anynpu and fails unless it refuses with a status, in one sentence with these words, and leaves nothing."""

    def call(status: int, words: str, *arguments: str, hint: str = "") -> subprocess.CompletedProcess[str]:
        before = left_behind(tmp_path)
        done = cli(*arguments)
        assert done.returncode == status, done.stdout + done.stderr
        assert "Traceback" not in done.stderr and "internal error" not in done.stderr
        told = [line for line in done.stderr.splitlines() if line.startswith("anynpu: ")]
        assert len(told) == 1, done.stderr
        assert words in told[0], told[0]
        hints = [line for line in done.stderr.splitlines() if line.startswith("hint: ")]
        assert len(hints) <= 1 and hint in "".join(hints), done.stderr
        assert left_behind(tmp_path) == before
        return done

    return call
