"""Results from before something changed that the user's Python reads: each is noticed, or said to be unknowable."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from anynpu.artifact import Artifact, Made, Manifest, Step, hash_file, seal
from anynpu.measure.samples import read_samples
from anynpu.pipeline.preview import Silent
from anynpu.pipeline.request import Request
from anynpu.pipeline.steps import Steps
from anynpu.source import dependencies
from anynpu.source.dependencies import Dependencies, changed
from anynpu.source.load import ModelSource
from anynpu.source.recorder import Recorder
from anynpu.store import Store
from anynpu.tensors import TensorSpec

torch = pytest.importorskip("torch")

from anynpu.source.torch_module import load_module, parse_reference  # noqa: E402

HEAD = """
    import os, sys, json, glob, importlib, importlib.util, subprocess, socket, sqlite3, time, uuid
    from pathlib import Path
    import numpy as np
    import torch
    HERE = Path(__file__).parent

    def layer(width):
        return torch.nn.Linear(3, int(width))
"""


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    """Something in the store that a record belongs to."""
    folder = tmp_path / "artifact"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(b"a model")
    return seal(folder, Manifest("onnx", "model.onnx"), Step("import"), Made("", 0.0))


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's working folder, with files that a factory may read."""
    folder = tmp_path / "work"
    (folder / "parts").mkdir(parents=True)
    (folder / "elsewhere").mkdir()
    (folder / "width.txt").write_text("4")
    (folder / "width.json").write_text('{"width": 4}')
    np.save(folder / "width.npy", np.array([4]))
    torch.save({"width": torch.tensor(4)}, folder / "w.pth")
    (folder / "elsewhere" / "faraway.py").write_text("WIDTH = 4\n")
    (folder / "parts" / "a.txt").write_text("1")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("NET_WIDTH", "4")
    monkeypatch.delenv("NET_DEPTH", raising=False)
    return folder


def record_of(work: Path, artifact: Artifact, body: str) -> Dependencies:
    """Returns what `make` with this body reads."""
    text = textwrap.dedent(HEAD) + "\n\ndef make():\n" + textwrap.indent(textwrap.dedent(body), "    ")
    (work / "net.py").write_text(text)
    with Recorder(work).watching() as recorder:
        load_module(parse_reference("net.py:make"), None)
    return replace(recorder.found(), result=hash_file(artifact.main))


def rewrite(name: str, text: str = "8") -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: (Path(name).write_text(text), None)[1]


READS = {
    "text": ('return layer(open("width.txt").read())', rewrite("width.txt")),
    "text-beside-the-file": ('return layer((HERE / "width.txt").read_text())', rewrite("width.txt")),
    "json": ('return layer(json.load(open("width.json"))["width"])', rewrite("width.json", '{"width": 8}')),
    "numpy": ('return layer(np.load("width.npy")[0])', lambda patch: np.save("width.npy", np.array([8]))),
    "checkpoint": (
        'return layer(torch.load("w.pth", weights_only=True)["width"])',
        lambda patch: torch.save({"width": torch.tensor(8)}, "w.pth"),
    ),
    "named-file-read-by-a-library-in-c": (
        'np.fromfile; name = "width.txt"; return layer(4)',
        rewrite("width.txt"),
    ),
    "executed-file": (
        'scope = {}; exec(open("elsewhere/faraway.py").read(), scope); return layer(scope["WIDTH"])',
        rewrite("elsewhere/faraway.py", "WIDTH = 8\n"),
    ),
    "helper-through-sys-path": (
        'sys.path.append(str(HERE / "elsewhere")); import faraway; return layer(faraway.WIDTH)',
        rewrite("elsewhere/faraway.py", "WIDTH = 8\n"),
    ),
    "dynamic-import": (
        'sys.path.append(str(HERE / "elsewhere")); return layer(importlib.import_module("far" + "away").WIDTH)',
        rewrite("elsewhere/faraway.py", "WIDTH = 8\n"),
    ),
    "module-by-its-path": (
        'spec = importlib.util.spec_from_file_location("m", HERE / "elsewhere" / "faraway.py")\n'
        "m = importlib.util.module_from_spec(spec); spec.loader.exec_module(m); return layer(m.WIDTH)",
        rewrite("elsewhere/faraway.py", "WIDTH = 8\n"),
    ),
    "another-helper-found-first": (
        'sys.path.append(str(HERE / "elsewhere")); return layer(importlib.import_module("far" + "away").WIDTH)',
        rewrite("faraway.py", "WIDTH = 8\n"),
    ),
    "environment": ('return layer(os.environ["NET_WIDTH"])', lambda patch: patch.setenv("NET_WIDTH", "8")),
    "environment-not-set": ('return layer(os.getenv("NET_DEPTH", 4))', lambda patch: patch.setenv("NET_DEPTH", "8")),
    "environment-by-walking": (
        'return layer(next((v for k, v in os.environ.items() if k.startswith("NET_DEPTH")), 4))',
        lambda patch: patch.setenv("NET_DEPTH", "8"),
    ),
    "folder-listed": ('return layer(len(os.listdir("parts")))', rewrite("parts/b.txt")),
    "files-by-pattern": ('return layer(len(glob.glob("parts/*.txt")))', rewrite("parts/b.txt")),
    "file-not-there-yet": (
        'return layer(8 if os.path.exists("extra.txt") else 4)',
        rewrite("extra.txt"),
    ),
    "newest-file": (
        'return layer(max(Path("parts").glob("*.txt"), key=os.path.getmtime).read_text())',
        lambda patch: os.utime("parts/a.txt", (1, 1)),
    ),
    "database": (
        'return layer(len(sqlite3.connect("n.db").execute("select name from sqlite_master").fetchall()) + 1)',
        rewrite("n.db", "x"),
    ),
}


