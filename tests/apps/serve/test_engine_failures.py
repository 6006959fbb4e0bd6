"""Devices that die, hang, refuse and lie: who gets an error, what goes on, and that nothing wrong leaves."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from engine_models import linear, occupied, running, settings_of, sync, tensors, until
from npu_model import INPUT, OUTPUT, expected, npu_model, stored, write_evidence

from anynpu.apps.serve.base import Figures, FleetSettings, Options, Request, Silent
from anynpu.apps.serve.known import Case, Judge, evidence_of, similarity_db
from anynpu.errors import AccuracyError, ConfigError, DeviceError
from anynpu.testing import noe

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler (package gcc)")
STORED = Options(stored=True)


def asked(number: int) -> Request:
    return Request(({"x": stored(number)},), STORED)


async def settled(model, state: str) -> None:
    """Waits until a model is in a state."""
    await until(lambda: model.health().state == state)


async def right(model, number: int) -> bool:
    answer = await model.answer(asked(number))
    assert np.array_equal(answer.tensors[0]["y"], expected(number))
    return answer.fallback


class Noted(Silent):
    def __init__(self):
        self.states, self.restarts, self.canaries = [], [], []

    def changed(self, model, state, reason):
        self.states.append((model, state))

    def restarted(self, model, reason):
        self.restarts.append((model, reason))

    def canary(self, model, result):
        self.canaries.append((model, result.ok))


def test_a_killed_worker_costs_what_was_in_flight_and_nothing_else(tmp_path, library):
    async def main():
        note = Noted()
        models = settings_of(npu_model(tmp_path / "npu")), settings_of(linear(tmp_path / "net"), name="cpu")
        async with running(*models, observer=note) as fleet:
            model = fleet.models["m"]
            assert not await right(model, 1)
            with occupied(model):
                jobs = [asyncio.create_task(model.answer(asked(n))) for n in range(20)]
                await until(lambda: model.health().queue == 20)
                os.kill(model.device.loaded.sessions[0].worker, signal.SIGKILL)
            others = [await fleet.models["cpu"].answer(tensors(np.ones((1, 8), np.float32))) for _ in range(5)]
            outcomes = await asyncio.gather(*jobs, return_exceptions=True)
            lost = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
            assert len(lost) == 1 and isinstance(lost[0], DeviceError)
            for n, outcome in enumerate(outcomes):
                if not isinstance(outcome, Exception):
                    assert np.array_equal(outcome.tensors[0]["y"], expected(n))
            await settled(model, "ready")
            assert not await right(model, 7) and len(others) == 5
            assert model.health().restarts == len(note.restarts) == 1
            assert model.health().canary.source.startswith("verification")

    with noe.switches(library):
        sync(main())


def test_a_hung_device_is_given_up_and_opened_again(tmp_path, library):
    hung = tmp_path / "hung"

    class Mended(Silent):
        def restarted(self, model, reason):
            hung.unlink()

    async def main():
        async with running(settings_of(npu_model(tmp_path / "npu")), observer=Mended()) as fleet:
            model = fleet.models["m"]
            await right(model, 1)
            hung.touch()
            model.device.loaded.sessions[0].timeout_ms = 300
            jobs = [asyncio.create_task(model.answer(asked(n))) for n in range(4)]
            outcomes = await asyncio.gather(*jobs, return_exceptions=True)
            assert sum(isinstance(outcome, DeviceError) for outcome in outcomes) == 1, outcomes
            await settled(model, "ready")
            assert not await right(model, 2) and model.health().restarts == 1

    with noe.switches(library, HUNG=hung):
        sync(main())


def test_a_thread_that_never_returns_is_abandoned(tmp_path):
    """A session of this process that hangs: its thread is left behind, a new one serves."""
    stuck = {"now": False}

    class Sticking:
        name, formats, rank, what = "sticking", ("onnx",), 0, "a session that hangs"

        def __init__(self, artifact):
            self.inputs, self.outputs = artifact.manifest.inputs, artifact.manifest.outputs

        def run(self, inputs):
            while stuck["now"]:
                time.sleep(0.01)
            return {"y": inputs["x"] * 2}

        def close(self):
            pass

    async def main():
        opener = lambda artifact, settings: Sticking(artifact)  # noqa: E731
        async with running(settings_of(linear(tmp_path / "net")), opener=opener) as fleet:
            model, one = fleet.models["m"], np.ones((1, 8), np.float32)
            patience_s, model.device.lane.run_limit_s = model.device.lane.run_limit_s, 0.3
            stuck["now"] = True
            jobs = [asyncio.create_task(model.answer(tensors(one * n))) for n in range(3)]
            with pytest.raises(DeviceError, match=r"did not return within 0\.3 s"):
                await jobs[0]
            model.device.lane.run_limit_s, stuck["now"] = patience_s, False
            rest = await asyncio.gather(*jobs[1:])
            assert [float(answer.tensors[0]["y"][0, 0]) for answer in rest] == [2.0, 4.0]
            assert (await model.answer(tensors(one))).tensors and model.health().restarts == 1

    sync(main())


def test_a_process_that_stood_still_blames_no_device(tmp_path):
    """As after SIGSTOP, or in a virtual machine that was paused."""
    began, gate = threading.Event(), threading.Event()

    class Gated:
        name, formats, rank, what = "gated", ("onnx",), 0, "a session that waits"

        def __init__(self, artifact):
            self.inputs, self.outputs = artifact.manifest.inputs, artifact.manifest.outputs

        def run(self, inputs):
            began.set()
            gate.wait()
            return {"y": inputs["x"] * 2}

        def close(self):
            pass

    async def main():
        opener = lambda artifact, settings: Gated(artifact)  # noqa: E731
        gate.set()
        async with running(settings_of(linear(tmp_path / "net")), opener=opener) as fleet:
            model, one = fleet.models["m"], np.ones((1, 8), np.float32)
            gate.clear()
            began.clear()
            job = asyncio.create_task(model.answer(tensors(one)))
            await until(began.is_set)
            lane = model.device.lane
            lane._limit_s = 0.6
            time.sleep(1.5)  # nothing of this loop runs
            await until(lambda: lane._busy_since > time.monotonic() - 1.2 or lane.abandoned)
            lane._limit_s = lane.run_limit_s
            gate.set()
            assert (await job).tensors and model.health().restarts == lane.abandoned == 0

    sync(main())


def test_what_waits_is_answered_by_a_device_that_comes_back_at_the_second_try(tmp_path, library):
    """The first try to open the killed device fails: that costs nobody anything."""
    reasons = []

    class Mended(Silent):
        def changed(self, model, state, reason):
            reasons.append((state, reason))
            if sum(state == "failed" for state, _ in reasons) == 2:
                os.environ.pop("ANYNPU_FAKE_NOE_INIT_STATUS", None)

    async def main():
        async with running(settings_of(npu_model(tmp_path / "npu")), observer=Mended()) as fleet:
            model = fleet.models["m"]
            with occupied(model):
                jobs = [asyncio.create_task(model.answer(asked(n))) for n in range(6)]
                await until(lambda: model.health().queue == 6)
                os.environ["ANYNPU_FAKE_NOE_INIT_STATUS"] = "0x3"
                os.kill(model.device.loaded.sessions[0].worker, signal.SIGKILL)
            outcomes = await asyncio.gather(*jobs, return_exceptions=True)
            assert sum(isinstance(outcome, DeviceError) for outcome in outcomes) == 1, outcomes
            assert [state for state, _ in reasons] == ["ready", "failed", "failed", "ready"]

    with noe.switches(library):
        sync(main())


def test_a_device_that_does_not_come_back_is_refused_after_a_few_tries_and_tried_again(tmp_path, library):
    async def main():
        note = Noted()
        async with running(settings_of(npu_model(tmp_path / "npu")), observer=note) as fleet:
            model = fleet.models["m"]
            os.environ["ANYNPU_FAKE_NOE_INIT_STATUS"] = "0x3"
            os.kill(model.device.loaded.sessions[0].worker, signal.SIGKILL)
            outcomes = await asyncio.gather(*(model.answer(asked(n)) for n in range(5)), return_exceptions=True)
            assert all(isinstance(outcome, DeviceError) for outcome in outcomes)
            await settled(model, "failed")
            with pytest.raises(DeviceError, match="restarted"):
                await model.answer(asked(1))
            del os.environ["ANYNPU_FAKE_NOE_INIT_STATUS"]
            await settled(model, "ready")
            await right(model, 3)
            states = [state for _, state in note.states]
            assert [s for s, before in zip(states, ["", *states], strict=False) if s != before] == [
                *("ready", "failed", "ready")
            ]

    with noe.switches(library):
        sync(main())


def test_a_request_that_the_model_refuses_does_not_cost_others_theirs(tmp_path):
    class Picky:
        name, formats, rank, what = "picky", ("onnx",), 0, "a session that refuses"
        free = frozenset({"batch"})

        def __init__(self, artifact):
            self.inputs, self.outputs = artifact.manifest.inputs, artifact.manifest.outputs

        def run(self, inputs):
            if (inputs["x"] == 666).any():
                raise DeviceError("index out of range", "run")
            return {"y": inputs["x"] * 2}

        def close(self):
            pass

    async def main():
        opener = lambda artifact, settings: Picky(artifact)  # noqa: E731
        async with running(settings_of(linear(tmp_path / "net")), opener=opener) as fleet:
            model, one = fleet.models["m"], np.ones((1, 8), np.float32)
            jobs = [model.answer(tensors(one * (666 if n == 3 else n))) for n in range(8)]
            outcomes = await asyncio.gather(*jobs, return_exceptions=True)
            assert [n for n, outcome in enumerate(outcomes) if isinstance(outcome, Exception)] == [3]
            assert isinstance(outcomes[3], ConfigError) and "refuses this input: index out of range" in str(outcomes[3])
            assert model.health().state == "ready" and model.health().restarts == 0

    sync(main())


@pytest.mark.parametrize("twin", [False, True], ids=["alone", "with a twin"])
def test_silent_corruption_is_found_counted_and_kept_in(tmp_path, library, twin):
    """One wrong bit in every answer: the known answers find it, and nothing of the device leaves after that."""
    spoiled = tmp_path / "spoiled"

    async def main():
        note = Noted()
        artifact = npu_model(tmp_path / "npu")
        settings = settings_of(artifact, fallback=npu_twin(tmp_path / "twin", artifact) if twin else "")
        limits = FleetSettings(canary_s=0.5)
        async with running(settings, settings=limits, observer=note, opener=with_twin) as fleet:
            model = fleet.models["m"]
            await right(model, 1)
            spoiled.touch()
            wrong, after = 0, 0
            end = time.monotonic() + 120
            while time.monotonic() < end and after < 20:
                found = model.health().state == "degraded"
                try:
                    answer = await model.answer(asked(5))
                except DeviceError as error:
                    assert "wrong answers" in error.message
                    after += 1
                    await asyncio.sleep(0.01)
                    continue
                good = np.array_equal(answer.tensors[0]["y"], expected(5))
                wrong += not good
                after += found
                assert good or not found
                assert answer.fallback == (good and twin)
            health = model.health()
            assert health.state == "degraded" and "output y" in health.reason and health.serving == twin
            assert wrong <= health.canary.suspect_answers <= wrong + 1
            assert not health.canary.ok and health.canary.failures == 1
            spoiled.unlink()
            await settled(model, "ready")
            assert not await right(model, 9)
            assert ("m", False) in note.canaries and note.canaries[-1] == ("m", True)

    with noe.switches(library, SPOILED=spoiled):
        sync(main())


def npu_twin(folder: Path, artifact) -> Path:
    """The same model for a session that computes here."""
    shutil.copytree(artifact.path, folder)
    return folder


def with_twin(artifact, settings):
    from anynpu.apps.serve.version import open_here

    return Here(artifact) if artifact.path.name == "twin" else open_here(artifact, settings)


class Here:
    """Computes what the fake NPU does."""

    name, formats, rank, what = "here", ("cix",), 9, "numpy"

    def __init__(self, artifact):
        self.inputs, self.outputs = artifact.manifest.inputs, artifact.manifest.outputs

    def run(self, inputs):
        return {"y": noe.expect_mix([inputs["x"]], list(self.outputs))[0]}

    def close(self):
        pass


def test_an_artifact_that_is_wrong_from_the_start_is_not_served(tmp_path, library):
    artifact = npu_model(tmp_path / "npu", evidence=False)
    rows = [stored(n) for n in range(3)]
    write_evidence(artifact, rows, [np.flip(expected(n)) for n in range(3)])

    async def main():
        with pytest.raises(AccuracyError, match="output y"):
            async with running(settings_of(artifact)):
                pass

    with noe.switches(library):
        sync(main())


def test_evidence_of_another_artifact_does_not_count(tmp_path):
    first, second = npu_model(tmp_path / "a"), npu_model(tmp_path / "b", evidence=False)
    assert evidence_of(first).cases and evidence_of(second) is None
    other = noe.model(tmp_path / "c", [first.manifest.inputs[0]], [first.manifest.outputs[0]], "clip-text")
    shutil.copytree(first.path / "evidence", other.path / "evidence")
    assert evidence_of(other) is None
    vectors = first.path / "evidence" / "vectors.npz"
    vectors.write_bytes(vectors.read_bytes()[:-20] + b"x" * 20)
    assert evidence_of(first) is None


def test_the_judge_holds_integers_to_the_bit_and_real_numbers_to_60_db():
    assert similarity_db(np.ones(4), np.ones(4)) == np.inf
    assert similarity_db(np.ones(4), np.array([1, 1, 1, np.nan])) == -np.inf
    assert similarity_db(np.ones(100), np.ones(100) * 1.001) == pytest.approx(60, abs=0.1)


class Answers:
    """A session that gives what it is told to, one after the other, and the last from then on."""

    name, formats, rank, what = "answers", ("cix",), 0, "a list of answers"

    def __init__(self, *answers):
        self.inputs, self.outputs = (INPUT,), (OUTPUT,)
        self.answers = list(answers)

    def run(self, inputs):
        return {"y": self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]}


def test_a_device_that_is_wrong_while_it_is_opened_again_is_not_its_own_measure():
    """Corruption that begins or ends during a check must not pass for a device whose answers vary."""
    good, bad = expected(1), expected(1).copy()
    bad[0, 7] ^= 1
    case = (Case({"x": stored(1)}, {"y": good}),)
    figures = {"y": Figures(31.0, 0.999)}
    first = Judge(Answers(good), case, figures, "verification")
    first.settle()
    for answers in ((bad,), (bad, good), (bad, bad, good)):
        again = Judge(Answers(*answers), case, figures, "verification")
        with pytest.raises(AccuracyError, match="output y"):
            again.settle(first)
    with pytest.raises(AccuracyError, match="output y"):
        Judge(Answers(good, bad, good), case, figures, "verification").settle()
    exact = Judge(Answers(bad), case, figures, "verification", same_hardware=True)
    with pytest.raises(AccuracyError, match="bit by bit"):
        exact.settle()


def test_answers_that_vary_from_the_start_are_held_to_the_recorded_tolerance():
    good = expected(1)
    near, far = good.copy(), np.flip(good).copy()
    near[0, 7] ^= 1
    other = good.copy()
    other[0, 9] ^= 1
    judge = Judge(
        Answers(near, other, good), (Case({"x": stored(1)}, {"y": good}),), {"y": Figures(31.0, 0.99)}, "verification"
    )
    judge.settle()
    judge.check()
    judge.session.answers = [far]
    with pytest.raises(AccuracyError, match="to 31 dB"):
        judge.check()
