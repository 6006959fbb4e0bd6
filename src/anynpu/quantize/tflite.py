"""TFLite emitter: litert-torch converts, our ranges and plan decide, ai-edge-quantizer writes the integers.

Three ways in which ai-edge-quantizer fails in silence are closed here:
its calibration keeps a moving average that clips (it gets our ranges instead); per-channel weights of BATCH_MATMUL give
zeros (that operator is always per tensor); large buffers lie outside the flatbuffer, which TFLite-Micro misreads (they
are written inside).
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anynpu.errors import AnyNpuError, ConfigError, IntegrityError, ToolFailed, ToolMissing
from anynpu.quantize.adequacy import SampleLimits, calibration
from anynpu.quantize.bias import channel_means
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.equalize import ChannelPeaks
from anynpu.quantize.followers import Follower
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.ranges import Progress, Range, collect
from anynpu.quantize.tflite_file import (
    activation_indices,
    border_names,
    float_operators,
    inline_buffers,
    name_tensors,
    operator_counts,
    pack_model,
    read_model,
    read_specs,
)
from anynpu.quantize.tflite_weights import correct_biases, equalizable_pairs, equalize_pair, weighted_inputs
from anynpu.tensors import Array, TensorSpec, by_name, relayout

if TYPE_CHECKING:
    import onnx
    import torch

__all__ = ["convert_float", "convert_module", "in_layout", "inline_buffers", "quantize_file", "read_specs"]

Figures = dict[str, Any]
Writer = Callable[[bytes, Mapping[str, Range], QuantPlan], bytes]
Finder = Callable[[bytes], Mapping[str, Follower]]
SMOOTHING_SAMPLES = 32
"""The loudness of channels around normalisations shows in a few samples."""
Smoother = Callable[[bytes, Callable[[Sequence[str]], ChannelPeaks]], tuple[bytes, dict[str, list[float]]]]


def convert_float(
    onnx_path: Path, out: Path, channels_last_inputs: Sequence[str], channels_last_outputs: Sequence[str]
) -> Figures:
    """Writes the float .tflite of an ONNX file; inputs and outputs keep their names and order.

    The named inputs and outputs take and give (N, ..., C) where ONNX has (N, C, ...).
    """
    import onnx

    from anynpu.source.onnx_torch import import_model

    model = onnx.load(onnx_path)
    stored = {tensor.name for tensor in model.graph.initializer}
    inputs = [_spec(value) for value in model.graph.input if value.name not in stored]
    outputs = [value.name for value in model.graph.output]
    return convert_module(import_model(model), inputs, outputs, out, channels_last_inputs, channels_last_outputs)


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    import onnx

    tensor = value.type.tensor_type
    if not all(dim.HasField("dim_value") for dim in tensor.shape.dim):
        raise ConfigError(f"input {value.name} has dynamic dimensions", "state its shape")
    dtype = str(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)))
    return TensorSpec(value.name, tuple(dim.dim_value for dim in tensor.shape.dim), dtype)


def convert_module(
    module: torch.nn.Module,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[str],
    out: Path,
    channels_last_inputs: Sequence[str] = (),
    channels_last_outputs: Sequence[str] = (),
) -> Figures:
    """Writes the float .tflite of a torch module that takes `inputs` and gives `outputs`, in that order."""
    names = [spec.name for spec in inputs]
    last_inputs, last_outputs = _positions(channels_last_inputs, names), _positions(channels_last_outputs, outputs)
    started = time.perf_counter()
    data = _converted(module, inputs, last_inputs, last_outputs)
    model = read_model(data)
    name_tensors(model, names, outputs)
    out.write_bytes(pack_model(model))
    return {
        "inputs": [[name, int(index)] for name, index in zip(names, model.subgraphs[0].inputs, strict=True)],
        "outputs": [[name, int(index)] for name, index in zip(outputs, model.subgraphs[0].outputs, strict=True)],
        "operators": operator_counts(model),
        "bytes": out.stat().st_size,
        "seconds": {"convert": time.perf_counter() - started},
    }


def _positions(wanted: Sequence[str], names: Sequence[str]) -> list[int]:
    unknown = [name for name in wanted if name not in names]
    if unknown:
        raise ConfigError(f"{unknown[0]} is neither input nor output of the model", "it has " + ", ".join(names))
    return [names.index(name) for name in wanted]


def _converted(
    module: torch.nn.Module, inputs: Sequence[TensorSpec], last_inputs: list[int], last_outputs: list[int]
) -> bytes:
    try:
        import litert_torch
        import torch
    except ImportError as error:
        raise ToolMissing("litert-torch is not installed", "pip install anynpu[build]") from error
    litert_torch.config.show_progress = False  # it prints to stdout, which is for data
    shapes = [_last(spec.shape) if i in last_inputs else spec.shape for i, spec in enumerate(inputs)]
    args = tuple(
        torch.zeros(shape, dtype=getattr(torch, spec.dtype)) for shape, spec in zip(shapes, inputs, strict=True)
    )
    wrapped = litert_torch.to_channel_last_io(module.eval(), args=last_inputs, outputs=last_outputs)
    try:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "float.tflite"
            litert_torch.convert(wrapped.eval(), args).export(str(file))
            return file.read_bytes()
    except AnyNpuError:
        raise
    except Exception as error:  # the converter has no error type of its own
        lines = str(error).splitlines() or [type(error).__name__]
        raise ToolFailed(f"litert-torch cannot convert the model: {lines[0]}", last_lines=lines[-20:]) from error


def _last(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], *shape[2:], shape[1])


def in_layout(data: Dataset, given: Sequence[TensorSpec], wanted: Sequence[TensorSpec]) -> Dataset:
    """Returns the data with the axes of each input moved from the layout of `given` to that of `wanted`."""
    old, new = by_name(given), by_name(wanted)
    moved = {
        name: _whole(relayout(array, old[name].layout, new[name].layout), new[name])
        for name, array in data.inputs.items()
    }
    return Dataset(moved, data.labels, data.origin, data.random)


def _whole(array: Array, spec: TensorSpec) -> Array:
    """Returns integers in the input's type: the converter makes 32 bits of 64 where it only finds indices."""
    if array.dtype.kind not in "iu" or spec.quantization is not None or spec.dtype not in ("int32", "int64"):
        return array
    limits = np.iinfo(spec.dtype)
    if array.size and not limits.min <= array.min() <= array.max() <= limits.max:
        raise ConfigError(f"input {spec.name} became {spec.dtype} in TFLite, the data has values outside of it")
    return array.astype(spec.dtype)


