"""Random graphs with the operators of Vela's tables that firmware does not have: beside those of `random_graphs`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from random_graphs import ANY8, ANY16, IMAGE8, IMAGE16, Drawer, Ref, apply, usable

COMPARISONS = ("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL")
CURVES = ("ELU", "EXP", "GELU", "LOG")
CLIPS = ("RELU_0_TO_1", "RELU_N1_TO_1")
MORE = (
    *("curve",) * 3,
    *("clip", "mirror_pad", "mirror_pad", "reverse", "tile", "tile", "negative", "lstm", "lstm"),
    *("compare", "logical", "select", "cast", "divide", "scatter", "reduce_bool"),
)
UNSIGNED = (
    *("add", "sub", "mul", "maximum", "minimum", "max_pool", "average_pool", "softmax", "reshape", "concatenation"),
    *("resize_bilinear", "slice", "strided_slice", "split", "pack", "transpose", "mean", "leaky"),
)


class VelaDrawer(Drawer):
    """Draws what Vela's tables have beyond the operators of the firmware."""

    def write(self, path: Path) -> Path:
        used = {n for op in self.operators for n in op.inputs}
        self.inputs = [n for n in self.inputs if n in used]
        return super().write(path)

    def zero(self, dtype: str = "int8") -> int:
        return self.int(0, 255) if dtype == "uint8" else super().zero(dtype)

    def softmax(self, x: Ref) -> Ref:
        if x.dtype != "uint8":
            return super().softmax(x)
        out = self.new(x.shape, "uint8", 1 / 256, 0)
        self.operator("SOFTMAX", [x.number], [out.number], "SoftmaxOptions", beta=1.0)
        return out

    def curve(self, x: Ref) -> Ref:
        kind = self.pick(CURVES)
        if kind == "LOG":
            x = self.input(x.shape, "int8", self.scale(), -128)
            out = self.new(x.shape, "int8", 0.05)
        elif kind == "EXP":
            x = self.input(x.shape, "int8", 0.02, self.zero())
            out = self.new(x.shape, "int8", 0.05, -128)
        else:
            out = self.new(x.shape, x.dtype, x.scale * math.exp(self.rng.normal(0, 0.5)))
        options = {"EXP": "ExpOptions", "GELU": "GeluOptions"}.get(kind, "")
        self.operator(kind, [x.number], [out.number], options)
        return out

    def clip(self, x: Ref) -> Ref:
        out = self.like(x)
        self.operator(self.pick(CLIPS), [x.number], [out.number])
        return out

    def mirror_pad(self, x: Ref) -> Ref:
        symmetric = self.chance(0.5)
        reach = [n if symmetric else n - 1 for n in x.shape]
        pads = [[self.int(0, min(2, most)), self.int(0, min(2, most))] for most in reach]
        if len(pads) == 4:
            pads[0] = pads[3] = [0, 0]
        out = self.like(x, [n + a + b for n, (a, b) in zip(x.shape, pads, strict=True)])
        given = [x.number, self.ints(pads)]
        self.operator("MIRROR_PAD", given, [out.number], "MirrorPadOptions", mode=int(symmetric))
        return out

    def reverse(self, x: Ref) -> Ref:
        out = self.like(x)
        self.operator("REVERSE_V2", [x.number, self.ints([self.int(0, len(x.shape) - 1)])], [out.number])
        return out

    def tile(self, x: Ref) -> Ref:
        times = [self.pick((1, 1, 2, 3)) for _ in x.shape]
        out = self.like(x, [n * t for n, t in zip(x.shape, times, strict=True)])
        self.operator("TILE", [x.number, self.ints(times)], [out.number])
        return out

    def negative(self, x: Ref) -> Ref:
        number = self.input(x.shape, "int32", 1.0, 0)
        out = self.new(x.shape, "int32", 1.0, 0)
        self.operator("NEG", [number.number], [out.number], "NegOptions")
        return out

    def truth(self, shape: Any) -> int:
        """Returns a tensor of truth values; Vela wants a scale even for them."""
        return self.tensor(shape, "bool", 1.0, 0)

    def compare(self, x: Ref) -> None:
        kind = self.pick(COMPARISONS)
        shape = x.shape if self.chance(0.6) else tuple(1 if self.chance(0.5) else n for n in x.shape)
        y = self.second(shape, x.dtype, like=x if self.chance(0.7) else None)
        options = {"EQUAL": "EqualOptions", "NOT_EQUAL": "NotEqualOptions"}.get(kind, "")
        self.operator(kind, [x.number, y.number], [self.truth(x.shape)], options)

    def logical(self, x: Ref) -> None:
        kind = self.pick(("LOGICAL_AND", "LOGICAL_OR", "LOGICAL_NOT"))
        given = [self.truth(x.shape) for _ in range(1 if kind == "LOGICAL_NOT" else 2)]
        self.inputs.extend(given)
        options = {"LOGICAL_AND": "LogicalAndOptions", "LOGICAL_OR": "LogicalOrOptions"}.get(kind, "LogicalNotOptions")
        self.operator(kind, given, [self.truth(x.shape)], options)

    def select(self, x: Ref) -> Ref:
        condition = self.truth(x.shape)
        self.inputs.append(condition)
        y = self.input(x.shape, x.dtype, x.scale, x.zero)
        out = self.like(x)
        self.operator("SELECT_V2", [condition, x.number, y.number], [out.number], "SelectV2Options")
        return out

    def cast(self, x: Ref) -> Ref:
        source, target = self.pick((("int8", "int32"), ("int8", "int16"), ("int16", "int32"), ("int32", "int16")))
        given = self.input(x.shape, source, 1.0, 0)
        out = self.new(x.shape, target, 1.0, 0)
        types = {name: getattr(schema.TensorType, name.upper()) for name in (source, target)}
        self.operator(
            "CAST", [given.number], [out.number], "CastOptions", inDataType=types[source], outDataType=types[target]
        )
        return out

    def divide(self, x: Ref) -> Ref:
        first = self.input(x.shape, "int32", 1.0, 0)
        data = self.rng.choice([-7, -3, 1, 2, 5, 1000], x.shape)  # the lowest number by -1 has no answer
        second = self.tensor(x.shape, "int32", 1.0, 0, data)
        out = self.new(x.shape, "int32", 1.0, 0)
        self.operator("DIV", [first.number, second], [out.number], "DivOptions")
        return out

    def scatter(self, x: Ref) -> Ref:
        rows, depth = self.int(2, 8), self.int(1, 12)
        chosen = self.rng.permutation(rows)[: self.int(1, rows)]
        updates = self.input((len(chosen), depth), "int8", x.scale, 0)
        out = self.new((rows, depth), "int8", x.scale, 0)
        given = [self.ints(chosen.reshape(-1, 1)), updates.number, self.ints([rows, depth])]
        self.operator("SCATTER_ND", given, [out.number], "ScatterNdOptions")
        return out

    def reduce_bool(self, x: Ref) -> None:
        given = self.truth(x.shape)
        self.inputs.append(given)
        axis = self.int(0, len(x.shape) - 1)
        shape = [1 if a == axis else n for a, n in enumerate(x.shape)]
        kind = self.pick(("REDUCE_ALL", "REDUCE_ANY"))
        self.operator(kind, [given, self.ints([axis])], [self.truth(shape)], "ReducerOptions", keepDims=True)

    def lstm(self, x: Ref) -> Ref:
        """Draws an LSTM without peepholes, projection or normalisation: int8 with a 16-bit cell."""
        steps, features, cells = self.int(1, 4), self.int(1, 9), self.int(1, 9)
        batch = self.pick((1, 1, 2))
        given = self.input((batch, steps, features), "int8", 0.03, self.zero())
        hidden_scale, hidden_zero = 1 / 128, self.pick((0, -3, 5))
        gates: dict[str, list[int]] = {"input": [], "recurrent": [], "bias": []}
        for _ in range(4):
            scales = [float(np.float32(self.rng.uniform(0.005, 0.02))) for _ in range(2)]
            for name, depth, scale in (("input", features, scales[0]), ("recurrent", cells, scales[1])):
                data = self.rng.integers(-127, 127, (cells, depth), endpoint=True)
                gates[name].append(self.tensor((cells, depth), "int8", scale, 0, data))
            data = self.rng.integers(-3000, 3000, cells)
            gates["bias"].append(self.tensor((cells,), "int32", given.scale * scales[0], 0, data))
        states = [
            self.tensor((batch, cells), dtype, scale, zero)
            for dtype, scale, zero in (("int8", hidden_scale, hidden_zero), ("int16", 2.0**-11, 0))
        ]
        for state in states:
            self.tensors[state].isVariable = True
        out = self.new((batch, steps, cells), "int8", hidden_scale, hidden_zero)
        inputs = [given.number, *gates["input"], *gates["recurrent"], -1, -1, -1, *gates["bias"], -1, -1, *states]
        self.operator(
            "UNIDIRECTIONAL_SEQUENCE_LSTM",
            [*inputs, -1, -1, -1, -1],
            [out.number],
            "UnidirectionalSequenceLSTMOptions",
            fusedActivationFunction=4,
            cellClip=self.pick((0.0, 10.0)),
        )
        self.operators[-1].intermediates = [
            self.tensor((0,), dtype, scale, zero)
            for dtype, scale, zero in (*(("int16", 2.0**-12, 0),) * 4, ("int8", hidden_scale, hidden_zero))
        ]
        return out


