"""Builds every model of bench/reach_models.py for several chips, each in a child process, and writes docs/reach.md.

    python bench/reach.py [--only timm:res] [--chips cpu,tflite,...] [--table]

Resumable: models with a row in bench/results/reach.jsonl are not built again. A model whose package is not installed is
skipped with that reason. ANYNPU_REACH_PYTHON names the Python that has the packages (by default this one).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from reach_models import MISSING, names

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "reach.jsonl"
PAGE = ROOT / "docs" / "reach.md"
CHIPS = "cpu,tflite,tflm,cortex-m55,ethos-u55-256,ethos-u85-256"
LIMIT_S = 1200


@dataclass(frozen=True)
class Row:
    """What became of one model: why it was left out, or for each chip its figure or the reason."""

    model: str
    left_out: str = ""
    chips: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


def exported(model: str, folder: Path) -> str:
    """Writes a model and its data; returns why it could not be done, or nothing."""
    python = os.environ.get("ANYNPU_REACH_PYTHON", sys.executable)
    program = Path(__file__).with_name("reach_models.py")
    done = subprocess.run([python, str(program), model, str(folder)], capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode == 0:
        return ""
    last = (done.stdout.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return last if done.returncode in (1, MISSING) else f"not exported: {last}"


def built(model: str, chips: str, folder: Path) -> dict[str, str]:
    """Returns for each chip the decibels that were proven and the share on its NPU, or why there are none."""
    command = [sys.executable, "-m", "anynpu", "build", "-m", str(folder / "model.onnx"), "-t", chips]
    command += ["--data", str(folder / "data.npz"), "-o", str(folder / "out"), "-f", "json", "-q"]
    environment = {**os.environ, "ANYNPU_CACHE_DIR": str(folder / "cache")}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=LIMIT_S)
        report = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return dict.fromkeys(chips.split(","), f"no answer in {LIMIT_S} s")
    except json.JSONDecodeError:
        reason = (done.stderr.strip().splitlines() or ["no report"])[0]
        return dict.fromkeys(chips.split(","), reason)
    if "chips" not in report:
        message = str((report.get("error") or {}).get("message", "not imported"))
        return dict.fromkeys(chips.split(","), f"not imported: {message}")
    return {chip["chip"]: _outcome(chip) for chip in report["chips"]}


def _outcome(chip: dict) -> str:
    figures, error = chip.get("verification") or {}, chip.get("error") or {}
    decibels = f"{figures['sqnr_db']:.1f} dB" if figures.get("sqnr_db") is not None else ""
    if chip["status"] in ("ok", "fallback"):
        return f"{decibels}, partly on its CPU" if chip["status"] == "fallback" else decibels
    return f"{error.get('message', chip['status'])}"


def run(model: str, chips: str) -> Row:
    """Exports and builds one model."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="anynpu-reach-") as name:
        folder = Path(name)
        try:
            reason = exported(model, folder)
        except subprocess.TimeoutExpired:
            reason = f"not exported in {LIMIT_S} s"
        outcomes = {} if reason else built(model, chips, folder)
    return Row(model, reason, outcomes, round(time.monotonic() - started, 1))


def read_rows() -> list[Row]:
    """Returns the rows so far."""
    if not RESULTS.is_file():
        return []
    return [Row(**json.loads(line)) for line in RESULTS.read_text("utf-8").splitlines()]


def proven(outcome: str) -> bool:
    return " dB" in outcome and "SQNR from" not in outcome


def table(rows: Iterable[Row], chips: list[str]) -> str:
    """Returns the page: shares first, then a row for each model, then the reasons."""
    rows = sorted(rows, key=lambda row: row.model)
    tried = [row for row in rows if row.chips]
    total = max(1, len(tried))
    imported = sum(not all("not imported" in each for each in row.chips.values()) for row in tried)
    lines = ["# Reach", "", "Architectures and files that nobody here wrote, built by `make test-reach`.",
             "A figure is the signal-to-noise ratio of the executed result beside the float model.", "",
             f"Of {len(rows)} models, {len(tried)} were built; {imported} ({100 * imported / total:.0f} %) import.", "",
             "| | " + " | ".join(chips) + " |", "|---" * (len(chips) + 1) + "|"]  # fmt: skip
    whole = {c: sum(proven(r.chips.get(c, "")) and "partly" not in r.chips[c] for r in tried) for c in chips}
    some = {c: sum(proven(r.chips.get(c, "")) for r in tried) for c in chips}
    for what, counts in (("proven", some), ("proven, whole on the NPU", whole)):
        lines.append(f"| {what} | " + " | ".join(f"{100 * counts[c] / total:.0f} %" for c in chips) + " |")
    lines += ["", "| model | " + " | ".join(chips) + " |", "|---" * (len(chips) + 1) + "|"]
    reasons: dict[str, int] = {}
    for row in tried:
        cells = []
        for chip in chips:
            outcome = row.chips.get(chip, "-")
            if not proven(outcome) and outcome != "-":
                number = reasons.setdefault(outcome.replace("|", "/")[:200], len(reasons) + 1)
                outcome = f"no ({number})"
            cells.append(outcome)
        lines.append(f"| {row.model} | " + " | ".join(cells) + " |")
    lines += ["", *(f"{number}. {reason}" for reason, number in reasons.items())]
    left_out = [row for row in rows if row.left_out]
    if left_out:
        lines += ["", "Left out:", "", *(f"- {row.model}: {row.left_out}" for row in left_out)]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="build the models whose name holds this")
    parser.add_argument("--chips", default=CHIPS, help="the chips, with commas")
    parser.add_argument("--table", action="store_true", help="write the page from the rows so far and build nothing")
    arguments = parser.parse_args()
    rows = read_rows()
    known = {row.model for row in rows}
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    for model in [] if arguments.table else names():
        if model in known or arguments.only not in model:
            continue
        row = run(model, arguments.chips)
        rows.append(row)
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row)) + "\n")
        print(f"{row.model}: {row.left_out or row.chips} ({row.seconds} s)", flush=True)
    PAGE.write_text(table(rows, arguments.chips.split(",")), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
