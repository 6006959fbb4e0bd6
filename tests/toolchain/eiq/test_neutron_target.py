"""The Neutron target with a stand-in for the converter: what it is told, what comes of its answer, what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("ai_edge_litert", reason="pip install 'anynpu[build]'")


from click.testing import CliRunner
from neutron_stand_in import TARGETS, write_tool
from tflite_builder import Builder

from anynpu import plugins
from anynpu.artifact import Artifact, Manifest, Step, seal
from anynpu.cli.tool import show
from anynpu.errors import ConfigError, ToolFailed, ToolMissing, Unsupported
from anynpu.pipeline.result import fallback
from anynpu.platform import Memory
from anynpu.targets.base import Work
from anynpu.targets.flatbuffer import operators
from anynpu.targets.neutron import Neutron
from anynpu.targets.neutron.log import Statistics, read_statistics
from anynpu.tensors import Quantization, TensorSpec
from anynpu.testing import conformance, models

CHIP = "mcxn947"
SHAPE = (1, 8, 12, 3)
REAL_LOG = """Converting model with the following options:
  Input  = yolov8s-seg_full_integer_quant.tflite
  Target = imx95
INFO: Created TensorFlow Lite XNNPACK delegate for CPU.
[================================================================================] 100 %
Conversion statistics:
  Number of operators after import    = 293
  Number of operators after optimize  = 338
    Number of operators converted     = 303
    Number of operators NOT converted = 35
  Number of operators after extract   = 36
    Number of Neutron graphs          = 1
    Number of operators NOT converted = 35
  Operator conversion ratio           = 303 / 338 = 0.89645
  Operators converted                 = 0,1,2,3,
