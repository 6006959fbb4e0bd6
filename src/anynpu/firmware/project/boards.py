"""The boards: which kind of model each takes, which files it adds and where the parts of the tree go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from anynpu.errors import ConfigError
from anynpu.schema import near

Engine = Literal["c", "ethos-u", "neutron", "cviruntime"]
ARM = ("cortex-m0plus", "cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55", "host")


@dataclass(frozen=True)
class Board:
    """A board that a project is written for.

    `files` are the folders of templates; `chips` are those whose models run here, empty for any. `main` says
    whether the application brings its own main(), `placed` where files go by their ending instead of by part.
    """

    name: str
    title: str
    engine: Engine
    files: tuple[str, ...]
    chips: tuple[str, ...] = ()
    accelerator: str = ""
    main: bool = True
    placed: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)
    reference: bool = False
    """Whether the board takes what Vela compiled without having an NPU: its processor executes the commands."""


M55 = {"MACHINE": "mps3-an547", "CPU_FLAGS": "-mcpu=cortex-m55 -mfloat-abi=hard"}


def _qemu(cpu: str, chips: tuple[str, ...], values: Mapping[str, str], reference: bool = False) -> Board:
    name = f"qemu-{values['MACHINE']}"
    title = f"QEMU's {values['MACHINE']} ({cpu})"
    return Board(name, title, "c", ("qemu", name), chips, values=values, reference=reference)


BOARDS: Mapping[str, Board] = {
    board.name: board
    for board in (
        Board("host", "this computer; the line is stdin and stdout", "c", ("host",), reference=True),
        _qemu(
            "Cortex-M4F",
            tuple(chip for chip in ARM if chip != "cortex-m55"),
            {"MACHINE": "mps2-an386", "CPU_FLAGS": "-mcpu=cortex-m4 -mfpu=fpv4-sp-d16 -mfloat-abi=hard"},
        ),
        _qemu("Cortex-M55", ARM, M55, reference=True),
        Board(
            "cmsis",
            "any Cortex-M with a CMSIS device pack; UART hooks to fill",
            "c",
            ("systick", "cortex", "cmsis"),
            ARM,
        ),
        Board(
            "stm32",
            "STM32 with a CubeMX project: additions to Core/ over the HAL's UART",
            "c",
            ("stm32",),
            ARM,
            main=False,
            placed={".h": "Core/Inc", ".c": "Core/Src"},
        ),
        Board("arduino", "Arduino library", "c", ("arduino",), main=False, placed={".h": "src", ".c": "src"}),
        Board("zephyr", "Zephyr module and application", "c", ("zephyr",)),
        Board(
            "ethos-u",
            "any Arm Ethos-U with a Cortex-M: Arm's driver, or C in its place",
            "ethos-u",
            ("systick", "cortex", "npu-check", "ethos-u"),
            values=M55,
        ),
        Board(
            "hxwe2",
            "Himax WiseEye2: Ethos-U55 through the SDK's driver",
            "ethos-u",
            ("systick", "npu-check", "hxwe2"),
            accelerator="ethos-u55-64",
            values=M55,
        ),
        Board(
            "mcxn947",
            "NXP MCX N947: TFLite-Micro and Neutron",
            "neutron",
            ("systick", "mcxn947"),
            accelerator="mcxn94x",
        ),
        Board(
            "cvi-linux",
            "Linux on CVITEK CV180x, CV181x, CV182x or CV183x: a C++ program over cviruntime",
            "cviruntime",
            ("cvi-linux",),
            ("cv180x", "cv181x", "cv182x", "cv183x"),
        ),
    )
}


def find(name: str) -> Board:
    """Returns the board with this name."""
    if name not in BOARDS:
        raise ConfigError(f"no such board: {name}{near(name, BOARDS)}", "known: " + ", ".join(BOARDS))
    return BOARDS[name]
