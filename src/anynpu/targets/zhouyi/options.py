"""What a user may choose for cixbuild, and the names of its targets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from anynpu.errors import ConfigError
from anynpu.schema import near
from anynpu.targets.base import Move, option

# The optimizer drops blanks, splits at <, > and the first colon, and takes [words] for kinds of operators.
NOT_IN_REGEX = re.compile(r"[{}<>\[\]:;#%&\s]")
WEIGHT_METHODS = Literal[
    "per_channel_symmetric_restricted_range",
    "per_channel_symmetric_full_range",
    "per_tensor_symmetric_restricted_range",
    "per_tensor_symmetric_full_range",
]
ACTIVATION_METHODS = Literal[
    "per_tensor_asymmetric", "per_tensor_symmetric_full_range", "per_tensor_symmetric_restricted_range"
]


@dataclass(frozen=True)
class ZhouyiFacts:
    """What cixbuild calls the chip; the first name is the default."""

    targets: tuple[str, ...]


@dataclass(frozen=True)
class ZhouyiOptions:
    """What the user may choose."""

    target: str = option("X2_1204MP3", "the NPU as cixbuild names it: X2_1204MP3 has three cores, X2_1204 one")
    weight_bits: Literal[8, 16] = option(8, "bits of weights")
    activation_bits: Literal[8, 16] = option(8, "bits of activations")
    float_nodes: str = option("", "regular expression of node names that compute in floats (trigger_float_op)")
    float_type: Literal["float16", "bfloat16", "float32"] = option("float16", "the floats of float_nodes")
    wide_nodes: str = option("", "regular expression of node names with 16-bit weights and activations")
    weight_method: WEIGHT_METHODS = option("per_channel_symmetric_restricted_range", "how weights are quantised")
    activation_method: ACTIVATION_METHODS = option("per_tensor_asymmetric", "how activations are quantised")
    tiling: Literal["fps", "footprint", "none"] = option("fps", "what the code generator tiles for")
    mask_value: float = option(-30.0, "takes the place of -1e9 and the like in attention masks; 0 leaves them")
    matmul: Literal["keep", "convolution"] = option("keep", "turn products with constant weights into 1x1 convolutions")
    trust_compiler: bool = option(False, "hand over operators that CixBuilder 6.1.3407 refused; newer ones take more")
    time_limit_s: int = option(7200, "seconds that cixbuild may take")

    def __post_init__(self) -> None:
        for name in ("float_nodes", "wide_nodes"):
            pattern = getattr(self, name)
            if NOT_IN_REGEX.search(pattern):
                raise ConfigError(
                    f"{name}={pattern}: blanks and {{ }} < > [ ] : ; # % & have another meaning in the .cfg file",
                    "use . for such a character, and (a|b) for a choice",
                )
            try:
                re.compile(pattern)
            except re.error as error:
                raise ConfigError(f"{name}={pattern}: not a regular expression ({error})") from None
        if self.mask_value > 0:
            raise ConfigError(f"mask_value={self.mask_value:g}: a number below zero was expected", "such as -30")
        if self.time_limit_s < 1:
            raise ConfigError(f"time_limit_s={self.time_limit_s}: a second or more was expected")
        if self.target.startswith("Z3"):  # said before anything is built
            check_target(self.target, ("X2_1204MP3", "X2_1204"))


MOVES = (
    *(Move({"activation_method": method}) for method in get_args(ACTIVATION_METHODS)[1:]),
    *(Move({"weight_method": method}) for method in get_args(WEIGHT_METHODS)[1:]),
    *(Move({name: "16"}, costly=True) for name in ("activation_bits", "weight_bits")),
)
"""What a search tries."""


def check_target(name: str, targets: Sequence[str]) -> None:
    """Raises unless cixbuild can compile for that name and the chip can run the result."""
    if name in targets:
        return
    if name.startswith("Z3"):
        raise ConfigError(
            f"target={name}: cixbuild has no Convolution for the Z3 names, and every MatMul becomes one; "
            f"the NPU calls itself {targets[0]}",
            f"leave it out, or give target={targets[0]}",
        )
    raise ConfigError(f"target={name}: no such target{near(name, targets)}", "known: " + ", ".join(targets))


def check_nodes(options: ZhouyiOptions, names: Sequence[str]) -> None:
    """Raises for a regular expression that no node's name matches: it would change nothing, in silence."""
    for what in ("float_nodes", "wide_nodes"):
        pattern = getattr(options, what)
        if pattern and not any(re.match(pattern, name) for name in names):
            shown = ", ".join(list(names)[:5])
            raise ConfigError(
                f"{what}={pattern}: no node has such a name",
                f"it must match from the first character on, as in {shown}",
            )
