"""Child processes: argv lists with a clean environment, a time limit, a full log, and no orphans.

`run` calls a vendor's program; `call` runs one of our own functions in a child, so that a converter that prints,
leaks or crashes cannot touch the command line's stdout or its process.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, TypeAlias

from anynpu.child import NO_ANSWER_FITS, error_from, number
from anynpu.errors import ToolFailed, ToolMissing
from anynpu.files import replace_file
from anynpu.schema import to_dict

KEPT_ENVIRONMENT = (
    *("PATH", "HOME", "LANG", "TMPDIR", "TEMP", "TMP", "SYSTEMROOT", "USERPROFILE", "LD_LIBRARY_PATH"),
    "ORT_DISABLE_TELEMETRY",
)
PROGRESS, QUESTION = "\x1e", "\x1d"
LAST_LINES = 20
ANSWER = "answer.json"


@dataclass(frozen=True)
class Completed:
    """What a finished program printed and how long it took."""

    argv: tuple[str, ...]
    output: str
    seconds: float


Process: TypeAlias = subprocess.Popen[bytes]
"""What `attend` and `converse` return, for those who keep it."""


class Forked(Protocol):
    """A child that another process has forked for us (anynpu.nursery)."""

    pid: int
    returncode: int | None

    @property
    def stdout(self) -> IO[str] | None:
        """What it prints."""

    def settle(self) -> None:
        """Waits for its end without giving up its number."""

    def wait(self) -> int:
        """Returns its status."""


Spawned: TypeAlias = subprocess.Popen[str] | Forked
Spawner: TypeAlias = Callable[[Sequence[str], Path, dict[str, str]], AbstractContextManager[Spawned]]

forked: Spawner | None = None
"""What starts the children of `call`, and programs that are Python modules, within `nursery.warm_children`."""


@functools.cache
def version_of(package: str, extra: str = "build") -> str:
    """Returns the installed version of a Python package without importing it, or raises ToolMissing."""
    import importlib.metadata  # no child needs it, and it takes longer than the rest of this file

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise ToolMissing(f"{package} is not installed", f"pip install 'anynpu[{extra}]'") from None


def run(
    argv: Sequence[str],
    *,
    cwd: Path,
    log: Path,
    timeout_s: float = 600,
    environment: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] | None = None,
    called: str = "",
    hint: str = "",
    keep_stdin: bool = False,
    spawned_by: Spawner | None = None,
) -> Completed:
    """Runs a program to its end and returns its output; a failure raises ToolFailed with the last lines of its log.

    A program that asks a question finds no answer on stdin; with `keep_stdin` stdin stays open until this process ends.
    Errors name the program as it is `called`, which a path or an interpreter in front of it would hide.
    """
    program = shutil.which(argv[0])
    if program is None:
        raise ToolMissing(f"{argv[0]}: no such program", hint)
    env = {k: v for k, v in os.environ.items() if k in KEPT_ENVIRONMENT}
    env |= {"LC_ALL": "C.UTF-8", **(environment or {})}
    started = time.monotonic()
    lines: list[str] = []
    start = spawned_by or functools.partial(spawn, keep_stdin=keep_stdin)
    with log.open("a", encoding="utf-8") as sink, start([program, *argv[1:]], cwd, env) as process:
        sink.write("$ " + " ".join(argv) + "\n")
        expired = _drain(process, timeout_s, sink.write, lines, on_line)
        kill_group(process)  # what it left running in the background
        status = process.wait()
    if expired:
        message = f"{called or argv[0]} did not finish within {timeout_s:g} s"
    elif status != 0:
        message = f"{called or argv[0]} failed with {status_name(status)}"
    else:
        return Completed(tuple(argv), "".join(lines), time.monotonic() - started)
    last = [line.rstrip("\n") for line in lines[-LAST_LINES:]]
    raise ToolFailed(message, argv, status, str(log), last, hint)


def require_file(path: Path, by: str, log: Path | str, argv: Sequence[str] = (), filled: bool = False) -> Path:
    """Returns a file that a run must have made, `filled` with something: a program may end well and make none."""
    if not path.is_file() or (filled and not path.stat().st_size):
        raise ToolFailed(f"{by} ended well but wrote no {path.name}", argv, 0, str(log))
    return path


@contextmanager
def spawn(argv: Sequence[str], cwd: Path, env: dict[str, str], keep_stdin: bool) -> Iterator[Spawned]:
    """Yields a process in a group of its own, which is killed at the end of the block."""
    process = subprocess.Popen(
        argv,
        cwd=cwd,
        env=env,
        stdin=subprocess.PIPE if keep_stdin else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        yield process
    finally:
        kill_group(process)
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream:
                stream.close()


# An emulator goes on for ever when nobody listens. As its controlling terminal, the pty hangs up on it when this
# process dies, however that happens.
HANG_UP = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"


def interactive(
    argv: Sequence[str], *, cwd: Path, terminal: int, stderr: int, hint: str = ""
) -> subprocess.Popen[bytes]:
    """Starts a program that is talked to through a terminal of its own; the caller hands what is returned to `end`."""
    program = shutil.which(argv[0])
    if program is None:
        raise ToolMissing(f"{argv[0]}: no such program", hint)
    env = {k: v for k, v in os.environ.items() if k in KEPT_ENVIRONMENT} | {"LC_ALL": "C.UTF-8"}
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", HANG_UP, program, *argv[1:]],
        cwd=cwd,
        env=env,
        stdin=terminal,
        stdout=terminal,
        stderr=stderr,
        start_new_session=True,
    )


def attend(
    module: str,
    *arguments: str,
    descriptors: Sequence[int],
    output: int,
    environment: Mapping[str, str] | None = None,
) -> Process:
    """Starts one of our own modules to serve this process through descriptors that it inherits; `end` ends it.

    Its stdin stays open as long as this process lives; what it prints goes to the descriptor `output`. The environment
    is this process's own, since it stands in for it, unless another is given.
    """
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        env=environment,
        pass_fds=tuple(descriptors),
        start_new_session=True,  # Ctrl-C is for us, and we tell it
    )


def converse(argv: Sequence[str], *, cwd: Path, log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Starts a program that is talked to through its stdin and stdout and complains to a log; `end` ends it."""
    program = shutil.which(argv[0])
    if program is None:
        raise ToolMissing(f"{argv[0]}: no such program")
    env = {k: v for k, v in os.environ.items() if k in KEPT_ENVIRONMENT} | {"LC_ALL": "C.UTF-8", **environment}
    with log.open("a", encoding="utf-8") as sink:
        sink.write("$ " + " ".join(argv) + "\n")
        sink.flush()
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [program, *argv[1:]], cwd=cwd, env=env, stdin=pipe, stdout=pipe, stderr=sink, start_new_session=True
        )


