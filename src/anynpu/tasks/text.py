"""Text to a model's inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from anynpu.errors import ConfigError
from anynpu.tensors import Array, TensorSpec

if TYPE_CHECKING:
    from anynpu.tasks.clip_tokens import ClipTokens


@dataclass(frozen=True)
class TextInput:
    """How text becomes tokens: a byte-pair vocabulary as CLIP has it, or a tokenizer.json.

    `vocabulary` is the number of tokens; None is what CLIP was published with, or what the file holds.
    """

    form: Literal["clip", "bert"]
    tokenizer: str = ""
    vocabulary: int | None = None


class Tokens(Protocol):
    """A tokenizer that is bound to the inputs of a model."""

    @property
    def batch(self) -> int: ...

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

    def __call__(self, texts: Sequence[str]) -> dict[str, Array]:
        # The last text is given again where the model wants more rows than there are texts.
        rows = [*texts, *[texts[-1]] * (self.batch - len(texts))]
        return {self.spec.name: self.tokens(rows, self.spec.shape[1]).astype(self.spec.dtype)}


def bind(text: TextInput, files: Mapping[str, Path], inputs: Sequence[TensorSpec]) -> Tokens:
    """Returns the tokenizer of a card for the inputs of its model."""
    if text.form != "clip":
        raise ConfigError(f"text of the form {text.form} cannot be read yet")
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
