"""A device that is idle begins a request in the event loop; its owner ends it, whatever has happened since."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest
from engine_models import occupied, running, settings_of, sync, until
from npu_model import expected, npu_model, stored
from text_model import expected as vector_of
from text_model import text_artifact

from anynpu.apps.serve import deployment
from anynpu.apps.serve.base import Options, Request
from anynpu.apps.serve.lane import WAKE, Lane, Ticket
from anynpu.apps.serve.program import Row
from anynpu.errors import DeviceError
from anynpu.runtime.noe.engines import Isolated
from anynpu.runtime.ort import OrtSession
from anynpu.testing import noe

pytest.importorskip("onnxruntime")
pytest.importorskip("tokenizers")
STORED = Options(stored=True)
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler (package gcc)")


@pytest.fixture
def steps(monkeypatch):
    """What the engine of the fake device did, and in which thread."""
    noted: list[str] = []

    def thread() -> str:
        return "loop" if threading.current_thread() is threading.main_thread() else "owner"

    begin, run = Isolated.begin, Isolated.run

    def noted_begin(self, inputs, timeout_ms):
        end = begin(self, inputs, timeout_ms)
        if end is None:
            return None
        noted.append(f"begun by {thread()}")
        return lambda: noted.append(f"ended by {thread()}") or end()

    def noted_run(self, inputs, timeout_ms):
        noted.append(f"run by {thread()}")
        return run(self, inputs, timeout_ms)

    monkeypatch.setattr(Isolated, "begin", noted_begin)
    monkeypatch.setattr(Isolated, "run", noted_run)
    return noted


def served(folder: Path, library: Path, do, **switches) -> None:
    """Has `do` done with a model on the fake device."""

    async def main() -> None:
        async with running(settings_of(npu_model(folder / "npu"))) as fleet:
            await do(fleet.models["m"])

    with noe.switches(library, **switches):
        sync(main())


def asked(number: int, **given) -> Request:
    return Request(({"x": stored(number)},), STORED, **given)


async def right(model, number: int) -> None:
    answer = await model.answer(asked(number))
    assert np.array_equal(answer.tensors[0]["y"], expected(number))


async def until_begun(model, steps: list[str]) -> None:
    """Asks until a request is begun in the loop: the owner may still be busy with the end of its last turn."""
    steps.clear()
    while "begun by loop" not in steps:
        await right(model, 1)


@needs_compiler
def test_a_request_that_is_alone_is_begun_in_the_loop_and_ended_by_the_owner(tmp_path, library, steps):
    async def do(model):
        await until_begun(model, steps)
        assert steps[-2:] == ["begun by loop", "ended by owner"]
        assert model.health().answered == sum(step != "ended by owner" for step in steps)
        await until(lambda: model.health().queue == 0)

    served(tmp_path, library, do)


@needs_compiler
def test_requests_that_come_together_are_all_right_and_left_to_the_owner(tmp_path, library, steps, monkeypatch):
    monkeypatch.setattr(deployment, "CROWDED_S", 60.0)

    async def do(model):
        await asyncio.gather(*(right(model, number) for number in range(50)))
        steps.clear()
        await right(model, 51)
        assert steps == ["run by owner"]

    served(tmp_path, library, do)


@needs_compiler
def test_what_comes_while_a_job_runs_waits_for_it(tmp_path, library, steps, monkeypatch):
    monkeypatch.setattr(deployment, "CROWDED_S", 0.0)

    async def do(model):
        for first in range(0, 60, 3):
            jobs = [asyncio.create_task(right(model, first))]
            await asyncio.sleep(0.001 * (first % 4))
            jobs += [asyncio.create_task(right(model, first + n)) for n in (1, 2)]
            await asyncio.gather(*jobs)
        assert "begun by loop" in steps and "run by owner" in steps

    served(tmp_path, library, do, DELAY_US=3000)


@needs_compiler
def test_a_busy_owner_keeps_its_turn(tmp_path, library, steps):
    async def do(model):
        steps.clear()
        with occupied(model):
            await until(lambda: model.device.lane._owned.locked())
            job = asyncio.create_task(right(model, 1))
            await until(lambda: not model.device.lane._inbox.empty())
        await job
        assert steps == ["run by owner"]

    served(tmp_path, library, do)


@needs_compiler
def test_what_is_begun_is_ended_though_its_client_has_left(tmp_path, library, steps):
    async def do(model):
        for number in range(5):
            await until_begun(model, steps)
            steps.clear()
            job = asyncio.create_task(model.answer(asked(2)))
            await asyncio.sleep(0.002)
            job.cancel()
            await right(model, 3 + number)
        await until(lambda: model.health().queue == 0)
        assert model.health().restarts == 0

    served(tmp_path, library, do, DELAY_US=20_000)


@needs_compiler
def test_a_worker_that_is_dead_or_dies_costs_one_request(tmp_path, library, steps):
    async def do(model):
        for restarts, pause_s in ((1, 0.0), (2, 0.01)):
            await until_begun(model, steps)
            worker = model.device.loaded.sessions[0].worker
            job = asyncio.create_task(model.answer(asked(1)))
            await asyncio.sleep(pause_s)
            os.kill(worker, signal.SIGKILL)
            with pytest.raises(DeviceError, match="crashed"):
                await job
            await until(lambda restarts=restarts: model.health().restarts == restarts)
            await until(lambda: model.health().state == "ready")
            await right(model, 7)

    served(tmp_path, library, do, DELAY_US=40_000)


@needs_compiler
def test_a_device_that_hangs_with_what_was_begun_is_opened_again(tmp_path, library, steps):
    hung = tmp_path / "hung"

    async def do(model):
        await until_begun(model, steps)
        hung.touch()
        model.device.loaded.sessions[0].timeout_ms = 300
        job = asyncio.create_task(model.answer(asked(1)))
        await until(lambda: model.health().restarts)
        hung.unlink()
        with pytest.raises(DeviceError):
            await job
        await until(lambda: model.health().state == "ready")
        await right(model, 2)

    served(tmp_path, library, do, HUNG=hung)


@needs_compiler
def test_a_job_that_cannot_be_begun_is_judged_by_the_owner(tmp_path, library, steps, monkeypatch):
    async def do(model):
        await until_begun(model, steps)

        def fails(self, inputs, timeout_ms):
            steps.append("failed")
            raise DeviceError("no memory for a job", "noe_load_tensor")

        monkeypatch.setattr(Isolated, "begin", fails)
        steps.clear()
        with pytest.raises(DeviceError, match="no memory for a job"):
            while "failed" not in steps:
                await model.answer(asked(1))
        await until(lambda: model.health().state == "ready" and model.health().restarts == 1)

    served(tmp_path, library, do)


class Handing(OrtSession):
    """A session of another thread, which takes one job at a time."""

    hardware = True

    def __init__(self, artifact, settings=None):
        super().__init__(artifact)
        self.thread, self.begun = ThreadPoolExecutor(1), 0

    def begin(self, inputs):
        self.begun += 1
        return self.thread.submit(self.run, inputs).result


def test_texts_are_begun_as_they_are_run(tmp_path):
    async def main() -> None:
        async with running(settings_of(text_artifact(tmp_path / "text")), opener=Handing) as fleet:
            model = fleet.models["m"]
            session = model.device.loaded.sessions[0]
            for line in ("a cat sits", "dog", "the red bus runs in the rain"):
                before = session.begun
                while session.begun == before:
                    answer = await model.answer(Request((line,)))
                    assert np.allclose(answer.vectors, vector_of(line)[None], atol=1e-5)

    sync(main())


class Late(SimpleQueue):
    """An inbox whose reader is held up with what it took."""

    def __init__(self):
        self.waits, self.taken, self.goes_on = (threading.Event() for _ in range(3))

    def get(self, block=True, timeout=None):
        self.waits.set()
        entry = super().get(block, timeout)
        self.taken.set()
        self.goes_on.wait()
        return entry


class Model:
    """What a lane asks of a model; `end` is what its device does."""

    held = False

    def __init__(self, end):
        self.end, self.lost_after = end, []

    def wanted(self, ticket):
        return True

    def begin(self, part):
        return self.end

    def lost(self, parts, limit_s):
        self.lost_after.append(limit_s)


def late_lane(run_limit_s: float, do: Callable[[], None]) -> Lane:
    """A lane whose owner has taken a command and not begun it."""
    lane = Lane("x", run_limit_s)
    before, lane._inbox = lane._inbox, Late()
    before.put(WAKE)
    assert lane._inbox.waits.wait(60)
    lane.call(do)
    assert lane._inbox.taken.wait(60)
    return lane


def test_a_command_that_the_owner_has_taken_waits_for_what_is_begun():
    done = []
    lane = late_lane(60, lambda: done.append("command"))
    model = Model(lambda: done.append("job"))
    assert lane.begin_here(Ticket(model, None, [Row(0)], 0.0))
    assert not lane.begin_here(Ticket(model, None, [Row(0)], 0.0)), "one at a time"
    lane._inbox.goes_on.set()
    lane.close()
    lane.join(60)
    assert done == ["job", "command"]


def test_a_command_that_the_owner_has_taken_is_the_next_ones_if_what_is_begun_hangs():
    hangs, done = threading.Event(), []
    lane = late_lane(0.001, lambda: done.append(threading.current_thread()))
    old = lane._thread
    model = Model(hangs.wait)
    assert lane.begin_here(Ticket(model, None, [Row(0)], 0.0))
    lane._inbox.goes_on.set()
    while not lane.watch(time.monotonic()):
        time.sleep(0.001)
    hangs.set()
    old.join()
    while not done:
        time.sleep(0.001)
    assert done == [lane._thread] and lane._thread is not old and model.lost_after == [0.001]
    lane.close()
    lane.join()
