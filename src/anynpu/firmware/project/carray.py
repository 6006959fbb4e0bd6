"""Bytes and text as C writes them."""

from __future__ import annotations

PER_LINE = 20


def byte_rows(data: bytes, indent: str = "    ") -> str:
    """Returns the initialisers of a byte array, twenty to the line."""
    lines = (data[at : at + PER_LINE] for at in range(0, len(data), PER_LINE))
    return "".join(indent + ", ".join(str(byte) for byte in line) + ",\n" for line in lines)


def quoted(text: str) -> str:
    """Returns text as a C string; what is not plain ASCII is written as octal bytes."""
    shown = "".join(
        chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in text.encode("utf-8")
    )
    return f'"{shown}"'


def identifier(text: str) -> str:
    """Returns text as part of a file or board name: letters, digits, dots, dashes and underscores."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in text) or "model"


def real(value: float) -> str:
    """Returns a C float constant that reads back as the same 32-bit number."""
    text = f"{value:.9g}"
    return (text if any(c in text for c in ".en") else text + ".0") + "f"
