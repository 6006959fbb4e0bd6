"""What a board says, read strictly: a line that is not exactly what the protocol allows is noise, not data."""

from __future__ import annotations

import binascii
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from anynpu.errors import AccuracyError, DeviceError
from anynpu.runtime.device.transport import NOISE
from anynpu.tensors import DTYPES, StoredTensor

READY = "m-ready"
STAGES = ("init", "io", "infer", "post")
LINE = re.compile(r"(m-|a-|e-\[|kat[ -])[\x20-\x7e]*")
KAT = re.compile(r"kat (\d+) (PASS|FAIL output (.+)\[(\d+)\] expected (\S+) got (\S+))")
KAT_RESULT = re.compile(r"kat-result (PASS|FAIL) (\d+)/(\d+)")
KAT_REFUSED = re.compile(r"kat \d+ FAIL (.*)|kat-result FAIL (\D.*)")
REFLASH = "the firmware was built with other weights or by a compiler that breaks it: build and flash it again"
TICKS_LIMIT = 2**32 - 1
"""What a board's counters of ticks stop at."""


@dataclass(frozen=True)
class BoardInfo:
    """What the firmware says of itself and its model. A tick rate of 0 means that ticks count instructions."""

    fingerprint: str
    arena_bytes: int
    tick_hz: int
    inputs: tuple[StoredTensor, ...]
    outputs: tuple[StoredTensor, ...]
    vectors: int
    line_limit: int
    npu: str = ""
    """What executes the commands of the model's NPU, where it has some."""

    @property
    def has_reference(self) -> bool:
        """Whether the processor executes what is meant for an NPU: its time is not the NPU's."""
        return self.npu.startswith("reference")


def decode(line: bytes, where: str, call: str) -> str:
    """Returns a line of the protocol as text; anything else is noise on the line."""
    try:
        text = line.decode("ascii")
    except UnicodeDecodeError:
        text = ""
    if not LINE.fullmatch(text):
        raise noise(where, call, line)
    return text


def noise(where: str, call: str, heard: bytes) -> DeviceError:
    """Returns the error for bytes that are not an answer."""
    shown = repr(heard[:60])[1:] + (" ..." if len(heard) > 60 else "")
    return DeviceError(f"{where}: garbage on the line after '{call}': {shown}", call=call, cause=NOISE, hint=NOISE)


def field(lines: Iterable[str], prefix: str, call: str) -> str:
    """Returns what follows `prefix` in the one line that starts with it; brackets around it are taken off."""
    values = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
    if len(values) != 1:
        count = "no" if not values else f"{len(values)}"
        raise DeviceError(
            f"the answer to '{call}' has {count} lines {prefix}...",
            call=call,
            cause="other firmware, or lost characters",
        )
    text = values[0]
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text


def number(text: str, call: str) -> int:
    """Returns a whole number that is not negative."""
    if not text.isascii() or not text.isdecimal():
        raise DeviceError(f"the answer to '{call}' holds {text!r} where a number was expected", call=call, cause=NOISE)
    return int(text)


def hex_bytes(text: str, call: str, expected: int) -> bytes:
    """Returns the bytes that hexadecimal text stands for; there must be `expected` of them."""
    try:
        data = binascii.unhexlify(text)
    except (binascii.Error, ValueError):
        raise DeviceError(f"the answer to '{call}' is not hexadecimal text", call=call, cause=NOISE) from None
    if len(data) != expected:
        raise DeviceError(
            f"the answer to '{call}' has {len(data)} bytes, {expected} were expected",
            call=call,
            cause="characters were lost on the line, or the board runs another model",
        )
    return data


def laps(lines: Sequence[str], call: str) -> int:
    """Returns the ticks between the two time stamps of an inference."""
    stamps = [number(line.removeprefix("m-lap-us-"), call) for line in lines if line.startswith("m-lap-us-")]
    if len(stamps) != 2 or stamps[1] < stamps[0]:
        raise DeviceError(f"the answer to '{call}' has no two rising time stamps", call=call, cause="lost characters")
    return stamps[1] - stamps[0]


