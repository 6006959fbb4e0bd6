"""`anynpu serve` in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from running import Client


class Served:
    """A server that is ready: its process, what it printed, and a client."""

    def __init__(self, process: subprocess.Popen[str], record: dict[str, Any], errors: Path) -> None:
        self.process, self.record, self.errors = process, record, errors
        url = record.get("url", "")
        self.client = Client(int(url.rpartition(":")[2])) if url.startswith("http") else None

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(120)

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.errors.read_text().splitlines() if line.startswith("{")]


@contextmanager
def served(folder: Path, *arguments: str, ready: bool = True, **environment: str) -> Iterator[Served]:
    """Gives a server on a free port once it says that it is ready."""
    errors = folder / "stderr"
    placed = "PORT" in environment or "--socket" in arguments
    where = () if placed else ("--port", "0")
    with errors.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "anynpu", "serve", *arguments, *where, "-f", "json"],
            cwd=folder, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=stream, text=True,
        )  # fmt: skip
    try:
        line = process.stdout.readline() if ready else "{}"
        assert line.startswith("{"), errors.read_text()
        yield Served(process, json.loads(line), errors)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stdout.close()
