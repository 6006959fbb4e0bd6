"""Tests on vendors' real toolchains: `make test-cvi` and its like install the tool and run test_TOOL_real.py."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anynpu.capsules import capsule, toolchain

Cli = Callable[..., "subprocess.CompletedProcess[str]"]
MODELS = Path(os.environ.get("ANYNPU_MODELS_DIR", Path(__file__).parents[3] / ".models"))
TEXTS = [
    f"the {a} {b} {c}"
    for a in ("old", "red", "quiet", "huge")
    for b in ("cat", "river", "teacher", "market", "guitar")
    for c in ("waits near the house", "fell into the water", "is bigger than the car", "belongs to nobody")
]

ASKED = [name for name in os.environ.get("ANYNPU_VENDOR_TESTS", "").split(",") if name]

# Tests have a cache of their own; the tool is in the user's.
for name in ASKED:
    os.environ.setdefault(toolchain.read_toolchain(name).variable, str(capsule.find(name).root))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name != "vendors":
            continue
        item.add_marker("vendor")
        name = item.path.stem.removeprefix("test_").partition("_")[0]
        if name not in ASKED:
            item.add_marker(pytest.mark.skip(reason=f"runs {name}'s real toolchain: make test-{name}"))


@pytest.fixture
def built(cli: Cli) -> Callable[..., dict[str, Any]]:
    """Gives a function that builds for one chip, ends as expected and returns the chip's record."""

    def build(*arguments: object, out: object = "out", status: int = 0) -> dict[str, Any]:
        words = [*map(str, arguments), "-o", str(out), "-q", "-f", "json"]
        done = cli("build", *words, timeout=1700)
        assert done.returncode == status, done.stdout[-2000:] + done.stderr[-2000:]
        (record,) = json.loads(done.stdout)["chips"]
        return dict(record)

    return build


@pytest.fixture
def minilm(tmp_path: Path) -> tuple[str, ...]:
    """The flags that name MiniLM at 32 tokens, with texts to calibrate on."""
    if not (MODELS / "minilm.safetensors").is_file():
        pytest.skip("make test-models fetches MiniLM")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    shapes = [w for n in ("input_ids", "attention_mask") for w in ("--shape", f"{n}=1,32", "--dtype", f"{n}=int64")]
    return (
        "-m", "anynpu.source.bert:minilm", "--ckpt", str(MODELS / "minilm.safetensors"), "--task", "minilm",
        "--tokenizer", str(MODELS / "minilm-tokenizer.json"), *shapes, "--data", "texts.txt",
    )  # fmt: skip
