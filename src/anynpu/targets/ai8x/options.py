"""What a user may choose for the MAX7800x, and what is known of each chip."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from anynpu.errors import ConfigError
from anynpu.targets.base import Move, option

BUILD_ONLY = {
    "bit_width",
    "weight_bits",
    "weight_bytes",
    "q_scale",
    "clip_method",
    "method",
    "output_width",
    "quantisation",
    "config_file",
    "qat_policy",
}
"""Options that are ours; the other truth values are flags of the vendor's tool."""
AUTO = "auto"


@dataclass(frozen=True)
class Ai8xFacts:
    """The limits of a chip, from the vendor's documentation and tool."""

    device: str
    layers: int
    channels: int
    biased_channels: int
    rows: int
    instance_bytes: int
    """Data memory that four processors share."""
    weight_bytes: int
    kernel_words: int
    """Words of nine bytes that each of the 64 processors has for weights."""
    bias_bytes: int
    depthwise: bool
    max_speed: bool
    cycles: bool
    """Whether the vendor's tool estimates cycles."""
    clock_mhz: float
    memory_base: int
    group_stride: int
    processor_stride: int
    """Addresses of the data memories: 16 processors to a group, four to a memory."""


@dataclass(frozen=True)
class Ai8xOptions:
    """What the user may choose; the names are those of µNPU-Bench and of ai8xize.py."""

    bit_width: Literal[1, 2, 4, 8] = option(8, "bits of weights")
    weight_bits: str = option(
        "", "bits of weights by layer, in order (8,4,4,2), or auto: fewer where it costs least, until they fit"
    )
    weight_bytes: int = option(0, "what weight_bits=auto may use; 0 is all that the chip has")
    q_scale: float = option(0.85, "minimum share of the largest weight that the integers reach; the rest is clipped")
    clip_method: Literal["best", "max", "avg", "scale", "laplace"] = option(
        "best", "how weights are clipped: best searches between q_scale and no clipping, scale clips at q_scale"
    )
    method: Literal["minmax", "percentile", "mse", "entropy"] = option("mse", "how ranges of activations are chosen")
    output_width: Literal["auto", "8", "32"] = option("auto", "bits of the last layer; auto takes 32 where it can")
    quantisation: Path | None = option(None, "quantisation.json of a build, edited: its ranges, scales and widths hold")
    config_file: Path | None = option(None, "network YAML of your own instead of the one that is made (file.yaml)")
    qat_policy: str = option("", "refused: training against a policy happens before the export, with ai8x-training")
    fifo: bool = option(False, "load the input through the FIFO (at most 16 channels)")
    max_speed: bool = option(False, "load data and weights as fast as possible (MAX78002 only)")
    compact_weights: bool = option(False, "load weights with memcpy(), which saves code")
    simple1b: bool = option(False, "XOR instead of a product for 1-bit weights")
    no_wfi: bool = option(False, "do not sleep while the accelerator works")
    zero_sram: bool = option(False, "zero the memories first")
    avg_pool_rounding: bool = option(False, "round the means of windows; they are cut off otherwise")
    mlator: bool = option(False, "let the hardware swap the bytes of the output")
    softmax: bool = option(False, "add a software softmax to the project (32-bit outputs only)")
    energy: bool = option(False, "add code that measures energy on the board")
    riscv: bool = option(False, "run the project on the chip's RISC-V core")
    board_name: str = option("EvKit_V1", "board of the project: EvKit_V1, FTHR_RevA")
    time_limit_s: int = option(1800, "seconds that ai8xize.py may take")

    def __post_init__(self) -> None:
        if not 0.1 <= self.q_scale <= 1.0:
            raise ConfigError(f"q_scale={self.q_scale:g}: a share from 0.1 to 1 was expected")
        if self.qat_policy:
            raise ConfigError(
                f"qat_policy={self.qat_policy}: weights are quantised after the training here",
                "train against the policy with ai8x-training, export the result, and leave the option out",
            )
        if self.time_limit_s < 1:
            raise ConfigError(f"time_limit_s={self.time_limit_s}: a second or more was expected")
        if not re.fullmatch(r"\w+", self.board_name):
            raise ConfigError(f"board_name={self.board_name}: a name such as EvKit_V1 or FTHR_RevA was expected")
        if not re.fullmatch(rf"({AUTO}|[1248](,[1248])*)?", self.weight_bits):
            raise ConfigError(
                f"weight_bits={self.weight_bits}: {AUTO}, or widths of 1, 2, 4 or 8 bits were expected",
                "one for each layer with weights, in order: weight_bits=8,4,4,2",
            )
        if self.weight_bytes and self.weight_bits != AUTO:
            raise ConfigError("weight_bytes is for weight_bits=auto", "add weight_bits=auto, or leave it out")
        if self.weight_bytes < 0:
            raise ConfigError(f"weight_bytes={self.weight_bytes}: a number of bytes was expected")
        if self.weight_bits and self.bit_width != 8:
            raise ConfigError("bit_width is for all layers, weight_bits for each", "leave one of them out")
        if self.simple1b and self.bit_width != 1:
            raise ConfigError("simple1b is for 1-bit weights", "add bit_width=1, or leave it out")
        if self.softmax and self.output_width == "8":
            raise ConfigError("softmax needs the 32-bit outputs of the last layer", "leave output_width out")

    def layer_bits(self) -> tuple[int, ...]:
        """Returns the bits that are stated for each layer; none where they are not."""
        return tuple(map(int, self.weight_bits.split(","))) if self.weight_bits not in ("", AUTO) else ()

    def flags(self) -> list[str]:
        """Returns the flags of ai8xize.py that are on."""
        on = [f.name for f in fields(self) if f.name not in BUILD_ONLY and getattr(self, f.name) is True]
        return [f"--{name.replace('_', '-')}" for name in on]


MOVES = (
    *(Move({"method": method}) for method in ("percentile", "minmax", "entropy")),
    *(Move({"q_scale": share}) for share in ("0.6", "1.0", "0.3")),
    *(Move({"bit_width": bits}, costly=True) for bits in ("4", "2")),
)
"""What a search tries."""