Time for optimization = 0.0457691 (seconds)
"""


def spec(name: str, shape: tuple[int, ...], scale: float = 0.05, zero_point: int = 0) -> TensorSpec:
    import numpy as np

    scale = float(np.float32(scale))
    return TensorSpec(name, shape, "int8", quantization=Quantization((scale,), (zero_point,)))


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Artifact:
    """Two convolutions and a softmax."""
    folder = tmp_path_factory.mktemp("model")
    b = Builder()
    first = b.conv(b.input(SHAPE, name="image"), "first", SHAPE, 6, padding="SAME", relu=True)
    shape = (*SHAPE[:3], 6)
    second = b.conv(first, "second", shape, 4, padding="SAME")
    b.unary("SOFTMAX", second, "scores", (*SHAPE[:3], 4))
    b.write(folder / "model.tflite")
    outputs = (spec("scores", (*SHAPE[:3], 4), 1 / 256, -128),)
    manifest = Manifest("tflite", "model.tflite", (spec("image", SHAPE),), outputs, "5a" * 32)
    return seal(folder, manifest, Step("tflite"), models.NOW)


@pytest.fixture
def convert(model, tmp_path, monkeypatch):
    """Compiles the model with a stand-in that follows a plan."""

    def run(options=None, chip=CHIP, platform=None, **plan) -> Artifact:
        monkeypatch.setenv("EIQ_NEUTRON_PATH", str(write_tool(tmp_path / "sdk", **plan)))
        chosen = platform or plugins.platform(chip)
        return models.compiled(Neutron(), model, None, chosen, options or Neutron.Options(), tmp_path)

    return run


def where(artifact: Artifact) -> dict[str, str]:
    return {f"{op.kind} {op.name}": op.device for op in artifact.manifest.placement.operators}


def test_every_operator_has_its_place(convert):
    made = convert(leave=["SOFTMAX"])
    assert where(made) == {"CONV_2D first": "npu", "CONV_2D second": "npu", "SOFTMAX scores": "cpu"}
    assert made.manifest.placement.source == "read from the compiled file"
    (left,) = made.manifest.placement.elsewhere()
    assert left.reason == "neutron-converter leaves it to the CPU and gives no reason"
    assert [op.custom_code or op.kind for op in operators(made.main)] == ["NeutronGraph", "SOFTMAX"]
    assert made.manifest.details["accelerator"] == "mcxn94x"
    assert made.manifest.details["converter"] == "3.1.1+0X5a5a5a5a"
    assert made.manifest.details["said"]["left"] == 1 and made.manifest.details["said"]["graphs"] == 1
    assert made.manifest.estimates.sram_bytes == 16512
    assert made.manifest.estimates.flash_bytes == made.main.stat().st_size
    assert not [n for n in made.manifest.notes if "follows the file" in n or "written for" in n]
    assert sorted(p.name for p in made.path.iterdir()) == ["manifest.json", "model_neutron.tflite"]


def test_several_graphs_and_what_the_converter_put_in(convert):
    made = convert(leave=["SOFTMAX"], added=True)
    assert where(made)["SLICE second"] == "cpu"
    added = [op for op in made.manifest.placement.operators if op.kind == "SLICE"]
    assert added[0].reason == "neutron-converter has put it in; the model has no such operator"
    assert made.manifest.placement.operator_share == 0.5


def test_operators_that_were_renamed_are_found_again(convert):
    assert where(convert(leave=["CONV_2D"], renamed=True)) == {
        "CONV_2D first": "cpu",
        "CONV_2D second": "cpu",
        "SOFTMAX scores": "npu",
    }


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"says_left": 0}, "says 0 operators left to the CPU, its file holds 1: the receipt follows the file"),
        ({"silent": True}, "did not say how many Neutron graphs there are; its file holds 1"),
    ],
)
def test_the_file_is_right_and_the_log_is_not(convert, plan, words):
    made = convert(leave=["SOFTMAX"], **plan)
    assert where(made)["SOFTMAX scores"] == "cpu"
    assert any(words in note for note in made.manifest.notes)


def test_the_log_of_the_real_tool_is_understood():
    assert read_statistics(REAL_LOG) == Statistics(293, 338, 303, 35, 1)
    memory = 'Overall statistics for graph "main":\n  Memory:\n    Total data    = 16,512 (bytes) (Inputs)\n'
    assert read_statistics(memory) == Statistics(data_bytes=16512)
    assert read_statistics("") == Statistics()


def test_what_the_converter_is_told(convert, tmp_path):
    options = Neutron.Options(use_sequencer=True, fetch_constants_to_sram=True)
    convert(options, chip="imxrt700")
    line = next(x for x in (tmp_path / "log.txt").read_text().splitlines() if x.startswith("$ "))
    assert line.endswith(
        "--input model.tflite --output model_neutron.tflite --target imxrt700 --use-sequencer --fetch-constants-to-sram"
    )
    with pytest.raises(ToolFailed, match="neutron-converter failed with status 2") as failure:
        convert(Neutron.Options(converter_arguments="--no-such 'a b'"))
    assert "unrecognized arguments: --no-such a b" in "\n".join(failure.value.last_lines)
    with pytest.raises(ConfigError, match="converter_arguments: No closing quotation"):
        convert(Neutron.Options(converter_arguments="'"))


def test_the_chip_must_be_one_that_the_tool_lists(convert):
    with pytest.raises(ConfigError, match=r"3\.1\.1\S* has no target imxrt2660") as refused:
        convert(chip="imxrt2660")
    assert "it lists " + ", ".join(TARGETS) in refused.value.hint
    with pytest.raises(ConfigError, match="has no target mcxn947"):
        convert(Neutron.Options(neutron_target="mcxn947"))
    made = convert(chip="imxrt2660", targets=[*TARGETS, "imxrt2660"])
    assert made.manifest.details["accelerator"] == "imxrt2660"


def test_a_tool_without_a_list_is_used_and_it_is_said(convert):
    made = convert(targets=None, version="2.0.2+0X0cebb80a")
    assert "this neutron-converter lists no chips: mcxn94x was not checked beforehand" in made.manifest.notes


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("3.2.2+0X1", "written for neutron-converter 2.0.2 and 3.1.1, this is 3.2.2+0X1"),
        ("3.1.10+0X1", "this is 3.1.10+0X1"),
        ("", "this is one that does not say its version"),
    ],
)
def test_another_version_is_used_and_it_is_said(convert, version, words):
    assert any(words in note for note in convert(version=version).manifest.notes)


def test_the_version_is_part_of_the_address(tmp_path, monkeypatch):
    monkeypatch.setenv("EIQ_NEUTRON_PATH", str(write_tool(tmp_path / "sdk")))
    (first,) = Neutron().tools().values()
    assert first.startswith("3.1.1+0X5a5a5a5a (sha256:")
    write_tool(tmp_path / "sdk", says=["another"])
    assert Neutron().tools()["neutron-converter"] != first


@pytest.mark.parametrize("name", ["neutron_converter", "neutron-compiler"])
def test_the_program_has_other_names_too(tmp_path, monkeypatch, name):
    monkeypatch.setenv("EIQ_NEUTRON_PATH", str(write_tool(tmp_path / "sdk", name)))
    assert Neutron().tools()["neutron-converter"].startswith("3.1.1")
    shown = CliRunner().invoke(show, ["eiq", "-f", "json"])
    assert json.loads(shown.stdout)["state"] != "missing", shown.stdout
    monkeypatch.delenv("EIQ_NEUTRON_PATH")
    monkeypatch.setenv("PATH", str(tmp_path / "sdk" / "bin") + os.pathsep + "/usr/bin:/bin")
    assert Neutron().tools()["neutron-converter"].startswith("3.1.1")


@pytest.mark.parametrize("limit", [0.0, -1.0])
def test_a_limit_that_nothing_can_keep_is_refused(limit):
    with pytest.raises(ConfigError, match="time_limit_s"):
        Neutron.Options(time_limit_s=limit)


def test_a_missing_tool_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("EIQ_NEUTRON_PATH", raising=False)
    with pytest.raises(ToolMissing, match="neutron-converter is not installed") as missing:
        Neutron().tools()
    assert "EIQ_NEUTRON_PATH" in missing.value.hint
    monkeypatch.setenv("EIQ_NEUTRON_PATH", str(tmp_path / "nowhere"))
    with pytest.raises(ToolMissing, match="there is no program neutron-converter"):
        Neutron().tools()


def test_the_libraries_of_the_sdk_are_found(tmp_path, monkeypatch):
    from anynpu.targets.neutron import command

    sdk = write_tool(tmp_path / "sdk")
    (sdk / "lib").mkdir()
    monkeypatch.setenv("EIQ_NEUTRON_PATH", str(sdk))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/a:/b")
    assert command.environment(command.find())["LD_LIBRARY_PATH"] == f"{sdk / 'lib'}:/a:/b"


FAILURES = [
    ({"status": 3}, "neutron-converter failed with status 3"),
    ({"crash": True}, "neutron-converter failed with signal SIGSEGV"),
    ({"nothing": True}, r"ended well but wrote no model_neutron\.tflite"),
    ({"keep": 900}, "is not the model: is a damaged TFLite file"),
    ({"keep": 0}, "is not the model: is not a TFLite file"),
    ({"content": bytes(range(256)).hex()}, "is not the model: is not a TFLite file"),
    ({"other_scale": True}, "is not the model: tensor scores has quantization"),
    ({"no_microcode": True}, "has no microcode in it"),
    ({"dangling": True}, "nothing makes output scores"),
]


@pytest.mark.parametrize(("plan", "words"), FAILURES, ids=[next(iter(plan)) for plan, _ in FAILURES])
def test_each_failure_names_its_log_and_leaves_nothing(convert, tmp_path, plan, words):
    with pytest.raises(ToolFailed, match=words) as failure:
        convert(**plan)
    assert failure.value.log == str(tmp_path / "log.txt")
    assert "--target mcxn94x" in " ".join(failure.value.argv)
    assert list((tmp_path / "artifact").iterdir()) == []


@pytest.mark.parametrize("plan", [{"status": 3}, {"crash": True}, {"keep": 900}, {"plain": True}], ids=str)
def test_a_failure_leaves_the_store_clean(model, store, tmp_path, monkeypatch, plan):
    monkeypatch.setenv("EIQ_NEUTRON_PATH", str(write_tool(tmp_path / "sdk", **plan)))
    target = Neutron()

    def make(out: Path, log: Path) -> Manifest:
        work = Work(log, lambda done, total: None)
        return target.compile(model, None, plugins.platform(CHIP), target.Options(), out, work)

    step = Step("neutron", {"model": model.digest}, tools=target.tools(), platform=CHIP)
    with pytest.raises((ToolFailed, Unsupported)) as failure:
        store.build(step, make)
    store_root = tmp_path / "own-cache"
    left = [p for p in store_root.rglob("*") if p.is_file() and p.suffix not in (".log", ".txt", ".lock")]
    assert not [p for p in left if "neutron" in p.name or p.suffix == ".tflite"]
    assert not [p for p in store_root.rglob("neutron") if p.is_dir()]
    if isinstance(failure.value, ToolFailed):
        assert "--target mcxn94x" in Path(failure.value.log).read_text()


def test_operators_on_the_cpu_are_a_verdict(convert):
    made = convert(leave=["SOFTMAX"])
    words = fallback(made, plugins.platform(CHIP), 1.0)
    assert words == "66.7% on the eIQ Neutron NPU, 100% required: 1 of 3 operators run on the CPU"
    assert fallback(made, plugins.platform(CHIP), 0.5) == ""


def test_a_hang_ends_at_the_limit(convert, tmp_path):
    with pytest.raises(ToolFailed, match="did not finish within 2 s"):
        convert(Neutron.Options(time_limit_s=2), hang=True)
    assert list((tmp_path / "artifact").iterdir()) == []


def test_a_library_that_is_not_found_gives_a_hint(convert):
    line = "neutron-converter: error while loading shared libraries: libNeutron.so: cannot open shared object file"
    with pytest.raises(ToolFailed) as failure:
        convert(says=[line], status=127)
    assert failure.value.hint.startswith("libNeutron.so is not found")


def test_a_file_without_work_for_the_npu_is_refused(convert, tmp_path):
    with pytest.raises(Unsupported, match=r"none of this model would run on the eIQ Neutron NPU.*no NeutronGraph") as e:
        convert(plain=True)
    assert {f.where for f in e.value.findings} == {"CONV_2D", "SOFTMAX"}
    assert list((tmp_path / "artifact").iterdir()) == []


def test_a_model_that_does_not_fit_is_refused(convert):
    with pytest.raises(Unsupported, match="does not fit mcxn947") as refused:
        convert(data_bytes=600 * 1024)
    assert (
        str(refused.value.findings[0]) == "neutron-converter needs 600.0 KiB of SRAM for tensors, mcxn947 has 512 KiB"
    )
    import dataclasses

    small = dataclasses.replace(plugins.platform(CHIP), memory=Memory(flash_kib=1))
    with pytest.raises(Unsupported) as refused:
        convert(platform=small)
    assert refused.value.findings[0].rule == "fits-flash"


def test_check_names_what_is_not_int8(model, tmp_path):
    target, chip = Neutron(), plugins.platform(CHIP)
    assert target.check(model, chip, target.Options()) == ()
    b = Builder()
    x = b.input((1, 4), "float32", "x")
    b.unary("LOGISTIC", x, "y", (1, 4), "float32")
    b.write(tmp_path / "model.tflite")
    manifest = Manifest("tflite", "model.tflite", fingerprint="5a" * 32)
    floats = seal(tmp_path, manifest, Step("tflite"), models.NOW)
    (finding,) = target.check(floats, chip, target.Options())
    assert str(finding) == "LOGISTIC y: holds float32, and Neutron computes in 8-bit integers only"


def test_the_kit_finds_nothing_wrong(model, tmp_path, monkeypatch):
    monkeypatch.setenv("EIQ_NEUTRON_PATH", str(write_tool(tmp_path / "sdk", leave=["SOFTMAX"])))
    conformance.check_target(Neutron(), model, plugins.platform(CHIP), tmp_path / "kit")
