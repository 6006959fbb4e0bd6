"""The measuring protocol on the host's build: an MLPerf Tiny session through a pty, and everything that is not one."""

from __future__ import annotations

import random
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import rect_model
from project_tools import Line, need, on_pty, sh

from anynpu.artifact import Artifact

SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=all -g -O1"


@pytest.fixture(scope="module")
def firmware(c_artifact, tmp_path_factory) -> Path:
    """The host's build under the address and undefined-behaviour sanitizers."""
    from anynpu.cli.firmware import write_tree
    from anynpu.firmware.project.tree import make_project

    need("make", "cc")
    folder = tmp_path_factory.mktemp("protocol") / "tree"
    write_tree(make_project(c_artifact, "host").files, folder, overwrite=False)
    done = sh("make", "all", "check", f"CFLAGS=-Werror {SANITIZERS}", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "build" / "firmware"


@pytest.fixture
def line(firmware):
    with on_pty([str(firmware)], firmware.parent) as opened:
        banner = opened.until_ready()
        assert banner == ["a-anynpu-[host,rect]", "m-timestamp-mode-performance", "m-init-done"]
        yield opened


def load(line: Line, data: bytes, step: int = 31) -> None:
    assert line.ask(f"db load {len(data)}", b"%") == [f"m-[Expecting {len(data)} bytes]"]
    chunks = [line.ask("db " + data[at : at + step].hex(), b"%") for at in range(0, len(data), step)]
    assert chunks == [[]] * (len(chunks) - 1) + [["m-load-done"]]


def test_a_session_of_mlperf_tiny(line, c_artifact):
    assert line.ask("name", b"%") == ["m-name-dut-[anynpu-host-rect]"]
    assert line.ask("profile", b"%") == ["m-profile-[ULPMark for tinyML Firmware V0.0.1]", "m-model-[rect]"]
    assert re.fullmatch(r"m-lap-us-\d+", *line.ask("timestamp", b"%"))
    known = rect_model.answers(Artifact.open(c_artifact.path.parent / "tflm"))
    for given, wanted in zip(known["input:image"], known["output:answer"], strict=True):
        load(line, given.tobytes())
        assert line.ask("db print") == ["m-buffer-" + given.tobytes().hex()]
        lines = line.ask("infer 3 2", b"%")
        assert [re.sub(r"us-\d+", "us-T", text) for text in lines[:-1]] == [
            *("m-warmup-start-2", "m-warmup-done", "m-infer-start-3", "m-lap-us-T", "m-lap-us-T", "m-infer-done")
        ]
        first, last = (int(text.rpartition("-")[2]) for text in lines[3:5])
        assert last >= first
        (results,) = line.ask("results")
        assert results == lines[-1]
        real = np.array([float(v) for v in results.removeprefix("m-results-[")[:-1].split(",")], np.float32)
        assert np.array_equal(real, wanted.ravel().astype(np.float32) * np.float32(0.05))
        assert line.ask("output 0") == ["a-output-hex-0-[" + wanted.tobytes().hex() + "]"]


def test_what_the_firmware_says_of_itself(line):
    lines = line.ask("info")
    assert f"a-fingerprint-[{rect_model.FINGERPRINT}]" in lines and "a-tick-hz-1000000000" in lines
    scale, zero = next(t for t in lines if t.startswith("a-input-0-")).removesuffix("]").split(",")[3:]
    assert np.float32(scale) == np.float32(0.05) and zero == "0"
    assert next(t for t in lines if t.startswith("a-input-0-")).startswith("a-input-0-[image,int8,1x10x14x3,")
    assert next(t for t in lines if t.startswith("a-output-0-")).startswith("a-output-0-[answer,int8,1x3x5x4,")
    assert line.ask("kat") == [*(f"kat {i} PASS" for i in range(5)), "kat-result PASS 5/5"]
    assert line.ask("help")[0].startswith("name profile")


def test_stages_are_sorted_and_infer_takes_the_most(line):
    lines = line.ask("stages 7")
    found = {
        m[1]: [int(m[i]) for i in (2, 3, 4)]
        for t in lines
        if (m := re.fullmatch(r"a-stage-(\w+)-\[(\d+),(\d+),(\d+)\]", t))
    }
    assert list(found) == ["init", "io", "infer", "post"]
    assert all(low <= middle <= high for low, middle, high in found.values())
    assert found["infer"][1] == max(middle for _, middle, _ in found.values())


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("bogus", "e-[Unknown command: bogus]"),
        ("NAME", "e-[Unknown command: NAME]"),
        ("name x", "e-[Unknown command: name x]"),
        ("inferno 1", "e-[Unknown command: inferno 1]"),
        (b"a\x00b", "e-[Unknown command: a?b]"),
        (b"\xff\x01[x]", "e-[Unknown command: ???x?]"),
        ("db load 419", "e-[db load: the input has 420 bytes]"),
        ("db load 99999999999999999999", "e-[db load: the input has 420 bytes]"),
        ("db load -1", "e-[db load: the input has 420 bytes]"),
        ("db load", "e-[db load: the input has 420 bytes]"),
        ("db 00", "e-[db: say db load first]"),
        ("db", "e-[db: load N, print or hexadecimal bytes were expected]"),
        ("infer x", "e-[infer N W: whole numbers up to 1000000 were expected]"),
        ("infer 0", "e-[infer N W: whole numbers up to 1000000 were expected]"),
        ("infer 1 2 3", "e-[infer N W: whole numbers up to 1000000 were expected]"),
        ("infer 1000001", "e-[infer N W: whole numbers up to 1000000 were expected]"),
        ("stages 0", "e-[stages N: a whole number from 1 to 101 was expected]"),
        ("stages 102", "e-[stages N: a whole number from 1 to 101 was expected]"),
        ("output 1", "e-[output I: a whole number below 1 was expected]"),
        ("output", "e-[output I: a whole number below 1 was expected]"),
        ("x" * 601, "e-[A command has at most 600 characters]"),
        ("x" * 100_000, "e-[A command has at most 600 characters]"),
        ("x" * 600, "e-[Unknown command: " + "x" * 32 + "]"),
    ],
)
def test_wrong_input_gets_one_error_line(line, command, answer):
    assert line.ask(command) == [answer]
    assert line.ask("  name  ") == ["m-name-dut-[anynpu-host-rect]"]


