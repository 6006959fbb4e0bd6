"""Children that start at once: a process that has imported what the steps of a build need, and forks for each call.

A child is as much apart as one that `tool.call` starts from nothing: its own process, group and output, killed at its
limit, gone when we are. It only does not import numpy, onnx and ONNX Runtime again, which takes longer than most steps.
A compiler that is a Python module (`python -m ethosu.vela ...`) starts in the same way, once its imports are there.

    us                          the nursery                    a keeper                  the child
    asks, with three pipes  ->  forks                      ->  forks                 ->  leads a group, tells its number
    reads its output, kills its group at the limit             waits, tells its status   runs the function
    closes the pipes                                           lets its number go

Linux alone: elsewhere a process with threads may not be forked.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, TypedDict

from anynpu import tool
from anynpu.child import answer_request

if sys.platform == "linux":
    import resource

    LIMITS = tuple(getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_"))

CALLS = "anynpu.child"
IMPORTED = ("numpy", "onnx", "onnx.numpy_helper", "onnxruntime")
"""What a child begins with, unless the module of its function names less as CHILDREN_IMPORT."""
PATIENCE_S = 60
"""How long a child may take to be born, with all imports before it; then it is started from nothing instead."""
UNBUFFERED = "PYTHONUNBUFFERED"
BOUND_LATE = ("TMPDIR", "TEMP", "TMP", "XDG_CACHE_HOME", UNBUFFERED)
"""Variables that may differ from child to child, besides our own and those that name a tool."""


class Child:
    """A forked child, as `tool` handles processes."""

    def __init__(self, pid: int, output: int, life: int, report: IO[bytes]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdout: IO[str] = os.fdopen(output, encoding="utf-8", errors="replace")
        self._life, self._report = life, report
        self._ended: int | None = None

    def settle(self) -> None:
        """Waits for its end; its number stays its own until `close`."""
        if self._ended is None:
            self._ended = int(self._report.readline() or -signal.SIGKILL)

    def wait(self) -> int:
        """Returns its status, the negative of a signal's number."""
        self.settle()
        assert self._ended is not None
        self.returncode = self._ended
        return self.returncode

    def close(self) -> None:
        """Lets go of all that is left of it."""
        self.stdout.close()
        os.close(self._life)
        os.close(self._report.fileno())


class Wanted(TypedDict):
    """What a child is to be: a module that is run with arguments, and the surroundings of a fresh process."""

    module: str
    arguments: list[str]
    cwd: str
    env: dict[str, str]
    limits: list[tuple[int, int]]


class Nursery:
    """The parent's side: starts the nursery when the first child is wanted, and anew for another environment."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._started_with: Mapping[str, str] = {}
        self._process: tool.Process | None = None
        self._socket: socket.socket | None = None
        self._closed = False

    @contextmanager
    def spawn(self, argv: Sequence[str], cwd: Path, env: dict[str, str]) -> Iterator[tool.Spawned]:
        """Yields a child that runs `python [-P] -m MODULE ARGUMENTS`; a plain one where none is born."""
        child = None
        if os.getpid() == self._owner:
            with suppress(OSError, ValueError), self._lock:
                child = None if self._closed else self._born(argv[argv.index("-m") + 1 :], cwd, env)
        if child is None:
            with tool.spawn(argv, cwd, env, True) as process:
                yield process
            return
        try:
            yield child
        finally:
            tool.kill_group(child)
            child.wait()
            child.close()

    def close(self) -> None:
        """Ends the nursery for good; children that still run go on, and later ones are started from nothing."""
        with self._lock:
            self._closed = True
            self._end()

    def _end(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            tool.end(self._process)
            if self._process.stdin:
                self._process.stdin.close()
        self._process = self._socket = None

    def _born(self, called: Sequence[str], cwd: Path, env: Mapping[str, str]) -> Child | None:
        limits = [resource.getrlimit(kind) for kind in LIMITS]
        module, *arguments = called
        wanted: Wanted = {
            "module": module,
            "arguments": arguments,
            "cwd": str(cwd),
            "env": dict(env),
            "limits": limits,
        }
        (output, said), (alive, life), (status, report) = os.pipe(), os.pipe(), os.pipe()
        with ExitStack() as ours:
            for end in (output, life, status):
                ours.callback(os.close, end)
            try:
                socket.send_fds(self._connected(env), [json.dumps(wanted).encode()], [said, alive, report])
            finally:
                for end in (said, alive, report):  # before we wait: where nobody else holds them, nobody will answer
                    os.close(end)
            answered = select.select([status], [], [], PATIENCE_S)[0]
            news = os.fdopen(status, "rb", closefd=False)
            number = news.readline() if answered else b""
            if not number:
                self._end()
                return None
            ours.pop_all()
        return Child(int(number), output, life, news)

    def _connected(self, env: Mapping[str, str]) -> socket.socket:
        late = {k for k in env if k in BOUND_LATE or k.startswith("ANYNPU_")}
        late |= {k for k in env if k.endswith("_PATH") and k != "LD_LIBRARY_PATH"}  # a vendor's own tool
        decided = {k: v for k, v in env.items() if k not in late}
        if self._socket is None or decided != self._started_with:
            self._end()
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            module, number = "anynpu.nursery", theirs.fileno()
            self._process = tool.attend(module, str(number), descriptors=[number], output=nowhere, environment=env)
            os.close(nowhere)
            theirs.close()
            self._socket, self._started_with = ours, decided
        return self._socket


@contextmanager
def warm_children() -> Iterator[None]:
    """Lets every `tool.call` inside the block run in a forked child, but for those that run the user's code."""
    if sys.platform != "linux" or tool.forked is not None:
        yield
        return
    nursery = Nursery()
    tool.forked = nursery.spawn
    try:
        yield
    finally:
        tool.forked = None
        nursery.close()


