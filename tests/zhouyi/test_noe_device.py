"""The device below the session: queries, asynchronous runs, the batch queue, priorities, buffers."""

from __future__ import annotations

import shutil
import time

import numpy as np
import pytest
from fake_noe import SMALL_OUT, names, small

from anynpu.errors import ConfigError, DeviceError
from anynpu.runtime.noe.abi import JobState, Qos
from anynpu.runtime.noe.cix import read_cix
from anynpu.runtime.noe.device import Device, Graph, Memory
from anynpu.runtime.noe.library import Library
from anynpu.testing import noe

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler (package gcc)")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return noe.build_fake(tmp_path_factory.mktemp("fake"))


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return np.frombuffer(read_cix(small(tmp_path_factory.mktemp("model") / "m").main).elf, np.uint8).copy()


@pytest.fixture
def open_device(library, program):
    """Opens a device with switches and loads the small model; both are closed at the end."""
    opened = []

    def start(qos=Qos.SLOW, **values):
        switched = noe.switches(library, **values)
        switched.__enter__()
        device = Device(Library(library))
        opened.append((switched, device))
        graph = Graph(device, memory(program), qos)
        return device, graph

    yield start
    for switched, device in opened:
        device.close()
        device.close()
        switched.__exit__(None, None, None)


def memory(array):
    return Memory(array.ctypes.data, array.nbytes)


def tensors(n=0):
    """An input, an output, and what the output shall be."""
    x = (np.arange(6) + n).astype(np.int8)
    return x, np.zeros(4, np.int8), noe.expect_mix([x], [SMALL_OUT])[0].ravel()


def test_queries(open_device):
    device, graph = open_device(UMD_VERSION="0.6.1")
    info = device.info()
    assert (info.target, info.library, info.driver, info.cores) == ("X2_1204MP3", "0.6.1", "5.11.0", ((3,),))
    assert device.message(0) == "NOE_STATUS_SUCCESS" and graph.build_version() == 6 | 1 << 8 | 3407 << 16
    assert [(d.nbytes, d.scale, d.zero_point, d.dtype) for d in (*graph.inputs, *graph.outputs)] == [
        (6, 2.0, -3, 3),
        (4, 4.0, 2, 3),
    ]
    assert graph.dynamic_shapes() == ()


def test_shapes_that_may_change(open_device):
    _, graph = open_device(SHAPES="1x3x224x224:1x3x640x640;1x77:8x77")
    assert graph.dynamic_shapes() == (((1, 3, 224, 224), (1, 3, 640, 640)), ((1, 77), (8, 77)))


def test_an_inference_in_the_background_is_asked_for(open_device):
    _, graph = open_device(DELAY_US=20_000)
    for n in range(3):
        x, y, wanted = tensors(n)
        graph.start([memory(x)])
        assert graph.state() == JobState.NO_STATUS
        graph.fetch([memory(y)], 1000)
        assert np.array_equal(y, wanted) and graph.state() == JobState.DONE


def test_an_inference_in_the_background_that_hangs_or_fails(open_device, tmp_path):
    _, graph = open_device(HANG=-1, JOURNAL=tmp_path / "calls")
    x, y, _ = tensors()
    graph.start([memory(x)])
    began = time.monotonic()
    with pytest.raises(DeviceError, match="0x23"):
        graph.fetch([memory(y)], 50)
    assert time.monotonic() - began < 2 and names(tmp_path / "calls")[-1] == "noe_clean_job"


def test_an_exception_in_the_background(open_device):
    _, graph = open_device(EXCEPTION=1)
    x, y, wanted = tensors()
    graph.start([memory(x)])
    with pytest.raises(DeviceError, match="0x11"):
        graph.fetch([memory(y)], 500)
    graph.run([memory(x)], [memory(y)], 100)
    assert np.array_equal(y, wanted)


def test_many_inputs_with_one_request(open_device, tmp_path):
    _, graph = open_device(JOURNAL=tmp_path / "calls")
    rows = [tensors(n) for n in range(20)]
    for _ in range(2):
        graph.run_batch([([memory(x)], [memory(y)]) for x, y, _ in rows])
        assert all(np.array_equal(y, wanted) for _, y, wanted in rows)
    assert names(tmp_path / "calls").count("noe_clean_batch_queue") == 2


def test_a_request_that_fails_gives_its_queue_back(open_device, tmp_path):
    _, graph = open_device(EXCEPTION=2, JOURNAL=tmp_path / "calls")
    rows = [tensors(n) for n in range(3)]
    with pytest.raises(DeviceError, match="noe_finish_batch gives 0x11"):
        graph.run_batch([([memory(x)], [memory(y)]) for x, y, _ in rows])
    assert names(tmp_path / "calls")[-1] == "noe_clean_batch_queue"


def test_the_priority_reaches_the_library(open_device):
    x, y, wanted = tensors()
    _, graph = open_device(qos=Qos.HIGH)
    graph.run([memory(x)], [memory(y)], 100)
    assert np.array_equal(y, wanted)
    graph._qos = 2
    graph._discard_job()
    with pytest.raises(DeviceError, match=r"0x21 .INVALID_QOS."):
        graph.run([memory(x)], [memory(y)], 100)


@pytest.mark.parametrize("sizes", [((5,), (4,)), ((6,), (3,)), ((7,), (4,)), ((6, 6), (4,)), ((6,), ())])
def test_a_buffer_of_another_size_never_reaches_the_library(sizes, open_device, tmp_path):
    _, graph = open_device(JOURNAL=tmp_path / "calls")
    arrays = [[np.zeros(n, np.int8) for n in kind] for kind in sizes]
    inputs, outputs = ([memory(a) for a in kind] for kind in arrays)
    for attempt in (
        lambda: graph.run(inputs, outputs, 100),
        lambda: graph.run_batch([(inputs, outputs)]),
        lambda: (graph.start(inputs), graph.fetch(outputs, 100)),
    ):
        with pytest.raises(ConfigError):
            attempt()
    hot = {"noe_get_tensor", "noe_add_batch", "noe_job_infer_sync", *(["noe_load_tensor"] if sizes[0] != (6,) else [])}
    assert not hot & set(names(tmp_path / "calls"))


def test_buffers_that_end_at_a_guard_page_are_enough(open_device):
    _, graph = open_device()
    (_in, x), (_out, y) = noe.guarded(6), noe.guarded(4)
    x[:] = 9
    graph.run([memory(x)], [memory(y)], 100)
    assert np.array_equal(y, noe.expect_mix([x.copy()], [SMALL_OUT])[0].ravel().view(np.uint8))


def test_a_closed_device_says_so(open_device):
    device, _ = open_device()
    device.close()
    with pytest.raises(DeviceError, match="the NPU was closed"):
        device.info()
