"""Surveys one model in minutes where a build takes many: lowered, quantised, executed once, compiled, not proven.

    python bench/reach_survey.py FOLDER

FOLDER has model.onnx and data.npz (`bench/reach_models.py` writes them). Prints one JSON object: for each chip the
decibels of one executed sample, the share that Vela puts on the NPU, or the reason why there is none.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from anynpu.errors import AnyNpuError
from anynpu.firmware.generator import findings
from anynpu.graph.simplify import simplify
from anynpu.lowering.functions import ALWAYS, ON_MICRO
from anynpu.lowering.integer_file import quantize_file
from anynpu.lowering.lower import lower
from anynpu.lowering.read import from_bytes
from anynpu.lowering.reals import settled
from anynpu.lowering.write import to_bytes
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.fixed import NOTHING
from anynpu.quantize.plan import QuantPlan
from anynpu.source.load import ModelSource
from anynpu.source.original import read_original
from anynpu.targets.tflite import for_npu

SAMPLES = 6
NPUS = {
    "ethos-u55-256": ("Ethos_U55_High_End_Embedded", "Shared_Sram"),
    "ethos-u85-256": ("Ethos_U85_SYS_DRAM_Mid", "Dedicated_Sram_384KB"),
}
MICRO = """
import sys, numpy as np
from tflite_micro import runtime
model, inputs, outputs = sys.argv[1:]
made = runtime.Interpreter.from_file(model, arena_size=1 << 28)
given = np.load(inputs)
for number in range(len(given.files)):
    made.set_input(given[str(number)], number)
