"""Forked children: apart from us and from each other, in the call's own surroundings, and gone when we are."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from anynpu import nursery, tool
from anynpu.errors import ToolFailed

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="children are forked on Linux alone"),
    pytest.mark.usefixtures("own_children"),
]
HERE = Path(__file__).parent


def surroundings(name: str = "") -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "group": os.getpgid(0),
        "modules": "numpy" in sys.modules,
        "folder": str(Path.cwd()),
        "variable": os.environ.get(name),
        "files": resource.getrlimit(resource.RLIMIT_FSIZE)[0],
        "descriptors": sorted(path.name for path in Path("/proc/self/fd").iterdir()),
        "threads": len(list(Path("/proc/self/task").iterdir())),
    }


def compute(seed: int) -> float:
    """Uses the threads of numpy's BLAS and of ONNX Runtime, which a fork does not take along."""
    import numpy as np
    from onnx import TensorProto, helper
    from onnxruntime import InferenceSession

    draw = np.random.default_rng(seed)
    a, b = (draw.random((200, 200), np.float32) for _ in range(2))
    sides = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, [200, 200]) for n in names] for names in ("ab", "c")]
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["c"])], "product", *sides)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = InferenceSession(model.SerializeToString()).run(None, {"a": a, "b": b})[0]
    return float(np.abs(found - a @ b).max())


def linger(place: str, end: str = "") -> str:
    """Says where it is and stays until a file appears."""
    Path(place).write_text(str(os.getpid()))
    while not end or not Path(end).exists():
        time.sleep(0.02)
    return "ended"


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Calls a function of this file in a forked child."""
    monkeypatch.setenv("PYTHONPATH", str(HERE))

    def ask(function: str, **arguments: Any) -> Any:
        room = tmp_path / f"room{time.monotonic_ns()}"
        room.mkdir()
        return tool.call(f"test_nursery:{function}", arguments, scratch=room, log=room / "log", timeout_s=120)

    with nursery.warm_children():
        yield ask


def gone(pid: int) -> bool:
    """Waits until a process has ended; one that only nobody has waited for has ended too."""
    for _ in range(600):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith(("Z", "X")):
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.1)
    return False


def test_a_child_is_apart_and_finds_the_call_s_surroundings(call, tmp_path, monkeypatch):
    first = call("surroundings")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANYNPU_TEST_MARK", "here")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10**9, before[1]))
    try:
        second = call("surroundings", name="ANYNPU_TEST_MARK")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len({first["pid"], second["pid"], os.getpid()}) == 3
    assert second["pid"] == second["group"] and second["modules"]
    assert second["folder"] == str(tmp_path) and second["variable"] == "here" and second["files"] == 10**9
    assert second["descriptors"] == first["descriptors"] and len(second["descriptors"]) <= 4
    assert gone(first["pid"]) and gone(second["pid"])


def test_what_decides_at_import_starts_another_nursery(call, monkeypatch):
    assert call("surroundings", name="OMP_NUM_THREADS")["variable"] == os.environ.get("OMP_NUM_THREADS")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = call("surroundings", name="OMP_NUM_THREADS")
    assert found["variable"] == "1" and found["threads"] == 2  # itself and the one that waits for our end


def test_a_child_outlives_the_nursery(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    place = tmp_path / "pid"

    def one() -> Any:
        arguments = {"place": str(place), "end": str(tmp_path / "end")}
        return tool.call("test_nursery:linger", arguments, scratch=tmp_path, log=tmp_path / "log", timeout_s=120)

    with ThreadPoolExecutor(1) as pool:
        with nursery.warm_children():
            waiting = pool.submit(one)
            while not place.is_file():
                assert not waiting.done()
                time.sleep(0.02)
        (tmp_path / "end").touch()
        assert waiting.result() == "ended"


def test_many_at_once_compute_right(call):
    with ThreadPoolExecutor(4) as pool:
        assert max(pool.map(lambda seed: call("compute", seed=seed), range(8))) < 1e-3


def test_a_killed_nursery_is_made_up_for(call):
    first = call("surroundings")
    mother = int(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()[-1])
    assert b"anynpu.nursery" in Path(f"/proc/{mother}/cmdline").read_bytes()
    os.kill(mother, signal.SIGKILL)
    assert call("surroundings")["pid"] != first["pid"] and call("surroundings")["modules"]


def test_a_forked_process_of_ours_does_without(call):
    call("surroundings")
    ours, theirs = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.write(theirs, b"apart" if not call("surroundings")["modules"] else b"forked")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(ours, 10) == b"apart"


PARENT = """
import sys
from pathlib import Path
from anynpu import nursery, tool
room = Path(sys.argv[1])
with nursery.warm_children():
    tool.call("test_nursery:linger", {"place": str(room / "pid")}, scratch=room, log=room / "log")
"""


def test_the_death_of_the_parent_ends_the_child_and_the_nursery(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)])
    place = tmp_path / "pid"
    while not (place.is_file() and place.read_text()):
        assert parent.poll() is None
        time.sleep(0.05)
    (mother,) = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    parent.kill()
    parent.wait()
    assert gone(int(place.read_text())) and gone(int(mother))


def test_a_limit_kills_a_forked_child(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    place = tmp_path / "pid"
    with nursery.warm_children(), pytest.raises(ToolFailed, match="did not finish within 5 s"):
        tool.call("test_nursery:linger", {"place": str(place)}, scratch=tmp_path, log=tmp_path / "log", timeout_s=5)
    assert not place.is_file() or gone(int(place.read_text()))


PROGRAM = """
import os, sys
print("warm" if "numpy" in sys.modules else "cold", sys.argv[1:], os.path.basename(os.getcwd()), flush=True)
os.write(1, b"native\\n")
print("last")
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("status", [0, 3])
def test_a_program_that_is_a_module_is_forked_too(status, tmp_path, monkeypatch):
    package, room = tmp_path / "compiler", tmp_path / "room"
    package.mkdir()
    room.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(f"if __name__ == '__main__':\n{textwrap.indent(PROGRAM, '    ')}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    argv = [sys.executable, "-m", "compiler", str(status), "--goal", "size"]
    environment = {**tool.python_environment(), "PYTHONUNBUFFERED": "1"}
    how = {"cwd": room, "log": tmp_path / "log", "environment": environment, "called": "Compiler"}
    with nursery.warm_children():
        if status:
            with pytest.raises(ToolFailed, match="Compiler failed with status 3") as failed:
                tool.run(argv, **how, spawned_by=tool.forked)
            assert failed.value.last_lines[-1] == "last"
            return
        forked = tool.run(argv, **how, spawned_by=tool.forked).output
    started = tool.run(argv, **how).output
    assert forked.splitlines() == ["warm ['0', '--goal', 'size'] room", "native", "last"]
    assert forked.replace("warm", "cold") == started
