"""The NOE session over the fake library: results, failures, threads, endurance, and how programs end."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import threading
import time
import tracemalloc
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE, Popen

import numpy as np
import pytest
from fake_noe import SMALL_IN, SMALL_OUT, journal, names, run_program, small

from anynpu.errors import ConfigError, DeviceError, IntegrityError, ToolMissing
from anynpu.runtime.base import choose
from anynpu.runtime.noe import client
from anynpu.runtime.noe.session import NoeSession
from anynpu.testing import conformance, noe

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler (package gcc)")
MODES = pytest.mark.parametrize("isolate", [True, False], ids=["isolated", "in-process"])
X = np.arange(6, dtype=np.int8).reshape(1, 6)


def expected(x=X):
    return noe.expect_mix([x], [SMALL_OUT])[0]


@MODES
def test_every_run_gives_what_the_model_computes(isolate, library, model, tmp_path):
    with noe.switches(library, JOURNAL=tmp_path / "calls"):
        opened = NoeSession(model, isolate=isolate)
        for n in range(5):  # the fake overwrites the inputs of a job, as a device may
            assert np.array_equal(opened.run({"x": X + n})["y"], expected(X + n))
        opened.close()
    hot = [name for name in names(tmp_path / "calls") if name.endswith(("_tensor", "_sync"))]
    assert hot == ["noe_load_tensor", "noe_job_infer_sync", "noe_get_tensor"] * 5
    assert names(tmp_path / "calls").count("noe_create_job") == 1
    assert names(tmp_path / "calls")[-3:] == ["noe_clean_job", "noe_unload_graph", "noe_deinit_context"]


def test_it_keeps_the_contract_of_sessions(library, model, tmp_path):
    with noe.switches(library):
        assert choose("cix") is NoeSession
        conformance.check_session(NoeSession, model, tmp_path / "kit")


@MODES
def test_real_numbers_are_quantised_as_the_vendor_does(isolate, library, model):
    real = np.linspace(-80, 80, 6, dtype=np.float32).reshape(1, 6)
    vendor_scale, vendor_zero_point = 2.0, -3
    stored = np.clip(np.rint(real * vendor_scale - vendor_zero_point), -128, 127).astype(np.int8)
    with noe.switches(library):
        opened = NoeSession(model, isolate=isolate)
        assert np.array_equal(opened.inputs[0].to_stored(real), stored)
        out = opened.run({"x": stored})["y"]
        opened.close()
    assert np.allclose(opened.outputs[0].to_real(out), (out.astype(np.float32) + 2) / 4)


@MODES
def test_inputs_may_lie_anywhere_and_the_stages_are_told(isolate, library, tmp_path):
    with noe.switches(library, DELAY_US=3000):
        opened = NoeSession(noe.clip_image(tmp_path / "m"), isolate=isolate)
        pixels = np.arange(3 * 224 * 224).astype(np.int8).reshape(1, 224, 224, 3).transpose(0, 3, 1, 2)
        assert opened.stages() == {}
        began = time.perf_counter_ns()
        got = opened.run({"image": pixels})["embedding"]
        took = time.perf_counter_ns() - began
        opened.close()
    assert np.array_equal(got, noe.expect_image(np.ascontiguousarray(pixels)))
    stages = opened.stages()
    assert list(stages) == ["copy in", "hand over", "device", "copy out"]
    assert stages["device"] >= 3_000_000 and 0 < sum(stages.values()) <= took


@MODES
def test_what_the_device_says_of_itself(isolate, library, model):
    with noe.switches(library, TARGET="X2_1204MP3", KMD_VERSION="5.11.1", SHAPES="1x3x8x8:1x3x16x16"):
        opened = NoeSession(model, isolate=isolate)
        info = opened.info()
        assert (info.target, info.library, info.driver) == ("X2_1204MP3", "0.6.0", "5.11.1") and info.cores == ((3,),)
        assert opened.dynamic_shapes() == (((1, 3, 8, 8), (1, 3, 16, 16)),)
        opened.close()


@MODES
@pytest.mark.parametrize(
    "wrong", [{}, {"z": X}, {"x": X, "z": X}, {"x": X[:, :5]}, {"x": X.astype(np.uint8)}, {"x": X.astype(np.float32)}]
)
def test_what_does_not_fit_never_reaches_the_library(isolate, wrong, library, model, tmp_path):
    with noe.switches(library, JOURNAL=tmp_path / "calls"):
        opened = NoeSession(model, isolate=isolate)
        with pytest.raises(ConfigError):
            opened.run(wrong)
        assert "noe_load_tensor" not in names(tmp_path / "calls")
        assert np.array_equal(opened.run({"x": X})["y"], expected())
        opened.close()


@MODES
def test_an_exception_of_the_device_is_told_and_the_next_run_works(isolate, library, model, tmp_path):
    with noe.switches(library, EXCEPTION=2, MOST_JOBS=1, TRAP_CLEANED=1, JOURNAL=tmp_path / "calls"):
        opened = NoeSession(model, isolate=isolate)
        opened.run({"x": X})
        with pytest.raises(DeviceError, match=r"0x11 .JOB_EXCEPTION") as caught:
            opened.run({"x": X})
        assert caught.value.code == 0x11 and caught.value.cause and caught.value.hint
        assert np.array_equal(opened.run({"x": X})["y"], expected())
        opened.close()
    assert names(tmp_path / "calls").count("noe_create_job") == 2


@MODES
def test_a_job_that_timed_out_is_thrown_away(isolate, library, model, tmp_path):
    with noe.switches(library, HANG=1, MOST_JOBS=1, TRAP_CLEANED=1, JOURNAL=tmp_path / "calls"):
        opened = NoeSession(model, timeout_ms=30, isolate=isolate)
        with pytest.raises(DeviceError, match=r"0x23 .TIMEOUT"):
            opened.run({"x": X})
        assert names(tmp_path / "calls")[-2:] == ["noe_job_infer_sync", "noe_clean_job"]
        assert np.array_equal(opened.run({"x": X})["y"], expected())
        opened.close()


def test_a_library_that_never_returns_is_ended(library, model, monkeypatch):
    monkeypatch.setattr(client, "GRACE_S", 0.1)
    with noe.switches(library, STUCK=1):
        opened = NoeSession(model, timeout_ms=50)
        worker, began = opened.worker, time.monotonic()
        with pytest.raises(DeviceError, match="did not return"):
            opened.run({"x": X})
        assert time.monotonic() - began < 60
    with noe.switches(library):
        assert np.array_equal(opened.run({"x": X})["y"], expected()) and opened.worker != worker
        opened.close()


STUCK = """
import sys
from pathlib import Path
import numpy as np
from anynpu.artifact import Artifact
from anynpu.errors import DeviceError
from anynpu.runtime.noe import engines, local, session
engines.GRACE_S, local.CLOSE_S = 0.1, 0.5
opened = session.NoeSession(Artifact.open(Path(sys.argv[1])), timeout_ms=50, isolate=False)
for _ in range(2):
    try:
        opened.run({"x": np.zeros((1, 6), np.int8)})
    except DeviceError as error:
        print(error.message)
