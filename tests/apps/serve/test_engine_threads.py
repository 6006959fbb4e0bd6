"""Threads of a served session sleep while there is nothing to do, and one that was given up touches nothing more."""

from __future__ import annotations

import threading
import time

import pytest
from engine_models import linear, settings_of

from anynpu.apps.serve.lane import Lane
from anynpu.cli.serve import _open_anywhere
from anynpu.errors import ConfigError
from anynpu.runtime.loose import open_loose
from anynpu.runtime.ort import OrtSession

STOPS, LONGEST_US = "session.force_spinning_stop", "session.intra_op.spin_duration_us"


def test_a_served_session_spins_for_a_moment_within_a_run_only(tmp_path):
    artifact = linear(tmp_path / "net")
    served, alone = (each._session.get_session_options() for each in (open_loose(artifact, 2), OrtSession(artifact, 2)))
    assert served.get_session_config_entry(STOPS) == "1" and int(served.get_session_config_entry(LONGEST_US)) <= 50
    with pytest.raises(RuntimeError):  # not set: ONNX Runtime's own default, which is to spin on
        alone.get_session_config_entry(STOPS)


def test_a_thread_that_was_given_up_during_a_command_takes_nothing_more():
    lane = Lane("x", run_limit_s=60)
    old, first, hangs, gate, lost, done_by = lane._thread, *(threading.Event() for _ in range(3)), [], []
    lane.call(first.wait)
    lane.call(lambda: lane.guarded(hangs.wait, 0.001, lost.append))
    first.set()
    while not lane.watch(time.monotonic()):
        time.sleep(0.001)
    lane.call(gate.wait)  # the new owner is busy
    for _ in range(5):
        lane.call(lambda: done_by.append(threading.current_thread()))
    hangs.set()
    old.join()
    assert lost == [0.001] and done_by == []
    gate.set()
    while len(done_by) < 5:
        time.sleep(0.001)
    lane.close()
    lane.join()
    assert set(done_by) == {lane._thread}


@pytest.mark.parametrize("device", ["host:x", "serial", "qemux"])
def test_what_only_looks_like_a_board_is_none(tmp_path, device):
    artifact = linear(tmp_path / "net")
    with pytest.raises(ConfigError, match=device):
        _open_anywhere(artifact, settings_of(artifact, device=device))
