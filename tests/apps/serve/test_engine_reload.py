"""Reload under load: no request is lost, and every answer comes from exactly one version."""

from __future__ import annotations

import asyncio
import os
import shutil
import weakref

import numpy as np
import pytest
from engine_models import linear, running, settings_of, sync, tensors, until

from anynpu.apps.serve import deployment
from anynpu.apps.serve.base import ModelSettings
from anynpu.errors import AnyNpuError, ConfigError, IntegrityError

pytest.importorskip("onnxruntime")
X = np.arange(8, dtype=np.float32)[None] + 1
RELOADS = int(os.environ.get("ANYNPU_RELOADS", "12"))


def put(folder, place):
    """Makes a link point to another version in one step, as a deployment does."""
    fresh = place.with_name("fresh")
    fresh.symlink_to(folder)
    fresh.rename(place)


def test_reloads_under_load_lose_nothing_and_mix_nothing(tmp_path):
    """Rows of one request are all of one version, and that is the one the answer names."""
    versions = [linear(tmp_path / f"v{factor}", float(factor)) for factor in (2, 3)]
    factor_of = {version.digest: factor for version, factor in zip(versions, (2.0, 3.0), strict=True)}
    place = tmp_path / "model"
    put(versions[0].path, place)
    seen: dict[str, int] = {}

    async def client(model, stop):
        while not stop.is_set():
            answer = await model.answer(tensors(X, X * 2, X * 3))
            factor = factor_of[answer.version]
            for n, rows in enumerate(answer.tensors, 1):
                assert np.array_equal(rows["y"], X * n * factor)
            seen[answer.version] = seen.get(answer.version, 0) + 1

    async def main():
        settings = ModelSettings("m", (place,), most_batch=1)
        async with running(settings) as fleet:
            model, stop = fleet.models["m"], asyncio.Event()
            clients = [asyncio.create_task(client(model, stop)) for _ in range(8)]
            for number in range(RELOADS):
                put(versions[(number + 1) % 2].path, place)
                info = await fleet.reload("m")
                assert info.version == versions[(number + 1) % 2].digest
                before = sum(seen.values())
                await until(lambda before=before: sum(seen.values()) > before + 8)
            stop.set()
            await asyncio.gather(*clients)
            health = model.health()
            assert health.reloads == RELOADS and health.refused == {} and health.state == "ready"
            assert health.answered == sum(seen.values())
            assert len(model._served) == 1, "old versions are forgotten"
            await until(lambda: list(model.device.lane._queues) == list(model._served.values()))

    sync(main())
    assert set(seen) == set(factor_of)


@pytest.mark.parametrize("damage", ["gone", "truncated", "other kind"])
def test_what_is_wrong_with_new_files_leaves_the_old_version_in_service(tmp_path, damage):
    artifact = linear(tmp_path / "net")

    async def main():
        async with running(settings_of(artifact)) as fleet:
            model = fleet.models["m"]
            if damage == "gone":
                shutil.rmtree(artifact.path)
            elif damage == "truncated":
                file = artifact.main
                file.write_bytes(file.read_bytes()[:-1])
            else:
                shutil.rmtree(artifact.path)
                card = {"kind": "classify", "preprocess": {"mean": [0.0], "std": [1.0], "channels": "GRAY"}}
                linear(artifact.path, task=card)
            with pytest.raises((ConfigError, IntegrityError)):
                await fleet.reload("m")
            assert model.health().state == "ready" and model.health().reloads == 0
            assert (await model.answer(tensors(X))).version == artifact.digest

    sync(main())


def test_a_model_that_is_not_there_is_named(tmp_path):
    async def main():
        async with running(settings_of(linear(tmp_path / "net"))) as fleet:
            with pytest.raises(AnyNpuError, match="no model z"):
                await fleet.reload("z")

    sync(main())


def test_memory_goes_back_to_the_system_when_nothing_of_the_old_version_is_left(tmp_path, monkeypatch):
    given_back = []

    async def main():
        async with running(settings_of(linear(tmp_path / "net"))) as fleet:
            await fleet.models["m"].answer(tensors(X))
            old = weakref.ref(fleet.models["m"].device.loaded.program)
            monkeypatch.setattr(deployment, "give_back", lambda: given_back.append(old() is None))
            await fleet.reload("m")
            await until(lambda: given_back)

    sync(main())
    assert given_back == [True]
