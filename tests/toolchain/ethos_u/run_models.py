"""Whole models on every configuration: each value is TFLite-Micro's.

    PYTHONPATH=tests/kit python tests/toolchain/ethos_u/run_models.py FOLDER [MODEL.tflite ...]

Compiles each model for all eleven configurations, with both optimisation goals and every memory mode of the product;
without a model it takes detectors of YOLOv8's structure, int8 and int16. One line of FOLDER/models.jsonl each; a run
that was interrupted goes on where it stopped. The status is 1 if a value differs that `emulated.py` does not explain.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from compiled import CHIPS, Refused, compare
from emulated import explained
from run_graphs import MODES
from yolo_graph import draw_yolo

from anynpu.errors import AnyNpuError

GOALS = ("Performance", "Size")


def main() -> int:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    models = [Path(name) for name in sys.argv[2:]]
    models = models or [draw_yolo(folder / f"yolo_{dtype}.tflite", dtype) for dtype in ("int8", "int16")]
    log = folder / "models.jsonl"
    lines = log.read_text("utf-8").splitlines() if log.exists() else []
    done = {tuple(row["case"]): row for row in map(json.loads, lines)}
    cases = [(m, c, g, mode) for g in GOALS for m in models for c in CHIPS for mode in MODES[c[:9]]]
    with log.open("a", encoding="utf-8") as sink:
        for model, chip, goal, mode in sorted(cases, key=lambda case: MODES[case[1][:9]].index(case[3])):
            case = (model.name, chip, goal, mode)
            if case in done:
                continue
            place = folder / "work"
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            row: dict[str, object] = {"case": case}
            try:
                comparison = compare(model, chip, place, count=2, goal=goal, mode=mode)
                on_npu, kinds = len(comparison.npu_kinds(model)), len(comparison.model.calls)
                row |= {"differing": comparison.differing, "values": comparison.values, "npu": on_npu, "calls": kinds}
                if comparison.differing:
                    row["explained"] = explained(model, chip, comparison)
            except (Refused, AnyNpuError) as error:
                row |= {"refused": str(error)}
            done[case] = row
            sink.write(json.dumps(row) + "\n")
            sink.flush()
            print(row, flush=True)
    wrong = [row for row in done.values() if row.get("differing") and not row.get("explained")]
    refused = [row for row in done.values() if "refused" in row]
    print(f"{len(done)} builds, {len(wrong)} with differing values, {len(refused)} refused")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
