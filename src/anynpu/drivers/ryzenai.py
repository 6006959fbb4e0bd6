"""The NPU of AMD Ryzen AI computers: which one a machine has, by pnputil under Windows and sysfs under Linux."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from anynpu import tool
from anynpu.drivers import detect
from anynpu.drivers.detect import PciFunction
from anynpu.drivers.root import Root
from anynpu.errors import AnyNpuError

FAMILY, MODULE = "ryzen", "amdxdna"
NODES = "/dev/accel"
PNPUTIL = ("pnputil", "/enum-devices", "/bus", "PCI", "/deviceids")
# The names of pnputil's fields are in the language of Windows; ids and CM_PROB codes are not. Some code pages have
# another sign where ASCII has the backslash.
_ID = re.compile(
    r"PCI[\\¥₩]VEN_(?P<vendor>[0-9A-F]{4})&DEV_(?P<device>[0-9A-F]{4})"
    r"(?:&SUBSYS_[0-9A-F]{8})?(?:&REV_(?P<revision>[0-9A-F]{2}))?(?P<instance>[\\¥₩]\S+)?",
    re.IGNORECASE,
)
_PROBLEM = re.compile(r"CM_PROB_\w+")


@dataclass(frozen=True)
class Npu:
    """An NPU that was found; `chip` is empty where its revision is unknown, `problem` says why it cannot be used."""

    chip: str
    title: str
    where: str
    driver: str = ""
    nodes: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Search:
    """What was found and how it was looked for; `problem` says why nothing is known, where that is so."""

    npus: tuple[Npu, ...]
    how: str
    problem: str = ""

    @property
    def usable(self) -> tuple[Npu, ...]:
        """The NPUs that a session can be opened on."""
        return tuple(npu for npu in self.npus if npu.chip and not npu.problem)

    def sentence(self) -> str:
        """Returns what came out, in one sentence."""
        if self.problem:
            return f"whether this machine has a Ryzen AI NPU is not known: {self.problem}"
        if not self.npus:
            return f"this machine has no Ryzen AI NPU ({self.how})"
        return "; ".join(f"{npu.title}, {npu.where}" + (f": {npu.problem}" if npu.problem else "") for npu in self.npus)


def find(root: Root | None = None, system: str = sys.platform) -> Search:
    """Returns the Ryzen AI NPUs of this machine, or of the one whose files are below `root`."""
    if system == "win32" and root is None:
        how = " ".join(PNPUTIL)
        try:
            with tempfile.TemporaryDirectory() as folder:
                text = tool.run(PNPUTIL, cwd=Path(folder), log=Path(folder) / "pnputil.log", timeout_s=60).output
        except AnyNpuError as error:
            return Search((), how, error.message)
        return from_pnputil(text)
    if system.startswith("linux") or root is not None:
        root = root or Root()
        npus = tuple(_bound(root, function) for function in detect.pci_functions(root) if _is_one(function))
        how = f"vendor and device ids below {detect.PCI}"
        return Search(npus, how, "" if npus or root.exists(detect.PCI) else f"there is no {detect.PCI} to read")
    return Search((), "nothing looked for", f"they are found under Windows and Linux, this is {system}")


def from_pnputil(text: str) -> Search:
    """Returns the NPUs among the devices that pnputil lists."""
    how = " ".join(PNPUTIL)
    listed = tuple(_listed(text.replace("\0", "")))  # the zero bytes of UTF-16 that was read as another encoding
    if not listed:
        first = next((line.strip() for line in text.splitlines() if line.strip("\0 \t")), "nothing")
        return Search((), how, f"pnputil lists no PCI device at all, but says: {first[:100]!a}")
    return Search(tuple(_npu(function, problem=problem) for function, problem in listed if _is_one(function)), how)


def _listed(text: str) -> Iterator[tuple[PciFunction, str]]:
    """Yields each device with the code of its problem: those with an instance id, then ids that no instance has."""
    ids = list(_ID.finditer(text))
    starts = [match for match in ids if match["instance"]]
    ends = [*(match.start() for match in starts[1:]), len(text)]
    seen = set()
    for start, end in zip(starts, ends, strict=False):
        own = [m for m in ids if start.start() <= m.start() < end and m["device"] == start["device"]]
        function, problem = _function(own), _PROBLEM.search(text, start.start(), end)
        seen.add((function.vendor, function.device))
        yield function, f"Windows reports {problem[0]}" if problem else ""
    loose = [m for m in ids if m["revision"] and (m["vendor"].lower(), m["device"].lower()) not in seen]
    yield from ((function, "") for function in dict.fromkeys(_function([m]) for m in loose))


def _function(ids: list[re.Match[str]]) -> PciFunction:
    """Returns the device that several ids are of; the first one says where it is."""
    revision = next((m["revision"] for m in ids if m["revision"]), "")
    place = (ids[0]["instance"] or "")[1:]
    return PciFunction(place, ids[0]["vendor"].lower(), ids[0]["device"].lower(), revision.lower())


def _is_one(function: PciFunction) -> bool:
    kinds = (detect.of_pci(function), *detect.kin(function).values())
    return any(kind is not None and kind.family == FAMILY for kind in kinds)


def _bound(root: Root, function: PciFunction) -> Npu:
    """Returns an NPU with the driver that is bound to it and the nodes that the driver made."""
    base = f"{detect.PCI}/{function.place}"
    driver = root.inside(f"{base}/driver").rpartition("/")[2] if root.exists(f"{base}/driver") else ""
    own = [name for name in root.names(f"{base}/accel") if name.startswith("accel")]
    names = [f"{NODES}/{name}" for name in own or root.names(NODES) if name.startswith("accel")]
    nodes = tuple(name for name in names if root.exists(name))
    problem = ""
    if not driver:
        problem = f"no driver is bound to it, {MODULE} is needed (`anynpu doctor`)"
    elif driver != MODULE:
        problem = f"the driver {driver} is bound to it, {MODULE} is needed"
    elif not nodes:
        problem = f"{MODULE} is bound to it, but there is no {NODES}/accel* (`anynpu doctor`)"
    return _npu(function, driver, nodes, problem)


def _npu(function: PciFunction, driver: str = "", nodes: tuple[str, ...] = (), problem: str = "") -> Npu:
    kind = detect.of_pci(function)
    if kind is not None:
        return Npu(kind.name, kind.title, str(function), driver, nodes, problem)
    kin = ", ".join(f"{revision} is {device.name}" for revision, device in sorted(detect.kin(function).items()))
    unlisted = f"revision {function.revision or '(unknown)'} is not in the table ({kin}); name the chip yourself"
    return Npu(
        "", "an AMD NPU of an unknown kind", str(function), driver, nodes, "; ".join(filter(None, (unlisted, problem)))
    )
