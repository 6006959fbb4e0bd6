"""Damaged files of every kind that anynpu reads: a sentence and a documented status, whatever is in them.

ANYNPU_TEST_MUTATIONS=10000 makes it ten thousand. `run_mutations.py` runs cases by their numbers.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

for _package in ("torch", "onnxruntime", "PIL", "tokenizers", "safetensors", "ai_edge_litert"):
    pytest.importorskip(_package)

HERE = Path(__file__).parent

from mutation_cases import Outcome  # noqa: E402
from mutations import BYTES, TEXT, change_value, damaged  # noqa: E402

COUNT = int(os.environ.get("ANYNPU_TEST_MUTATIONS", "200"))
KINDS = (
    "manifest",
    "record",
    "ledger",
    "ONNX",
    "TFLite",
    ".cix",
    ".npy",
    "image",
    "annotations",
    "TOML",
    "CSV",
    "text",
)


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mutations")
    argv = [sys.executable, str(HERE / "run_mutations.py"), str(folder / "all"), "0", str(COUNT)]
    env = {**os.environ, "PYTHONPATH": str(HERE.parent / "kit")}
    done = subprocess.run(argv, env=env, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("kind", KINDS)
def test_no_damaged_file_ends_in_an_internal_error_a_signal_or_a_hang(figures, kind):
    assert [line for line in figures["failures"] if f": {kind} " in line] == []
    assert sum(figures["statuses"][kind].values()) >= COUNT // len(KINDS) - 1


def test_most_damage_is_refused_in_a_sentence_of_its_own(figures):
    statuses = [status for counts in figures["statuses"].values() for status, n in counts.items() for _ in range(n)]
    assert len(statuses) == COUNT and sum(status != "0" for status in statuses) > COUNT // 3
    assert figures["sentences"] > COUNT // 6


@pytest.mark.parametrize("way", [*BYTES, *TEXT, change_value], ids=lambda way: way.__name__)
def test_damage_is_the_same_for_the_same_seed(way):
    data = b'{"a": [1, 2.5, "x"], "b": {"c": null}}\n' * (1 if way is change_value else 3)
    made = [way(random.Random(seed), data, [b"other file"] * 3) for seed in (1, 1, 2, 3, 4)]
    assert made[0] == made[1] and len({*made, data}) > 2


def test_every_form_is_damaged():
    assert all(damaged(form, b'{"a": 1}', [b"x"] * 3, random.Random(5)) != b"" for form in ("binary", "text", "json"))


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Outcome(70, b"", b"anynpu: internal error: KeyError\n", 0, 1), "status 70"),
        (Outcome(-11, b"", b"", 0, 1), "SIGSEGV"),
        (Outcome(2, b"", b"", 0, 1), "0 sentences"),
        (Outcome(2, b"", b"anynpu: a\nanynpu: b\n", 0, 1), "2 sentences"),
        (Outcome(2, b"", b"anynpu: \x1b[31m\n", 0, 1), "'\\x1b'"),
        (Outcome(0, b"\xff", b"", 0, 1), "not UTF-8"),
        (Outcome(8, b"", b"Traceback\nanynpu: x\n", 0, 1), "Traceback"),
        (Outcome(8, b"", b"anynpu: x\n", 4 << 30, 1), "MiB of memory"),
    ],
)
def test_a_command_that_fails_is_seen(outcome, words):
    assert words in "; ".join(outcome.complaints())
    assert Outcome(2, b"", b"anynpu: net.onnx: no such file\n", 0, 1).complaints() == []
