"""A process inside a capsule that answers requests: our script, the vendor's Python and packages.

    with Worker(find("rknn"), "rknn_worker", scratch=folder, log=log) as worker:
        result, arrays = worker.ask("build", {"model": str(path)}, timeout_s=600)

The script is `capsules/workers/NAME.py`; `serve.py` next to it says what goes over the pipes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from anynpu import tool
from anynpu.capsules.capsule import Capsule
from anynpu.capsules.workers.serve import Head, receive, send
from anynpu.errors import ToolFailed, Unsupported
from anynpu.tensors import Array

SERVE = Path(__file__).parent / "workers" / "serve.py"
Progress = Callable[[int, int], None]


class Worker:
    """One process that keeps what it has loaded between requests; one thread at a time may ask."""

    def __init__(self, capsule: Capsule, module: str, *, scratch: Path, log: Path) -> None:
        self._capsule, self._module, self._log = capsule, module, log
        self._argv = capsule.installed.line([str(capsule.python or "python3"), str(SERVE), module])
        self._said = log.stat().st_size if log.exists() else 0
        self._process = tool.converse(self._argv, cwd=scratch, log=log, environment=capsule.environment())

    def ask(
        self,
        function: str,
        arguments: Mapping[str, object] | None = None,
        arrays: Mapping[str, Array] | None = None,
        *,
        timeout_s: float = 600,
        progress: Progress | None = None,
    ) -> tuple[Any, dict[str, Array]]:
        """Returns what a function of the script returns, and its arrays; after any failure the worker has ended."""
        expired = threading.Event()

        def strike() -> None:
            expired.set()
            tool.end(self._process)

        timer = threading.Timer(timeout_s, strike)
        timer.daemon = True
        timer.start()
        try:
            head, outputs = self._converse(function, arguments or {}, arrays or {}, progress)
        except (OSError, ValueError, EOFError) as error:
            status = tool.end(self._process)
            why = f"did not finish within {timeout_s:g} s" if expired.is_set() else f"ended in its midst ({error})"
            raise self._failed(f"{function} {why}", status) from None
        finally:
            timer.cancel()
        if "error" in head:
            self.close()
            if head["kind"] == "Unsupported":
                raise Unsupported(head["error"])
            raise self._failed(f"{function}: {head['error']}", None)
        return head["result"], outputs

    def _converse(
        self, function: str, arguments: Mapping[str, object], arrays: Mapping[str, Array], progress: Progress | None
    ) -> tuple[Head, dict[str, Array]]:
        requests, answers = self._process.stdin, self._process.stdout
        if requests is None or answers is None or requests.closed:
            raise EOFError("it was closed")
        try:
            send(requests, {"function": function, "arguments": dict(arguments)}, arrays)
        except BrokenPipeError:
            raise EOFError(self._ending()) from None
        while (frame := receive(answers)) is not None:
            if "progress" not in frame[0]:
                return frame
            if progress is not None:
                done, total = frame[0]["progress"]
                progress(done, total)
        raise EOFError(self._ending())

    def _ending(self) -> str:
        """Returns how the process has ended, once it has."""
        with suppress(Exception):
            self._process.wait(5)
        status = self._process.returncode
        return "without an answer" if status is None else tool.status_name(status)

    def _failed(self, message: str, status: int | None) -> ToolFailed:
        text = self._log.read_bytes()[self._said :].decode("utf-8", "replace")
        chain = self._capsule.installed.toolchain
        return chain.failed(f"{self._capsule.name}: {message}", self._log, self._argv, status, text)

    def close(self) -> None:
        """Ends the process."""
        tool.end(self._process)
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # what was still to be written has nobody to read it
                if stream is not None:
                    stream.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def call(
    capsule: Capsule,
    module: str,
    function: str,
    arguments: Mapping[str, object],
    *,
    scratch: Path,
    log: Path,
    timeout_s: float = 600,
    progress: Progress | None = None,
) -> Any:
    """Returns what one request to a script in the capsule returns."""
    with Worker(capsule, module, scratch=scratch, log=log) as worker:
        result, _ = worker.ask(function, arguments, timeout_s=timeout_s, progress=progress)
    return result
