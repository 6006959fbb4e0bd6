"""An artifact's firmware, built and running: on this host, on an emulated board, or on a board at a serial port."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from anynpu import schema, tool
from anynpu.artifact import Artifact, Manifest, Step
from anynpu.errors import ConfigError, DeviceError, IntegrityError, ToolMissing, Unsupported
from anynpu.firmware.compiler import version
from anynpu.firmware.project.boards import BOARDS
from anynpu.firmware.project.model import HEADER, VELA_FORMAT, defines
from anynpu.firmware.project.tree import Project, make_project
from anynpu.records.parts import own_version
from anynpu.runtime import qemu
from anynpu.runtime.device import elf
from anynpu.runtime.device.program import Program
from anynpu.runtime.device.serial_port import SerialPort
from anynpu.runtime.device.session import BoardSession
from anynpu.runtime.device.transport import Transport
from anynpu.schema import JsonObject
from anynpu.store import Store

FIRMWARE = ("firmware.elf", "firmware")
COMPILERS: Mapping[str, tuple[str, str]] = {
    "host": ("cc", "apt install gcc libc6-dev"),
    "qemu": ("arm-none-eabi-gcc", "apt install gcc-arm-none-eabi libnewlib-arm-none-eabi"),
}
MAKE_S = 900.0
LAYERS = ("-DANYNPU_LAYERS", "-DANYNPU_TRACE=anynpu_layer_done")
"""What firmware is compiled with to count its layers."""
STAND_IN = "the C that stands in for the NPU and its working memory: a board with the NPU has neither"
NO_NPU = "simulated: the processor executes the NPU's commands, so this is not the NPU's latency"


@dataclass(frozen=True)
class Running:
    """A session on a board, with what its firmware occupies where it was built here."""

    session: BoardSession
    clock: str
    footprint: elf.Footprint | None = None
    vector_bytes: int = 0

    def memory(self) -> JsonObject:
        """Returns what firmware occupies; known answers in its flash are counted apart from what a product needs."""
        memory: JsonObject = {"arena_bytes": self.session.info.arena_bytes}
        if self.footprint is not None:
            memory |= {"known_answer_bytes": self.vector_bytes, **self.footprint.to_json()}
            if self.session.info.has_reference:
                memory["includes"] = STAND_IN
        return memory


def start(artifact: Artifact, on: str, store: Store, timeout_s: float = 10.0, layers: bool = False) -> Running:
    """Returns the artifact running on `on`: host, qemu, qemu:MACHINE or serial:PORT[@BAUD].

    With `layers` the firmware counts each layer, which makes the whole a little longer.
    """
    header = artifact.path / HEADER
    fingerprint = (
        defines(header)["ANYNPU_MODEL_FINGERPRINT"].strip('"') if header.is_file() else artifact.manifest.fingerprint
    )
    if on.startswith("serial:"):
        line: Transport = SerialPort(on.removeprefix("serial:"))
        session = BoardSession(artifact, line, timeout_s, fingerprint=fingerprint)
        hz = session.info.tick_hz
        clock = f"the board's timer at {hz} Hz" if hz else "the board's instruction counter"
        return Running(session, _labelled(clock, session))
    board = "host" if on == "host" else qemu_board(artifact, on.partition(":")[2])
    built = build(artifact, board, store, layers)
    if board == "host":
        line = Program([str(built.main)], built.path, "the firmware built for this host")
    else:
        line = qemu.line_to(board.removeprefix("qemu-"), built.main)
    session = BoardSession(artifact, line, timeout_s, fingerprint=fingerprint)
    clock = "wall clock of this host"
    if board != "host":
        clock = "instructions that QEMU executed, not cycles and not time"
        # An emulator has no time: firmware that says otherwise must not get its ticks called milliseconds
        if session.info.tick_hz != 0:
            session.close()
            raise DeviceError(
                f"{session.what}: the emulated board claims a clock of {session.info.tick_hz} Hz", call="info"
            )
    details = built.manifest.details
    sections = elf.footprint(built.main) if elf.is_elf(built.main) else None
    return Running(session, _labelled(clock, session), sections, details["vector_bytes"])


def _labelled(clock: str, session: BoardSession) -> str:
    """Returns the clock with what it does not measure: firmware may have no NPU for a model that is made for one."""
    return f"{clock}; {NO_NPU}" if session.info.has_reference else clock


def qemu_board(artifact: Artifact, machine: str = "") -> str:
    """Returns the emulated board that runs the artifact's chip, or the named one."""
    chip = artifact.manifest.step.platform if artifact.manifest.step else ""
    machines = {name.removeprefix("qemu-"): board for name, board in BOARDS.items() if name.startswith("qemu-")}
    if machine and machine not in machines:
        raise ConfigError(f"no such emulated board: {machine}", "known: " + ", ".join(machines))
    if machine:
        return f"qemu-{machine}"
    # The board whose processor is the chip's own comes before one that merely runs its code.
    compiled = artifact.manifest.format == VELA_FORMAT
    takes = [board for board in machines.values() if (board.reference if compiled else chip in board.chips)]
    fits = sorted((len(board.chips), board.name) for board in takes)
    if not fits:
        raise Unsupported(
            f"QEMU has no board here that runs code for {chip or 'an unknown chip'}", hint="use --on host"
        )
    return fits[0][1]


def build(artifact: Artifact, board: str, store: Store, layers: bool = False) -> Artifact:
    """Returns the built firmware of an artifact for a board, from the store if it was built before."""
    if board != "host":
        _find(qemu.PROGRAM, qemu.PACKAGE)  # before minutes of compiling
    project = make_project(artifact, board)
    compiler, package = COMPILERS[board.partition("-")[0]]
    step = Step(
        "firmware",
        {
            "artifact": artifact.digest,
            "tree": schema.digest({name: data.hex() for name, data in project.files.items()}),
        },
        {"board": board, **({"layers": True} if layers else {})},
        {"anynpu": own_version(), compiler: version(_find(compiler, package))},
        platform=artifact.manifest.step.platform if artifact.manifest.step else "",
    )

    def make(out: Path, log: Path) -> Manifest:
        _find("make", "apt install make")
        tree = out.parent / "tree"
        write(project, tree)
        argv = ["make", "-C", str(tree), *([f"CFLAGS={' '.join(LAYERS)}"] if layers else [])]
        tool.run(argv, cwd=out, log=log, timeout_s=MAKE_S, hint="the generated code does not compile")
        built = [tree / "build" / name for name in FIRMWARE if (tree / "build" / name).is_file()]
        if not built:
            raise IntegrityError(f"make of board {project.board.name} left no firmware in build/")
        shutil.copy2(built[0], out / built[0].name)
        details: JsonObject = {"board": project.board.name, "vector_bytes": project.report["vector_bytes"]}
        return Manifest("firmware", built[0].name, fingerprint=project.model.fingerprint, details=details)

    return store.build(step, make).artifact


def _find(program: str, package: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise ToolMissing(f"{program} is not installed", package)
    return path


def write(project: Project, folder: Path) -> None:
    """Writes the files of a project into a folder."""
    for name, data in project.files.items():
        path = folder / PurePosixPath(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
