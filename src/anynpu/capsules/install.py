"""Making and removing capsules: whole or not at all, by one process at a time."""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

from filelock import FileLock, Timeout

from anynpu import schema, tool
from anynpu.artifact import hash_file
from anynpu.capsules import toolchain
from anynpu.capsules.capsule import FILES, RECEIPT, Capsule, Receipt, at, find, home, log_of, place, read_receipt
from anynpu.capsules.python import Python, find_python
from anynpu.capsules.toolchain import Saying, Toolchain, read_toolchain
from anynpu.capsules.verify import inventory, packages_of, probe
from anynpu.errors import ConfigError, ToolFailed, ToolMissing
from anynpu.files import default_cache_dir, replace_file, writing

LIMIT_S = 3600.0
ELSEWHERE = {"PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER"}
NETWORK = {"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"}
# Our stdin ends when this process does, however that happens: pip must not go on filling a folder that nobody guards.
WATCHED = """
import os, runpy, signal, subprocess, sys, threading
threading.Thread(target=lambda: (os.read(0, 1), os.killpg(0, signal.SIGKILL)), daemon=True).start()
sys.argv[:] = sys.argv[1:]
if os.path.isabs(sys.argv[0]):
    sys.exit(subprocess.call(sys.argv, stdin=subprocess.DEVNULL))
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
TORCH_WITHOUT_CUDA = "https://download.pytorch.org/whl/cpu"
PIP_SAYS = (
    Saying(
        r"No matching distribution found for (?P<what>torch==\S+\+cpu)",
        f"{{what}} is in PyTorch's own index: reach {TORCH_WITHOUT_CUDA}, or put its wheel into PIP_FIND_LINKS",
        "pip",
    ),
    Saying(
        r"No matching distribution found for (?!torch==\S+\+cpu)(?P<what>\S+)",
        "the package index has no {what} for this system: was it reached, and is it the right one (PIP_INDEX_URL)?",
        "pip",
    ),
    Saying(
        r"(?i)name resolution|connection (refused|broken|reset)|max retries|timed out|network is unreachable",
        "pip does not reach the package index: check the network, the proxy variables, or PIP_INDEX_URL",
        "pip",
    ),
    Saying(r"No space left on device", "the disk is full: free some, or choose another folder with --cache-dir", "pip"),
    Saying(
        r"THESE PACKAGES DO NOT MATCH THE HASHES",
        "a download was damaged (`pip cache purge`, then again), or the index does not give what PyPI gives",
        "pip",
    ),
)
Report = Callable[[str], None]


def install(
    name: str,
    *,
    cache: Path | None = None,
    accept_licence: bool = False,
    timeout_s: float = LIMIT_S,
    report: Report = lambda line: None,
) -> Capsule:
    """Returns the capsule, made first if it is not there; of several that want it, one installs and the others wait."""
    chain = read_toolchain(name)
    if not chain.wanted or os.environ.get(chain.variable):
        return find(name, cache)
    root = place(chain, cache)
    if read_receipt(root) is None:
        if chain.machine and platform.machine() != chain.machine:
            raise ToolMissing(f"{chain.name} runs on {chain.machine} alone; this is {platform.machine()}", chain.get)
        for program in chain.needs:
            if shutil.which(program) is None:
                raise ToolMissing(f"{chain.name} needs {program}, which is not installed", f"install {program} first")
        agree(chain, cache, accept_licence)
        python = find_python(chain.python, chain.name)
        with _alone(chain, cache, report):
            if read_receipt(root) is None:
                # What a killed install has left
                for folder in _folders(chain, cache):
                    if read_receipt(folder) is None:
                        shutil.rmtree(folder)
                free = shutil.disk_usage(home(cache)).free // 10**6
                if free < chain.megabytes:
                    raise ConfigError(
                        f"{home(cache)}: {chain.name} takes {chain.megabytes} MB, and {free} MB are free",
                        "free some, or choose another folder with --cache-dir",
                    )
                _make(chain, root, python, _Call(chain, log_of(chain, cache), time.monotonic() + timeout_s, report))
    return at(chain, root)


def remove(name: str, cache: Path | None = None) -> int:
    """Removes every capsule of that name, old recipes and remains too, and returns how many there were."""
    chain = read_toolchain(name)
    with _alone(chain, cache, lambda line: None):
        folders = _folders(chain, cache)
        for folder in folders:
            (folder / RECEIPT).unlink(missing_ok=True)  # first: what is half removed must not count as installed
            shutil.rmtree(folder)
    return len(folders)


def accepted(chain: Toolchain, cache: Path | None) -> bool:
    """Returns whether the user has accepted the licence in its present words."""
    file = _licence_file(chain, cache)
    return file.is_file() and schema.read_json(file).get("licence") == chain.licence


def agree(chain: Toolchain, cache: Path | None, accept: bool) -> None:
    """Notes down that the user accepts the licence; raises ConfigError if neither now nor before."""
    if accepted(chain, cache):
        return
    if not accept:
        raise ConfigError(
            f"{chain.name}: its licence has not been accepted: {chain.licence}",
            f"if you agree: anynpu tool install {chain.name} --accept-licence (asked once)",
        )
    file = _licence_file(chain, cache)
    with writing(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        _write(file, {"name": chain.name, "licence": chain.licence, "accepted": _now()})


def _licence_file(chain: Toolchain, cache: Path | None) -> Path:
    return home(cache) / "licences" / f"{chain.name}.json"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _write(path: Path, record: object) -> None:
    replace_file(path, schema.canonical_json(record))


@contextmanager
def _alone(chain: Toolchain, cache: Path | None, report: Report) -> Iterator[None]:
    """Holds the lock of a tool; the operating system releases that of a killed process."""
    base = cache or default_cache_dir()
    with writing(base):
        for folder in ("locks", "logs", "capsules"):
            (base / folder).mkdir(parents=True, exist_ok=True)
        lock = FileLock(base / "locks" / f"capsule-{chain.name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            report(f"another process is installing {chain.name}: waiting for it")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()


def _folders(chain: Toolchain, cache: Path | None) -> list[Path]:
    """Returns the capsules of that name, whole or not, of every recipe."""
    return list(home(cache).glob(f"{chain.name}-{'[0-9a-f]' * 12}"))


class _Call:
    """Runs the stages of one install against one time limit, with one log."""

    def __init__(self, chain: Toolchain, log: Path, deadline: float, report: Report) -> None:
        self.chain, self.log, self.deadline, self.report = chain, log, deadline, report

    @property
    def left_s(self) -> float:
        return max(0.1, self.deadline - time.monotonic())

    def module(self, python: Path, *arguments: str) -> None:
        """Runs a module of a Python, or a program that is given by its whole path, and ends it with us."""
        argv = [str(python), "-I", "-c", WATCHED, *arguments]
        wanted = {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "UV_")) or k.upper() in NETWORK}
        # uv does not know pip's variables: where pip looks for packages is passed on.
        for own, pips in (("UV_FIND_LINKS", "PIP_FIND_LINKS"), ("UV_DEFAULT_INDEX", "PIP_INDEX_URL")):
            if pips in wanted:
                wanted.setdefault(own, wanted[pips])
        environment = {k: v for k, v in wanted.items() if k not in ELSEWHERE} | {"PIP_NO_INPUT": "1"}
        try:
            tool.run(
                argv,
                cwd=self.log.parent,
                log=self.log,
                timeout_s=self.left_s,
                environment=environment,
                called=arguments[0],
                keep_stdin=True,
            )
        except ToolFailed as failure:
            how = failure.message
            if "did not finish" in how:
                how = f"{arguments[0]} did not finish within the time limit"
                hint = "give more with --timeout SECONDS"
            else:
                last = "\n".join(failure.last_lines)
                hint = toolchain.hint_in(PIP_SAYS, last) or self.chain.hint(last) or "the log has pip's own words"
            message = f"{self.chain.name} was not installed: {how}"
            details = failure.argv, failure.status, failure.log, failure.last_lines
            raise ToolFailed(message, *details, hint) from None


def _make(chain: Toolchain, root: Path, python: Python, call: _Call) -> None:
    """Fills the folder stage by stage; the receipt comes last, and any failure takes everything away again."""
    started = time.monotonic()
    call.log.write_text("")
    try:
        call.report(f"environment   Python {python.version}")
        call.module(python.path, "venv", str(root))
        if chain.lock:
            _locked_packages(chain.lock, root, call)
        for wanted, flags in () if chain.lock else ((chain.packages, ()), (chain.alone, ("--no-deps",))):
            if wanted:
                call.report(f"packages      {', '.join(wanted)}")
                pip = ("pip", "install", "--no-warn-script-location")
                call.module(root / "bin" / "python", *pip, *flags, *wanted)
        site = next(root.glob("lib/python3.*/site-packages"))
        for name in chain.aside:
            path = site / name
            # A pinned package that lacks the file is not the one that the fix was made for.
            if not path.is_file():
                why = f"its packages hold no {name}, which was to be moved aside"
                raise ToolFailed(f"{chain.name} was not installed: {why}")
            path.replace(path.with_name(f"{path.name}.aside"))
            call.report(f"mending       {name} moved aside")
        for name, source in chain.stubs.items():
            path = site / name
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text((resources.files(toolchain.PACKAGE) / source).read_text("utf-8"), "utf-8")
                call.report(f"mending       {name} written")
        call.report(f"trying        {' '.join(chain.probe)[:80]}")
        probe(at(chain, root), call.log, call.left_s)
        call.report("noting down   every file's digest")
        files, size = inventory(root)
        _write(root / FILES, files)
        seconds = round(time.monotonic() - started, 1)
        about, digest = (_now(), seconds, size), hash_file(root / FILES)
        _write(root / RECEIPT, Receipt(chain.name, chain.recipe, python.version, *about, packages_of(root), digest))
    except BaseException:
        shutil.rmtree(root, ignore_errors=True)
        raise


def _locked_packages(lock: str, root: Path, call: _Call) -> None:
    """Installs exactly what a lock file names, each archive compared with its digest; by uv where it is there."""
    lines = [line for line in lock.splitlines() if line and not line.startswith("#")]
    torch = [line for line in lines if "+cpu" in line.partition(" ")[0]]
    others = [line for line in lines if line not in torch]
    python, file = root / "bin" / "python", root / "requirements.lock"
    exact = ("--no-deps", "--require-hashes", "-r", str(file))
    pip = ("pip", "install", "--no-warn-script-location", *exact)
    call.report(f"packages      {len(lines)}, with the versions and digests of {call.chain.name}.lock")
    if torch:
        file.write_text("\n".join(torch), "utf-8")
        call.module(python, *pip, "--extra-index-url", TORCH_WITHOUT_CUDA)
    file.write_text("\n".join(others), "utf-8")
    if uv := shutil.which("uv"):
        try:
            by_uv = (str(Path(uv).absolute()), "pip", "install", "--compile-bytecode", "--python", str(python))
            call.module(python, *by_uv, *exact)
            return
        except ToolFailed as failure:
            call.report(f"packages      uv failed, now with pip ({failure.message.partition(': ')[2]})")
    call.module(python, *pip)
