"""CLIP's tokens: text cleaned, cut into words and merged byte pair by byte pair, as open_clip does it.

    text -> ftfy, HTML entities, white space, lower case -> words -> bytes -> merges -> start, tokens, end, zeros

The vocabulary is a file of the user's: the list of merges that CLIP was published with (.txt or .txt.gz), or the
tokenizer.json of a CLIP model.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from anynpu.errors import ToolMissing
from anynpu.foreign import TOKENIZERS, mapped
from anynpu.tasks.clip_vocabulary import Vocabulary, byte_symbols, read_vocabulary
from anynpu.tensors import Array

START, END = "<start_of_text>", "<end_of_text>"
# Words that occur again are not merged again; a flood of words that do not occur again must not fill the memory.
MOST_CACHED, LONGEST_CACHED = 1 << 17, 64
# Text of these characters alone is clean: nothing in it is an entity, mojibake or to be normalised.
_CLEAN = re.compile(r"[\t\n -%'-~]*")
_ASCII_WORDS = re.compile(rf"{START}|{END}|'(?:[stmd]|re|ve|ll)|[a-z]+|[0-9]|[^\sa-z0-9]+")
_WORDS = rf"{START}|{END}|'(?:s|t|re|ve|m|ll|d)|[\p{{L}}]+|[\p{{N}}]|[^\s\p{{L}}\p{{N}}]+"


class ClipTokens:
    """Text to CLIP's tokens; `length` numbers a text, the end token kept where a text is longer."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.start, self.end, self.size = vocabulary.start, vocabulary.end, len(vocabulary.ids)
        self._specials = {START: (self.start,), END: (self.end,)}
        self._known: dict[str, tuple[int, ...]] = dict(self._specials)
        try:
            from tokenizers.models import BPE
        except ImportError:
            raise _missing("tokenizers") from None
        with mapped(TOKENIZERS, "the vocabulary is not one of CLIP"):
            self._merge: Any = BPE(vocabulary.ids, vocabulary.merges, end_of_word_suffix="</w>").tokenize
        self._bytes = byte_symbols()

    @classmethod
    def read(cls, path: Path, size: int | None = None) -> ClipTokens:
        """Returns the tokenizer of a vocabulary file, of which `size` tokens count."""
        return cls(read_vocabulary(path, size))

    def encode(self, text: str, most: int | None = None) -> list[int]:
        """Returns the tokens of a text, without start and end; `most` stops the work where no more are wanted."""
        tokens: list[int] = []
        cached = self._known
        for word in _words(text):
            ids = cached.get(word)
            if ids is None:
                symbols = "".join(map(self._bytes.__getitem__, word.encode("utf-8")))
                ids = tuple(token.id for token in self._merge(symbols))
                if len(word) <= LONGEST_CACHED:
                    if len(self._known) >= MOST_CACHED:
                        self._known = dict(self._specials)
                    self._known[word] = ids
            tokens.extend(ids)
            if most is not None and len(tokens) >= most:
                return tokens[:most]
        return tokens

    def __call__(self, texts: Sequence[str], length: int = 77) -> Array:
        """Returns one row of `length` numbers a text: start, tokens, end, zeros."""
        rows = np.zeros((len(texts), length), np.int32)
        for row, text in zip(rows, texts, strict=True):
            ids = self.encode(text, length - 2)
            row[: len(ids) + 2] = [self.start, *ids, self.end]
        return rows


def _words(text: str) -> Iterable[str]:
    """Returns the words of a text, clean and in lower case."""
    if _CLEAN.fullmatch(text):
        return _ASCII_WORDS.findall(text.lower())
    try:
        import ftfy
    except ImportError:
        raise _missing("ftfy") from None
    cleaned = " ".join(html.unescape(html.unescape(str(ftfy.fix_text(text)))).split()).lower()
    words: list[str] = _pattern().findall(cleaned)
    return words


@cache
def _pattern() -> Any:
    """Returns the pattern of words: the classes and the case folding of the `regex` package are the reference's."""
    try:
        import regex  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise _missing("regex") from None
    return regex.compile(_WORDS, regex.IGNORECASE)


def _missing(package: str) -> ToolMissing:
    return ToolMissing(f"{package} is not installed, text cannot become tokens", "pip install 'anynpu[tasks]'")
