"""The Linux project for CVITEK boards, built and run against a stand-in for cviruntime."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from project_tools import need, sh

from anynpu.artifact import Artifact, Made, Manifest, Step, seal
from anynpu.cli.firmware import write_tree
from anynpu.errors import ConfigError, Unsupported
from anynpu.firmware.project import templates
from anynpu.firmware.project.tree import make_project
from anynpu.tensors import Quantization, TensorSpec

STUB = Path(__file__).parent / "stubs" / "cvi"
FILES = Path(str(resources.files("anynpu.firmware.project"))) / "files" / "cvi-linux"
SANITIZE = "-fsanitize=address,undefined"
COMPILE = ["-std=c++11", "-O0", "-Wall", "-Wextra", "-Wconversion", "-Werror", SANITIZE, "-fno-sanitize-recover=all"]
FORMATS = {"float32": 0, "int32": 1, "bfloat16": 3, "int16": 4, "int8": 6, "uint8": 7}
MADE = Made("", 0.0)


@dataclass
class Case:
    """Tensors as (name, name of the runtime, format there, its scale, its zero point, number of values)."""

    inputs: list[tuple] = field(default_factory=lambda: [("image", "image", "float32", 0, 0, 12)])
    outputs: list[tuple] = field(default_factory=lambda: [("scores", "scores_Gemm_f32", "float32", 0, 0, 10)])
    stored: str = "float32"
    """The type in which the artifact has its tensors, where they are quantised there too."""
    chip: str = "cv180x"
    main: str = "model.cvimodel"
    fault: str = ""
    turned: bool = False
    """Whether the runtime has inputs and outputs in the other order."""


def spec(case: Case, row: tuple, is_input: bool) -> TensorSpec:
    name, _, _, scale, zero, size = row
    if case.stored == "float32":
        return TensorSpec(name, (1, size), "float32")
    step = 1 / scale if is_input else scale
    return TensorSpec(name, (1, size), case.stored, quantization=Quantization((step,), (zero,)))


def computed(case: Case, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Returns what the stand-in computes, as real numbers."""
    found = []
    inputs = inputs[::-1] if case.turned else inputs
    for place, row in enumerate(case.outputs):
        number = len(case.outputs) - 1 - place if case.turned else place
        index = np.arange(row[5])
        value = 2 * inputs[0][:, index % inputs[0].shape[1]] - 0.5 + number
        for other in inputs[1:]:
            value = value + other[:, index % other.shape[1]]
        found.append(value.astype(np.float32))
    return found


def model_text(case: Case) -> str:
    lines = [case.fault] if case.fault else []
    order = reversed if case.turned else list
    for kind, rows in (("input", case.inputs), ("output", case.outputs)):
        lines += [f"{kind} {row[1]} {FORMATS[row[2]]} {row[3]} {row[4]} {row[5]} 0" for row in order(rows)]
    return "\n".join(lines) + "\n"


def artifact(out: Path, case: Case) -> Artifact:
    """Returns a compiled model with its evidence, as a build for a CVITEK chip leaves them."""
    name = case.chip
    folder = out / name
    folder.mkdir(parents=True)
    (folder / case.main).write_text(model_text(case))
    inputs = tuple(spec(case, row, True) for row in case.inputs)
    outputs = tuple(spec(case, row, False) for row in case.outputs)
    names = {"inputs": {r[0]: r[1] for r in case.inputs}, "outputs": {r[0]: r[1] for r in case.outputs}}
    details = {"processor": case.chip, "names": names}
    manifest = Manifest("tpu-model", case.main, inputs, outputs, "5a" * 32, details=details)
    made = seal(folder, manifest, Step("cvi", {"model": "0" * 64}, platform=name), MADE)
    draw = np.random.default_rng(5)
    given = [draw.uniform(-1, 1, (4, row[5])).astype(np.float32) for row in case.inputs]
    stored_in = [s.to_stored(x) for s, x in zip(inputs, given, strict=True)]
    known = [s.to_real(x) for s, x in zip(inputs, stored_in, strict=True)]
    wanted = [s.to_stored(y) for s, y in zip(outputs, computed(case, known), strict=True)]
    arrays = {f"input:{s.name}": x for s, x in zip(inputs, stored_in, strict=True)}
    arrays |= {f"output:{s.name}": y for s, y in zip(outputs, wanted, strict=True)}
    evidence = out / "evidence" / name
    evidence.mkdir(parents=True)
    np.savez(evidence / "vectors.npz", **arrays)
    (evidence / "verification.json").write_text('{"executed": "TPU-MLIR\'s simulator of the chip on this host"}\n')
    seal(evidence, Manifest("evidence", "verification.json"), Step("verify", {"candidate": made.digest}), MADE)
    return made


