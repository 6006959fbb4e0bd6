"""Reads the .mlir files of TPU-MLIR: of the last one its functions, where each runs, and the operators in them; of the
others what each operator gives, and how that is stored.

func.func @subfunc_0(...) ... attributes {id = 0 : i64, mode = #tpu<run_mode CPU>, ...} {
  %0 = "tpu.GenericCpu"(%arg0) {cpu_op_name = "quant", ...} : ... loc(#loc2)
#loc2 = loc("image_si8")
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from anynpu.errors import IntegrityError

_FUNCTION = re.compile(r"^\s*func\.func @(\w+)\(")
_MODE = re.compile(r"run_mode (\w+)>")
_OPERATOR = re.compile(r'"tpu\.(\w+)"\(')
_OF_EITHER = re.compile(r'"(?:top|tpu)\.(\w+)"\(')
_TYPE = re.compile(r"tensor<(?:\d+x)*(?:!quant\.uniform<([a-z]+\d+):f32, ([^:>]+)(?::(-?\d+))?>|(\w+))>")
_CPU_NAME = re.compile(r'cpu_op_name = "([^"]*)"')
_PLACE = re.compile(r'loc\((#loc\d*|"[^"]*"|fused.*)\)\s*$')
_LOCATION = re.compile(r"^(#loc\d*) = loc\((.*)\)\s*$")
_PART = re.compile(r'#loc\d*|"[^"]*"')
# What the compiler puts in to move data between memories, and what holds other operators.
_PLUMBING = {"Group", "Load", "Store", "Yield"}
_CONSTANT = {"Weight", "None", "Buffer"}


@dataclass(frozen=True)
class Operation:
    """An operator of the compiled program: its kind, the tensors that it stands for, and whether the TPU runs it."""

    kind: str
    names: tuple[str, ...]
    on_tpu: bool


@dataclass(frozen=True)
class Result:
    """What an operator gives: its name, its type, and scale and zero point of integers."""

    kind: str
    name: str
    dtype: str
    scale: float | None = None
    zero_point: int = 0


def results(text: str) -> tuple[Result, ...]:
    """Returns what the operators of an .mlir file give, in order; stored constants are left out."""
    lines = text.splitlines()
    places = {m[1]: m[2] for line in lines if (m := _LOCATION.match(line))}
    listed = []
    for line in lines:
        operator, place = _OF_EITHER.search(line), _PLACE.search(line)
        if operator is None or place is None or operator[1] in {*_PLUMBING, *_CONSTANT}:
            continue
        for name, type in zip(_names(place[1], places), _TYPE.finditer(line.rpartition("->")[2]), strict=False):
            integer, scale, point, other = type.groups()
            stored = float(scale) if scale is not None else None
            listed.append(Result(operator[1], name, integer or other, stored, int(point or 0)))
    return tuple(listed)


def operations(text: str) -> tuple[Operation, ...]:
    """Returns the operators of a final .mlir file in order."""
    lines = text.splitlines()
    places = {m[1]: m[2] for line in lines if (m := _LOCATION.match(line))}
    listed, mode = [], ""
    for line in lines:
        if _FUNCTION.match(line):
            run_mode = _MODE.search(line)
            mode = run_mode[1] if run_mode else ""
        operator = _OPERATOR.search(line)
        if operator is None or operator[1] in _PLUMBING:
            continue
        if not mode:
            raise IntegrityError(f"the compiler's final .mlir file does not say where {operator[1]} runs")
        place, cpu = _PLACE.search(line), _CPU_NAME.search(line)
        names = _names(place[1], places) if place else ()
        listed.append(Operation(cpu[1] if cpu else operator[1], names, mode.startswith("TPU") and cpu is None))
    if not listed:
        raise IntegrityError("the compiler's final .mlir file holds no operator")
    return tuple(listed)


def _names(place: str, places: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the names that a location stands for; one of several names them in turn."""
    names: list[str] = []
    for part in _PART.findall(place):
        if part.startswith('"'):
            names.append(part.strip('"'))
        elif part in places:
            names += _names(places[part], {k: v for k, v in places.items() if k != part})
    return tuple(names)
