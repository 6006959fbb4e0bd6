"""A child process of `tool.call`: what it does with a request, and how results and errors travel back."""

from __future__ import annotations

import errno
import importlib
import importlib.metadata
import json
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, get_type_hints

from anynpu import errors
from anynpu.errors import AnyNpuError, Finding, ToolFailed
from anynpu.files import replace_file
from anynpu.schema import JsonObject, read_as, to_dict

NO_ANSWER_FITS = 74
"""The exit status of a child that could not write its answer to the disk."""
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def error_to(error: BaseException) -> JsonObject:
    """Returns an error as plain data; what is not of ours is a failed tool, with the last lines of its trace."""
    if isinstance(error, AnyNpuError):
        state = {k: list(v) if isinstance(v, tuple) else v for k, v in error.__dict__.items()}
        state["findings"] = [vars(f) for f in getattr(error, "findings", ())]
        # A plug-in's own kind of error arrives as the kind of ours that it is derived from.
        kind = next(c.__name__ for c in type(error).__mro__ if getattr(errors, c.__name__, None) is c)
        return {"kind": kind, **state}
    if isinstance(error, OSError) and error.errno in DISK_ERRORS:
        return {"kind": "disk", "errno": error.errno, "message": error.strerror, "path": str(error.filename or "")}
    last = traceback.format_exception_only(error)[-1].strip()
    return {"kind": "ToolFailed", "message": last, "hint": "", "last_lines": traceback.format_exc().splitlines()[-8:]}


def error_from(data: dict[str, Any], log: str) -> AnyNpuError | OSError:
    """Returns the error that `error_to` turned into data."""
    if data["kind"] == "disk":
        return OSError(data["errno"], data["message"], data["path"])
    kind = getattr(errors, data.pop("kind"))
    error: AnyNpuError = kind.__new__(kind)
    error.args = (data["message"],)
    findings = tuple(Finding(**f) for f in data.pop("findings", ()))
    error.__dict__.update({k: tuple(v) if isinstance(v, list) else v for k, v in data.items()})
    if isinstance(error, errors.Unsupported):
        error.findings = findings
    if isinstance(error, ToolFailed):
        error.__dict__ = {"argv": (), "status": None, "last_lines": (), **error.__dict__, "log": log}
    return error


def number(value: Any) -> Any:
    """Returns a number of numpy as Python's own."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot go into an answer")


def answer_request(request_path: str, reply_path: str) -> None:
    """Runs one request; ends at once when the parent dies, since nobody would take the answer."""
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()
    sys.path.append(str(Path.cwd()))  # last: the user's modules are found, and hide nobody else's
    request = json.loads(Path(request_path).read_text("utf-8"))
    module, name = request["function"].split(":")
    try:
        function = getattr(importlib.import_module(module), name)
        arguments = request["arguments"]
        if any(isinstance(value, dict | list) for value in arguments.values()):
            hints, place = get_type_hints(function), function.__name__
            arguments = {
                key: read_as(hints[key], value, f"{place}: {key}") if isinstance(value, dict | list) else value
                for key, value in arguments.items()
            }
        answer = {"result": to_dict(function(**arguments))}
    except Exception as error:
        traceback.print_exc()
        answer = {"error": error_to(error)}
    try:
        replace_file(Path(reply_path), json.dumps(answer, default=number))
    except OSError as error:
        if error.errno in DISK_ERRORS:
            os._exit(NO_ANSWER_FITS)
        raise
    sys.stdout.flush()
    os._exit(0)  # converters leave threads and atexit hooks behind that can hang or crash


if __name__ == "__main__":
    answer_request(sys.argv[1], sys.argv[2])
