"""The protocol client against a board on a pty: what it gives, and what it says when the board misbehaves."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from board_model import FINGERPRINT, INPUTS, OUTPUTS, artifact, board, model, sample

from anynpu.errors import AccuracyError, ConfigError, DeviceError, ToolMissing
from anynpu.runtime.base import run_stored
from anynpu.runtime.device import answers, serial_port
from anynpu.runtime.device.client import Client
from anynpu.runtime.device.serial_port import SerialPort, parse_port
from anynpu.runtime.device.session import BoardSession
from anynpu.tensors import StoredTensor

pytest.importorskip("serial", reason="pip install 'anynpu[device]' for tests over a serial line")


@pytest.fixture
def talk(tmp_path):
    """Opens a session on a board with faults and closes both at the end."""
    opened = []

    def open_it(timeout_s: float = 20.0, fingerprint: str = FINGERPRINT, made=None, **faults):
        device = board(fingerprint, **faults)
        opened.append(device)
        session = BoardSession(made or artifact(tmp_path), SerialPort(device.port), timeout_s, 1.0)
        opened.insert(0, session)
        session.device = device
        return session

    yield open_it
    for one in opened:
        one.close()


def test_runs_give_what_the_model_gives(talk):
    session = talk()
    assert session.board == "anynpu-pty-model" and session.known_answers == 3
    for seed in (10, 11):
        inputs = sample(seed)
        got = run_stored(session, inputs)
        for spec in OUTPUTS:
            np.testing.assert_array_equal(got[spec.name], model(inputs)[spec.name])
            spec.check(got[spec.name])


def test_every_command(talk):
    client = talk().client
    assert client.profile() == ("ULPMark for tinyML Firmware V0.0.1", "model")
    before = client.timestamp()
    assert client.infer(3, 2) > 2900
    assert client.timestamp() > before + 4900
    stages = client.stages(4)
    assert set(stages) == set(answers.STAGES) and stages["infer"][0] <= stages["infer"][1] <= stages["infer"][2]
    assert client.results() == client_scores(client)
    assert client.info().inputs[0].shape == INPUTS[0].shape


def client_scores(client):
    return np.frombuffer(client.output(0, 4), np.int8).tolist()


def test_no_line_is_longer_than_a_board_takes(talk):
    session = talk()
    session.run(sample(1))
    assert max(map(len, session.device.commands)) < 80


def test_a_silent_board(talk):
    started = time.monotonic()
    with pytest.raises(DeviceError, match="does not answer") as caught:
        talk(timeout_s=0.6, silent=True)
    assert time.monotonic() - started < 60
    assert caught.value.call == "name" and "baud" in caught.value.cause and caught.value.exit_status == 6


@pytest.mark.parametrize("garbage", [b"\xf8\x00\x80\xfe\r\n" * 9, b"\x00" * 500, b"Hello from the demo firmware\r\n"])
def test_garbage_from_the_start(talk, garbage):
    with pytest.raises(DeviceError, match="garbage on the line") as caught:
        talk(timeout_s=0.5, garbage=garbage, banner=b"\xff\xfe\r\n")
    assert "baud rate" in caught.value.cause


@pytest.mark.parametrize("command", ["info", "kat", "db", "infer", "output"])
def test_garbage_later(talk, command):
    with pytest.raises(DeviceError, match="garbage on the line") as caught:
        talk(garbage=b"\xf8\x80\r\n", garbage_after=command).run(sample(0))
    assert caught.value.call.startswith(command)


@pytest.mark.parametrize("command", ["info", "kat", "db", "infer", "output"])
def test_an_answer_that_breaks_off(talk, command):
    with pytest.raises(DeviceError, match="no complete answer") as caught:
        talk(timeout_s=1, cut=command).run(sample(0))
    assert caught.value.call.startswith(command) and "--timeout" in caught.value.hint


def test_text_of_a_boot_loader_comes_first(talk):
    assert talk(banner=b"BL2 \xff v1.0\r\nbooting ...\r\n").known_answers == 3


def test_a_board_that_boots_while_it_is_asked(talk):
    session = talk(timeout_s=20, boot_s=1.2)
    assert session.device.commands.count("name") >= 1
    np.testing.assert_array_equal(session.run(sample(4))["scores"], model(sample(4))["scores"])


def test_a_slow_board_is_waited_for_and_one_that_is_too_slow_is_not(talk, tmp_path):
    assert talk(timeout_s=20, slow_s=0.3).known_answers == 3
    with pytest.raises(DeviceError, match=r"does not answer"):
        talk(timeout_s=0.5, slow_s=5, made=artifact(tmp_path / "other"))


def test_a_command_the_firmware_does_not_know(talk):
    with pytest.raises(DeviceError, match="refuses 'info': Unknown command: info"):
        talk(refuses=("info",))


def test_the_board_runs_another_model(talk):
    with pytest.raises(DeviceError, match="another model") as caught:
        talk(fingerprint="cd" * 32)
    assert "flash" in caught.value.hint


@pytest.mark.parametrize(
    "changed",
    [
        replace(INPUTS[0], shape=(1, 7, 5, 3)),
        replace(INPUTS[0], dtype="uint8"),
        replace(INPUTS[0], quantization=replace(INPUTS[0].quantization, scale=(0.5,))),
        replace(INPUTS[0], quantization=replace(INPUTS[0].quantization, zero_point=(0,))),
    ],
    ids=["width and height", "type", "scale", "zero point"],
)
def test_the_board_runs_another_build_of_the_network(talk, tmp_path, changed):
    with pytest.raises(DeviceError, match="the board's model has input image"):
        talk(made=artifact(tmp_path, inputs=(changed, INPUTS[1])))


def test_a_board_that_fails_its_known_answer(talk):
    with pytest.raises(AccuracyError, match=r"known answer 0: scores\[0\] is -?\d+, expected -?\d+") as caught:
        talk(wrong_results=True)
    assert caught.value.got == caught.value.wanted + 1
    assert caught.value.exit_status == 7 and len(caught.value.worst) == 3


def test_the_board_is_unplugged(talk):
    session = talk(timeout_s=0.5)
    session.device.close()
    session.device.close = lambda: None
    with pytest.raises(DeviceError) as caught:
        session.run(sample(0))
    assert caught.value.call and caught.value.cause


def test_no_such_port():
    with pytest.raises(DeviceError, match=r"cannot be opened \(No such file or directory\)") as caught:
        SerialPort("/dev/no-such-port")
    assert "dialout" in caught.value.cause and caught.value.hint


def test_pyserial_is_missing(monkeypatch):
    def refuse(name):
        raise ImportError(name)

    monkeypatch.setattr(serial_port.importlib, "import_module", refuse)
    with pytest.raises(ToolMissing) as caught:
        SerialPort("/dev/ttyACM0")
    assert caught.value.hint == "pip install 'anynpu[device]'"


def test_ports():
    assert parse_port("/dev/ttyACM0") == ("/dev/ttyACM0", 115200)
    assert parse_port("COM3@921600") == ("COM3", 921600)
    for bad in ("", "@9600", "COM3@", "COM3@fast", "COM3@0"):
        with pytest.raises(ConfigError):
            parse_port(bad)


class Script:
    """A line whose answers are written down."""

    where = "script"
    speed = 11520.0

    def __init__(self, *lines: str) -> None:
        self.lines = ["m-name-dut-[x]", "m-ready", *lines, "m-ready"]

    def write(self, data, deadline):
        return

    def read_line(self, deadline):
        self.seconds = deadline - time.monotonic()
        return self.lines.pop(0).encode("latin-1")

    def close(self):
        return


INFO = ["a-fingerprint-[aa]", "a-arena-16", "a-tick-hz-0", "a-vectors-5", "a-line-max-80"]
INFO += ["a-input-0-[x,int8,1x4,0.5,-1]", "a-output-0-[y,int8,4,1,0]"]


def test_info_is_read():
    found = Client(Script(*INFO)).info()
    assert found.tick_hz == 0 and found.inputs[0] == StoredTensor("x", "int8", (1, 4), 0.5, -1)
    named = [*INFO[:5], "a-input-0-[a,b,int8,1x4,0.5,-1]", INFO[6]]
    assert Client(Script(*named)).info().inputs[0].name == "a,b"


@pytest.mark.parametrize("index", range(len(INFO)))
def test_info_that_lacks_a_line_or_has_it_twice(index):
    for lines in (INFO[:index] + INFO[index + 1 :], [*INFO, INFO[index]]):
        with pytest.raises(DeviceError):
            Client(Script(*lines)).info()


@pytest.mark.parametrize(
    "tensor", ["x,int7,1x4,0.5,0", "x,int8,1x0,0.5,0", "x,int8,,0.5,0", "x,int8", "x,int8,4,nan,0", "x,int8,4,0.5,0.5"]
)
def test_info_with_a_tensor_that_makes_no_sense(tensor):
    with pytest.raises(DeviceError):
        Client(Script(*INFO[:5], f"a-input-0-[{tensor}]", INFO[6])).info()


@pytest.mark.parametrize(
    ("call", "lines"),
    [
        (lambda c: c.timestamp(), ["m-lap-us-12x"]),
        (lambda c: c.timestamp(), ["m-lap-us--3"]),
        (lambda c: c.infer(1), ["m-infer-start-1", "m-lap-us-5", "m-infer-done"]),
        (lambda c: c.infer(1), ["m-infer-start-1", "m-lap-us-5", "m-lap-us-3", "m-infer-done"]),
        (lambda c: c.infer(2), ["m-infer-start-1", "m-lap-us-5", "m-lap-us-9", "m-infer-done"]),
        (lambda c: c.output(0, 2), ["a-output-hex-0-[00]"]),
        (lambda c: c.output(0, 2), ["a-output-hex-0-[00zz]"]),
        (lambda c: c.output(0, 2), ["a-output-hex-1-[0000]"]),
        (lambda c: c.results(), ["m-results-[a,b]"]),
        (lambda c: c.stages(1), ["a-stage-init-[1,2,3]", "a-stage-io-[3,2,1]"]),
        (lambda c: c.known_answers(1), ["kat 0 PASS"]),
        (lambda c: c.known_answers(1), ["kat 0 PASS", "kat-result PASS 2/2"]),
        (lambda c: c.known_answers(1), ["kat 0 FAIL output y[0] expected 1 got", "kat-result FAIL 0/1"]),
        (lambda c: c.load(bytes(4)), ["m-[Expecting 5 bytes]"]),
    ],
)
def test_answers_that_make_no_sense(call, lines):
    with pytest.raises(DeviceError):
        call(Client(Script(*lines)))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["kat 0 FAIL invoke returned -1", "kat-result FAIL 0/1"], "invoke returned -1"),
        (["kat-result FAIL the vectors are of another network"], "another network"),
        (["kat 0 PASS", "kat-result FAIL 0/1"], "incomplete"),
        (["kat 0 PASS", "kat-result PASS 0/1"], "incomplete"),
    ],
)
def test_known_answers_that_cannot_be_judged(lines, said):
    with pytest.raises(DeviceError, match=said):
        Client(Script(*lines)).known_answers(1)


def test_firmware_that_says_why_it_does_not_start():
    line = Script()
    line.lines = ["a-anynpu-[host,x]", "e-[The model does not start: anynpu_init returned -2]"]
    with pytest.raises(DeviceError, match="does not start: The model does not start: anynpu_init returned -2"):
        Client(line)


def test_a_counter_that_overflowed_is_not_a_figure():
    lines = [f"a-stage-{name}-[1,2,{2**32 - 1}]" for name in answers.STAGES]
    with pytest.raises(DeviceError, match="longer than the board's counter"):
        Client(Script(*lines)).stages(3)


def test_a_long_answer_over_a_slow_line_gets_its_time():
    line = Script(f"a-output-hex-0-[{bytes(115200).hex()}]")
    assert len(Client(line, timeout_s=10).output(0, 115200)) == 115200
    assert line.seconds > 10 + 20
