"""Records of every kind, made by the project's own code where it makes them, for tests of reports."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from anynpu.measure.compare import Measured, Rules, SideInfo, record_of
from anynpu.measure.stats import summarize
from anynpu.schema import to_dict

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>\"'&"


def deep_graph(count: int = 300, seed: int = 1, fallback: bool = True) -> dict[str, Any]:
    """Returns a graph of residual blocks: convolutions, additions and, every thirteenth node, something on the CPU."""
    rng = random.Random(seed)
    nodes: list[dict[str, Any]] = []
    tensors = {"input": tensor([1, 224, 224, 3], None)}
    skip = last = "input"
    for i in range(count):
        kind = ("CONV_2D", "DEPTHWISE_CONV_2D", "CONV_2D", "ADD")[i % 4]
        inputs = [last, f"weights_{i}"] if kind != "ADD" else [last, skip]
        off = fallback and i % 13 == 12
        out = "output" if i == count - 1 else f"block_{i // 4}/{kind.lower()}_{i}/activation"
        error = round(48 - 0.05 * i + rng.gauss(0, 3) - (18 if i in (37, 151) else 0), 3)
        tensors[out] = tensor([1, 56, 56, 8 * (1 + i % 16)], error)
        if kind != "ADD":
            tensors[f"weights_{i}"] = {
                **tensor([64, 3, 3, 64], None),
                "scale": [0.001, 0.02],
                "zero_point": [0, 0],
                "channels": 64,
                "constant": True,
            }
        macs = 0 if kind == "ADD" else int(rng.lognormvariate(14, 1))
        nodes.append(
            {
                "name": f"block_{i // 4}/{kind.lower()}_{i}",
                "kind": kind,
                "device": "cpu" if off else "npu",
                "reason": "Scale of the inputs must be equal." if off else "",
                "macs": macs,
                "inputs": inputs,
                "outputs": [out],
                "sqnr_db": error,
                "time": round(macs / 128 * (6 if off else 1) + rng.uniform(500, 4000), 1),
            }
        )
        if kind == "ADD":
            skip = out
        last = out
    return {"nodes": nodes, "time_unit": "cycles (estimate)", "tensors": tensors}


def tensor(shape: list[int], sqnr: float | None) -> dict[str, Any]:
    return {"shape": shape, "dtype": "int8", "scale": [0.0235], "zero_point": [-5], "sqnr_db": sqnr}


def chip(name: str, status: str = "ok", graph: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Returns one chip of a build as record.py writes it."""
    nodes = graph["nodes"] if graph else []
    off = [
        {"name": n["name"], "kind": n["kind"], "device": "cpu", "reason": n["reason"], "macs": n["macs"]}
        for n in nodes
        if n["device"] == "cpu"
    ]
    share = 1 - len(off) / len(nodes) if nodes else 1.0
    return {
        "chip": name,
        "title": f"The chip {name}",
        "npu": "Ethos-U55-128" if graph else "",
        "status": status,
        "exit_status": 0,
        "verdict": f"{share:.1%} on the NPU, 100 % were required" if status == "fallback" else "",
        "error": None,
        "chain": [artifact("tflite", graph)],
        "verification": {
            "sqnr_db": 37.4,
            "cosine": 0.9999,
            "executed": "TFLite-Micro interpreter on this host's CPU",
            "device": "tflm",
            "stands_for": "",
            "samples": 50,
            "held_out": True,
            "metric": "top1",
            "score_float": 0.96,
            "score": 0.954,
            "arena_bytes": 530032,
            "outputs": {
                "output": {
                    "cosine": 0.9999,
                    "sqnr_db": 37.4,
                    "sqnr_var_db": 34.3,
                    "max_abs_error": 3.7,
                    "argmax_agreement": 0.99,
                    "count": 50,
                }
            },
        },
        "not_verified": "",
        "receipt": {
            "npu": "Ethos-U55-128",
            "operators": len(nodes),
            "on_npu": len(nodes) - len(off),
            "operator_share": share,
            "mac_share": share,
            "share": share,
            "elsewhere": off,
        }
        if graph
        else None,
        "estimates": {
            "source": "Vela 5.2.0 estimate",
            "macs": 397246464,
            "sram_bytes": 656432,
            "flash_bytes": 352448,
            "cycles": 3523228,
            "latency_ms": 7.046,
        },
        "memory": {"sram_kib": 2048, "flash_kib": 1024},
        "seconds": 12.5,
        "timings": [{"chip": name, "stage": "tflite", "seconds": 12.1, "cached": False}],
        "graph": graph,
        **more,
    }