def draw_any(seed: int, path: Path) -> tuple[Path, list[str]]:
    """Writes the graph of a seed over every operator of Vela's tables and returns its operators."""
    d = VelaDrawer(np.random.default_rng([seed, 12]))
    dtype, image = d.pick(("int8",) * 7 + ("int16",) * 2 + ("uint8",)), d.chance(0.6)
    x: Ref | None = d.input(d.shape4() if image else d.shape(), dtype)
    for step in range(d.int(1, 4)):
        assert x is not None
        if x.dtype == "uint8":
            names = UNSIGNED
        elif x.dtype == "int16":
            names = IMAGE16 + ANY16 if image else ANY16
        else:
            names = IMAGE8 * 2 + ANY8 + MORE if image else ANY8 + MORE
        if x.dtype == "int32":
            break
        name = d.pick([n for n in names if usable(n, x, step == 0)])
        x = getattr(d, name)(x) if name in MORE else apply(d, name, x)
        if x is None or math.prod(x.shape) > 20000:
            break
    return d.write(path), d.kinds


def single(name: str, seed: int, path: Path) -> Path:
    """Writes a graph of one of the operators that are drawn here."""
    d = VelaDrawer(np.random.default_rng(seed))
    getattr(d, name)(d.input(d.shape4()))
    return d.write(path)
