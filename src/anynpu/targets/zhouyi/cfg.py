"""What cixbuild reads: the .cfg file and the calibration samples, in the order of inputs that its parser uses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from anynpu.errors import ConfigError, Finding, Unsupported
from anynpu.measure.samples import SampleSet
from anynpu.targets.zhouyi.options import ZhouyiOptions
from anynpu.tensors import Array, TensorSpec

MODEL, CFG, RESULT = "model.onnx", "build.cfg", "model.cix"
BATCH = 1
# What separates values in the file, starts a comment there, or is filled in by Python's configparser.
NOT_WRITABLE = re.compile(r"[\s,\[\];#%=:]")


def in_parser_order(specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Returns the inputs as the parser orders them, by name; calibration arrays are matched by place alone."""
    return tuple(sorted(specs, key=lambda spec: spec.name))


def write_calibration(folder: Path, samples: SampleSet, specs: Sequence[TensorSpec]) -> str:
    """Writes the samples into `folder` and returns the file's name: .npy for one input, .npz for several."""
    arrays = [_stored(spec, samples.inputs[spec.name]) for spec in in_parser_order(specs)]
    if len(arrays) == 1:
        np.save(folder / "calibration.npy", arrays[0])
        return "calibration.npy"
    named = {f"input{index}": array for index, array in enumerate(arrays)}
    np.savez(folder / "calibration.npz", **named)  # type: ignore[arg-type]  # names are not keywords
    return "calibration.npz"


def _stored(spec: TensorSpec, values: Array) -> Array:
    """Returns [samples, shape without the batch] in a type that the optimizer reads: it has no 64-bit integers."""
    wanted = (len(values), *spec.shape[1:])
    if values.shape != wanted:
        raise ConfigError(f"calibration of {spec.name} has shape {list(values.shape)}, not {list(wanted)}")
    if values.dtype.kind == "f":
        return np.ascontiguousarray(values, np.float32)
    if values.dtype.itemsize <= 4:
        return np.ascontiguousarray(values)
    narrow = values.astype(np.int32)
    if not np.array_equal(narrow, values):
        raise ConfigError(f"calibration of {spec.name} holds integers beyond 32 bits")
    return narrow


def text(name: str, specs: Sequence[TensorSpec], calibration: str, options: ZhouyiOptions) -> str:
    """Returns the .cfg file; all paths in it are relative to the folder that cixbuild works in."""
    ordered = in_parser_order(specs)
    check_names([spec.name for spec in ordered])
    sections: dict[str, Mapping[str, object]] = {
        "Common": {"mode": "build"},
        "Parser": {
            "model_type": "ONNX",
            "model_name": model_name(name),
            "input_model": f"./{MODEL}",
            "input": ",".join(spec.name for spec in ordered),
            "input_shape": ",".join(str(list(spec.shape)) for spec in ordered),
            "output_dir": "./",
        },
        "Optimizer": {
            "dataset": "numpydataset" if len(ordered) == 1 else "numpymultiinputdataset",
            "calibration_data": f"./{calibration}",
            "calibration_batch_size": BATCH,
            "output_dir": "./",
            "quantize_method_for_activation": options.activation_method,
            "quantize_method_for_weight": options.weight_method,
            **precision(options),
        },
        # No output_dir here: "Unknown option".
        "GBuilder": {"target": options.target, "outputs": f"./{RESULT}", "tiling": options.tiling.replace("none", "")},
    }
    lines = [
        line
        for title, rows in sections.items()
        for line in (f"[{title}]", *[f"{key} = {value}" for key, value in rows.items() if value not in (None, "")], "")
    ]
    return "\n".join(lines)


def precision(options: ZhouyiOptions) -> dict[str, str]:
    """Returns the bits of weights, activations and biases, and the nodes that have others or compute in floats."""
    wide = f" & <{{{options.wide_nodes}}}:16>" if options.wide_nodes else ""
    wider = f" & <{{{options.wide_nodes}}}:48>" if options.wide_nodes else ""
    bias = 48 if 16 in (options.weight_bits, options.activation_bits) else 32
    settings = {
        "weight_bits": f"{options.weight_bits}{wide}",
        "activation_bits": f"{options.activation_bits}{wide}",
        "bias_bits": f"{bias}{wider}",
    }
    if options.float_nodes:
        settings["trigger_float_op"] = f"disable & <{{{options.float_nodes}}}:{options.float_type}_preferred!>"
    return settings


def model_name(name: str) -> str:
    """Returns a name that is nothing but letters, digits, - and _: the parser makes file names of it."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_")[:64] or "model"


def check_names(names: Sequence[str]) -> None:
    """Raises Unsupported for an input whose name cannot be written into the .cfg file."""
    findings = [
        Finding("name", "the name has a character that the .cfg file cannot hold", name)
        for name in names
        if NOT_WRITABLE.search(name) or not name
    ]
    if findings:
        raise Unsupported("cixbuild cannot be told the names of these inputs", findings, "rename them in the export")
