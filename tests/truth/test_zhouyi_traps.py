"""Zhouyi: devices that compute nothing, sessions that are killed, and files that a library would run wrongly."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from anynpu.errors import DeviceError, SuspectWarning
from anynpu.runtime.base import open_artifact, open_session
from anynpu.runtime.noe.session import NoeSession
from anynpu.runtime.versions import versions_of
from anynpu.runtime.watch import watch
from anynpu.tensors import Quantization, TensorSpec
from anynpu.testing import noe
from anynpu.testing.cix import cix_bytes, program_bytes, wrap, write_cix

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler (package gcc)")
IN = TensorSpec("x", (1, 16), "int8", quantization=Quantization((0.5,), (3,)))
OUT = TensorSpec("y", (1, 16), "int8", quantization=Quantization((0.25,), (-2,)))
PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from anynpu.artifact import Artifact
from anynpu.runtime.noe.session import NoeSession
session = NoeSession(Artifact.open(Path(sys.argv[1])))
print(session.worker, flush=True)
session.run({"x": np.zeros((1, 16), np.int8)})
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return noe.build_fake(tmp_path_factory.mktemp("fake"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return noe.model(tmp_path_factory.mktemp("model") / "m", [IN], [OUT])


def feed(session, count):
    for value in range(count):
        session.run({"x": np.full((1, 16), value, np.int8)})


class Constant:
    """A session whose answer does not depend on the question."""

    name, what, hardware = "constant", "a device", True
    inputs = (IN,)

    def __init__(self, *outputs, answer):
        self.outputs, self.answer = outputs, answer

    def run(self, inputs):
        return {spec.name: np.array(self.answer, spec.dtype).reshape(spec.shape) for spec in self.outputs}


def test_the_same_answer_for_different_inputs_is_an_error():
    session = Constant(OUT, answer=[range(16)])
    watch(session)
    with pytest.raises(DeviceError, match="the outputs are the same for 3 different inputs"):
        feed(session, 3)


def test_equal_vectors_of_two_texts_are_an_error():
    session = Constant(OUT, answer=[range(16)])
    watch(session, different=2, never_constant=True)
    with pytest.raises(DeviceError, match="the outputs are the same for 2 different inputs"):
        feed(session, 2)


def test_a_device_that_writes_no_output_is_an_error_for_a_task(library, model):
    with noe.switches(library, ZERO=1):
        session = open_session(model, "noe")
        watch(session, never_constant=True)
        with pytest.raises(DeviceError, match="every number of every output is 0: nothing was computed"):
            feed(session, 1)
        session.close()


def test_zeros_of_a_single_run_are_said(library, model, cli, tmp_path):
    np.save(tmp_path / "x.npy", np.ones((1, 16), np.float32))
    with noe.switches(library, ZERO=1):
        done = cli("run", model.path, "-i", tmp_path / "x.npy")
    assert (
        done.returncode == 0 and "warning: Zhouyi NPU through libnoe: every number of every output is 0" in done.stderr
    )


def test_not_a_number_is_said():
    spec = TensorSpec("y", (1, 16), "float32")
    session = Constant(spec, answer=[[np.nan] * 4 + [1.0] * 12])
    watch(session)
    with pytest.warns(SuspectWarning, match="4 of 16 numbers of output y are NaN"):
        feed(session, 1)


def test_on_this_computer_the_same_answer_is_a_warning():
    session = Constant(OUT, answer=[range(16)])
    session.hardware = False
    watch(session)
    with pytest.warns(SuspectWarning, match="the same for 3 different inputs"):
        feed(session, 3)


@pytest.mark.parametrize(
    ("outputs", "answer"),
    [
        ((OUT,), [[127] + [-128] * 15]),
        ((TensorSpec("y", (1, 4), "float32"),), [[1.0, 2.0, 3.0, 4.0]]),
        ((TensorSpec("y", (1, 16), "int64"),), [range(16)]),
    ],
    ids=["a-sure-classifier", "four-classes", "class-numbers"],
)
def test_healthy_answers_that_repeat_are_not_complained_about(outputs, answer, recwarn):
    session = Constant(*outputs, answer=answer)
    watch(session)
    feed(session, 5)
    assert not recwarn.list


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("switch", ["DELAY_US", "HANG"])
def test_a_program_killed_in_an_inference_gives_the_device_back(how, switch, library, model, tmp_path):
    calls = tmp_path / "calls"
    environment = noe.environment(library, JOURNAL=calls, **{switch: 600_000 if switch == "DELAY_US" else 1})
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(model.path)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.readline()
    until = time.monotonic() + 30
    while "noe_job_infer_sync" not in (calls.read_text() if calls.exists() else "") and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(how)
    _, printed = process.communicate()
    while "noe_deinit_context" not in calls.read_text() and time.monotonic() < until:
        time.sleep(0.02)
    assert "noe_deinit_context" in calls.read_text()
    assert "BrokenPipe" not in printed


def test_a_worker_that_is_asked_to_end_gives_the_device_back(library, model, tmp_path):
    with noe.switches(library, JOURNAL=tmp_path / "calls"):
        session = NoeSession(model)
        (worker,) = session.worker_pids()
        os.kill(worker, signal.SIGTERM)
        until = time.monotonic() + 30
        while "noe_deinit_context" not in (tmp_path / "calls").read_text() and time.monotonic() < until:
            time.sleep(0.02)
        session.close()
    assert "noe_deinit_context" in (tmp_path / "calls").read_text()


@pytest.mark.parametrize("isolate", ["1", "0"])
def test_what_the_library_prints_stays_off_our_output(isolate, library, model, tmp_path, cli_child):
    done = cli_child(model, tmp_path, noe.environment(library, NOISY=1, INIT_STATUS=3), isolate)
    assert done.returncode == 6 and "UMD" not in done.stdout + done.stderr and "+0x" not in done.stderr


@pytest.fixture
def cli_child():
    """Runs `anynpu run` in a process of its own: what native code prints passes by Python's streams."""

    def run(model, folder, environment, isolate):
        np.save(folder / "x.npy", np.ones((1, 16), np.float32))
        argv = [sys.executable, "-m", "anynpu", "run", str(model.path), "-i", str(folder / "x.npy")]
        env = {**os.environ, **environment, "ANYNPU_NOE_ISOLATE": isolate}
        return subprocess.run(argv, env=env, capture_output=True, text=True)

    return run


