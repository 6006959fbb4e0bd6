"""TPU-MLIR's three programs in a scratch folder: transform, calibrate, deploy."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from anynpu.capsules.capsule import Capsule
from anynpu.errors import AccuracyError, ToolFailed
from anynpu.measure.samples import SampleSet
from anynpu.targets.cvi.options import CviFacts, CviOptions
from anynpu.tensors import TensorSpec

ONNX, MLIR, REFERENCE, TEST = "model.onnx", "model.mlir", "reference.npz", "samples/0000.npz"
REPAIRED = "repaired/model.onnx"
"""The float model with the repairs of its quantisation."""
LIST, RANGES, FORMATS = "samples.txt", "calibration_table", "quantize_table"
_FELL_SHORT = re.compile(r"min_similarity = \(([-\d.einfa]+),")


@dataclass
class Room:
    """A scratch folder with the tool that works in it; its programs share one time limit."""

    path: Path
    capsule: Capsule
    log: Path
    options: CviOptions
    facts: CviFacts
    started: float = field(default_factory=time.monotonic)

    def run(self, argv: Sequence[str], makes: str) -> Path:
        """Runs a program and returns the file that it must have made."""
        (self.path / makes).unlink(missing_ok=True)
        left_s = self.options.time_limit_s - (time.monotonic() - self.started)
        line = list(argv)
        if "search_qtable" in argv and not shutil.which("dot"):
            # A search ends with a drawing, and dies without Graphviz: an empty one is put on its PATH.
            stub = self.path / "bin" / "dot"
            stub.parent.mkdir(exist_ok=True)
            stub.write_text("#!/bin/sh\n", "utf-8")
            stub.chmod(0o755)
            line = ["env", f"PATH={stub.parent}:{self.capsule.environment()['PATH']}", *argv]
        try:
            self.capsule.run(line, cwd=self.path, log=self.log, timeout_s=max(left_s, 0.1), called=argv[0])
        except ToolFailed as failure:
            raise self._explained(failure, argv[0]) from None
        return self.capsule.installed.toolchain.require_file(self.path / makes, argv[0], self.log, argv, filled=True)

    def _explained(self, failure: ToolFailed, program: str) -> ToolFailed | AccuracyError:
        """Returns the failure in the user's words, or an AccuracyError where its own comparison fell short."""
        words = failure.message
        if "did not finish" in words:
            words = f"{program} did not finish within {self.options.time_limit_s} s (all programs together)"
        text = self.log.read_text("utf-8", "replace").rpartition("\n$ ")[2]
        cosines = _FELL_SHORT.findall(text)
        if program == "model_deploy.py" and "npz compare FAILED" in text and cosines:
            cosine = float(cosines[-1])
            return AccuracyError(
                f"TPU-MLIR's own comparison with the float model gives a cosine of {cosine:.4f}; "
                f"{self.options.tolerance:g} is asked for ({failure.log})",
                "cosine",
                cosine,
                self.options.tolerance,
                hint="more calibration data, -O calibration_method=..., -O search=mixed, or -O quantize=bf16; "
                "-O tolerance=... lowers the bar, -O excepts=... leaves a tensor out",
            )
        return ToolFailed(words, failure.argv, failure.status, failure.log, failure.last_lines, failure.hint)

    def failed(self, message: str, argv: Sequence[str] = ()) -> ToolFailed:
        """Returns the failure of a program that has ended well."""
        return self.capsule.installed.toolchain.failed(message, self.log, argv)


def write_samples(room: Path, samples: SampleSet) -> int:
    """Writes each sample as an .npz file by input names, and the list of them; returns how many."""
    (room / "samples").mkdir()
    names = []
    for index, sample in enumerate(samples):
        names.append(room / "samples" / f"{index:04d}.npz")
        np.savez(names[-1], **sample)  # type: ignore[arg-type]  # numpy types the keywords as its own options
    (room / LIST).write_text("".join(f"{name}\n" for name in names), "utf-8")
    return len(names)


def transform(room: Room, inputs: Sequence[TensorSpec], test: bool) -> Path:
    """Turns model.onnx into MLIR, compared with ONNX Runtime on a sample where there is one."""
    options = room.options
    shapes = json.dumps([list(spec.shape) for spec in inputs], separators=(",", ":"))
    argv = [
        "model_transform.py",
        "--model_name",
        "model",
        "--model_def",
        ONNX,
        "--input_shapes",
        shapes,
        "--mlir",
        MLIR,
    ]
    argv += ["--test_input", TEST, "--test_result", REFERENCE] if test else []
    argv += _excepts(options)
    argv += ["--pixel_format", options.pixel_format] if options.pixel_format else []
    argv += ["--resize_dims", options.resize_dims] if options.resize_dims else []
    argv += ["--keep_aspect_ratio"] if options.keep_aspect_ratio else []
    argv += ["--dynamic"] if options.dynamic else []
    return room.run(argv, MLIR)


def _excepts(options: CviOptions) -> list[str]:
    return ["--excepts", options.excepts] if options.excepts else []


def calibrate(room: Room, count: int) -> Path:
    """Finds the range of every tensor on the samples, and with a search which layers stay in floats."""
    options = room.options
    method = "kl" if options.calibration_method == "anynpu" else options.calibration_method
    argv = ["run_calibration.py", MLIR, "--data_list", LIST, "--input_num", str(count)]
    argv += ["--cali_method", method, "--tune_num", str(min(options.tuning_samples, count))]
    if options.search == "mixed":
        argv += ["--search", "search_qtable", "--expected_cos", f"{options.search_cosine:g}"]
        argv += ["--quantize_table", FORMATS, "--inference_num", str(min(count, 10))]
        argv += ["--quantize_method_list", method, "--processor", room.facts.processor]
    elif options.search == "threshold":
        # Every search insists on a place for a table of formats; this one writes none.
        argv += ["--search", "search_threshold", "--quantize_table", "no_table", "--processor", room.facts.processor]
        argv += ["--inference_num", str(min(count, 10))]
    return room.run([*argv, "-o", RANGES], RANGES)


def deploy(room: Room, borders: Mapping[str, bool], test: bool) -> Path:
    """Compiles the MLIR, compared with the float model on a sample where there is one."""
    options, facts = room.options, room.facts
    argv = ["model_deploy.py", "--mlir", MLIR, "--quantize", options.quantize.upper(), "--processor", facts.processor]
    argv += ["--calibration_table", RANGES] if options.quantize == "int8" else []
    argv += ["--quantize_table", FORMATS] if (room.path / FORMATS).is_file() else []
    # A cosine alone, as the option says: a wrong scale shows in the SQNR that verification measures.
    checked = ["--test_input", TEST, "--test_reference", REFERENCE, "--tolerance", f"{options.tolerance:g},0"]
    argv += checked if test else []
    argv += _excepts(options)
    # It would exchange a library inside its own package to run a bmodel; verification runs every result.
    argv += ["--skip_validation", "--opt", str(options.optimize)]
    argv += [flag for flag, wanted in borders.items() if wanted]
    argv += ["--asymmetric"] if options.asymmetric else []
    argv += ["--dynamic"] if options.dynamic else []
    argv += ["--num_core", str(options.cores)] if options.cores > 1 else []
    return room.run([*argv, "--model", facts.main], facts.main)
