"""The command stream: how it is read, and what a damaged one is."""

from __future__ import annotations

import struct

import pytest

from anynpu.errors import IntegrityError
from anynpu.runtime.ethos_u.stream import read_operations, read_stream

STOP = 0xFFFF0000


def payload(*words: int, config: int = 0x10000008) -> bytes:
    actions = [1, config, 0, 2 | len(words) << 16]
    return b"COP1" + struct.pack(f"<{len(actions) + len(words)}I", *actions, *words)


def test_registers_keep_their_values_between_operations():
    pool, height = 5, 0x112 | 6 << 16
    base = 0x4010 | 0x12 << 16
    first, second = read_operations((height, base, 0x345, pool, 0x112 | 7 << 16, pool | 1 << 16, STOP))
    assert (first.kind, first.mode, first.register("OFM_HEIGHT_M1"), first.address("OFM_BASE0")) == (
        *("pool", 0, 6),
        0x12_0000_0345,
    )
    assert (second.mode, second.register("OFM_HEIGHT_M1"), second.address("OFM_BASE0")) == (1, 7, 0x12_0000_0345)
    assert (first.word, second.word) == (3, 5)


def test_a_distance_may_be_negative():
    (op,) = read_operations((0x4015 | 0xFF << 16, 0xFFFFFFF0, 5, STOP))
    assert op.stride("OFM_STRIDE_Y") == -16


def test_the_configuration_names_the_npu():
    assert read_stream(payload(0x123, 5, STOP)).title == "Ethos-U65-256"
    dual = read_stream(payload(0x123 | 1 << 16, 5, STOP, config=0x10000009))
    assert (dual.title, dual.cores) == ("Ethos-U65-512", 2)
    assert read_stream(payload(STOP, config=0x2000000B)).title == "Ethos-U85-2048"


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"COP2" + bytes(16), "COP1"),
        (b"", "COP1"),
        (payload(5), "does not end"),
        (payload(0x1FF, STOP), "word 0 of the commands"),
        (payload(0x4000 | 0x7F, 0, STOP), "word 0 of the commands"),
        (payload(0x8000, STOP), "word 0 of the commands"),
        (payload(0x4000), "word 0 of the commands"),
        (payload(STOP, config=0x70000008), "driver action"),
        (payload(STOP)[:-4], "cut off"),
        (payload(STOP, config=0x20000003), "an Ethos-U85 of 8 MACs"),
        (b"COP1" + struct.pack("<2I", 5, 5), "no commands"),
        (b"COP1" + struct.pack("<I", 9), "driver action 9"),
    ],
)
def test_a_damaged_stream_says_where(raw, words):
    with pytest.raises(IntegrityError, match=words):
        read_stream(raw)


def test_a_register_that_was_never_written_is_named():
    (op,) = read_operations((5, STOP))
    with pytest.raises(IntegrityError, match=r"operation 0 \(pool, word 0\): register OFM_SCALE was never written"):
        op.register("OFM_SCALE")
