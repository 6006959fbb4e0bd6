"""The three faults of firmware for NPUs that cannot occur here, on a model that is not square, and the glue itself."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import rect_model
from project_tools import need, sh

from anynpu.artifact import Artifact, Manifest, seal
from anynpu.errors import ConfigError, IntegrityError, Unsupported
from anynpu.firmware.project.arena import _starts, measure, stand_in
from anynpu.firmware.project.model import defines
from anynpu.firmware.project.operators import METHODS, resolver_calls
from anynpu.firmware.project.tree import make_project
from anynpu.targets.flatbuffer import operators

STUBS = Path(__file__).parent / "stubs"


def text(project, name: str) -> str:
    return project.files[name].decode()


def resealed(artifact: Artifact, folder: Path, **changes) -> Artifact:
    """Returns a copy of the artifact with another manifest."""
    shutil.copytree(artifact.path, folder)
    (folder / "manifest.json").unlink()
    m = artifact.manifest
    fields = {"inputs": m.inputs, "outputs": m.outputs, "details": m.details, "estimates": m.estimates, **changes}
    return seal(folder, Manifest(m.format, m.main, fingerprint=m.fingerprint, **fields), m.step, rect_model.MADE)


def test_fault_1_a_model_that_is_not_compiled_is_refused(npu_out):
    for board, words in (("hxwe2", "Vela"), ("ethos-u", "Vela"), ("mcxn947", "neutron-converter")):
        with pytest.raises(Unsupported, match=rf"is not compiled by .*{words}.*none of it would run on the NPU"):
            make_project(Artifact.open(npu_out / "tflm"), board)
    with pytest.raises(Unsupported, match="is not compiled by NXP"):
        make_project(Artifact.open(npu_out / "hxwe2"), "mcxn947")
    with pytest.raises(Unsupported, match="takes generated C"):
        make_project(Artifact.open(npu_out / "tflm"), "host")


def test_fault_1_what_is_inside_is_the_compiled_file_byte_for_byte(npu_out):
    artifact = Artifact.open(npu_out / "hxwe2")
    source = text(make_project(artifact, "hxwe2"), "model/anynpu_model_data.c")
    assert "__attribute__((aligned(16)))" in source
    body = source[source.index("= {\n") :]
    data = bytes(int(value) for value in re.findall(r"\d+", body))
    assert data == artifact.main.read_bytes() and b"ethos-u" in data


def test_fault_1_an_artifact_for_another_npu_is_refused(npu_out):
    with pytest.raises(Unsupported, match=r"has an ethos-u55-64, and .* is compiled for ethos-u55-128"):
        make_project(Artifact.open(npu_out / "ethos-u55-128"), "hxwe2")
    assert make_project(Artifact.open(npu_out / "ethos-u55-128"), "ethos-u").report["chip"] == "ethos-u55-128"


def test_fault_2_the_arena_is_measured(npu_out):
    artifact = Artifact.open(npu_out / "hxwe2")
    project = make_project(artifact, "hxwe2")
    header = text(project, "model/anynpu_model.h")
    (arena,) = re.findall(r"#define ANYNPU_ARENA_BYTES (\d+)", header)
    planned = artifact.manifest.estimates.sram_bytes
    assert planned < int(arena) < planned + 4096
    assert f"Vela plans {planned} of them" in header and "64-bit host" in header
    raw = stand_in(artifact.main, "ethos-u")
    addresses = sum(2 * 16 * -(-len(op.tensors) // 2) for op in operators(artifact.main) if op.custom_code == "ethos-u")
    assert _starts(raw, int(arena) - addresses)
    assert not _starts(raw, int(arena) - addresses - 64), "an arena that is much too large is no measurement"
    assert not _starts(raw, planned), "what Vela plans is not enough for the interpreter's own tables"


def test_flash_and_ram_of_a_compiled_model_are_told_part_by_part(npu_out):
    artifact = Artifact.open(npu_out / "hxwe2")
    memory = make_project(artifact, "hxwe2").report["memory"]
    found = {each["name"]: each["flash_bytes"] + each["ram_bytes"] for each in memory["sections"]}
    assert found[".bss TFLite-Micro arena"] == memory["ram_bytes"] > artifact.manifest.estimates.sram_bytes
    assert memory["flash_bytes"] == artifact.main.stat().st_size == artifact.manifest.details["file_bytes"]
    assert found[".rodata NPU weights"] == artifact.manifest.estimates.flash_bytes  # what Vela counts as flash
    assert 0 < found[".rodata NPU command stream"] < memory["flash_bytes"] - found[".rodata NPU weights"]
    converted = make_project(Artifact.open(npu_out / "mcxn947"), "mcxn947").report["memory"]["sections"]
    assert [each["name"] for each in converted] == [".rodata TFLite file", ".bss TFLite-Micro arena"]


def test_fault_2_the_tables_of_the_interpreter_grow_with_the_model(npu_out, tmp_path):
    small = Artifact.open(npu_out / "ethos-u55-128")
    rect_model.tflite(tmp_path / "whole")
    whole = rect_model.compiled(tmp_path / "whole", "ethos-u55-128")
    over = [measure(a.main, "ethos-u") - a.manifest.estimates.sram_bytes for a in (small, whole)]
    assert over[0] > over[1], "two operators need more than one"


def test_fault_3_height_and_width_are_not_swapped(npu_out, c_artifact):
    for artifact, board in ((Artifact.open(npu_out / "hxwe2"), "hxwe2"), (c_artifact, "host")):
        header = text(make_project(artifact, board), "model/anynpu_model.h")
        for word, value in (("HEIGHT", 10), ("WIDTH", 14), ("CHANNELS", 3), ("ELEMENTS", 420)):
            assert f"#define ANYNPU_INPUT_0_{word} {value}\n" in header
        assert "#define ANYNPU_INPUT_0_SCALE 0.05f\n" in header and "#define ANYNPU_INPUT_0_ZERO_POINT (0)\n" in header


def test_fault_3_a_header_or_a_manifest_that_swaps_them_is_refused(npu_out, c_artifact, tmp_path):
    swapped = (rect_model.spec("image", (1, 14, 10, 3)),)
    vectors = npu_out / "evidence" / "hxwe2" / "vectors.npz"
    wrong = resealed(Artifact.open(npu_out / "hxwe2"), tmp_path / "vela", inputs=swapped)
    with pytest.raises(IntegrityError, match=r"tensor image is int8 \[1, 10, 14, 3\], not int8 \[1, 14, 10, 3\]"):
        make_project(wrong, "hxwe2", vectors)
    wrong = resealed(c_artifact, tmp_path / "c", inputs=swapped)
    with pytest.raises(IntegrityError, match="ANYNPU_INPUT_0_HEIGHT is 10, but input image has 14"):
        make_project(wrong, "host", vectors)


def test_fault_3_vectors_that_swap_them_are_refused(c_artifact, tmp_path):
    known = rect_model.answers(Artifact.open(c_artifact.path.parent / "tflm"))
    known["input:image"] = known["input:image"].transpose(0, 2, 1, 3)
    np.savez(tmp_path / "swapped.npz", **known)
    with pytest.raises(ConfigError, match=r"tensor image has shape \[1, 10, 14, 3\], not \[1, 14, 10, 3\]") as caught:
        make_project(c_artifact, "host", tmp_path / "swapped.npz")
    assert "axes in another order" in caught.value.hint


def test_the_resolver_holds_exactly_the_operators_that_are_left(npu_out):
    source = text(make_project(Artifact.open(npu_out / "hxwe2"), "hxwe2"), "model/anynpu_model.cc")
    assert re.findall(r"resolver->(\w+)\(", source) == ["AddSpaceToBatchNd", "AddEthosU"]
    assert "MicroMutableOpResolver<2>" in source
    source = text(make_project(Artifact.open(npu_out / "mcxn947"), "mcxn947"), "model/anynpu_model.cc")
    assert "AddCustom(tflite::GetString_NEUTRON_GRAPH(), tflite::Register_NEUTRON_GRAPH())" in source
    assert "AddEthosU" not in source and "neutron/neutron.h" in source


def test_operators_have_the_names_that_tflite_micro_gives_them():
    irregular = {"CONV_2D": "Conv2D", "PADV2": "PadV2", "BATCH_MATMUL": "BatchMatMul", "L2_POOL_2D": "L2Pool2D"}
    regular = {"ADD_N": "AddN", "ARG_MAX": "ArgMax", "RELU6": "Relu6", "SPLIT_V": "SplitV", "SVDF": "Svdf"}
    regular |= {"RESIZE_NEAREST_NEIGHBOR": "ResizeNearestNeighbor", "BATCH_TO_SPACE_ND": "BatchToSpaceNd"}
    assert {name: METHODS[name] for name in (irregular | regular)} == irregular | regular


def test_an_operator_that_tflite_micro_lacks_is_refused(tmp_path):
    rect_model.tflite(tmp_path)
    rect_model.rename_operator(tmp_path / "tflm" / "model.tflite", tmp_path / "same.tflite", b"x")
    (first, *_) = operators(tmp_path / "same.tflite")
    strange = type(first)(0, "STABLEHLO_CASE", "layer", (), ())
    with pytest.raises(Unsupported, match=r"no operator STABLEHLO_CASE \(layer\)"):
        resolver_calls([first, strange])


def test_a_converted_file_of_the_user_must_be_of_the_same_network(npu_out, tmp_path):
    file = npu_out / "mcxn947" / "model_neutron.tflite"
    project = make_project(Artifact.open(npu_out / "tflm"), "mcxn947", compiled=file)
    assert project.report["engine"] == "neutron" and project.report["vectors"] == 5
    rect_model.tflite(tmp_path)
    with pytest.raises(ConfigError, match="has other inputs or outputs than the artifact"):
        make_project(Artifact.open(tmp_path / "tflm"), "mcxn947", compiled=file)


def real_tensors(artifact: Artifact, arena: int) -> str:
    """Returns what the real file needs, as the stand-in for TFLite-Micro reads it."""
    kinds = {op.custom_code or op.kind for op in operators(artifact.main)}
    shapes = [s.shape for s in (*artifact.manifest.inputs, *artifact.manifest.outputs)]
    given, made = (f"{{{len(s)}, {{{', '.join(map(str, s))}}}}}" for s in shapes)
    return (
        f"#define REAL_ARENA {arena}u\n#define REAL_OPERATORS {len(kinds)}u\n"
        f"#define REAL_INPUT {given}\n#define REAL_OUTPUT {made}\n"
    )


@pytest.mark.parametrize(("more_arena", "last"), [(0, "kat-result PASS 5/5"), (1, "anynpu_init returned 3]")])
def test_the_glue_runs_and_notices_an_arena_that_is_too_small(npu_out, c_artifact, tree, more_arena, last):
    need("cc", "g++")
    artifact = Artifact.open(npu_out / "hxwe2")
    folder, host = tree(artifact, "ethos-u"), tree(c_artifact, "host")
    arena = int(defines(folder / "model" / "anynpu_model.h")["ANYNPU_ARENA_BYTES"])
    (folder / "vectors" / "real_tensors.h").write_text(real_tensors(artifact, arena + more_arena))
    include = ["-Iapp", "-Imodel", "-Ivectors", f"-I{STUBS}/tflm", "-DREAL_TENSORS", "-DANYNPU_SELF_TEST=1"]
    strict = ["-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined"]
    sources = [*folder.glob("app/*.c"), *folder.glob("vectors/*.c"), *folder.glob("model/*.c"), *host.glob("board/*.c")]
    assert sh("cc", "-std=c99", *strict, *include, "-c", *map(str, sources), cwd=folder).returncode == 0
    done = sh(
        "g++", *strict, *include, "model/anynpu_model.cc", *map(str, folder.glob("*.o")), "-o", "test", cwd=folder
    )
    assert done.returncode == 0, done.stderr
    done = sh("./test", cwd=folder)
    assert done.stdout.splitlines()[-1].endswith(last), done.stdout + done.stderr
    assert done.returncode == more_arena
