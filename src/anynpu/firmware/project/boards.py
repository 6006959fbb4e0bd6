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


def _qemu(machine: str, cpu: str, chips: tuple[str, ...], values: Mapping[str, str]) -> Board:
    values = {"MACHINE": machine, **values}
    return Board(f"qemu-{machine}", f"QEMU's {machine} ({cpu})", "c", ("qemu", f"qemu-{machine}"), chips, values=values)


BOARDS: Mapping[str, Board] = {
    board.name: board
    for board in (
        Board("host", "this computer; the line is stdin and stdout", "c", ("host",)),
        _qemu(
            "mps2-an386",
            "Cortex-M4F",
            tuple(chip for chip in ARM if chip != "cortex-m55"),
            {"CPU_FLAGS": "-mcpu=cortex-m4 -mfpu=fpv4-sp-d16 -mfloat-abi=hard"},
        ),
        _qemu("mps3-an547", "Cortex-M55", ARM, {"CPU_FLAGS": "-mcpu=cortex-m55 -mfloat-abi=hard"}),
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
            "any Arm Ethos-U beside a Cortex-M: TFLite-Micro and Arm's driver",
            "ethos-u",
            ("systick", "cortex", "ethos-u"),
        ),
        Board(
            "hxwe2",
            "Himax WiseEye2: TFLite-Micro and Ethos-U55",
            "ethos-u",
            ("systick", "hxwe2"),
            accelerator="ethos-u55-64",
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
