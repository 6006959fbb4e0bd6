"""One small build that the tests of files share, the verbs called in this process, and damage."""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_net import SHAPE, write_net

from anynpu.artifact import MANIFEST, Artifact
from anynpu.cli.main import main
from anynpu.files import cache_chosen


@dataclass(frozen=True)
class Done:
    """What a command came to."""

    status: int
    out: str
    err: str

    def refused(self, status: int, *words: str) -> None:
        """Fails unless the command was refused in one sentence that has these words."""
        assert self.status == status, self.out + self.err
        assert "Traceback" not in self.err and "internal error" not in self.err
        told = [line for line in self.err.splitlines() if line.startswith("anynpu: ")]
        assert len(told) == 1 and all(word in told[0] for word in words), self.err


@dataclass(frozen=True)
class Place:
    """A folder with a build, its model and samples, and a cache of its own."""

    folder: Path
    call: Callable[..., Done]

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def stored(self, step: str) -> Artifact:
        """Returns what the cache keeps of a step."""
        found = (Artifact.read(path) for path in sorted((self.folder / "cache" / "store").glob("??/*")))
        return next(a for a in found if a.manifest.step is not None and a.manifest.step.name == step)

    def build(self, *more: str, out: str = "out") -> Done:
        return self.call("build", *BUILD, "-o", out, *more)


BUILD = ("-m", "net.onnx", "-t", "cpu", "--data", "x.npz", "-q")


@functools.cache
def pristine() -> Path:
    """Builds once for all tests of this process; they copy it."""
    folder = Path(tempfile.mkdtemp(prefix="anynpu-truth-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_net(folder / "net.onnx")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, *SHAPE[1:])).astype(np.float32)
    np.savez(folder / "x.npz", x=x, labels=rng.integers(0, 5, 40))
    np.savez(folder / "test.npz", x=x[:10] + 1, labels=rng.integers(0, 5, 10))
    np.save(folder / "one.npy", x[:1])
    with pytest.MonkeyPatch.context() as patch, cache_chosen(folder / "cache"):
        patch.chdir(folder)
        assert main(["build", *BUILD, "-o", "out"]) == 0
        assert main(["bench", "out/cpu", "-n", "600", "--warmup", "1", "-q", "-o", "bench.json"]) == 0
    return folder


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Place:
    """A copy of the build in the test's own folder, which is the working folder."""
    folder = tmp_path / "place"
    shutil.copytree(pristine(), folder, symlinks=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ANYNPU_CACHE_DIR", str(folder / "cache"))
    monkeypatch.setenv("ANYNPU_COMMAND_CACHE_DIR", "")
    capfd.readouterr()

    def call(*arguments: str) -> Done:
        status = main(arguments)
        told = capfd.readouterr()
        return Done(status, told.out, told.err)

    return Place(folder, call)


def edit_json(path: Path, change: Callable[[Any], object]) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def zero(path: Path) -> None:
    """Zeroes the second half of a file: weights of the same size."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))


def reseal(folder: Path, **changes: Any) -> None:
    """Gives a folder a manifest that fits what lies in it, as somebody who makes artifacts by hand would."""
    from anynpu.artifact import FileEntry, hash_file
    from anynpu.schema import to_dict

    artifact = Artifact.read(folder)
    files = tuple(
        FileEntry(e.path, hash_file(folder / e.path), (folder / e.path).stat().st_size) for e in artifact.manifest.files
    )
    manifest = replace(artifact.manifest, files=files, **changes)
    (folder / MANIFEST).write_text(json.dumps(to_dict(replace(manifest, seal=manifest.digest))))
