"""The integer twin of the MAX78000 and MAX78002 accelerators, in NumPy.

    acc = sum(x * w) + 128 * bias
    y   = clamp(floor(acc * 2**shift / 128 + 0.5), -128, 127), then the activation; a 32-bit last layer gives acc itself

An artifact of format "ai8x" holds model.json (a `Network`) and weights.npz (weight0, bias0, ...); the C project that
the vendor's tool made from the same integers lies next to them. Data are (channels, rows, columns); a signal has one
column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from anynpu import schema
from anynpu.arrays import read_npz
from anynpu.artifact import Artifact
from anynpu.errors import ConfigError, DeviceError, IntegrityError
from anynpu.tensors import Array

MODEL, WEIGHTS = "model.json", "weights.npz"
INPUT = -1
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Pool:
    """A window over the input of a layer, before its convolution."""

    kind: Literal["max", "average"]
    size: tuple[int, int]
    stride: tuple[int, int]


@dataclass(frozen=True)
class Layer:
    """One layer of the accelerator; `sources` are layers by number, -1 being the input. Two of them are added."""

    name: str
    operation: Literal["conv2d", "conv1d", "linear", "passthrough"]
    sources: tuple[int, ...]
    activation: Literal["none", "relu", "abs"] = "none"
    pool: Pool | None = None
    kernel: tuple[int, int] = (1, 1)
    pad: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    flatten: bool = False
    shift: int = 0
    width: Literal[8, 32] = 8
    bits: Literal[1, 2, 4, 8] = 8


@dataclass(frozen=True)
class Network:
    """All layers in order; the last one gives the output."""

    chip: str
    input: tuple[int, int, int]
    layers: tuple[Layer, ...]
    round_averages: bool = False
    softmax_scale: float = 0.0
    """Where a softmax on the processor follows: what one step of the last layer stands for."""
    schema_version: int = 1


def write_network(folder: Path, network: Network, parameters: Mapping[str, Array]) -> None:
    """Writes model.json and weights.npz."""
    (folder / MODEL).write_text(schema.canonical_json(schema.to_dict(network)) + "\n", "utf-8")
    np.savez(folder / WEIGHTS, **parameters)  # type: ignore[arg-type]  # numpy types the keywords as its own options


def read_network(folder: Path) -> tuple[Network, dict[str, Array]]:
    """Returns what `write_network` wrote, checked."""
    try:
        network = schema.from_dict(Network, schema.read_json(folder / MODEL), str(folder / MODEL))
        parameters = read_npz(folder / WEIGHTS)
    except (ConfigError, IntegrityError) as error:
        raise IntegrityError(error.message) from None
    for number, layer in enumerate(network.layers):
        if layer.operation != "passthrough" and f"weight{number}" not in parameters:
            raise IntegrityError(f"{folder / WEIGHTS}: layer {number} ({layer.name}) has no weights")
        if not layer.sources or not all(INPUT <= source < number for source in layer.sources):
            raise IntegrityError(f"{folder / MODEL}: layer {number} ({layer.name}) reads what is not computed yet")
    return network, parameters


def forward(network: Network, parameters: Mapping[str, Array], stored: Array) -> list[NDArray[np.int64]]:
    """Returns the result of every layer for one input of integers (channels, rows, columns)."""
    data = np.asarray(stored, np.float64).reshape(network.input)
    results: list[Floats] = []
    for number, layer in enumerate(network.layers):
        operands = [data if source == INPUT else results[source] for source in layer.sources]
        rounded = network.round_averages and layer.operation != "conv1d"
        total = sum(
            (_pooled(values, layer.pool, rounded) for values in operands[1:]), _pooled(operands[0], layer.pool, rounded)
        )
        if len(operands) > 1:
            total = np.clip(total, -128, 127)
        results.append(_layer(layer, parameters, number, np.asarray(total)))
    return [result.astype(np.int64) for result in results]


def _layer(layer: Layer, parameters: Mapping[str, Array], number: int, data: Floats) -> Floats:
    if layer.operation == "passthrough":
        return data
    weight = np.asarray(parameters[f"weight{number}"], np.float64)
    bias = parameters.get(f"bias{number}")
    if layer.operation == "linear":
        accumulated = (weight @ data.reshape(-1))[:, None, None]
    else:
        accumulated = convolve(data, weight, layer.pad, layer.dilation, layer.groups)
    if bias is not None:
        accumulated = accumulated + 128.0 * np.asarray(bias, np.float64)[:, None, None]
    if layer.width == 32:
        return accumulated
    result = np.clip(np.floor(accumulated * 2.0 ** (layer.shift - 7) + 0.5), -128, 127)
    if layer.activation == "abs":
        result = np.minimum(np.abs(result), 127)
    return np.asarray(np.maximum(result, 0) if layer.activation == "relu" else result)


def convolve(data: Floats, weight: Floats, pad: tuple[int, int], dilation: tuple[int, int], groups: int = 1) -> Floats:
    """Returns the sums of a convolution with stride one; whole numbers below 2**53 are exact."""
    padded = np.pad(data, ((0, 0), (pad[0], pad[0]), (pad[1], pad[1])))
    outputs, _, rows_, columns_ = weight.shape
    rows = padded.shape[1] - dilation[0] * (rows_ - 1)
    columns = padded.shape[2] - dilation[1] * (columns_ - 1)
    total = np.zeros((outputs, rows * columns))
    for y in range(rows_):
        for x in range(columns_):
            top, left = y * dilation[0], x * dilation[1]
            part = padded[:, top : top + rows, left : left + columns].reshape(len(padded), -1)
            if groups == 1:
                total += weight[:, :, y, x] @ part
            else:
                total += weight[:, :1, y, x] * np.repeat(part, outputs // groups, axis=0)
    return total.reshape(outputs, rows, columns)


def _pooled(data: Floats, pool: Pool | None, rounded: bool) -> Floats:
    if pool is None:
        return data
    windows = sliding_window_view(data, pool.size, axis=(1, 2))[:, :: pool.stride[0], :: pool.stride[1]]
    if pool.kind == "max":
        return np.asarray(windows.max(axis=(3, 4)))
    mean = windows.mean(axis=(3, 4))
    # The hardware drops the fraction unless it is told to round, half away from zero.
    return np.asarray(np.trunc(mean + np.copysign(0.5, mean)) if rounded else np.trunc(mean))


class Ai8xSession:
    """Computes, bit for bit, what the accelerator computes."""

    name = "ai8x"
    formats = ("ai8x",)
    rank = 0
    what = "integer twin of the MAX7800x accelerator on this host"

    def __init__(self, artifact: Artifact) -> None:
        self.inputs, self.outputs = artifact.manifest.inputs, artifact.manifest.outputs
        self._network: Network | None
        self._network, self._parameters = read_network(artifact.path)

    @staticmethod
    def missing() -> str:
        return ""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        if self._network is None:
            raise DeviceError("the session was closed", "run")
        (source,), (wanted,) = self.inputs, self.outputs
        last = forward(self._network, self._parameters, inputs[source.name])[-1]
        if scale := self._network.softmax_scale:
            return {wanted.name: softmax(np.asarray(last * scale, np.float64)).astype(np.float32).reshape(wanted.shape)}
        return {wanted.name: last.astype(wanted.dtype).reshape(wanted.shape)}

    def close(self) -> None:
        self._network = None


def softmax(values: Floats) -> Floats:
    """Returns the softmax over the first axis."""
    raised = np.exp(values - values.max(axis=0))
    return np.asarray(raised / raised.sum(axis=0))
