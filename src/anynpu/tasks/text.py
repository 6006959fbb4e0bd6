"""Text to tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class TextInput:
    """How text becomes tokens: a byte-pair vocabulary as CLIP has it, or a tokenizer.json."""

    form: Literal["clip", "bert"]
    tokenizer: str = ""
