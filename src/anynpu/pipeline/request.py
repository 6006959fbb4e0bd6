"""What the user asks for, in one resolved record that every report repeats."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from anynpu.errors import ConfigError
from anynpu.measure.verify import Gate
from anynpu.quantize.calibration import Preprocess
from anynpu.source.load import ModelSource


@dataclass(frozen=True)
class Request:
    """A build of one model for one or more chips.

    `require_npu` is the share of operators (and of MACs, where known) that must run on the NPU of a chip that has one.
    It is 1 unless the user says otherwise: a fallback that nobody accepted is a negative verdict.
    """

    source: ModelSource
    chips: tuple[str, ...]
    data: str = ""
    test: str = ""
    limit: int = 512
    preprocess: Preprocess | None = None
    task: str = ""
    tokenizer: str = ""
    metric: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    require_npu: float = 1.0
    gate: Gate = field(default_factory=Gate)

    def __post_init__(self) -> None:
        if not self.chips:
            raise ConfigError("no chip is named", "give -t CHIP[,CHIP...]; `anynpu targets` lists them")
        if not 0 <= self.require_npu <= 1:
            raise ConfigError("--require-npu takes a share from 0% to 100%")
        if self.limit < 1:
            raise ConfigError(f"a limit of {self.limit} samples leaves none", "give --limit 1 or more")
        for flag, value in (("--min-sqnr", self.gate.min_sqnr_db), ("--max-drop", self.gate.max_drop_points)):
            if not math.isfinite(value):  # every comparison with NaN is false: the gate would let anything through
                raise ConfigError(f"{flag} {value}: a finite number was expected")


def parse_share(text: str) -> float:
    """Returns 0.95 for "95%" or "0.95"."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ConfigError(f"--require-npu {text}: a share such as 95% was expected")
    return share