@pytest.fixture(scope="session")
def sdk(tmp_path_factory) -> Path:
    """An SDK of ours: the header and a library that computes a known function."""
    need("g++", "make")
    folder = tmp_path_factory.mktemp("sdk")
    shutil.copytree(STUB / "include", folder / "include")
    (folder / "lib").mkdir()
    flags = ["-std=c++11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{folder}/include"]
    done = sh("g++", *flags, str(STUB / "cviruntime.cpp"), "-o", "lib/libcviruntime.so", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def tree(tmp_path) -> Path:
    return tmp_path / "tree"


def project(tree: Path, made: Artifact, **more) -> Path:
    write_tree(make_project(made, "cvi-linux", **more).files, tree, overwrite=True)
    return tree


def make(folder: Path, sdk: Path, *goals: str, **more: str):
    words = [f"{k}={v}" for k, v in {"CVI_LIBS": "", "EXTRA_LIBS": "", **more}.items()]
    flags = ["OPTIMISE=-O1", "CXXFLAGS=-Werror"]
    return sh("make", *goals, f"TPU_SDK_PATH={sdk}", *words, *flags, cwd=folder)


def run(folder: Path, sdk: Path, *arguments: str):
    return sh("build/anynpu-cvi", *arguments, cwd=folder, env={"LD_LIBRARY_PATH": str(sdk / "lib")})


QUANTISED = Case(
    [("image", "image_si8", "int8", 127.0, 0, 12)], [("scores", "scores_Gemm_si8", "int8", 0.05, 3, 10)], "int8"
)
CASES = {
    "floats": Case(),
    "integers": QUANTISED,
    "float border, integers inside": Case(QUANTISED.inputs, QUANTISED.outputs),
    "zero point": Case([("x", "x", "uint8", 100.0, 128, 9)], [("y", "y", "uint8", 0.02, 120, 9)], "uint8"),
    "bfloat16": Case([("x", "x", "bfloat16", 0, 0, 9)], [("y", "y", "bfloat16", 0, 0, 9)]),
    "wide": Case([("x", "x", "int16", 8000.0, 0, 9)], [("y", "y", "int16", 0.0002, 0, 9)]),
    "several": Case(
        [("b", "b_in", "float32", 0, 0, 6), ("a", "a_in", "int8", 127.0, 0, 4)],
        [("second", "second_f32", "float32", 0, 0, 5), ("first", "first_f32", "float32", 0, 0, 7)],
    ),
}
CASES["another order"] = Case(CASES["several"].inputs, CASES["several"].outputs, turned=True)


@pytest.fixture(scope="session")
def objects(tmp_path_factory, sdk) -> list[str]:
    """The parts of the program that no model changes, compiled once."""
    folder = tmp_path_factory.mktemp("objects")
    sources = [str(FILES / "src" / f"{name}.cpp") for name in ("cvi_model", "answers")]
    done = sh("g++", *COMPILE, "-isystem", f"{sdk}/include", "-c", *sources, cwd=folder)
    assert done.returncode == 0, done.stderr
    return [str(path) for path in sorted(folder.glob("*.o"))]


def link(folder: Path, sdk: Path, objects: list[str]) -> None:
    """Builds the program of a tree as its Makefile does."""
    (folder / "build").mkdir()
    include = ["-Isrc", "-isystem", f"{sdk}/include"]
    where = [f"-L{sdk}/lib", "-lcviruntime", "-o", "build/anynpu-cvi"]
    done = sh("g++", *COMPILE, *include, "src/main.cpp", *objects, *where, cwd=folder)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_known_answer_passes(tree, tmp_path, sdk, objects, case):
    folder = project(tree, artifact(tmp_path, case))
    link(folder, sdk, objects)
    done = run(folder, sdk)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kat-result PASS 4/4" in done.stdout
    assert [line.split(" largest")[0] for line in done.stdout.splitlines() if line.startswith("kat ")] == [
        f"kat {i} PASS" for i in range(4)
    ]
    assert "stub: model freed" in done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory, sdk) -> tuple[Path, Path]:
    """A tree that its Makefile has built and checked, and its artifact's folder."""
    room = tmp_path_factory.mktemp("built")
    folder = project(room / "tree", artifact(room, QUANTISED))
    done = make(folder, sdk, "check")
    assert done.returncode == 0 and "kat-result PASS 4/4" in done.stdout, done.stdout + done.stderr
    return folder, room


