"""Text to the inputs of BERT encoders: a tokenizer.json, padded to the one length the model has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from anynpu.errors import ConfigError, IntegrityError, ToolMissing
from anynpu.tensors import Array, TensorSpec

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

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
            raise IntegrityError(f"{path}: larger than {MOST_BYTES >> 20} MiB, that is no tokenizer")
        tokenizer = Tokenizer.from_str(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except IntegrityError:
        raise
    except Exception as error:  # the package raises plain Exception for whatever is wrong with the file
        raise IntegrityError(f"{path}: not a tokenizer.json ({str(error)[:200]})") from error
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
        found = cls(read_tokenizer(path), specs)
        most = found.tokenizer.get_vocab_size(with_added_tokens=True) - 1
        if most > np.iinfo(specs[IDS].dtype).max:
            raise ConfigError(f"input {IDS} holds {specs[IDS].dtype}: too small for {most + 1} tokens")
        return found

    @property
    def batch(self) -> int:
        return self.specs[IDS].shape[0]

    @property
    def length(self) -> int:
        return self.specs[IDS].shape[1]

    def count(self, text: str) -> int:
        """Returns how many tokens a text has before it is cut to the model's length."""
        return len(self._encode(text).ids)

    def _encode(self, text: str) -> Encoding:
        # A surrogate on its own is no text; Python keeps them where bytes of a file name were none.
        return self.tokenizer.encode(text.encode("utf-8", "replace").decode("utf-8"))

    def __call__(self, texts: Sequence[str]) -> dict[str, Array]:
        """Returns the inputs for at most a batch of texts; a longer text keeps its end token."""
        arrays = {name: np.zeros(spec.shape, spec.dtype) for name, spec in self.specs.items()}
        # The last text is given again where the model wants more rows than there are texts.
        for row, text in enumerate([*texts, *[texts[-1]] * (self.batch - len(texts))]):
            encoded = self._encode(text)
            ids, types = encoded.ids, encoded.type_ids
            if len(ids) > self.length:
                ids = [*ids[: self.length - 1], ids[-1]]
                types = types[: self.length]
            arrays[IDS][row, : len(ids)] = ids
            if MASK in arrays:
                arrays[MASK][row, : len(ids)] = 1
            if TYPES in arrays:
                arrays[TYPES][row, : len(ids)] = types
        return arrays