@pytest.mark.parametrize("case", READS)
def test_what_a_factory_reads_is_checked_before_its_result_is_used_again(case, work, artifact, monkeypatch):
    body, change = READS[case]
    record = record_of(work, artifact, body)
    assert changed(record, artifact) == ""
    change(monkeypatch)
    assert changed(record, artifact) != ""


UNKNOWN = {
    "program": ('subprocess.run(["true"]); return layer(4)', "starts a program"),
    "network": (
        'try: socket.create_connection(("127.0.0.1", 9), 0.1)\nexcept OSError: pass\nreturn layer(4)',
        "network",
    ),
    "clock": ("return layer(4 + int(time.time()) % 2)", "reads the clock"),
    "seedless": ("np.random.default_rng().random(); return layer(4)", "without a seed"),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_cannot_be_checked_is_made_again_and_said(case, work, artifact):
    body, words = UNKNOWN[case]
    record = record_of(work, artifact, body)
    assert words in changed(record, artifact)


def test_random_weights_without_a_seed_are_the_same_each_time(work, artifact):
    (work / "net.py").write_text(
        textwrap.dedent(HEAD) + "\n\ndef make():\n    return layer(4 + np.random.randint(9))\n"
    )
    weights = []
    for _ in range(2):
        with Recorder(work).watching():
            weights.append(load_module(parse_reference("net.py:make"), None).weight.detach().numpy())
    np.testing.assert_array_equal(*weights)


def test_an_environment_value_is_not_stored(work, artifact, tmp_path):
    record = record_of(work, artifact, 'return layer(os.environ["NET_WIDTH"])')
    dependencies.write(tmp_path / "record.json", replace(record, environment=dict(record.environment)))
    stored = json.loads((tmp_path / "record.json").read_text())["environment"]
    assert set(stored) == {"NET_WIDTH"} and len(stored["NET_WIDTH"]) == 64
    assert dependencies.read(tmp_path / "record.json") == record


def test_a_result_without_its_record_is_made_again(artifact):
    assert changed(None, artifact) and changed(Dependencies(result="another"), artifact)


def test_a_generator_is_run_again_when_what_it_reads_changes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANYNPU_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "gen.py").write_text(
        "import numpy as np\n\ndef gen():\n    size = float(open('size.txt').read())\n"
        "    for _ in range(10):\n        yield (np.random.rand(8) * size).astype('f')\n"
    )
    model = Artifact(tmp_path, Manifest("onnx", "m", (TensorSpec("x", (1, 8), "float32"),)))

    def samples(size: str) -> tuple[float, bool]:
        (tmp_path / "size.txt").write_text(size)
        heard: list[bool] = []
        watcher = type("Watcher", (Silent,), {"finished": lambda self, chip, stage, seconds, hit: heard.append(hit)})()
        steps = Steps(Request(ModelSource("net.onnx"), ("cpu",), data="gen.py:gen"), Store(), watcher)
        data = steps.data("calibration", model)
        assert data is not None
        return float(read_samples(data.path).inputs["x"].max()), heard[0]

    (small, first), (same, second), (large, third) = samples("1.0"), samples("1.0"), samples("9.0")
    assert small == same and large == pytest.approx(9 * small) and (first, second, third) == (False, True, False)


def test_a_model_is_imported_again_when_its_environment_changes(tmp_path, cli):
    (tmp_path / "net.py").write_text(
        "import os\nimport torch\n\ndef make():\n    return torch.nn.Linear(3, int(os.environ.get('NET_WIDTH', 4)))\n"
    )
    show = ("show", "net.py:make", "--shape", "x=1,3", "-f", "json")

    def made(**environment: str) -> tuple[int, bool]:
        done = cli(*show, **environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["outputs"][0]["shape"][1], "(cached)" in done.stderr

    assert [made(), made(), made(NET_WIDTH="6")] == [(4, False), (4, True), (6, False)]