made.invoke()
np.savez(outputs, *(made.get_output(number) for number in range(int(open(inputs + ".count").read()))))
"""


def fixed_inputs(folder: Path) -> dict[str, str]:
    """Returns the inputs that are bound to a value, as `bench/reach_models.py` wrote them."""
    path = folder / "fixed.json"
    return dict(json.loads(path.read_text("utf-8"))) if path.is_file() else {}


def decibels(truth: list[np.ndarray], found: list[np.ndarray]) -> str:
    """Returns the worst ratio of signal to noise of the outputs."""
    worst = 200.0
    for a, b in zip(truth, found, strict=True):
        a, b = np.asarray(a, np.float64).reshape(-1), np.asarray(b, np.float64).reshape(-1)
        noise = float(((a - b) ** 2).sum())
        worst = min(worst, 10 * np.log10(float((a**2).sum()) / noise) if noise else 200.0)
    return f"{worst:.1f} dB"


def quantised(model: onnx.ModelProto, data: dict[str, np.ndarray], folder: Path) -> dict[str, Path]:
    """Returns the quantised file of each chip; those for which it would be the same share one."""
    floating = folder / "float.tflite"
    graph = lower(model)
    floating.write_bytes(to_bytes(graph))
    few = {name: array[:SAMPLES] for name, array in data.items() if name in graph.inputs}
    few = {name: array.astype(np.int32) if array.dtype == np.int64 else array for name, array in few.items()}

    def written(source: Path, name: str, tables: bool = False) -> Path:
        result, plan, given, rules = folder / f"{name}.tflite", QuantPlan(), few, NOTHING
        held = from_bytes(source.read_bytes())
        ranges, wide = settled(graph, held)  # whole numbers are real where an NPU has no others
        plan, rules = replace(plan, wide_tensors=tuple(wide)), replace(rules, ranges=ranges)
        numbers = [each for each in few if held.tensors[each].dtype != str(few[each].dtype)]
        given = {**few, **{each: few[each].astype(np.float32) for each in numbers}}
        quantize_file(source, Dataset(given, None, "survey"), plan, result, tables=tables, fixed=rules)
        return result

    lacks = (ON_MICRO - ALWAYS) & {operator.kind for operator in graph.operators}
    files = {"tflite": written(floating, "model")}
    files["tflm"] = files["cortex-m55"] = written(floating, "micro", True) if lacks else files["tflite"]
    for chip in NPUS:
        files[chip] = files["tflite"]
        if (content := for_npu(floating, chip)) is not None:
            other = folder / f"{chip}.float.tflite"
            other.write_bytes(content)
            files[chip] = written(other, chip)
    return files


def stored(detail: dict, array: np.ndarray) -> np.ndarray:
    scale, zero = detail["quantization"]
    if not scale:
        return array.astype(detail["dtype"])
    limits = np.iinfo(detail["dtype"])
    return np.clip(np.rint(array / scale) + zero, limits.min, limits.max).astype(detail["dtype"])


def real(detail: dict, array: np.ndarray) -> np.ndarray:
    scale, zero = detail["quantization"]
    return (array.astype(np.float64) - zero) * scale if scale else array


class Survey:
    """One model and its first sample."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        self.scratch = scratch
        self.data = dict(np.load(folder / "data.npz"))
        source = ModelSource(str(folder / "model.onnx"), fixed=fixed_inputs(folder))
        self.model = simplify(read_original(source).graph)[0]
        session = onnxruntime.InferenceSession(self.model.SerializeToString(), providers=["CPUExecutionProvider"])
        self.sample = {value.name: self.data[value.name][:1] for value in session.get_inputs()}
        self.names = [value.name for value in session.get_outputs()]
        self.truth = session.run(None, self.sample)

    def on_litert(self, path: Path) -> str:
        """Returns the decibels of one sample on LiteRT's reference kernels."""
        made = self._interpreter(path)
        for detail in made.get_input_details():
            made.set_tensor(detail["index"], self._fed(detail))
        made.invoke()
        details = {detail["name"]: detail for detail in made.get_output_details()}
        found = [real(details[name], made.get_tensor(details[name]["index"])) for name in self.names]
        return decibels(self.truth, found)

    def on_micro(self, path: Path) -> str:
        """Returns the decibels of one sample on TFLite-Micro, which runs apart: it may end its process."""
        made = self._interpreter(path)
        inputs, outputs = self.scratch / "inputs.npz", self.scratch / "outputs.npz"
        details = made.get_output_details()
        np.savez(inputs, **{str(n): self._fed(detail) for n, detail in enumerate(made.get_input_details())})
        Path(f"{inputs}.count").write_text(str(len(details)))
        done = subprocess.run([sys.executable, "-c", MICRO, path, inputs, outputs], capture_output=True, text=True)
        if done.returncode:
            return f"TFLite-Micro does not run it: {(done.stderr.strip().splitlines() or ['no message'])[0]}"
        values = np.load(outputs)
        places = {detail["name"]: number for number, detail in enumerate(details)}
        found = [real(details[places[name]], values[f"arr_{places[name]}"]) for name in self.names]
        return decibels(self.truth, found)

    def on_npu(self, path: Path, chip: str) -> str:
        """Returns the share of operators that Vela puts on the NPU."""
        system, memory = NPUS[chip]
        flags = ["--accelerator-config", chip, "--system-config", system, "--memory-mode", memory]
        flags += ["--config", "Arm/vela.ini", "--output-dir", self.scratch / chip]
        vela = "from ethosu.vela.vela import main; main()"
        done = subprocess.run([sys.executable, "-c", vela, path, *flags], capture_output=True, text=True)
        share = re.search(r"NPU operators = \d+ \(([\d.]+)%\)", done.stdout)
        if share is None:
            return f"Vela: {(done.stderr.strip().splitlines() or ['no answer'])[-1]}"
        first = re.search(r"operator: (\w+)[^\n]*\nReason: ([^\n]*)", done.stdout)
        figure = f"{share[1]} % on the NPU, {self.on_litert(path)}"
        return figure + (f"; {first[1]}: {first[2].strip()}" if first else "")

    def _interpreter(self, path: Path):
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        made = Interpreter(str(path), experimental_op_resolver_type=OpResolverType.BUILTIN_REF)
        made.allocate_tensors()
        return made

    def _fed(self, detail: dict) -> np.ndarray:
        return stored(detail, np.asarray(self.sample[detail["name"]]).reshape(detail["shape"]))


def survey(folder: Path) -> dict[str, str]:
    """Returns what each chip makes of a model."""
    with tempfile.TemporaryDirectory(prefix="anynpu-survey-") as name:
        subject = Survey(folder, Path(name))
        try:
            files = quantised(subject.model, subject.data, Path(name))
        except AnyNpuError as error:
            return dict.fromkeys(("tflite", "tflm", "cortex-m55", *NPUS), str(error))
        lacking = findings(files["cortex-m55"])
        kernels = f"{lacking[0]}" if lacking else "a kernel for each operator"
        chips = {
            "tflite": subject.on_litert(files["tflite"]),
            "tflm": subject.on_micro(files["tflm"]),
            "cortex-m55": kernels,
        }
        return chips | {chip: subject.on_npu(files[chip], chip) for chip in NPUS}


if __name__ == "__main__":
    print(json.dumps(survey(Path(sys.argv[1]))))
