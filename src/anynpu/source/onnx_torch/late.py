"""torch and torch.nn.functional, imported at their first use: the operator table is readable without torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any


class Late:
    """Stands for a module and imports it when one of its names is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
else:
    torch = Late("torch")
    F = Late("torch.nn.functional")

__all__ = ["F", "torch"]
