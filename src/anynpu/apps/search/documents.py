"""Text files as paragraphs that a sentence model reads."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

from anynpu.errors import IntegrityError

SUFFIXES = (".adoc", ".markdown", ".md", ".org", ".rst", ".tex", ".txt")
MOST_BYTES = 32 << 20
LONGEST = 1000
"""Letters of a paragraph; a longer one is cut between sentences, or words."""
SHORTEST = 3
MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


@dataclass(frozen=True)
class Paragraph:
    """A piece of a text, and the line it begins in, counted from 1."""

    text: str
    line: int


def read_text(data: bytes, name: str) -> str:
    """Returns the text of a file: UTF-8, or UTF-16 with its mark, or else Windows-1252."""
    encoding = next((encoding for mark, encoding in MARKS if data.startswith(mark)), "")
    try:
        if encoding:
            return data.decode(encoding)
        if b"\0" in data[:4096]:
            raise IntegrityError(f"{name} is not text: it holds zero bytes")
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return data.decode("cp1252")
    except UnicodeDecodeError as error:
        raise IntegrityError(f"{name} is not text: {error.reason}") from None


def paragraphs(text: str) -> list[Paragraph]:
    """Returns the paragraphs, which blank lines part; a long one in pieces."""
    parts: list[Paragraph] = []
    line = 1
    for block in re.split(r"(\n[ \t\r]*\n)", text.replace("\r\n", "\n").replace("\r", "\n")):
        lead = len(block) - len(block.lstrip())
        first = line + block[:lead].count("\n")
        words = " ".join(block.split())
        if len(words) >= SHORTEST:
            while len(words) > LONGEST:
                head = words[:LONGEST]
                ends = [head.rfind(mark) + 1 for mark in (". ", "! ", "? ", "; ")]
                cut = max(ends) if max(ends) > LONGEST // 3 else head.rfind(" ")
                cut = cut if cut > 0 else LONGEST
                parts.append(Paragraph(words[:cut].strip(), first))
                words = words[cut:].strip()
            parts += [Paragraph(words, first)] if words else []
        line += block.count("\n")
    return parts
