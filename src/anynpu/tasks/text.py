"""Text to a model's inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

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

    def count(self, text: str) -> int:
        """Returns how many tokens a text has before it is cut to the model's length."""
        ...

    def __call__(self, texts: Sequence[str]) -> dict[str, Array]:
        """Returns the model's inputs for at most `batch` texts."""
        ...


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

    def count(self, text: str) -> int:
        return len(self.tokens.encode(text)) + 2

    def __call__(self, texts: Sequence[str]) -> dict[str, Array]:
        # The last text is given again where the model wants more rows than there are texts.
        rows = [*texts, *[texts[-1]] * (self.batch - len(texts))]
        return {self.spec.name: self.tokens(rows, self.spec.shape[1]).astype(self.spec.dtype)}


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
    try:
        return read_bounded(path, most).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise IntegrityError(f"{path}: not text in UTF-8") from None


def read_lines(path: Path) -> list[str]:
    """Returns the texts in a file, one a line; an empty line is a text too."""
    lines = read_text(path).replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def bind(text: TextInput, files: Mapping[str, Path], inputs: Sequence[TensorSpec]) -> Tokens:
    """Returns the tokenizer of a card for the inputs of its model."""
    if text.form == "bert":
        from anynpu.tasks.minilm import BertInput

        return BertInput.of(files[text.tokenizer], inputs)
    from anynpu.tasks.clip_tokens import ClipTokens

    spec = _tokens_input(inputs)
    tokens = ClipTokens.read(files[text.tokenizer], text.vocabulary)
    if tokens.size - 1 > _largest(spec):
        raise ConfigError(f"input {spec.name} holds {spec.dtype}: too small for {tokens.size} tokens")
    return ClipInput(tokens, spec)


def _tokens_input(inputs: Sequence[TensorSpec]) -> TensorSpec:
    """Returns the one input of a text tower."""
    shown = ", ".join(f"{spec.name} {list(spec.shape)} {spec.dtype}" for spec in inputs)
    fits = len(inputs) == 1 and len(inputs[0].shape) == 2 and min(inputs[0].shape) >= 1 and inputs[0].shape[1] >= 3
    if not fits or inputs[0].quantization is not None or inputs[0].dtype[0] not in "iu":
        raise ConfigError(
            f"CLIP's tokens fit one input [batch, 77] of integers; the model has {shown}",
            "was another tower built with this card?",
        )
    return inputs[0]


def _largest(spec: TensorSpec) -> int:
    import numpy as np

    return int(np.iinfo(spec.dtype).max)
