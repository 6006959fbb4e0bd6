"""What became of the requests to one model."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from anynpu.apps.serve.base import Expired, Overloaded, Refusal, Request, Stopped, TooLarge
from anynpu.errors import AnyNpuError, ConfigError, IntegrityError


@dataclass
class Counts:
    """What happened so far; changed in the event loop only."""

    answered: int = 0
    since_good: int = 0
    """Answers of the device since its known answers were last right."""
    suspect: int = 0
    restarts: int = 0
    reloads: int = 0
    refused: Counter[Refusal] = field(default_factory=Counter)


def refusal_of(error: AnyNpuError, request: Request) -> Refusal:
    """Returns why a request was not answered."""
    if isinstance(error, Expired):
        return "gone" if request.gone() else "expired"
    kinds: tuple[tuple[type[AnyNpuError] | tuple[type[AnyNpuError], ...], Refusal], ...] = (
        (Overloaded, "overloaded"),
        (TooLarge, "too large"),
        (Stopped, "stopped"),
        ((ConfigError, IntegrityError), "invalid"),
    )
    return next((why for kind, why in kinds if isinstance(error, kind)), "device")
