"""The NPU against the CPU on the same quantised file: what they disagree about, quantisation is not to blame for.

Quantised models that are right on the CPU have come out wrong on the HTP without a word, Quark's XINT8 among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anynpu.artifact import Artifact
from anynpu.capsules.worker import Worker
from anynpu.errors import AccuracyError
from anynpu.measure.fidelity import compare_outputs
from anynpu.measure.samples import SampleSet, read_samples
from anynpu.runtime.qnn import CONTEXT
from anynpu.schema import Whole
from anynpu.targets.qnn.options import QnnOptions
from anynpu.tensors import Array

SAMPLES, MACS_BUDGET = 8, 1_000_000_000
AS_FAR_DB = 3.0
"""By how much the NPU may be farther from the float model than the CPU, where that is far from it too."""
FILE = "model.onnx"


@dataclass(frozen=True)
class Agreement(Whole):
    """SQNR of the worst output: NPU against CPU, and each against the float model where there is one."""

    samples: int
    sqnr_db: float
    npu_float_db: float | None = None
    cpu_float_db: float | None = None


def agreement(
    worker: Worker, out: Path, truth: Path | None, arch: int, model: Artifact, data: Artifact, options: QnnOptions
) -> Agreement:
    """Returns how close the context on the simulator is to the CPU; less than was asked for raises AccuracyError."""
    estimates = model.manifest.estimates
    macs = max(1, (estimates.macs if estimates else None) or 1)
    samples = read_samples(data.path).first(max(2, min(SAMPLES, MACS_BUDGET // macs)))
    limit, wanted = options.time_limit_s, options.agreement_db
    npu = _answers(worker, {"model": str(out / CONTEXT), "arch": arch, "open_cpu": options.allow_cpu}, samples, limit)
    cpu = _answers(worker, {"model": str(out / FILE)}, samples, limit)
    real = _answers(worker, {"model": str(truth)}, samples, limit) if truth else None
    npu_db, cpu_db = (_worst(real, npu), _worst(real, cpu)) if real else (None, None)
    agreed = Agreement(len(samples), _worst(cpu, npu), npu_db, cpu_db)
    if agreed.sqnr_db >= wanted:
        return agreed
    against_float = ""
    if npu_db is not None and cpu_db is not None:
        if cpu_db < wanted and npu_db > cpu_db - AS_FAR_DB:
            return agreed  # quantisation lost it for both: the proof says whether that is too much
        against_float = f"; against the float model the HTP has {npu_db:.1f} dB and the CPU {cpu_db:.1f} dB"
        # Where the CPU is not closer to the float model either, quantisation is to blame after all.
        if cpu_db < wanted:
            raise AccuracyError(
                f"the model is lost in quantisation, on ONNX Runtime's CPU as on the HTP{against_float}",
                "sqnr_db",
                cpu_db,
                wanted,
                hint="-O activations=uint16, more or better calibration data, or another -O method=...",
            )
    raise AccuracyError(
        "the HTP computes something else than ONNX Runtime's CPU from the same quantised model: "
        f"{agreed.sqnr_db:.1f} dB SQNR, {wanted:g} dB are asked for{against_float}",
        "sqnr_db",
        agreed.sqnr_db,
        wanted,
        hint="give the float model and let anynpu quantise it; a model quantised for another NPU may not suit the HTP",
    )


def _answers(
    worker: Worker, opened: Mapping[str, str | int | bool], samples: SampleSet, limit_s: int
) -> dict[str, Array]:
    worker.ask("load", {"name": opened["model"], **opened}, timeout_s=limit_s)
    rows: dict[str, list[Array]] = {}
    for sample in samples:
        for name, value in worker.ask("run", {"name": opened["model"]}, sample, timeout_s=limit_s)[1].items():
            rows.setdefault(name, []).append(value)
    return {name: np.stack(values) for name, values in rows.items()}


def _worst(reference: Mapping[str, Array], candidate: Mapping[str, Array]) -> float:
    return min(one.sqnr_db for one in compare_outputs(reference, candidate).values())
