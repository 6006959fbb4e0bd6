"""What a kind of model does with items: rows that the device runs together, and what becomes of its outputs.

`prepare` and `finish` are pure and may be slow; `compute` is called by the device's owner only, and `begin`
in its place by whoever knows that the device is idle.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from anynpu.apps.serve.base import ClassScore, Info, Item, Limits, Options, TooLarge
from anynpu.errors import ConfigError
from anynpu.runtime.abilities import BeginsJobs, free_axes
from anynpu.runtime.base import Session, check_names
from anynpu.tasks.detect import Detections
from anynpu.tasks.embed import TextTower
from anynpu.tasks.images import Fit
from anynpu.tasks.model import Model
from anynpu.tasks.space import unit
from anynpu.tasks.text import Tokens, cut
from anynpu.tensors import Array, TensorSpec

RAW = "raw"
FLOAT = np.dtype(np.float32)
QUICK_CHARACTERS = 2000
"""Texts of together this many characters become tokens in the event loop: that takes less than handing them over."""


class Row(NamedTuple):
    """An item made ready to run; rows of one group may run together."""

    group: int | str
    ids: Sequence[int] = ()
    arrays: Mapping[str, Array] = MappingProxyType({})
    place: Fit | None = None
    tokens: int = 0
    truncated: bool = False
    size: tuple[int, int] = (0, 0)


class Rows(NamedTuple):
    """What a program says of the items of one request: one of the four is filled."""

    vectors: Array | None = None
    detections: tuple[Detections, ...] = ()
    classes: tuple[tuple[ClassScore, ...], ...] = ()
    tensors: tuple[Mapping[str, Array], ...] = ()


class Program(Protocol):
    """One kind of model over its sessions."""

    sessions: list[Session]
    run_s: list[float]
    """Seconds that one run of each session takes, measured when it was warmed up."""

    def is_quick(self, items: Sequence[Item]) -> bool:
        """Returns whether `prepare` of all items takes no longer than a thread's attention."""
        ...

    def prepare(self, item: Item, options: Options, limits: Limits, name: str) -> Row: ...

    def most(self, group: int | str) -> int:
        """Returns how many rows of a group may run together."""
        ...

    def begin(self, row: Row) -> Callable[[], Any] | None:
        """Has the device begin a row and returns what waits for what it gives; None where it cannot begin at once."""
        ...

    def compute(self, group: int | str, rows: Sequence[Row]) -> list[Any]:
        """Runs the model and returns what it gave for each row."""
        ...

    def finish(self, rows: Sequence[Row], results: Sequence[Any], options: Options) -> Rows: ...

    def samples(self, index: int) -> list[dict[str, Array]]:
        """Returns a few inputs of a session that are always the same."""
        ...

    def describe(self, info: Info) -> Info:
        """Returns the description with what is known of this kind."""
        ...


def item_error(item: Item, wanted: str) -> ConfigError:
    kinds = {str: "a text", tuple: "token numbers", bytes: "a picture"}
    return ConfigError(f"the model takes {wanted}, not {kinds.get(type(item), 'tensors')}")


def free_rows(session: Session) -> bool:
    """Returns whether a session runs any number of rows."""
    return "batch" in free_axes(session)


