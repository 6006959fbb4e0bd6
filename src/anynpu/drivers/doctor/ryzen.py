"""The NPU of AMD Ryzen AI computers under Linux."""

from __future__ import annotations

from anynpu.drivers.doctor import access, modules
from anynpu.drivers.doctor.machine import Machine
from anynpu.drivers.doctor.result import Check, Result, failed, missing, ok

MEMLOCK_KIB = 65536
"""The driver pins its buffers; with the 8 MiB that many systems allow the first session fails."""
PROVIDER = "onnxruntime/capi/libonnxruntime_providers_vitisai.so"
SDK = "https://ryzenai.docs.amd.com"


def device(machine: Machine) -> Result:
    """The NPU is on the PCI bus."""
    assert machine.device is not None
    return ok(f"{machine.device.title}: {machine.device.found}")


def memory_lock(machine: Machine) -> Result | None:
    """This user may lock enough memory for the NPU's buffers."""
    lines = machine.root.read("/proc/self/limits").splitlines()
    row = next((line.split() for line in lines if line.startswith("Max locked memory")), None)
    if row is None:
        return None
    soft = row[3]
    if soft == "unlimited" or int(soft) >= MEMLOCK_KIB * 1024:
        return ok(f"{soft}{'' if soft == 'unlimited' else ' bytes'}")
    line = "* - memlock unlimited"
    fix = f"echo '{line}' | sudo tee /etc/security/limits.d/99-npu.conf    # then log in again"
    return failed(f"{soft} bytes of locked memory, {MEMLOCK_KIB * 1024} are needed", fix)


def provider(machine: Machine) -> Result:
    """ONNX Runtime has the VitisAIExecutionProvider; without it models silently run on the CPU."""
    place = next((f for f in machine.package_folders if machine.root.exists(f"{f}/{PROVIDER}")), "")
    if place:
        return ok(f"{place}/{PROVIDER}")
    plain = next((f"{folder} has onnxruntime {v}, " for folder, v in machine.packages("onnxruntime")), "")
    return failed(
        f"{plain}no Python package folder has the VitisAIExecutionProvider",
        f"source $RYZEN_AI_INSTALLATION_PATH/bin/activate    # the Ryzen AI software, from {SDK}",
    )


def xrt(machine: Machine) -> Result:
    """The Xilinx runtime, whose xrt-smi examines the NPU, is installed."""
    for path in ("/opt/xilinx/xrt/bin/xrt-smi", machine.program("xrt-smi")):
        if path and machine.root.exists(path):
            return ok(path)
    return missing("no xrt-smi", f"sudo apt install ./xrt_*.deb ./xrt_plugin*.deb    # from {SDK}")


CHECKS = (
    Check(device),
    Check(modules.module),
    Check(modules.vermagic, needs=("module",)),
    Check(modules.signature, needs=("module",)),
    Check(modules.firmware),
    Check(modules.loaded, needs=("module", "vermagic", "signature")),
    Check(access.node, needs=("loaded", "firmware")),
    Check(access.permission, needs=("node",)),
    Check(memory_lock),
    Check(provider),
    Check(xrt),
)
