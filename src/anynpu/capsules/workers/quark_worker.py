"""AMD Quark's side of the Ryzen AI target: quantises an ONNX file on the samples of a .npz file.

Runs in Quark's environment, started by serve.py; of anynpu it knows nothing but the names in its requests.
"""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import serve

TABLE, DRAFT = "ranges.json", "draft.onnx"
CONFIGS = {"xint8": "XINT8", "a8w8": "A8W8", "a16w8": "A16W8", "bf16": "BF16"}


class Samples:
    """Gives the user's samples one at a time, as a CalibrationDataReader does; Quark reads them once and keeps them."""

    def __init__(self, path: str, names: list[str]) -> None:
        with np.load(path, allow_pickle=False) as stored:
            self.arrays = {name: stored["input:" + name] for name in names}
        self.count = min(len(array) for array in self.arrays.values())
        self.at = 0

    def get_next(self) -> dict[str, object] | None:
        """Returns the next sample with its batch axis of one, or None after the last."""
        if self.at >= self.count:
            return None
        self.at += 1
        serve.progress(self.at, self.count)
        return {name: array[self.at - 1 : self.at] for name, array in self.arrays.items()}

    def rewind(self) -> None:
        """Begins again."""
        self.at = 0


def quantise(
    model: str,
    samples: str,
    out: str,
    precision: str,
    method: str,
    cle: bool,
    adaround: int,
    ranges: dict[str, list[float]],
) -> dict[str, object]:
    """Writes the quantised model; `adaround` is the number of steps a layer, 0 for none. Tensors in `ranges` have these
    ranges, all others those that Quark finds."""
    os.environ["TMPDIR"] = str(Path.cwd())  # Quark's temporary models go where the caller clears away
    import onnx
    import quark.onnx  # compiles custom operators the first time
    from onnxruntime.quantization.calibrate import CalibrationMethod
    from quark.onnx.calibration.methods import PowerOfTwoMethod
    from quark.onnx.quantization.config import Config, get_default_config
    from quark.onnx.quantization.config.algorithm import AdaRoundConfig, CLEConfig

    graph = onnx.load(model).graph
    stored = {tensor.name for tensor in graph.initializer}
    names = [value.name for value in graph.input if value.name not in stored]
    reader = Samples(samples, names)
    methods = {
        "min_mse": PowerOfTwoMethod.MinMSE,
        "non_overflow": PowerOfTwoMethod.NonOverflow,
        "min_max": CalibrationMethod.MinMax,
        "percentile": CalibrationMethod.Percentile,
        "entropy": CalibrationMethod.Entropy,
    }

    def quantizer(method: str, table: str = "") -> Any:
        config = get_default_config(CONFIGS[precision])
        config.calibrate_method = methods[method]
        config.include_cle = False  # which it would do of its own: it is asked for below
        if precision == "bf16":
            # Casts are standard operators, and what the compiler for bf16 wants; pairs would need Quark's own library.
            config.extra_options["BF16QDQToCast"] = True
        if table:
            config.extra_options["SaveAndRestore"] = table
        return quark.onnx.ModelQuantizer(Config(global_quant_config=config))

    if ranges:
        # Quark writes its table of ranges where there is none, and reads it where there is one. It has tensors that it
        # put in itself, so that the first is its own.
        quantizer("non_overflow" if precision == "xint8" else "min_max", TABLE).quantize_model(model, DRAFT, reader)
        reader.rewind()
        if Path(TABLE).is_file():  # there is none where Quark finds nothing to quantise
            table = json.loads(Path(TABLE).read_text("utf-8"))
            known = table["tensors_range"]
            known.update((name, ends) for name, ends in ranges.items() if name in known)
            Path(TABLE).write_text(json.dumps(table), "utf-8")
    algorithms: list[Any] = [CLEConfig()] if cle else []
    if adaround:
        batch = min(2, reader.count)
        algorithms.append(AdaRoundConfig(num_iterations=adaround, learning_rate=0.1, batch_size=batch, early_stop=True))
    quantizer(method, TABLE if ranges else "").quantize_model(model, out, reader, algorithms=algorithms)
    return {"samples": reader.count}
