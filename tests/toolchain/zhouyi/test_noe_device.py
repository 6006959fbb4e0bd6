"""The device below the session: queries, asynchronous runs, the batch queue, priorities, buffers."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from fake_noe import SMALL_OUT, names, small

from anynpu.errors import ConfigError, DeviceError
from anynpu.runtime.noe.abi import Qos
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
    with pytest.raises(ConfigError):
        graph.run(inputs, outputs, 100)
    assert not {"noe_get_tensor", "noe_load_tensor", "noe_job_infer_sync"} & set(names(tmp_path / "calls"))


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