"""


def test_a_library_that_never_returns_in_our_process_is_given_up(library, model):
    done = run_program(STUCK, model.path, **noe.environment(library, STUCK=1, CLEAN_EXIT=1))
    first, second = done.stdout.splitlines()
    assert "did not return within 0.15 s" in first and "hangs in this process" in second, done.stderr


def test_a_crash_in_the_library_is_an_error_and_the_next_run_works(library, model, tmp_path):
    with noe.switches(library, CRASH=3):
        opened, other = NoeSession(model), NoeSession(small(tmp_path / "other"))
        assert opened.worker == other.worker != os.getpid()
        kept = opened.run({"x": X})
        opened.run({"x": X + 1})
        with pytest.raises(DeviceError, match=r"libnoe crashed in an inference .SIGSEGV") as caught:
            other.run({"x": X})
        assert "process of its own" in caught.value.cause
        assert np.array_equal(kept["y"], expected())
        for each in (opened, other):  # each is loaded again, in one new process
            assert np.array_equal(each.run({"x": X})["y"], expected())
        assert opened.worker == other.worker
        opened.close()
        other.close()


def test_a_crash_while_loading_leaves_nothing_behind(library, model):
    with noe.switches(library, CRASH_LOAD=1), pytest.raises(DeviceError, match=r"crashed in load .SIGSEGV"):
        NoeSession(model)
    with noe.switches(library):
        opened = NoeSession(model)
        assert np.array_equal(opened.run({"x": X})["y"], expected())
        opened.close()


@MODES
@pytest.mark.parametrize("status", [0x8, 0x9, 0xA])
def test_a_refused_model(isolate, status, library, model, tmp_path):
    if status == 0x8 and not isolate:
        pytest.skip("nothing can be done in one process: with deinit the library crashes now, without it at the end")
    calls = tmp_path / "calls"
    with noe.switches(library, LOAD_STATUS=status, JOURNAL=calls):
        with pytest.raises(DeviceError) as caught:
            NoeSession(model, isolate=isolate)
        assert caught.value.code == status and caught.value.call == "noe_load_graph_helper" and caught.value.hint
    assert names(calls) == ["noe_init_context", "noe_load_graph_helper"] + ["noe_deinit_context"] * (status != 0x8)
    with noe.switches(library):
        opened = NoeSession(model, isolate=isolate)
        assert np.array_equal(opened.run({"x": X})["y"], expected())
        opened.close()


@MODES
@pytest.mark.parametrize("switch", [{"SIZE_ADD": 4}, {"ZERO_ADD": 1}, {"DTYPE": 2}])
def test_a_library_that_says_other_than_the_file_is_not_believed(isolate, switch, library, model, tmp_path):
    said = pytest.raises(IntegrityError, match="output y: libnoe says")
    with noe.switches(library, JOURNAL=tmp_path / "calls", **switch), said:
        NoeSession(model, isolate=isolate)
    assert names(tmp_path / "calls")[-2:] == ["noe_unload_graph", "noe_deinit_context"]


def test_a_damaged_file_or_a_wrong_manifest_never_reaches_the_library(library, model, tmp_path):
    with noe.switches(library, JOURNAL=tmp_path / "calls"):
        lies = replace(model.manifest, inputs=(replace(SMALL_IN, shape=(1, 7)),))
        with pytest.raises(IntegrityError, match="the manifest contradicts the model about tensor x"):
            NoeSession(replace(model, manifest=lies))
        whole = model.main.read_bytes()
        for content in (b"", b"version https://git-lfs.github.com/spec/v1\n", whole[:-9], b"\0" * 500):
            model.main.write_bytes(content)
            with pytest.raises(IntegrityError):
                NoeSession(model)
    assert journal(tmp_path / "calls") == []


@MODES
def test_without_a_device_stdout_stays_empty(isolate, library, model, capfd):
    with noe.switches(library, INIT_STATUS=0x3), pytest.raises(DeviceError, match=r"0x3 .OPEN_DEV_FAIL") as caught:
        NoeSession(model, isolate=isolate)
    assert "doctor" in caught.value.hint and capfd.readouterr().out == ""


def test_a_library_that_prints_with_every_call_is_not_heard(library, model, capfd, tmp_path, monkeypatch):
    monkeypatch.setenv("ANYNPU_NOE_LOG", str(tmp_path / "log"))
    with noe.switches(library, NOISY=1, EXCEPTION=2):
        opened = NoeSession(model)
        opened.run({"x": X})
        with pytest.raises(DeviceError):
            opened.run({"x": X})
        opened.close()
    assert capfd.readouterr().out == ""
    log = (tmp_path / "log").read_text()
    assert "[UMD INFO] noe_job_infer_sync" in log and "[UMD ERROR] noe_job_infer_sync: status 0x11" in log


@MODES
def test_eight_threads_and_two_models_are_served_by_one_thread_of_the_device(isolate, library, model, tmp_path):
    wrong: list[str] = []

    def work(n, opened):
        for k in range(60):
            x = (X * n + k).astype(np.int8)
            if not np.array_equal(opened.run({"x": x})["y"], expected(x)):
                wrong.append(f"thread {n}, run {k}")

    with noe.switches(library, ONE_THREAD=1, TRAP_CLEANED=1, JOURNAL=tmp_path / "calls"):
        both = NoeSession(model, isolate=isolate), NoeSession(small(tmp_path / "two"), isolate=isolate)
        threads = [threading.Thread(target=work, args=(n, both[n % 2])) for n in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        for each in both:
            each.close()
    assert wrong == [] and len({(pid, tid) for pid, tid, _ in journal(tmp_path / "calls")}) == 1
    assert names(tmp_path / "calls").count("noe_job_infer_sync") == 480


def test_crashes_under_eight_threads_hang_nobody_and_leak_nothing(library, model):
    wrong, failed = [], []

    def work(n, opened):
        for k in range(40):
            x = (X * n + k).astype(np.int8)
            try:
                if not np.array_equal(opened.run({"x": x})["y"], expected(x)):
                    wrong.append(f"thread {n}, run {k}")
            except DeviceError as error:
                failed.append(error.message)

    with noe.switches(library, CRASH=60):
        opened = NoeSession(model)
        gc.collect()  # what earlier tests left open would be closed at some moment of this one
        before = held(os.getpid())[1]
        threads = [threading.Thread(target=work, args=(n, opened), daemon=True) for n in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
        assert not any(each.is_alive() for each in threads)
        try:
            opened.run({"x": X})
        except DeviceError:  # the worker's 60th job: the next one has a new worker
            opened.run({"x": X})
        assert held(os.getpid())[1] <= before
        opened.close()
    # 320 runs in processes that die with the 60th: five deaths, each told to everybody who was waiting.
    assert wrong == [] and 4 <= sum("SIGSEGV" in message for message in failed) <= 48
    assert {message.partition(" in an inference")[0] for message in failed} == {"libnoe crashed"}


def held(pid: int) -> tuple[int, int]:
    """The resident memory of a process in KiB and how many descriptors it has."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024, len(list(Path(f"/proc/{pid}/fd").iterdir()))


