"""Text to the inputs of BERT encoders: a tokenizer.json, padded to the one length the model has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from anynpu.errors import ConfigError, IntegrityError, ToolMissing
from anynpu.foreign import TOKENIZERS, mapped
from anynpu.tasks.text import cut, frame
from anynpu.tensors import Array, TensorSpec

if TYPE_CHECKING:
    from tokenizers import Tokenizer

IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
MOST_BYTES = 64 << 20


def read_tokenizer(path: Path) -> Tokenizer:
    """Returns the tokenizer in a tokenizer.json, without the padding and truncation the file may ask for."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ToolMissing("the package tokenizers is not installed", "pip install 'anynpu[tasks]'") from error
    try:
        if path.stat().st_size > MOST_BYTES:
            raise IntegrityError(f"{path}: larger than {MOST_BYTES >> 20} MiB, that is not a tokenizer")
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    with mapped(TOKENIZERS, f"{path}: not a tokenizer.json"):
        tokenizer = Tokenizer.from_str(content.decode("utf-8"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


@dataclass(frozen=True)
class BertInput:
    """Tokens, mask and types as the inputs of one model, (batch, length) integers each."""

    tokenizer: Tokenizer
    specs: Mapping[str, TensorSpec]

    @classmethod
    def of(cls, path: Path, inputs: Sequence[TensorSpec]) -> BertInput:
        """Returns the tokenizer for a model's inputs, which must have the names that BERT's inputs have."""
        specs = {spec.name: spec for spec in inputs}
        shown = ", ".join(f"{spec.name} {list(spec.shape)} {spec.dtype}" for spec in inputs)
        shapes = {spec.shape for spec in inputs}
        fits = {IDS} <= set(specs) <= {IDS, MASK, TYPES} and len(shapes) == 1 and len(next(iter(shapes))) == 2
        if not fits or any(spec.quantization is not None or spec.dtype[0] not in "iu" for spec in inputs):
            raise ConfigError(
                f"sentences fit integer inputs {IDS}, {MASK} and {TYPES}, [batch, length] each; the model has {shown}",
                "was another model built with this card?",
            )
        reader = cls(read_tokenizer(path), specs)
        most = reader.tokenizer.get_vocab_size(with_added_tokens=True) - 1
        if most > np.iinfo(specs[IDS].dtype).max:
            raise ConfigError(f"input {IDS} holds {specs[IDS].dtype}: too small for {most + 1} tokens")
        return reader

    @property
    def batch(self) -> int:
        return self.specs[IDS].shape[0]

    @property
    def length(self) -> int:
        return self.specs[IDS].shape[1]

    @property
    def vocabulary(self) -> Mapping[str, int]:
        return {IDS: self.tokenizer.get_vocab_size(with_added_tokens=True)}

    def count(self, text: str) -> int:
        """Returns how many tokens a text has before it is cut to the model's length."""
        return len(self.ids(text))

    def ids(self, text: str, most: int | None = None) -> list[int]:
        """Returns the tokens of a text with the marks at its ends."""
        # A surrogate on its own is not text; Python keeps them where bytes of a file name were none.
        ids: list[int] = self.tokenizer.encode(text.encode("utf-8", "replace").decode("utf-8")).ids
        return ids

    @cached_property
    def _marks(self) -> Marks:
        return marks(self.tokenizer)

    def framed(self, ids: Sequence[int]) -> list[int]:
        """Returns token numbers that somebody else made, with the marks at their ends where they are missing."""
        return frame(ids, self._marks.start, self._marks.end, self.vocabulary[IDS])

    def arrays(self, rows: Sequence[Sequence[int]], batch: int, length: int) -> dict[str, Array]:
        """Returns the inputs for texts that are tokens already; the last fills the rows that are left."""
        arrays = {name: np.zeros((batch, length), spec.dtype) for name, spec in self.specs.items()}
        for row, ids in enumerate([*rows, *[rows[-1]] * (batch - len(rows))]):
            arrays[IDS][row, : len(ids)] = ids
            if MASK in arrays:
                arrays[MASK][row, : len(ids)] = 1
            if TYPES in arrays and self._marks.type:
                arrays[TYPES][row, : len(ids)] = self._marks.type
        return arrays

    def __call__(self, texts: Sequence[str]) -> dict[str, Array]:
        """Returns the inputs for at most a batch of texts; a longer text keeps its end token."""
        return self.arrays([cut(self.ids(text), self.length) for text in texts], self.batch, self.length)


@dataclass(frozen=True)
class Marks:
    """What a tokenizer puts before and after the tokens of a text, and the type that it gives to all of them."""

    start: tuple[int, ...]
    end: tuple[int, ...]
    type: int


def marks(tokenizer: Tokenizer) -> Marks:
    """Returns the marks of a tokenizer, as it puts them around a word."""
    encoded = tokenizer.encode("a")
    own = [place for place, special in enumerate(encoded.special_tokens_mask) if not special]
    if not own:  # the word itself is a mark to it
        return Marks((), (), encoded.type_ids[0] if encoded.type_ids else 0)
    return Marks(tuple(encoded.ids[: own[0]]), tuple(encoded.ids[own[-1] + 1 :]), encoded.type_ids[own[0]])
