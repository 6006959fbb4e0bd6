"""Arrays from JSON lists and raw bytes, and back, by the types that a model's tensors have."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anynpu.apps.serve.fields import whole
from anynpu.apps.web.message import Refusal
from anynpu.tensors import Array, TensorSpec

MOST_AXES = 16
MOST_ELEMENTS = 2**31
EXACT = 2.0**53
"""Below this every whole number is a double. JSON readers make a double of an integer beyond 64 bits."""


def dtype_of(spec: TensorSpec, stored: bool) -> str:
    """Returns the type of the numbers that cross HTTP: the stored ones, or real numbers where those are quantised."""
    return "float32" if spec.quantization is not None and not stored else spec.dtype


def from_lists(name: str, data: Any, dtype: str, shape: Sequence[int] | None = None) -> Array:
    """Returns nested or flat lists as an array, if every number fits the type."""
    try:
        array = np.array(data)
    except (ValueError, OverflowError):  # lists of different lengths, or too deep
        raise Refusal(422, f"{name}: the lists are of different lengths", parameter=name) from None
    wanted = np.dtype(dtype)
    if not _types(data) <= ({bool} if wanted.kind == "b" else {int, float}):
        raise Refusal(422, f"{name}: numbers of type {dtype} were expected", parameter=name)
    if wanted.kind in "iu" and array.dtype.kind == "f" and (array == np.rint(array)).all():
        try:
            array = np.array(_whole(data))
        except (OverflowError, ValueError):
            raise Refusal(422, f"{name}: a number does not fit {dtype}", parameter=name) from None
    kinds = {"f": "iuf", "i": "iu", "u": "iu", "b": "b"}[wanted.kind]
    if array.size and array.dtype.kind not in kinds:
        raise Refusal(422, f"{name}: numbers of type {dtype} were expected", parameter=name)
    if wanted.kind in "iu" and array.size:
        bounds = np.iinfo(wanted)
        if int(array.min()) < bounds.min or int(array.max()) > bounds.max:
            raise Refusal(422, f"{name}: a number does not fit {dtype}", parameter=name)
    with np.errstate(over="ignore"):
        return shaped(name, array.astype(wanted), shape)


def _types(value: Any) -> set[type]:
    """Returns the types of what nested lists hold: an array of 1 and true would be one of numbers."""
    types = set(map(type, value)) if isinstance(value, list) else {type(value)}
    if list in types:
        types.discard(list)
        types.update(*[_types(each) for each in value if isinstance(each, list)])
    return types


def _whole(value: Any) -> Any:
    """Returns lists with 5 for 5.0. A float of 2**53 or more may stand for a number that fits no 64 bits: it raises."""
    if isinstance(value, list):
        return [_whole(each) for each in value]
    if isinstance(value, float) and abs(value) >= EXACT:
        raise OverflowError
    return int(value)


def from_bytes(name: str, data: bytes | memoryview, dtype: str, shape: Sequence[int]) -> Array:
    """Returns raw little-endian bytes as an array of a shape."""
    wanted = _little(dtype)
    size = math.prod(shape) * wanted.itemsize
    if len(data) != size:
        message = f"{name}: {len(data):,} bytes, {dtype} of shape {list(shape)} has {size:,}"
        raise Refusal(422, message, parameter=name)
    if wanted.kind == "b" and any(byte > 1 for byte in data):
        raise Refusal(422, f"{name}: a truth value is one byte, 0 or 1", parameter=name)
    array: Array = np.ndarray(tuple(shape), wanted, bytearray(data))
    return _finite(name, array if wanted.isnative else array.astype(dtype))


@functools.cache
def _little(dtype: str) -> np.dtype[Any]:
    """Returns the type of numbers as they cross HTTP."""
    return np.dtype(dtype).newbyteorder("<")


def shaped(name: str, array: Array, shape: Sequence[int] | None) -> Array:
    """Returns finite numbers in a shape that has as many."""
    if shape is not None:
        if math.prod(shape) != array.size:
            message = f"{name}: {array.size:,} numbers, the shape {list(shape)} has {math.prod(shape):,}"
            raise Refusal(422, message, parameter=name)
        array = array.reshape(tuple(shape))
    return _finite(name, array)


def _finite(name: str, array: Array) -> Array:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise Refusal(422, f"{name}: holds NaN, or a number beyond {array.dtype}", parameter=name)
    return array


def shape_of(name: str, value: Any) -> tuple[int, ...]:
    """Returns a shape that a client sent."""
    if not isinstance(value, list) or len(value) > MOST_AXES:
        raise Refusal(422, f"{name}: the shape must be a list of at most {MOST_AXES} numbers", parameter=name)
    value = [whole(axis) for axis in value]
    for axis in value:
        if type(axis) is not int or not 0 <= axis < MOST_ELEMENTS:
            raise Refusal(422, f"{name}: the shape must hold whole numbers", parameter=name)
    if math.prod(value) >= MOST_ELEMENTS:
        raise Refusal(413, f"{name}: the shape {value} has too many elements", parameter=name)
    return tuple(value)


def split(body: bytes, specs: Sequence[TensorSpec], stored: bool, dynamic: bool) -> dict[str, Array]:
    """Returns the inputs of a model from their bytes one after the other; where the number of rows is free, there are
    as many as the bytes fill."""
    sizes = [_little(dtype_of(spec, stored)).itemsize * spec.size for spec in specs]
    whole = sum(sizes)
    times, rest = divmod(len(body), whole)
    if rest or not times or (times > 1 and not dynamic):
        parts = ", ".join(f"{spec.name} {dtype_of(spec, stored)} {list(spec.shape)}" for spec in specs)
        raise Refusal(422, f"{len(body):,} bytes were sent, the inputs have {whole:,}", f"in this order: {parts}")
    arrays, at = {}, 0
    for spec, size in zip(specs, sizes, strict=True):
        shape = (spec.shape[0] * times, *spec.shape[1:]) if times > 1 else spec.shape
        part = memoryview(body)[at : at + size * times]
        arrays[spec.name] = from_bytes(spec.name, part, dtype_of(spec, stored), shape)
        at += size * times
    return arrays


def joined(tensors: Mapping[str, Array]) -> tuple[bytes, bytes]:
    """Returns the bytes of all outputs one after the other, and what they are, for a header."""
    little = [a if a.dtype.str[0] != ">" else a.astype(a.dtype.newbyteorder("<")) for a in tensors.values()]
    return b"".join([array.tobytes() for array in little]), _described(
        tuple([(name, a.dtype, a.shape) for name, a in tensors.items()])
    )


@functools.lru_cache(64)
def _described(tensors: tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]) -> bytes:
    names = ", ".join(f"{name}:{dtype.name}:{'x'.join(map(str, shape))}" for name, dtype, shape in tensors)
    return "".join(c if c.isprintable() else "?" for c in names).encode("ascii", "replace")
