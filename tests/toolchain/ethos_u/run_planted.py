"""Planted faults: each of 500 is named or proved harmless.

    PYTHONPATH=tests/kit python tests/toolchain/ethos_u/run_planted.py FOLDER [COUNT]

Each case changes one register, weight byte, scale, table entry or DMA address of a compiled network. It is named when
the stream is refused, the audit finds something, a value differs from TFLite-Micro's and the first operation is told,
an operation stores other values which a later one hides, or does so when it is given noise instead of what the
samples give it. It is harmless when the audit is silent and every operation, given the same noise, stores the same at
the same places; then the reason is told: a register or bits of one that the operation does not look at, constants
that decode to the same, or scales that make the same of every sum. The status is 1 if one is neither.
"""

from __future__ import annotations

import collections
import json
import sys
from pathlib import Path

import numpy as np
from compiled import CHIPS, Refused, compile_model, micro, quiet, samples
from planted import KINDS, judge, plant
from random_graphs import draw
from test_damage import network

from anynpu.errors import AnyNpuError
from anynpu.runtime.ethos_u.model import NpuCall, read_model
from anynpu.runtime.ethos_u.twin import Twin
from anynpu.targets.flatbuffer import operators
from anynpu.targets.vela.origin import FILE, write_origins

COUNT = 500
GRAPHS = (3, 14, 60, 77, 101, 111)
SAMPLES = 8


def compiled_models(folder: Path):
    """Returns source, model, origins, inputs and TFLite-Micro's values of every small network for every chip."""
    for chip in CHIPS:
        for name in ("net", *map(str, GRAPHS)):
            place = folder / chip / name
            place.mkdir(parents=True, exist_ok=True)
            source = place / f"{name}.tflite"
            (network(source) if name == "net" else draw(int(name), source))
            try:
                model = read_model(compile_model(source, chip, place))
                write_origins(place / f"{name}_debug.xml", operators(source), place)
                inputs = samples(model, SAMPLES)
                with quiet():
                    wanted = micro(source, inputs, len(model.outputs))
            except (Refused, AnyNpuError):
                continue
            if any(isinstance(call, NpuCall) for call in model.calls):
                yield source, model, place / FILE, inputs, wanted


def main() -> int:
    folder = Path(sys.argv[1])
    count = int(sys.argv[2]) if len(sys.argv) > 2 else COUNT
    models = list(compiled_models(folder))
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    nameless, number, case = [], 0, 0
    with (folder / "planted.jsonl").open("w", encoding="utf-8") as sink:
        while number < count:
            rng = np.random.default_rng([case, 500])
            kind = KINDS[case % len(KINDS)]
            source, model, origins, inputs, wanted = models[int(rng.integers(len(models)))]
            case += 1
            fault = plant(model, kind, rng)
            if fault is None:
                continue
            verdict = judge(fault, Twin(model), source, origins, inputs, wanted)
            number += 1
            counts[kind, verdict.named or f"harmless: {verdict.where}"] += 1
            if verdict.named == "difference" and "operation" not in verdict.where:
                nameless.append(fault.what)
            row = {"case": case - 1, "model": str(source.relative_to(folder)), "fault": fault.what}
            sink.write(json.dumps(row | {"named": verdict.named, "where": verdict.where}) + "\n")
    print(f"{number} faults in {len(models)} compiled models")
    for kind in KINDS:
        print(f"{kind:<9}", {how: n for (k, how), n in sorted(counts.items()) if k == kind})
    print(f"{len(nameless)} differ without an operation that could be named: {nameless[:5]}")
    unproven = sum(n for (_, how), n in counts.items() if "UNPROVEN" in how)
    return 1 if nameless or unproven else 0


if __name__ == "__main__":
    sys.exit(main())
