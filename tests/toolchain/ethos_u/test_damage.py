"""Damaged and planted streams: named or harmless, never a crash, never without bounds."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ethosu.vela", reason="pip install 'anynpu[build]'")
pytest.importorskip("tflite_micro", reason="pip install 'anynpu[build]'")


from compiled import compile_model, micro, samples
from random_graphs import Drawer

from anynpu.errors import DeviceError, IntegrityError
from anynpu.runtime.ethos_u.model import Model, NpuCall, read_model
from anynpu.runtime.ethos_u.stream import read_stream
from anynpu.runtime.ethos_u.twin import Twin
from anynpu.runtime.ethos_u.weights import Decoder

pytestmark = pytest.mark.build
MUTATIONS = int(os.environ.get("ANYNPU_TEST_MUTATIONS", "150"))
"""How many mutated streams for each chip; 33,000 for a thorough run."""
CHIPS = ("ethos-u55-128", "ethos-u65-512", "ethos-u85-512")


def network(path: Path) -> Path:
    """A convolution, a table, a depthwise convolution, an addition, pooling, a dense layer and a softmax."""
    d = Drawer(np.random.default_rng(5))
    x = d.input((1, 9, 8, 5), "int8", 0.05, 3)
    for name in ("conv", "unary", "depthwise", "binary", "pool", "dense", "softmax"):
        kind = {"unary": "LOGISTIC", "binary": "ADD", "pool": "MAX_POOL_2D"}.get(name)
        x = getattr(d, name)(x, kind) if kind else getattr(d, name)(x)
    return d.write(path)


@pytest.fixture(scope="module", params=CHIPS)
def compiled(request, tmp_path_factory) -> tuple[Path, Model, bytes]:
    """A small network, compiled: its source, what is in the file, and the payload of its stream."""
    folder = tmp_path_factory.mktemp(request.param)
    source = network(folder / "net.tflite")
    model = read_model(compile_model(source, request.param, folder))
    (call,) = (c for c in model.calls if isinstance(c, NpuCall))
    payload = next(t.constant for t in model.tensors if t.name == "ethos_u_command_stream")
    assert payload is not None and len(call.stream.operations) > 20
    return source, model, payload.tobytes()


def changed(model: Model, *, payload: bytes | None = None, read_only: np.ndarray | None = None) -> Model:
    """Returns the model with another stream or other constants."""
    calls = []
    for call in model.calls:
        if isinstance(call, NpuCall) and payload is not None:
            call = replace(call, stream=read_stream(payload))
        if isinstance(call, NpuCall) and read_only is not None:
            call = replace(call, read_only=read_only)
        calls.append(call)
    return replace(model, calls=tuple(calls))


def test_the_whole_network_is_exact(compiled):
    source, model, _ = compiled
    inputs = samples(model, 8)
    (got,), (wanted,) = Twin(model).run_batch(inputs), micro(source, inputs, 1)
    assert np.array_equal(got.reshape(wanted.shape), wanted)


def test_mutated_streams_end_in_an_error_or_in_values(compiled):
    _, model, payload = compiled
    rng, decoder = np.random.default_rng(1), Decoder()
    inputs = samples(model, 2)
    (wanted,) = Twin(model, decoder).run_batch(inputs)
    outcomes = {"refused": 0, "other values": 0, "the same values": 0}
    for _ in range(MUTATIONS):
        words = np.frombuffer(payload, np.uint32).copy()
        place = int(rng.integers(8, len(words)))
        how = rng.integers(3)
        if how == 0:
            words[place] ^= np.uint32(1) << np.uint32(rng.integers(32))
        elif how == 1:
            words[place] = rng.integers(1 << 32, dtype=np.uint32)
        else:
            words[place] = words[rng.integers(8, len(words))]
        try:
            (got,) = Twin(changed(model, payload=words.tobytes()), decoder).run_batch(inputs)
        except (IntegrityError, DeviceError):
            outcomes["refused"] += 1
            continue
        outcomes["the same values" if np.array_equal(got, wanted) else "other values"] += 1
    assert outcomes["refused"] > 0 and outcomes["other values"] > 0, outcomes


def test_pooling_that_stores_other_channels_than_it_reads_is_refused(compiled):
    _, model, _ = compiled
    (call,) = (c for c in model.calls if isinstance(c, NpuCall))
    op = next(o for o in call.stream.operations if o.kind == "pool" and o.mode == 0)
    narrow = replace(op, registers={**op.registers, "OFM_DEPTH_M1": op.register("OFM_DEPTH_M1") - 1})
    operations = tuple(narrow if o is op else o for o in call.stream.operations)
    stream = replace(call.stream, operations=operations)
    calls = tuple(replace(c, stream=stream) if c is call else c for c in model.calls)
    with pytest.raises(IntegrityError, match=rf"{re.escape(op.title)}: it stores \d+ channels"):
        Twin(replace(model, calls=calls)).run_batch(samples(model, 1))


def test_a_damaged_weight_is_named_or_changes_values(compiled):
    """One byte of the weights of each convolution; what still decodes and is padded rightly gives other values."""
    _, model, _ = compiled
    inputs = samples(model, 4)
    (wanted,) = Twin(model).run_batch(inputs)
    (call,) = (c for c in model.calls if isinstance(c, NpuCall))
    op = next(o for o in call.stream.operations if o.kind == "conv")
    told = 0
    for place in (0, 1, 5):
        damaged = call.read_only.copy()
        base = op.address("WEIGHT_BASE")
        damaged[(base if op.register("WEIGHT_REGION") == 0 else _loaded_from(call, base)) + place] ^= 0x5A
        try:
            (got,) = Twin(changed(model, read_only=damaged)).run_batch(inputs)
        except IntegrityError as error:
            assert "weights" in error.message
            told += 1
        else:
            told += not np.array_equal(got, wanted)
    assert told  # the softmax at the end may hide one of them


def _loaded_from(call: NpuCall, address: int) -> int:
    """Returns where in the constants the bytes come from that DMA brings to an address."""
    for op in call.stream.operations:
        if op.kind == "dma" and op.address("DMA0_DST") <= address < op.address("DMA0_DST") + op.address("DMA0_LEN"):
            return op.address("DMA0_SRC") + address - op.address("DMA0_DST")
    raise AssertionError(address)
