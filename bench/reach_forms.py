"""Other forms of an exported ONNX file, as people have them: half precision, quantised, open sizes, weights apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx


def quantised(path: Path, data: dict[str, np.ndarray], dynamic: bool = False, **settings: Any) -> None:
    """Writes the file as ONNX Runtime's own quantiser does, with some of the samples."""
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    ready = path.with_name("ready.onnx")
    quant_pre_process(str(path), str(ready))
    kinds = {"S8": quantization.QuantType.QInt8, "U8": quantization.QuantType.QUInt8}
    kinds |= {"S16": quantization.QuantType.QInt16, "U16": quantization.QuantType.QUInt16}
    given = {key: kinds[value] if isinstance(value, str) else value for key, value in settings.items()}
    if dynamic:
        quantization.quantize_dynamic(str(ready), str(path), **given)
    else:
        form = quantization.QuantFormat.QOperator if given.pop("operators", False) else quantization.QuantFormat.QDQ
        quantization.quantize_static(str(ready), str(path), Samples(data), quant_format=form, **given)
    ready.unlink()


class Samples:
    """Hands eight samples to ONNX Runtime's quantiser, one by one."""

    def __init__(self, data: dict[str, np.ndarray]) -> None:
        self.left = [{name: array[n : n + 1] for name, array in data.items()} for n in range(8)]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self.left.pop() if self.left else None


def halved(path: Path, data: dict[str, np.ndarray], **settings: Any) -> None:
    """Writes the file in float16."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(path), **settings), path)
    if not settings.get("keep_io_types", False):
        for name, array in data.items():
            data[name] = array.astype(np.float16) if array.dtype == np.float32 else array


def apart(path: Path, data: dict[str, np.ndarray]) -> None:
    """Writes the weights into a file of their own."""
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights.bin", size_threshold=0)


def opened(path: Path, data: dict[str, np.ndarray], axes: list[int]) -> None:
    """Takes the sizes of some axes of every input away, as exporters with open sizes do, and all inferred shapes."""
    model = onnx.load(path)
    for value in model.graph.input:
        for axis in axes:
            if axis < len(value.type.tensor_type.shape.dim):
                value.type.tensor_type.shape.dim[axis].dim_param = f"size_{axis}"
    del model.graph.value_info[:]
    for value in model.graph.output:
        for number, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_param = f"{value.name}_{number}"
    onnx.save(model, path)


FORMS: dict[str, Callable[..., None]] = {"quantised": quantised, "halved": halved, "apart": apart, "opened": opened}
"""What an entry of the list may name as its form."""


def shape(path: Path, data: dict[str, np.ndarray], form: dict[str, Any]) -> None:
    """Changes a file into the form that the list names, and the data with it."""
    settings = dict(form)
    FORMS[settings.pop("kind")](path, data, **settings)