def other(tmp_path: Path, **changes) -> str:
    """Returns a model file of another runtime behaviour or shape."""
    file = tmp_path / "other.cvimodel"
    file.write_text(model_text(Case(QUANTISED.inputs, QUANTISED.outputs, **changes)))
    return str(file)


def test_a_wrong_answer_fails_that_vector_alone(built, sdk, tmp_path):
    folder, _ = built
    rows = np.fromfile(folder / "vectors" / "vectors.bin", "<f4").reshape(4, 22)
    rows[2, 12 + 7] += 1.0
    rows.tofile(tmp_path / "wrong.bin")
    done = run(folder, sdk, "--vectors", str(tmp_path / "wrong.bin"))
    assert done.returncode == 1
    lines = [line for line in done.stdout.splitlines() if line.startswith("kat")]
    assert [line.split()[2] for line in lines[:4]] == ["PASS", "PASS", "FAIL", "PASS"]
    assert lines[2].startswith("kat 2 FAIL output scores[7] expected ")
    assert lines[4] == "kat-result FAIL 3/4"
    assert run(folder, sdk, "--tolerance", "0.9", "--vectors", str(tmp_path / "wrong.bin")).returncode == 0


def test_garbage_from_the_board_fails(built, sdk, tmp_path):
    folder, _ = built
    done = run(folder, sdk, "--model", other(tmp_path, fault="garbage"))
    assert done.returncode == 1 and done.stdout.splitlines()[-1] == "kat-result FAIL 0/4"


def test_nan_fails(tree, tmp_path, sdk, objects):
    folder = project(tree, artifact(tmp_path, Case()))
    link(folder, sdk, objects)
    file = tmp_path / "nan.cvimodel"
    file.write_text(model_text(Case(fault="nan")))
    done = run(folder, sdk, "--model", str(file))
    assert done.returncode == 1 and "scores[3] expected" in done.stdout and "got nan" in done.stdout


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("no-forward", "CVI_NN_Forward returned -1"),
        ("no-tensors", "CVI_NN_GetInputOutputTensors returned -1"),
        ("input more 0 0 0 3 0", "the model has 2 inputs, the project was made for 1"),
    ],
)
def test_what_cannot_run_is_one_sentence_and_status_2(built, sdk, tmp_path, line, words):
    folder, _ = built
    file = Path(other(tmp_path))
    file.write_text(file.read_text() + line + "\n")
    done = run(folder, sdk, "--model", str(file))
    assert done.returncode == 2 and words in done.stderr and done.stderr.startswith("anynpu-cvi: ")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("image_si8", "picture", "input image_si8: the model has no such tensor"),
        (" 12 0", " 13 0", "input image_si8: holds 13 values, the project was made for 12"),
        (" 12 0", " 12 1", "rows are padded for the video hardware"),
    ],
)
def test_a_model_that_is_another_is_refused(built, sdk, tmp_path, old, new, words):
    folder, _ = built
    file = Path(other(tmp_path))
    file.write_text(file.read_text().replace(old, new))
    done = run(folder, sdk, "--model", str(file))
    assert done.returncode == 2 and words in done.stderr


