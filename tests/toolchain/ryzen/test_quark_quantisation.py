"""The one quantisation as Quark gets it: ranges in its table, repairs in its model, and what it made of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from fake_quark import write_quark
from onnx import numpy_helper

from anynpu import plugins, schema
from anynpu.artifact import Artifact
from anynpu.errors import ConfigError
from anynpu.records.quantisation import FILE, Quantisation
from anynpu.targets.vitisai import VitisAi
from anynpu.targets.vitisai.options import VitisOptions
from anynpu.targets.vitisai.quantise import for_quark, plan_of
from anynpu.testing import models

STX = plugins.platform("ryzen-ai-stx")
Build = Callable[..., Artifact]


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> tuple[Artifact, Artifact]:
    return models.artifacts(models.conv_net(), tmp_path_factory.mktemp("net"))


@pytest.fixture
def build(net: tuple[Artifact, Artifact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    """Gives a function that compiles the net on a fake with a plan, each in a folder of its own."""

    def compile(plan: dict[str, object] | None = None, **options: object) -> Artifact:
        monkeypatch.setenv("QUARK_PATH", str(write_quark(tmp_path / "quark", **(plan or {}))))
        folder = tmp_path / f"build{len(list(tmp_path.iterdir()))}"
        return models.compiled(VitisAi(), *net, STX, VitisOptions(**options), folder)  # type: ignore[arg-type]

    return compile


def stored_in(made: Artifact) -> Quantisation:
    return schema.from_dict(Quantisation, schema.read_json(made.path / FILE), FILE)


def scales(made: Artifact) -> dict[str, float]:
    """The scale of every rounded activation in the file, by onnx alone."""
    graph = onnx.load(made.main).graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    return {n.input[0]: float(stored[n.input[1]]) for n in graph.node if n.op_type == "QuantizeLinear"}


def edited(tmp_path: Path, **tensors: object) -> Path:
    path = tmp_path / "edited.json"
    path.write_text(json.dumps({"tensors": tensors}))
    return path


@pytest.mark.parametrize(("precision", "dtype"), [("xint8", "uint8"), ("a8w8", "int8"), ("a16w8", "int16")])
def test_the_file_of_quark_has_our_scales(build: Build, precision: str, dtype: str) -> None:
    made = build(precision=precision)
    quantisation, written = stored_in(made), scales(made)
    assert quantisation.emitter == "quark"
    assert written
    for name, scale in written.items():
        form = quantisation.tensors[name]
        assert (form.dtype, form.scale[0]) == (dtype, pytest.approx(scale))
        assert form.range is not None and form.origin in ("measured", "function")
        assert precision != "xint8" or math.frexp(scale)[0] == 0.5
    log = (made.path.parent / "log.txt").read_text()
    assert "restored" in log


def test_ranges_are_those_of_quarks_own_arithmetic() -> None:
    from anynpu.quantize.ranges import Range

    ranges = {"x": Range(-1.0, 0.9), "y": Range(0.0, 3.0)}
    assert for_quark(ranges, plan_of(VitisOptions())) == {
        "x": (-127.5 / 128, 127.5 / 128),
        "y": (-127.5 / 32, 127.5 / 32),
    }
    assert for_quark(ranges, plan_of(VitisOptions(precision="a8w8")))["y"] == pytest.approx((-3.0, 3.0))


def test_an_edited_quantisation_is_in_the_file(build: Build, tmp_path: Path) -> None:
    before = scales(build())
    made = build(quantisation=edited(tmp_path, r1={"scale": 0.25, "zero_point": 128}, flat={"range": [0, 9]}))
    assert scales(made)["r1"] == 0.25 != before["r1"] and scales(made)["flat"] == 0.125 != before["flat"]
    assert stored_in(made).tensors["r1"].origin == "stated"
    again = build(quantisation=made.file(FILE))
    assert (again.path / "model.onnx").read_bytes() == (made.path / "model.onnx").read_bytes()


@pytest.mark.parametrize(
    ("precision", "form", "words"),
    [
        ("xint8", {"scale": 0.3, "zero_point": 128}, r"tensors\.r1\.scale: scales are powers of two"),
        ("xint8", {"scale": 0.25, "zero_point": 0}, r"tensors\.r1\.zero_point: xint8 has the zero point 128, not 0"),
        ("xint8", {"dtype": "int16"}, r"tensors\.r1\.dtype: results are stored as uint8, not int16"),
        ("a8w8", {"dtype": "float32"}, r"tensors\.r1\.dtype: results are stored as int8, not float32"),
        ("a8w8", {"range": [-1, 5], "scale": 0.3, "zero_point": 0}, r"tensors\.r1: the range \[-1.*has the scale"),
    ],
)
def test_what_a_precision_cannot_be_is_refused_by_name(
    build: Build, tmp_path: Path, precision: str, form: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        build(precision=precision, quantisation=edited(tmp_path, r1=form))


def test_scales_of_weights_are_quarks(build: Build, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tensors\.[\w.]+\.scale: is int8 with scale .*, and cannot be") as refused:
        name = next(name for name, form in stored_in(build()).tensors.items() if form.origin == "weights")
        build(quantisation=edited(tmp_path, **{name: {"scale": 4.0, "zero_point": 0}}))
    assert "come from the weights" in refused.value.hint


def test_a_range_that_quark_does_not_keep_ends_the_build(build: Build, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tensors\.r1\.scale: is uint8 with scale 0\.5 "):
        stated = edited(tmp_path, r1={"scale": 0.25, "zero_point": 128})
        build({"widens": {"r1": 2.0}}, quantisation=stated)


def test_what_quark_changes_is_read_back_as_its_own(build: Build) -> None:
    form = stored_in(build({"widens": {"r1": 2.0}})).tensors["r1"]
    assert (form.origin, form.range) == ("tied", None)


def test_tensors_that_quark_puts_in_keep_its_ranges(build: Build) -> None:
    made = build({"puts_in": ["scaled_by_quark"]})
    log = (made.path.parent / "log.txt").read_text()
    restored = json.loads(log.rpartition("restored ")[2].splitlines()[0])
    assert restored["scaled_by_quark"] == 3.0 and restored["r1"] != 3.0


def test_learnt_roundings_start_from_the_model_as_it_is(build: Build) -> None:
    made = build(adaround=True)
    assert "AdaRoundConfig" in (made.path.parent / "log.txt").read_text()
    assert not any("bias" in effect.name for effect in made.manifest.passes)
    assert any("bias" in effect.name for effect in build().manifest.passes)


@pytest.mark.parametrize("options", [{}, {"calibration": "min_mse"}], ids=["anynpu", "min_mse"])
def test_quark_equalises_only_when_it_is_told_to(build: Build, options: dict[str, object]) -> None:
    log = (build(**options).path.parent / "log.txt").read_text().splitlines()
    assert "leaves the weights" in log and "equalises" not in log


def test_quarks_own_ranges_are_read_too(build: Build) -> None:
    made = build(calibration="non_overflow")
    assert {name: form.scale[0] for name, form in stored_in(made).tensors.items() if name in scales(made)} == scales(
        made
    )


@pytest.mark.parametrize(
    "options", [{"precision": "bf16"}, {"cle": True}, {"calibration": "min_mse"}], ids=["bf16", "cle", "min_mse"]
)
def test_a_file_that_nobody_would_read_is_refused(options: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="this build has others"):
        VitisOptions(quantisation=tmp_path / "edited.json", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [({"calibration": "anynpu", "cle": True}, "cle changes the weights"), ({"method": "best"}, "no such range method")],
)
def test_options_of_our_ranges_are_checked(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        VitisOptions(**options)  # type: ignore[arg-type]


def test_biases_make_up_for_the_weights_that_quark_keeps(build: Build, net: tuple[Artifact, Artifact]) -> None:
    """With powers of two as scales, the mean of each channel over the samples is nearer to the float model's."""
    import onnxruntime

    draw = [dict(sample) for sample in models.draw_samples(net[0].manifest.inputs, 64, seed=3)]

    def answers(path: Path) -> np.ndarray:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return np.concatenate([session.run(None, sample)[0] for sample in draw])

    exact = answers(net[0].main)
    off = {on: np.abs((answers(build(bias_correction=on).main) - exact).mean(axis=0)).sum() for on in (True, False)}
    assert off[True] < off[False]
