"""A toolchain made of a wheel of our own, installed by the real pip without a network."""

from __future__ import annotations

import base64
import hashlib
import socket
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PYTHON = ".".join(map(str, sys.version_info[:2]))
CODE = """\
import importlib.util, os, sys, time
def main():
    if "--hang" in sys.argv:
        time.sleep(600)
    if os.path.exists(os.path.join(os.path.dirname(__file__), "libc.so.6")):
        sys.exit("fake_tool: version `GLIBC_9.99' not found")
    print("fake-tool 1.0", importlib.util.find_spec("fake_stub") is not None, os.environ.get("FAKE_MODE"))
"""
FACTS = """\
name = "fake"
title = "a tool for tests"
program = "fake-tool"
variable = "FAKE_TOOL_PATH"
package = "fake-tool"
python = "{python}"
machine = ""
licence = "yours"
get = "anynpu tool install fake"
source = "made by the test"
packages = ["{package}"]
needs = {needs}
aside = ["fake_tool/libc.so.6"]
stubs = {{ "fake_stub/__init__.py" = "torch_stub.py.txt" }}
probe = ["fake-tool"{flag}]
expects = "fake-tool 1.0 True quiet"
megabytes = {megabytes}
minutes = 0.1
[environment]
FAKE_MODE = "quiet"
[[says]]
pattern = "version `?(?P<what>GLIBC_[\\\\d.]+)'? not found"
hint = "move {{what}} aside"
source = "made up"
"""


def write_wheel(folder: Path) -> None:
    """Writes fake_tool 1.0: a program, and a file that breaks it until it is moved aside."""
    files = {
        "fake_tool/__init__.py": CODE,
        "fake_tool/libc.so.6": "harm",
        "fake_tool-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: fake-tool\nVersion: 1.0\n",
        "fake_tool-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "fake_tool-1.0.dist-info/entry_points.txt": "[console_scripts]\nfake-tool = fake_tool:main\n",
    }
    rows = []
    with zipfile.ZipFile(folder / "fake_tool-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            rows.append(f"{name},sha256={digest},{len(text)}")
            wheel.writestr(name, text)
        wheel.writestr("fake_tool-1.0.dist-info/RECORD", "\n".join([*rows, "fake_tool-1.0.dist-info/RECORD,,", ""]))


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of wheels, the only place where pip looks."""
    folder = tmp_path_factory.mktemp("wheels")
    write_wheel(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(folder))
        patch.setenv("PIP_CONFIG_FILE", "/dev/null")
        patch.delenv("FAKE_TOOL_PATH", raising=False)
        yield folder


Facts = Callable[..., str]


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """Writes the toolchain's file, some values changed, and its lock file if there is one; returns the first's path."""

    def write(lock: str = "", **changed: object) -> str:
        values = {"python": PYTHON, "package": "fake-tool==1.0", "needs": "[]", "flag": "", "megabytes": 20, **changed}
        path = tmp_path_factory.mktemp("facts") / "fake.toml"
        path.write_text(FACTS.format(**values))
        if lock:
            path.with_suffix(".lock").write_text(lock)
        return str(path)

    return write


@pytest.fixture
def silent_index(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A package index that takes connections and never answers: pip waits."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(300)
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.delenv("PIP_FIND_LINKS")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.getsockname()[1]}/simple")
        monkeypatch.setenv("NO_PROXY", "*")
        yield server
