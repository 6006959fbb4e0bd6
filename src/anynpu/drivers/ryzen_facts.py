"""What a Ryzen AI platform file says of its chip; the compiler and the session read the same table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Precision = Literal["xint8", "a8w8", "a16w8", "bf16"]


@dataclass(frozen=True)
class VitisFacts:
    """How the VitisAI execution provider must be told of the chip, and what the chip computes in."""

    provider_target: Literal["X1", "X2"]
    """The backend for integer models; X1 serves every device, X2 the Strix and later ones."""
    precisions: tuple[Precision, ...]
    xclbin: str = ""
    """The NPU binary, relative to the SDK's voe-* folder."""
    xclbin_required: bool = False
    """Where it is not required the provider is not given it: newer releases refuse it."""
