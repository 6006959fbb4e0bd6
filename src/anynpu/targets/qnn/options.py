"""What a user may ask of the qnn target, and what it must know of a chip."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from anynpu.artifact import OperatorPlacement
from anynpu.errors import ConfigError
from anynpu.quantize.plan import METHOD_HELP, METHODS
from anynpu.schema import option
from anynpu.targets.base import Move

ARCHITECTURES = (68, 73, 75, 79, 81)
"""Of the Hexagon NPU, as onnxruntime-qnn 2.7.0 takes them for `htp_arch`."""


@dataclass(frozen=True)
class QnnFacts:
    """The version of the Hexagon NPU that a context is compiled for."""

    htp_arch: int

    def __post_init__(self) -> None:
        if self.htp_arch not in ARCHITECTURES:
            raise ConfigError(f"htp_arch {self.htp_arch} is none of {', '.join(map(str, ARCHITECTURES))}")


@dataclass(frozen=True)
class QnnOptions:
    """How the model is quantised and what the NPU must take."""

    quantize: Literal["auto", "none"] = option(
        "auto", "auto quantises a float model and takes a quantised one as it is; none takes any model as it is"
    )
    activations: Literal["uint8", "uint16"] = option("uint8", "type of the activations")
    weights: Literal["per-channel", "per-tensor"] = option("per-channel", "one weight scale a channel, or one a tensor")
    weight_type: Literal["int8", "uint8"] = option("int8", "int8 is symmetric; uint8 goes with one scale a tensor")
    method: str = option("minmax", METHOD_HELP)
    percentile: float = option(99.99, "what method=percentile keeps of each tensor's values, in percent")
    bias_correction: bool = option(True, "let biases take back the shift of the mean that rounding causes")
    allow_cpu: bool = option(False, "leave operators that the NPU does not take to the CPU, named in the receipt")
    agreement_db: float = option(15.0, "SQNR that the NPU must reach against ONNX Runtime's CPU on the same file")
    time_limit_s: int = option(1800, "seconds that the compiler, and each run of the check behind it, may take")

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(f"no such range method: {self.method}", "known: " + ", ".join(METHODS))
        if not 50.0 < self.percentile <= 100.0:
            raise ConfigError(f"percentile {self.percentile} is not above 50 and at most 100")
        if not math.isfinite(self.agreement_db):
            raise ConfigError(f"agreement_db={self.agreement_db:g}: a finite number of dB was expected")
        if self.time_limit_s < 1:
            raise ConfigError(f"time_limit_s={self.time_limit_s}: a second or more was expected")
        if self.weight_type == "uint8" and self.weights == "per-channel":
            raise ConfigError(
                "the HTP takes weights with one scale a channel as int8 only", "add -O weights=per-tensor"
            )

    @property
    def bits(self) -> int:
        return 16 if self.activations == "uint16" else 8


MOVES = (
    Move({"method": "auto"}, without=("percentile",)),
    Move({"method": "mse"}, without=("percentile",)),
    *(Move({"method": "percentile", "percentile": share}) for share in ("99.99", "99.999", "99.9")),
    Move({"bias_correction": "false"}),
    Move({"activations": "uint16"}, costly=True),
)
"""What a search tries."""


@dataclass(frozen=True)
class ForProvider:
    """What was written: the operators of the model with their MACs, pairs left out, and whether it came quantised."""

    operators: tuple[OperatorPlacement, ...]
    as_given: bool
    twin: bool
