"""What a user may choose for AMD Quark, and what goes together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from anynpu.drivers.ryzen_facts import Precision, VitisFacts
from anynpu.errors import ConfigError
from anynpu.platform import Platform
from anynpu.quantize.plan import METHOD_HELP
from anynpu.quantize.plan import METHODS as QUANT_METHODS
from anynpu.targets.base import Move, option

Calibration = Literal["auto", "anynpu", "min_mse", "non_overflow", "min_max", "percentile", "entropy"]
METHODS: dict[Precision, tuple[str, ...]] = {
    "xint8": ("min_mse", "non_overflow"),
    "a8w8": ("min_max", "percentile", "entropy"),
    "a16w8": ("min_max", "percentile"),
    "bf16": ("min_max",),
}
"""How Quark finds ranges in each precision, its default first: power-of-two scales have methods of their own."""
OPSETS = range(13, 22)


@dataclass(frozen=True)
class VitisOptions:
    """What the user may choose."""

    precision: Precision = option(
        "xint8", "xint8: 8 bits, power-of-two scales, every chip; a8w8: any scale; a16w8: 16-bit activations; bf16"
    )
    calibration: Calibration = option(
        "auto",
        "whose ranges: anynpu's, as on every chip, or Quark's by min_mse or non_overflow (xint8), or by min_max, "
        "percentile or entropy; auto is anynpu, and Quark's own with bf16, with cle and for trained models",
    )
    method: str = option("auto", METHOD_HELP + "; auto is mse in xint8")
    equalize: bool = option(True, "make the channels around norms and gates equally loud first")
    bias_correction: bool = option(True, "let biases take back the shift of the mean that rounding causes")
    quantisation: Path | None = option(None, "quantisation.json of a build, edited: its ranges and scales hold")
    cle: bool = option(False, "equalise the weights of neighbouring layers first (cross-layer equalisation)")
    adaround: bool = option(False, "learn how each weight is rounded: better, and minutes instead of seconds")
    adaround_iterations: int = option(1000, "steps of learning a layer")
    opset: int = option(17, "the ONNX opset that the model is written in; AMD advises 17")
    time_limit_s: int = option(7200, "seconds that Quark may take")

    def __post_init__(self) -> None:
        methods = METHODS[self.precision]
        known = methods if self.precision == "bf16" else ("anynpu", *methods)
        if self.calibration not in ("auto", *known):
            raise ConfigError(
                f"calibration={self.calibration}: not for {self.precision}", f"it takes auto or {', '.join(known)}"
            )
        if self.calibration == "anynpu" and self.cle:
            raise ConfigError("cle changes the weights that anynpu's ranges are of", "leave out cle or calibration")
        if self.method not in QUANT_METHODS:
            raise ConfigError(f"no such range method: {self.method}", "known: " + ", ".join(QUANT_METHODS))
        if self.quantisation is not None and not self.own_ranges:
            raise ConfigError(
                "quantisation states ranges of anynpu's, and this build has others",
                "leave out precision=bf16, cle and calibration, or quantisation",
            )
        if self.precision == "bf16" and (self.adaround or self.cle):
            raise ConfigError("bf16 rounds floats and needs neither cle nor adaround", "leave them out")
        if self.adaround_iterations < 1:
            raise ConfigError(f"adaround_iterations={self.adaround_iterations}: one or more was expected")
        if self.opset not in OPSETS:
            raise ConfigError(
                f"opset={self.opset}: {OPSETS.start} to {OPSETS.stop - 1} was expected", "AMD advises opset 17"
            )
        if self.time_limit_s < 1:
            raise ConfigError(f"time_limit_s={self.time_limit_s}: a second or more was expected")

    @property
    def own_ranges(self) -> bool:
        """Whether the ranges are anynpu's: those of every other chip."""
        possible = self.precision != "bf16" and not self.cle
        return possible and self.calibration in ("auto", "anynpu")

    @property
    def quark_method(self) -> str:
        """How Quark finds ranges, and the scales of weights: as chosen or the precision's own way."""
        return METHODS[self.precision][0] if self.calibration in ("auto", "anynpu") else self.calibration


MOVES = (
    Move({"method": "minmax"}),
    Move({"cle": "true"}, without=("calibration",)),
    Move({"adaround": "true"}),
    *(Move({"precision": precision}, without=("calibration",), costly=True) for precision in ("a8w8", "a16w8", "bf16")),
)
"""What a search tries."""


def check_precision(options: VitisOptions, platform: Platform) -> None:
    """Raises unless the chip computes in that precision."""
    precisions = platform.facts_as(VitisFacts).precisions
    if options.precision not in precisions:
        raise ConfigError(
            f"{platform.name} does not run {options.precision} models",
            f"it takes {', '.join(precisions)}: -O precision={precisions[0]}",
        )