def test_wrong_words_and_files_are_refused(built, sdk, tmp_path):
    folder, _ = built
    for arguments in (["--frobnicate", "1"], ["--bench", "x"], ["--tolerance", "-1"], ["--model"], ["--run", "a"]):
        done = run(folder, sdk, *arguments)
        assert done.returncode == 2 and "no such option" in done.stderr, arguments
    (tmp_path / "short.bin").write_bytes(bytes(12))
    assert "holds 12 bytes, not 352" in run(folder, sdk, "--vectors", str(tmp_path / "short.bin")).stderr
    assert "returned -1" in run(folder, sdk, "--model", "nowhere").stderr
    assert "cannot be read" in run(folder, sdk, "--run", "nowhere", str(tmp_path / "out")).stderr


def test_values_of_the_users_own_go_through(built, sdk, tmp_path):
    folder, _ = built
    values = np.linspace(-0.9, 0.9, 12).astype("<f4")
    values.tofile(tmp_path / "in.bin")
    done = run(folder, sdk, "--run", str(tmp_path / "in.bin"), str(tmp_path / "out.bin"))
    assert done.returncode == 0, done.stderr
    stored = np.round(values * 127) / 127
    (wanted,) = computed(QUANTISED, [stored[None]])
    got = np.fromfile(tmp_path / "out.bin", "<f4")
    assert np.abs(got - wanted[0]).max() <= 0.0251, "half a step of 0.05"


def test_the_stopwatch(built, sdk):
    done = run(built[0], sdk, "--bench", "20")
    assert done.returncode == 0 and "bench n 20 min " in done.stdout


def test_the_pack_holds_what_the_board_needs(built, sdk, tmp_path):
    folder, _ = built
    assert make(folder, sdk, "pack").returncode == 0
    assert sh("tar", "-xzf", str(folder / "build" / "anynpu-cvi.tar.gz"), cwd=tmp_path).returncode == 0
    done = sh("./anynpu-cvi", cwd=tmp_path, env={"LD_LIBRARY_PATH": str(sdk / "lib")})
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "kat-result PASS 4/4"


def test_what_was_made_for_another_core_is_made_again(built, sdk, tmp_path):
    folder = shutil.copytree(built[0], tmp_path / "tree")
    assert "g++" in make(folder, sdk, "BUILD=out/one").stdout
    assert "g++" not in make(folder, sdk, "BUILD=out/one").stdout
    again = make(folder, sdk, "BUILD=out/one", CPU_FLAGS="-DANOTHER_CORE")
    assert again.stdout.count("-DANOTHER_CORE") == 4, again.stdout + again.stderr
    assert make(folder, sdk, "BUILD=out/one", "pack", CPU_FLAGS="-DANOTHER_CORE").returncode == 0
    listed = sh("tar", "-tzf", "out/one/anynpu-cvi.tar.gz", cwd=folder).stdout.split()
    assert {"anynpu-cvi", "model/model.cvimodel", "vectors/vectors.bin"} <= set(listed)


def test_paths_with_blanks_and_umlauts(built, sdk, tmp_path):
    folder = shutil.copytree(built[0], tmp_path / "mein Gerät", ignore=shutil.ignore_patterns("build"))
    own = shutil.copytree(sdk, tmp_path / "für das Board")
    done = make(folder, own, "check", "pack")
    assert done.returncode == 0 and "kat-result PASS 4/4" in done.stdout, done.stdout + done.stderr