def test_the_last_words_of_a_library_that_crashed_are_told(library, model):
    with noe.switches(library, NOISY=1, CRASH=1):
        session = NoeSession(model)
        with pytest.raises(DeviceError, match="crashed") as caught:
            feed(session, 1)
        session.close()
    assert "it last printed: [UMD INFO]" in caught.value.cause


def test_receipts_name_driver_library_and_device(library, model, cli, tmp_path):
    np.save(tmp_path / "x.npy", np.ones((1, 16), np.float32))
    with noe.switches(library, UMD_VERSION="0.6.0", KMD_VERSION="5.12.1"):
        done = cli("run", model.path, "-i", tmp_path / "x.npy", "-f", "json")
    wanted = {"libnoe": "0.6.0", "driver": "5.12.1", "device": "X2_1204MP3"}
    assert json.loads(done.stdout)["versions"] == wanted


def test_versions_that_cannot_be_asked_are_left_out():
    class Mute:
        packages = ("no-such-package",)

        def versions(self):
            raise DeviceError("no answer", "versions")

    assert versions_of(Mute()) == {}


def test_a_container_that_disagrees_is_run_as_its_program_says(library, cli, tmp_path):
    other = replace(OUT, quantization=Quantization((0.5,), (-2,)))
    marked = program_bytes([IN], [OUT], noe.MARK + b"mix\0")
    (tmp_path / "m.cix").write_bytes(wrap(marked, [IN], [other]))
    np.save(tmp_path / "x.npy", np.ones((1, 16), np.float32))
    with noe.switches(library):
        done = cli("run", tmp_path / "m.cix", "-i", tmp_path / "x.npy", "-f", "json")
        refused = cli("run", tmp_path / "m.cix", "-i", tmp_path / "x.npy", "--strict")
    assert done.returncode == 0 and "in its program; the program counts" in done.stderr
    stored = noe.expect_mix([IN.to_stored(np.ones((1, 16), np.float32))], [OUT])[0]
    assert json.loads(done.stdout)["outputs"]["y"]["values"] == OUT.to_real(stored).ravel().tolist()
    assert refused.returncode == 8 and "--strict" in refused.stderr