def serve(number: int) -> None:
    """Forks a child for every request, until nobody can ask any more."""
    connection = socket.socket(fileno=number)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for keepers
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        if not message:
            return
        wanted = json.loads(message)
        with suppress(Exception):  # the child will say what is wrong with it
            _import_for(wanted)
        if os.fork() == 0:
            connection.close()
            _keep(wanted, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _import_for(wanted: Wanted) -> None:
    """Imports what a child begins with: the module of ours whose function it calls, or the one that it runs, and what
    these need."""
    module = None
    if wanted["module"] != CALLS:
        importlib.import_module(f"{wanted['module']}.__main__")
        del sys.modules[f"{wanted['module']}.__main__"]  # it runs later, what it imports stays
    else:
        name = json.loads(Path(wanted["arguments"][0]).read_text("utf-8"))["function"].partition(":")[0]
        module = importlib.import_module(name) if name.startswith("anynpu.") else None
    for package in getattr(module, "CHILDREN_IMPORT", IMPORTED):
        with suppress(ImportError):
            importlib.import_module(package)


def _keep(wanted: Wanted, said: int, alive: int, report: int) -> None:
    """Has a child, tells its status, and keeps its number until the parent has done with it."""
    os.setsid()  # it outlives the nursery if it must
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if (child := os.fork()) == 0:
        _live(wanted, said, alive, report)
    os.close(said)
    ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    if ended is not None:
        status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        os.write(report, f"{status}\n".encode())
    os.close(report)
    os.read(alive, 1)
    os.waitpid(child, 0)
    os._exit(0)


def _live(wanted: Wanted, said: int, alive: int, report: int) -> None:
    """Becomes what a process started from nothing would be, and runs the request."""
    try:
        os.setsid()
        os.write(report, f"{os.getpid()}\n".encode())
        os.close(report)
        for theirs, own in ((alive, 0), (said, 1), (said, 2)):
            os.dup2(theirs, own)
        os.close(alive)
        os.close(said)
        os.chdir(wanted["cwd"])
        os.environ.clear()
        os.environ.update(wanted["env"])
        for kind, limit in zip(LIMITS, wanted["limits"], strict=True):
            if resource.getrlimit(kind) != tuple(limit):
                resource.setrlimit(kind, (limit[0], limit[1]))
        sys.argv[:] = [wanted["module"], *wanted["arguments"]]
        if wanted["module"] == CALLS:
            answer_request(*wanted["arguments"])
        threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()  # nobody takes the result
        if wanted["env"].get(UNBUFFERED):
            for number, name in ((1, "stdout"), (2, "stderr")):
                raw = io.FileIO(number, "w", closefd=False)
                setattr(sys, name, io.TextIOWrapper(raw, "utf-8", "backslashreplace", write_through=True))
        runpy.run_module(wanted["module"], run_name="__main__")
        sys.stdout.flush()
        os._exit(0)
    except SystemExit as ended:
        sys.stdout.flush()
        os._exit(ended.code if isinstance(ended.code, int) else int(ended.code is not None))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
