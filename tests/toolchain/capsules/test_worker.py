"""A process in a capsule answers, refuses, fails, crashes and hangs, and each is told apart."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from anynpu.capsules import capsule, worker
from anynpu.errors import ToolFailed, Unsupported
from anynpu.testing.capsules import write_environment

SCRIPT = """
import os, signal, sys, time
import numpy as np
import serve
print("noise on stdout")

def double(factor, arrays=None):
    os.write(1, b"more noise\\n")
    serve.progress(1, 2)
    serve.progress(2, 2)
    return {"factor": factor, "pid": os.getpid()}, {name: array * factor for name, array in (arrays or {}).items()}

def refuse():
    raise serve.Unsupported("no such operator: Foo")

def fail():
    import not_there

def crash():
    os.kill(os.getpid(), signal.SIGSEGV)

def hang():
    time.sleep(600)

def garble():
    serve._answers[0].write(b"{not json}\\n")
    serve._answers[0].flush()
    time.sleep(600)
"""


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[worker.Worker]:
    root = write_environment(tmp_path / "env", {"toy_worker.py": SCRIPT}, {"onnxruntime-qnn": "2.7.0"})
    monkeypatch.setenv("ONNXRUNTIME_QNN_PATH", str(root))
    with worker.Worker(capsule.find("qnn"), "toy_worker", scratch=tmp_path, log=tmp_path / "log") as running:
        yield running


def test_arrays_go_there_and_back_and_prints_go_to_the_log(room: worker.Worker, tmp_path: Path) -> None:
    given = {"a": np.arange(6, dtype=np.int8).reshape(2, 3), "empty": np.zeros((0, 4), np.float32)}
    seen: list[tuple[int, int]] = []
    result, arrays = room.ask("double", {"factor": 3}, given, progress=lambda *at: seen.append(at))
    assert result["factor"] == 3 and seen == [(1, 2), (2, 2)]
    np.testing.assert_array_equal(arrays["a"], given["a"] * 3)
    assert arrays["a"].dtype == np.int8 and arrays["empty"].shape == (0, 4)
    again, _ = room.ask("double", {"factor": 1})
    assert again["pid"] == result["pid"]
    assert "more noise" in (tmp_path / "log").read_text()


def test_a_refusal_is_unsupported(room: worker.Worker) -> None:
    with pytest.raises(Unsupported, match="no such operator: Foo"):
        room.ask("refuse")


def test_an_exception_names_itself_and_the_hint_of_the_toolchain(room: worker.Worker, tmp_path: Path) -> None:
    with pytest.raises(ToolFailed, match="No module named 'not_there'") as failure:
        room.ask("fail")
    assert "not_there is missing from its environment" in failure.value.hint
    assert failure.value.log == str(tmp_path / "log") and any("Traceback" in line for line in failure.value.last_lines)


@pytest.mark.parametrize(
    ("function", "words"),
    [("crash", "SIGSEGV"), ("hang", "did not finish within 2 s"), ("garble", "ended in its midst")],
)
def test_a_crash_a_hang_and_garbage_end_the_process(room: worker.Worker, function: str, words: str) -> None:
    room.ask("double", {"factor": 1})
    with pytest.raises(ToolFailed, match=words):
        room.ask(function, timeout_s=2 if function == "hang" else 60)
    with pytest.raises(ToolFailed, match="ended in its midst"):
        room.ask("double", {"factor": 1}, timeout_s=60)


def test_closing_ends_the_process(room: worker.Worker) -> None:
    result, _ = room.ask("double", {"factor": 1})
    room.close()
    time.sleep(0.1)
    with pytest.raises(ProcessLookupError):
        os.kill(result["pid"], 0)
