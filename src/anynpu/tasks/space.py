"""Embedding spaces: vectors are comparable within one, and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Space:
    """What makes two vectors comparable: the models they come from, their width, and whether their length is 1."""

    name: str
    width: int | None = None
    normalized: bool = True