def end(process: subprocess.Popen[bytes]) -> int:
    """Kills a program and all it started, and returns its status."""
    kill_group(process)
    return process.wait()


def kill_group(process: Spawned | Process) -> None:
    """Kills a process and all that belongs to its group."""
    # Not poll(): it would reap a leader that has ended, and its group, which may outlive it, could not be named safely.
    if process.returncode is not None:
        return
    if os.name == "posix":
        with suppress(ProcessLookupError, PermissionError):  # macOS refuses for a group of ended processes
            os.killpg(process.pid, signal.SIGKILL)
    elif isinstance(process, subprocess.Popen):
        process.kill()


def _drain(
    process: Spawned,
    timeout_s: float,
    write: Callable[[str], object],
    lines: list[str],
    on_line: Callable[[str], None] | None,
) -> bool:
    """Reads the output to its end, waits for the program's, and returns whether the time limit struck."""
    expired = threading.Event()

    def strike() -> None:
        expired.set()
        kill_group(process)

    timer = threading.Timer(timeout_s, strike)
    timer.daemon = True
    timer.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if on_line is not None:
                on_line(line)
            if not line.startswith((PROGRESS, QUESTION)):
                write(line)
                lines.append(line)
        if not isinstance(process, subprocess.Popen):
            process.settle()
        elif os.name == "posix":
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        else:
            process.wait()
    finally:
        timer.cancel()
    return expired.is_set()


