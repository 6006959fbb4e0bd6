"""A real collector in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

TOKEN = "token-of-the-tests"


class Collector:
    """`anynpu watch detect` on a free port."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder, self.flags, self.port = folder, flags, 0
        self.token_file = folder / "token"
        self.token_file.write_text(TOKEN)
        self.store = folder / "watch.db"
        self.start()

    def start(self) -> None:
        argv = [sys.executable, "-m", "anynpu", "watch", "detect", "--port", str(self.port), "--store", str(self.store)]
        argv += ["--token-file", str(self.token_file), *self.flags]
        self.log = (self.folder / "collector.log").open("ab")
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=self.log, env=dict(os.environ))
        line = self.process.stdout.readline().decode()
        assert line.startswith("ready: "), line + (self.folder / "collector.log").read_text()
        self.url = line.split()[1]
        self.port = int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()
        self.log.close()

    def stop(self) -> int:
        self.process.terminate()
        status = self.process.wait(120)
        self.process.stdout.close()
        self.log.close()
        return status

    def call(self, path: str, body: Any = None, token: str = TOKEN, raw: bytes | None = None) -> tuple[int, Any]:
        """Returns status and answer of a request."""
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json", **({"authorization": f"Bearer {token}"} if token else {})}
        request = urllib.request.Request(self.url + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                status, content = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, content = error.code, error.read()
        try:
            return status, json.loads(content)
        except ValueError:
            return status, content.decode()

    def until(self, condition, seconds: float = 120) -> Any:
        """Waits for something to be true, and returns it."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := condition():
                return found
            time.sleep(0.1)
        raise AssertionError("it did not happen: " + (self.folder / "collector.log").read_text()[-2000:])


def batch(host: str = "web1", ids: tuple[str, ...] = ("a-1",), **more: Any) -> dict[str, Any]:
    """Returns a batch as an agent sends it."""
    now = time.time()
    samples = [
        {"id": id, "boot": "boot1", "time": now, "uptime": 100.0, "metrics": {"cpu_percent": 3.5, "load1": 0.4}}
        for id in ids
    ]
    return {"version": 1, "host": host, "boot": "boot1", "time": now, "uptime": 100.0, "samples": samples, **more}
