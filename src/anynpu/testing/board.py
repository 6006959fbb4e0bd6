"""A board on a pty: the protocol of our firmware in Python, for tests of what talks to boards.

    with Board(inputs, outputs, model) as board:
        session = BoardSession(artifact, SerialPort(board.port))

`Faults` makes it misbehave in the ways real boards do.
"""

from __future__ import annotations

import os
import select
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from anynpu.runtime.device.program import raw_terminal
from anynpu.tensors import Array, TensorSpec

Model = Callable[[Mapping[str, Array]], Mapping[str, Array]]
LINE_LIMIT = 80


@dataclass(frozen=True)
class Faults:
    """How a board misbehaves."""

    silent: bool = False
    """It takes everything and says nothing."""
    garbage: bytes = b""
    """Said in the place of every answer."""
    garbage_after: str = ""
    """The command whose answer, and only its, is garbage; "" for all."""
    banner: bytes = b""
    """Said at the start, as boot loaders do."""
    boot_s: float = 0.0
    """It hears nothing for this long after the start."""
    slow_s: float = 0.0
    """It waits this long before each answer."""
    cut: str = ""
    """The command in whose answer it stops in the middle of the last line but one."""
    refuses: tuple[str, ...] = ()
    """Commands that it does not know."""
    wrong_results: bool = False
    """Every inference gives a first value that is off by one."""
    drifts: bool = False
    """Each inference gives a first value that is one more than that of the last."""


