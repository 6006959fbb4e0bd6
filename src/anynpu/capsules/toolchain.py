"""A vendor's compiler in its own environment: where it is, which version, what it needs, what its last words mean.

The facts are `data/toolchains/NAME.toml`. A variable (CIXBUILD_PATH) names the program, its `bin` folder or the
environment around it; without it the PATH is searched. Nothing is imported or started to find a version out.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import shutil
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path

from anynpu import schema, tool
from anynpu.artifact import hash_file
from anynpu.errors import ConfigError, ToolFailed, ToolMissing

PACKAGE = "anynpu.data.toolchains"
LOADERS = ("lib*/ld-linux-*.so.*", "lib/*/ld-linux-*.so.*", "usr/lib*/ld-linux-*.so.*", "lib/ld-musl-*.so.1")


@dataclass(frozen=True)
class Saying:
    """A line that a tool is known to print, and what helps; `{what}` in the hint is the group of that name."""

    pattern: str
    hint: str
    source: str

    def __post_init__(self) -> None:
        try:
            groups = re.compile(self.pattern).groupindex
        except re.error as error:
            raise ConfigError(f"{self.pattern}: not a regular expression ({error})") from None
        if "{what}" in self.hint and "what" not in groups:
            raise ConfigError(f"{self.pattern}: the hint names {{what}}, the pattern has no such group")


def hint_in(sayings: Sequence[Saying], text: str) -> str:
    """Returns what helps against the last known line in a text, or an empty string."""
    last: tuple[int, str] = (-1, "")
    for saying in sayings:
        for match in re.finditer(saying.pattern, text):
            words = match.groupdict().get("what") or ""
            last = max(last, (match.start(), saying.hint.replace("{what}", words)))
    return last[1]


@dataclass(frozen=True)
class CheckoutFacts:
    """A repository that the tool's packages do not bring: the user clones it and a variable names the folder."""

    variable: str
    holds: str
    sources: tuple[str, ...]
    commit: str
    digest: str


@dataclass(frozen=True)
class Toolchain:
    """What a tool needs and says."""

    name: str
    title: str
    program: str
    variable: str
    package: str
    python: str
    machine: str
    licence: str
    get: str
    source: str
    targets: Mapping[str, str] = field(default_factory=dict)
    """The compilers of ours that use it, by name; `plugins` registers them and the sessions."""
    sessions: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    """What pip installs, with pins; a tool without any is the user's own to install."""
    alone: tuple[str, ...] = ()
    """Packages whose own wishes for others do not hold: pip is given --no-deps."""
    other_names: tuple[str, ...] = ()
    """What other releases call the program."""
    needs: tuple[str, ...] = ()
    """Programs of the system that it calls."""
    aside: tuple[str, ...] = ()
    """Files below site-packages that do harm; they are renamed."""
    stubs: Mapping[str, str] = field(default_factory=dict)
    """Files below site-packages that are written, each from one of ours."""
    probe: tuple[str, ...] = ()
    """The command that shows that it works, and what its output must hold."""
    expects: str = ""
    megabytes: int = 0
    minutes: float = 0
    library_path: tuple[str, ...] = ()
    runtime_root: str = ""
    """A folder with another libc, for a tool that wants a newer one than the system's: absolute, or within the tool's
    environment. The loader in it starts the programs; what these start by themselves gets the system's."""
    keep: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    checkout: CheckoutFacts | None = None
    says: tuple[Saying, ...] = ()
    lock: str = ""
    """The text of NAME.lock next to NAME.toml: every package that is installed, with its version and digests."""

    @property
    def recipe(self) -> str:
        """The digest of all that decides what is installed; a better hint makes no new environment."""
        stubs = {target: _shipped(source) for target, source in self.stubs.items()}
        return schema.digest([self.python, self.packages, self.alone, self.lock, self.aside, stubs])

    @property
    def wanted(self) -> tuple[str, ...]:
        """Every package that is named, with its pin."""
        return self.packages + self.alone

    def hint(self, text: str) -> str:
        """Returns what helps against the last known line in what the tool said, or an empty string."""
        return hint_in(self.says, text)

    def explained(self, failure: ToolFailed) -> ToolFailed:
        """Returns the failure with a hint, looked for in all that the tool said."""
        said = _last_call(failure.log) or "\n".join(failure.last_lines)
        return self.failed(failure.message, failure.log, failure.argv, failure.status, said)

    def failed(
        self, message: str, log: Path | str, argv: Sequence[str] = (), status: int | None = 0, said: str | None = None
    ) -> ToolFailed:
        """Returns the failure of a run with the hint that its words deserve; it may have ended well and made nothing.

        Without `said` its words are those of the last call in the log.
        """
        said = _last_call(log) if said is None else said
        hint = self.hint(said) or f"the log has {self.name}'s own words"
        return ToolFailed(message, argv, status, str(log), said.splitlines()[-tool.LAST_LINES :], hint)

    def require_file(
        self,
        path: Path,
        by: str,
        log: Path | str,
        argv: Sequence[str] = (),
        said: str | None = None,
        filled: bool = False,
    ) -> Path:
        """Returns a file that a run must have made, as tool.require_file does, or raises with the tool's own words."""
        try:
            return tool.require_file(path, by, log, argv, filled)
        except ToolFailed as failure:
            raise self.failed(failure.message, log, argv, said=said) from None


def _last_call(log: Path | str) -> str:
    """Returns what the last call in a log has printed; nothing where there is no log."""
    try:
        text = Path(log).read_text("utf-8", "replace") if str(log) else ""
    except OSError:
        return ""
    _, sign, call = f"\n{text}".rpartition("\n$ ")
    return call.partition("\n")[2] if sign else call


