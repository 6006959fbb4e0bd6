"""anynpu's command line in a child that has its imports behind it.

A fresh Python spends most of a short command importing numpy and onnx. `Warm` starts one process that has imported
them and forks for each call; the child has the arguments, folder, environment and descriptors that a fresh process
would have, and ends as one does.

    Warm().run(["targets"], cwd=folder, env=os.environ, timeout=300) -> subprocess.CompletedProcess
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import anynpu

IMPORTED = (
    "anynpu.api.build",
    "anynpu.api.session",
    "anynpu.cli.main",
    "anynpu.pipeline.build",
    "anynpu.pipeline.check",
    "anynpu.report.html",
    "anynpu.source.onnx_file",
    "numpy",
    "onnx",
    "onnxruntime",
)
LATE = {"BPE_PATH", "COLUMNS", "HOME", "LINES", "MODEL_PATH", "NO_COLOR", "PATH", "PORT", "PYTHONPATH", "TMPDIR"}
"""Variables that nothing looks at while it is imported, besides those of our own; PYTHONPATH by `fits`."""


def decides_early(name: str) -> bool:
    """Whether a variable may count before the command begins: such a call gets a fresh process."""
    return name not in LATE and not name.startswith(("ANYNPU_", "PYTEST_"))


def folders(env: Mapping[str, str]) -> list[str]:
    """Returns the folders of PYTHONPATH."""
    return [folder for folder in env.get("PYTHONPATH", "").split(os.pathsep) if folder]


class Warm:
    """One warm process, started when the first call comes."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._started_with: dict[str, str] = {}
        self._modules: set[str] = set()

    def fits(self, env: Mapping[str, str]) -> bool:
        """Whether a child would see what a fresh process with these variables would."""
        if self._socket is None:
            self._start()
        if {k: v for k, v in env.items() if decides_early(k)} != self._started_with:
            return False
        added = set(folders(env)) - set(folders(os.environ))
        names = {path.name.partition(".")[0] for folder in added for path in Path(folder).glob("*")}
        return not names or names.isdisjoint(self._imported() | {"sitecustomize", "usercustomize"})

    def run(
        self, arguments: Sequence[str], cwd: Path, env: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Calls anynpu, as `subprocess.run` with captured text does."""
        assert self._socket is not None, "ask `fits` first"
        wanted = {"arguments": [os.fspath(word) for word in arguments], "cwd": str(cwd), "env": dict(env)}
        status, told = os.pipe()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, os.fdopen(status, "rb", 0) as news:
            nothing = os.open(os.devnull, os.O_RDONLY)
            try:
                message = json.dumps(wanted).encode()
                socket.send_fds(self._socket, [message], [nothing, out.fileno(), err.fileno(), told])
            finally:
                os.close(nothing)
                os.close(told)
            child = int(news.readline())
            if not select.select([news], [], [], timeout)[0]:
                os.kill(child, signal.SIGKILL)
                raise subprocess.TimeoutExpired(list(arguments), timeout)
            ended = os.waitstatus_to_exitcode(int(news.readline()))
            texts = []
            for stream in (out, err):
                stream.seek(0)
                texts.append(stream.read().decode().replace("\r\n", "\n"))
        return subprocess.CompletedProcess(list(arguments), ended, *texts)

    def close(self) -> None:
        """Ends the warm process."""
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait()

    def _imported(self) -> set[str]:
        """Returns the modules that the warm process has: a folder of PYTHONPATH could no longer replace them."""
        assert self._socket is not None
        if not self._modules:
            self._modules = set(json.loads(self._socket.recv(1 << 20)))
        return self._modules

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen([sys.executable, __file__, str(number)], pass_fds=[number])
        self._socket = ours
        self._started_with = {k: v for k, v in os.environ.items() if decides_early(k)}


def serve(connection: socket.socket) -> list[str] | None:
    """Forks for every request. Returns its arguments in the child, and None when nobody can ask any more."""
    for name in IMPORTED:
        importlib.import_module(name)
    connection.send(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})).encode())
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for keepers
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 4)
        if not message:
            return None
        if os.fork() == 0:
            connection.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            told = descriptors[3]
            if (child := os.fork()) == 0:
                return become(json.loads(message), descriptors)
            os.write(told, f"{child}\n".encode())
            for descriptor in descriptors[:3]:
                os.close(descriptor)
            os.write(told, f"{os.waitpid(child, 0)[1]}\n".encode())
            os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)


def become(wanted: dict[str, object], descriptors: Sequence[int]) -> list[str]:
    """Makes this process what a fresh one would be, and returns the arguments of the command."""
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
    os.closerange(3, max(descriptors) + 1)
    folder, env, arguments = wanted["cwd"], wanted["env"], wanted["arguments"]
    assert isinstance(folder, str) and isinstance(env, dict) and isinstance(arguments, list)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    sys.path[:1] = [folder, *folders(env)]
    return arguments


if __name__ == "__main__":
    words = serve(socket.socket(fileno=int(sys.argv[1])))
    if words is not None:
        from anynpu.cli import main

        sys.argv[:] = [str(Path(anynpu.__file__).parent / "__main__.py"), *words]
        sys.exit(main())
