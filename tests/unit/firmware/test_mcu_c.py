"""The C generator as a compiler: what it makes, what it refuses, and that it always makes the same."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

from tflite_builder import Builder

from anynpu import plugins
from anynpu.artifact import Artifact, Made, Manifest, Step, seal
from anynpu.errors import AnyNpuError, ConfigError, IntegrityError, Unsupported
from anynpu.firmware.generator import Settings, generate
from anynpu.firmware.generator.generate import layers_of
from anynpu.firmware.generator.graph import read_graph
from anynpu.firmware.generator.size import flash_bytes
from anynpu.firmware.generator.source import comment, quoted
from anynpu.firmware.generator.variants import PLAIN, Core
from anynpu.lowering.integer_file import read_specs
from anynpu.platform import Memory, Platform
from anynpu.runtime.host_c import HostCSession
from anynpu.runtime.tflm import TflmSession
from anynpu.schema import to_dict
from anynpu.targets.base import Work, platform_tools
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


def test_an_input_that_no_operator_reads_is_fed_all_the_same(tmp_path):
    b = Builder()
    x = b.input((1, 4, 4, 3), name="image")
    b.input((1, 5), name="ignored")
    path = b.write(tmp_path / "model.tflite", [b.conv(x, "conv", (1, 4, 4, 3), 4)])
    made = compiled(artifact(path), tmp_path / "c")
    session = HostCSession(made)
    image = np.arange(48, dtype=np.int8).reshape(1, 4, 4, 3)
    one, other = (session.run({"image": image, "ignored": np.full((1, 5), v, np.int8)}) for v in (3, -7))
    truth = TflmSession(artifact(path)).run({"image": image, "ignored": np.zeros((1, 5), np.int8)})
    for name, array in truth.items():
        np.testing.assert_array_equal(one[name], array)
        np.testing.assert_array_equal(other[name], array)


def test_the_manifest_says_what_was_made(model, tmp_path):
    made = compiled(model, tmp_path / "c").manifest
    assert (made.format, made.main, made.fingerprint) == ("c", "anynpu_model.c", "print")
    assert made.inputs == model.manifest.inputs and made.outputs == model.manifest.outputs
    assert made.estimates.macs == 6 * 10 * 8 * 27 + 3 * 5 * 4 * 72


def rows(manifest: Manifest) -> dict[str, tuple[int, int]]:
    return {s["name"]: (s["flash_bytes"], s["ram_bytes"]) for s in manifest.details["memory"]["sections"]}


@pytest.mark.parametrize("chip", ["cortex-m0plus", "cortex-m4", "cortex-m55", "riscv32"])
def test_the_chips_compiler_says_what_every_section_takes(model, tmp_path, chip):
    platform = plugins.platform(chip)
    if shutil.which(platform.facts["compiler"]) is None:
        pytest.skip(f"install the package {platform.facts['package']}")
    made = compiled(model, tmp_path / "c", platform, kernels="plain").manifest
    found, memory = rows(made), made.details["memory"]
    assert found[".rodata weights"] == (8 * 28 + 4 * 72, 0) and found[".rodata channels"] == (12 * 12, 0)
    assert found[".bss arena"][0] == 0 and 0 <= found[".bss arena"][1] - made.details["arena"]["bytes"] < 8
    assert 500 < found[".text code"][0] < 20_000 and found[".text code"][1] == 0
    assert memory["flash_bytes"] == sum(flash for flash, _ in found.values()) == made.estimates.flash_bytes
    assert memory["ram_bytes"] == sum(ram for _, ram in found.values()) == made.estimates.sram_bytes
    assert platform.facts["compiler"] in made.details["compiler"] and made.details["compiler"] in made.estimates.source
    assert set(platform.facts["flags"]) < set(made.details["flags"]) and "-ffunction-sections" in made.details["flags"]
    assert "the stack" in memory["not_counted"]


def test_without_the_compiler_the_manifest_says_what_to_install(model, tmp_path):
    absent = replace(CHIP, facts={"compiler": "no-such-gcc", "package": "gcc-none"})
    made = compiled(model, tmp_path / "c", absent).manifest
    assert made.estimates.sram_bytes >= 6 * 10 * 11 and "machine code is not counted" in made.estimates.source
    assert rows(made)[".rodata weights"] == (8 * 28 + 4 * 72, 0) and ".text code" not in rows(made)
    assert made.estimates.flash_bytes == sum(flash for flash, _ in rows(made).values())
    left = made.details["memory"]["not_counted"][0]
    assert left == "machine code: no-such-gcc is not installed (install gcc-none)" and made.details["compiler"] == ""


@pytest.mark.skipif(shutil.which("cc") is None, reason="install the package gcc")
def test_a_compiler_that_cannot_make_code_for_the_core_is_told(model, tmp_path):
    wrong = replace(CHIP, facts={"compiler": "cc", "flags": ["-mcpu=no-such-core"], "package": "gcc"})
    made = compiled(model, tmp_path / "c", wrong).manifest
    assert made.details["memory"]["not_counted"][0] == "machine code: cc does not compile for this core (install gcc)"


def test_another_compiler_is_another_tool_of_the_step(tmp_path, monkeypatch):
    tools = {}
    for said in ("gcc 12", "gcc 13"):
        program = tmp_path / said.replace(" ", "") / "core-gcc"
        program.parent.mkdir()
        # It says what version it is, and hands all else on.
        program.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "{said}" || exec cc "$@"\n')
        program.chmod(0o755)
        facts = {"compiler": str(program), "package": "gcc"}
        tools[said] = platform_tools(McuC(), replace(CHIP, facts=facts))[str(program)]
    assert tools == {"gcc 12": "gcc 12", "gcc 13": "gcc 13"}
    absent = platform_tools(McuC(), replace(CHIP, facts={"compiler": "no-such-gcc", "package": "gcc-none"}))
    assert absent == {"no-such-gcc": "not used: no-such-gcc is not installed (install gcc-none)"}
    assert platform_tools(McuC(), replace(CHIP, target="other")) == {}


@pytest.mark.skipif(shutil.which("cc") is None, reason="install the package gcc")
def test_code_counts_when_the_model_is_fitted_into_flash(model, tmp_path):
    whole = compiled(model, tmp_path / "c").manifest
    constants = sum(size for name, (size, _) in rows(whole).items() if name != ".text code")
    kib = -(-constants // 1024)
    assert whole.estimates.flash_bytes > kib * 1024
    assert McuC().check(model, CHIP, McuOptions(flash_kib=kib)) == ()
    with pytest.raises(Unsupported) as error:
        compiled(model, tmp_path / "again", flash_kib=kib)
    (finding,) = error.value.findings
    assert finding.rule == "fits-flash" and "bytes of code" in finding.message


def test_height_and_width_are_not_swapped(model, tmp_path):
    text = (compiled(model, tmp_path / "c").path / "anynpu_model.h").read_text()
    for line in ("HEIGHT 6", "WIDTH 10", "CHANNELS 3", "ELEMENTS 180", "ZERO_POINT (0)"):
        assert f"#define ANYNPU_INPUT_0_{line}\n" in text
    assert "#define ANYNPU_OUTPUT_0_HEIGHT 3\n#define ANYNPU_OUTPUT_0_WIDTH 5\n" in text
    assert '#define ANYNPU_MODEL_FINGERPRINT "print"' in text


def test_channels_may_come_first(model, tmp_path):
    """As a TFLite file has them that was made from PyTorch."""
    turned = replace(model.manifest.inputs[0], layout="NCHW")
    first = replace(model, manifest=replace(model.manifest, inputs=(turned,)))
    text = (compiled(first, tmp_path / "c").path / "anynpu_model.h").read_text()
    for line in ("CHANNELS 6", "HEIGHT 10", "WIDTH 3"):
        assert f"#define ANYNPU_INPUT_0_{line}\n" in text


def test_the_same_model_gives_the_same_bytes(model, tmp_path):
    first, second = compiled(model, tmp_path / "a"), compiled(model, tmp_path / "b")
    assert [f.sha256 for f in first.manifest.files] == [f.sha256 for f in second.manifest.files]


def test_names_and_sections_reach_the_code(model, tmp_path):
    made = compiled(model, tmp_path / "c", name='odd "name" */ é', arena_section=".ram2", weights_section=".xip")
    assert 'section(".ram2")' in (made.path / "anynpu_model.c").read_text()
    assert 'section(".xip")' in (made.path / "anynpu_weights.c").read_text()
    found = rows(made.manifest)
    assert found[".ram2 arena"][0] == 0 and found[".ram2 arena"][1] >= made.manifest.details["arena"]["bytes"]
    assert sum(flash for name, (flash, _) in found.items() if name.startswith(".xip")) >= 8 * 28 + 4 * 72 + 12 * 12
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


OUT_OF_REACH = [
    ("SOFTMAX", 1e-8, 1 / 256, -128, "an input scale that is too small"),  # TFLite-Micro aborts
    ("SOFTMAX", 1e-12, 1 / 256, -128, "an input scale that is too small"),
    ("LOGISTIC", 1e-9, 1 / 256, -128, "an input scale that is too small"),
    ("TANH", 1e-30, 1 / 128, 0, "an input scale that is too small"),
    ("HARD_SWISH", 1e-9, 1e-9, 0, "an input scale that is too small"),
    ("RELU6", 1e-9, 1e-9, 0, "an input scale that is too small"),
    ("RELU", 1.0, 1e-10, 0, "scales that are too far apart"),
    ("QUANTIZE", 1.0, 1e-10, 0, "scales that are too far apart"),
]


@pytest.mark.parametrize(("kind", "scale", "out_scale", "zero", "reason"), OUT_OF_REACH)
def test_scales_that_micro_itself_fails_at_are_refused(kind, scale, out_scale, zero, reason, tmp_path):
    b = Builder()
    x = b.input((1, 4), scale=scale)
    y = b.tensor("out", (1, 4), scale=out_scale, zero_point=zero)
    b.operator(kind, [x], [y], **({"options": "SoftmaxOptions", "beta": 1.0} if kind == "SOFTMAX" else {}))
    (found,) = McuC().check(artifact(b.write(tmp_path / "m.tflite", [y])), CHIP, McuOptions())
    assert (found.rule, found.where) == ("operator", "out") and found.message == f"operator {kind} has {reason}"


@pytest.mark.parametrize("kind", ["SOFTMAX", "LOGISTIC"])
@pytest.mark.parametrize("scale", [1.6e-8, 20.0, 1e9])
def test_scales_at_either_end_have_a_kernel(kind, scale, tmp_path):
    b = Builder()
    x = b.input((1, 4), scale=scale)
    y = b.tensor("out", (1, 4), scale=1 / 256, zero_point=-128)
    b.operator(kind, [x], [y], **({"options": "SoftmaxOptions", "beta": 1.0} if kind == "SOFTMAX" else {}))
    assert McuC().check(artifact(b.write(tmp_path / "m.tflite", [y])), CHIP, McuOptions()) == ()


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


def test_the_kernels_are_those_that_the_chip_can_execute(model, tmp_path):
    made = compiled(model, tmp_path / "m55", plugins.platform("cortex-m55"))
    assert {layer["variant"] for layer in made.manifest.details["layers"]} == {"mve"} and made.manifest.notes == ()
    text = (made.path / "anynpu_model.c").read_text()
    for layer in made.manifest.details["layers"]:
        assert layer["expected_instructions"] < layer["plain_instructions"]
        assert f"; mve, {layer['expected_instructions']} instructions expected, " in text
    assert (made.path / "anynpu_mve.h").is_file()
    plain = compiled(model, tmp_path / "m0", plugins.platform("cortex-m0plus")).manifest
    assert plain.notes == ("plain C kernels: cortex-m0plus has neither the DSP extension (SMLAD) nor Helium (MVE)",)
    assert {layer["variant"] for layer in plain.details["layers"]} == {"plain"}


@pytest.mark.parametrize(("chip", "kernels", "lacks"), [("cortex-m4", "mve", "Helium"), ("riscv32", "dsp", "SMLAD")])
def test_kernels_that_the_chip_cannot_execute_are_refused_by_name(model, chip, kernels, lacks):
    with pytest.raises(Unsupported, match=f"kernels={kernels}: {chip} does not have .*{lacks}") as error:
        McuC().check(model, plugins.platform(chip), McuOptions(kernels=kernels))
    assert error.value.hint.startswith("-O kernels= takes auto, plain")


def test_a_platform_with_an_unknown_extension_is_refused(model):
    wrong = replace(CHIP, facts={**CHIP.facts, "extensions": ["sse"]})
    with pytest.raises(ConfigError, match="no such extension: sse"):
        McuC().check(model, wrong, McuOptions())


@pytest.mark.skipif(shutil.which("arm-none-eabi-gcc") is None, reason="install the package gcc-arm-none-eabi")
def test_size_weighs_code_and_constants_of_the_variants(model, tmp_path):
    chip = plugins.platform("cortex-m55")
    small, fast = (compiled(model, tmp_path / o, chip, optimise=o).manifest for o in ("size", "speed"))
    plain = compiled(model, tmp_path / "plain", chip, optimise="size", kernels="plain").manifest
    assert "-Os" in small.details["flags"] and "-O3" not in small.details["flags"]
    sizes = [made.details["memory"]["flash_bytes"] for made in (small, plain, fast)]
    assert sizes == sorted(sizes) and sizes[0] < sizes[2]


def test_the_smallest_form_of_each_layer_is_of_one_operator_together(model):
    graph = read_graph(model.main)
    forms = {core: layers_of(graph, core)[0] for core in (PLAIN, Core(("dsp", "mve"), small=True))}
    plain, small = forms.values()
    assert flash_bytes(small) <= flash_bytes(plain)
    by_kind = {(layer.node.kind, layer.variant) for layer in small}
    assert len(by_kind) == len({kind for kind, _ in by_kind})


def test_the_manifest_is_plain_data(model, tmp_path):
    assert to_dict(compiled(model, tmp_path / "c").manifest)["details"]["machine"] == ""
