"""A small vocabulary of CLIP's form, and a plain byte-pair encoder to hold the fast one against."""

from __future__ import annotations

import gzip
import html
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

CORPUS = "the cat and the dog sat on the mat a photo of a cat's dog don't naïve straße москва 東京 ... !!! 2024 there"
WORDS = CORPUS.split()
END = "</w>"


def symbol(byte: int) -> str:
    """Returns the printable character of a byte: itself, or the next free one from 256 up."""
    printable = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE]
    if byte in printable:
        return chr(byte)
    return chr(256 + sum(b < byte for b in range(256) if b not in printable))


def split(word: str) -> list[str]:
    symbols = [symbol(byte) for byte in word.encode("utf-8")]
    return [*symbols[:-1], symbols[-1] + END]


def merged(symbols: list[str], pair: tuple[str, str]) -> list[str]:
    """Returns the symbols with every occurrence of the pair joined, left to right."""
    found: list[str] = []
    rest = list(symbols)
    while rest:
        if tuple(rest[:2]) == pair:
            found.append(rest[0] + rest[1])
            rest = rest[2:]
        else:
            found.append(rest.pop(0))
    return found


def learn(count: int) -> list[tuple[str, str]]:
    """Returns the merges that a corpus of a few words gives."""
    words = [split(word) for word in WORDS for _ in range(1 + len(word) % 3)]
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        pairs = Counter(pair for word in words for pair in pairwise(word))
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        words = [merged(word, best) for word in words]
    return merges


MERGES = learn(60)
RANKS = {merge: rank for rank, merge in enumerate(MERGES)}
SIZE = 512 + len(MERGES) + 2
ALPHABET = sorted(symbol(byte) for byte in range(256))
TOKENS = [*ALPHABET, *(s + END for s in ALPHABET), *("".join(m) for m in MERGES), "<start_of_text>", "<end_of_text>"]


def lines() -> list[str]:
    return ["#version: small", *(" ".join(merge) for merge in MERGES)]


def write_merges(path: Path) -> Path:
    """Writes the vocabulary as CLIP's is published: packed lines, the first a title."""
    text = "\n".join([*lines(), "q q", "more merges that no token stands for"])
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def tokenizer_json(**changes: object) -> str:
    vocab = {token: number for number, token in enumerate(TOKENS)}
    model = {"type": "BPE", "end_of_word_suffix": END, "vocab": vocab, "merges": [list(m) for m in MERGES]}
    return json.dumps({"version": "1.0", "model": model | changes})


def words_of(text: str) -> list[str]:
    """Returns the words of clean text, character by character."""
    import regex

    found, at = [], 0
    contractions = ("'s", "'ſ", "'t", "'re", "'ve", "'m", "'ll", "'d")
    kinds = {"letter": r"[\p{L}]", "other": r"[^\s\p{L}\p{N}]"}

    def is_a(kind: str, place: int) -> bool:
        return place < len(text) and bool(regex.match(kinds[kind], text[place], regex.IGNORECASE))

    while at < len(text):
        start = at
        special = [s for s in (*TOKENS[-2:], *contractions) if text.startswith(s, at)]
        kind = "letter" if is_a("letter", at) else "other"
        if special:
            at += len(special[0])
        elif is_a(kind, at):
            while is_a(kind, at):
                at += 1
        else:
            at += 1
            if not regex.match(r"\p{N}", text[start]):
                continue
        found.append(text[start:at])
    return found


def plain_encode(text: str) -> list[int]:
    """Returns the tokens of a text, merging the earliest pair of the list again and again."""
    import ftfy

    text = " ".join(html.unescape(html.unescape(ftfy.fix_text(text))).strip().split()).lower()
    found: list[int] = []
    for word in words_of(text):
        symbols = [word] if word in TOKENS[-2:] else split(word)
        while len(symbols) > 1:
            ranks = [RANKS[p] for p in pairwise(symbols) if p in RANKS]
            if not ranks:
                break
            symbols = merged(symbols, MERGES[min(ranks)])
        found.extend(TOKENS.index(s) for s in symbols)
    return found