def test_cmake_builds_and_tests_it(built, sdk, tmp_path):
    need("cmake", "g++")
    folder, _ = built
    assert "TPU_SDK_PATH is not set" in sh("cmake", "-B", str(tmp_path / "no"), cwd=folder).stderr
    given = [f"-DTPU_SDK_PATH={sdk}", "-DCVI_LIBS=", "-DEXTRA_LIBS=", "-DCMAKE_CXX_FLAGS=-Werror"]
    done = sh("cmake", "-B", str(tmp_path / "b"), *given, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert sh("cmake", "--build", str(tmp_path / "b"), cwd=folder).returncode == 0
    assert sh("ctest", "--test-dir", str(tmp_path / "b"), cwd=folder).returncode == 0


def test_the_sdk_that_is_not_named_is_asked_for(built):
    done = sh("make", "-B", cwd=built[0], env={"PATH": "/usr/bin:/bin"})
    assert done.returncode != 0 and "TPU_SDK_PATH is not set: the folder of CVITEK's TPU SDK" in done.stderr
    done = sh("make", "-nB", "CVI_SDK=/sdk", "ARCH=riscv64", cwd=built[0])
    assert "riscv64-unknown-linux-musl-g++" in done.stdout and '-L"/sdk/lib" -lcviruntime -lcvikernel' in done.stdout


@pytest.mark.parametrize("prefix", ["riscv64-linux-gnu-", "aarch64-linux-gnu-"])
def test_it_compiles_for_the_boards(built, sdk, tmp_path, prefix):
    need(f"{prefix}g++")
    folder, _ = built
    for source in sorted((folder / "src").glob("*.cpp")):
        include = [f"-I{folder}/src", f"-I{sdk}/include"]
        done = sh(
            f"{prefix}g++", "-std=c++11", "-Wall", "-Wextra", "-Werror", *include, "-c", str(source), cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr


def test_the_tree_is_the_same_every_time_and_says_what_it_is(built):
    _, room = built
    made = Artifact.open(room / "cv180x")
    first, second = (make_project(made, "cvi-linux").files for _ in range(2))
    assert first == second
    for name, data in first.items():
        assert str(room).encode() not in data, name
        assert name.startswith(("model/", "vectors/")) or not templates.PLACE.search(data.decode()), name
    assert first["model/model.cvimodel"] == made.main.read_bytes()
    report = json.loads(first["report.json"])
    assert (report["board"], report["engine"], report["vectors"]) == ("cvi-linux", "cviruntime", 4)
    assert report["memory"]["flash_bytes"] == made.main.stat().st_size
    readme = first["README.md"].decode()
    assert "They come from TPU-MLIR's simulator of the chip on this host." in readme and "within 2 % of" in readme
    assert '{"scores", "scores_Gemm_si8", 10u, ' in first["src/anynpu_tensors.h"].decode()
    few = make_project(made, "cvi-linux", count=2)
    assert few.report["vectors"] == 2 and len(few.files["vectors/vectors.bin"]) == 2 * 22 * 4


def test_the_verb_writes_it(built, cli):
    _, room = built
    done = cli("firmware", str(room / "cv180x"), "-b", "cvi-linux", "-o", "board")
    assert done.returncode == 0, done.stderr
    assert "4 known answers" in done.stdout and "arena" not in done.stdout


def test_what_is_no_cvimodel_is_refused(tmp_path, c_artifact):
    with pytest.raises(Unsupported, match=r"takes a \.cvimodel, and .* is c"):
        make_project(c_artifact, "cvi-linux")
    bmodel = artifact(tmp_path / "bm", Case(chip="bm1684x", main="model.bmodel"))
    with pytest.raises(Unsupported, match=r"model\.bmodel for bm1684x needs SOPHON's bmruntime, for which there is no"):
        make_project(bmodel, "cvi-linux")
    with pytest.raises(Unsupported, match="does not run what is compiled for cv186x"):
        make_project(artifact(tmp_path / "cv", Case(chip="cv186x")), "cvi-linux")
    with pytest.raises(ConfigError, match="takes no --compiled file"):
        make_project(bmodel, "cvi-linux", compiled=Path("x"))