def artifact(format: str, graph: dict[str, Any] | None = None) -> dict[str, Any]:
    spec = {"name": "input", "shape": [1, 224, 224, 3], "dtype": "int8", "layout": "NHWC"}
    return {
        "digest": "e5d2b662" * 8,
        "format": format,
        "main": "model",
        "inputs": [spec],
        "outputs": [{**spec, "name": "output"}],
        "fingerprint": "269f9bb9" * 8,
        "estimates": {"source": "counted", "macs": 397246464, "parameters": 388417},
        "step": {
            "name": format,
            "inputs": {"model": "7337bc61" * 8},
            "options": {},
            "tools": {"ethos-u-vela": "5.2.0", "anynpu": "0.1.0"},
        },
        "made": {"at": "2026-11-15T05:26:25+00:00", "seconds": 10.0},
        "files": [],
        "schema_version": 1,
        "seal": "e5d2b662" * 8,
    }


def build(chips: list[dict[str, Any]] | None = None, model: str = "zoo:deep") -> dict[str, Any]:
    """Returns the record of a build."""
    return {
        "schema_version": 1,
        "kind": "build",
        "anynpu": "0.1.0",
        "at": "2026-11-15T05:27:23+00:00",
        "request": {"source": {"model": model}, "chips": ["x"], "gate": {"min_sqnr_db": 10.0, "max_drop_points": 5.0}},
        "model": {**artifact("onnx"), "details": {"operators": {"Conv": 225, "Add": 75}}},
        "data": {
            "calibration": {
                "digest": "fbe780cd" * 8,
                "held_out": True,
                "random": False,
                "role": "calibration",
                "samples": 256,
            },
            "test": None,
        },
        "chips": [chip("ethos-u55-128", "fallback", deep_graph())] if chips is None else chips,
        "timings": [{"chip": "", "stage": "import", "seconds": 5.8, "cached": False}],
        "notes": [],
        "exit_status": 0,
    }


def failed(
    name: str, kind: str = "ToolFailed", message: str = "vela ended with status 1", **more: Any
) -> dict[str, Any]:
    """Returns a chip whose build failed."""
    error = {"kind": kind, "exit_status": 5, "message": message, "hint": "see the log", **more}
    nothing = {"verification": None, "receipt": None, "estimates": None, "chain": [], "verdict": ""}
    return {**chip(name), "status": kind, "exit_status": 5, "error": error, **nothing}


def bench(count: int = 1200, seed: int = 2, **more: Any) -> dict[str, Any]:
    """Returns the record of a bench with a few spikes."""
    rng = np.random.default_rng(seed)
    samples = rng.gamma(400, 0.005, count)
    samples[rng.choice(count, 6, replace=False)] *= rng.uniform(1.3, 1.9, 6)
    started = np.concatenate([[0.0], np.cumsum(samples / 1000 + 0.0002)])[:-1]
    return {
        "schema_version": 1,
        "kind": "bench",
        "anynpu": "0.1.0",
        "at": "2026-11-15T05:27:23+00:00",
        "scenario": "single-stream",
        "scope": "infer",
        "executed": "ONNX Runtime on this host's CPU",
        "unit": "ms",
        "clock": "perf_counter_ns",
        "cold": {"load_ms": 31.2, "first_ms": 4.1},
        "warm_up": {"runs": 25, "stable": True},
        "latency": {
            "unit": "ms",
            "samples": [round(float(s), 6) for s in samples],
            "started_s": [round(float(s), 6) for s in started],
            "summary": to_dict(summarize(samples), whole=True),
        },
        "stages": {
            "copy in": {"min": 0.01, "median": 0.011, "max": 0.05, "samples": []},
            "device": {"min": 1.7, "median": 1.98, "max": 3.6, "samples": []},
        },
        "host": {"cpus": 2, "governor": "performance"},
        "throughput": {"per_s": 480.2, "samples_per_query": 1},
        "verdict": None,
        "spikes": [
            {"index": int(samples.argmax()), "at_s": 0.01, "value": float(samples.max()), "causes": ["another program"]}
        ],
        "together": None,
        "energy": None,
        "warnings": [],
        "complete": True,
        "error": None,
        **more,
    }