@MODES
def test_ten_thousand_inferences_take_no_more_memory_and_no_descriptors(isolate, library, model):
    with noe.switches(library, EXCEPTION=500):
        opened = NoeSession(model, isolate=isolate)
        processes = {os.getpid(), opened.worker}
        for _ in range(1000):
            with suppress(DeviceError):  # the backtrace that the fake prints loads a library
                opened.run({"x": X})
        gc.collect()
        before = {pid: held(pid) for pid in processes}
        for _ in range(10_000):
            opened.run({"x": X})
        after = {pid: held(pid) for pid in processes}
        opened.close()
    for pid in processes:
        assert after[pid][1] <= before[pid][1], "descriptors"
        # Python takes memory a MiB at a time: one such step in 120,000 inferences was seen, and no second.
        assert after[pid][0] - before[pid][0] < 1200, f"{before[pid][0]} KiB grew to {after[pid][0]} KiB"


@MODES
def test_a_run_allocates_its_outputs_and_nothing_else_of_that_size(isolate, library, tmp_path):
    with noe.switches(library):
        opened = NoeSession(noe.yolo(tmp_path / "m"), isolate=isolate)
        given = {"images": np.zeros(noe.PICTURE.shape, np.uint8)}
        opened.run(given)
        tracemalloc.start()
        outputs = opened.run(given)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        opened.close()
    # So an input of 1.2 MB is copied at most once, into memory that was there before, and an output once.
    assert noe.BOXES.nbytes <= outputs["output0"].nbytes <= peak < noe.BOXES.nbytes + 100_000


