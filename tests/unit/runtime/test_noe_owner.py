"""The owning thread of a device, and the one holder that sessions share."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from anynpu.errors import DeviceError
from anynpu.runtime.noe.shared import Shared
from anynpu.runtime.owner import Owner


def test_everything_is_done_in_one_thread_in_turn():
    owner, seen, inside = Owner("device"), [], threading.Lock()

    def touch(n):
        assert inside.acquire(blocking=False), "two at a time"
        seen.append((threading.get_ident(), n))
        time.sleep(0.0001)
        inside.release()
        return n * n

    def client(n):
        results.extend(owner.call(touch, n) for _ in range(50))

    results: list[int] = []
    clients = [threading.Thread(target=client, args=(n,)) for n in range(8)]
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    owner.close()
    assert len({thread for thread, _ in seen}) == 1 and threading.get_ident() not in {t for t, _ in seen}
    assert sorted(results) == sorted(n * n for n in range(8) for _ in range(50))


def test_errors_come_back_to_whoever_asked():
    owner = Owner("device")
    with pytest.raises(ZeroDivisionError):
        owner.call(lambda: 1 // 0)
    assert owner.call(lambda: 7) == 7
    owner.close()


def test_a_call_that_does_not_return_is_given_up():
    owner, forever = Owner("device"), threading.Event()
    with pytest.raises(DeviceError, match=r"did not return within 0\.05 s"):
        owner.call(forever.wait, timeout_s=0.05)
    with pytest.raises(DeviceError, match="the device is lost"):
        owner.call(lambda: 7)
    forever.set()


def test_a_fork_has_no_owner():
    owner = Owner("device")
    if (child := os.fork()) == 0:
        try:
            owner.call(lambda: 7)
        except DeviceError:
            os._exit(3)
        os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    owner.close()


class Held:
    def __init__(self, library):
        self.pid, self.lost, self.closed = os.getpid(), "", 0

    def close(self):
        self.closed += 1


def test_a_holder_is_shared_replaced_when_lost_and_closed_with_its_last_user():
    shared, path = Shared(Held), Path("lib")
    one, two = shared.acquire(path), shared.acquire(path)
    assert one is two and shared.acquire(Path("other")) is not one
    one.lost = "crashed"
    three = shared.acquire(path)
    assert three is not one
    shared.release(path, one)
    shared.release(path, two)
    assert three.closed == 0
    shared.release(path, three)
    assert three.closed == 1 and shared.acquire(path) is not three
