"""The Toychip's compiler, and a simulator of the chip.

The chip runs one dense layer after another, each with or without a ReLU, with whole-number weights of up to 8 bits and
one scale a layer. A model file is an .npz archive: `weights0`, `scale0`, `bias0`, `relu0`, `weights1`, ...
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from anynpu.artifact import Artifact, Estimates, Manifest, OperatorPlacement, Placement
from anynpu.errors import ConfigError, DeviceError, Finding, IntegrityError, Unsupported
from anynpu.platform import Platform
from anynpu.source.onnx_file import read
from anynpu.targets.base import Work, option
from anynpu.tensors import Array
from anynpu.tool import version_of

PLAIN = {"transA": 0, "alpha": 1.0, "beta": 1.0}


@dataclass(frozen=True)
class ToyOptions:
    """What the user may choose."""

    bits: int = option(8, "bits of a weight, 2 to 8")

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 8:
            raise ConfigError(f"bits: {self.bits} is not 2 to 8")


@dataclass(frozen=True)
class ToyFacts:
    """What the compiler must know of the chip."""

    max_width: int


@dataclass(frozen=True)
class Layer:
    """One layer of the chip."""

    name: str
    weights: Array
    bias: Array
    relu: bool


class ToyCompiler:
    """Compiles dense nets for the Toychip."""

    name = "toycc"
    accepts = "onnx"
    produces = "toy"
    Options = ToyOptions
    Facts = ToyFacts

    def tools(self) -> Mapping[str, str]:
        return {"anynpu-toychip": version_of("anynpu-toychip")}

    def needs_data(self, options: ToyOptions) -> bool:
        return False

    def check(self, model: Artifact, platform: Platform, options: ToyOptions) -> tuple[Finding, ...]:
        layers, findings = dense_layers(read(model.main))
        limit = platform.facts_as(ToyFacts).max_width
        wide = (layer for layer in layers if max(layer.weights.shape) > limit)
        return (*findings, *(Finding("width", f"a layer is at most {limit} wide.", layer.name) for layer in wide))

    def compile(
        self, model: Artifact, data: Artifact | None, platform: Platform, options: ToyOptions, out: Path, work: Work
    ) -> Manifest:
        if findings := self.check(model, platform, options):
            raise Unsupported(f"the model does not go to {platform.name}", findings)
        layers, _ = dense_layers(read(model.main))
        arrays: dict[str, Array] = {}
        for index, layer in enumerate(layers):
            work.progress(index, len(layers))
            arrays |= {f"{key}{index}": value for key, value in stored(layer, options.bits).items()}
        np.savez(out / "model.npz", **arrays)  # type: ignore[arg-type]  # numpy types the keywords as its own options
        operators = tuple(OperatorPlacement(y.name, "Gemm", "npu", macs=y.weights.size) for y in layers)
        return Manifest(
            format=self.produces,
            main="model.npz",
            inputs=model.manifest.inputs,
            outputs=model.manifest.outputs,
            fingerprint=model.manifest.fingerprint,
            placement=Placement(platform.npu, operators),
            estimates=Estimates("the file's size", flash_bytes=(out / "model.npz").stat().st_size),
        )


def dense_layers(model: onnx.ModelProto) -> tuple[list[Layer], list[Finding]]:
    """Returns the layers of a dense net, and a finding for every operator that is not the next of the chain."""
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    layers: list[Layer] = []
    findings: list[Finding] = []
    last = next(value.name for value in model.graph.input if value.name not in constants)
    for node in model.graph.node:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        turned = bool(attributes.pop("transB", 0))
        plain = all(attributes.get(name, value) == value for name, value in PLAIN.items())
        if node.input[0] != last or not plain:
            findings.append(Finding("chain", f"{node.op_type} is not the next of a chain of plain layers.", node.name))
        elif node.op_type == "Gemm" and len(node.input) == 3 and all(name in constants for name in node.input[1:]):
            weights, bias = (constants[name] for name in node.input[1:])
            layers.append(Layer(node.name, weights.T if turned else weights, bias, False))
        elif node.op_type == "Relu" and layers and not layers[-1].relu:
            layers[-1] = replace(layers[-1], relu=True)
        else:
            findings.append(Finding("operator", f"{node.op_type} is not a dense layer or its ReLU.", node.name))
        last = node.output[0]
    return layers, findings


def stored(layer: Layer, bits: int) -> dict[str, Array]:
    """Returns a layer as the chip keeps it."""
    largest = 2 ** (bits - 1) - 1
    scale = float(np.abs(layer.weights).max()) / largest or 1.0
    weights = np.rint(layer.weights / scale).astype(np.int8)
    return {
        "weights": weights,
        "scale": np.asarray(scale, np.float32),
        "bias": layer.bias.astype(np.float32),
        "relu": np.asarray(layer.relu),
    }


class ToySession:
    """Simulates the Toychip."""

    name = "toysim"
    formats = ("toy",)
    rank = 0
    what = "Toychip simulator"

    def __init__(self, artifact: Artifact) -> None:
        self.inputs = artifact.manifest.inputs
        self.outputs = artifact.manifest.outputs
        try:
            with np.load(artifact.main, allow_pickle=False) as file:
                self._arrays = {name: file[name] for name in file.files}
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise IntegrityError(f"{artifact.main}: not a model for the Toychip ({error})") from error

    @staticmethod
    def missing() -> str:
        return ""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        value = inputs[self.inputs[0].name]
        for index in range(len(self._arrays) // 4):
            weights, scale, bias, relu = (self._arrays[f"{k}{index}"] for k in ("weights", "scale", "bias", "relu"))
            value = value @ weights.astype(np.float32) * scale + bias
            value = np.maximum(value, 0) if relu else value
        if not np.isfinite(value).all():
            raise DeviceError("the Toychip overflows", call="run")
        return {self.outputs[0].name: value.astype(np.float32)}

    def close(self) -> None:
        self._arrays = {}