def status_name(status: int) -> str:
    """Returns "status 3" or "signal SIGSEGV"."""
    if status < 0:
        try:
            return f"signal {signal.Signals(-status).name}"
        except ValueError:
            return f"signal {-status}"
    return f"status {status}"


def call(
    function: str,
    arguments: Mapping[str, object],
    *,
    scratch: Path,
    log: Path,
    timeout_s: float = 3600,
    progress: Callable[[int, int], None] | None = None,
    answer: Callable[[Any], Any] | None = None,
    whole_environment: bool = False,
) -> Any:
    """Returns what our function "module:name" returns, called in a child process.

    Both ways go by JSON: a dataclass arrives there as the function's annotations say, its result here as plain data.
    `answer` answers what the function asks by `ask`; `whole_environment` is for a function that runs the user's code.
    Within `nursery.warm_children` the child is forked from a process that has imported much, except for user's code.
    """
    request, reply = scratch / "request.json", scratch / "reply.json"
    request.write_text(json.dumps({"function": function, "arguments": to_dict(arguments)}), "utf-8")
    # -P: a file of the user's own named json.py or onnx.py in this folder must not take the place of the real one.
    argv = [sys.executable, "-P", "-m", "anynpu.child", str(request), str(reply)]
    environment = python_environment()
    if whole_environment:
        # Sets of texts are walked in the same order each time.
        environment = {"PYTHONHASHSEED": "0", **os.environ}
    try:
        run(
            argv,
            cwd=Path.cwd(),
            log=log,
            timeout_s=timeout_s,
            environment=environment,
            on_line=_listener(progress, answer, scratch / ANSWER),
            keep_stdin=True,
            spawned_by=None if whole_environment else forked,
        )
    except ToolFailed as failure:
        if failure.status == NO_ANSWER_FITS:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(reply)) from None
        if not reply.is_file():
            if "did not finish" not in failure.message:
                failure.message = f"{function} ended without an answer ({status_name(failure.status or 0)})"
            failure.args = (failure.message,)
            raise
    replied = json.loads(reply.read_text("utf-8"))
    request.unlink()
    reply.unlink()
    if "error" in replied:
        raise error_from(replied["error"], str(log))
    return replied["result"]


def python_environment() -> dict[str, str]:
    """Returns the variables of a child that runs Python, besides the usual ones; one process forks all that share them.

    The user's file may import packages that are only on this process's path; XXX_PATH names a vendor's own tool; the
    others say where the cache is.
    """
    kept = ("ANYNPU_", "OMP_", "PYTHON", "XDG_CACHE_HOME", "LOCALAPPDATA")
    return {k: v for k, v in os.environ.items() if k.startswith(kept) or k.endswith("_PATH")}


def _listener(
    report: Callable[[int, int], None] | None, answer: Callable[[Any], Any] | None, place: Path
) -> Callable[[str], None]:
    def on_line(line: str) -> None:
        if report is not None and line.startswith(PROGRESS):
            done, total = line[1:].split()
            report(int(done), int(total))
        elif answer is not None and line.startswith(QUESTION):
            replace_file(place, json.dumps({"answer": answer(json.loads(line[1:]))}, default=number))

    return on_line


def ask(question: object) -> Any:
    """Returns the parent process's answer to a function run by `call`; both travel as JSON."""
    place = Path(sys.argv[2]).with_name(ANSWER)
    sys.stdout.write(f"\n{QUESTION}{json.dumps(to_dict(question))}\n")
    sys.stdout.flush()
    while not place.is_file():
        time.sleep(0.005)
    answer = json.loads(place.read_text("utf-8"))["answer"]
    place.unlink()
    return answer


def hide_packages(*names: str) -> None:
    """Keeps packages from being imported in this process, a child of `call`: importing them would take seconds."""
    for name in names:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # an import of None raises ImportError


def report_progress(done: int, total: int) -> None:
    """Tells the parent process how far a function run by `call` has come."""
    sys.stdout.write(f"{PROGRESS}{done} {total}\n")
    sys.stdout.flush()
