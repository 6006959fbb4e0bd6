"""Random graphs over every operator of Vela's tables, compiled and executed: every value is TFLite-Micro's, and no
operation does with the memories what it must not. The C of firmware trees executes each stream too: it leaves the same
arena behind as the twin, and refuses what the twin refuses.

    PYTHONPATH=tests/kit python tests/toolchain/ethos_u/run_graphs.py FOLDER [COUNT]

COUNT graphs (2,000 by default), each for the next of the eleven configurations, in turn with both optimisation goals
and the memory modes that the product has. What came of each is a line of FOLDER/graphs.jsonl; a run that was
interrupted goes on where it stopped, and tries again what no value explains. The status is 1 if one differs that
neither `emulated.py` nor `excuses.py` explains.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compiled import CHIPS, DECODER, NoTeacher, Refused, compare, micro, quiet, samples
from emulated import explained
from excuses import excuse, excused_refusal
from reference import Reference, ReferenceTwin, build, payloads
from vela_graphs import draw_any

from anynpu.errors import DeviceError, IntegrityError
from anynpu.runtime.ethos_u.layers import read_layers
from anynpu.runtime.ethos_u.model import Model, read_model
from anynpu.runtime.ethos_u.twin import Twin
from anynpu.targets.flatbuffer import operators
from anynpu.targets.vela.origin import FILE, write_origins

COUNT = 2_000
MODES = {
    "ethos-u55": ("Shared_Sram", "Sram_Only"),
    "ethos-u65": ("Dedicated_Sram_384KB", "Dedicated_Sram_512KB", "Shared_Sram", "Sram_Only"),
    "ethos-u85": ("Dedicated_Sram_384KB", "Dedicated_Sram_512KB", "Shared_Sram", "Sram_Only"),
}


def outcome_of(seed: int, folder: Path, library: Path) -> dict[str, Any]:
    """Returns what came of one graph."""
    chip = CHIPS[seed % len(CHIPS)]
    turn = seed // len(CHIPS)
    modes = MODES[chip[:9]]
    goal, mode = ("Performance", "Size")[turn % 2], modes[turn // 2 % len(modes)]
    model, kinds = draw_any(seed, folder / f"{seed}.tflite")
    row: dict[str, Any] = {"seed": seed, "chip": chip, "goal": goal, "mode": mode, "kinds": kinds}
    try:
        comparison = compare(model, chip, folder, goal=goal, mode=mode, seed=seed)
    except Refused:
        return row | {"outcome": "refused by Vela"}
    except NoTeacher as error:
        return row | {"outcome": "neither TFLite-Micro nor LiteRT runs it", "why": str(error)}
    except DeviceError as error:
        return row | {"outcome": "an operator on the CPU that TFLite-Micro lacks", "why": error.message}
    except IntegrityError as error:
        if parted := parted_by_c(folder / f"{seed}_vela.tflite", library):
            return row | {"outcome": "WRONG", "why": parted}
        why = excused_refusal(model, chip)
        return row | {"outcome": "refused by the twin" if why else "WRONG", "why": f"{error.message}: {why}"}
    row |= {"values": comparison.values, "on_npu": comparison.on_npu, "npu": comparison.npu_kinds(model)}
    row["by_c"] = parted_by_c(folder / f"{seed}_vela.tflite", library) if comparison.on_npu else ""
    if row["by_c"]:
        return row | {"outcome": "WRONG", "why": row["by_c"]}
    faults = followed(model, comparison.model, folder)
    if not comparison.differing and not faults:
        return row | {"outcome": "equal" if comparison.on_npu else "equal, all on the CPU"}
    share = f"{comparison.differing} of {comparison.values}, by {comparison.worst}"
    what = share if comparison.differing else "; ".join(faults[:3])
    if proof := explained(model, chip, comparison):
        return row | {"outcome": "Vela's defect, every value explained", "why": f"{what}: {proof}"}
    why = excuse(model, chip)
    return row | {"outcome": "excused" if why else "WRONG", "why": f"{what}: {why}"}


def parted_by_c(file: Path, library: Path) -> str:
    """Returns where the C of firmware trees parts from the twin; empty where it does not."""
    model = read_model(file)
    twin = ReferenceTwin(model, payloads(file), Reference(library), DECODER)
    with contextlib.suppress(IntegrityError):
        twin.run_batch(samples(model, 3))
    return f"the C: {twin.differing[0]}" if twin.differing else ""


def followed(source: Path, compiled: Model, folder: Path) -> list[str]:
    """Returns what the stream does with the memories that it must not."""
    write_origins(folder / f"{source.stem}_debug.xml", operators(source), folder)
    inputs = [value[:1] for value in samples(compiled, 1)]
    return [str(v) for v in Twin(compiled, DECODER).audit(inputs, read_layers(folder / FILE)).violations]


def forked(seed: int, folder: Path, library: Path) -> dict[str, Any]:
    """Returns what came of one graph in a child: Vela dies of some."""
    answer = folder / "answer.json"
    child = os.fork()
    if child == 0:
        try:
            row = outcome_of(seed, folder, library)
        except Exception as error:
            row = {"seed": seed, "outcome": "WRONG", "why": f"{type(error).__name__}: {error}"}
        answer.write_text(json.dumps(row), "utf-8")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if answer.exists():
        return json.loads(answer.read_text("utf-8"))
    file, source = folder / f"{seed}_vela.tflite", folder / f"{seed}.tflite"
    if not file.exists():
        return {"seed": seed, "outcome": "Vela dies", "why": f"status {status}"}
    dies = signalled(lambda: micro(source, samples(read_model(file), 3, seed), 1))
    return {"seed": seed, "outcome": "TFLite-Micro dies" if dies else "WRONG", "why": f"status {status}"}


def signalled(run: Callable[[], object]) -> bool:
    """Returns whether a call ends its process."""
    child = os.fork()
    if child == 0:
        with quiet(), contextlib.suppress(Exception):
            run()
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def main() -> int:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    count = int(sys.argv[2]) if len(sys.argv) > 2 else COUNT
    library = build(folder, "-O2")
    for name in ("ai_edge_litert.interpreter", "ethosu.mlw_codec", "tflite_micro"):
        importlib.import_module(name)  # here, so that no child has to
    log = folder / "graphs.jsonl"
    lines = log.read_text("utf-8").splitlines() if log.exists() else []
    done = {row["seed"]: row for row in map(json.loads, lines)}
    with log.open("a", encoding="utf-8") as sink:
        for seed in range(count):
            if done.get(seed, {"outcome": "WRONG"})["outcome"] not in ("WRONG", "excused"):
                continue
            work = Path(tempfile.mkdtemp(dir=folder))
            row = forked(seed, work, library)
            shutil.rmtree(work)
            done[seed] = row
            sink.write(json.dumps(row) + "\n")
            sink.flush()
            if seed % 100 == 99:
                print(f"{seed + 1:,} of {count:,}", flush=True)
    rows = [done[seed] for seed in sorted(done)]
    outcomes = collections.Counter(row["outcome"] for row in rows)
    on_npu = collections.Counter(kind for row in rows for kind in row.get("npu", ()))
    print(f"{len(rows):,} graphs: {dict(outcomes)}; {sum(row.get('values', 0) for row in rows):,} values")
    print("on the NPU: " + ", ".join(f"{kind} {n}" for kind, n in sorted(on_npu.items())))
    for row in rows:
        if row["outcome"] == "WRONG":
            print(row)
    return 1 if outcomes["WRONG"] else 0


if __name__ == "__main__":
    sys.exit(main())
