"""At the first start of an artifact the model answers as it was built, until a form for any rows is proved."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
from engine_models import FAST, linear, settings_of, sync, tensors, until

from anynpu.apps.serve.fleet import open_fleet
from anynpu.errors import IntegrityError
from anynpu.runtime import loose

pytest.importorskip("onnxruntime")
X = np.arange(8, dtype=np.float32)[None]


@pytest.fixture
def gate(tmp_path, monkeypatch):
    """A fresh cache, and a gate at which the making of the loose form waits."""
    monkeypatch.setenv("ANYNPU_CACHE_DIR", str(tmp_path / "cache"))
    opened, make = threading.Event(), loose.loosened

    def waits(artifact):
        opened.wait(120)
        return make(artifact)

    monkeypatch.setattr(loose, "loosened", waits)
    yield opened
    opened.set()


def started(*models, do):
    async def main():
        fleet = open_fleet(models, FAST)
        try:
            await fleet.start()
            return await do(fleet, fleet.models["m"])
        finally:
            fleet.close()

    return sync(main())


def test_a_model_answers_before_it_is_loose_and_loses_nothing_when_it_becomes_so(tmp_path, gate):
    artifact = linear(tmp_path / "net")

    async def do(fleet, model):
        assert model.health().state == "ready" and model.health().loosening and model.info().free == ()
        assert model.health().canary.ok
        answers, built = [await model.answer(tensors(X))], model.device
        gate.set()
        while model.device is built:
            answers.append(await model.answer(tensors(X + len(answers))))
        await until(lambda: not model.health().loosening)
        assert model.info().free == ("batch",) and model.info().dynamic and model.health().reloads == 0
        several = await model.answer(tensors(np.repeat(X, 3, axis=0)))
        assert np.array_equal(several.tensors[0]["y"], 2 * np.repeat(X, 3, axis=0))
        for number, answer in enumerate(answers):
            assert answer.version == artifact.digest and np.array_equal(answer.tensors[0]["y"], 2 * (X + number))
        assert built.retired and not built.users and model.health().refused == {}

    started(settings_of(artifact), do=do)


def test_the_next_start_is_loose_at_once(tmp_path, gate):
    artifact = linear(tmp_path / "net")
    gate.set()

    async def first(fleet, model):
        await until(lambda: not model.health().loosening)

    async def second(fleet, model):
        assert model.info().free == ("batch",) and not model.health().loosening

    started(settings_of(artifact), do=first)
    started(settings_of(artifact), do=second)


def test_a_twin_becomes_loose_too(tmp_path, gate):
    device, twin = linear(tmp_path / "npu"), linear(tmp_path / "cpu")

    async def do(fleet, model):
        built = model.twin
        assert model.health().loosening
        gate.set()
        await until(lambda: not model.health().loosening)
        assert model.twin is not built and model.twin.info.free == model.info().free == ("batch",)

    started(settings_of(device, fallback=twin.path), do=do)


def test_what_cannot_be_made_loose_goes_on_as_it_was_built(tmp_path, gate, monkeypatch, caplog):
    def refuses(artifact):
        raise IntegrityError("no room for it")

    monkeypatch.setattr(loose, "loosened", refuses)

    async def do(fleet, model):
        await until(lambda: not model.health().loosening)
        answer = await model.answer(tensors(X))
        assert np.array_equal(answer.tensors[0]["y"], 2 * X) and model.info().free == ()

    started(settings_of(linear(tmp_path / "net")), do=do)
    assert "goes on as it was built: no room for it" in caplog.text


def test_a_reload_meanwhile_is_not_undone(tmp_path, gate):
    artifact = linear(tmp_path / "net")

    async def do(fleet, model):
        first = model.device
        await fleet.reload("m")
        second = model.device
        assert second is not first and model.health().loosening
        gate.set()
        await until(lambda: not model.health().loosening)
        assert model.device not in (first, second) and model.info().free == ("batch",) and first.retired

    started(settings_of(artifact), do=do)


def test_a_server_that_is_closed_does_not_wait_for_it(tmp_path, gate):
    async def do(fleet, model):
        return asyncio.get_running_loop().time()

    started(settings_of(linear(tmp_path / "net")), do=do)  # ends although the gate is shut
    assert not gate.is_set()
