"""Counts of an emulator are called instructions wherever they are shown, and never time."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import rect_model
from project_tools import need

from anynpu.artifact import Artifact
from anynpu.pipeline.layers import INSTRUCTIONS, graph
from anynpu.records.build import ChipForm, GraphForm, GraphNode
from anynpu.report.html.graph import node_table
from anynpu.report.html.layers import layer_charts

ROOT = Path(__file__).parents[3]
TIME = re.compile(r"\b(ms|us|ns|seconds|milliseconds|microseconds|FPS|inferences/s)\b")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return rect_model.generated(tmp_path, "cortex-m55").path


def figures(value: Any, path: str = "") -> list[tuple[str, float]]:
    """Returns every number of a record with its path."""
    if isinstance(value, dict):
        return [pair for key, each in value.items() for pair in figures(each, f"{path}/{key}")]
    if isinstance(value, list):
        return [pair for each in value for pair in figures(each, path)]
    return [(path, value)] if isinstance(value, int | float) and not isinstance(value, bool) else []


def test_bench_shows_and_records_instructions(cli, out):
    need("make", "arm-none-eabi-gcc", "qemu-system-arm")
    done = cli("bench", str(out), "--on", "qemu", "-n", "2", "--layers")
    assert done.returncode == 0, done.stderr
    text = done.stdout
    assert "instructions by layer, counted by the emulator: not cycles and not time" in text
    rows = [line for line in text.splitlines() if re.match(r"(init|memory I/O|inference|post-processing) ", line)]
    assert len(rows) == 4 and all(" instructions " in row for row in rows)
    assert "instructions per inference" in text and not TIME.search(text)
    done = cli("bench", str(out), "--on", "qemu", "-n", "2", "--layers", "-f", "json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["unit"] == "instructions" and "not time" in record["clock"] and record["tick_hz"] == 0
    timed = [path for path, _ in figures(record) if re.search(r"(^|_|/)(ms|us|ns)($|_|/)", path)]
    assert timed == [], "an emulator has no time"
    counted = sum(layer["instructions"] for layer in record["layers"])
    assert 0.9 < counted / record["stages"]["inference"]["median"] < 1.05
    assert all(layer["instructions"] > 0 for layer in record["layers"] if layer["macs"])
    assert all(part["unit"] == "instructions" for part in record.values() if isinstance(part, dict) and "unit" in part)


def test_the_report_shows_the_kernels_and_whole_counts(out):
    made = Artifact.open(out)
    layers = made.manifest.details["layers"]
    nodes = tuple(GraphNode(name=layer["name"], kind=layer["kind"], device="cpu") for layer in layers)
    chip = ChipForm(
        chip="cortex-m55",
        npu="",
        status="ok",
        verdict="",
        error=None,
        chain=(),
        verification=None,
        receipt=None,
        estimates=None,
        seconds=0.0,
    )
    shown = graph(GraphForm(nodes=nodes), made)
    assert [node.variant for node in shown.nodes] == [layer["variant"] for layer in layers]
    page = str(node_table(chip, shown)) + str(layer_charts(chip, shown, None))
    assert page.count(INSTRUCTIONS) >= 3 and not TIME.search(page)
    most = max(layer["expected_instructions"] for layer in layers)
    assert (
        page.count(f"{most:,}<") == 2
        and page.count(f">{layers[0]['variant']}<") >= 2
        and not re.search(r"\de\+\d", page)
    )


@pytest.mark.parametrize(("flags", "hint"), [((), "--on qemu"), (("--on", "host"), "--on qemu")])
def test_layers_are_for_an_emulator(cli, out, flags, hint):
    done = cli("bench", str(out), *flags, "--layers")
    assert done.returncode == 2 and "--layers" in done.stderr and hint in done.stderr


@pytest.mark.parametrize("page", ["docs/firmware-c.md", "docs/devices.md"])
def test_pages_call_them_instructions(page):
    text = (ROOT / page).read_text("utf-8")
    assert re.search(r"no[tr]?( a)? (time|cycle|cycles)", text) and "nstructions" in text
    # A table of counts has no column of time.
    heads = [line for line in text.splitlines() if line.startswith("|") and re.search(r"millions|cortex-m4 M", line)]
    assert all(not TIME.search(head) for head in heads)
    assert page == "docs/devices.md" or heads