@MODES
def test_opening_and_closing_leaves_nothing_open(isolate, library, model):
    with noe.switches(library):
        for n in range(12):
            NoeSession(model, isolate=isolate).close()
            if n == 3:
                gc.collect()
                descriptors, threads = held(os.getpid())[1], threading.active_count()
    # Eight sessions later: an earlier test's may have ended meanwhile, and none of these stayed.
    assert held(os.getpid())[1] <= descriptors and threading.active_count() <= threads


PROGRAM = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
from anynpu.artifact import Artifact
from anynpu.runtime.noe.session import NoeSession
session = NoeSession(Artifact.open(Path(sys.argv[1])))
y = session.run({"x": np.zeros((1, 6), np.int8)})["y"]
print(y.tolist(), flush=True)
"""
ENDINGS = {
    "pass": 0,
    "raise SystemExit(3)": 3,
    "1 // 0": 1,
    "os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)": -signal.SIGTERM,
    "os.kill(os.getpid(), signal.SIGHUP); time.sleep(5)": -signal.SIGHUP,
    "os.kill(os.getpid(), signal.SIGINT); time.sleep(5)": -signal.SIGINT,
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9)); os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)": 9,
}


@pytest.mark.parametrize("isolate", ["1", "0"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_the_exit_status_stays_ours(ending, isolate, library, model, tmp_path):
    environment = noe.environment(library, JOURNAL=tmp_path / "calls", NOISY=int(isolate))
    done = run_program(PROGRAM + ending, model.path, ANYNPU_NOE_ISOLATE=isolate, **environment)
    assert done.returncode == ENDINGS[ending], done.stderr
    assert done.stdout.splitlines() == [str(noe.expect_mix([X * 0], [SMALL_OUT])[0].tolist())]
    until = time.monotonic() + 10
    while names(tmp_path / "calls")[-1:] != ["noe_deinit_context"] and time.monotonic() < until:
        time.sleep(0.02)  # a process that was killed cannot wait for the one that it leaves
    assert names(tmp_path / "calls")[-1] == "noe_deinit_context"


def test_the_other_process_ends_with_ours_even_if_the_library_hangs(library, model):
    program = PROGRAM + "print(session.worker, flush=True)\nsession.run({'x': np.zeros((1, 6), np.int8)})"
    with noe.switches(library, STUCK=2):
        process = Popen([sys.executable, "-c", program, str(model.path)], stdout=PIPE, text=True)
        process.stdout.readline()
        worker = int(process.stdout.readline())
        process.kill()
        process.wait()
        process.stdout.close()
    until = time.monotonic() + 15
    while Path(f"/proc/{worker}/stat").exists() and _state(worker) != "Z" and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{worker}/stat").exists() or _state(worker) == "Z"


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_an_interrupt_in_the_middle_does_not_mix_up_answers(library, model):
    class Interrupt(Exception):
        pass

    def strike(*_):
        raise Interrupt

    before = signal.signal(signal.SIGALRM, strike)
    try:
        with noe.switches(library, DELAY_US=400_000):
            opened = NoeSession(model)
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(Interrupt):
                opened.run({"x": X})
        with noe.switches(library):
            assert np.array_equal(opened.run({"x": X + 1})["y"], expected(X + 1))
            opened.close()
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_forked_process_gets_a_library_of_its_own(library, model):
    with noe.switches(library):
        opened = NoeSession(model)
        opened.run({"x": X})
        if (child := os.fork()) == 0:
            good = np.array_equal(opened.run({"x": X + 2})["y"], expected(X + 2))
            opened.close()
            os._exit(0 if good else 1)
        assert np.array_equal(opened.run({"x": X})["y"], expected())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert np.array_equal(opened.run({"x": X})["y"], expected())
        opened.close()


def test_a_closed_session_says_so(library, model):
    with noe.switches(library):
        opened = NoeSession(model)
        opened.close()
        opened.close()
        with pytest.raises(DeviceError, match="the session was closed"):
            opened.run({"x": X})


def test_settings_are_read_and_checked(library, model, monkeypatch):
    with noe.switches(library):
        for name, value, sentence in (
            ("ANYNPU_NOE_TIMEOUT_MS", "soon", "a timeout of soon ms"),
            ("ANYNPU_NOE_TIMEOUT_MS", "0", "a timeout of 0 ms"),
            ("ANYNPU_NOE_QOS", "best", "no such priority: best"),
        ):
            with monkeypatch.context() as patch, pytest.raises(ConfigError, match=sentence):
                patch.setenv(name, value)
                NoeSession(model)
        monkeypatch.setenv("ANYNPU_NOE_QOS", "high")
        monkeypatch.setenv("ANYNPU_NOE_TIMEOUT_MS", "1234")
        opened = NoeSession(model)
        assert opened.timeout_ms == 1234
        opened.run({"x": X})
        opened.close()


def test_without_a_library_it_says_where_it_looked(model, monkeypatch):
    monkeypatch.setenv("ANYNPU_LIBNOE", "/no/libnoe.so")
    assert "ANYNPU_LIBNOE names no file" in NoeSession.missing()
    with pytest.raises(ToolMissing, match="ANYNPU_LIBNOE"):
        NoeSession(model)