def compare(slower: float = 1.06, seed: int = 3, count: int = 60) -> dict[str, Any]:
    """Returns the record of a comparison in which B is slower by a factor."""
    rng = np.random.default_rng(seed)
    a, b = ([list(map(float, rng.gamma(400, 0.005, count) * f)) for _ in range(6)] for f in (1.0, slower))
    sides = (
        SideInfo("out/v1/cpu", "a" * 64, "f" * 64, "ONNX Runtime"),
        SideInfo("out/v2/cpu", "b" * 64, "f" * 64, "ONNX Runtime"),
    )
    measured = Measured(a, b, "ms", "random numbers", "ABBAABBAABBA")
    return to_dict(record_of(*sides, Rules(), measured=measured, notes=["interleaved"]))


def sweep(models: tuple[str, ...] = ("zoo:kws",), seed: int = 4) -> dict[str, Any]:
    """Returns the record of a sweep of chips and options."""
    rng = random.Random(seed)
    rows = []
    for model in models:
        for chip_name, speed in (("ethos-u55-32", 4.0), ("ethos-u55-128", 1.4), ("ethos-u55-256", 1.0), ("hxwe2", 1.8)):
            for activations in ("int8", "int16"):
                for method in ("minmax", "mse"):
                    wide = activations == "int16"
                    rows.append(
                        {
                            "model": model,
                            "chip": chip_name,
                            "options": {"activations": activations, "method": method},
                            "status": "ok",
                            "error": "",
                            "metric": "top1",
                            "score": round((0.935 if wide else 0.915) + rng.uniform(-0.012, 0.008), 4),
                            "score_float": 0.941,
                            "sqnr_db": 30 + 12 * wide + rng.uniform(-3, 3),
                            "latency_ms": round(speed * (2.1 if wide else 1.0) * rng.uniform(0.9, 1.3), 3),
                            "latency_source": "Vela 5.2.0 estimate",
                            "sram_bytes": int(90000 * (2 if wide else 1) * rng.uniform(0.8, 1.2)),
                            "flash_bytes": int(52000 * rng.uniform(0.95, 1.1)),
                            "on_front": False,
                            "report": "",
                        }
                    )
    for row in rows:
        row["on_front"] = not any(_beats(other, row) for other in rows if other["model"] == row["model"])
    return {
        "schema_version": 1,
        "kind": "sweep",
        "anynpu": "0.1.0",
        "at": "2026-11-15T05:27:23+00:00",
        "rows": rows,
        "notes": [],
        "exit_status": 0,
    }


def _beats(other: dict[str, Any], row: dict[str, Any]) -> bool:
    keys = ("latency_ms", "sram_bytes", "flash_bytes")
    as_good = other["score"] >= row["score"] and all(other[k] <= row[k] for k in keys)
    return as_good and (other["score"] > row["score"] or any(other[k] < row[k] for k in keys))


def evaluation() -> dict[str, Any]:
    """Returns the record of an evaluation."""
    return {
        "schema_version": 1,
        "kind": "eval",
        "anynpu": "0.1.0",
        "metric": "top1",
        "score": 0.913,
        "low": 0.901,
        "high": 0.925,
        "samples": 2000,
        "executed": "ONNX Runtime on this host's CPU",
        "data": {"source": "test.npz", "digest": "ab" * 32},
    }


EVERY = {"build": build, "bench": bench, "compare": compare, "sweep": sweep, "eval": evaluation}