class Tensors:
    """Every input of a model as arrays, as they are stored or as real numbers."""

    def __init__(self, session: Session, most_batch: int, vocabulary: Mapping[str, int] = MappingProxyType({})) -> None:
        self.session, self._free, self._most = session, free_rows(session), most_batch
        self._vocabulary = vocabulary
        self.sessions, self.run_s = [session], [0.0]
        self._begin = session.begin if isinstance(session, BeginsJobs) else None
        self._outputs = {spec.name: spec for spec in session.outputs}
        self._inputs = [(spec, np.dtype(spec.dtype), spec.quantization is not None) for spec in session.inputs]

    def _usual(self, item: Mapping[str, Array], options: Options) -> Mapping[str, Array] | None:
        """Returns what runs of an item of the usual form: stored arrays of the model's own types and shapes, or float32
        for inputs that are quantised. None for any other form; `prepare` says what is wrong with it."""
        if options.outputs or len(item) != len(self._inputs):
            return None
        stored: dict[str, Array] = {}
        for spec, dtype, quantised in self._inputs:
            array = item.get(spec.name)
            real = quantised and not options.stored
            if not isinstance(array, np.ndarray) or array.dtype != (FLOAT if real else dtype):
                return None
            if array.shape != spec.shape or (array.dtype.kind == "f" and not np.isfinite(array).all()):
                return None
            stored[spec.name] = spec.to_stored(array) if real else array
        return stored

    def is_quick(self, items: Sequence[Item]) -> bool:
        return all(isinstance(item, Mapping) and sum(a.nbytes for a in item.values()) < 1 << 20 for item in items)

    def prepare(self, item: Item, options: Options, limits: Limits, name: str) -> Row:
        if not isinstance(item, Mapping):
            raise item_error(item, "tensors: " + ", ".join(spec.name for spec in self.session.inputs))
        for token_input, size in self._vocabulary.items():
            tokens = np.asarray(item.get(token_input, 0))
            outside = tokens[(tokens < 0) | (tokens >= size)] if tokens.dtype.kind in "iuf" else tokens[:0]
            if outside.size:
                raise ConfigError(f"the model has no token {outside[0]}", f"its tokens are 0 to {size - 1}")
        if (usual := self._usual(item, options)) is not None:
            return Row(RAW, arrays=usual)
        check_names(item, self.session.inputs)
        for output in options.outputs:
            if output not in self._outputs:
                raise ConfigError(f"the model has no output {output}", "its outputs: " + ", ".join(self._outputs))
        arrays = {spec.name: np.asarray(item[spec.name]) for spec in self.session.inputs}
        rows = {array.shape[0] if array.ndim else 0 for array in arrays.values()}
        count = rows.pop() if len(rows) == 1 and self._free else 0
        if count > limits.items:
            raise TooLarge(f"{name}: {count} rows, at most {limits.items} are taken at once")
        return Row(RAW, arrays={s.name: _stored(s, arrays[s.name], options.stored, count) for s in self.session.inputs})

    def most(self, group: int | str) -> int:
        return self._most if self._free else 1

    def begin(self, row: Row) -> Callable[[], Any] | None:
        return self._begin(row.arrays) if self._begin is not None else None

    def compute(self, group: int | str, rows: Sequence[Row]) -> list[Any]:
        if len(rows) == 1:
            return [self.session.run(rows[0].arrays)]
        together = {s.name: np.concatenate([row.arrays[s.name] for row in rows]) for s in self.session.inputs}
        ends = np.cumsum([len(row.arrays[self.session.inputs[0].name]) for row in rows])
        outputs = self.session.run(together)
        parts = {name: np.split(array, ends[:-1]) for name, array in outputs.items()}
        return [{name: arrays[place] for name, arrays in parts.items()} for place in range(len(rows))]

    def finish(self, rows: Sequence[Row], results: Sequence[Any], options: Options) -> Rows:
        names = options.outputs or tuple(self._outputs)
        if options.stored:
            return Rows(tensors=tuple([{name: outputs[name] for name in names} for outputs in results]))
        specs = self._outputs
        return Rows(
            tensors=tuple([{name: specs[name].to_real(outputs[name]) for name in names} for outputs in results])
        )

    def samples(self, index: int) -> list[dict[str, Array]]:
        random = np.random.default_rng(7)

        def sample(spec: TensorSpec) -> Array:
            if spec.quantization is not None or spec.dtype.startswith("float"):
                return spec.to_stored(random.normal(0, 1, spec.shape))
            return random.integers(0, 2, spec.shape).astype(spec.dtype)

        return [{spec.name: sample(spec) for spec in self.session.inputs} for _ in range(2)]

    def describe(self, info: Info) -> Info:
        shape = self.session.inputs[0].shape if self.session.inputs else ()
        return replace(info, dynamic=self._free, batch=self._most if self._free else shape[0] if shape else 1)