@dataclass
class Board:
    """A board that serves its line, `port`, in a thread of its own until it is closed."""

    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    model: Model
    fingerprint: str = "0" * 64
    name: str = "anynpu-pty-model"
    arena_bytes: int = 1024
    tick_hz: int = 1_000_000
    vectors: Sequence[Mapping[str, Array]] = ()
    faults: Faults = field(default_factory=Faults)

    def __post_init__(self) -> None:
        self.commands: list[str] = []
        self._input = b""
        self._expected = 0
        self._results: dict[str, Array] = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in self.outputs}
        self._ticks = 0
        self._runs = 0
        self._stop = threading.Event()
        self._outer, self._inner = raw_terminal()  # holding the inner end open keeps the line alive
        self.port = os.ttyname(self._inner)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops serving, as if the board were unplugged."""
        self._stop.set()
        self._thread.join()
        os.close(self._outer)
        os.close(self._inner)

    def _serve(self) -> None:
        self._say(self.faults.banner or b"m-init-done\r\nm-ready\r\n")
        started, pending = time.monotonic(), b""
        while not self._stop.is_set():
            if not select.select([self._outer], [], [], 0.02)[0]:
                continue
            data = os.read(self._outer, 4096)
            if self.faults.silent or time.monotonic() - started < self.faults.boot_s:
                continue
            pending = (pending + data).replace(b"%", b"\n").replace(b"\r", b"\n")
            *whole, pending = pending.split(b"\n")
            for command in filter(None, whole):
                self._stop.wait(self.faults.slow_s)
                self._say(self._framed(command.decode("ascii", "replace")))

    def _say(self, data: bytes) -> None:
        if self.faults.silent:
            return
        while data and not self._stop.is_set():
            if select.select([], [self._outer], [], 0.02)[1]:
                data = data[os.write(self._outer, data[:1024]) :]

    def _framed(self, command: str) -> bytes:
        """Returns the bytes of an answer, damaged as the faults say."""
        self.commands.append(command)
        if self.faults.garbage and (not self.faults.garbage_after or command.startswith(self.faults.garbage_after)):
            return self.faults.garbage
        text = "".join(f"{line}\r\n" for line in [*self.answer(command), "m-ready"])
        if self.faults.cut and command.startswith(self.faults.cut):
            return text.removesuffix("m-ready\r\n")[:-6].encode("ascii")
        return text.encode("ascii")

    def answer(self, command: str) -> list[str]:
        """Returns the lines that answer a command, without `m-ready`."""
        verb, *rest = command.split()
        known = {
            "name": lambda: [f"m-name-dut-[{self.name}]"],
            "profile": lambda: ["m-profile-[ULPMark for tinyML Firmware V0.0.1]", "m-model-[model]"],
            "timestamp": lambda: [f"m-lap-us-{self._ticks}"],
            "info": self._info,
            "db": lambda: self._db(rest),
            "infer": lambda: self._infer(*map(int, rest)),
            "results": lambda: [f"m-results-[{','.join(str(v) for v in self._first().ravel().tolist())}]"],
            "stages": lambda: self._stages(int(rest[0])),
            "output": lambda: [
                f"a-output-hex-{rest[0]}-[{self._results[self.outputs[int(rest[0])].name].tobytes().hex()}]"
            ],
            "kat": self._known_answers,
        }
        if verb not in known or verb in self.faults.refuses or len(command) > LINE_LIMIT:
            return [f"e-[Unknown command: {command[:40]}]"]
        return known[verb]()

    def _info(self) -> list[str]:
        lines = [f"a-fingerprint-[{self.fingerprint}]", f"a-arena-{self.arena_bytes}", f"a-tick-hz-{self.tick_hz}"]
        lines += [f"a-vectors-{len(self.vectors)}", f"a-line-max-{LINE_LIMIT}"]
        for kind, specs in (("input", self.inputs), ("output", self.outputs)):
            for index, spec in enumerate(specs):
                scale = spec.quantization.scale[0] if spec.quantization else 0.0
                zero_point = spec.quantization.zero_point[0] if spec.quantization else 0
                dims = "x".join(map(str, spec.shape))
                lines.append(f"a-{kind}-{index}-[{spec.name},{spec.dtype},{dims},{scale:.9g},{zero_point}]")
        return lines

    def _db(self, words: Sequence[str]) -> list[str]:
        if words[0] == "load":
            self._input, self._expected = b"", int(words[1])
            return [f"m-[Expecting {self._expected} bytes]"]
        self._input += bytes.fromhex(words[0])
        return ["m-load-done"] if len(self._input) >= self._expected else []

    def _invoke(self) -> None:
        inputs, start = {}, 0
        for spec in self.inputs:
            raw = self._input[start : start + spec.nbytes].ljust(spec.nbytes, b"\0")
            inputs[spec.name] = np.frombuffer(raw, spec.dtype).reshape(spec.shape)
            start += spec.nbytes
        self._results = {name: np.array(values) for name, values in self.model(inputs).items()}
        self._runs += 1
        self._ticks += 1000 + self._runs % 3
        shift = self._runs if self.faults.drifts else int(self.faults.wrong_results)
        self._first().ravel()[0] += shift

    def _infer(self, runs: int, warmup: int) -> list[str]:
        for _ in range(warmup):
            self._invoke()
        start = self._ticks
        for _ in range(runs):
            self._invoke()
        return [
            f"m-warmup-start-{warmup}",
            "m-warmup-done",
            f"m-infer-start-{runs}",
            f"m-lap-us-{start}",
            f"m-lap-us-{self._ticks}",
            "m-infer-done",
        ]

    def _stages(self, runs: int) -> list[str]:
        ticks = []
        for _ in range(runs):
            start = self._ticks
            self._invoke()
            ticks.append(self._ticks - start)
        least, middle, most = min(ticks), int(statistics.median(ticks)), max(ticks)
        other = [f"a-stage-{name}-[{cost},{cost},{cost}]" for name, cost in (("init", 10), ("io", 20), ("post", 30))]
        return [*other, f"a-stage-infer-[{least},{middle},{most}]"]

    def _known_answers(self) -> list[str]:
        kept, right, lines = self._input, 0, []
        for index, vector in enumerate(self.vectors):
            self._input = b"".join(vector[f"input:{spec.name}"].tobytes() for spec in self.inputs)
            self._invoke()
            failures = []
            for spec in self.outputs:
                expected, got = vector[f"output:{spec.name}"].ravel(), self._results[spec.name].ravel()
                for at in np.flatnonzero(expected != got)[:1]:
                    failures.append(f"FAIL output {spec.name}[{at}] expected {expected[at]} got {got[at]}")
            lines.append(f"kat {index} {failures[0] if failures else 'PASS'}")
            right += not failures
        self._input = kept
        verdict = "PASS" if right == len(self.vectors) else "FAIL"
        return [*lines, f"kat-result {verdict} {right}/{len(self.vectors)}"]

    def _first(self) -> Array:
        return self._results[self.outputs[0].name]
