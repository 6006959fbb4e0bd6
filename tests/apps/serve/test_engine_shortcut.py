"""A request that is alone and quick is computed in the event loop; every other one by the owner of the device."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import numpy as np
import pytest
from engine_models import linear, occupied, running, settings_of, sync, tensors, until

from anynpu.apps.serve import deployment, shortcut
from anynpu.apps.serve.base import Expired, Request
from anynpu.errors import DeviceError

pytest.importorskip("onnxruntime")
X = np.arange(8, dtype=np.float32)[None]


@pytest.fixture(autouse=True)
def any_run_is_quick(monkeypatch):
    """However busy the machine is."""
    monkeypatch.setattr(shortcut, "LONGEST_S", 60.0)


def threads_of(model) -> list[str]:
    """Has the session note in which thread each run happens."""
    session, names = model.device.loaded.sessions[0], []
    run = session.run

    def noted(inputs):
        names.append("loop" if threading.current_thread() is threading.main_thread() else "owner")
        return run(inputs)

    session.run = noted
    return names


async def ask(model, times: int = 1, rows: np.ndarray = X) -> None:
    for _ in range(times):
        answer = await model.answer(tensors(rows))
        assert np.array_equal(answer.tensors[0]["y"], 2 * rows)


async def until_at_once(model, names: list[str], rows: np.ndarray = X) -> None:
    """Asks until a run happens in the loop: the owner may still be busy with the end of its last turn."""
    asked = len(names)
    while "loop" not in names[asked:]:
        await ask(model, 1, rows)


def served(tmp_path, do: Callable, *, more: int = 0) -> list[str]:
    """Returns the threads of the runs that `do` asks of one model."""

    async def main() -> list[str]:
        models = [settings_of(linear(tmp_path / f"net{n}"), name="m" if not n else f"m{n}") for n in range(1 + more)]
        async with running(*models) as fleet:
            model = fleet.models["m"]
            names = threads_of(model)
            await do(model, names)
            return names

    return sync(main())


def test_the_first_run_of_a_size_is_measured_by_the_owner_and_the_next_is_at_once(tmp_path):
    async def do(model, names):
        await until_at_once(model, names)
        first = len(names)
        await until_at_once(model, names, np.repeat(X, 4, axis=0))
        assert names[0] == names[first] == "owner" and names[first - 1] == names[-1] == "loop"
        assert model.health().answered == len(names) and model.health().queue == 0

    served(tmp_path, do)


def test_a_slow_model_is_left_to_the_owner(tmp_path, monkeypatch):
    monkeypatch.setattr(shortcut, "LONGEST_S", 0.0)
    assert served(tmp_path, lambda model, names: ask(model, 4)) == ["owner"] * 4


def test_one_of_several_models_is_left_to_the_owner(tmp_path):
    assert served(tmp_path, lambda model, names: ask(model, 4), more=1) == ["owner"] * 4


def test_two_requests_at_once_go_to_the_owner_and_so_do_those_that_follow(tmp_path, monkeypatch):
    monkeypatch.setattr(deployment, "CROWDED_S", 60.0)

    async def do(model, names):
        await until_at_once(model, names)
        names.clear()
        await asyncio.gather(*(ask(model) for _ in range(8)))
        await ask(model)

    assert set(served(tmp_path, do)) == {"owner"}


def test_what_the_owner_has_to_do_comes_first(tmp_path):
    async def do(model, names):
        await until_at_once(model, names)
        names.clear()
        with occupied(model):
            await until(lambda: model.device.lane._owned.locked())
            job = asyncio.create_task(ask(model))
            await until(lambda: not model.device.lane._inbox.empty())
        await job

    assert served(tmp_path, do) == ["owner"]


def test_a_client_that_goes_in_the_same_turn_gets_nothing_computed(tmp_path):
    async def do(model, names):
        await until_at_once(model, names)
        names.clear()
        left = iter([False, True])
        with pytest.raises(Expired, match="left"):
            await model.answer(Request(({"x": X},), gone=lambda: next(left, True)))
        assert model.health().refused == {"gone": 1}

    assert served(tmp_path, do) == []


def test_a_session_that_fails_in_the_loop_is_opened_again(tmp_path):
    async def do(model, names):
        await until_at_once(model, names)
        session = model.device.loaded.sessions[0]

        def fails(inputs):
            raise RuntimeError("out of memory")

        session.run = fails
        with pytest.raises(DeviceError, match="out of memory"):
            await ask(model)
        await until(lambda: model.health().state == "ready" and model.health().restarts == 1)
        assert model.device.loaded.sessions[0] is not session
        await until_at_once(model, threads_of(model))

    served(tmp_path, do)
