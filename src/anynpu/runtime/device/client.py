"""The host's side of the protocol: MLPerf Tiny's text commands over any line, and our additions.

    name, profile, timestamp, db load, infer, results        as MLPerf Tiny defines them
    info, stages N, output I, kat                            ours
    layers                                                   of firmware that is built to count them

Each command is one line; the board's answer is lines that end with `m-ready`. docs/devices.md has the whole of it.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress

from anynpu.errors import DeviceError
from anynpu.runtime.device import answers
from anynpu.runtime.device.answers import STAGES, BoardInfo
from anynpu.runtime.device.transport import NOISE, SilentLine, Transport

LINE_LIMIT = 80
"""Characters that every board takes in one command; a board that takes more says so in its `info`."""
NUMBER = 16
"""Characters of a number in `results`."""
LAYER, LAYERS_MOST = 32, 1000
"""Characters of a line of `layers`, and how many lines are given time."""
RETRY_S = 1.0
"""A board that is reset by opening its port misses what is sent while it boots."""
QUIET_S = 0.2


class Client:
    """A conversation with one board.

    Every wait ends after `timeout_s`, plus `run_s` for every inference asked for and the time that the line needs for
    the characters of a long answer.
    """

    def __init__(self, line: Transport, timeout_s: float = 10.0, run_s: float = 30.0) -> None:
        self.line = line
        self.timeout_s = timeout_s
        self.run_s = run_s
        self._line_limit = LINE_LIMIT
        self._results = 0
        # The board's name, asking again until it answers: it may be booting, or print things of its own
        deadline = time.monotonic() + self.timeout_s
        heard: list[bytes] = []
        asked, name = 0, ""
        while not name:
            self.line.write(b"%name%", deadline)  # the first % ends what somebody else may have begun to type
            asked += 1
            name = self._hear_name(min(time.monotonic() + RETRY_S, deadline), heard)
            if not name and time.monotonic() >= deadline:
                # The greeting of firmware that then falls silent is not noise.
                if odd := [line for line in heard if line and not answers.LINE.fullmatch(line.decode("latin-1"))]:
                    raise answers.noise(self.line.where, "name", odd[0])
                raise DeviceError(
                    f"{self.line.where}: the board does not answer",
                    call="name",
                    cause="no power, another port, another baud rate, or firmware that does not speak the protocol",
                    hint="check port and baud rate, press reset, or flash the firmware (`anynpu deploy`)",
                )
        while self._line("name", deadline) != answers.READY:
            continue
        # A board that was asked several times still has something to say.
        with suppress(SilentLine):
            while asked > 1:
                self.line.read_line(time.monotonic() + QUIET_S)
        self.board = name

    def _hear_name(self, until: float, heard: list[bytes]) -> str:
        while True:
            try:
                line = self.line.read_line(until)
            except SilentLine as silence:
                heard += [silence.heard] if silence.heard else []
                return ""
            heard.append(line[:200])
            text = line.decode("ascii", "replace")
            if text.startswith("m-name-dut-[") and text.endswith("]"):
                return text.removeprefix("m-name-dut-[")[:-1]
            if text.startswith("e-[") and "Unknown command" not in text:
                raise DeviceError(
                    f"{self.line.where}: the firmware does not start: {text[3:].removesuffix(']')}", "name"
                )
            if time.monotonic() >= until:  # a line that never falls silent
                return ""

    def _line(self, call: str, deadline: float) -> str:
        try:
            return answers.decode(self.line.read_line(deadline), self.line.where, call)
        except SilentLine as silence:
            cut = f"; it broke off after {silence.heard[-40:]!r}" if silence.heard else ""
            raise DeviceError(
                f"{self.line.where}: no complete answer to '{call}' in time{cut}",
                call=call,
                cause="the board hangs or was reset, characters were lost, or it needs more time",
                hint="a longer --timeout gives a slow board more time",
            ) from None

    def ask(self, command: str, runs: int = 0, characters: int = 0) -> list[str]:
        """Returns the lines that the board answers, without the closing `m-ready`.

        Inferences (`runs`) and a long answer (`characters`) get extra time.
        """
        deadline = time.monotonic() + self.timeout_s + runs * self.run_s + 2 * characters / self.line.speed
        self.line.write(command.encode("ascii") + b"%", deadline)
        lines: list[str] = []
        while (line := self._line(command[:40], deadline)) != answers.READY:
            lines.append(line)
        for line in lines:
            if line.startswith("e-["):
                raise DeviceError(
                    f"{self.line.where}: the board refuses '{command[:40]}': {line[3:].removesuffix(']')}",
                    call=command[:40],
                    cause="firmware of another version, or a command it does not know",
                )
        return lines

    def profile(self) -> tuple[str, str]:
        """Returns the board's profile and the name of its model."""
        lines = self.ask("profile")
        return answers.field(lines, "m-profile-", "profile"), answers.field(lines, "m-model-", "profile")

    def timestamp(self) -> int:
        """Returns the board's clock, in microseconds or, where it counts those, instructions."""
        return answers.number(answers.field(self.ask("timestamp"), "m-lap-us-", "timestamp"), "timestamp")

    def info(self) -> BoardInfo:
        """Returns what the firmware says of itself and its model."""
        info = answers.info(self.ask("info"))
        self._line_limit = max(info.line_limit, LINE_LIMIT)
        self._results = NUMBER * sum(math.prod(tensor.shape) for tensor in info.outputs)
        return info

    def load(self, data: bytes) -> None:
        """Puts the stored values of all inputs, one after the other, into the board's buffer."""
        call = f"db load {len(data)}"
        expecting = answers.field(self.ask(call), "m-[", call)
        if expecting != f"Expecting {len(data)} bytes]":
            raise DeviceError(f"the answer to '{call}' is {expecting!r}", call=call, cause=NOISE)
        step = (self._line_limit - len("db ") - 1) // 2
        done = []
        for start in range(0, len(data), step):
            done.append("m-load-done" in self.ask("db " + data[start : start + step].hex()))
        if not done or any(done[:-1]) or not done[-1]:
            raise DeviceError(
                f"{self.line.where}: the board did not take {len(data)} bytes of input",
                call=call,
                cause="characters were lost on the line, or its model has other inputs",
            )

    def infer(self, runs: int, warmup: int = 0) -> int:
        """Returns what `runs` inferences took together, after `warmup` that do not count: microseconds, or instructions
        where the board counts those."""
        command = f"infer {runs} {warmup}"
        lines = self.ask(command, runs + warmup, self._results)
        if f"m-infer-start-{runs}" not in lines or "m-infer-done" not in lines:
            raise DeviceError(f"the answer to '{command}' is incomplete", call=command, cause="lost characters")
        return answers.laps(lines, command)

    def results(self) -> list[float]:
        """Returns the results as MLPerf Tiny prints them."""
        text = answers.field(self.ask("results", characters=self._results), "m-results-", "results")
        try:
            return [float(part) for part in text.split(",")]
        except ValueError:
            raise DeviceError("the answer to 'results' holds no numbers", call="results", cause=NOISE) from None

    def stages(self, runs: int) -> dict[str, tuple[int, int, int]]:
        """Returns least, median and greatest ticks of each stage over `runs` repeats."""
        command = f"stages {runs}"
        lines = self.ask(command, runs)
        return {name: answers.stage(lines, name, command) for name in STAGES}

    def layers(self) -> list[tuple[int, int]]:
        """Returns each tensor of the model with the ticks that it took, in the order in which they were made."""
        return answers.layers(self.ask("layers", 1, LAYER * LAYERS_MOST), "layers")

    def output(self, index: int, size: int) -> bytes:
        """Returns the stored values of an output of `size` bytes."""
        command = f"output {index}"
        text = answers.field(self.ask(command, characters=2 * size), f"a-output-hex-{index}-", command)
        return answers.hex_bytes(text, command, size)

    def known_answers(self, expected: int) -> int:
        """Returns how many known answers the board gave right; a wrong one raises AccuracyError."""
        return answers.known_answers(self.ask("kat", expected))

    def close(self) -> None:
        """Gives the line back."""
        self.line.close()
