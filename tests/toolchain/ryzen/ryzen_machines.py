"""Machines for the tests: sysfs trees as Linux shows them, and texts in the form that pnputil prints."""

from __future__ import annotations

from pathlib import Path

FIELDS = {
    "en": (
        "Instance ID:",
        "Device Description:",
        "Class Name:",
        "Status:",
        "Started",
        "Hardware IDs:",
        "Compatible IDs:",
    ),
    "de": (
        "Instanz-ID:",
        "Gerätebeschreibung:",
        "Klassenname:",
        "Status:",
        "Gestartet",
        "Hardware-IDs:",
        "Kompatible IDs:",
    ),
    "ja": ("インスタンス ID:", "デバイスの説明:", "クラス名:", "状態:", "開始", "ハードウェア ID:", "互換性のある ID:"),
}
BRIDGE = ("1022", "14E8", "00", "AMD Root Complex")


def npu(device: str, revision: str) -> tuple[str, str, str, str]:
    return ("1022", device, revision, "NPU Compute Accelerator Device")


def pnputil(*devices: tuple[str, str, str, str], language: str = "en", problem: str = "") -> str:
    """Returns what `pnputil /enum-devices /bus PCI /deviceids` prints for these devices."""
    instance, described, kind, status, started, hardware, compatible = FIELDS[language]
    text = "Microsoft PnP Utility\n"
    for slot, (vendor, device, revision, title) in enumerate(devices):
        short, subsystem = f"PCI\\VEN_{vendor}&DEV_{device}", f"SUBSYS_{device}{vendor}"
        rows = [
            (instance, f"{short}&{subsystem}&REV_{revision}\\4&2E5D4F5A&0&{slot:04X}"),
            (described, title),
            (kind, "ComputeAccelerator"),
            (status, problem or started),
            (hardware, f"{short}&{subsystem}&REV_{revision}"),
            ("", f"{short}&{subsystem}"),
            ("", f"{short}&CC_118000"),
            (compatible, f"{short}&REV_{revision}"),
            ("", short),
            ("", f"PCI\\VEN_{vendor}&CC_1180"),
        ]
        text += "\n" + "".join(f"{name:<28}{value}\n" for name, value in rows)
    return text


def add_pci(root: Path, slot: str, vendor: str, device: str, revision: str, driver: str = "", node: str = "") -> None:
    """Adds a PCI device to a tree, with the driver that is bound to it and the node that the driver made."""
    folder = root / "sys/bus/pci/devices" / slot
    folder.mkdir(parents=True)
    for name, value in (("vendor", vendor), ("device", device), ("revision", revision)):
        (folder / name).write_text(f"0x{value}\n")
    if driver:
        target = root / "sys/bus/pci/drivers" / driver
        target.mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")
    if node:
        (folder / "accel" / node).mkdir(parents=True)
        (root / "dev/accel").mkdir(parents=True, exist_ok=True)
        (root / "dev/accel" / node).write_text("")


def strix(root: Path) -> Path:
    """Returns a tree of a computer with a Strix Point NPU that is ready to use."""
    add_pci(root, "0000:00:00.0", "1022", "1507", "00")
    add_pci(root, "0000:c6:00.1", "1022", "17f0", "10", driver="amdxdna", node="accel0")
    return root
