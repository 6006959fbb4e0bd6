"""The serving engine on real sessions: what is answered, refused, queued and drained."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from engine_models import linear, occupied, running, settings_of, sync, tensors, until

from anynpu.apps.serve import lane
from anynpu.apps.serve.base import Expired, FleetSettings, Limits, Options, Overloaded, Request, Stopped, TooLarge
from anynpu.errors import ConfigError

pytest.importorskip("onnxruntime")
X = np.arange(8, dtype=np.float32)[None]


def test_tensors_are_answered_with_the_version_that_computed_them(tmp_path):
    artifact = linear(tmp_path / "net")

    async def main():
        async with running(settings_of(artifact)) as fleet:
            model = fleet.models["m"]
            answer = await model.answer(tensors(X, X + 1))
            return answer, model.info(), model.health()

    answer, info, health = sync(main())
    assert [np.array_equal(rows["y"], wanted) for rows, wanted in zip(answer.tensors, (2 * X, 2 * X + 2), strict=True)]
    assert answer.version == info.version == artifact.digest and answer.device == info.device == "ort"
    assert set(answer.stages) == {"queue", "prepare", "run", "finish"} and not answer.fallback
    assert (health.state, health.serving, health.answered, health.queue) == ("ready", True, 1, 0)
    assert health.canary.ok and health.canary.cases


@pytest.mark.parametrize(
    ("request_", "error", "words"),
    [
        (Request(("a text",)), ConfigError, "takes tensors"),
        (Request(()), ConfigError, "nothing"),
        (Request(({"z": X},)), ConfigError, "no input z"),
        (Request(({"x": X[:, :4]},)), ConfigError, "shape"),
        (Request(({"x": X * np.nan},)), ConfigError, "NaN"),
        (Request(({"x": X.astype(np.complex64)},)), ConfigError, "complex64"),
        (Request(({"x": X.astype(np.float64)},), Options(stored=True)), ConfigError, "float32"),
        (Request(({"x": X},), Options(outputs=("nope",))), ConfigError, "no output nope"),
        (Request(({"x": X},) * 9), TooLarge, "9 items"),
        (Request(({"x": X},), deadline=time.monotonic() - 1), Expired, "deadline"),
        (Request(({"x": X},), gone=lambda: True), Expired, "deadline|left"),
    ],
)
def test_what_cannot_be_computed_is_refused_in_one_sentence(tmp_path, request_, error, words):
    async def main():
        async with running(settings_of(linear(tmp_path / "net")), settings=FleetSettings(limits=Limits(8))) as fleet:
            with pytest.raises(error, match=words):
                await fleet.models["m"].answer(request_)
            assert (await fleet.models["m"].answer(tensors(X))).tensors

    sync(main())


def test_a_plain_call_gets_what_a_coroutine_gets(tmp_path):
    requests = [
        tensors(X),
        tensors(X, X + 1),
        Request(("a text",)),
        Request(()),
        Request(({"x": X},), gone=lambda: True),
    ]

    async def main():
        async with running(settings_of(linear(tmp_path / "net"))) as fleet:
            model, outcomes = fleet.models["m"], []
            for number, request_ in enumerate(requests):
                model.ask(request_, outcomes.append)
                await until(lambda number=number: len(outcomes) > number)
            awaited = await asyncio.gather(*map(model.answer, requests), return_exceptions=True)
            return outcomes, awaited, model.health()

    outcomes, awaited, health = sync(main())
    assert list(map(type, outcomes)) == list(map(type, awaited)) and list(map(str, outcomes[2:])) == list(
        map(str, awaited[2:])
    )
    for one, other in zip(outcomes[:2], awaited[:2], strict=True):
        assert one.version == other.version
        assert all(np.array_equal(a["y"], b["y"]) for a, b in zip(one.tensors, other.tensors, strict=True))
    assert (health.answered, health.queue, health.refused) == (4, 0, {"invalid": 4, "gone": 2})


def test_a_request_that_is_given_up_is_not_computed(tmp_path):
    async def main():
        async with running(settings_of(linear(tmp_path / "net"))) as fleet:
            model, outcomes = fleet.models["m"], []
            session, runs = model.device.loaded.sessions[0], []
            run, session.run = session.run, lambda inputs: runs.append(inputs) or run(inputs)
            with occupied(model):
                first, second = (model.ask(tensors(X + n), outcomes.append) for n in (1, 2))
                first.cancel()
                assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError]
                assert model.health().queue == 1
            await until(lambda: len(outcomes) == 2)
            first.cancel(), second.cancel()
            assert np.array_equal(outcomes[1].tensors[0]["y"], 2 * (X + 2)) and model.health().queue == 0
            return outcomes, runs, model.health()

    outcomes, runs, health = sync(main())
    assert len(outcomes) == 2 and len(runs) == 1 and health.answered == 1


def test_who_fails_to_take_an_answer_does_not_cost_the_others_theirs(tmp_path, caplog):
    async def main():
        async with running(settings_of(linear(tmp_path / "net"))) as fleet:
            model, outcomes = fleet.models["m"], []

            def fails(outcome):
                raise RuntimeError("cannot be written")

            with occupied(model):
                for then in (fails, outcomes.append):
                    model.ask(tensors(X), then)
            await until(lambda: outcomes)
            assert np.array_equal(outcomes[0].tensors[0]["y"], 2 * X)
            assert model.health().queue == 0 and (await model.answer(tensors(X))).tensors

    sync(main())
    assert "cannot be written" in caplog.text


def test_an_answered_request_is_forgotten_without_the_garbage_collector(tmp_path):
    outcomes = []

    class Waiting:
        def then(self, outcome):
            outcomes.append(outcome)

    async def main():
        async with running(settings_of(linear(tmp_path / "net"))) as fleet:
            waiting = Waiting()
            waiting.pending = fleet.models["m"].ask(tensors(X), waiting.then)
            kept = weakref.ref(waiting)
            del waiting
            await until(lambda: outcomes)
            await until(lambda: kept() is None)

    gc.disable()
    try:
        sync(main())
    finally:
        gc.enable()


class Slow:
    """A session that takes its time, and notes what ran and for how long."""

    name, formats, rank, what = "slow", ("onnx",), 0, "a slow session"

    def __init__(self, artifact, seconds=0.02):
        self.inputs, self.outputs = artifact.manifest.inputs, artifact.manifest.outputs
        self.seconds, self.runs, self.took_s = seconds, [], []

    def run(self, inputs):
        began = time.monotonic()
        time.sleep(self.seconds)
        self.took_s.append(time.monotonic() - began)
        self.runs.append(inputs["x"].copy())
        return {"y": inputs["x"] * 2}

    def close(self):
        self.runs.append("closed")


def test_a_full_queue_says_when_to_come_again_and_loses_nothing(tmp_path):
    async def main():
        sessions = []

        def opener(artifact, settings):
            sessions.append(Slow(artifact))
            return sessions[-1]

        limits = FleetSettings(queue=6, canary_s=0)
        async with running(settings_of(linear(tmp_path / "net")), settings=limits, opener=opener) as fleet:
            model = fleet.models["m"]
            await model.answer(tensors(X))
            with occupied(model):
                jobs = [asyncio.create_task(model.answer(tensors(X + n))) for n in range(20)]
                await until(lambda: sum(job.done() for job in jobs) == 14)
            done = await asyncio.gather(*jobs, return_exceptions=True)
            answered = [n for n, outcome in enumerate(done) if not isinstance(outcome, Exception)]
            refused = [outcome for outcome in done if isinstance(outcome, Overloaded)]
            assert len(answered) == 6 and len(refused) == 14
            # Six wait, each for as long as a run took so far: the mean of all, of which the first counts most.
            assert all(0.05 <= error.retry_after_s < 6.1 * max(sessions[0].took_s) + 0.1 for error in refused)
            assert all(np.array_equal(done[n].tensors[0]["y"], 2 * (X + n)) for n in answered)
            assert model.health().refused == {"overloaded": 14}
        assert sessions[0].runs[-1] == "closed"

    sync(main())


def test_what_nobody_wants_any_more_is_not_computed(tmp_path):
    async def main():
        sessions = []

        def opener(artifact, settings):
            sessions.append(Slow(artifact, 0.05))
            return sessions[-1]

        async with running(settings_of(linear(tmp_path / "net")), opener=opener) as fleet:
            model = fleet.models["m"]
            before = len(sessions[0].runs)
            left = {"now": False}
            with occupied(model):
                first = asyncio.create_task(model.answer(tensors(X)))
                late = asyncio.create_task(model.answer(tensors(X + 1, deadline=time.monotonic() + 0.02)))
                gone = asyncio.create_task(model.answer(tensors(X + 2, gone=lambda: left["now"])))
                cancelled = asyncio.create_task(model.answer(tensors(X + 3)))
                last = asyncio.create_task(model.answer(tensors(X + 4)))
                await asyncio.sleep(0.03)
                left["now"] = True
                cancelled.cancel()
            outcomes = await asyncio.gather(first, late, gone, cancelled, last, return_exceptions=True)
            assert [type(outcome).__name__ for outcome in outcomes] == [
                *("Answer", "Expired", "Expired", "CancelledError", "Answer")
            ]
            ran = [float(x[0, 0]) for x in sessions[0].runs[before:]]
            assert ran == [0.0, 4.0]
            assert model.health().refused == {"expired": 1, "gone": 1} and model.health().queue == 0

    sync(main())


def test_draining_answers_what_was_accepted_and_takes_no_more(tmp_path):
    async def main():
        opener = lambda artifact, settings: Slow(artifact)  # noqa: E731
        async with running(settings_of(linear(tmp_path / "net")), opener=opener) as fleet:
            model = fleet.models["m"]
            jobs = [asyncio.create_task(model.answer(tensors(X + n))) for n in range(5)]
            await asyncio.sleep(0)
            drained = asyncio.create_task(fleet.drain())
            await asyncio.sleep(0)
            with pytest.raises(Stopped):
                await model.answer(tensors(X))
            await drained
            assert all(job.done() and job.result().tensors for job in jobs)

    sync(main())


def test_closing_answers_everybody_who_waits(tmp_path):
    async def main():
        async with running(settings_of(linear(tmp_path / "net"))) as fleet:
            model = fleet.models["m"]
            with occupied(model):
                jobs = [asyncio.create_task(model.answer(tensors(X + n))) for n in range(5)]
                await until(lambda: model.health().queue == 5)
                fleet.close()
                outcomes = await asyncio.gather(*jobs, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} == {Stopped}

    sync(main())


def test_models_that_share_a_device_take_turns(tmp_path, monkeypatch):
    """One client floods the first model; the second one's requests do not wait for the flood."""
    clock = SimpleNamespace(now=time.monotonic(), monotonic=lambda: clock.now)  # every run takes equally long by it
    monkeypatch.setattr(lane, "time", clock)

    class Npu(Slow):
        hardware = True
        order: ClassVar[list] = []

        def run(self, inputs):
            Npu.order.append(self.tag)
            clock.now += 0.005
            return super().run(inputs)

    def opener(artifact, settings):
        session = Npu(artifact, 0.0)
        session.tag = settings.name
        return session

    async def main():
        first, second = linear(tmp_path / "a"), linear(tmp_path / "b")
        models = settings_of(first, name="a"), settings_of(second, name="b")
        patient = FleetSettings(canary_s=0, run_limit_s=1e6)
        async with running(*models, settings=patient, opener=opener) as fleet:
            Npu.order.clear()
            a, b = fleet.models["a"], fleet.models["b"]
            with occupied(a):
                flood = [asyncio.create_task(a.answer(tensors(X + n))) for n in range(40)]
                few = [asyncio.create_task(b.answer(tensors(X))) for _ in range(5)]
                await until(lambda: (a.health().queue, b.health().queue) == (40, 5))
            await asyncio.gather(*flood, *few)
            assert max(place for place, tag in enumerate(Npu.order) if tag == "b") < 12, Npu.order

    sync(main())


def test_tensors_of_several_clients_run_together_and_come_apart_again(tmp_path):
    async def main():
        async with running(settings_of(linear(tmp_path / "net"))) as fleet:
            model = fleet.models["m"]
            rows = [np.full((1 + n % 3, 8), n, np.float32) for n in range(40)]
            with occupied(model):
                jobs = [asyncio.create_task(model.answer(tensors(row))) for row in rows]
                await until(lambda: model.health().queue == 40)
            answers = await asyncio.gather(*jobs)
            assert all(np.array_equal(a.tensors[0]["y"], 2 * row) for a, row in zip(answers, rows, strict=True))
            assert max(answer.batch for answer in answers) > 1 and model.info().dynamic

    sync(main())
