"""The C that executes streams in firmware trees: what the twin stores, byte by byte, and safe with any stream."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ethosu.vela", reason="pip install 'anynpu[build]'")
pytest.importorskip("tflite_micro", reason="pip install 'anynpu[build]'")


from compiled import CHIPS, Refused, compile_model, micro, samples
from emulated import defects_of
from excuses import excuse
from random_graphs import Drawer
from reference import FILES, STRICT, WORKING_BYTES, Reference, ReferenceTwin, build, payloads
from run_graphs import MODES
from test_damage import network
from vela_graphs import draw_any

from anynpu.errors import DeviceError, IntegrityError
from anynpu.firmware.project.working import working_bytes
from anynpu.runtime.ethos_u.model import NpuCall, read_model
from anynpu.targets.flatbuffer import operators

pytestmark = [
    pytest.mark.build,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="install the package gcc"),
]
GRAPHS = int(os.environ.get("ANYNPU_TEST_REFERENCE", "11"))
"""How many random graphs over all chips; 2,000 for a thorough run."""
FOUND = (60_073, 60_394)
"""Seeds that were wrong once: an output that lies where the weights of its own operation were."""
MUTATIONS = int(os.environ.get("ANYNPU_TEST_MUTATIONS", "150"))
"""How many mutated streams for each chip; 33,000 for a thorough run."""
SANITIZERS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Reference:
    return Reference(build(tmp_path_factory.mktemp("reference"), "-O1"))


def differing(file: Path, source: Path, reference: Reference, count: int = 3) -> list[str]:
    """Returns where the C parts from the twin, or both from TFLite-Micro, where it has the operators."""
    model = read_model(file)
    twin = ReferenceTwin(model, payloads(file), reference)
    inputs = samples(model, count)
    got = twin.run_batch(inputs)
    try:
        wanted = micro(source, inputs, len(got))
    except (IntegrityError, RuntimeError):
        return twin.differing
    same = all(np.array_equal(g.reshape(w.shape), w) for g, w in zip(got, wanted, strict=True))
    return twin.differing + ([] if same else ["other values than TFLite-Micro"])


def test_random_graphs_leave_the_same_arena_behind_as_the_twin(reference, tmp_path):
    wrong, executed = {}, 0
    for number in (*range(GRAPHS), *FOUND):
        seed = number if number in FOUND else 50_000 + number
        chip, turn = CHIPS[number % len(CHIPS)], number // len(CHIPS)
        modes = MODES[chip[:9]]
        source, kinds = draw_any(seed, tmp_path / "net.tflite")
        try:
            goal, mode = ("Performance", "Size")[turn % 2], modes[turn // 2 % len(modes)]
            file = compile_model(source, chip, tmp_path, goal, mode)
            found = differing(file, source, reference)
        except (Refused, IntegrityError, DeviceError):
            continue  # by Vela, by the twin, or an operator on the CPU that TFLite-Micro lacks
        executed += 1
        if excuse(source, chip) or defects_of(operators(source), chip):
            found = [f for f in found if "TFLite-Micro" not in f]
        if found:
            wrong[f"seed {seed} {chip} {kinds}"] = found[0]
    assert wrong == {}
    assert executed > GRAPHS // 2


@pytest.mark.parametrize("chip", ["ethos-u55-256", "ethos-u65-512", "ethos-u85-256", "ethos-u85-2048"])
def test_16_bits_and_tables(chip, reference, tmp_path):
    d = Drawer(np.random.default_rng(3))
    x = d.input((1, 6, 5, 16), "int16", 1 / 4096, 0)
    for kind in ("LOGISTIC", "TANH"):
        out = d.new(x.shape, "int16", 1 / 32768, 0)
        d.operator(kind, [x.number], [out.number])
        x = out
    source = d.write(tmp_path / "net.tflite")
    assert differing(compile_model(source, chip, tmp_path), source, reference, 8) == []


def test_a_convolution_that_is_summed_up_tap_by_tap_has_its_bias_once(reference, tmp_path):
    d = Drawer(np.random.default_rng(3))
    x = d.input((1, 32, 32, 3), "int8", 0.03, 5)
    padded, out = d.like(x, (1, 34, 34, 3)), d.new((1, 4, 4, 16), "int8", 0.3, -1)
    d.operator("PAD", [x.number, d.ints([[0, 0], [1, 1], [1, 1], [0, 0]])], [padded.number], "PadOptions")
    weights = d.tensor((16, 8, 8, 3), "int8", 0.005, 0, d.rng.integers(-127, 127, (16, 8, 8, 3)))
    bias = d.tensor((16,), "int32", 0.03 * 0.005, 0, 500 * np.arange(16))
    options = {"strideW": 8, "strideH": 8, "dilationWFactor": 1, "dilationHFactor": 1, "padding": 1}
    d.operator("CONV_2D", [padded.number, weights, bias], [out.number], "Conv2DOptions", **options)
    source = d.write(tmp_path / "net.tflite")
    assert differing(compile_model(source, "ethos-u85-256", tmp_path), source, reference) == []


def test_the_working_memory_that_a_tree_gets_is_enough_and_not_much_more(tmp_path):
    """Built with exactly what a stream needs it runs; with half of that it says what is missing."""
    source = network(tmp_path / "net.tflite")
    for chip, parts in (("ethos-u65-512", (1, 2)), ("ethos-u85-512", (1,))):
        file = compile_model(source, chip, tmp_path)
        model = read_model(file)
        (call,) = (c for c in model.calls if isinstance(c, NpuCall))
        needed = working_bytes(call.stream)
        for part in parts:
            folder = tmp_path / f"{chip}-{part}"
            folder.mkdir()
            twin = ReferenceTwin(model, payloads(file), Reference(build(folder, working=needed // part)))
            twin.run_batch(samples(model, 1))
            assert twin.differing == [] if part == 1 else "working memory is too small" in twin.differing[0]


def program(folder: Path) -> Path:
    """Returns the program that mutates streams, built with sanitizers."""
    out = folder / "mutations"
    limits = (f"-DETHOSU_REFERENCE_BYTES={WORKING_BYTES // 16}", "-DETHOSU_REFERENCE_WORK=33554432")
    sources = [*FILES.glob("ethosu_*.c"), Path(__file__).with_name("mutations.c")]
    argv = ["gcc", *STRICT, *SANITIZERS, *limits, f"-I{FILES}", *map(str, sorted(sources)), "-o", str(out)]
    subprocess.run(argv, check=True)
    return out


def mutations(payload: bytes, constants: int, count: int, seed: int) -> list[tuple[int, int, int]]:
    """Returns changes of the payload's words and of single bytes of the constants; the first one changes nothing."""
    rng = np.random.default_rng(seed)
    words = np.frombuffer(payload, np.uint32)
    made = [(9, 0, 0)]
    while len(made) < count:
        if constants and rng.integers(4) == 0:
            made.append((0, int(rng.integers(constants)), int(rng.integers(256))))
            continue
        place = int(rng.integers(len(words)))
        how = rng.integers(3)
        value = int(words[place]) ^ 1 << int(rng.integers(32)) if how == 0 else int(rng.integers(1 << 32))
        made.append((3, place, int(words[rng.integers(len(words))]) if how == 2 else value))
    return made


