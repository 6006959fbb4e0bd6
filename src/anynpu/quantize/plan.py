"""The plan: what every emitter is to do, stated once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args

from anynpu.errors import ConfigError
from anynpu.schema import JsonObject, near, option, to_dict

METHODS = ("auto", "minmax", "percentile", "mse", "entropy")
METHOD_HELP = f"how ranges are found: {', '.join(METHODS[:-1])} or {METHODS[-1]}"

Activations = Literal["int8", "uint8", "int16", "uint16", "float32"]
Weights = Literal["per-channel", "per-tensor"]
Border = Literal["integer", "float"]
Rounding = Literal["nearest", "fitted"]


@dataclass(frozen=True)
class QuantPlan:
    """Types, granularity and range method of a quantised model.

    Weights are symmetric under every plan; "float32" activations leave the model as it is.
    `io` says whether inputs and outputs are stored integers or stay float with a conversion at the border.
    `bias_correction` lets biases take back the shift of the mean that rounding causes;
    `equalize` makes the channels between two layers equally loud first (TFLite, 8 bits, per-channel
    weights). Tensors are named as in the emitter's own float graph; one that is named twice is float.
    """

    wide: ClassVar[Activations] = "int16"
    """The type of wide tensors, and of all where sixteen bits are asked for."""

    activations: Activations = option(
        "int8",
        "type of the activations; float32 leaves the model as it is",
        unpu="bit_width",
        unpu_values={"8": "int8", "16": "int16", "32": "float32"},
    )
    weights: Weights = option("per-channel", "one scale per output channel, or one per tensor", unpu="tflm_quant_type")
    method: str = option("auto", METHOD_HELP)
    percentile: float = option(99.99, "what method=percentile keeps of each tensor's values, in percent")
    io: Border = option("integer", "inputs and outputs as stored integers, or as float with a conversion at the border")
    bias_correction: bool = option(True, "let biases take back the shift of the mean that rounding causes")
    equalize: bool = option(True, "make the channels between two layers and around norms equally loud first (8 bits)")
    weight_bits: Literal[4, 8] = option(8, "bits of stored weights: 8, or 4 where the kernels take them")
    rounding: Rounding = option("nearest", "weights to the nearest integer, or fitted to the inputs that they meet")
    wide_tensors: tuple[str, ...] = option((), "tensors that an 8-bit model stores in 16 bits: NAME,NAME")
    float_tensors: tuple[str, ...] = option((), "computed tensors that stay in floating point: NAME,NAME")
    quantisation: Path | None = option(None, "quantisation.json of a build, edited: its ranges, scales and types hold")

    def __post_init__(self) -> None:
        _one_of("activations", self.activations, get_args(Activations))
        _one_of("weights", self.weights, get_args(Weights))
        if self.weight_bits not in (4, 8):
            raise ConfigError(f"no such weight bits: {self.weight_bits}", "known: 4, 8")
        _one_of("range method", self.method, METHODS)
        _one_of("io", self.io, get_args(Border))
        _one_of("rounding", self.rounding, get_args(Rounding))
        if not 50.0 < self.percentile <= 100.0:
            raise ConfigError(f"percentile {self.percentile} is not above 50 and at most 100")

    @property
    def bits(self) -> int:
        return {"int8": 8, "uint8": 8, "int16": 16, "uint16": 16, "float32": 32}[self.activations]

    def is_symmetric(self, dtype: str) -> bool:
        """Tells whether activations of a type have the zero point in the middle; int16 kernels know nothing else."""
        return dtype == "int16"

    def scale_for_each(self, dense: bool) -> bool:
        """Tells whether the stored weights of a layer, dense or not, have one scale for each output channel."""
        return self.weights == "per-channel"

    @property
    def power_of_two(self) -> bool:
        """Whether all scales are powers of two."""
        return False

    @property
    def weight_room(self) -> float:
        """How much wider the scales of weights are than the largest weight needs."""
        return 1.0

    @property
    def symmetric(self) -> bool:
        """Whether activations of the plan's own type have the zero point in the middle."""
        return self.is_symmetric(self.activations)

    def stored_type(self, tensor: str) -> Activations:
        """Returns the type in which an activation is stored."""
        if tensor in self.float_tensors:
            return "float32"
        return self.wide if tensor in self.wide_tensors and self.bits == 8 else self.activations

    def check_tensors(self, known: Collection[str]) -> None:
        """Raises for a tensor that the plan names and the model does not have."""
        for option_name in ("wide_tensors", "float_tensors"):
            for name in getattr(self, option_name):
                if name not in known:
                    hint = "tensors as `anynpu diagnose` names them for this chip"
                    raise ConfigError(f"{option_name}={name}: the model has no such tensor{near(name, known)}", hint)

    def changed(self, settings: Mapping[str, Any]) -> Self | None:
        """Returns the plan with the settings of a repair, None where they change nothing."""
        known = {each.name for each in fields(self)}
        new = {name: value for name, value in settings.items() if name in known and getattr(self, name) != value}
        return replace(self, **new) if new and self.activations != "float32" else None

    def to_json(self) -> JsonObject:
        plain: JsonObject = to_dict(self, whole=True)
        return plain


def _one_of(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"no such {what}: {value}", "known: " + ", ".join(known))
