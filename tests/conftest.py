"""Fixtures for every test: a cache folder of their own, and the command line as users call it."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings
from warm import Warm

from anynpu import tool
from anynpu.capsules import toolchain
from anynpu.nursery import warm_children
from anynpu.store import Store

Cli = Callable[..., "subprocess.CompletedProcess[str]"]
CALLED: set[tuple[str, ...]] = set()
"""Verbs that a fresh process has run."""

# The same examples in every run, however slow the machine: a failure is the change's, never chance's.
settings.register_profile("anynpu", deadline=None, derandomize=True)
settings.load_profile("anynpu")

# Background jobs of a shell ignore Ctrl-C, and so would all that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


LONGEST = (
    "firmware/test_models.py",
    "congruence/test_zoo_build.py",
    "toolchain/qnn/test_qnn_target.py",
    "toolchain/ethos_u/test_exact.py",
    "toolchain/cvi/test_cvi_target.py",
    "cli/test_bad_input.py",
    "firmware/test_random.py",
    "congruence/test_quantize.py",
    "toolchain/capsules/test_capsules.py",
    "toolchain/ai8x/test_ai8x_fake.py",
    "firmware/test_clean.py",
)
"""Files that take more than half a minute: they go first, so that no worker is left alone with one at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest files first and leaves all else in its order."""
    places = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.fixture(scope="session", autouse=True)
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the whole run: a step that several tests need is built once; the user's own is not touched."""
    base = tmp_path_factory.getbasetemp()
    cache = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "anynpu-cache"
    os.environ["ANYNPU_CACHE_DIR"] = str(cache)
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):  # of `make test`; a make that a test calls must not know of it
        os.environ.pop(name, None)
    if not os.environ.get("ANYNPU_VENDOR_TESTS"):
        for name in toolchain.names():  # a tool of the user's own is no part of what is tested
            os.environ.pop(toolchain.read_toolchain(name).variable, None)
    return cache


@pytest.fixture(scope="session", autouse=True)
def warm_calls(session_cache: Path) -> Iterator[None]:
    """Children of `tool.call` are forked, as they are within a build, from one process for the whole run."""
    with warm_children():
        yield


@pytest.fixture(scope="module")
def own_children() -> Iterator[None]:
    """For tests of how children come into being: they are started from nothing unless the test forks them itself."""
    kept, tool.forked = tool.forked, None
    yield
    tool.forked = kept


@pytest.fixture(scope="module", autouse=True)
def light_heap() -> None:
    """A measurement collects garbage before it begins: it need not look through all that earlier tests imported."""
    gc.freeze()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    return Store(tmp_path / "own-cache")


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    """A process that has imported much, and forks for each call of the command line."""
    process = Warm()
    yield process
    process.close()


@pytest.fixture(scope="session")
def anywhere(warm: Warm) -> Cli:
    """Calls anynpu in a process of its own, in the folder stated or this one, and returns what it did.

    The first call of every verb is a fresh process, which has imported nothing that the verb does not import itself.
    """

    def call(
        *arguments: str, cwd: Path | None = None, timeout: float = 300, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        folder, env = cwd or Path.cwd(), {**os.environ, **environment}
        verb = arguments[:1]
        if verb in CALLED and warm.fits(env):
            return warm.run(arguments, folder, env, timeout)
        CALLED.add(verb)
        command = [sys.executable, "-m", "anynpu", *arguments]
        return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=timeout)

    return call


@pytest.fixture
def cli(tmp_path: Path, anywhere: Cli) -> Cli:
    """Calls anynpu as `anywhere` does, in the test's own folder by default."""
    return partial(anywhere, cwd=tmp_path)


@pytest.fixture(scope="session")
def test_data() -> Path:
    """Real models for thorough runs; tests that want them are skipped without the variable."""
    folder = os.environ.get("ANYNPU_TEST_DATA")
    if not folder:
        pytest.skip("set ANYNPU_TEST_DATA to the folder with the real models")
    return Path(folder)
