"""Bytes as C writes them, and names that are safe in file names."""

from __future__ import annotations

PER_LINE = 20


def byte_rows(data: bytes, indent: str = "    ") -> str:
    """Returns the initialisers of a byte array, twenty to the line."""
    lines = (data[at : at + PER_LINE] for at in range(0, len(data), PER_LINE))
    return "".join(indent + ", ".join(str(byte) for byte in line) + ",\n" for line in lines)


def identifier(text: str) -> str:
    """Returns text as part of a file or board name: letters, digits, dots, dashes and underscores."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in text) or "model"
