"""The doctor: looks at a machine, changes nothing, and names the first problem with the command that fixes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from anynpu.drivers import detect, ryzenai
from anynpu.drivers.doctor import host, models, rockchip, ryzen, zhouyi
from anynpu.drivers.doctor.machine import Machine
from anynpu.drivers.doctor.result import Check, Finding, examine, unknown
from anynpu.drivers.root import Root, Unreadable

FAMILIES: Mapping[str, tuple[Check, ...]] = {
    "zhouyi": zhouyi.CHECKS,
    "ryzen": ryzen.CHECKS,
    "rockchip": rockchip.CHECKS,
}


@dataclass(frozen=True)
class Examination:
    """What was found on a machine, in the order in which it was looked for."""

    root: str
    board: str
    kernel: str
    devices: tuple[detect.Device, ...]
    findings: tuple[Finding, ...]

    @property
    def first_problem(self) -> Finding | None:
        """The first check that failed: the one to fix before looking again."""
        return next((finding for finding in self.findings if finding.result.status == "failed"), None)

    def count(self, status: str) -> int:
        """Returns how many checks ended so."""
        return sum(finding.result.status == status for finding in self.findings)


def diagnose(folder: Path = Path("/"), model_files: tuple[str, ...] = (), cache: Path | None = None) -> Examination:
    """Returns what is found on the machine whose files are below `folder`; nothing is changed or loaded."""
    root = Root(folder)
    findings: list[Finding] = []
    try:
        devices = detect.detect(root)
        for npu in ryzenai.find(root).npus:
            if not npu.chip:
                problem = unknown(f"{npu.where}: {npu.problem}", "")
                findings.append(Finding("device", "Which kind of NPU it is, is known.", "", problem))
    except Unreadable as error:
        devices = ()
        findings.append(Finding("devices", "This machine's NPUs are known.", "", unknown(error.message, error.hint)))
    for device in devices:
        findings += examine(FAMILIES.get(device.family, ()), Machine(root, device))
    machine = Machine(root, None, model_files, cache)
    own = (*host.EVERYWHERE, *(host.OF_THIS_PROCESS if root.is_host else ()))
    findings += examine((*models.checks(machine), *own), machine)
    return Examination(str(root.folder), detect.board_name(root), machine.release, devices, tuple(findings))
