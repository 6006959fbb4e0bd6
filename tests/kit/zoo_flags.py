"""How tests build the models of the zoo: with the same flags everywhere, so that they share what was built."""

from __future__ import annotations

LARGE = "hello"
"""Thirty times the work of any other: a test takes fewer of its samples."""
ENOUGH = 100
"""Held-out samples of any other: one wrong answer is one point."""


def flags(name: str) -> list[str]:
    """Returns the arguments of a build of a model of the zoo, besides the chips."""
    return ["-m", f"zoo:{name}", "--limit", str(8 if name == LARGE else ENOUGH)]
