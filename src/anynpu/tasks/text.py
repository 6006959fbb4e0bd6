"""Text to a model's inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from anynpu.errors import ConfigError, IntegrityError
from anynpu.tensors import Array, TensorSpec

if TYPE_CHECKING:
    from anynpu.tasks.clip_tokens import ClipTokens


MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class TextInput:
    """How text becomes tokens: a byte-pair vocabulary as CLIP has it, or a tokenizer.json.

    `vocabulary` is the number of tokens; None is what CLIP was published with, or what the file holds. `pooling` says
    who makes one vector of the tokens' vectors: the model itself, or the host by their mean or by the first of them.
    """

    form: Literal["clip", "bert"]
    tokenizer: str = ""
    vocabulary: int | None = None
    pooling: Literal["model", "mean", "first"] = "model"


class Tokens(Protocol):
    """A tokenizer that is bound to the inputs of a model."""

    @property
    def batch(self) -> int: ...

    @property
    def length(self) -> int: ...

    @property
    def vocabulary(self) -> Mapping[str, int]:
        """The input that holds tokens, and how many tokens there are."""
        ...

    def count(self, text: str) -> int:
        """Returns how many tokens a text has before it is cut to the model's length."""
        ...

    def ids(self, text: str, most: int | None = None) -> list[int]:
        """Returns the tokens of a text with the marks at its ends; work may stop where there are `most` or more."""
        ...

    def framed(self, ids: Sequence[int]) -> list[int]:
        """Returns token numbers that somebody else made, with the marks at their ends where they are missing."""
        ...

    def arrays(self, rows: Sequence[Sequence[int]], batch: int, length: int) -> dict[str, Array]:
        """Returns the model's inputs for texts that are tokens already, at most `batch` of at most `length`."""
        ...

    def __call__(self, texts: Sequence[str]) -> dict[str, Array]:
        """Returns the model's inputs for at most `batch` texts."""
        ...


def cut(ids: list[int], length: int) -> list[int]:
    """Returns at most `length` tokens; a longer text keeps its end mark."""
    return ids if len(ids) <= length else [*ids[: length - 1], ids[-1]]


def frame(ids: Sequence[int], start: Sequence[int], end: Sequence[int], size: int) -> list[int]:
    """Returns token numbers with the marks at their ends; a number that is not a token raises."""
    wrong = next((number for number in ids if not 0 <= number < size), None)
    if wrong is not None:
        raise ConfigError(f"the model has no token {wrong}", f"its tokens are 0 to {size - 1}")
    count = len(start) + len(end)
    if len(ids) >= count and [*ids[: len(start)], *ids[len(ids) - len(end) :]] == [*start, *end]:
        return list(ids)
    return [*start, *ids, *end]


@dataclass(frozen=True)
class ClipInput:
    """CLIP's tokens as the one input of a model, (batch, length) integers."""

    tokens: ClipTokens
    spec: TensorSpec

    @property
    def batch(self) -> int:
        return self.spec.shape[0]

    @property
    def length(self) -> int:
        return self.spec.shape[1]

    @property
    def vocabulary(self) -> Mapping[str, int]:
        return {self.spec.name: self.tokens.size}

    def count(self, text: str) -> int:
        return len(self.ids(text))

    def ids(self, text: str, most: int | None = None) -> list[int]:
        return [self.tokens.start, *self.tokens.encode(text, most), self.tokens.end]

    def framed(self, ids: Sequence[int]) -> list[int]:
        return frame(ids, [self.tokens.start], [self.tokens.end], self.tokens.size)

    def arrays(self, rows: Sequence[Sequence[int]], batch: int, length: int) -> dict[str, Array]:
        array = np.zeros((batch, length), self.spec.dtype)
        # The last text is given again where the model wants more rows than there are texts.
        for row, ids in zip(array, [*rows, *[rows[-1]] * (batch - len(rows))], strict=True):
            row[: len(ids)] = ids
        return {self.spec.name: array}

    def __call__(self, texts: Sequence[str]) -> dict[str, Array]:
        rows = [cut(self.ids(text, self.length - 2), self.length) for text in texts]
        return self.arrays(rows, self.batch, self.length)


def read_bounded(path: Path, most: int, hint: str = "give it in parts") -> bytes:
    """Returns the bytes of a file that is not larger than it may be; no more than that is ever read."""
    try:
        with path.open("rb") as stream:
            data = stream.read(most + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    if len(data) > most:
        raise ConfigError(f"{path}: larger than {most >> 20} MiB", hint)
    return data


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """Returns the text in a file."""
    return _decoded(read_bounded(path, most), str(path))


def _decoded(data: bytes, place: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise IntegrityError(f"{place}: not text in UTF-8") from None


def read_lines(path: Path) -> list[str]:
    """Returns the texts in a file, one per line; an empty line is a text too."""
    return split_lines(read_bounded(path, MOST_BYTES), str(path))


def split_lines(data: bytes, place: str) -> list[str]:
    """Returns the lines of a text; `place` is where it comes from."""
    lines = _decoded(data, place).replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def bind(text: TextInput, files: Mapping[str, Path], inputs: Sequence[TensorSpec]) -> Tokens:
    """Returns the tokenizer of a card for the inputs of its model."""
    if text.form == "bert":
        from anynpu.tasks.minilm import BertInput

        return BertInput.of(files[text.tokenizer], inputs)
    from anynpu.tasks.clip_tokens import ClipTokens

    shown = ", ".join(f"{spec.name} {list(spec.shape)} {spec.dtype}" for spec in inputs)
    fits = len(inputs) == 1 and len(inputs[0].shape) == 2 and min(inputs[0].shape) >= 1 and inputs[0].shape[1] >= 3
    if not fits or inputs[0].quantization is not None or inputs[0].dtype[0] not in "iu":
        raise ConfigError(
            f"CLIP's tokens fit one input [batch, 77] of integers; the model has {shown}",
            "was another tower built with this card?",
        )
    spec = inputs[0]
    tokens = ClipTokens.read(files[text.tokenizer], text.vocabulary)
    if tokens.size - 1 > int(np.iinfo(spec.dtype).max):
        raise ConfigError(f"input {spec.name} holds {spec.dtype}: too small for {tokens.size} tokens")
    return ClipInput(tokens, spec)
