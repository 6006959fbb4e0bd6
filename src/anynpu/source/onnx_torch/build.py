"""Walks an ONNX graph once and records it as a torch.fx graph with parameters, folding shape arithmetic on the way."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import Tensor
from torch.fx import GraphModule, Proxy

from anynpu.errors import ConfigError, Finding, IntegrityError
from anynpu.foreign import ONNX
from anynpu.graph.gelu import fuse
from anynpu.source.onnx_torch.constant import tensor
from anynpu.source.onnx_torch.table import OPERATORS, Node, Refused, Value
from anynpu.source.onnx_torch.types import torch_dtype
from anynpu.source.torch_arrays import to_array

# What a handler raises on a node whose operands do not fit together.
MISFITS = (RuntimeError, ValueError, TypeError, IndexError, KeyError, ArithmeticError, AttributeError)
# A weight stays a weight through these; anything else that is folded becomes a fixed buffer.
KEEPS_WEIGHT = {"Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Cast"}


class Builder:
    """Turns one ONNX graph into one GraphModule; collects a finding for every node that it cannot import."""

    def __init__(self, model: onnx.ModelProto, opset: int) -> None:
        self.model, self.opset = model, opset
        self.graph = torch.fx.Graph()
        self.tracer = torch.fx.proxy.GraphAppendingTracer(self.graph)
        self.values: dict[str, Value] = {}
        self.proxies: dict[str, Proxy] = {}
        self.attributes: dict[str, str] = {}
        self.stored: dict[str, Value] = {}
        self.statistics: set[str] = set()
        self.unknown: set[str] = set()
        self.findings: list[Finding] = []
        self.read = {name for node in model.graph.node for name in node.input}
        self.read.update(output.name for output in model.graph.output)
        self.inferred: dict[str, onnx.ValueInfoProto] | None = None

    def run(self) -> GraphModule | None:
        """Returns the module, or None after recording why there is none in `findings`."""
        for item in self.model.graph.initializer:
            try:
                array = numpy_helper.to_array(item)
            except ONNX as error:
                raise IntegrityError(f"the weights of {item.name!r} cannot be read from the ONNX model") from error
            self._fold(item.name, array, trainable=True)
        self._inputs()
        for node in fuse(self.model.graph):
            self._node(node)
        if self.findings:
            return None
        names = [output.name for output in self.model.graph.output]
        results = [self._proxy(self._known(name)).node for name in names]
        self.graph.output(results[0] if len(results) == 1 else tuple(results))
        self.graph.eliminate_dead_code()
        root = torch.nn.Module()
        for attribute, value in self.stored.items():
            contents = _contents(value)
            # A weight to train is a finite float tensor of the model file that is not a batch statistic.
            trainable = value.trainable and contents.is_floating_point() and contents.numel() > 1
            if trainable and value.name not in self.statistics and bool(torch.isfinite(contents).all()):
                root.register_parameter(attribute, torch.nn.Parameter(contents))
            else:
                root.register_buffer(attribute, contents)
        module = torch.fx.GraphModule(root, self.graph, class_name="ImportedOnnx")
        inputs = [node.target for node in self.graph.nodes if node.op == "placeholder"]
        module.meta["inputs"] = tuple(self.attributes[name] for name in inputs)
        module.meta["outputs"] = tuple(names)
        module.meta["tensors"] = {name: proxy.node.name for name, proxy in self.proxies.items()}
        module.meta["attributes"] = {self.attributes[attribute]: attribute for attribute in self.stored}
        return module.eval()

    def _inputs(self) -> None:
        for item in self.model.graph.input:
            if item.name in self.values or item.name in self.unknown:
                continue
            shape = static_shape(item)
            try:
                value = Value(item.name, shape, torch_dtype(item.type.tensor_type.elem_type))
            except Refused as refusal:
                self._find("Input", item.name, str(refusal))
                self.unknown.add(item.name)
                continue
            self.values[item.name] = value
            self.proxies[item.name] = self._wrap(self.graph.placeholder(self._attribute(item.name)))

    def _node(self, proto: onnx.NodeProto) -> None:
        name = proto.name or next(iter(proto.output), proto.op_type)
        known = proto.domain in ("", "ai.onnx") and proto.op_type in OPERATORS
        if not known:
            domain = f"{proto.domain}." if proto.domain not in ("", "ai.onnx") else ""
            self._find(proto.op_type, name, f"operator {domain}{proto.op_type} is not supported")
        if not known or any(each in self.unknown for each in proto.input):
            self._forget(proto)
            return
        try:
            self._import(proto)
        except Refused as refusal:
            self._find(proto.op_type, name, str(refusal))
            self._forget(proto)
        except MISFITS as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            self._find(proto.op_type, name, f"{proto.op_type} cannot be imported: {reason}")
            self._forget(proto)

    def _import(self, proto: onnx.NodeProto) -> None:
        values = tuple(self._known(name) if name else None for name in proto.input)
        if proto.op_type == "Identity" and values[0] is not None:
            self.values[proto.output[0]] = values[0]
            if values[0].constant is None:
                self.proxies[proto.output[0]] = self.proxies[values[0].name]
            return
        attributes = {item.name: _attribute(item) for item in proto.attribute}
        folds = all(value is None or value.constant is not None for value in values)

        def call(operand: Callable[[Value], Any], constant: Callable[[np.ndarray[Any, Any]], Any]) -> list[Any]:
            node = Node(proto, self.opset, values, constant, attributes)
            operands = [None if value is None else operand(value) for value in values]
            with torch.no_grad():
                result = OPERATORS[proto.op_type](node, *operands)
            return list(result) if isinstance(result, (list, tuple)) else [result]

        def hollow(value: Value) -> Tensor:  # shapes and types alone are asked for
            return torch.empty(value.shape, dtype=value.dtype, device="meta")

        results = call(_contents, tensor) if folds else call(hollow, lambda array: tensor(array).to("meta"))
        if extra := [at for at, name in enumerate(proto.output) if at >= len(results) and name in self.read]:
            raise Refused(f"output {extra[0]} of {proto.op_type} is not supported")
        if not any(result.is_meta for result in results):
            weight = proto.op_type in KEEPS_WEIGHT and values[0] is not None and values[0].trainable
            for name, result in zip(proto.output, results, strict=False):
                self._fold(name, to_array(result), trainable=weight)
            return
        if any(result.numel() == 0 for result in results):
            raise Refused(f"{proto.op_type} gives an empty tensor")
        if proto.op_type == "BatchNormalization":
            self.statistics.update(value.name for value in values[3:5] if value)
        recorded = call(self._proxy, lambda array: self._stored(proto, array)) if not self.findings else results
        for name, result, proxy in zip(proto.output, results, recorded, strict=False):
            self.values[name] = Value(name, tuple(result.shape), result.dtype)
            self.proxies[name] = proxy

    def _known(self, name: str) -> Value:
        if name not in self.values:
            raise IntegrityError(f"the ONNX graph reads the tensor {name!r}, which nothing in it makes")
        return self.values[name]

    def _fold(self, name: str, array: np.ndarray[Any, Any], trainable: bool) -> None:
        try:
            dtype = tensor(array[:0] if array.ndim else array).dtype
        except Refused as refusal:
            self._find("Constant", name, str(refusal))
            self.unknown.add(name)
            return
        self.values[name] = Value(name, tuple(array.shape), dtype, array, trainable)

    def _stored(self, proto: onnx.NodeProto, array: np.ndarray[Any, Any]) -> Proxy:
        name = f"{proto.output[0]}_constant_{len(self.stored)}"
        self._fold(name, array, trainable=False)
        return self._proxy(self.values[name])

    def _proxy(self, value: Value) -> Proxy:
        if value.name not in self.proxies:
            attribute = self._attribute(value.name)
            self.stored[attribute] = value
            # The attribute is attached when the module is made; fx would warn that it is not there yet.
            node = self.graph.create_node("get_attr", attribute)
            self.proxies[value.name] = self._wrap(node)
        return self.proxies[value.name]

    def _wrap(self, node: Any) -> Proxy:
        return torch.fx.Proxy(node, self.tracer)

    def _attribute(self, name: str) -> str:
        """Returns a Python name for a tensor name, different from every other one and from those of nn.Module."""
        base = re.sub(r"\W", "_", name, flags=re.ASCII).strip("_") or "tensor"
        base = f"t{base}" if base[0].isdigit() else base
        candidate, count = base, 1
        while candidate in self.attributes or hasattr(torch.fx.GraphModule, candidate) or candidate == "training":
            count += 1
            candidate = f"{base}_{count}"
        self.attributes[candidate] = name
        return candidate

    def _find(self, op: str, name: str, message: str) -> None:
        self.findings.append(Finding(rule="onnx-operator", message=message, where=name))

    def _forget(self, proto: onnx.NodeProto) -> None:
        """Goes on after a refused node with the shapes that ONNX infers, so that later nodes are checked as well."""
        for name in filter(None, proto.output):
            if self.inferred is None:
                try:
                    graph = onnx.shape_inference.infer_shapes(self.model, data_prop=True).graph
                except ONNX:  # no shapes, no further checks: the refusal itself is what the user reads
                    graph = self.model.graph
                self.inferred = {item.name: item for item in (*graph.value_info, *graph.output)}
            info = self.inferred.get(name)
            try:
                value = Value(name, static_shape(info), torch_dtype(info.type.tensor_type.elem_type)) if info else None
            except (Refused, ConfigError):
                value = None
            if value is None:
                self.unknown.add(name)
            else:
                self.values[name] = value


def static_shape(item: onnx.ValueInfoProto) -> tuple[int, ...]:
    """Returns the shape of an input, which must be given and fixed."""
    kind = item.type.tensor_type
    if not kind.HasField("shape"):
        raise ConfigError(f"input {item.name!r} of the ONNX model has no shape", "give the input shape")
    for dim in kind.shape.dim:
        if not dim.HasField("dim_value") or dim.dim_value <= 0:
            raise ConfigError(
                f"input {item.name!r} of the ONNX model has the dynamic dimension {dim.dim_param or '?'!r}",
                "give a fixed input shape",
            )
    return tuple(dim.dim_value for dim in kind.shape.dim)


def _contents(value: Value) -> Tensor:
    """The contents of a constant as a tensor of its own."""
    return tensor(value.constant if value.constant is not None else np.zeros(0))


def _attribute(item: onnx.AttributeProto) -> Any:
    value = helper.get_attribute_value(item)
    return value.decode() if isinstance(value, bytes) else value
