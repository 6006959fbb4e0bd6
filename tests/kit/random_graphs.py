"""Random TFLite graphs of one to four operators, with random shapes, strides, paddings, scales and zero points."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

ACTIVATIONS = (0, 0, 1, 1, 3, 2)


@dataclass(frozen=True)
class Ref:
    """A tensor of the graph under construction."""

    number: int
    shape: tuple[int, ...]
    dtype: str
    scale: float
    zero: int


@dataclass
class Drawer:
    """Draws a graph; every choice comes from one generator."""

    rng: np.random.Generator
    tensors: list[Any] = field(default_factory=list)
    buffers: list[Any] = field(default_factory=lambda: [schema.BufferT()])
    codes: list[Any] = field(default_factory=list)
    operators: list[Any] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)

    # -- choices
    def int(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high, endpoint=True))

    def pick(self, choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def scale(self) -> float:
        return float(np.float32(np.exp(self.rng.normal(-3.0, 1.2))))

    def zero(self, dtype: str = "int8") -> int:
        if dtype != "int8":
            return 0
        return self.pick((-128, 0, 127)) if self.chance(0.3) else self.int(-128, 127)

    def shape4(self, low: int = 1) -> tuple[int, ...]:
        return (self.pick((1, 1, 1, 2)), self.int(low, 9), self.int(low, 9), self.int(1, 11))

    def shape(self, most: int = 4) -> tuple[int, ...]:
        return tuple(self.int(1, 6) for _ in range(self.int(1, most)))

    # -- parts
    def tensor(self, shape: Any, dtype: str, scale: Any = None, zero: Any = 0, data: Any = None, axis: int = 0) -> int:
        t = schema.TensorT()
        t.name, t.shape, t.type = f"t{len(self.tensors)}", list(shape), getattr(schema.TensorType, dtype.upper())
        t.buffer = 0
        if data is not None:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(data, dtype).tobytes(), np.uint8)
            self.buffers.append(buffer)
            t.buffer = len(self.buffers) - 1
        if scale is not None:
            q = schema.QuantizationParametersT()
            q.scale = [float(s) for s in np.atleast_1d(scale)]
            q.zeroPoint = [int(z) for z in np.atleast_1d(zero)] * (len(q.scale) if np.ndim(zero) == 0 else 1)
            q.quantizedDimension = axis
            t.quantization = q
        self.tensors.append(t)
        return len(self.tensors) - 1

    def new(self, shape: Any, dtype: str = "int8", scale: float | None = None, zero: int | None = None) -> Ref:
        scale = self.scale() if scale is None else float(np.float32(scale))
        zero = self.zero(dtype) if zero is None else zero
        return Ref(self.tensor(shape, dtype, scale, zero), tuple(shape), dtype, scale, zero)

    def like(self, ref: Ref, shape: Any = None) -> Ref:
        return self.new(ref.shape if shape is None else shape, ref.dtype, ref.scale, ref.zero)

    def input(self, shape: Any, dtype: str = "int8", scale: float | None = None, zero: int | None = None) -> Ref:
        ref = self.new(shape, dtype, scale, zero)
        self.inputs.append(ref.number)
        return ref

    def ints(self, values: Any, dtype: str = "int32") -> int:
        values = np.asarray(values)
        return self.tensor(values.shape, dtype, data=values)

    def operator(self, kind: str, inputs: Any, outputs: Any, options: str = "", **settings: Any) -> None:
        code = schema.OperatorCodeT()
        code.builtinCode = getattr(schema.BuiltinOperator, kind)
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        code.version = 1
        self.codes.append(code)
        op = schema.OperatorT()
        op.opcodeIndex, op.inputs, op.outputs = len(self.codes) - 1, list(inputs), list(outputs)
        if options:
            op.builtinOptionsType = getattr(schema.BuiltinOptions, options)
            op.builtinOptions = getattr(schema, options + "T")()
            for key, value in settings.items():
                setattr(op.builtinOptions, key, value)
        self.operators.append(op)
        self.kinds.append(kind)

    def write(self, path: Path) -> Path:
        used = {n for op in self.operators for n in op.inputs}
        made = [n for op in self.operators for n in op.outputs]
        graph = schema.SubGraphT()
        graph.name, graph.tensors, graph.operators = "main", self.tensors, self.operators
        graph.inputs, graph.outputs = self.inputs, [n for n in made if n not in used]
        model = schema.ModelT()
        model.version, model.subgraphs, model.buffers, model.operatorCodes = 3, [graph], self.buffers, self.codes
        out = flatbuffers.Builder(1024)
        out.Finish(model.Pack(out), b"TFL3")
        path.write_bytes(bytes(out.Output()))
        return path

    # -- convolutions
    def window(self, x: Ref, kernel: tuple[int, int], strides: tuple[int, int], steps: tuple[int, int]) -> Any:
        """Returns (padding, out height, out width); SAME where the window does not fit."""
        effective = [(k - 1) * s + 1 for k, s in zip(kernel, steps, strict=True)]
        fits = all(e <= n for e, n in zip(effective, x.shape[1:3], strict=True))
        if not fits or self.chance(0.5):
            return 0, *(-(-n // s) for n, s in zip(x.shape[1:3], strides, strict=True))
        return 1, *((n - e) // s + 1 for n, e, s in zip(x.shape[1:3], effective, strides, strict=True))

    def filters(self, x: Ref, shape: tuple[int, ...], count: int, axis: int) -> tuple[int, list[float], Any]:
        weights = self.rng.integers(-127, 127, shape, endpoint=True)
        scales = [self.scale() / 20 for _ in range(count if self.chance(0.7) else 1)]
        if len(scales) > 1 and self.chance(0.2):
            scales[0] *= 1e-9
        if self.chance(0.15):
            place = [slice(None)] * len(shape)
            place[axis] = self.int(0, count - 1)
            weights[tuple(place)] = 0
        scales = [float(np.float32(s)) for s in scales]
        return self.tensor(shape, "int8", scales, 0, weights, axis), scales, weights

    def bias(self, x: Ref, scales: list[float], count: int, taps: int) -> int:
        if self.chance(0.15):
            return -1
        reach = int(100 * 60 * math.sqrt(taps)) + 1
        data = self.rng.integers(-reach, reach, count)
        if self.chance(0.1):
            data[0] = self.pick((1 << 30, -(1 << 30)))
        dtype = "int32"
        if x.dtype == "int16":
            dtype = self.pick(("int64", "int64", "int32"))
        return self.tensor((count,), dtype, [x.scale * s for s in scales], 0, data)

    def out_scale(self, x: Ref, scales: list[float], taps: int) -> float:
        spread = x.scale * max(scales) * math.sqrt(taps) * 70
        top = 32767 if x.dtype == "int16" else 127
        spread *= 15000 if x.dtype == "int16" else 70
        return float(np.float32(spread / top * math.exp(self.rng.normal(0.5, 1.0))))

    def conv(self, x: Ref) -> Ref:
        kernel, strides = (self.int(1, 4), self.int(1, 4)), (self.int(1, 3), self.int(1, 3))
        if self.chance(0.3):
            kernel, strides = (1, 1), (1, 1)
        steps = (self.int(1, 2), self.int(1, 2)) if strides == (1, 1) and self.chance(0.3) else (1, 1)
        padding, height, width = self.window(x, kernel, strides, steps)
        groups = self.pick([g for g in (1, 1, 1, 1, 2, 3) if x.shape[3] % g == 0])
        count = groups * self.int(1, 9)
        depth = x.shape[3] // groups
        taps = kernel[0] * kernel[1] * depth
        w, scales, _ = self.filters(x, (count, *kernel, depth), count, 0)
        b = self.bias(x, scales, count, taps)
        out = self.new((x.shape[0], height, width, count), x.dtype, self.out_scale(x, scales, taps))
        given = [x.number, w] + ([b] if b >= 0 else [])
        self.operator(
            "CONV_2D",
            given,
            [out.number],
            "Conv2DOptions",
            padding=padding,
            strideH=strides[0],
            strideW=strides[1],
            dilationHFactor=steps[0],
            dilationWFactor=steps[1],
            fusedActivationFunction=self.pick(ACTIVATIONS),
        )
        return out

    def depthwise(self, x: Ref) -> Ref:
        kernel, strides = (self.int(1, 4), self.int(1, 4)), (self.int(1, 3),) * 2
        steps = (self.int(1, 2), self.int(1, 2)) if strides == (1, 1) and self.chance(0.3) else (1, 1)
        padding, height, width = self.window(x, kernel, strides, steps)
        multiplier = self.pick((1, 1, 1, 2, 3))
        count = x.shape[3] * multiplier
        taps = kernel[0] * kernel[1]
        w, scales, _ = self.filters(x, (1, *kernel, count), count, 3)
        b = self.bias(x, scales, count, taps)
        if x.dtype == "int16" and (b < 0 or self.tensors[b].type != schema.TensorType.INT64):
            b = self.tensor((count,), "int64", [x.scale * s for s in scales], 0, self.rng.integers(-9999, 9999, count))
        out = self.new((x.shape[0], height, width, count), x.dtype, self.out_scale(x, scales, taps))
        given = [x.number, w] + ([b] if b >= 0 else [])
        self.operator(
            "DEPTHWISE_CONV_2D",
            given,
            [out.number],
            "DepthwiseConv2DOptions",
            padding=padding,
            strideH=strides[0],
            strideW=strides[1],
            dilationHFactor=steps[0],
            dilationWFactor=steps[1],
            depthMultiplier=multiplier,
            fusedActivationFunction=self.pick(ACTIVATIONS),
        )
        return out

    def dense(self, x: Ref) -> Ref:
        length = x.shape[-1]
        count = self.int(1, 13)
        w, scales, _ = self.filters(x, (count, length), count, 0)
        b = self.bias(x, scales, count, length)
        keep = len(x.shape) > 1 and self.chance(0.5)
        rows = math.prod(x.shape) // length
        out = self.new((*x.shape[:-1], count) if keep else (rows, count), x.dtype, self.out_scale(x, scales, length))
        self.operator(
            "FULLY_CONNECTED",
            [x.number, w, b],
            [out.number],
            "FullyConnectedOptions",
            keepNumDims=keep,
            fusedActivationFunction=self.pick(ACTIVATIONS),
        )
        return out

    def transpose_conv(self, x: Ref) -> Ref:
        kernel, strides = (self.int(1, 4), self.int(1, 4)), (self.int(1, 3), self.int(1, 3))
        same = self.chance(0.5)
        sizes = [n * s if same else (n - 1) * s + k for n, s, k in zip(x.shape[1:3], strides, kernel, strict=True)]
        count = self.int(1, 6)
        w, scales, _ = self.filters(x, (count, *kernel, x.shape[3]), count, 0)
        taps = kernel[0] * kernel[1] * x.shape[3]
        b = self.bias(x, scales, count, taps)
        shape = (x.shape[0], *sizes, count)
        out = self.new(shape, x.dtype, self.out_scale(x, scales, taps))
        given = [self.ints(shape), w, x.number] + ([b] if b >= 0 else [])
        self.operator(
            "TRANSPOSE_CONV",
            given,
            [out.number],
            "TransposeConvOptions",
            padding=0 if same else 1,
            strideH=strides[0],
            strideW=strides[1],
            fusedActivationFunction=self.pick(ACTIVATIONS),
        )
        return out

    def batch_matmul(self, x: Ref) -> Ref:
        adj_x, adj_y = self.chance(0.3), self.chance(0.5)
        rows, depth = x.shape[-2:][::-1] if adj_x else x.shape[-2:]
        columns = self.int(1, 7)
        batch = tuple(1 if self.chance(0.3) else n for n in x.shape[:-2])
        other = (*batch, columns, depth) if adj_y else (*batch, depth, columns)
        y = self.second(other, x.dtype)
        spread = x.scale * y.scale * math.sqrt(depth) * self.pick((30, 90))
        out = self.new((*x.shape[:-2], rows, columns), x.dtype, spread * (1 if x.dtype == "int8" else 200))
        self.operator("BATCH_MATMUL", [x.number, y.number], [out.number], "BatchMatMulOptions", adjX=adj_x, adjY=adj_y)
        return out

    # -- element by element
    def second(self, shape: tuple[int, ...], dtype: str, like: Ref | None = None) -> Ref:
        """Returns another operand: a constant, or an input of its own."""
        scale, zero = (like.scale, like.zero) if like else (self.scale(), self.zero(dtype))
        if self.chance(0.4):
            return self.input(shape, dtype, scale, zero)
        limits = np.iinfo(dtype)
        data = self.rng.integers(limits.min, limits.max, shape, endpoint=True)
        return Ref(self.tensor(shape, dtype, scale, zero, data), shape, dtype, scale, zero)

    def binary(self, x: Ref, kind: str) -> Ref:
        shape = tuple(1 if self.chance(0.35) else n for n in x.shape)
        if self.chance(0.3):
            shape = shape[self.int(0, len(shape) - 1) :]
        if self.chance(0.4):
            shape = x.shape
        y = self.second(shape, x.dtype, like=x if kind in ("MAXIMUM", "MINIMUM") else None)
        spread = {"MUL": 127 * x.scale * y.scale, "SQUARED_DIFFERENCE": 120 * max(x.scale, y.scale) ** 2}
        if x.dtype == "int16":
            spread = {"MUL": 32767 * x.scale * y.scale, "SQUARED_DIFFERENCE": 32767 * max(x.scale, y.scale) ** 2}
        size = spread.get(kind, max(x.scale, y.scale)) * math.exp(self.rng.normal(0.3, 0.7))
        out = self.like(x) if kind in ("MAXIMUM", "MINIMUM") else self.new(x.shape, x.dtype, size)
        options = {"ADD": "AddOptions", "SUB": "SubOptions", "MUL": "MulOptions"}.get(kind, "")
        settings = {"fusedActivationFunction": self.pick(ACTIVATIONS)} if options else {}
        given = [x.number, y.number] if self.chance(0.7) or kind == "PRELU" else [y.number, x.number]
        self.operator(kind, given, [out.number], options, **settings)
        return out

    def prelu(self, x: Ref) -> Ref:
        shape = (*(1 for _ in x.shape[:-1]), x.shape[-1]) if self.chance(0.8) else x.shape
        limits = np.iinfo("int8")
        data = self.rng.integers(limits.min, limits.max, shape, endpoint=True)
        scale, zero = self.scale(), self.zero()
        alpha = self.tensor(shape, "int8", scale, zero, data)
        out = self.new(x.shape, "int8", x.scale * math.exp(self.rng.normal(0.3, 0.7)))
        self.operator("PRELU", [x.number, alpha], [out.number])
        return out

    def unary(self, x: Ref, kind: str) -> Ref:
        match kind:
            case "LOGISTIC":
                out = self.new(x.shape, "int8", 1 / 256, -128)
            case "TANH":
                out = self.new(x.shape, "int8", 1 / 128, 0)
            case "RELU6":
                out = self.like(x)
            case "HARD_SWISH":
                out = self.new(x.shape, "int8", x.scale * self.rng.uniform(0.5, 2))
            case _:
                out = self.new(x.shape, x.dtype, x.scale * math.exp(self.rng.normal(0, 0.8)))
        if kind == "LEAKY_RELU":
            self.operator(kind, [x.number], [out.number], "LeakyReluOptions", alpha=float(self.rng.normal(0.1, 0.4)))
        else:
            self.operator(kind, [x.number], [out.number])
        return out

    def softmax(self, x: Ref) -> Ref:
        scale, zero = (1 / 32768, 0) if x.dtype == "int16" else (1 / 256, -128)
        out = self.new(x.shape, x.dtype, scale, zero)
        beta = self.pick((1.0, 1.0, 0.5, 2.0))
        self.operator("SOFTMAX", [x.number], [out.number], "SoftmaxOptions", beta=beta)
        return out

    def quantize(self, x: Ref) -> Ref:
        target = self.pick(("int8", "int8", "int16"))
        factor = math.exp(self.rng.normal(0, 1)) * {("int8", "int16"): 1 / 256, ("int16", "int8"): 256}.get(
            (x.dtype, target), 1
        )
        out = self.new(x.shape, target, x.scale * factor)
        self.operator("QUANTIZE", [x.number], [out.number])
        return out

    def dequantize(self, x: Ref) -> Ref:
        number = self.tensor(x.shape, "float32")
        self.operator("DEQUANTIZE", [x.number], [number])
        back = self.new(x.shape, x.dtype)
        self.operator("QUANTIZE", [number], [back.number])
        return back

    # -- pools and reductions
    def pool(self, x: Ref, kind: str) -> Ref:
        kernel, strides = (self.int(1, 5), self.int(1, 5)), (self.int(1, 3), self.int(1, 3))
        padding, height, width = self.window(x, kernel, strides, (1, 1))
        out = self.like(x, (x.shape[0], height, width, x.shape[3]))
        self.operator(
            kind,
            [x.number],
            [out.number],
            "Pool2DOptions",
            padding=padding,
            strideH=strides[0],
            strideW=strides[1],
            filterHeight=kernel[0],
            filterWidth=kernel[1],
            fusedActivationFunction=self.pick(ACTIVATIONS),
        )
        return out

    def reduce(self, x: Ref, kind: str) -> Ref:
        rank = len(x.shape)
        axes = sorted(self.rng.choice(rank, self.int(1, rank), replace=False).tolist())
        if rank == 4 and self.chance(0.4):
            axes = [1, 2]
        keep = self.chance(0.5) or len(axes) == rank
        shape = [1 if a in axes else n for a, n in enumerate(x.shape) if keep or a not in axes]
        count = math.prod(x.shape[a] for a in axes)
        size = x.scale * (math.sqrt(count) if kind == "SUM" else 1) * math.exp(self.rng.normal(0, 0.5))
        out = self.like(x, shape) if kind.startswith("REDUCE") else self.new(shape, x.dtype, size)
        given = [a - rank if self.chance(0.3) else a for a in axes]
        self.operator(kind, [x.number, self.ints(given)], [out.number], "ReducerOptions", keepDims=keep)
        return out

    def arg_max(self, x: Ref) -> None:
        axis = self.int(0, len(x.shape) - 1)
        shape = [n for a, n in enumerate(x.shape) if a != axis]
        out = self.tensor(shape, "int32")
        kind, options = self.pick((("ARG_MAX", "ArgMaxOptions"), ("ARG_MIN", "ArgMinOptions")))
        self.operator(kind, [x.number, self.ints([axis])], [out], options, outputType=schema.TensorType.INT32)

    # -- movement
    def reshape(self, x: Ref) -> Ref:
        count = math.prod(x.shape)
        first = self.pick([d for d in range(1, count + 1) if count % d == 0])
        out = self.like(x, (first, count // first))
        self.operator(
            "RESHAPE", [x.number, self.ints(out.shape)], [out.number], "ReshapeOptions", newShape=list(out.shape)
        )
        return out

    def squeeze(self, x: Ref) -> Ref:
        axes = [a for a, n in enumerate(x.shape) if n == 1 and self.chance(0.8)]
        if not axes or len(axes) == len(x.shape):
            return self.expand(x)
        out = self.like(x, [n for a, n in enumerate(x.shape) if a not in axes])
        self.operator("SQUEEZE", [x.number], [out.number], "SqueezeOptions", squeezeDims=axes)
        return out

    def expand(self, x: Ref) -> Ref:
        if len(x.shape) > 3:
            return self.reshape(x)
        axis = self.int(0, len(x.shape))
        out = self.like(x, (*x.shape[:axis], 1, *x.shape[axis:]))
        self.operator("EXPAND_DIMS", [x.number, self.ints([axis])], [out.number], "ExpandDimsOptions")
        return out

    def pad(self, x: Ref) -> Ref:
        pads = [[self.int(0, 2), self.int(0, 2)] for _ in x.shape]
        if self.chance(0.5) and len(x.shape) == 4:
            pads[0] = pads[3] = [0, 0]
        out = self.like(x, [n + a + b for n, (a, b) in zip(x.shape, pads, strict=True)])
        given = [x.number, self.ints(pads)]
        symmetric = self.chance(0.5)
        fits = all(max(both) <= n - (not symmetric) for n, both in zip(x.shape, pads, strict=True))
        if fits and x.dtype == "int8" and self.chance(0.4):
            self.operator("MIRROR_PAD", given, [out.number], "MirrorPadOptions", mode=int(symmetric))
        elif self.chance(0.4) and x.dtype == "int8":
            given.append(self.tensor((1,), "int8", x.scale, x.zero, [self.int(-128, 127)]))
            self.operator("PADV2", given, [out.number], "PadV2Options")
        else:
            self.operator("PAD", given, [out.number], "PadOptions")
        return out

    def concatenation(self, x: Ref) -> Ref:
        axis = self.int(0, len(x.shape) - 1)
        parts = [x]
        for _ in range(self.int(1, 3)):
            shape = (*x.shape[:axis], self.int(1, 4), *x.shape[axis + 1 :])
            parts.append(self.second(shape, x.dtype, like=x))
        if self.chance(0.3):
            parts.append(x)
        size = sum(p.shape[axis] for p in parts)
        out = self.like(x, (*x.shape[:axis], size, *x.shape[axis + 1 :]))
        axis -= len(x.shape) if self.chance(0.3) else 0
        self.operator("CONCATENATION", [p.number for p in parts], [out.number], "ConcatenationOptions", axis=axis)
        return out

    def split(self, x: Ref) -> Ref:
        choices = [(a, k) for a, n in enumerate(x.shape) for k in (2, 3) if n % k == 0]
        if not choices:
            return self.split_v(x)
        axis, count = self.pick(choices)
        shape = (*x.shape[:axis], x.shape[axis] // count, *x.shape[axis + 1 :])
        outs = [self.like(x, shape) for _ in range(count)]
        numbers = [o.number for o in outs]
        self.operator("SPLIT", [self.ints([axis]), x.number], numbers, "SplitOptions", numSplits=count)
        return self.pick(outs)

    def split_v(self, x: Ref) -> Ref:
        axis = int(np.argmax(x.shape))
        if x.shape[axis] < 2:
            return self.reshape(x)
        first = self.int(1, x.shape[axis] - 1)
        sizes = [first, x.shape[axis] - first]
        outs = [self.like(x, (*x.shape[:axis], s, *x.shape[axis + 1 :])) for s in sizes]
        given = [x.number, self.ints(sizes), self.ints([axis])]
        self.operator("SPLIT_V", given, [o.number for o in outs], "SplitVOptions", numSplits=2)
        return self.pick(outs)

    def slice(self, x: Ref) -> Ref:
        begin = [self.int(0, n - 1) for n in x.shape]
        size = [self.int(1, n - b) for n, b in zip(x.shape, begin, strict=True)]
        out = self.like(x, size)
        given = [-1 if self.chance(0.2) and b + s == n else s for n, b, s in zip(x.shape, begin, size, strict=True)]
        self.operator("SLICE", [x.number, self.ints(begin), self.ints(given)], [out.number], "SliceOptions")
        return out

    def strided_slice(self, x: Ref) -> Ref:
        begin, end, step, shape = [], [], [], []
        begin_mask = end_mask = shrink = 0
        for axis, n in enumerate(x.shape):
            backward = self.chance(0.25)
            s = -self.int(1, 2) if backward else self.int(1, 3)
            a = self.int(0, n - 1)
            b = self.int(-1, a - 1) if backward else self.int(a + 1, n)
            if self.chance(0.2):
                begin_mask |= 1 << axis
                a = n - 1 if backward else 0
            if self.chance(0.2) or b < 0:
                end_mask |= 1 << axis
                b = -1 if backward else n
            size = len(range(a, b, s))
            if size == 0:
                a, b, s, size = 0, n, 1, n
                begin_mask |= 1 << axis
                end_mask |= 1 << axis
            if self.chance(0.15) and len(shape) + len(x.shape) - axis > 1 and not begin_mask >> axis & 1:
                shrink |= 1 << axis
                s = 1
            else:
                shape.append(size)
            begin.append(a - n if self.chance(0.2) else a)
            end.append(b if b >= 0 else 0)
            step.append(s)
        out = self.like(x, shape or (1,))
        self.operator(
            "STRIDED_SLICE",
            [x.number, self.ints(begin), self.ints(end), self.ints(step)],
            [out.number],
            "StridedSliceOptions",
            beginMask=begin_mask,
            endMask=end_mask,
            shrinkAxisMask=shrink,
        )
        return out

    def transpose(self, x: Ref) -> Ref:
        order = self.rng.permutation(len(x.shape)).tolist()
        out = self.like(x, [x.shape[a] for a in order])
        self.operator("TRANSPOSE", [x.number, self.ints(order)], [out.number], "TransposeOptions")
        return out

    def pack(self, x: Ref) -> Ref:
        axis = self.int(0, len(x.shape))
        parts = [x, *(self.second(x.shape, x.dtype, like=x) for _ in range(self.int(0, 2)))]
        out = self.like(x, (*x.shape[:axis], len(parts), *x.shape[axis:]))
        numbers = [p.number for p in parts]
        self.operator("PACK", numbers, [out.number], "PackOptions", axis=axis, valuesCount=len(parts))
        return out

    def unpack(self, x: Ref) -> Ref:
        axis = self.int(0, len(x.shape) - 1)
        outs = [self.like(x, (*x.shape[:axis], *x.shape[axis + 1 :])) for _ in range(x.shape[axis])]
        self.operator("UNPACK", [x.number], [o.number for o in outs], "UnpackOptions", axis=axis, num=len(outs))
        return self.pick(outs)

    def depth_space(self, x: Ref) -> Ref:
        n, h, w, c = x.shape
        if c % 4 == 0 and self.chance(0.5):
            out = self.like(x, (n, h * 2, w * 2, c // 4))
            self.operator("DEPTH_TO_SPACE", [x.number], [out.number], "DepthToSpaceOptions", blockSize=2)
        elif h % 2 == 0 and w % 2 == 0:
            out = self.like(x, (n, h // 2, w // 2, c * 4))
            self.operator("SPACE_TO_DEPTH", [x.number], [out.number], "SpaceToDepthOptions", blockSize=2)
        else:
            return self.transpose(x)
        return out

    def resize(self, x: Ref, kind: str) -> Ref:
        size = [self.int(1, 14), self.int(1, 14)]
        align, half = self.pick(((False, False), (True, False), (False, True)))
        options = {"RESIZE_BILINEAR": "ResizeBilinearOptions"}.get(kind, "ResizeNearestNeighborOptions")
        out = self.like(x, (x.shape[0], *size, x.shape[3]))
        given = [x.number, self.ints(size)]
        self.operator(kind, given, [out.number], options, alignCorners=align, halfPixelCenters=half)
        return out

    def gather(self, x: Ref) -> Ref:
        axis = self.int(0, len(x.shape) - 1)
        indices = self.rng.integers(0, x.shape[axis], self.int(1, 5))
        out = self.like(x, (*x.shape[:axis], len(indices), *x.shape[axis + 1 :]))
        self.operator("GATHER", [x.number, self.ints(indices)], [out.number], "GatherOptions", axis=axis)
        return out

    def broadcast(self, x: Ref) -> Ref:
        """Repeats the axes of one element, and new ones in front."""
        inner = [size if size > 1 else self.int(1, 5) for size in x.shape]
        out = self.like(x, (*(self.int(1, 3) for _ in range(max(0, 4 - len(inner)))), *inner))
        self.operator("BROADCAST_TO", [x.number, self.ints(list(out.shape))], [out.number])
        return out

    def table(self, x: Ref) -> Ref:
        """Reads a table of 256 entries, as the lowering writes a function that has no kernel."""
        number, place = self.tensor(x.shape, "int32"), self.tensor(x.shape, "int32")
        self.operator("CAST", [x.number], [number], "CastOptions", inDataType=9, outDataType=2)
        self.operator("ADD", [number, self.ints(128)], [place], "AddOptions")
        out = self.new(x.shape)
        entries = self.tensor((256,), "int8", out.scale, out.zero, data=self.rng.integers(-128, 128, 256))
        self.operator("GATHER", [entries, place], [out.number], "GatherOptions", axis=0)
        return out

    def logic(self, x: Ref) -> None:
        """Compares whole numbers, computes with them and chooses by the truth."""
        shape, small = x.shape, [1 if self.chance(0.3) else size for size in x.shape]

        def emit(kind: str, inputs: Any, dtype: str, options: str = "") -> int:
            out = self.tensor(shape, dtype)
            self.operator(kind, inputs, [out], options)
            return out

        kinds = ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")
        numbers = self.ints(self.rng.choice([-(2**31), -3, -1, 0, 1, 2, 2**31 - 1], small))
        sides = [emit(self.pick(kinds), [x.number, numbers], "bool") for _ in range(2)]
        both = emit(self.pick(("LOGICAL_AND", "LOGICAL_OR")), sides, "bool")
        neither = emit("LOGICAL_NOT", [both], "bool")
        count = emit("CAST", [neither], "int32", "CastOptions")
        real = emit("CAST", [self.pick((both, x.number))], "float32", "CastOptions")
        whole = emit("ADD", [x.number, count], "int32", "AddOptions")
        whole = emit(self.pick(("MAXIMUM", "MINIMUM")), [whole, numbers], "int32")
        whole = emit("SUB", [numbers, whole], "int32", "SubOptions")
        divisors = self.ints(self.rng.choice([-(2**31), -7, 1, 2, 30, 2**31 - 1], small))  # by -1 TFLite-Micro may die
        emit("DIV", [whole, divisors], "int32", "DivOptions")
        emit("CAST", [emit("MUL", [whole, numbers], "int32", "MulOptions")], "bool", "CastOptions")
        other = self.tensor(small, "float32", data=self.rng.normal(size=small))
        emit("SELECT_V2", [neither, *self.pick(((real, other), (other, real)))], "float32")


ANY8 = (
    *("add", "add", "sub", "mul", "maximum", "minimum", "squared", "prelu", "logistic", "tanh", "relu", "relu6"),
    *("leaky", "hard_swish", "abs", "rsqrt", "softmax", "quantize", "dequantize", "mean", "mean", "sum", "reduce_max"),
    *("reduce_min", "arg_max", "reshape", "squeeze", "expand", "pad", "concatenation", "split", "split_v", "slice"),
    *("strided_slice", "transpose", "pack", "unpack", "gather", "dense", "dense", "batch_matmul"),
)
IMAGE8 = (
    *("conv",) * 6,
    *("depthwise",) * 4,
    *("transpose_conv", "max_pool", "max_pool", "average_pool", "average_pool", "resize_bilinear", "resize_nearest"),
    *("depth_space", "pad", "pad"),
)
ANY16 = (
    *("add", "sub", "mul", "maximum", "relu", "relu6", "leaky", "softmax", "quantize", "mean", "reshape", "dense"),
    "batch_matmul",
)
IMAGE16 = ("conv", "conv", "conv", "depthwise", "depthwise", "max_pool", "average_pool", "pad", "concatenation")
BINARY = {
    "add": "ADD",
    "sub": "SUB",
    "mul": "MUL",
    "maximum": "MAXIMUM",
    "minimum": "MINIMUM",
    "squared": "SQUARED_DIFFERENCE",
}
UNARY = {
    "logistic": "LOGISTIC",
    "tanh": "TANH",
    "relu": "RELU",
    "relu6": "RELU6",
    "leaky": "LEAKY_RELU",
    "hard_swish": "HARD_SWISH",
    "abs": "ABS",
}
REDUCE = {"mean": "MEAN", "sum": "SUM", "reduce_max": "REDUCE_MAX", "reduce_min": "REDUCE_MIN"}
POOL = {"max_pool": "MAX_POOL_2D", "average_pool": "AVERAGE_POOL_2D"}
RESIZE = {"resize_bilinear": "RESIZE_BILINEAR", "resize_nearest": "RESIZE_NEAREST_NEIGHBOR"}


def apply(d: Drawer, name: str, x: Ref) -> Ref | None:
    if name in BINARY:
        return d.binary(x, BINARY[name])
    if name in UNARY:
        return d.unary(x, UNARY[name])
    if name in REDUCE:
        return d.reduce(x, REDUCE[name])
    if name in POOL:
        return d.pool(x, POOL[name])
    if name in RESIZE:
        return d.resize(x, RESIZE[name])
    return getattr(d, name)(x)


def usable(name: str, x: Ref, first: bool) -> bool:
    """Whether the operator takes such a tensor."""
    rank = len(x.shape)
    if name in ("conv", "depthwise", "transpose_conv", "depth_space", *POOL, *RESIZE) and rank != 4:
        return False
    if name == "rsqrt":
        return False  # drawn as a graph of its own: it takes no negative number
    if name == "batch_matmul":
        return 2 <= rank <= 4
    if name in ("arg_max", "unpack"):
        return rank > 1
    if name in ("pack", "expand", "squeeze"):
        return rank < 4
    return rank <= 4


def draw(seed: int, path: Path) -> tuple[Path, list[str]]:
    """Writes the graph of a seed and returns its operators."""
    d = Drawer(np.random.default_rng(seed))
    if seed % 53 == 7:
        dtype, low = ("int16", 0) if seed // 53 % 2 else ("int8", -128)
        x: Ref | None = d.input(d.shape(), dtype, None, low)
        if low == 0:  # what is negative stops the interpreter
            x = d.unary(x, "RELU")
        largest = {"int8": 127, "int16": 32767}[dtype]
        out = d.new(x.shape, dtype, 4 / largest / math.sqrt(x.scale) / 2, low)
        d.operator("RSQRT", [x.number], [out.number])
        return d.write(path), d.kinds
    if seed % 53 == 11:
        d.broadcast(d.input(d.shape()))
        return d.write(path), d.kinds
    if seed % 53 == 9:
        d.table(d.input(d.shape()))
        return d.write(path), [*d.kinds, "TABLE"]
    wide = d.chance(0.15)
    image = d.chance(0.6)
    x = d.input(d.shape4() if image else d.shape(), "int16" if wide else "int8")
    for step in range(d.int(1, 4)):
        assert x is not None
        names = (IMAGE16 + ANY16 if image else ANY16) if x.dtype == "int16" else (IMAGE8 * 2 + ANY8 if image else ANY8)
        x = apply(d, d.pick([n for n in names if usable(n, x, step == 0)]), x)
        if x is None or math.prod(x.shape) > 20000:
            break
    return d.write(path), d.kinds


def draw_logic(seed: int, path: Path) -> tuple[Path, list[str]]:
    """Writes a graph of whole numbers and truth values; Ethos-U has other results where they overflow."""
    d = Drawer(np.random.default_rng(seed))
    shape = d.shape()
    x = Ref(d.tensor(shape, "int32"), shape, "int32", 1.0, 0)
    d.inputs.append(x.number)
    d.logic(x)
    return d.write(path), d.kinds


def draw_compared(seed: int, path: Path) -> tuple[Path, list[str]]:
    """Writes a graph that compares numbers of one scale, and has the curves of 16 bits."""
    d = Drawer(np.random.default_rng(seed))
    shape = (1, 5, 7)
    first, second = (d.input(shape, "int8", 0.02, -7) for _ in range(2))
    kind, options = [("GREATER", "GreaterOptions"), ("LESS_EQUAL", "LessEqualOptions")][seed % 2]
    d.operator(kind, [first.number, second.number], [d.tensor(shape, "bool", 1.0, 0)], options)
    wide = d.input(shape, "int16", 0.0004, 0)
    for curve in ("LOGISTIC", "TANH"):
        out = d.new(shape, "int16", 1 / 32768, 0)
        d.operator(curve, [wide.number], [out.number])
        wide = out
    return d.write(path), d.kinds


def draw_lacking(seed: int, path: Path) -> tuple[Path, list[str]]:
    """Writes a graph of 16 bits; TFLite-Micro has no kernel for all that follows the first operator."""
    d = Drawer(np.random.default_rng(seed))
    x, out = d.input((1, 5, 4, 6), "int16", 0.0004, 0), d.new((1, 10, 8, 7), "int16", 0.0009, 0)
    weights = d.tensor((7, 2, 2, 6), "int8", 0.006, 0, d.rng.integers(-127, 128, (7, 2, 2, 6)))
    bias = d.tensor((7,), "int64", 0.0004 * 0.006, 0, d.rng.integers(-(2**20), 2**20, 7))
    given, options = [d.ints([1, 10, 8, 7]), weights, x.number, bias], {"strideH": 2, "strideW": 2, "padding": 1}
    d.operator("TRANSPOSE_CONV", given, [out.number], "TransposeConvOptions", **options)
    large, options = d.like(out, (1, 13, 9, 7)), {"alignCorners": False, "halfPixelCenters": True}
    d.operator("RESIZE_BILINEAR", [out.number, d.ints([13, 9])], [large.number], "ResizeBilinearOptions", **options)
    for kind, scale in (("EXP", 1e9), ("LOG", 0.001)):
        out = d.new(large.shape, "int16", scale, 0)
        d.operator(kind, [large.number], [out.number])
        large = out
    largest = d.gather(d.reduce(d.reduce(large, "REDUCE_MAX"), "REDUCE_MIN"))
    d.operator("LESS", [largest.number, largest.number], [d.tensor(largest.shape, "bool", 1.0, 0)], "LessOptions")
    return d.write(path), d.kinds
