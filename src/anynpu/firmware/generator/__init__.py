"""The C generator: from a quantised TFLite model to self-contained C99.

graph -> emitters (one per operator) -> planner (arena) -> source (files)
"""

from __future__ import annotations

from anynpu.firmware.generator.generate import Generated, Settings, findings, generate

__all__ = ["Generated", "Settings", "findings", "generate"]
