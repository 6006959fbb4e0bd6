"""What RKNN-Toolkit2 says of the model that it has built: where each layer runs, cycles and memory.

D RKNN: [12:34:56.789]  Network Layer Information Table
D RKNN: [12:34:56.789] ID  OpType    DataType Target InputShape  OutputShape  Cycles(DDR/NPU/Total)  RW(KB)  FullName
D RKNN: [12:34:56.789] 1   ConvClip  INT8     NPU    (1,3,8,8),(8,3,3,3),(8)  (1,8,8,8)  91/92/92    5       Conv:c1
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from anynpu.artifact import OperatorPlacement, Placement

TABLE = "Network Layer Information Table"
ROW = re.compile(
    r"^D RKNN: \[[\d:.]+\] (?P<id>\d+)\s+(?P<kind>\S+)\s+(?P<dtype>\S+)\s+(?P<target>[A-Z]+)\s+(?P<inputs>\S+)\s+"
    r"(?P<output>\S+)\s+(?:\d+/\d+/(?P<cycles>\d+)\s+)?(?P<rw>[\d.]+)?\s*(?P<name>\S.*)$"
)
SIZE = re.compile(r"Total (?P<what>Internal|Weight) Memory Size: (?P<size>[\d.]+)(?P<unit>B|KB|MB)")
UNITS = {"B": 1, "KB": 1024, "MB": 1024 * 1024}
SHAPE = re.compile(r"\(([\d,]+)\)")
FUSED = ("Attention", "LSTM", "GRU")
BORDERS = ("InputOperator", "OutputOperator")


@dataclass(frozen=True)
class Layer:
    """One row of the table."""

    name: str
    kind: str
    dtype: str
    target: str
    inputs: tuple[tuple[int, ...], ...]
    output: tuple[int, ...]
    cycles: int

    @property
    def macs(self) -> int | None:
        """The multiplications that shapes tell of; None for products that they do not tell of."""
        if any(whole in self.kind for whole in FUSED):
            return None
        product = "MatMul" in self.kind
        if not product and "Conv" not in self.kind:
            return 0
        if len(self.inputs) < 2 or not self.output or not self.inputs[1]:
            return None
        if product:
            return math.prod(self.output) * self.inputs[0][-1]
        weights = self.inputs[1]
        # Depthwise weights are written (1, channels, height, width).
        depthwise = weights[0] == 1 and len(self.output) > 1 and weights[1] == self.output[1] > 1
        return math.prod(self.output) * math.prod(weights[2:]) * (1 if depthwise else weights[1])


@dataclass(frozen=True)
class Receipt:
    """The table, and the memory that activations and weights take in bytes."""

    layers: tuple[Layer, ...]
    internal_bytes: int | None
    weight_bytes: int | None

    @property
    def operators(self) -> tuple[Layer, ...]:
        """The layers without those that stand for the model's inputs and outputs."""
        return tuple(layer for layer in self.layers if layer.kind not in BORDERS)

    @property
    def cycles(self) -> int | None:
        """The sum of the compiler's estimates for the layers on the NPU."""
        return sum(layer.cycles for layer in self.operators) or None

    def outputs(self) -> tuple[tuple[int, ...], ...]:
        """Returns the shapes in which the chip gives the outputs."""
        return tuple(layer.inputs[0] for layer in self.layers if layer.kind == BORDERS[1] and layer.inputs)


def read_receipt(text: str) -> Receipt:
    """Returns the last table that the log holds; without one there are no layers."""
    table = text.rpartition(TABLE)[2] if TABLE in text else ""
    rows = [match for line in table.splitlines() if (match := ROW.match(line)) and "|" not in line]
    layers = tuple(
        Layer(
            name=row["name"].strip().partition(":")[2] or row["name"].strip(),
            kind=row["kind"],
            dtype=row["dtype"],
            target=row["target"],
            inputs=_shapes(row["inputs"]),
            output=next(iter(_shapes(row["output"])), ()),
            cycles=int(row["cycles"] or 0),
        )
        for row in rows
    )
    sizes = {m["what"]: int(float(m["size"]) * UNITS[m["unit"]]) for m in SIZE.finditer(table)}
    return Receipt(layers, sizes.get("Internal"), sizes.get("Weight"))


def _shapes(text: str) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(n) for n in shape.split(",") if n) for shape in SHAPE.findall(text))


def placement(receipt: Receipt, npu: str, version: str) -> Placement | None:
    """Returns the receipt of every layer, or None where the compiler printed no table."""
    placed = []
    for layer in receipt.operators:
        if layer.target == "NPU":
            placed.append(OperatorPlacement(layer.name, layer.kind, "npu", macs=layer.macs))
        else:
            reason = f"RKNN-Toolkit2 {version} puts this {layer.kind} ({layer.dtype}) on the chip's {layer.target}"
            placed.append(OperatorPlacement(layer.name, layer.kind, "cpu", reason, layer.macs))
    return Placement(npu, tuple(placed)) if placed else None
