"""kill -9 at any moment leaves a store that verifies and a next build that succeeds."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from small_net import write_net
from store_child import FILES, steps

from anynpu.store import Store

CHILD = str(Path(__file__).with_name("store_child.py"))
KILLS, STEPS = 24, 3
CLI_KILLS = int(os.environ.get("ANYNPU_TEST_KILLS", "10"))
"""How many builds are killed; 100 for a thorough run."""


def start(cache: Path, count: int, *more: str) -> subprocess.Popen[str]:
    argv = [sys.executable, CHILD, str(cache), str(count), *more]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def damaged(store: Store) -> list[str]:
    return [complaint for _, complaint in store.verify() if complaint]


def test_kill_9_at_random_moments_of_a_store_build(tmp_path: Path) -> None:
    whole = start(tmp_path / "timed", STEPS)
    started = time.monotonic()
    assert whole.wait() == 0
    duration = time.monotonic() - started
    cache, rng = tmp_path / "cache", random.Random(5)
    store, remains, landed, tries = Store(cache), 0, 0, 0
    while landed < KILLS:  # a kill that comes after the end proves nothing and is not counted
        tries += 1
        assert tries < 4 * KILLS
        shutil.rmtree(cache / "store", ignore_errors=True)  # so that each round has all its work to do
        process = start(cache, STEPS)
        time.sleep(duration * (landed + rng.random()) / KILLS)
        if process.poll() is None:
            landed += 1
        else:
            duration *= 0.85  # builds take less than the first one did
        process.kill()
        process.wait()
        assert damaged(store) == []
        for entry in store.entries():
            assert len(entry.artifact.manifest.files) == FILES
        remains += bool(list((cache / "scratch").glob("*")))
    assert remains >= KILLS // 4  # the kills did fall into steps
    assert start(cache, STEPS).wait() == 0
    assert all(store.find(step.address) for step in steps(STEPS))
    assert store.sweep(older_than_s=0) >= 1
    assert list((cache / "scratch").glob("*")) == [] and damaged(store) == []


def test_eight_processes_build_one_step_once(tmp_path: Path) -> None:
    counter = tmp_path / "count"
    running = [start(tmp_path / "cache", 2, str(counter)) for _ in range(8)]
    assert [process.wait() for process in running] == [0] * 8
    assert counter.read_text().count("built") == 2
    assert damaged(Store(tmp_path / "cache")) == []


def build(folder: Path, model: Path, out: Path, cache: Path) -> subprocess.Popen[str]:
    argv = ["build", "-m", str(model), "-t", "cpu", "--data", "random:10", "-o", str(out), "--cache-dir", str(cache)]
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-m", "anynpu", *argv], cwd=folder, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc to look at processes")
def test_kill_9_at_random_moments_of_a_whole_build(
    tmp_path: Path, cli: Callable, nothing_runs: Callable[[Path], None]
) -> None:
    cache, rng, landed, tries = tmp_path / "cache", random.Random(7), 0, 0
    started = time.monotonic()
    first = build(tmp_path, write_net(tmp_path / "net.onnx", seed=1000), tmp_path / "out", cache)
    assert first.wait() == 0, first.communicate()[1]
    duration = time.monotonic() - started
    while landed < CLI_KILLS:
        tries += 1
        assert tries < 4 * CLI_KILLS
        model = write_net(tmp_path / "net.onnx", seed=tries)  # another model each time: nothing is in the store yet
        out = tmp_path / f"out{tries}"
        process = build(tmp_path, model, out, cache)
        time.sleep(duration * (landed + rng.random()) / CLI_KILLS)
        if process.poll() is None:
            landed += 1
        else:
            duration *= 0.85  # builds take less than the first one did
        process.kill()
        process.communicate()
        assert damaged(Store(cache)) == []
        assert not out.exists() or (out / "report.json").is_file()  # complete or not there
    nothing_runs(cache)
    assert cli("cache", "verify", "--cache-dir", str(cache)).returncode == 0
    last = build(tmp_path, tmp_path / "net.onnx", tmp_path / "last", cache)
    assert last.wait() == 0, last.communicate()[1]
    assert json.loads((tmp_path / "last" / "report.json").read_text())["exit_status"] == 0
    Store(cache).sweep(older_than_s=0)
    assert list((cache / "scratch").glob("*")) == []


def test_eight_concurrent_builds_make_each_step_once(tmp_path: Path) -> None:
    model = write_net(tmp_path / "net.onnx", seed=77)
    running = [build(tmp_path, model, tmp_path / f"out{n}", tmp_path / "cache") for n in range(8)]
    for process in running:
        _, told = process.communicate()
        assert process.returncode == 0, told
    made: dict[str, int] = {}
    for n in range(8):
        for stage in json.loads((tmp_path / f"out{n}" / "report.json").read_text())["timings"]:
            made[stage["stage"]] = made.get(stage["stage"], 0) + (not stage["cached"])
    assert made == {"import": 1, "calibration": 1, "test": 1, "prove": 1, "cpu": 1, "verify": 1, "layers": 1}
