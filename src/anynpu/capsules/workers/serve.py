"""Answers requests inside a vendor's environment: `python serve.py MODULE` calls the functions of MODULE next to it.

A frame is a line of JSON with "arrays", a list of [name, type, shape], and then the bytes of those arrays. Requests
come on stdin: {"function", "arguments"}. Answers go to what was stdout: {"progress": [done, total]}, {"result"} or
{"error", "kind"}. Whatever the vendor's code prints goes to stderr, which is the log. Python 3.10 must run this file.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, TypedDict

import numpy as np


class Unsupported(Exception):
    """The tool cannot take this model; the message says why."""


class Head(TypedDict, total=False):
    """What a frame says besides its arrays: a request has the first two, an answer one or two of the others."""

    function: str
    arguments: dict[str, object]
    result: Any
    error: str
    kind: str
    progress: list[int]


Arrays = dict[str, "np.ndarray[Any, Any]"]


def send(stream: IO[bytes], head: Head, arrays: Mapping[str, np.ndarray[Any, Any]] | None = None) -> None:
    """Writes one frame."""
    contiguous = {name: np.ascontiguousarray(array) for name, array in (arrays or {}).items()}
    forms = [[name, array.dtype.str, list(array.shape)] for name, array in contiguous.items()]
    stream.write(json.dumps({**head, "arrays": forms}).encode() + b"\n")
    for array in contiguous.values():
        stream.write(array.tobytes())
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[Head, Arrays] | None:
    """Returns the next frame's head and arrays, or None when the other side has ended."""
    line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    head = json.loads(line)
    arrays = {}
    for name, dtype, shape in head.pop("arrays"):
        kind = np.dtype(dtype)
        if kind.hasobject:
            raise ValueError(f"{name}: arrays of objects are not taken")
        size = kind.itemsize * int(np.prod(shape, dtype=np.int64))
        content = stream.read(size)
        if len(content) != size:
            return None
        arrays[name] = np.frombuffer(content, kind).reshape(shape).copy()
    return head, arrays


def progress(done: int, total: int) -> None:
    """Tells the other side how far the present request has come."""
    send(_answers[0], {"progress": [done, total]})


_answers: list[IO[bytes]] = []


def _leave_with_the_parent() -> None:
    """Ends this process when the one that started it has gone: nobody would take the answer."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def main(module: str) -> None:
    """Answers requests until stdin ends."""
    answers = os.fdopen(os.dup(1), "wb")
    _answers.append(answers)
    os.dup2(2, 1)
    threading.Thread(target=_leave_with_the_parent, daemon=True).start()
    sys.path.insert(0, str(Path(__file__).parent))
    sys.modules["serve"] = sys.modules["__main__"]  # one `Unsupported`, one `progress`
    work = None
    while (frame := receive(sys.stdin.buffer)) is not None:
        head, arrays = frame
        try:
            work = work or importlib.import_module(module)
            result = getattr(work, head["function"])(**head["arguments"], **({"arrays": arrays} if arrays else {}))
            result, arrays = result if isinstance(result, tuple) else (result, {})
            send(answers, {"result": result}, arrays)
        except Unsupported as error:
            send(answers, {"error": str(error), "kind": "Unsupported"})
        except Exception as error:
            traceback.print_exc()
            send(answers, {"error": traceback.format_exception_only(type(error), error)[-1].strip(), "kind": ""})
    sys.stdout.flush()
    os._exit(0)  # vendors' libraries leave threads behind that hang or crash at the end


if __name__ == "__main__":
    main(sys.argv[1])
