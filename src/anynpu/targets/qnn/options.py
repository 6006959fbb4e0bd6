"""What a user may ask of the qnn target, and what it must know of a chip."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from anynpu.artifact import OperatorPlacement, PassEffect
from anynpu.errors import ConfigError
from anynpu.quantize.plan import Activations, QuantPlan
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
class QnnOptions(QuantPlan):
    """How the model is quantised and what the NPU must take."""

    wide: ClassVar[Activations] = "uint16"

    quantize: Literal["auto", "none"] = option(
        "auto", "auto quantises a float model and takes a quantised one as it is; none takes any model as it is"
    )
    activations: Literal["uint8", "uint16"] = option("uint8", "type of the activations")
    weight_type: Literal["int8", "uint8"] = option("int8", "int8 is symmetric; uint8 goes with one scale a tensor")
    allow_cpu: bool = option(False, "leave operators that the NPU does not take to the CPU, named in the receipt")
    agreement_db: float = option(15.0, "SQNR that the NPU must reach against ONNX Runtime's CPU on the same file")
    time_limit_s: int = option(1800, "seconds that the compiler, and each run of the check behind it, may take")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.activations not in ("uint8", "uint16"):
            raise ConfigError(f"activations={self.activations}: the HTP takes uint8 or uint16", "choose uint16")
        if self.float_tensors:
            raise ConfigError(
                "float_tensors: the HTP computes in integers", "-O wide_tensors=... stores them in 16 bits"
            )
        if not math.isfinite(self.agreement_db):
            raise ConfigError(f"agreement_db={self.agreement_db:g}: a finite number of dB was expected")
        if self.time_limit_s < 1:
            raise ConfigError(f"time_limit_s={self.time_limit_s}: a second or more was expected")
        if self.weight_type == "uint8" and self.weights == "per-channel":
            raise ConfigError(
                "the HTP takes weights with one scale a channel as int8 only", "add -O weights=per-tensor"
            )
        if self.weight_type == "uint8" and self.weight_bits == 4:
            raise ConfigError("weight_bits=4 are symmetric", "leave weight_type out")

    def changed(self, settings: Mapping[str, Any]) -> Self | None:
        """Returns the plan with the settings of a repair that the HTP can have."""
        known = {name: value for name, value in settings.items() if name != "float_tensors"}
        if known.get("activations") == "int16":
            known["activations"] = self.wide
        return super().changed(known)


MOVES = (
    Move({"rounding": "fitted"}),
    Move({"method": "minmax"}, without=("percentile",)),
    Move({"method": "mse"}, without=("percentile",)),
    *(Move({"method": "percentile", "percentile": share}) for share in ("99.99", "99.999", "99.9")),
    Move({"equalize": "false"}),
    Move({"bias_correction": "false"}),
    Move(worst="wide_tensors"),
    Move({"activations": "uint16"}, without=("wide_tensors",), costly=True),
)
"""What a search tries."""


@dataclass(frozen=True)
class ForProvider:
    """What was written: the operators of the model with their MACs, pairs left out, and whether it came quantised."""

    operators: tuple[OperatorPlacement, ...]
    as_given: bool
    twin: bool
    passes: tuple[PassEffect, ...] = ()
