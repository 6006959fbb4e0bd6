"""The vocabulary of CLIP, read from a file that may be damaged or hostile: whole, or IntegrityError."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from anynpu.errors import ConfigError, IntegrityError

TOKENS = 49408
"""How many tokens CLIP has: 256 bytes, the same at the end of a word, 48,894 merges, start and end."""
MOST_BYTES = 32 << 20
MOST_TOKENS = 1 << 20
LONGEST_SYMBOL = 1024
SUFFIX = "</w>"
SPECIALS = (("<start_of_text>", "<|startoftext|>"), ("<end_of_text>", "<|endoftext|>"))


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by their symbols, the merges in the order they are done, and the tokens around every text."""

    ids: dict[str, int]
    merges: list[tuple[str, str]]
    start: int
    end: int


@cache
def byte_symbols() -> tuple[str, ...]:
    """Returns the printable character that stands for each byte."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return tuple(chr(byte) if byte in plain else chr(256 + others.index(byte)) for byte in range(256))


def read_vocabulary(path: Path, size: int | None = None) -> Vocabulary:
    """Returns the vocabulary in a file of merges (.txt, .txt.gz) or in a tokenizer.json of CLIP."""
    try:
        with path.open("rb") as stream:
            packed = stream.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if packed else path.open("rb") as stream:
            data: bytes = stream.read(MOST_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise IntegrityError(f"{path}: is damaged: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    if len(data) > MOST_BYTES:
        raise IntegrityError(f"{path}: holds more than {MOST_BYTES >> 20} MiB, no vocabulary does")
    if data.lstrip()[:1] == b"{":
        return _from_json(path, data, size)
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        raise IntegrityError(f"{path}: not a vocabulary: it holds bytes that are not text") from None
    return _from_lines(path, lines, size or TOKENS)


def _from_lines(path: Path, lines: Sequence[str], size: int) -> Vocabulary:
    """Returns the vocabulary that the first merges give; the first line is a title."""
    wanted = size - 2 * 256 - 2
    if not 0 <= wanted <= MOST_TOKENS:
        raise ConfigError(f"a vocabulary of {size} tokens is not one of CLIP", f"CLIP has {TOKENS}")
    if len(lines) <= wanted or (wanted and not lines[wanted]):
        raise IntegrityError(f"{path}: {size} tokens need {wanted} merges after the first line, it ends before")
    symbols = sorted(byte_symbols())
    tokens = [*symbols, *(s + SUFFIX for s in symbols)]
    ids = {token: number for number, token in enumerate(tokens)}
    merges = []
    for number, line in enumerate(lines[1 : wanted + 1], 2):
        merges.append(_merge(f"{path}: line {number}", line.split(), ids))
        ids["".join(merges[-1])] = len(tokens) + number - 2
    start = len(tokens) + wanted
    for number, names in enumerate(SPECIALS):
        if names[0] in ids:
            raise IntegrityError(f"{path}: {names[0]} is made by a merge")
        ids[names[0]] = start + number
    return Vocabulary(ids, merges, start, start + 1)


def _merge(place: str, parts: Any, ids: dict[str, int]) -> tuple[str, str]:
    """Returns a merge if its two symbols are known before it."""
    if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) for part in parts):
        raise IntegrityError(f"{place}: not a merge of two symbols")
    for part in parts:
        if part not in ids:
            raise IntegrityError(f"{place}: {part[:40]!r} is not a symbol that was made before")
    if len(parts[0]) + len(parts[1]) > LONGEST_SYMBOL:
        # Each line can double the longest symbol: forty lines would fill any memory.
        raise IntegrityError(f"{place}: a symbol of more than {LONGEST_SYMBOL} characters")
    return parts[0], parts[1]


def _from_json(path: Path, data: bytes, size: int | None) -> Vocabulary:
    """Returns the vocabulary of a tokenizer.json."""
    try:
        whole = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{path}: not valid JSON: {error}") from None
    model = whole.get("model") if isinstance(whole, dict) else None
    if not isinstance(model, dict) or model.get("type") != "BPE" or model.get("end_of_word_suffix") != SUFFIX:
        raise IntegrityError(f"{path}: not the tokenizer of a CLIP model: no byte-pair model with {SUFFIX}")
    ids, listed = model.get("vocab"), model.get("merges")
    if not isinstance(ids, dict) or not isinstance(listed, list):
        raise IntegrityError(f"{path}: its model has no table `vocab` and list `merges`")
    if not all(type(number) is int for number in ids.values()) or {*ids.values()} != {*range(len(ids))}:
        raise IntegrityError(f"{path}: its tokens are not numbered from 0 without a gap")
    if size is not None and len(ids) != size:
        raise IntegrityError(f"{path}: holds {len(ids)} tokens, the card says {size}")
    if any(symbol + end not in ids for symbol in byte_symbols() for end in ("", SUFFIX)):
        raise IntegrityError(f"{path}: not the tokenizer of a CLIP model: some bytes have no token")
    merges = []
    for number, item in enumerate(listed):
        merges.append(_merge(f"{path}: merge {number}", item.split() if isinstance(item, str) else item, ids))
        if "".join(merges[-1]) not in ids:
            raise IntegrityError(f"{path}: merge {number} makes a symbol without a number")
    around = [[ids[name] for name in names if name in ids] for names in SPECIALS]
    for names, numbers in zip(SPECIALS, around, strict=True):
        if not numbers:
            raise IntegrityError(f"{path}: no token {' or '.join(names)}")
    return Vocabulary(ids, merges, around[0][0], around[1][0])
