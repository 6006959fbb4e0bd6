"""Small TFLite files made with LiteRT's own schema: one operator or a chain of them, any type and shape."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema


@dataclass
class Builder:
    """Collects tensors and operators; an operator is named by the tensor that it makes."""

    tensors: list[Any] = field(default_factory=list)
    buffers: list[Any] = field(default_factory=lambda: [schema.BufferT()])
    codes: list[Any] = field(default_factory=list)
    operators: list[Any] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)

    def tensor(self, name, shape, dtype="int8", data=None, scale=0.05, zero_point=0) -> int:
        t = schema.TensorT()
        t.name, t.shape, t.type = name, list(shape), getattr(schema.TensorType, dtype.upper())
        t.buffer = 0
        if data is not None:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(data, dtype).tobytes(), np.uint8)
            self.buffers.append(buffer)
            t.buffer = len(self.buffers) - 1
        if scale is not None and dtype != "float32":
            t.quantization = schema.QuantizationParametersT()
            t.quantization.scale, t.quantization.zeroPoint = [scale], [zero_point]
        self.tensors.append(t)
        return len(self.tensors) - 1

    def input(self, shape, dtype="int8", name="input", **quantization) -> int:
        index = self.tensor(name, shape, dtype, **quantization)
        self.inputs.append(index)
        return index

    def operator(self, kind, inputs, outputs, **options) -> int:
        code = schema.OperatorCodeT()
        code.builtinCode = getattr(schema.BuiltinOperator, kind)
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        code.version = 1
        self.codes.append(code)
        op = schema.OperatorT()
        op.opcodeIndex, op.inputs, op.outputs = len(self.codes) - 1, list(inputs), list(outputs)
        if options:
            kind_name = options.pop("options")
            op.builtinOptionsType = getattr(schema.BuiltinOptions, kind_name)
            op.builtinOptions = getattr(schema, kind_name + "T")()
            for key, value in options.items():
                setattr(op.builtinOptions, key, value)
        self.operators.append(op)
        return outputs[0] if outputs else -1

    def write(self, path: Path, outputs=None) -> Path:
        graph = schema.SubGraphT()
        graph.name, graph.tensors, graph.operators = "main", self.tensors, self.operators
        graph.inputs, graph.outputs = self.inputs, list(outputs or self.operators[-1].outputs)
        model = schema.ModelT()
        model.version, model.subgraphs, model.buffers, model.operatorCodes = 3, [graph], self.buffers, self.codes
        out = flatbuffers.Builder(1024)
        out.Finish(model.Pack(out), b"TFL3")
        path.write_bytes(bytes(out.Output()))
        return path

    def write_graphs(self, path: Path, outputs: list[int], others: list[tuple[Builder, list[int]]]) -> Path:
        """Writes a file whose main graph is this one; the other graphs share its buffers and operator codes."""
        model = schema.ModelT()
        model.version, model.subgraphs, model.buffers, model.operatorCodes = 3, [], self.buffers, self.codes
        for builder, results in ((self, outputs), *others):
            graph = schema.SubGraphT()
            graph.name, graph.tensors, graph.operators = "graph", builder.tensors, builder.operators
            graph.inputs, graph.outputs = builder.inputs, results
            model.subgraphs.append(graph)
        out = flatbuffers.Builder(1024)
        out.Finish(model.Pack(out), b"TFL3")
        path.write_bytes(bytes(out.Output()))
        return path

    def graph(self) -> Builder:
        """Returns a builder of another graph of the same file."""
        return Builder(buffers=self.buffers, codes=self.codes)

    def constant(self, name, values, dtype="int32") -> int:
        values = np.asarray(values)
        return self.tensor(name, values.shape, dtype, values, scale=None)

    def unary(self, kind, x, name, shape, dtype="int8") -> int:
        if kind == "SOFTMAX":
            scale, zero_point = (1 / 32768, 0) if dtype == "int16" else (1 / 256, -128)
            out = self.tensor(name, shape, dtype, scale=scale, zero_point=zero_point)
            return self.operator(kind, [x], [out], options="SoftmaxOptions", beta=1.0)
        return self.operator(kind, [x], [self.tensor(name, shape, dtype)])

    def binary(self, kind, a, b, name, shape, dtype="int8") -> int:
        known = {"ADD": "Add", "SUB": "Sub", "MUL": "Mul", "DIV": "Div", "BATCH_MATMUL": "BatchMatMul"}
        options = {"options": known[kind] + "Options"} if kind in known else {}
        return self.operator(kind, [a, b], [self.tensor(name, shape, dtype)], **options)

    def conv(
        self, x, name, shape, channels, kernel=3, stride=1, dtype="int8", padding="SAME", weights=None, relu=False
    ):
        n, h, w, c = shape
        sizes = [-(-s // stride) if padding == "SAME" else (s - kernel) // stride + 1 for s in (h, w)]
        values = np.random.default_rng(0).integers(-20, 20, (channels, kernel, kernel, c))
        filters = self.tensor(
            name + "_w", values.shape, weights or ("float32" if dtype == "float32" else "int8"), values
        )
        bias_type = {"int16": "int64", "float32": "float32"}.get(dtype, "int32")
        bias = self.tensor(name + "_b", [channels], bias_type, np.zeros(channels), scale=0.0025)
        return self.operator(
            "CONV_2D",
            [x, filters, bias],
            [self.tensor(name, [n, *sizes, channels], dtype)],
            options="Conv2DOptions",
            strideW=stride,
            strideH=stride,
            padding=getattr(schema.Padding, padding),
            fusedActivationFunction=schema.ActivationFunctionType.RELU if relu else 0,
        )
