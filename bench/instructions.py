"""Counts the instructions of generated C on emulated Cortex-M4 and Cortex-M55 and writes the table to bench/results/.

Instructions are not cycles and not time: an emulator has no cache, pipeline or wait states. The zoo is always counted,
the MLPerf Tiny models where ANYNPU_TEST_DATA names the folder that holds them. Every firmware passes its known answers,
computed by TFLite-Micro, before it is counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anynpu import plugins
from anynpu.artifact import Artifact, Made, Manifest, Step, hash_file, seal
from anynpu.lowering.integer_file import read_specs
from anynpu.runtime.tflm import TflmSession
from anynpu.targets.base import Work
from anynpu.targets.mcu_c import McuC

RESULTS = Path(__file__).parent / "results"
CHIPS = ("cortex-m4", "cortex-m55")
ZOO = ("autoencoder", "kws", "resnet8", "vww", "detector", "hello")


@dataclass(frozen=True)
class Peer:
    """TFLite-Micro with CMSIS-NN (M4 -O2, M55 -O3): instructions in millions, flash and arena in bytes on the M55."""

    file: str
    m4: float
    m55: float
    flash: int
    arena: int


PEERS = {
    "KWS": Peer("kws_ref_model.tflite", 7.70, 1.785, 96_902, 27_348),
    "IC": Peer("pretrainedResnet_quant.tflite", 29.9, 4.811, 138_208, 55_028),
    "VWW": Peer("vww_96_int8.tflite", 24.1, 6.436, 376_240, 100_772),
    "AD": Peer("ad01_int8.tflite", 0.583, 0.150, 295_688, 9_268),
}


def mlperf(folder: Path, name: str, file: Path) -> dict[str, Path]:
    """Returns the generated C of a TFLite file for each chip, with known answers of TFLite-Micro beside it."""
    source = folder / name / "tflite"
    source.mkdir(parents=True)
    (source / "model.tflite").write_bytes(file.read_bytes())
    inputs, outputs = read_specs(file)
    manifest = Manifest("tflite", "model.tflite", tuple(inputs), tuple(outputs), fingerprint=hash_file(file))
    model = seal(source, manifest, Step("file"), Made("", 0))
    made = {}
    for chip in CHIPS:
        out = folder / name / chip
        out.mkdir()
        platform, target = plugins.platform(chip), McuC()
        work = Work(folder / "log", lambda done, total: None)
        compiled = target.compile(model, None, platform, target.Options(), out, work)
        seal(out, compiled, Step("mcu_c", {"model": model.digest}, platform=chip), Made("", 0))
        answers(model, folder / name / "evidence" / chip)
        made[chip] = out
    return made


def answers(model: Artifact, folder: Path) -> None:
    """Writes what TFLite-Micro computes for five random inputs."""
    session, generator = TflmSession(model), np.random.default_rng(0)
    rows: dict[str, list[np.ndarray]] = {}
    for _ in range(5):
        given = {s.name: generator.integers(-128, 128, s.shape).astype(s.dtype) for s in session.inputs}
        for name, value in given.items():
            rows.setdefault(f"input:{name}", []).append(value)
        for name, value in session.run(given).items():
            rows.setdefault(f"output:{name}", []).append(value)
    folder.mkdir(parents=True)
    arrays = {name: np.concatenate(values) for name, values in rows.items()}
    np.savez(folder / "vectors.npz", fingerprint=model.manifest.fingerprint, **arrays)


def zoo(folder: Path, name: str) -> dict[str, Path]:
    """Returns the generated C of a zoo model for each chip, as a build gives it."""
    out = folder / name
    command = [
        sys.executable,
        "-m",
        "anynpu",
        "build",
        "-m",
        f"zoo:{name}",
        "-t",
        ",".join(CHIPS),
        "-o",
        str(out),
        "-q",
    ]
    subprocess.run(command, check=True, capture_output=True)
    return {chip: out / chip for chip in CHIPS}


def counted(name: str, folders: dict[str, Path]) -> dict[str, object]:
    row: dict[str, object] = {"model": name}
    for chip, folder in folders.items():
        command = [sys.executable, "-m", "anynpu", "bench", str(folder), "--on", "qemu", "-n", "1", "--warmup", "0"]
        done = subprocess.run([*command, "-f", "json"], check=True, capture_output=True, text=True)
        record = json.loads(done.stdout)
        row[f"{chip} M"] = round(infer(record) / 1e6, 4)
        manifest = Artifact.open(folder).manifest
        memory = record["memory"]
        row |= {
            f"{chip} model flash B": manifest.details["memory"]["flash_bytes"],
            "MACs M": round((manifest.estimates.macs or 0) / 1e6, 3),
            f"{chip} arena B": manifest.details["arena"]["bytes"],
            "live B": manifest.details["arena"]["live_bytes"],
            f"{chip} flash B": memory["flash_bytes"] - memory["known_answer_bytes"],
        }
    return row


def infer(record: dict) -> float:
    return record["stages"]["inference"]["median"]


def markdown(rows: list[dict]) -> str:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    return "\n".join(lines + ["| " + " | ".join(str(r.get(c, "-")) for c in columns) + " |" for r in rows]) + "\n"


def main() -> None:
    rows = []
    data = os.environ.get("ANYNPU_TEST_DATA")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ.setdefault("ANYNPU_CACHE_DIR", str(folder / "cache"))
        for model, peer in PEERS.items() if data else ():
            row = counted(model, mlperf(folder, model, Path(data) / "mlperf_tiny" / peer.file))
            peers = {
                "peer M4 M": peer.m4,
                "peer M55 M": peer.m55,
                "peer flash B": peer.flash,
                "peer arena B": peer.arena,
            }
            rows.append(row | peers)
        rows += [counted(f"zoo:{model}", zoo(folder, model)) for model in ZOO]
    text = "# Instructions per inference, generated C at -O3 in QEMU\n\n"
    text += "Millions of instructions: not cycles, not time. Flash is the whole firmware without its known answers.\n"
    text += "The peer is TFLite-Micro with CMSIS-NN, counted in the same way.\n\n" + markdown(rows)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "instructions.json").write_text(json.dumps({"schema_version": 1, "rows": rows}, indent=1) + "\n")
    (RESULTS / "instructions.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
