"""What a user may choose for TPU-MLIR, and what a chip admits."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from anynpu.errors import ConfigError
from anynpu.platform import Platform
from anynpu.quantize.plan import METHOD_HELP
from anynpu.quantize.plan import METHODS as QUANT_METHODS
from anynpu.targets.base import Move, option

METHODS = Literal["anynpu", "kl", "mse", "max", "percentile9999", "aciq_laplace", "aciq_gauss"]
PIXELS = Literal["", "rgb", "bgr", "gray", "rgba", "gbrg", "grbg", "bggr", "rggb"]
BORDER = Literal["auto", "integer", "float"]
FORMATS = ("int8", "bf16", "f16", "f32")


@dataclass(frozen=True)
class CviFacts:
    """What TPU-MLIR calls the chip, the kind of file it makes, and the number formats it compiles."""

    processor: str
    file: Literal["cvimodel", "bmodel"]
    formats: tuple[str, ...]
    simulator: str = ""
    """The library of its simulator, for chips that take bmodel files."""
    refused: tuple[str, ...] = ()
    """ONNX operators for which the compiler ends with an error."""
    on_cpu: tuple[str, ...] = ()
    """ONNX operators that the chip's runtime computes on the CPU."""

    @property
    def old(self) -> bool:
        """Whether this is one of the CV18xx family, whose files are cvimodel."""
        return self.file == "cvimodel"

    @property
    def main(self) -> str:
        return f"model.{self.file}"


@dataclass(frozen=True)
class CviOptions:
    """What the user may choose."""

    quantize: Literal["int8", "bf16", "f16", "f32"] = option(
        "int8",
        "the number format of the whole model",
        unpu="bit_width",
        unpu_values={"8": "int8", "16": "bf16", "32": "f32"},
    )
    quantize_table: Path | None = option(None, "file with lines `layer format`: those layers in another format (mixed)")
    search: Literal["none", "mixed", "threshold"] = option(
        "none", "let TPU-MLIR search: mixed picks layers to keep in floats, threshold picks a calibration method"
    )
    search_cosine: float = option(0.99, "the cosine that search=mixed wants to reach with few float layers")
    calibration_table: Path | None = option(None, "use this table of ranges in place of one made from --data")
    calibration_method: METHODS = option(
        "anynpu",
        "whose ranges INT8 has: anynpu's, as on every chip, or those of run_calibration.py by kl, mse and others",
    )
    tuning_samples: int = option(5, "samples on which run_calibration.py tunes its ranges again; 0 leaves them")
    method: str = option("auto", METHOD_HELP)
    equalize: bool = option(True, "make the channels around norms and gates equally loud first")
    bias_correction: bool = option(True, "let biases take back the shift of the mean that rounding causes")
    quantisation: Path | None = option(None, "quantisation.json of a build, edited: its ranges and scales hold")
    asymmetric: bool = option(False, "INT8 with zero points (BM chips)")
    quant_input: BORDER = option("auto", "what inputs hold; auto: integers on CV18xx in INT8, floats elsewhere")
    quant_output: BORDER = option(
        "auto", "what outputs hold; auto: integers in INT8 on CV18xx and with dynamic, floats elsewhere"
    )
    tolerance: float = option(0.99, "the cosine that TPU-MLIR's own comparison with the float model must reach")
    excepts: str = option("", "tensors that its comparison leaves out, with commas between")
    dynamic: bool = option(False, "compile for input sizes up to the model's (BM chips)")
    pixel_format: PIXELS = option("", "order of colours that the model file states for camera pipelines")
    resize_dims: str = option("", "height,width that images are resized to, as the model file states it")
    keep_aspect_ratio: bool = option(False, "resized images keep their aspect, as the model file states it")
    optimize: Literal[1, 2, 3] = option(2, "how hard the compiler groups layers (--opt)")
    cores: int = option(1, "TPU cores to compile for; BM1688 has 2")
    time_limit_s: int = option(3600, "seconds that all its programs together may take")

    def __post_init__(self) -> None:
        for name in ("tolerance", "search_cosine"):
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError(f"{name}={getattr(self, name):g}: a cosine above 0 and up to 1 was expected")
        if self.resize_dims and not re.fullmatch(r"[1-9]\d*,[1-9]\d*", self.resize_dims):
            raise ConfigError(f"resize_dims={self.resize_dims}: height,width was expected", "such as 96,96")
        if self.tuning_samples < 0 or self.cores < 1 or self.time_limit_s < 1:
            raise ConfigError("tuning_samples may not be below 0, cores and time_limit_s not below 1")
        if self.quantize != "int8":
            # A setting of INT8 would change nothing, in silence
            for name in ("quantize_table", "calibration_table", "asymmetric"):
                if getattr(self, name):
                    raise ConfigError(f"{name} is for quantize=int8, not {self.quantize}")
            if self.search != "none":
                raise ConfigError(f"search={self.search} is for quantize=int8, not {self.quantize}")
            for name in ("quant_input", "quant_output"):
                if getattr(self, name) == "integer":
                    raise ConfigError(f"{name}=integer is for quantize=int8, not {self.quantize}")
        if self.search != "none" and self.calibration_table is not None:
            raise ConfigError("a search finds ranges itself: give search or calibration_table, not both")
        if self.method not in QUANT_METHODS:
            raise ConfigError(f"no such range method: {self.method}", "known: " + ", ".join(QUANT_METHODS))
        if self.quantisation is not None and not self.own_ranges:
            raise ConfigError(
                "quantisation states ranges of anynpu's, and this build has others",
                "leave out quantize, search, calibration_table and calibration_method, or quantisation",
            )
        if self.search == "mixed" and self.quantize_table is not None:
            raise ConfigError("a search finds the layers itself: give search=mixed or quantize_table, not both")

    @property
    def own_ranges(self) -> bool:
        """Whether the ranges are anynpu's: those of every other chip."""
        theirs = self.search != "none" or self.calibration_table is not None
        return self.quantize == "int8" and self.calibration_method == "anynpu" and not theirs

    def integers(self, border: BORDER, old: bool) -> bool:
        """Whether a border holds integers; auto: in INT8 on CV18xx chips, whose CPU would have to convert floats."""
        return border == "integer" or (border == "auto" and old and self.quantize == "int8")

    def integer_outputs(self, old: bool) -> bool:
        """Whether outputs hold integers; those of a dynamic INT8 model do, since the runtime reads their sign wrongly
        where it converts them."""
        wrong = self.dynamic and self.quantize == "int8" and self.quant_output == "auto"
        return wrong or self.integers(self.quant_output, old)


