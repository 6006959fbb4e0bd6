"""Child processes: status, time limit, log, environment, and our own functions run apart."""

from __future__ import annotations

import dataclasses
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anynpu import child, tool
from anynpu.errors import AccuracyError, AnyNpuError, ConfigError, Finding, ToolFailed, ToolMissing, Unsupported
from anynpu.nursery import warm_children
from anynpu.schema import from_dict
from anynpu.tensors import TensorSpec

HERE = Path(__file__).parent


@pytest.fixture(scope="module", params=["started", "forked"], autouse=True)
def way(request: pytest.FixtureRequest, own_children: None) -> Iterator[None]:
    """How the children of `call` come into being; nothing else may tell the two apart."""
    with warm_children() if request.param == "forked" else nullcontext():
        yield


class Own(Unsupported):
    """As a plug-in might derive one."""


def answer(value: Any) -> Any:
    print("noise on stdout")
    os.write(1, b"more noise\n")
    return {"value": value, "cwd": str(Path.cwd())}


def widened(spec: TensorSpec, others: tuple[TensorSpec, ...]) -> TensorSpec:
    """Adds an axis for each of the others."""
    return dataclasses.replace(spec, shape=(*spec.shape, *(other.shape[0] for other in others)))


def curious() -> Any:
    return tool.ask("how much?")


def count(total: int) -> None:
    for done in range(total):
        tool.report_progress(done + 1, total)


def refuse(kind: str) -> None:
    if kind == "accuracy":
        raise AccuracyError("too bad", "sqnr_db", np.float32(1.5), 10.0, ["y", "z"], "more data")  # type: ignore[arg-type]
    if kind == "own":
        raise Own("not there", [Finding("batch", "Batch size must be 1.", "conv1")], "export again")
    if kind == "foreign":
        raise ZeroDivisionError("by nothing")
    if kind == "disk":
        raise OSError(28, "No space left on device", "/x/model.onnx")
    if kind == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if kind == "exit":
        os._exit(3)
    if kind == "full":
        os._exit(child.NO_ANSWER_FITS)
    time.sleep(60)


def run(tmp_path: Path, code: str, **more: Any) -> tool.Completed:
    return tool.run([sys.executable, "-c", code], cwd=tmp_path, log=tmp_path / "log", **more)


