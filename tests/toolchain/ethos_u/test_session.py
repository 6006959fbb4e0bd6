"""The session: an artifact that Vela compiled, run and listed."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ethosu.vela", reason="pip install 'anynpu[build]'")
pytest.importorskip("tflite_micro", reason="pip install 'anynpu[build]'")


from compiled import PLATFORMS, compare, micro
from random_graphs import Drawer
from test_damage import network

from anynpu.artifact import Artifact, Made, Manifest, Step, seal
from anynpu.cli.show_stream import show_stream
from anynpu.errors import ConfigError, IntegrityError
from anynpu.platform import read_platform
from anynpu.runtime.base import choose, open_session
from anynpu.targets.base import Work
from anynpu.targets.vela import Vela
from anynpu.targets.vela.command import VelaOptions
from anynpu.tensors import TensorSpec

pytestmark = pytest.mark.build


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, Artifact]:
    """A network and what the Vela target makes of it."""
    folder = tmp_path_factory.mktemp("built")
    source = network(folder / "net.tflite")
    (folder / "in").mkdir()
    (folder / "out").mkdir()
    shutil.copy(source, folder / "in" / "model.tflite")
    inputs = (TensorSpec("t0", (1, 9, 8, 5), "int8"), TensorSpec("t1", (1, 9, 8, 5), "int8"))
    manifest = Manifest("tflite", "model.tflite", fingerprint="f", inputs=inputs[:1], outputs=inputs[1:])
    model = seal(folder / "in", manifest, Step("test"), Made("", 0))
    platform, options = read_platform(PLATFORMS / "ethos-u55-128.toml"), VelaOptions(optimise="performance")
    work = Work(folder / "log", lambda done, total: None)
    made = Vela().compile(model, None, platform, options, folder / "out", work)
    return source, seal(folder / "out", made, Step("vela"), Made("", 0))


def specs(artifact: Artifact) -> Artifact:
    """The artifact with the specs of the file's own tensors."""
    from anynpu.runtime.ethos_u.model import read_model

    model = read_model(artifact.main)
    rows = [
        tuple(TensorSpec(t.name, t.shape, t.dtype) for t in (model.tensors[i] for i in indices))
        for indices in (model.inputs, model.outputs)
    ]
    manifest = dataclasses.replace(artifact.manifest, inputs=rows[0], outputs=rows[1])
    return Artifact(artifact.path, manifest)


def test_the_session_of_the_format_gives_the_values_of_tflite_micro(built):
    source, artifact = built
    assert choose("tflite-vela").name == "ethos_u"
    session = open_session(specs(artifact))
    rng = np.random.default_rng(3)
    many = {s.name: rng.integers(-128, 128, (4, *s.shape[1:])).astype(np.int8) for s in session.inputs}
    wanted = micro(source, [value[:, np.newaxis] for value in many.values()], 1)[0]
    (got,) = session.run_many(many).values()
    assert np.array_equal(got, wanted.reshape(got.shape))
    for sample in range(4):
        (one,) = session.run({name: value[sample : sample + 1] for name, value in many.items()}).values()
        assert np.array_equal(one, got.reshape(4, *one.shape)[sample])
    session.close()


def test_every_operation_is_listed_with_its_layer(built, capsys):
    _, artifact = built
    assert show_stream(artifact.path, "json") == 0
    (stream,) = json.loads(capsys.readouterr().out)["streams"]
    assert stream["npu"] == "Ethos-U55-128"
    computing = [row for row in stream["operations"] if row["kind"] != "dma"]
    assert all(row["layer"] for row in computing)
    kinds = list(dict.fromkeys(row["layer"].split()[0] for row in computing))
    assert kinds == ["CONV_2D", "LOGISTIC", "DEPTHWISE_CONV_2D", "ADD", "MAX_POOL_2D", "FULLY_CONNECTED", "SOFTMAX"]
    assert show_stream(artifact.path, "text") == 0
    text = capsys.readouterr().out
    assert "Ethos-U55-128" in text and "bytes moved by DMA" in text and "SOFTMAX" in text


def test_only_ethos_u_artifacts_have_a_stream(built, tmp_path):
    _, artifact = built
    with pytest.raises(ConfigError, match="--stream is for Ethos-U artifacts; this is tflite"):
        show_stream(artifact.path.parent / "in", "text")


def test_a_file_that_vela_did_not_write_is_refused(built, tmp_path):
    source, _ = built
    (tmp_path / "model.tflite").write_bytes(source.read_bytes())
    plain = seal(tmp_path, Manifest("tflite-vela", "model.tflite"), Step("test"), Made("", 0))
    with pytest.raises(IntegrityError, match="OfflineMemoryAllocation"):
        open_session(plain)


@pytest.mark.parametrize("chip", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize("stored", [0, 1])
def test_a_product_with_a_stored_matrix_on_either_side(stored, chip, tmp_path):
    """Several samples at once: the stored side is the same for all of them."""
    d = Drawer(np.random.default_rng(3))
    shapes = ((1, 3, 2, 32), (1, 3, 32, 17))
    numbers = [
        d.tensor(shape, "int8", 0.02, 0, d.rng.integers(-127, 127, shape))
        if place == stored
        else d.input(shape, "int8", 0.02, 0).number
        for place, shape in enumerate(shapes)
    ]
    out = d.new((1, 3, 2, 17), "int8", 0.1, 0)
    d.operator("BATCH_MATMUL", numbers, [out.number], "BatchMatMulOptions")
    assert compare(d.write(tmp_path / "net.tflite"), chip, tmp_path, count=3).differing == 0
