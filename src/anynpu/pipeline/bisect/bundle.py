"""The bundle: the sub-model, what goes in, what came out on both sides, versions, commands, a text for a tracker."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from anynpu import schema
from anynpu.pipeline.bisect.executions import Compiled
from anynpu.pipeline.bisect.shared import Part
from anynpu.records.bisect import BisectRecord, BisectSide
from anynpu.records.parts import as_json
from anynpu.runtime.int8_sums import host

if TYPE_CHECKING:
    from anynpu.pipeline.bisect.run import Bench

RECORD, README, SOURCE = "bisect.json", "README.md", "source"


def write_bundle(folder: Path, record: BisectRecord, part: Part, bench: Bench) -> None:
    """Writes everything that somebody else needs to see the same difference."""
    folder.mkdir(parents=True, exist_ok=True)
    a, b = bench.results[part]
    same = a.model.read_bytes() == b.model.read_bytes()
    suffixes = {"a": a.model.suffix, "b": b.model.suffix}
    files = {letter: f"model{suffix}" if same else f"{letter}{suffix}" for letter, suffix in suffixes.items()}
    for letter, ran, side in (("a", a, bench.a), ("b", b, bench.b)):
        shutil.copyfile(ran.model, folder / files[letter])
        if ran.compiled is not None and isinstance(side, Compiled):
            shutil.copytree(ran.compiled, folder / f"compiled-{letter}" / side.chip)
            shutil.copytree(ran.model.parent, folder / f"compiled-{letter}" / SOURCE)
    inputs = {name: bench.recorded[name] for name in part.inputs}
    _save(folder / "inputs", inputs)
    np.savez(folder / "inputs.npz", **inputs)  # type: ignore[arg-type]  # numpy types the keywords as its own options
    for letter, ran in (("a", a), ("b", b)):
        _save(folder / letter, dict(ran.outputs[0]))
    (folder / RECORD).write_text(as_json(schema.to_dict(record)), "utf-8")
    (folder / README).write_text(_readme(record, part, bench, files), "utf-8")


def _save(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    folder.mkdir(exist_ok=True)
    for number, array in enumerate(arrays.values()):
        np.save(folder / f"{number}.npy", array)


def _readme(record: BisectRecord, part: Part, bench: Bench, files: dict[str, str]) -> str:
    guilty, worst = record.guilty, record.difference
    assert worst is not None
    what = f"`{guilty.name}` ({guilty.kind})" if guilty else f"the operators before `{worst.tensor}`"
    count = len(record.operators)
    tolerance = "every value equal" if record.tolerance_db is None else f"{record.tolerance_db:g} dB"
    kinds = ", ".join(dict.fromkeys(each.kind for each in record.operators))
    compiled = any(isinstance(side, Compiled) for side in (bench.a, bench.b))
    lines = [
        f"# {guilty.kind if guilty else 'Operators'}: two executions of one model disagree",
        "",
        f"- A: {record.a.executed}",
        f"- B: {record.b.executed}",
        "",
        f"On the same input the result of {what} is {worst.sqnr_db:.1f} dB SQNR apart ({tolerance} was asked for). The "
        f"largest error is {worst.max_abs_error:.6g}: `{worst.tensor}` at {list(worst.at)} is {worst.a:.6g} in A and "
        f"{worst.b:.6g} in B. The sub-model here has {count} operator{'s' if count > 1 else ''} ({kinds}), cut from a "
        f"model with {record.cuts} places to cut at in {record.executed_runs} runs.",
        *(["", *(f"Note: {note}." for note in record.notes)] if record.notes else []),
        "",
        "| file | what it is |",
        "|---|---|",
        *_file_rows(files, bench),
        "| inputs/N.npy, inputs.npz | what goes in, in the order of the table below |",
        "| a/N.npy, b/N.npy | what came out, as real numbers |",
        "| bisect.json | every run of the search, versions, digests |",
        "",
        "| tensor | file | shape |",
        "|---|---|---|",
        *(f"| {n} | inputs/{i}.npy | {list(bench.recorded[n].shape)} |" for i, n in enumerate(part.inputs)),
        *(
            f"| {n} | a/{i}.npy, b/{i}.npy | {list(bench.results[part][0].outputs[0][n].shape)} |"
            for i, n in enumerate(part.outputs)
        ),
        "",
        "## Repeat it",
        "",
        "```",
        *_commands(record, bench, files),
        "```",
        "",
        "## Versions",
        "",
        f"anynpu {record.anynpu}, Python {platform.python_version()}, {platform.system()} {platform.machine()}, "
        f"CPU: {host()}",
        "",
        *(f"- {letter}: {_versions(side)}" for letter, side in (("A", record.a), ("B", record.b))),
        "",
        "## What of your data is in here",
        "",
        f"The weights of these operators, and what goes into them for sample {record.sample} of {record.samples}: "
        + ("the sample itself." if {*part.inputs} & {*bench.graph.inputs} else "values computed from it.")
        + (" The compiled file holds ranges that were found with all samples." if compiled else "")
        + " Nothing else of the model or of the samples.",
        "",
    ]
    return "\n".join(lines)


def _file_rows(files: dict[str, str], bench: Bench) -> list[str]:
    if files["a"] == files["b"]:
        rows = [f"| {files['a']} | the sub-model, the same file for both |"]
    else:
        rows = [f"| {files[letter]} | the sub-model of {letter.upper()} |" for letter in ("a", "b")]
    for letter, side in (("a", bench.a), ("b", bench.b)):
        if isinstance(side, Compiled):
            rows.append(
                f"| compiled-{letter}/{side.chip}/ | what the compiler makes of it, from {SOURCE}/ next to it |"
            )
    return rows


def _commands(record: BisectRecord, bench: Bench, files: dict[str, str]) -> list[str]:
    """Returns the commands that show the difference again, from inside the bundle."""
    sides, flags, runs = [], [], []
    for letter, side, on in (("a", bench.a, bench.on[0]), ("b", bench.b, bench.on[1])):
        if isinstance(side, Compiled):
            sides.append(f"compiled-{letter}/{side.chip}")
            runs.append(f"anynpu run {sides[-1]} -i inputs.npz")
        else:
            sides.append(files[letter])
        if on or side.device == "tflm":
            flags.append(f"--on-{letter} {on or side.device}")
    how = "exact" if record.tolerance_db is None else f"{record.tolerance_db:g}"
    words = ["anynpu bisect", *sides, "--data inputs.npz", f"--tolerance {how}", *flags]
    return [" ".join(words), *runs]


def _versions(side: BisectSide) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in side.versions.items())
    return f"{side.executed}: {versions}" if versions else side.executed