def call(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> Any:
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    more = {k: arguments.pop(k) for k in ("timeout_s", "progress") if k in arguments}
    return tool.call(f"test_tool:{name}", arguments, scratch=tmp_path, log=tmp_path / "log", **more)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def gone(pid: int, patience_s: float = 5) -> bool:
    deadline = time.monotonic() + patience_s
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


def test_output_comes_back_and_goes_to_the_log(tmp_path: Path) -> None:
    done = run(tmp_path, "import sys; print('out'); print('err', file=sys.stderr)")
    assert sorted(done.output.split()) == ["err", "out"]
    log = (tmp_path / "log").read_text()
    assert log.startswith("$ ") and "out\n" in log and "err\n" in log


def test_a_failure_carries_status_log_and_last_lines(tmp_path: Path) -> None:
    with pytest.raises(ToolFailed) as caught:
        run(tmp_path, "import sys\nfor i in range(50): print('line', i)\nsys.exit(7)", hint="try harder")
    error = caught.value
    assert error.status == 7 and "failed with status 7" in error.message and error.hint == "try harder"
    assert error.last_lines[-1] == "line 49" and len(error.last_lines) == tool.LAST_LINES
    assert error.log == str(tmp_path / "log") and error.argv[0] == sys.executable


def test_a_signal_is_named(tmp_path: Path) -> None:
    with pytest.raises(ToolFailed, match="failed with signal SIGABRT") as caught:
        run(tmp_path, "import os; os.abort()")
    assert caught.value.status == -signal.SIGABRT


def test_bytes_that_are_no_text_do_not_matter(tmp_path: Path) -> None:
    assert "ok" in run(tmp_path, r"import os; os.write(1, b'\xff\xfe ok\n')").output


GRANDCHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"] {quiet})
open("pid", "w").write(str(child.pid))
{then}
"""
QUIET = ", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL"


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc to look at processes")
@pytest.mark.parametrize(
    ("quiet", "then"),
    [("", "time.sleep(60)"), ("", ""), (QUIET, "time.sleep(60)")],
    ids=["both wait", "the leader has ended", "the grandchild is detached"],
)
def test_the_time_limit_kills_the_whole_group(tmp_path: Path, quiet: str, then: str) -> None:
    started = time.monotonic()
    with pytest.raises(ToolFailed, match="did not finish within 1 s"):
        run(tmp_path, GRANDCHILD.format(quiet=quiet, then=then), timeout_s=1)
    assert time.monotonic() - started < 50
    assert gone(int((tmp_path / "pid").read_text()))


def test_a_program_that_closes_its_output_is_limited_too(tmp_path: Path) -> None:
    with pytest.raises(ToolFailed, match="did not finish within 1 s"):
        run(tmp_path, "import os, time; os.close(1); os.close(2); time.sleep(60)", timeout_s=1)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc to look at processes")
def test_nothing_stays_in_the_background_after_a_success(tmp_path: Path) -> None:
    run(tmp_path, GRANDCHILD.format(quiet=QUIET, then=""))
    assert gone(int((tmp_path / "pid").read_text()))


def test_a_question_finds_no_answer_instead_of_waiting(tmp_path: Path) -> None:
    with pytest.raises(ToolFailed) as caught:
        run(tmp_path, "input('overwrite? ')", timeout_s=20)
    assert "EOFError" in caught.value.last_lines[-1]


def test_a_disk_too_full_for_an_answer_is_an_error_of_the_parent_and_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.setattr(os, "_exit", lambda status: pytest.fail(f"the parent ends with status {status}"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def too_much(question: str) -> str:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        return question * 1000

    function = "test_tool:curious"
    try:
        with pytest.raises(OSError, match="File too large"):
            tool.call(function, {}, scratch=tmp_path, log=tmp_path / "log", timeout_s=60, answer=too_much)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not (tmp_path / tool.ANSWER).exists()
    assert tool.call(function, {}, scratch=tmp_path, log=tmp_path / "log", timeout_s=60, answer=len) == len("how much?")


def test_the_environment_is_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "x")
    done = run(tmp_path, "import os; print(sorted(os.environ))", environment={"MINE": "1"})
    assert "SECRET_TOKEN" not in done.output and "'MINE'" in done.output and "'PATH'" in done.output


def test_a_missing_program_is_a_missing_tool(tmp_path: Path) -> None:
    with pytest.raises(ToolMissing, match="no-such-compiler: no such program") as caught:
        tool.run(["no-such-compiler"], cwd=tmp_path, log=tmp_path / "log", hint="install it")
    assert caught.value.hint == "install it"
    with pytest.raises(ToolMissing, match="no-such-package is not installed"):
        tool.version_of("no-such-package")


def test_call_returns_the_result_whatever_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    found = call(tmp_path, "answer", monkeypatch, value=[1, "ü"])
    assert found == {"value": [1, "ü"], "cwd": str(Path.cwd())}
    assert capfd.readouterr() == ("", "")
    assert "more noise" in (tmp_path / "log").read_text()
    assert [p.name for p in tmp_path.iterdir()] == ["log"]


def test_dataclasses_cross_as_the_annotations_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = TensorSpec("x", (1, 2), "int8")
    answer = call(tmp_path, "widened", monkeypatch, spec=spec, others=(TensorSpec("y", (3,), "int8"),))
    assert from_dict(TensorSpec, answer, "answer") == TensorSpec("x", (1, 2, 3), "int8")
    with pytest.raises(ConfigError, match="widened: spec: shap: no such setting"):
        call(tmp_path, "widened", monkeypatch, spec={"name": "x", "shap": []}, others=())


def test_call_passes_progress_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[int, int]] = []
    call(tmp_path, "count", monkeypatch, total=3, progress=lambda done, total: heard.append((done, total)))
    assert heard == [(1, 3), (2, 3), (3, 3)]


def test_our_errors_cross_with_every_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AccuracyError) as caught:
        call(tmp_path, "refuse", monkeypatch, kind="accuracy")
    error = caught.value
    assert (error.metric, error.got, error.wanted, error.worst) == ("sqnr_db", 1.5, 10.0, ("y", "z"))
    assert str(error) == "too bad" and error.hint == "more data"


def test_a_derived_error_arrives_as_the_kind_it_is_derived_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Unsupported) as caught:
        call(tmp_path, "refuse", monkeypatch, kind="own")
    assert caught.value.findings == (Finding("batch", "Batch size must be 1.", "conv1"),)


def test_a_foreign_error_is_a_failed_tool_with_its_last_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ToolFailed, match=r"^ZeroDivisionError: by nothing$") as caught:
        call(tmp_path, "refuse", monkeypatch, kind="foreign")
    assert "ZeroDivisionError: by nothing" in caught.value.last_lines[-1]
    assert caught.value.log == str(tmp_path / "log")


@pytest.mark.parametrize(
    ("kind", "words"), [("crash", r"ended without an answer \(signal SIGSEGV\)"), ("exit", r"\(status 3\)")]
)
def test_a_crash_is_a_failed_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, words: str) -> None:
    with pytest.raises(ToolFailed, match=words):
        call(tmp_path, "refuse", monkeypatch, kind=kind)


@pytest.mark.parametrize("kind", ["disk", "full"])
def test_a_full_disk_in_the_child_is_one_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    with pytest.raises(OSError, match="No space left") as caught:
        call(tmp_path, "refuse", monkeypatch, kind=kind)
    assert caught.value.errno == 28 and not isinstance(caught.value, AnyNpuError)


def test_call_has_a_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ToolFailed, match="did not finish within 1 s"):
        call(tmp_path, "refuse", monkeypatch, kind="sleep", timeout_s=1)


def test_files_of_the_users_folder_do_not_hide_the_standard_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('hidden')")
    (tmp_path / "mine.py").write_text("def give(): return 5")
    monkeypatch.chdir(tmp_path)
    assert tool.call("mine:give", {}, scratch=tmp_path, log=tmp_path / "log") == 5


def test_an_unknown_function_is_an_error_and_no_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises((ToolFailed, ConfigError), match="no_such"):
        call(tmp_path, "no_such", monkeypatch)