def test_strict_is_refused_where_it_means_nothing(cli, tmp_path, model):
    assert cli("show", "zoo:resnet8", "--strict").returncode == 2


def test_padding_is_read_and_thrown_away(library, tmp_path):
    narrow = replace(IN, shape=(1, 12)), replace(OUT, shape=(1, 12))
    marked = program_bytes([IN], [OUT], noe.MARK + b"mix\0")
    (tmp_path / "m.cix").write_bytes(wrap(marked, [narrow[0]], [narrow[1]]))
    x = np.arange(12, dtype=np.int8).reshape(1, 12)
    padded = np.concatenate([x, np.zeros((1, 4), np.int8)], axis=1)
    wanted = noe.expect_mix([padded], [OUT])[0][:, :12]
    with noe.switches(library):
        for isolate in (True, False):
            with pytest.warns(SuspectWarning, match="the rest is taken for padding"):
                session = NoeSession(open_artifact(tmp_path / "m.cix"), isolate=isolate)
            np.testing.assert_array_equal(session.run({"x": x})["y"], wanted)
            session.close()


def picture(folder: Path) -> Path:
    from PIL import Image

    Image.new("RGB", (640, 640), (200, 40, 3)).save(folder / "red.png")
    return folder / "red.png"


@pytest.mark.parametrize(
    ("flags", "order"),
    [((), "BGR"), (("--channels", "RGB"), "RGB")],
    ids=["as-the-hub-says", "as-the-user-says"],
)
def test_a_bare_file_of_the_hub_gets_the_colours_of_the_hub(flags, order, library, cli, tmp_path):
    write_cix(tmp_path / "yolov8n.cix", [noe.PICTURE], [noe.BOXES], noe.MARK + b"yolo\0")
    with noe.switches(library):
        shot = ("detect", tmp_path / "yolov8n.cix", picture(tmp_path), "--task", "yolov8", "--conf", "0.1", *flags)
        done = cli(*shot, "-f", "json")
    assert done.returncode == 0
    if not flags:
        assert "pictures are fed as BGR, as the hub's model yolov8n" in done.stderr and "--channels RGB" in done.stderr
    # The fake's class is the first plane: blue is 3, red is 200 % 80.
    record = json.loads(done.stdout)
    classes = {found["class"] for shown in record["images"] for found in shown["detections"]}
    assert classes == {3 if order == "BGR" else 200 % 80}


def test_a_bare_file_that_nobody_knows_says_which_colours_are_assumed(library, cli, tmp_path):
    small = replace(noe.PICTURE, shape=(1, 3, 320, 320))
    boxes = TensorSpec("output0", (1, 84, 2100), "float16")
    write_cix(tmp_path / "other.cix", [small], [boxes], noe.MARK + b"mix\0")
    with noe.switches(library):
        done = cli("detect", tmp_path / "other.cix", picture(tmp_path), "--task", "yolov8")
    assert "pictures are fed as RGB, as the card has it" in done.stderr and "--channels BGR" in done.stderr


def test_the_remedy_for_a_missing_library_is_the_library(cli, tmp_path, monkeypatch):
    monkeypatch.delenv("ANYNPU_LIBNOE", raising=False)
    (tmp_path / "m.cix").write_bytes(cix_bytes([IN], [OUT]))
    np.save(tmp_path / "x.npy", np.ones((1, 16), np.float32))
    done = cli("run", tmp_path / "m.cix", "-i", tmp_path / "x.npy")
    assert done.returncode == 4 and "cix-noe-umd" in done.stderr and "pip install" not in done.stderr
