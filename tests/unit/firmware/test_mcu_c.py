"""The C generator as a compiler: what it makes, what it refuses, and that it always makes the same."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")
sys.path.insert(0, str(Path(__file__).parents[2] / "toolchain"))

from tflite_builder import Builder

from anynpu.artifact import Artifact, Made, Manifest, Step, seal
from anynpu.errors import AnyNpuError, ConfigError, IntegrityError, Unsupported
from anynpu.firmware.generator import Settings, generate
from anynpu.firmware.generator.source import comment, quoted
from anynpu.platform import Memory, Platform
from anynpu.quantize.tflite import read_specs
from anynpu.runtime.host_c import HostCSession
from anynpu.schema import to_dict
from anynpu.targets.base import Work
from anynpu.targets.mcu_c import McuC, McuOptions

CHIP = Platform("chip", "A chip", "any", "mcu_c", facts={"compiler": "cc", "flags": ["-O2"]})
NOW = Made("1970-01-01T00:00:00+00:00", 0.0)


def rectangle(folder: Path) -> Path:
    """Writes a model of a 6 x 10 image with 3 channels."""
    b = Builder()
    x = b.input((1, 6, 10, 3), name="image")
    y = b.conv(x, "conv", (1, 6, 10, 3), 8, relu=True)
    z = b.conv(y, "last", (1, 6, 10, 8), 4, stride=2)
    return b.write(folder / "model.tflite", [z])


def artifact(path: Path) -> Artifact:
    inputs, outputs = read_specs(path)
    manifest = Manifest("tflite", path.name, inputs, outputs, fingerprint="print")
    return seal(path.parent, manifest, Step("made"), NOW)


@pytest.fixture
def model(tmp_path) -> Artifact:
    folder = tmp_path / "tflite"
    folder.mkdir()
    return artifact(rectangle(folder))


def compiled(model: Artifact, folder: Path, platform: Platform = CHIP, **options) -> Artifact:
    folder.mkdir()
    work = Work(folder.parent / "log.txt", lambda done, total: None)
    manifest = McuC().compile(model, None, platform, McuOptions(**options), folder, work)
    return seal(folder, manifest, Step("compile", platform=platform.name), NOW)


def test_the_manifest_says_what_was_made(model, tmp_path):
    made = compiled(model, tmp_path / "c").manifest
    assert (made.format, made.main, made.fingerprint) == ("c", "anynpu_model.c", "print")
    assert made.inputs == model.manifest.inputs and made.outputs == model.manifest.outputs
    assert "counted" in made.estimates.source
    assert made.estimates.sram_bytes >= 6 * 10 * 11 and made.estimates.macs == 6 * 10 * 8 * 27 + 3 * 5 * 4 * 72
    sections = made.details["sections"]
    assert made.estimates.flash_bytes == sum(v for k, v in sections.items() if k != "arena")
    assert sections["weights"] == 8 * 28 + 4 * 72 and sections["channels"] == 12 * 12


def test_height_and_width_are_not_swapped(model, tmp_path):
    text = (compiled(model, tmp_path / "c").path / "anynpu_model.h").read_text()
    for line in ("HEIGHT 6", "WIDTH 10", "CHANNELS 3", "ELEMENTS 180", "ZERO_POINT (0)"):
        assert f"#define ANYNPU_INPUT_0_{line}\n" in text
    assert "#define ANYNPU_OUTPUT_0_HEIGHT 3\n#define ANYNPU_OUTPUT_0_WIDTH 5\n" in text
    assert '#define ANYNPU_MODEL_FINGERPRINT "print"' in text


def test_the_same_model_gives_the_same_bytes(model, tmp_path):
    first, second = compiled(model, tmp_path / "a"), compiled(model, tmp_path / "b")
    assert [f.sha256 for f in first.manifest.files] == [f.sha256 for f in second.manifest.files]


def test_names_and_sections_reach_the_code(model, tmp_path):
    made = compiled(model, tmp_path / "c", name='odd "name" */ é', arena_section=".ram2", weights_section=".xip")
    assert 'section(".ram2")' in (made.path / "anynpu_model.c").read_text()
    assert 'section(".xip")' in (made.path / "anynpu_weights.c").read_text()
    if shutil.which("cc"):
        HostCSession(made).close()


def test_text_cannot_leave_its_comment_or_string():
    assert "*/" not in comment("a*/b") and "/*" not in comment("a/*b") and comment("a\nb??/") == "a?b? ?/"
    assert quoted('a"b\\c\n?') == '"a\\042b\\134c\\012\\077"'


@pytest.mark.parametrize("section", ['x")))', "a b", "ä"])
def test_a_section_that_is_none_is_refused(model, section):
    with pytest.raises(ConfigError, match="linker section"):
        McuC().check(model, CHIP, McuOptions(arena_section=section))


def test_memory_says_how_much_and_what(model, tmp_path):
    small = replace(CHIP, memory=Memory(sram_kib=0, flash_kib=0))
    sram, flash = McuC().check(model, small, McuOptions())
    assert sram.rule == "fits-sram" and "more than chip has" in sram.message and "conv" in sram.where
    assert flash.rule == "fits-flash" and "288 bytes" in flash.message and "last" in flash.where
    with pytest.raises(Unsupported) as error:
        compiled(model, tmp_path / "c", platform=small)
    assert len(error.value.findings) == 2
    assert McuC().check(model, replace(CHIP, memory=Memory(sram_kib=64, flash_kib=64)), McuOptions()) == ()


def test_the_user_may_state_the_memories_of_the_chip(model):
    rules = [finding.rule for finding in McuC().check(model, CHIP, McuOptions(ram_kib=0, flash_kib=0))]
    assert rules == ["fits-sram", "fits-flash"]
    assert McuC().check(model, CHIP, McuOptions(ram_kib=64, flash_kib=64)) == ()


def test_every_operator_without_a_kernel_is_named(tmp_path):
    b = Builder()
    x = b.input((1, 4), dtype="float32")
    y = b.unary("EXP", x, "exponential", (1, 4), "float32")
    z = b.unary("RELU", y, "rectified", (1, 4), "float32")
    found = McuC().check(artifact(b.write(tmp_path / "m.tflite", [z])), CHIP, McuOptions())
    assert [(f.where, f.message.split()[1]) for f in found] == [("exponential", "EXP"), ("rectified", "RELU")]
    with pytest.raises(Unsupported, match=r"EXP.*RELU"):
        generate(tmp_path / "m.tflite", Settings("m", "f"))


def test_a_damaged_file_is_told(tmp_path):
    path = rectangle(tmp_path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(IntegrityError):
        generate(path, Settings("m", "f"))


def test_random_damage_is_told_and_never_a_crash(tmp_path):
    whole = rectangle(tmp_path).read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        raw = bytearray(whole)
        for place in rng.integers(8, len(raw), 3):
            raw[place] = rng.integers(256)
        (tmp_path / "bad.tflite").write_bytes(raw)
        try:
            generate(tmp_path / "bad.tflite", Settings("m", "f"))
        except AnyNpuError:
            refused += 1
    assert refused > 30


def test_an_empty_tensor_is_refused(tmp_path):
    b = Builder()
    y = b.unary("RELU", b.input((1, 0)), "nothing", (1, 0))
    (found,) = McuC().check(artifact(b.write(tmp_path / "m.tflite", [y])), CHIP, McuOptions())
    assert found.where == "nothing" and "empty" in found.message


def test_an_output_that_is_a_constant_is_refused(tmp_path):
    b = Builder()
    c = b.tensor("values", (2, 2), data=np.ones((2, 2)))
    out = b.tensor("flat", (4,))
    b.operator("RESHAPE", [c, b.constant("shape", [4])], [out], options="ReshapeOptions")
    y = b.unary("RELU", b.input((1, 2)), "live", (1, 2))
    path = b.write(tmp_path / "m.tflite", [y, out])
    with pytest.raises(Unsupported, match="flat"):
        generate(path, Settings("m", "f"))


@pytest.mark.skipif(HostCSession.missing() != "", reason=HostCSession.missing())
def test_the_session_runs_it_and_sessions_do_not_share_memory(model, tmp_path):
    made = compiled(model, tmp_path / "c")
    a, b = HostCSession(made), HostCSession(made)
    image = np.random.default_rng(0).integers(-128, 127, (1, 6, 10, 3)).astype(np.int8)
    first = a.run({"image": image})
    b.run({"image": np.zeros_like(image)})
    assert set(first) == {"last"} and first["last"].shape == (1, 3, 5, 4)
    assert np.array_equal(a.run({"image": image})["last"], first["last"])
    a.close()
    b.close()


@pytest.mark.skipif(HostCSession.missing() != "", reason=HostCSession.missing())
def test_code_that_does_not_compile_is_told(model, tmp_path):
    made = compiled(model, tmp_path / "c")
    made.main.write_text("int anynpu_init(void) { return")
    with pytest.raises(IntegrityError, match="does not compile"):
        HostCSession(made)


def test_the_manifest_is_plain_data(model, tmp_path):
    assert to_dict(compiled(model, tmp_path / "c").manifest)["details"]["compiler"] == "cc"
