"""Watches the user's Python while it runs in this process, and tells what it has read.

Python's audit events tell of files that are opened, folders that are listed, programs and connections; os.environ and a
few functions of `os` are wrapped. A reading counts where the user's code is behind it, also through a library, but not
where a library reads while it is being imported.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import os
import random
import secrets
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from anynpu.source.dependencies import Dependencies, environment, file_state, installed, listing, looked, value_hash

_EXISTENCE = {"exists", "lexists", "isfile", "isdir", "is_file", "is_dir", "islink", "is_symlink", "access"}
_PROCESSES = {
    "subprocess.Popen": "starts a program",
    "os.system": "starts a program",
    "os.exec": "starts a program",
    "os.posix_spawn": "starts a program",
    "os.spawn": "starts a program",
    "os.fork": "starts another process",
    "socket.connect": "talks to the network",
    "socket.getaddrinfo": "talks to the network",
    "urllib.Request": "talks to the network",
}
_CLOCK = {"time.time", "time.time_ns", "time.localtime", "time.gmtime", "time.ctime", "time.strftime", "time.asctime"}
_CLOCK |= {"datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
_ENTROPY = {"uuid.uuid1", "uuid.uuid4", "os.urandom", "secrets.token_bytes", "secrets.token_hex", "secrets.randbelow"}
_ENTROPY |= {"secrets.choice", "random.SystemRandom", "torch.seed", "torch.initial_seed"}
_SEEDED = {"default_rng", "RandomState", "Random", "seed", "SeedSequence"}
# Their versions are part of the address already.
_VERSIONED = {"torch", "numpy", "onnx", "onnxscript", "onnx_ir", "anynpu"}
_STDLIB = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
_LIBRARY, _OURS, _USER, _IMPORT, _NEUTRAL = "library", "ours", "user", "import", "neutral"


class _Environment(dict[bytes, bytes]):
    """The data of os.environ, reporting what is read by name."""

    def __init__(self, data: Mapping[bytes, bytes], report: Callable[[str], None]) -> None:
        super().__init__(data)
        self._report, self._own = report, set[bytes]()

    def __getitem__(self, key: bytes) -> bytes:
        if key not in self._own:
            self._report(os.fsdecode(key))
        return super().__getitem__(key)

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self._own.add(key)
        super().__setitem__(key, value)

    def __iter__(self) -> Iterator[bytes]:
        self._report("*")
        return super().__iter__()


class Recorder:
    """Watches one run of the user's code in this process."""

    active: Recorder | None = None
    hooked = False

    def __init__(self, folder: Path | None, own: Sequence[Path] = (), mentioned: Sequence[str] = ()) -> None:
        self.folder = folder
        self.own = tuple(f"{path}{os.sep}" for path in own)
        self.mentioned = tuple(mentioned)
        self.opened: set[str] = set()
        self.stats: dict[str, bool] = {}
        self.listed: set[str] = set()
        self.variables: set[str] = set()
        self.unknown: set[str] = set()
        self.before = environment()
        self.modules = set(sys.modules)
        self.kinds: dict[str, str] = {}
        self.getcwd = os.getcwd
        self.start = self.getcwd()

    @contextmanager
    def watching(self) -> Iterator[Recorder]:
        """Records while the block runs; random numbers begin with a seed of zero, so that a second run repeats them."""
        random.seed(0)
        np.random.seed(0)
        if "torch" in sys.modules:
            sys.modules["torch"].manual_seed(0)
        if not Recorder.hooked:
            sys.addaudithook(_heard)  # for good: Python has no way to take a hook out
            Recorder.hooked = True
        data, written = os.environ._data, sys.dont_write_bytecode  # type: ignore[attr-defined]
        functions = {name: getattr(os, name) for name in ("stat", "lstat", "access", "getcwd")}
        os.environ._data = _Environment(data, self.variable)  # type: ignore[attr-defined]
        # A .pyc is trusted by second and size: a file that is edited twice in a second would run as it was.
        sys.dont_write_bytecode = True
        for name, function in functions.items():
            setattr(os, name, self.wrapped(function))
        Recorder.active = self
        try:
            yield self
        finally:
            Recorder.active = None
            for name, function in functions.items():
                setattr(os, name, function)
            sys.dont_write_bytecode = written
            os.environ._data = dict(os.environ._data)  # type: ignore[attr-defined]

    def wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function of `os` that reports the path it is asked about."""

        @functools.wraps(function)
        def asked(path: Any = None, *arguments: Any, **keywords: Any) -> Any:
            if not isinstance(path, int) and self.asked_by_user():
                if path is None:
                    self.stats.setdefault("", False)
                elif function.__name__ in ("stat", "lstat", "access"):
                    place = self.given(path)
                    self.stats[place] = self.stats.get(place, False) or not _only_existence(function.__name__)
            return function(*(() if path is None else (path,)), *arguments, **keywords)

        return asked

    def given(self, path: Any) -> str:
        """Returns a path as it was given: relative to the working folder, unless the user's code has left that."""
        text, place = os.fsdecode(path), self.getcwd()
        return text if place == self.start else str(Path(place) / text)

    def variable(self, name: str) -> None:
        if self.asked_by_user():
            self.variables.add(name)

    def kind(self, filename: str) -> str:
        """Returns whose code a file is."""
        if filename not in self.kinds:
            if filename.startswith("<frozen importlib"):
                kind = _IMPORT
            elif filename.startswith(self.own) and self.own:
                kind = _USER
            elif filename.startswith(str(Path(__file__).parents[1])):
                kind = _OURS
            else:
                kind = _LIBRARY if installed(filename) else _NEUTRAL if filename.startswith("<") else _USER
            self.kinds[filename] = kind
        return self.kinds[filename]

    def reader(self) -> str:
        """Returns who reads: the user's code, also through a library, an import, or we ourselves."""
        frame: FrameType | None = sys._getframe(1)
        here = __file__
        while frame is not None:
            name = frame.f_code.co_filename
            kind = self.kind(name) if name != here else _NEUTRAL
            if kind in (_USER, _IMPORT, _OURS):
                return kind
            frame = frame.f_back
        return _OURS

    def asked_by_user(self) -> bool:
        """Whether the user's code is behind a question that is being recorded; what recording asks itself is not."""
        if Recorder.active is not self:
            return False
        Recorder.active = None
        try:
            return self.reader() == _USER
        finally:
            Recorder.active = self

    def event(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "open":
            path, mode, flags = arguments
            reads = isinstance(flags, int) and (flags & (os.O_WRONLY | os.O_RDWR)) == 0
            reads = "r" in mode if isinstance(mode, str) else reads
            if isinstance(path, (str, bytes, os.PathLike)) and reads:
                self.open(self.given(path))
        elif name in ("os.listdir", "os.scandir"):
            if not isinstance(arguments[0], int) and self.reader() == _USER:
                self.listed.add(self.given(arguments[0] or "."))
        elif self.reader() == _USER:
            if name == "sqlite3.connect":
                self.opened.add(self.given(arguments[0]))
            elif name != "socket.connect" or isinstance(arguments[1], tuple):  # not a socket of this machine
                self.unknown.add(_PROCESSES[name])

    def open(self, path: str) -> None:
        reader = self.reader()
        if reader == _IMPORT and not installed(path) and self.kind(path) != _OURS:
            # Of a module that is loaded by its path alone, sys.modules knows nothing.
            with suppress(ValueError, NotImplementedError):
                path = importlib.util.source_from_cache(path) if path.endswith(".pyc") else path
            self.opened.add(path)
            self.shadows(Path(path))
        elif reader == _USER:
            if path.startswith(("/dev/random", "/dev/urandom")):
                self.unknown.add("draws random numbers of the system")
            elif not path.startswith(("/proc/", "/sys/", "/dev/")):
                self.opened.add(path)

    def found(self) -> Dependencies:
        """Returns what was read, with the state it has now."""
        sources = self.loaded()
        for source in sources:
            self.unknown |= set(_unknowable(source))
        files = self.opened | {str(path) for path in self.mapped()} | set(self.mentioned_files(sources))
        salt = secrets.token_hex(8)
        return Dependencies(
            salt=salt,
            files={path: file_state(path) for path in sorted(files)},
            looked_for={path: looked(path, whole) for path, whole in sorted(self.stats.items())},
            folders={path: listing(path) for path in sorted(self.listed)},
            environment={name: value_hash(name, self.before, salt) for name in sorted(self.variables)},
            unknown=tuple(sorted(self.unknown)),
        )

    def loaded(self) -> list[Path]:
        """Adds the files of modules that were imported, and returns those of the user's own."""
        sources = [Path(path) for path in self.opened if path.endswith(".py") and Path(path).is_file()]
        for name in set(sys.modules) - self.modules:
            origin = getattr(sys.modules[name], "__file__", None)
            if not isinstance(origin, str) or name.partition(".")[0] in _VERSIONED:
                continue
            if origin.startswith(_STDLIB) and "site-packages" not in origin:
                continue
            self.opened.add(origin)
            if self.kind(origin) == _USER:
                sources += [Path(origin)] if origin.endswith(".py") else []
        return sources

    def shadows(self, origin: Path) -> None:
        """Adds the places before a module's own where another of its name would be found first."""
        entries = [Path(self.getcwd(), entry) for entry in sys.path]
        holders = [place for place, entry in enumerate(entries) if origin.is_relative_to(entry)]
        if holders and self.folder not in [entries[place] for place in holders]:
            self.variables.add("PYTHONPATH")
            self.stats.setdefault("", False)  # the working folder is on the path too
        for holder in holders:
            top = origin.relative_to(entries[holder]).parts[0].removesuffix(".py")
            for entry in entries[:holder]:
                if not installed(f"{entry}{os.sep}"):
                    for candidate in (entry / f"{top}.py", entry / top / "__init__.py"):
                        self.stats.setdefault(str(candidate), False)

    def mapped(self) -> list[Path]:
        """Returns files that are mapped into memory, which libraries in C open unheard."""
        with suppress(OSError):
            lines = Path("/proc/self/maps").read_text("utf-8", "replace").splitlines()
            paths = {line.split(maxsplit=5)[5] for line in lines if line.count(" ") >= 5 and "/" in line}
            skipped = ("/usr/", "/lib", "/dev/", "/proc/", "/memfd:", sys.prefix, sys.base_prefix)
            names = [p for p in paths if p.startswith("/") and not p.startswith(skipped) and not installed(p)]
            return [Path(p) for p in names if Path(p).is_file()]
        return []

    def mentioned_files(self, sources: Sequence[Path]) -> Iterator[str]:
        """Yields the files that texts in the user's code name: a library in C may open one unheard."""
        texts = {
            (node.value, source.parent)
            for source in sources
            for node in _nodes(source)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and 0 < len(node.value) < 256
        }
        texts |= {(text, Path()) for text in self.mentioned}
        for text, folder in texts:
            for place in (Path(text), folder / text):
                with suppress(OSError, ValueError):
                    if text and place.is_file():
                        yield str(place)


def _heard(name: str, arguments: tuple[Any, ...]) -> None:
    recorder = Recorder.active
    if recorder is not None and (name in ("open", "os.listdir", "os.scandir", "sqlite3.connect") or name in _PROCESSES):
        Recorder.active = None  # what recording reads itself is not heard
        try:
            recorder.event(name, arguments)
        finally:
            Recorder.active = recorder


def _only_existence(function: str) -> bool:
    """Whether the user's code asks a file for no more than whether it is there, and a library's questions likewise."""
    if function == "access":
        return True
    frame: FrameType | None = sys._getframe(2)
    names = []
    while frame is not None and installed(frame.f_code.co_filename):
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return bool(names) and (bool(_EXISTENCE & {*names}) or not {"stat", "getmtime", "getsize", "getctime"} & {*names})


def _nodes(source: Path) -> Iterator[ast.AST]:
    """Yields the nodes of a file of the user's."""
    if not installed(str(source)):
        with suppress(SyntaxError, ValueError, OSError):
            yield from ast.walk(ast.parse(source.read_bytes()))


def _unknowable(source: Path) -> Iterator[str]:
    """Yields what a file of the user's calls that gives something else each time."""
    for node in _nodes(source):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        ending = ".".join(called.split(".")[-2:])
        if ending in _CLOCK:
            yield f"reads the clock ({source.name}, line {node.lineno})"
        elif ending in _ENTROPY or (called.split(".")[-1] in _SEEDED and not node.args and not node.keywords):
            yield f"draws random numbers without a seed ({source.name}, line {node.lineno})"