def stage(lines: Sequence[str], name: str, call: str) -> tuple[int, int, int]:
    """Returns least, median and greatest ticks of a stage."""
    parts = [number(part, call) for part in field(lines, f"a-stage-{name}-", call).split(",")]
    if len(parts) != 3 or parts != sorted(parts):
        raise DeviceError(f"the answer to '{call}' has no [min,median,max] for {name}", call=call, cause=NOISE)
    if parts[2] >= TICKS_LIMIT:
        raise DeviceError(f"stage {name} takes longer than the board's counter goes", call=call, cause="a huge model")
    return parts[0], parts[1], parts[2]


def layers(lines: Sequence[str], call: str) -> list[tuple[int, int]]:
    """Returns tensors and their ticks."""
    ticks = []
    for index in range(sum(line.startswith("a-layer-") for line in lines)):
        parts = [number(part, call) for part in field(lines, f"a-layer-{index}-", call).split(",")]
        if len(parts) != 2:
            raise DeviceError(f"the answer to '{call}' has no [tensor,ticks] for {index}", call=call, cause=NOISE)
        ticks.append((parts[0], parts[1]))
    return ticks


def info(lines: Sequence[str]) -> BoardInfo:
    """Returns what the answer to `info` says."""
    return BoardInfo(
        fingerprint=field(lines, "a-fingerprint-", "info"),
        arena_bytes=number(field(lines, "a-arena-", "info"), "info"),
        tick_hz=number(field(lines, "a-tick-hz-", "info"), "info"),
        inputs=_tensors(lines, "input"),
        outputs=_tensors(lines, "output"),
        vectors=number(field(lines, "a-vectors-", "info"), "info"),
        line_limit=number(field(lines, "a-line-max-", "info"), "info"),
        npu=field(lines, "a-npu-", "info") if any(line.startswith("a-npu-") for line in lines) else "",
    )


def _tensors(lines: Sequence[str], kind: str) -> tuple[StoredTensor, ...]:
    count = sum(line.startswith(f"a-{kind}-") for line in lines)
    if not count:
        raise DeviceError(f"the answer to 'info' names no {kind}", call="info", cause="other firmware")
    tensors = []
    for index in range(count):
        text = field(lines, f"a-{kind}-{index}-", "info")
        try:
            name, dtype, dims, scale, zero_point = text.rsplit(",", 4)  # from the right: a name may hold commas
            tensor = StoredTensor(name, dtype, tuple(map(int, dims.split("x"))), float(scale), int(zero_point))
            sound = dtype in DTYPES and min(tensor.shape) >= 1 and math.isfinite(tensor.scale)
        except ValueError:
            sound = False
        if not sound:
            raise DeviceError(f"the answer to 'info' describes a tensor as {text!r}", call="info", cause=NOISE)
        tensors.append(tensor)
    return tuple(tensors)


def known_answers(lines: Sequence[str]) -> int:
    """Returns how many known answers the firmware gave right; a wrong one raises AccuracyError with its first value."""
    for line in lines:
        match = KAT.fullmatch(line)
        if match and match[3] is not None:
            index, _, output, element, wanted, got = match.groups()
            try:
                numbers = float(got), float(wanted)
            except ValueError:
                raise DeviceError(f"the answer to 'kat' holds {match[0]!r}", call="kat", cause=NOISE) from None
            raise AccuracyError(
                f"the board fails its known answer {index}: {output}[{element}] is {got}, expected {wanted}",
                "known answer",
                *numbers,
                worst=[line for line in lines if " FAIL output " in line],
                hint=REFLASH,
            )
        if not match and (refused := KAT_REFUSED.fullmatch(line)):
            raise DeviceError(f"the board's known-answer test fails: {refused[1] or refused[2]}", call="kat")
    result = [match for line in lines if (match := KAT_RESULT.fullmatch(line))]
    passed = sum(bool(KAT.fullmatch(line)) for line in lines)
    if len(result) != 1 or result[0].groups() != ("PASS", str(passed), str(passed)):
        raise DeviceError("the answer to 'kat' is incomplete", call="kat", cause="lost characters, or other firmware")
    return passed