def test_wrong_bytes_do_not_move_the_load(line):
    assert line.ask("db load 420") == ["m-[Expecting 420 bytes]"]
    assert line.ask("db 0g") == ["e-[db: hexadecimal digits were expected]"]
    assert line.ask("db 000") == ["e-[db: an even number of digits was expected, for at most 420 bytes]"]
    assert line.ask("db " + "00" * 280) == []
    assert line.ask("db " + "00" * 141) == ["e-[db: an even number of digits was expected, for at most 140 bytes]"]
    assert line.ask("db " + "ff" * 140) == ["m-load-done"]
    assert line.ask("db print") == ["m-buffer-" + "00" * 280 + "ff" * 140]


def fuzz_lines(seed: int) -> bytes:
    """Returns commands, halves of commands, wrong numbers and noise."""
    rng = random.Random(seed)
    words = b"name profile timestamp db load print infer results help info stages output kat 0 1 3 420 -1 ff zz".split()
    parts = []
    for _ in range(400):
        kind = rng.random()
        if kind < 0.5:
            # Never more than a few runs: the point is the parser, not patience.
            text = b" ".join(rng.choice(words) for _ in range(rng.randrange(1, 4)))
        elif kind < 0.7:
            text = b"db " + bytes(rng.choice(b"0123456789abcdefABCDEFg ") for _ in range(rng.randrange(700)))
        elif kind < 0.9:
            text = rng.randbytes(rng.randrange(40))
        else:
            text = rng.randbytes(rng.randrange(3000))
        parts.append(text + rng.choice([b"\n", b"%", b"\r\n", b"%\n"]))
    return b"".join(parts)


@pytest.mark.parametrize("seed", range(12))
def test_noise_never_ends_the_firmware(firmware, seed):
    data = fuzz_lines(seed).replace(b"infer 420", b"infer 4") + b"\nname\n"
    done = subprocess.run([str(firmware)], input=data, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")[-2000:]
    lines = done.stdout.decode("ascii").replace("\r", "").split("\n")
    assert lines[-3:] == ["m-name-dut-[anynpu-host-rect]", "m-ready", ""]
    known = re.compile(r"(m-|a-|e-\[|kat[ -]|name profile|db load N)")
    assert [text for text in lines[:-1] if not known.match(text)] == []
