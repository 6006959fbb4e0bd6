"""A command stream as rows for people: what each operation does, where it reads and writes, which layer it serves."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from anynpu.artifact import Artifact
from anynpu.errors import DeviceError, IntegrityError
from anynpu.runtime.ethos_u.audit import audited
from anynpu.runtime.ethos_u.findings import Audited, memory_figures
from anynpu.runtime.ethos_u.layers import Layer, layers_of
from anynpu.runtime.ethos_u.memory import dtype_of
from anynpu.runtime.ethos_u.model import NpuCall, read_model
from anynpu.runtime.ethos_u.stream import Operation
from anynpu.runtime.ethos_u.twin import Twin

POOLS = ("max", "average", "reduce sum", "sum", "none", "min", "argmax x", "argmax y")
ELEMENTWISE = dict(
    enumerate(("mul", "add", "sub", "min", "max", "lrelu", "abs", "clz", "shr", "shl", "lsr", "div"))
) | {16: "equal", 17: "not equal", 18: "greater equal", 19: "greater", 33: "and", 34: "or", 35: "xor", 36: "not"}
MEMORIES = ("constants", "arena", "fast memory")


def listing(artifact: Artifact) -> dict[str, Any]:
    """Returns the streams of a Vela artifact as JSON data, and what one run on zeros does with the memories."""
    layers = layers_of(artifact)
    model = read_model(artifact.main)
    streams = [call.stream for call in model.calls if isinstance(call, NpuCall)]
    zeros = [np.zeros((1, *model.tensors[i].shape), model.tensors[i].dtype) for i in model.inputs]
    refused, followed = "", Audited()
    try:
        followed = audited(Twin(model).audit(zeros, layers), *memory_figures(artifact.manifest))
    except (IntegrityError, DeviceError) as error:
        refused = error.message
    return {
        "audit": {"refused": refused} | asdict(followed),
        "streams": [
            {
                "npu": stream.title,
                "cores": stream.cores,
                "operations": [_row(op, layers.get((number, op.word))) for op in stream.operations],
            }
            for number, stream in enumerate(streams)
        ],
    }


def _row(op: Operation, layer: Layer | None) -> dict[str, Any]:
    title = layer.title if layer else ""
    row: dict[str, Any] = {"operation": op.index, "word": op.word, "kind": op.kind, "layer": title}
    if op.kind == "dma":
        target = op.register("DMA0_DST_REGION")
        return row | {
            "from": f"{_memory(op.register('DMA0_SRC_REGION'))} {op.address('DMA0_SRC'):#x}",
            "to": f"{'tables' if target >> 8 & 1 else _memory(target)} {op.address('DMA0_DST'):#x}",
            "bytes": op.address("DMA0_LEN"),
        }
    mode = {"pool": dict(enumerate(POOLS)), "elementwise": ELEMENTWISE}.get(op.kind, {}).get(op.mode, "")
    two = op.kind == "elementwise" and "IFM2_BASE0" in op.registers
    maps = {}
    for name in ("IFM", "IFM2", "OFM") if two else ("IFM", "OFM"):
        precision = op.register(f"{name}_PRECISION")
        place = f"{_memory(op.register(f'{name}_REGION'))} {op.address(f'{name}_BASE0'):#x}"
        form = f"{dtype_of(precision, 1 if name == 'OFM' else 2)} {'NHCWB16' if precision >> 6 & 3 else 'NHWC'}"
        maps[name] = f"{place} {form}"
    part = op.kind == "conv" and op.register("KERNEL_STRIDE") >> 2 & 1
    lengths = [op.registers.get(f"{name}_LENGTH", 0) & 0xFFFFFFFF for name in ("WEIGHT", "WEIGHT1", "SCALE")]
    return row | {
        "mode": mode,
        "ofm": [op.register(f"OFM_{axis}_M1") + 1 for axis in ("HEIGHT", "WIDTH", "DEPTH")],
        "block": [op.register(f"OFM_BLK_{axis}_M1") + 1 for axis in ("HEIGHT", "WIDTH", "DEPTH")],
        "traversal": "" if op.kind != "conv" else "part kernel" if part else "depth first",
        "from": maps["IFM"],
        "from 2": maps.get("IFM2", ""),
        "to": maps["OFM"],
        "bytes": sum(lengths) if op.kind in ("conv", "depthwise") else 0,
    }


def _memory(region: int) -> str:
    return MEMORIES[region & 7] if region & 7 < len(MEMORIES) else f"region {region & 7}"
