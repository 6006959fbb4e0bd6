"""Damage to files: bytes for any kind, tokens and values for text, JSON and TOML; the same seed, the same damage."""

from __future__ import annotations

import copy
import json
import random
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

WORDS = (0, 1, 2, 3, 7, 8, 0x7F, 0x80, 0xFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFC, 0xFFFFFFFF)
NUMBERS = ("0", "-1", "-0.0", "1e308", "1e999", "-1e999", "NaN", "nan", "inf", "-Infinity", "0.1", "4294967296")
NUMBERS += ("9223372036854775808", "-9223372036854775809", "1" * 400, "1" * 5000, "0x10", "1_0", "٣", "1e-400")
TEXTS = ("", " ", "\0", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "a\nb", "\u202egnp.exe", "../../etc/passwd", "/")
TEXTS += ("\ud800", "\udcff", "é" * 300, "x" * 70000, "|`<b>&\"'", "null", "\ufeff", "𝕏", "CON", "a/b", "%s%n{0}")
TOKEN = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|\"[^\"\n]*\"|[A-Za-z_][\w.-]*|[\[\]{},:=|<>]")
Draw = random.Random


def flip_bits(draw: Draw, data: bytes, others: Sequence[bytes]) -> bytes:
    out = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8, 64))):
        out[draw.randrange(len(out))] ^= 1 << draw.randrange(8)
    return bytes(out)


def cut(draw: Draw, data: bytes, others: Sequence[bytes]) -> bytes:
    return data[: draw.randrange(len(data))]


def drop_block(draw: Draw, data: bytes, others: Sequence[bytes]) -> bytes:
    at, size = draw.randrange(len(data)), draw.choice((1, 4, 16, 256))
    return data[:at] + data[at + size :]


def swap_blocks(draw: Draw, data: bytes, others: Sequence[bytes]) -> bytes:
    size = draw.choice((1, 4, 8, 64, 512))
    a, b = sorted(draw.randrange(len(data)) for _ in range(2))
    return data[:a] + data[b : b + size] + data[a + size : b] + data[a : a + size] + data[b + size :]


def splice(draw: Draw, data: bytes, others: Sequence[bytes]) -> bytes:
    other = draw.choice(others)
    start, at = draw.randrange(len(other)), draw.randrange(len(data))
    part = other[start : start + draw.choice((1, 16, 256, 4096))]
    return data[:at] + part + data[at + draw.choice((0, len(part))) :]


def change_word(draw: Draw, data: bytes, others: Sequence[bytes]) -> bytes:
    """A word of two, four or eight bytes, in either order: sizes, counts, offsets."""
    out = bytearray(data + bytes(8))
    for _ in range(draw.choice((1, 1, 2))):
        value = draw.choice((*WORDS, len(data), len(data) - 1, draw.getrandbits(32)))
        form = draw.choice(("<H", "<I", "<I", ">I", "<Q"))
        mask = (1 << 8 * struct.calcsize(form)) - 1
        struct.pack_into(form, out, draw.randrange(max(1, min(len(data), 4096))), value & mask)
    return bytes(out[: len(data)])


def fill(draw: Draw, data: bytes, others: Sequence[bytes]) -> bytes:
    at, size = draw.randrange(len(data)), draw.choice((1, 4, 64, 1024))
    return data[:at] + draw.choice((b"\0", b"\xff", b"A", b"\n"))[:1] * size + data[at + size :]


def replace_all(draw: Draw, data: bytes, others: Sequence[bytes]) -> bytes:
    """Another kind of file under this name, noise, nothing at all."""
    return draw.choice((b"", b"\0", draw.randbytes(300), draw.choice(others), b"<html>", b"PK\x03\x04" + bytes(60)))


BYTES: tuple[Callable[[Draw, bytes, Sequence[bytes]], bytes], ...] = (
    *(flip_bits, flip_bits, cut, drop_block, swap_blocks, splice, change_word, change_word, fill),
    replace_all,
)


def change_token(draw: Draw, data: bytes, others: Sequence[bytes]) -> bytes:
    """A number, word or sign of a text becomes another."""
    text = data.decode("utf-8", "surrogateescape")
    for _ in range(draw.choice((1, 1, 2, 3))):
        tokens = list(TOKEN.finditer(text))
        if not tokens:
            return data
        token = draw.choice(tokens)
        new = draw.choice(
            (*NUMBERS, *(json.dumps(t) for t in TEXTS), *TEXTS, "", "[", "}", "null", "true", token[0] * 2)
        )
        text = text[: token.start()] + new + text[token.end() :]
    return text.encode("utf-8", "surrogatepass" if any("\ud800" <= c < "\udc00" for c in text) else "surrogateescape")


def change_line(draw: Draw, data: bytes, others: Sequence[bytes]) -> bytes:
    """A line is lost, doubled, moved or put together with the next."""
    lines = data.splitlines(keepends=True)
    at, to = draw.randrange(len(lines)), draw.randrange(len(lines))
    line = lines.pop(at)
    lines[to:to] = draw.choice(([], [line, line], [line], [line.rstrip()], [line * 300]))
    return b"".join(lines)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in items for place in _places(item, (*path, key)))]


def _nested(depth: int, kind: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value] if kind else {"a": value}
    return value


def change_value(draw: Draw, data: bytes, others: Sequence[bytes]) -> bytes:
    """A value of a JSON file becomes another, of this type or a wrong one; keys are lost, renamed and added."""
    whole = json.loads(data)
    for _ in range(draw.choice((1, 1, 2))):
        places = [place for place in _places(whole) if place]
        if not places:
            break
        *inner, key = draw.choice(places)
        holder = whole
        for step in inner:
            holder = holder[step]
        old = holder[key]
        kinds: tuple[Any, ...] = (None, True, "", [], {}, 0, -1, 1.5, 10**30, -(2**63), 1e308, float("nan"), [None])
        holder[key] = draw.choice(
            (*kinds, float("inf"), *TEXTS, [old, old], {"a": old}, _nested(60, draw.randrange(2)))
        )
        if isinstance(holder, dict) and draw.random() < 0.3:
            value = holder.pop(key)
            if draw.random() < 0.5:
                holder[draw.choice((*TEXTS, key + "x", "kind"))] = value
        elif isinstance(holder, list) and draw.random() < 0.3:
            holder[:] = draw.choice(([], holder * 50, [copy.deepcopy(old)], holder[::-1]))
    return json.dumps(whole, indent=draw.choice((None, 1)), ensure_ascii=draw.random() < 0.5).encode(
        "utf-8", "surrogatepass"
    )


TEXT = (change_token, change_token, change_token, change_line)


def damaged(form: str, data: bytes, others: Sequence[bytes], draw: Draw) -> bytes:
    """Returns a damaged copy of a file of form "binary", "text" or "json"."""
    ways = {"binary": BYTES, "text": (*TEXT, *TEXT, *BYTES), "json": (*[change_value] * 12, *TEXT, *BYTES)}[form]
    return draw.choice(ways)(draw, data, others) if data else b""