MOVES = (
    Move({"method": "mse"}),
    *(Move({"calibration_method": method}) for method in ("kl", "mse", "percentile9999", "max")),
    Move({"search": "threshold"}),
    Move({"search": "mixed"}, costly=True),
    Move({"quantize": "bf16"}, costly=True),
)
"""What a search tries."""


def check_chip(options: CviOptions, platform: Platform) -> CviFacts:
    """Returns the chip's facts; raises for an option that it does not admit."""
    facts = platform.facts_as(CviFacts)
    if options.quantize not in facts.formats:
        formats = ", ".join(facts.formats)
        raise ConfigError(f"quantize={options.quantize}: {platform.name} computes in {formats}", "give one of those")
    for name, stated in {
        "dynamic": options.dynamic,
        "asymmetric": options.asymmetric,
        "cores": options.cores > 1,
    }.items():
        if stated and facts.old:
            raise ConfigError(f"{name}: {platform.name} has no such thing", "leave it out")
    if options.dynamic and options.quantize == "int8" and options.quant_output == "float":
        hint = "leave quant_output out: outputs are then integers with a scale; or use quantize=f16"
        raise ConfigError("dynamic models in INT8 give negative outputs wrongly as floats", hint)
    return facts


def read_quantize_table(path: Path, facts: CviFacts) -> dict[str, str]:
    """Returns the format of each layer that a quantisation table names."""
    table: dict[str, str] = {}
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or words[1].lower() not in (*facts.formats, *(f.upper() for f in facts.formats)):
            formats = ", ".join(f.upper() for f in facts.formats)
            raise ConfigError(
                f"{path}: line {number}: a layer and one of {formats} were expected, not {line.strip()!r}"
            )
        table[words[0]] = words[1].upper()
    return table