@dataclass(frozen=True)
class Installed:
    """A tool that is here: the program, its version, and the folder of Python packages around it, if there is one."""

    toolchain: Toolchain
    program: Path
    version: str
    packages: Path | None

    def environment(self) -> dict[str, str]:
        """Returns the variables that it runs with, besides those every tool keeps."""
        kept = {name: os.environ[name] for name in self.toolchain.keep if name in os.environ}
        folders = [str(self.packages / part) for part in self.toolchain.library_path] if self.packages else []
        paths = [*folders, *filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))]
        variables = {**self.toolchain.environment, **kept, "PYTHONUNBUFFERED": "1"}
        return variables | ({"LD_LIBRARY_PATH": ":".join(paths)} if paths else {})

    def line(self, argv: Sequence[str]) -> list[str]:
        """Returns the command line, started by the loader in the recipe's runtime root where it names one."""
        if not self.toolchain.runtime_root:
            return list(argv)
        root = self.program.parent.parent / Path(self.toolchain.runtime_root).expanduser()
        loader = next((path for form in LOADERS for path in sorted(root.glob(form))), None)
        program = shutil.which(argv[0])
        if loader is None:
            raise ToolMissing(f"{root}: has no loader ({', '.join(LOADERS)})", self.toolchain.get)
        if program is None:
            raise ToolMissing(f"{argv[0]}: no such program", self.toolchain.get)
        with Path(program).open("rb") as file:
            first = file.readline(256)
        # A loader starts ELF files alone: of a script it starts the interpreter.
        script = first[2:].decode("utf-8", "replace").split() if first.startswith(b"#!") else []
        own = self.environment().get("LD_LIBRARY_PATH", "")
        folders = [loader.parent, *(root / part for part in ("lib", "lib64", "usr/lib", "usr/lib64"))]
        folders += [folder for part in ("lib", "usr/lib") for folder in sorted((root / part).glob("*-linux-*"))]
        paths = ":".join(dict.fromkeys([own, *map(str, filter(Path.is_dir, folders))])).strip(":")
        return [str(loader), "--library-path", paths, *script, program, *argv[1:]]

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        log: Path,
        timeout_s: float,
        environment: Mapping[str, str] | None = None,
        called: str = "",
        on_line: Callable[[str], None] | None = None,
    ) -> tool.Completed:
        """Runs the tool as `tool.run` does, in its own environment; a failure has the hint that its words deserve."""
        variables = self.environment() if environment is None else environment
        try:
            return tool.run(
                self.line(argv),
                cwd=cwd,
                log=log,
                timeout_s=timeout_s,
                environment=variables,
                called=called,
                on_line=on_line,
            )
        except ToolFailed as failure:
            raise self.toolchain.explained(failure) from None


def names() -> list[str]:
    """Returns the tools whose facts ship with anynpu."""
    files = (file.name for file in resources.files(PACKAGE).iterdir())
    return sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml"))


def read_toolchain(name: str) -> Toolchain:
    """Returns the facts of a tool that ships with anynpu, or of the user's own file.toml."""
    if name.endswith(".toml"):
        lock = Path(name).with_suffix(".lock")
        chain = schema.from_dict(Toolchain, schema.read_toml(Path(name)), name)
        return replace(chain, lock=lock.read_text("utf-8")) if lock.is_file() else chain
    if name not in names():
        listed = ", ".join(names())
        raise ConfigError(
            f"{name}: no such tool{schema.near(name, names())}", f"there are {listed}; or give a file.toml"
        )
    return _read(name)


@functools.cache
def _read(name: str) -> Toolchain:
    chain = schema.from_dict(Toolchain, tomllib.loads(_shipped(f"{name}.toml")), f"{name}.toml")
    return replace(chain, lock=_shipped(f"{name}.lock")) if chain.wanted else chain


def _shipped(file: str) -> str:
    return (resources.files(PACKAGE) / file).read_text("utf-8")


def hint_for(name: str, log: str) -> str:
    """Returns what helps against the last known line in the text of a tool's log, or an empty string."""
    return read_toolchain(name).hint(log)


def find(name: str) -> Installed:
    """Returns the user's own tool as it is installed here, or raises ToolMissing with the way to get it."""
    toolchain = read_toolchain(name)
    stated, names = os.environ.get(toolchain.variable), (toolchain.program, *toolchain.other_names)
    if stated:
        root = Path(stated)
        for place in (root, *(folder / each for each in names for folder in (root, root / "bin"))):
            if place.is_file() and os.access(place, os.X_OK):
                return installed(toolchain, place.absolute())
        raise ToolMissing(f"{toolchain.variable}={stated}: there is no program {toolchain.program}", toolchain.get)
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        where = "" if platform.machine() == toolchain.machine else f" (it runs on {toolchain.machine} alone)"
        raise ToolMissing(f"{toolchain.program} is not installed{where}", toolchain.get)
    return installed(toolchain, Path(program).absolute())


def installed(toolchain: Toolchain, program: Path) -> Installed:
    """Returns the tool that a program belongs to, with the site-packages of the environment around it."""
    for start in (program, program.resolve()):
        folders = sorted(start.parent.parent.glob("lib/python3.*/site-packages"))
        wanted = [f for f in folders if f.parent.name == f"python{toolchain.python}"]
        for folder in (*wanted, *folders):
            for entry in sorted(folder.glob("*.dist-info")):  # where pip notes the version down
                name, _, version = entry.name.removesuffix(".dist-info").rpartition("-")
                if name.lower().replace("_", "-") == toolchain.package and version:
                    return Installed(toolchain, program, version, folder)
    # Without a package there is no version to read; what the program's file holds tells two of them apart.
    return Installed(toolchain, program, f"sha256:{hash_file(program)[:12]}", None)
