"""YOLO detectors: heads of versions 5, 8 and 11."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Head:
    """How a detector's outputs are read; version 11 has the head of version 8.

    `decode` says where boxes and scores are made from the head's maps: in the model, or on the host after it. A model
    that decodes on the host is cut before the decode when it is imported: eight bits hold a map, but not boxes of 0 to
    640 and scores of 0 to 1 under one scale.
    """

    version: Literal["v5", "v8"] = "v8"
    decode: Literal["model", "host"] = "host"
