"""A tool that wants another libc: the loader and the libraries of another root start it, as the kernel itself shows."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from anynpu.capsules import capsule, toolchain
from anynpu.capsules.worker import Worker
from anynpu.errors import ToolFailed, ToolMissing

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux, and a C compiler (apt install gcc)"
)
MAPS = """
#include <stdio.h>
#include <string.h>
int main(void)
{
    char line[4096];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "libc.so.6"))
            return fputs(strchr(line, '/'), stdout) < 0;
    return 1;
}
"""


def libraries(program: Path) -> list[Path]:
    """Returns the loader and the libraries that a program is linked with here."""
    words = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout.split()
    return [Path(word) for word in words if word.startswith("/")]


@pytest.fixture
def tool(tmp_path: Path) -> toolchain.Installed:
    """A compiled program, and a root of its own with copies of this system's loader and libc."""
    folder, root = tmp_path / "tool" / "bin", tmp_path / "root"
    folder.mkdir(parents=True)
    (root / "lib64").mkdir(parents=True)
    (tmp_path / "maps.c").write_text(MAPS)
    subprocess.run(["cc", tmp_path / "maps.c", "-o", folder / "maps"], check=True)
    for path in libraries(folder / "maps"):
        shutil.copy(path, root / "lib64")
    chain = replace(toolchain.read_toolchain("cixbuild"), program="maps", runtime_root=str(root), library_path=())
    return toolchain.installed(chain, folder / "maps")


def run(tool: toolchain.Installed, tmp_path: Path, program: Path) -> str:
    return tool.run([str(program)], cwd=tmp_path, log=tmp_path / "log", timeout_s=60).output.strip()


def test_the_programs_libc_is_that_of_the_root(tool, tmp_path):
    assert run(tool, tmp_path, tool.program) == str(tmp_path / "root" / "lib64" / "libc.so.6")
    plain = replace(tool, toolchain=replace(tool.toolchain, runtime_root=""))
    assert str(tmp_path) not in run(plain, tmp_path, tool.program)


def test_of_a_script_the_interpreter_is_started_so(tool, tmp_path):
    shell = Path("/bin/sh").resolve()
    for path in libraries(shell):
        shutil.copy(path, tmp_path / "root" / "lib64")
    script = tool.program.with_name("script")
    # What grep runs with is the system's; the shell's own memory is what it reads.
    script.write_text("#!/bin/sh\ngrep -m1 -o '/.*libc.so.6' /proc/$$/maps\n")
    script.chmod(0o755)
    assert run(tool, tmp_path, script) == str(tmp_path / "root" / "lib64" / "libc.so.6")


def test_a_root_within_the_tools_own_environment_is_named_by_its_place(tool, tmp_path):
    (tmp_path / "root").rename(tmp_path / "tool" / "sysroot")
    within = replace(tool, toolchain=replace(tool.toolchain, runtime_root="sysroot"))
    assert run(within, tmp_path, tool.program) == str(tmp_path / "tool" / "sysroot" / "lib64" / "libc.so.6")


def test_a_worker_runs_in_it_too(tool, tmp_path):
    python = Path(sys.executable).resolve()
    for path in libraries(python):
        shutil.copy(path, tmp_path / "root" / "lib64")
    own = replace(capsule.capsule_of(tool), python=python)
    with Worker(own, "ai8x_worker", scratch=tmp_path, log=tmp_path / "log") as worker:
        maps, until = Path(f"/proc/{worker._process.pid}/maps"), time.monotonic() + 60
        while "libc.so.6" not in maps.read_text() and time.monotonic() < until:
            time.sleep(0.02)
        assert str(tmp_path / "root" / "lib64" / "libc.so.6") in maps.read_text()
        with pytest.raises(ToolFailed, match="no_such_function"):
            worker.ask("no_such_function", timeout_s=60)


def test_a_root_without_a_loader_is_said_to_be_one(tool, tmp_path):
    empty = replace(tool, toolchain=replace(tool.toolchain, runtime_root=str(tmp_path)))
    with pytest.raises(ToolMissing, match="has no loader"):
        run(empty, tmp_path, tool.program)