def test_mutated_streams_end_in_an_error_or_in_values(tmp_path):
    """Under the sanitizers: no access outside of a region, nothing undefined, whatever stream or weights say."""
    run = program(tmp_path)
    source = network(tmp_path / "net.tflite")
    for seed, chip in enumerate(("ethos-u55-128", "ethos-u65-512", "ethos-u85-512")):
        model = read_model(file := compile_model(source, chip, tmp_path))
        (call,), (payload,) = (c for c in model.calls if isinstance(c, NpuCall)), payloads(file)
        fast = b"" if call.scratch_fast.index == call.scratch.index else bytes(call.scratch_fast.nbytes)
        parts = [call.read_only.tobytes(), bytes(call.scratch.nbytes), fast or bytes(call.scratch.nbytes), payload]
        made = mutations(payload, len(parts[0]), MUTATIONS, seed)
        text = b"".join(struct.pack("<I", len(part)) + part for part in parts) + struct.pack("<I", len(made))
        (tmp_path / "cases").write_bytes(text + b"".join(struct.pack("<III", *each) for each in made))
        done = subprocess.run([str(run), str(tmp_path / "cases")], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:3000]
        first, *rest = done.stdout.splitlines()
        assert first.startswith("0 ") and len(rest) == len(made) - 1
        refused = [line for line in rest if line.startswith("-1 ")]
        assert refused and any(line != first for line in rest if line.startswith("0 ")), chip
        assert all(len(line.split(" ", 2)[2]) > 10 for line in refused), "every refusal has a reason"


@pytest.mark.skipif(shutil.which("clang") is None, reason="install the package clang")
def test_clang_and_cppcheck_find_nothing(tmp_path):
    for source in sorted(FILES.glob("ethosu_*.c")):
        argv = ["clang", *STRICT, "-DETHOSU_REFERENCE_BYTES=4096", "-O2", "-c", str(source), "-o", str(tmp_path / "o")]
        subprocess.run(argv, check=True)
    if shutil.which("cppcheck") is not None:
        argv = ["cppcheck", "--quiet", "--std=c99", "--enable=warning,portability,performance", "--error-exitcode=1"]
        sources = [str(p) for p in sorted(FILES.glob("ethosu_*.c"))]
        done = subprocess.run([*argv, "-DETHOSU_REFERENCE_BYTES=4096", *sources], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:3000]