def quantize_file(
    float_path: Path,
    data: Dataset,
    plan: QuantPlan,
    out: Path,
    progress: Progress | None = None,
    write: Writer | None = None,
    followers: Finder | None = None,
    smooth: Smoother | None = None,
    fixed: Mapping[str, Range] | None = None,
) -> Figures:
    """Writes the quantised .tflite of a float one and returns its figures; `data` is in the layout of the file.

    `write` makes the integers of a float file, ranges and plan; by default ai-edge-quantizer does. `followers` finds
    the functions behind the tensors of a float file, by which ranges are chosen; `smooth` changes one so that the
    channels around its normalisations are equally loud. `fixed` are ranges that training ended with: they hold, and the
    weights stay as they are.

    Operators that ai-edge-quantizer leaves in floating point are named in the figures, and the factors of the channels
    that were equalised, by the tensor of the float file: inner values of the two files differ by them. `calibration` is
    what the samples say of their ranges.
    """
    if plan.activations == "uint8":
        raise ConfigError("TFLite has no uint8 activations: its kernels are int8 or int16", "choose int8")
    original = float_path.read_bytes()
    model = read_model(original, str(float_path))
    started, factors = time.perf_counter(), dict[str, list[float]]()
    if plan.activations == "float32":
        return _written(pack_model(model), model, out, plan, data, {})
    _check_inputs(float_path, data)
    # At 16 bits activations lose next to nothing, and one weight scale for all channels would pay for it.
    if plan.equalize and plan.bits == 8 and plan.weights == "per-channel" and fixed is None:
        if smooth is not None:
            content = original
            original, lifted = smooth(content, lambda names: _peaks(content, data, names, SMOOTHING_SAMPLES))
            factors |= lifted
        original = _equalized(original, data, factors)
        model = read_model(original)
    observed = SampleLimits()
    ranges = file_ranges(original, data, plan, progress, followers, observed) | dict(fixed or {})
    if plan.bias_correction and fixed is None:
        means = channel_means(runner(original), data, weighted_inputs(model), ranges, plan)
        correct_biases(model, means, plan.weights == "per-channel", plan.weight_bits)
    calibrated = time.perf_counter()
    content = (write or _named)(pack_model(model), ranges, plan)
    seconds = {"calibrate": calibrated - started, "quantize": time.perf_counter() - calibrated}
    return _written(content, read_model(content), out, plan, data, seconds) | {
        "equalized": factors,
        "calibration": calibration(observed, ranges, data, factors),
    }


