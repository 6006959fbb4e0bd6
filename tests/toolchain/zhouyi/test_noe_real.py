"""Our files, our worker and our session on the vendor's real libnoe.so, with a stand-in for /dev/aipu (real/standin.c).

ANYNPU_LIBNOE names the library (aarch64, from the package cix-noe-umd). On another processor it runs under
qemu-aarch64: ANYNPU_ARM64_ROOT is then a folder with an arm64 system (python3.11, libc6, libstdc++6, libffi8), and
aarch64-linux-gnu-gcc compiles the stand-in.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from anynpu.errors import DeviceError
from anynpu.runtime.base import open_artifact
from anynpu.runtime.noe.abi import Qos
from anynpu.runtime.noe.cix import read_cix
from anynpu.runtime.noe.engines import Isolated
from anynpu.runtime.noe.session import NoeSession
from anynpu.tensors import Quantization, TensorSpec
from anynpu.testing import noe
from anynpu.testing.cix import program_bytes, wrap, write_cix

pytestmark = pytest.mark.noe
STANDIN = Path(__file__).with_name("real") / "standin.c"
IN = TensorSpec("x", (1, 24), "int8", quantization=Quantization((0.5,), (3,)))
OUT = TensorSpec("y", (1, 16), "int8", quantization=Quantization((0.25,), (-2,)))
NATIVE, HOST = platform.machine() == "aarch64", sys.executable


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    """Has sessions use the real library: a Python that runs it, with the stand-in loaded before it."""
    named, root = os.environ.get("ANYNPU_LIBNOE"), os.environ.get("ANYNPU_ARM64_ROOT", "/")
    if not named or not Path(named).is_file():
        pytest.skip("set ANYNPU_LIBNOE to the vendor's libnoe.so (package cix-noe-umd)")
    compiler = "cc" if NATIVE else "aarch64-linux-gnu-gcc"
    pythons = sorted(Path(root, "usr/bin").glob("python3.[0-9]*"))
    needed = [compiler] if NATIVE else [compiler, "qemu-aarch64"]
    if lacking := [tool for tool in needed if shutil.which(tool) is None]:
        pytest.skip(f"{lacking[0]} is not installed (packages gcc-aarch64-linux-gnu and qemu-user)")
    if not NATIVE and (root == "/" or not pythons):
        pytest.skip("set ANYNPU_ARM64_ROOT to a folder with an arm64 system that has python3")
    folder = tmp_path_factory.mktemp("real")
    standin = folder / "standin.so"
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, STANDIN, "-o", standin, "-ldl", "-lpthread"], check=True)
    source = Path(sys.modules["anynpu"].__file__ or "").parents[1]
    start = f"qemu-aarch64 -L {root} -E LD_PRELOAD={standin} {pythons[0]}" if not NATIVE else sys.executable
    preload = f"LD_PRELOAD={standin} " if NATIVE else ""
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexport PYTHONPATH={source}\n{preload}exec {start} "$@"\n')
    python.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(python))
        patch.setenv("ANYNPU_LIBNOE", named)
        yield python


@pytest.fixture
def model(tmp_path):
    write_cix(tmp_path / "m.cix", [IN], [OUT])
    return open_artifact(tmp_path / "m.cix")


def test_our_files_run_and_give_what_the_device_computes(device, model):
    session = NoeSession(model)
    for seed in range(3):
        x = np.random.default_rng(seed).integers(-128, 128, IN.shape).astype(np.int8)
        np.testing.assert_array_equal(session.run({"x": x})["y"], noe.expect_mix([x], [OUT])[0])
    assert session.versions() == {"libnoe": "0.6.0", "driver": "5.11.0", "device": "X2_1204MP3"}
    assert session.info().cores == ((3,),)
    session.close()


def test_many_tensors_of_many_types(device, tmp_path):
    inputs = [replace(IN, name=f"x{i}", shape=(1, 5 + i)) for i in range(12)]
    outputs = [TensorSpec(f"y{i}", (1, 3 + i), "float32") for i in range(9)]
    write_cix(tmp_path / "m.cix", inputs, outputs)
    session = NoeSession(open_artifact(tmp_path / "m.cix"))
    given = {spec.name: np.full(spec.shape, i, np.int8) for i, spec in enumerate(inputs)}
    found = session.run(given)
    for spec, wanted in zip(outputs, noe.expect_mix(list(given.values()), outputs), strict=True):
        assert found[spec.name].tobytes() == wanted.tobytes()
    session.close()


def test_a_program_without_private_data_crashes_it(device, tmp_path):
    """The reader refuses such a file; this shows that it must."""
    good = program_bytes([IN], [OUT])
    bad = program_bytes([IN], [OUT], private_data_bytes=0)
    write_cix(tmp_path / "m.cix", [IN], [OUT])
    session = NoeSession(open_artifact(tmp_path / "m.cix"))
    session.close()
    cix = replace(read_cix(wrap(good, [IN], [OUT])), elf=memoryview(bad))
    engine = Isolated(Path(os.environ["ANYNPU_LIBNOE"]).resolve(), cix, Qos.SLOW)
    with pytest.raises(DeviceError, match="crashed"):
        engine.run([np.zeros(IN.shape, np.int8)], 5000)
    engine.close()


def test_a_container_that_disagrees_runs(device, tmp_path):
    other = replace(OUT, shape=(1, 12))
    (tmp_path / "m.cix").write_bytes(wrap(program_bytes([IN], [OUT]), [IN], [other]))
    session = NoeSession(open_artifact(tmp_path / "m.cix"))
    x = np.arange(24, dtype=np.int8).reshape(1, 24)
    np.testing.assert_array_equal(session.run({"x": x})["y"], noe.expect_mix([x], [OUT])[0][:, :12])
    session.close()


@pytest.mark.parametrize(("state", "code"), [("2", 0x11), ("3", 0x11)])
def test_what_the_device_reports_is_an_error(device, model, monkeypatch, state, code):
    monkeypatch.setenv("STANDIN_STATE", state)
    session = NoeSession(model)
    with pytest.raises(DeviceError) as caught:
        session.run({"x": np.zeros(IN.shape, np.int8)})
    assert caught.value.code == code
    session.close()


def test_a_hang_is_a_timeout(device, model, monkeypatch):
    monkeypatch.setenv("STANDIN_HANG", "1")
    session = NoeSession(model, timeout_ms=500)
    with pytest.raises(DeviceError) as caught:
        session.run({"x": np.zeros(IN.shape, np.int8)})
    assert caught.value.code == 0x23
    session.close()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_a_worker_whose_program_is_killed_closes_the_device(device, model, tmp_path, how):
    program = (
        "import sys\nfrom pathlib import Path\nimport numpy as np\nfrom anynpu.runtime.base import open_artifact\n"
        "from anynpu.runtime.noe.session import NoeSession\n"
        f"sys.executable = {str(device)!r}\n"
        "session = NoeSession(open_artifact(Path(sys.argv[1])), timeout_ms=60000)\n"
        "session.run({'x': np.zeros((1, 24), np.int8)})\n"
    )
    log = tmp_path / "requests"
    environment = {**os.environ, "STANDIN_LOG": str(log), "STANDIN_HANG": "1"}
    process = subprocess.Popen([HOST, "-c", program, str(tmp_path / "m.cix")], env=environment, stderr=subprocess.PIPE)
    until = time.monotonic() + 60
    while "schedule" not in (log.read_text() if log.exists() else "") and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(how)
    _, printed = process.communicate()
    while "close by" not in log.read_text() and time.monotonic() < until:
        time.sleep(0.05)
    assert "close by" in log.read_text() and b"BrokenPipe" not in printed
