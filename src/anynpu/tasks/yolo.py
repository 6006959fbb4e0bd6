"""YOLO detectors: heads of versions 5, 8 and 11."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from anynpu.errors import ConfigError

Version = Literal["v5", "v8"]
Decode = Literal["model", "host"]


@dataclass(frozen=True)
class Head:
    """How a detector's outputs are read; version 11 has the head of version 8.

    `decode` says where boxes and scores are made from the head's maps: in the model, or on the host after it. A model
    that decodes on the host is cut before the decode when it is imported: eight bits hold a map, but not boxes of 0 to
    640 and scores of 0 to 1 under one scale. `anchors` are widths and heights in pixels, per stride; version 5 only.
    """

    version: Version = "v8"
    decode: Decode = "host"
    strides: tuple[int, ...] = (8, 16, 32)
    reg_max: int = 16
    anchors: tuple[tuple[tuple[float, float], ...], ...] = ()

    def __post_init__(self) -> None:
        if self.version not in get_args(Version) or self.decode not in get_args(Decode):
            raise ConfigError(f"no such head: version {self.version}, decode {self.decode}")
        if not self.strides or min(self.strides) < 1 or len(set(self.strides)) != len(self.strides):
            raise ConfigError(f"strides {list(self.strides)} are not different whole numbers above zero")
        if self.reg_max < 1:
            raise ConfigError(f"reg_max {self.reg_max} is not above zero")
        if self.anchors and (len(self.anchors) != len(self.strides) or len({len(a) for a in self.anchors}) != 1):
            raise ConfigError("anchors need as many pairs of width and height for each stride")
        if any(side <= 0 for anchors in self.anchors for pair in anchors for side in pair):
            raise ConfigError("an anchor has a width and a height above zero")
