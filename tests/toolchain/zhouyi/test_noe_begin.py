"""Jobs of the NOE session that are begun in one thread and ended in another, over the fake library."""

from __future__ import annotations

import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from fake_noe import SMALL_OUT

from anynpu.errors import ConfigError, DeviceError
from anynpu.runtime.noe.session import NoeSession
from anynpu.runtime.watch import watch
from anynpu.testing import noe

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler (package gcc)")
X = np.arange(6, dtype=np.int8).reshape(1, 6)


def expected(x=X):
    return noe.expect_mix([x], [SMALL_OUT])[0]


def test_a_job_is_begun_in_one_thread_and_ended_in_another(library, model):
    with noe.switches(library, DELAY_US=200_000):
        opened, other = NoeSession(model), NoeSession(model)
        watch(opened)
        began = time.perf_counter()
        end = opened.begin({"x": X})
        assert time.perf_counter() - began < 0.1, "it does not wait"
        assert opened.begin({"x": X}) is None and other.begin({"x": X}) is None, "the device is busy"
        with ThreadPoolExecutor(2) as threads:
            waiting = threads.submit(opened.run, {"x": X + 1})
            assert np.array_equal(threads.submit(end).result()["y"], expected())
            assert np.array_equal(waiting.result()["y"], expected(X + 1))
        assert list(opened.stages()) == ["copy in", "hand over", "device", "copy out"]
        with pytest.raises(ConfigError):
            opened.begin({"z": X})
        other.close()
        opened.close()
        assert opened.begin({"x": X}) is None


def test_a_job_of_a_dead_process_is_begun_at_once_and_its_end_says_so(library, model):
    with noe.switches(library):
        opened = NoeSession(model)
        os.kill(opened.worker, signal.SIGKILL)
        os.waitid(os.P_PID, opened.worker, os.WEXITED | os.WNOWAIT)
        began = time.perf_counter()
        end = opened.begin({"x": X})
        assert time.perf_counter() - began < 0.1
        with pytest.raises(DeviceError, match="crashed in an inference"):
            end()
        assert opened.begin({"x": X}) is None, "lost"
        assert np.array_equal(opened.run({"x": X})["y"], expected()), "and opened again"
        assert np.array_equal(opened.begin({"x": X + 1})()["y"], expected(X + 1))
        opened.close()


def test_a_library_in_our_process_begins_nothing(library, model):
    with noe.switches(library):
        opened = NoeSession(model, isolate=False)
        assert opened.begin({"x": X}) is None
        opened.close()


def test_answers_of_jobs_that_were_begun_are_looked_at_too(library, tmp_path):
    with noe.switches(library, ZERO=1):
        opened = NoeSession(noe.clip_text(tmp_path / "text"))
        watch(opened, never_constant=True)
        with pytest.raises(DeviceError, match="every number"):
            opened.begin({"tokens": np.zeros((1, 77), np.int32)})()
        opened.close()


def test_an_answer_that_nobody_took_is_not_taken_for_the_next(library, model):
    with noe.switches(library):
        opened = NoeSession(model)
        engine = opened._engine
        engine._client.begin(engine._handle, 1000)  # interrupted here, before it waits
        with pytest.raises(DeviceError, match="was interrupted"):
            opened.run({"x": X + 1})
        assert np.array_equal(opened.run({"x": X + 2})["y"], expected(X + 2))
        opened.close()