def _stored(spec: TensorSpec, array: Array, stored: bool, count: int) -> Array:
    """Returns an input as the model stores it, if it has its shape; `count` rows may take the place of its own."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ConfigError(f"tensor {spec.name} holds NaN or infinite values")
    if array.dtype.kind not in "biuf":
        raise ConfigError(f"tensor {spec.name} holds {array.dtype}, numbers were expected")
    wanted = replace(spec, shape=(count, *spec.shape[1:])) if count and spec.shape else spec
    if tuple(array.shape) != wanted.shape:
        wanted.check(array)
    if not stored and (spec.quantization is not None or array.dtype.kind == "f"):
        return spec.to_stored(array)
    if str(array.dtype) != spec.dtype and not stored:
        integers = array.astype(spec.dtype)
        if not np.array_equal(integers, array):
            raise ConfigError(f"tensor {spec.name}: the numbers do not fit {spec.dtype}")
        array = integers
    wanted.check(array)
    return array


class Texts:
    """Texts to vectors, over one model at one or several lengths."""

    def __init__(self, models: Sequence[Model], sessions: Sequence[Session], most_batch: int) -> None:

        def length_and_batch(pair: tuple[Model, Session]) -> tuple[int, ...]:
            shape = pair[0].inputs[0].shape
            return shape[::-1] if len(shape) == 2 else (0, 0)

        pairs = sorted(zip(models, sessions, strict=True), key=length_and_batch)
        self.towers = [TextTower(model) for model, _ in pairs]
        self.sessions: list[Session] = [session for _, session in pairs]
        self.tokens, self._most = self.towers[-1].tokens, most_batch
        self.length = self.tokens.length
        self._free = len(pairs) == 1 and free_rows(self.sessions[0])
        self._free_length = self._free and "length" in free_axes(self.sessions[0])
        self.lengths = sorted({tower.tokens.length for tower in self.towers})
        self.run_s = [1.0] * len(pairs)
        self._begin = [session.begin for session in self.sessions if isinstance(session, BeginsJobs)]

    def is_quick(self, items: Sequence[Item]) -> bool:
        return sum(len(item) for item in items) <= QUICK_CHARACTERS

    def prepare(self, item: Item, options: Options, limits: Limits, name: str) -> Row:
        if isinstance(item, str):
            if len(item) > limits.characters:
                raise TooLarge(f"{name} has {len(item)} characters, at most {limits.characters} are taken")
            ids = self.tokens.ids(item, None if not options.truncate else self.length)
        elif isinstance(item, tuple):
            if len(item) > limits.characters:
                raise TooLarge(f"{name} has {len(item)} tokens, at most {limits.characters} are taken")
            ids = self.tokens.framed(item)
        else:
            raise item_error(item, "texts")
        if len(ids) > self.length and not options.truncate:
            raise TooLarge(f"{name} has {len(ids)} tokens, the model takes {self.length}", "allow it to be truncated")
        kept = cut(ids, self.length)
        if self._free_length:  # texts of about one length run together, so that little is padded
            group = 1 << max(4, (len(kept) - 1).bit_length())
        else:
            group = next(length for length in self.lengths if len(kept) <= length)
        return Row(group, kept, tokens=len(kept), truncated=len(ids) > len(kept))

    def most(self, group: int | str) -> int:
        return self._most if self._free else max(tower.tokens.batch for tower in self.towers)

    def compute(self, group: int | str, rows: Sequence[Row]) -> list[Any]:
        if self._free:
            longest = max(len(row.ids) for row in rows)
            return self._run(0, rows, len(rows), longest if self._free_length else self.length)
        results: list[Any] = []
        while len(results) < len(rows):
            index, tokens = self._quickest(group, len(rows) - len(results))
            part = rows[len(results) : len(results) + tokens.batch]
            results += self._run(index, part, tokens.batch, tokens.length)
        return results

    def _quickest(self, group: int | str, count: int) -> tuple[int, Tokens]:
        """Returns which of the sessions of a length takes the shortest time for a number of rows."""
        fitting = [(i, tower.tokens) for i, tower in enumerate(self.towers) if tower.tokens.length == group]
        return min(fitting, key=lambda each: -(-count // each[1].batch) * self.run_s[each[0]])

    def begin(self, row: Row) -> Callable[[], Any] | None:
        if not self._begin or self._free:
            return None
        index, tokens = self._quickest(row.group, 1)
        inputs, tower = self.tokens.arrays([row.ids], tokens.batch, tokens.length), self.towers[index]
        end = self._begin[index](inputs)
        return None if end is None else lambda: tower.rows(end(), inputs)[0]

    def _run(self, index: int, rows: Sequence[Row], batch: int, length: int) -> list[Any]:
        inputs = self.tokens.arrays([row.ids for row in rows], batch, length)
        tower = self.towers[index]
        return list(tower.rows(self.sessions[index].run(inputs), inputs)[: len(rows)])

    def finish(self, rows: Sequence[Row], results: Sequence[Any], options: Options) -> Rows:
        tower = self.towers[0]
        normalize = tower.space.normalized if options.normalize is None else options.normalize
        if len(results) == 1 and normalize:  # most requests: the same in a fifth of the time
            row = results[0].astype(np.float64)
            length = math.sqrt(row @ row)
            if 0 < length < math.inf:
                return Rows(vectors=(row / length).astype(np.float32)[None])
        names = [f"text {number}" for number in range(len(rows))]
        return Rows(vectors=unit(results[0][None] if len(results) == 1 else np.stack(results), names, normalize))

    def samples(self, index: int) -> list[dict[str, Array]]:
        tokens = self.towers[index].tokens
        rows = [cut(tokens.ids(text), tokens.length) for text in ("a cat sits on the mat", "red bus in the rain")]
        return [tokens.arrays([ids], tokens.batch, tokens.length) for ids in rows]

    def describe(self, info: Info) -> Info:
        tower = self.towers[0]
        return replace(
            info,
            width=tower.width,
            space=tower.space.name,
            length=self.length,
            batch=self.most(self.lengths[-1]),
            vocabulary=self.tokens.vocabulary,
        )
