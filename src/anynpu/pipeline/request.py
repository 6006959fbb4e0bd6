"""What the user asks for, in one resolved record that every report repeats."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from anynpu.errors import ConfigError
from anynpu.measure.labels import require_metric
from anynpu.measure.metrics import METRICS
from anynpu.measure.threshold import setting_of, thresholds
from anynpu.measure.verify import Gate
from anynpu.quantize.calibration import Preprocess
from anynpu.records.shared import Threshold
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
    qat: bool = False
    """Whether the model is trained with the rounding of each chip's compiler."""
    seed: int = 0
    require_npu: float = 1.0
    gate: Gate = field(default_factory=Gate)
    repair: bool | None = None
    """Whether repairs are tried where quantisation misses the gate; by default where that is the default gate."""
    keep_failed: bool = False
    """Whether a result that misses the accuracy gate is kept, below `failed/` in the output folder."""
    strict_calibration: bool = False
    """Whether too few calibration samples are a shortfall like one of the gate."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """Where the settings of the gate came from: a flag, a file or an environment variable."""

    def __post_init__(self) -> None:
        if not self.chips:
            raise ConfigError("no chip is named", "give -t CHIP[,CHIP...]; `anynpu targets` lists them")
        if not 0 <= self.require_npu <= 1:
            raise ConfigError("--require-npu takes a share from 0% to 100%")
        if self.limit < 1:
            raise ConfigError(f"a limit of {self.limit} samples leaves none", "give --limit 1 or more")
        if self.seed < 0:
            raise ConfigError(f"--seed {self.seed}: a whole number from 0 on was expected")
        require_metric(self.metric, METRICS)
        for each in self.thresholds:
            if not math.isfinite(each.value):  # every comparison with NaN is false: anything would pass the gate
                raise ConfigError(f"--{each.name.replace('_', '-')} {each.value}: a finite number was expected")

    def judged(
        self,
        require_npu: str | float | None,
        min_sqnr: float | None,
        max_drop: float | None,
        origins: Mapping[str, str],
    ) -> Request:
        """Returns the request with this gate; what is None or "" keeps its default."""
        limits = {"min_sqnr": min_sqnr, "max_drop": max_drop}
        values = {each.name: limits[setting_of(each.name)] for each in fields(Gate)}
        share = self.require_npu
        if require_npu not in (None, ""):
            share = parse_share(require_npu) if isinstance(require_npu, str) else float(require_npu)
        return replace(
            self,
            require_npu=share,
            gate=Gate(**{name: float(value) for name, value in values.items() if value is not None}),
            origins={name: origins[name] for name in ("require_npu", *limits) if name in origins},
        )

    @property
    def thresholds(self) -> tuple[Threshold, ...]:
        """The whole gate in force, the share on the NPU as a percentage."""
        share = Threshold("require_npu", 100 * self.require_npu, 100.0, "%", self.origins.get("require_npu", ""))
        return (share, *thresholds(self.gate, self.origins))


def parse_share(text: str) -> float:
    """Returns 0.95 for "95%" or "0.95"."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ConfigError(f"--require-npu {text}: a share such as 95% was expected")
    return share
