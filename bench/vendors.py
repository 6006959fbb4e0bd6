"""Builds every zoo model for the chips named and writes one table of what the vendors' tools make of them.

    python bench/vendors.py cv180x bm1684x rk3588 hexagon-v73 "hexagon-v73 activations=uint16"

Each argument is a chip and its options. Every figure is of the executed result against the float model on held-out
samples; a simulator's figure says nothing about time. A tool that is not installed is a line of the table, no failure.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
MODELS = ("hello", "resnet8", "kws", "vww", "autoencoder", "detector")


def built(model: str, case: str, folder: Path) -> dict:
    """Returns what `anynpu build` says of one chip, with the time it took."""
    chip, *options = case.split()
    flags = [word for option in options for word in ("-O", option)]
    argv = [sys.executable, "-m", "anynpu", "build", "-m", f"zoo:{model}", "-t", chip, *flags, "-q", "-f", "json"]
    done = subprocess.run([*argv, "-o", str(folder), "--overwrite"], capture_output=True, text=True)
    if not done.stdout.strip():
        raise SystemExit(done.stderr[-2000:])
    (record,) = json.loads(done.stdout)["chips"]
    return record


def row(model: str, case: str, record: dict) -> dict:
    proof, receipt = record["verification"] or {}, record["receipt"] or {}
    worst = min((o["sqnr_var_db"] for o in proof.get("outputs", {}).values()), default=None)
    return {
        "model": model,
        "chip": case,
        "result": record["status"],
        "SQNR dB": proof.get("sqnr_db"),
        "variance SQNR dB": worst,
        "float %": proof.get("score_float") and 100 * proof["score_float"],
        "here %": proof.get("score") and 100 * proof["score"],
        "on NPU %": receipt.get("share") and 100 * receipt["share"],
        "samples": proof.get("samples"),
        "build s": record["seconds"],
        "executed": proof.get("executed", (record.get("error") or {}).get("message", "")),
    }


def markdown(rows: list[dict]) -> str:
    def cell(value: object) -> str:
        return "-" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)

    lines = [list(rows[0]), ["---"] * len(rows[0]), *([cell(v) for v in row.values()] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="+", help='a chip, or "chip option=value ..."')
    parser.add_argument("--models", default=",".join(MODELS), help="names of the zoo")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for model in given.models.split(","):
            for case in given.case:
                rows.append(row(model, case, built(model, case, Path(folder) / "out")))
                print(markdown(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "vendors.json").write_text(json.dumps(rows, indent=1) + "\n")
    (RESULTS / "vendors.md").write_text(markdown(rows))
    print(markdown(rows))


if __name__ == "__main__":
    main()
