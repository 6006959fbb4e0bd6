"""Which NPUs a machine has, by its PCI and ACPI devices, its device tree and its own name."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import resources
from typing import Literal

from anynpu import plugins, schema
from anynpu.drivers.root import Root
from anynpu.errors import ConfigError

PCI = "/sys/bus/pci/devices"
Family = Literal["zhouyi", "ryzen", "rockchip", "other"]
BOARD_NAMES = (
    "/sys/class/dmi/id/sys_vendor",
    "/sys/class/dmi/id/product_name",
    "/sys/class/dmi/id/board_name",
    "/proc/device-tree/model",
)


@dataclass(frozen=True)
class Device:
    """A kind of NPU: how to recognise it, the kernel module that drives it, and the nodes that module makes.

    `found` says where it was seen, empty for an entry of the table; `hidden` that only the board's name tells of it.
    """

    name: str
    title: str
    family: Family = "other"
    pci: tuple[str, ...] = ()
    acpi: tuple[str, ...] = ()
    compatible: tuple[str, ...] = ()
    board: tuple[str, ...] = ()
    module: str = ""
    other_modules: tuple[str, ...] = ()
    """Names under which other editions of the driver are built, such as the one in a kernel's own tree."""
    nodes: tuple[str, ...] = ()
    firmware: tuple[str, ...] = ()
    source: str = ""
    found: str = ""
    hidden: bool = False


@dataclass(frozen=True)
class _Table:
    device: tuple[Device, ...]


@functools.cache
def table() -> tuple[Device, ...]:
    """Returns every kind of NPU that is recognised: those of platform files first, then our own table."""
    with resources.as_file(resources.files("anynpu.data") / "devices.toml") as file:
        ours = schema.from_dict(_Table, schema.read_toml(file), file.name).device
    return (*_of_platforms({device.name: device for device in ours}), *ours)


def _of_platforms(ours: Mapping[str, Device]) -> Iterator[Device]:
    for name in plugins.names("platforms"):
        with suppress(ConfigError):  # one chip's broken file must not hide the others; `anynpu targets` says so
            chip = plugins.platform(name)
            facts = chip.facts.get("detect")
            if isinstance(facts, Mapping):
                base = ours.get(name, Device(name, chip.title))
                place = f"platform {name}: facts.detect"
                stated: Device = schema.from_dict(Device, {"name": base.name, "title": base.title, **facts}, place)
                yield replace(base, **{name: getattr(stated, name) for name in facts})


def detect(root: Root) -> tuple[Device, ...]:
    """Returns the NPUs of a machine, each with the place where it was seen."""
    present: dict[str, str] = {}
    for function in pci_functions(root):
        key = f"pci {function.vendor}:{function.device}"
        present |= {key: str(function), f"{key}:{function.revision}": str(function)}
    for name in reversed(root.names("/sys/bus/acpi/devices")):
        present[f"acpi {name.partition(':')[0]}"] = f"ACPI {name}"
    # What the board, its chip and its platform devices are compatible with
    base = "/sys/bus/platform/devices"
    for place in ("/proc/device-tree", *(f"{base}/{name}/of_node" for name in root.names(base))):
        words = filter(None, root.read(f"{place}/compatible").split("\0"))
        present |= {f"compatible {word}": f"device tree {word}" for word in words}
    board = board_name(root)
    devices: dict[str, Device] = {}
    for device in table():
        keys = [f"pci {key.lower()}" for key in device.pci] + [f"acpi {key}" for key in device.acpi]
        keys += [f"compatible {key}" for key in device.compatible]
        seen = next((present[key] for key in keys if key in present), "")
        if seen:
            devices.setdefault(device.name, replace(device, found=seen))
        elif any(word.lower() in board.lower() for word in device.board):
            devices.setdefault(device.name, replace(device, found=f"board {board}", hidden=True))
    return tuple(devices.values())


def board_name(root: Root) -> str:
    """Returns what the machine calls itself, or an empty string."""
    parts = dict.fromkeys(part for path in BOARD_NAMES if (part := root.read(path)))
    return " ".join(parts)


@dataclass(frozen=True)
class PciFunction:
    """A PCI device: where it is, and its ids in lower-case hexadecimal; the revision is empty where it is not known."""

    place: str
    vendor: str
    device: str
    revision: str

    def __str__(self) -> str:
        return f"PCI {self.place} {self.vendor}:{self.device} rev {self.revision or 'unknown'}"


def pci_functions(root: Root) -> Iterator[PciFunction]:
    """Yields the PCI devices of a machine under Linux."""
    for slot in root.names(PCI):
        ids = (
            root.read(f"{PCI}/{slot}/{name}").lower().removeprefix("0x") for name in ("vendor", "device", "revision")
        )
        yield PciFunction(slot, *ids)


def of_pci(function: PciFunction) -> Device | None:
    """Returns the kind of NPU that a PCI device is, or None."""
    keys = {f"{function.vendor}:{function.device}", f"{function.vendor}:{function.device}:{function.revision}"}
    kind = next((device for device in table() if keys & {key.lower() for key in device.pci}), None)
    return None if kind is None else replace(kind, found=str(function))


def kin(function: PciFunction) -> dict[str, Device]:
    """Returns the known NPUs that differ from a PCI device in nothing but the revision, by that revision."""
    start = f"{function.vendor}:{function.device}:"
    pairs = ((key.lower(), device) for device in table() for key in device.pci)
    return {key.removeprefix(start): device for key, device in pairs if key.startswith(start)}
