"""What a user may choose for RKNN-Toolkit2, and what it knows of the chips."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from anynpu.errors import ConfigError
from anynpu.quantize.plan import METHOD_HELP
from anynpu.quantize.plan import METHODS as QUANT_METHODS
from anynpu.targets.base import Move, option

METHODS = Literal["channel", "layer", "group32", "group64", "group128", "group256"]
DTYPES = {"int8": "w8a8", "int16": "w16a16i_dfp", "w8a16": "w8a16", "w4a16": "w4a16", "fp16": "w8a8"}
"""What the toolkit calls them; of a model that is not quantised it does not ask."""


@dataclass(frozen=True)
class RknnFacts:
    """What the toolkit calls the chip and which numbers it builds for it."""

    target_platform: str
    quantize: tuple[str, ...]


@dataclass(frozen=True)
class RknnOptions:
    """What the user may choose."""

    quantize: Literal["int8", "fp16", "int16", "w8a16", "w4a16"] = option(
        "int8", "numbers the NPU computes with; fp16 quantises nothing; not every chip has all"
    )
    algorithm: Literal["auto", "anynpu", "normal", "mmse", "kl_divergence", "gdq"] = option(
        "auto",
        "who quantises: anynpu, as for every chip (int8), or the toolkit by normal, mmse, kl_divergence, gdq (w4a16); "
        "auto is anynpu for int8, else normal",
    )
    ranges: str = option("auto", METHOD_HELP.replace("ranges are", "anynpu's ranges are"))
    equalize: bool = option(True, "make the channels around norms and gates equally loud first")
    bias_correction: bool = option(True, "let biases take back the shift of the mean that rounding causes")
    quantisation: Path | None = option(None, "quantisation.json of a build, edited: its ranges and scales hold")
    method: METHODS = option("channel", "a scale for each channel of weights, for a whole layer, or for groups (w4a16)")
    samples: int = option(64, "calibration samples that the toolkit uses, kept in the artifact to rebuild it from")
    optimization_level: Literal[0, 1, 2, 3] = option(3, "how far the toolkit rewrites the graph")
    auto_hybrid: bool = option(False, "let the toolkit keep operators that quantise badly in fp16")
    remove_reshape: bool = option(True, "drop reshapes at the borders of the model, which the chip's CPU would run")
    time_limit_s: int = option(3600, "seconds that a build may take")

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ConfigError(f"samples={self.samples}: one or more were expected")
        if self.time_limit_s < 1:
            raise ConfigError(f"time_limit_s={self.time_limit_s}: a second or more was expected")
        if self.method.startswith("group") and self.quantize != "w4a16":
            raise ConfigError(f"method={self.method} goes with quantize=w4a16 alone", "use channel or layer")

        if self.ranges not in QUANT_METHODS:
            raise ConfigError(f"no such range method: {self.ranges}", "known: " + ", ".join(QUANT_METHODS))
        if self.algorithm == "anynpu" and not self.own_ranges:
            raise ConfigError("algorithm=anynpu quantises to int8, all of it", "leave out quantize and auto_hybrid")
        if self.quantisation is not None and not self.own_ranges:
            raise ConfigError(
                "quantisation states ranges of anynpu's, and this build has others",
                "leave out quantize, algorithm and auto_hybrid, or quantisation",
            )

    @property
    def own_ranges(self) -> bool:
        """Whether the quantisation is anynpu's: that of every other chip."""
        return self.quantize == "int8" and self.algorithm in ("auto", "anynpu") and not self.auto_hybrid

    @property
    def quantises(self) -> bool:
        return self.quantize != "fp16"

    def config(self, facts: RknnFacts) -> dict[str, str | int | bool]:
        """Returns the arguments of the toolkit's `config`."""
        return {
            "target_platform": facts.target_platform,
            "quantized_dtype": DTYPES[self.quantize],
            "quantized_algorithm": "normal" if self.algorithm in ("auto", "anynpu") else self.algorithm,
            "quantized_method": self.method,
            "optimization_level": self.optimization_level,
            "remove_reshape": self.remove_reshape,
        }

    def build(self) -> Mapping[str, bool]:
        """Returns the further arguments of the toolkit's `build`."""
        return {"auto_hybrid": True} if self.auto_hybrid else {}


MOVES = (
    Move({"ranges": "mse"}),
    *(Move({"algorithm": algorithm}) for algorithm in ("normal", "mmse", "kl_divergence")),
    Move({"auto_hybrid": "true"}, costly=True),
    *(Move({"quantize": numbers}, costly=True) for numbers in ("int16", "fp16")),
)
"""What a search tries."""


def check_numbers(options: RknnOptions, facts: RknnFacts, chip: str) -> None:
    """Raises unless the toolkit builds such numbers for the chip."""
    if options.quantize not in facts.quantize:
        formats = ", ".join(facts.quantize)
        raise ConfigError(f"RKNN-Toolkit2 builds no {options.quantize} for {chip}", f"-O quantize= takes {formats}")
    if options.auto_hybrid and "fp16" not in facts.quantize:
        raise ConfigError(f"auto_hybrid keeps operators in fp16, which {chip} does not have", "leave it out")