def _named(content: bytes, ranges: Mapping[str, Range], plan: QuantPlan) -> bytes:
    """Returns what ai-edge-quantizer makes of a float file, with borders named as there and short names inside."""
    quantised = read_model(_quantized(content, ranges, plan))
    name_tensors(quantised, *border_names(read_model(content)))
    return pack_model(quantised)


def _equalized(content: bytes, data: Dataset, factors: dict[str, list[float]] | None = None) -> bytes:
    """Returns the float model with the channels between its layers made equally loud; `factors` takes by how much."""
    model = read_model(content)
    pairs = equalizable_pairs(model)
    peaks = _peaks(content, data, [pair.tensor for pair in pairs])
    for pair in pairs:
        lifted = equalize_pair(model, pair, peaks.peak(pair.tensor))
        if factors is not None:
            factors[pair.tensor] = lifted.tolist()
    return pack_model(model)


def _peaks(content: bytes, data: Dataset, names: Sequence[str], samples: int | None = None) -> ChannelPeaks:
    """Returns the largest magnitude of each channel of some tensors over the data, or over about this many samples."""
    peaks = ChannelPeaks(dict.fromkeys(names, -1))
    run = runner(content, names) if names else None
    for index in range(0, data.count, max(1, data.count // (samples or data.count))):
        if run is not None:
            peaks.observe(run(data.sample(index)))
    return peaks


def _written(
    content: bytes, model: Any, out: Path, plan: QuantPlan, data: Dataset, seconds: dict[str, float]
) -> Figures:
    out.write_bytes(content)
    operators = operator_counts(model)
    return {
        "plan": plan.to_json(),
        "samples": data.count,
        "random_data": data.random,
        "operators": operators,
        "float_operators": float_operators(model),
        "conversions": operators.get("QUANTIZE", 0) + operators.get("DEQUANTIZE", 0),
        "bytes": len(content),
        "seconds": seconds,
    }


def _check_inputs(path: Path, data: Dataset) -> None:
    inputs, _ = read_specs(path)
    if {spec.name for spec in inputs} != set(data.inputs):
        raise ConfigError(f"the data holds {sorted(data.inputs)}, {path.name} takes {sorted(by_name(inputs))}")
    for spec in inputs:
        got = data.inputs[spec.name].shape[1:]
        if got != spec.shape[1:]:
            raise ConfigError(
                f"input {spec.name} of {path.name} has shape {list(spec.shape[1:])}, the data {list(got)}",
                "the axes seem to be in another order: bring the data into the file's layout"
                if sorted(got) == sorted(spec.shape[1:])
                else "",
            )


def file_ranges(
    content: bytes,
    data: Dataset,
    plan: QuantPlan,
    progress: Progress | None = None,
    followers: Finder | None = None,
    observed: SampleLimits | None = None,
) -> dict[str, Range]:
    """Returns the range of every activation of a float .tflite file over the data."""
    whole = border_names(read_model(content))[1]
    behind = followers(content) if followers is not None else {}
    run, how = runner(content), (plan.method, plan.percentile, plan.bits, plan.symmetric)
    return collect(run, data, *how, progress, whole, behind, observed)


def runner(content: bytes, names: Sequence[str] = ()) -> Callable[[dict[str, Array]], dict[str, Array]]:
    """Returns a function that gives every activation of a float .tflite file for one sample, or those named."""
    tensors = activation_indices(read_model(content))
    if names:
        tensors = {index: name for index, name in tensors.items() if name in names}
    interpreter = _interpreter(content)
    details = {entry["name"]: entry["index"] for entry in interpreter.get_input_details()}

    def run(sample: dict[str, Array]) -> dict[str, Array]:
        for name, array in sample.items():
            interpreter.set_tensor(details[name], np.ascontiguousarray(array))
        interpreter.invoke()
        return {name: interpreter.get_tensor(index) for index, name in tensors.items()}

    return run


def _interpreter(content: bytes) -> Any:
    try:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType
    except ImportError as error:
        raise ToolMissing("ai-edge-litert is not installed", "pip install anynpu[build]") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # keeping all tensors takes memory: it is what we want
            interpreter = Interpreter(
                model_content=content,
                num_threads=1,
                # A delegate keeps inner tensors to itself, and they are what is asked for.
                experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
                experimental_preserve_all_tensors=True,
            )
        interpreter.allocate_tensors()
    except (ValueError, RuntimeError) as error:
        raise IntegrityError(f"LiteRT refuses the float model: {error}") from error
    return interpreter


def _quantized(content: bytes, ranges: Mapping[str, Range], plan: QuantPlan) -> bytes:
    try:
        from ai_edge_quantizer import quantizer as aeq
    except ImportError as error:
        raise ToolMissing("ai-edge-quantizer is not installed", "pip install anynpu[build]") from error
    quantizer = aeq.Quantizer(bytearray(content))
    _write_recipe(quantizer, plan)
    ranks = {tensor.name.decode(): len(tensor.shape) for tensor in read_model(content).subgraphs[0].tensors}
    # One range per tensor, in the tensor's own rank: with fewer axes it refuses constants that are concatenated.
    limits = {
        name: {
            "min": np.full((1,) * max(ranks[name], 1), r.min, np.float32),
            "max": np.full((1,) * max(ranks[name], 1), r.max, np.float32),
        }
        for name, r in ranges.items()
    }
    try:
        result = quantizer.quantize(limits, enable_progress_bar=False, enable_progress_report=False)
    except (ValueError, RuntimeError) as error:
        lines = str(error).splitlines()
        raise ToolFailed(f"ai-edge-quantizer cannot quantise the model: {lines[0]}", last_lines=lines[-20:]) from error
    return bytes(result.quantized_model)


def _write_recipe(quantizer: Any, plan: QuantPlan) -> None:
    from ai_edge_quantizer import algorithm_manager, qtyping

    names, granularity = qtyping.TFLOperationName, qtyping.QuantGranularity
    weights = granularity.CHANNELWISE if plan.weights == "per-channel" else granularity.TENSORWISE
    quantizer.add_static_config(".*", names.ALL_SUPPORTED, plan.bits, 8, weights)
    # Its kernels know one scale only: with one per channel the output is zero, without an error.
    quantizer.add_static_config(".*", names.BATCH_MATMUL, plan.bits, 8, granularity.TENSORWISE)
    for border in (names.INPUT, names.OUTPUT):
        if plan.io == "integer":
            quantizer.add_static_config(".*", border, plan.bits, 8, weights)
        else:
            none = algorithm_manager.AlgorithmName.NO_QUANTIZE
            quantizer.update_quantization_recipe(".*", border, algorithm_key=none)
