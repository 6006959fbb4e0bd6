"""Builds folders that look like machines: healthy ones, and ones with exactly one thing wrong."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from anynpu.runtime.noe.abi import PROTOTYPES
from anynpu.tensors import Quantization, TensorSpec
from anynpu.testing.cix import write_cix

KERNEL = "6.18.9-current-arm64"
FLAGS = "SMP preempt mod_unload aarch64"
INFO = (
    ("license", "GPL v2"),
    ("import_ns", "DMA_BUF"),
    ("alias", "acpi*:CIXH4000:*"),
    ("alias", "of:N*T*Carmchina,zhouyi-v3"),
)
SIGNED = b"~Module signature appended~\n"
SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 67108864\n"
SYMTAB, STRTAB, PROGBITS, DYNSYM = 2, 3, 1, 11
AARCH64, X86_64 = 0xB7, 0x3E
FUNCTION = 0x12  # global


def elf(sections: Mapping[str, bytes], symbols: Iterable[str], machine: int = AARCH64, dynamic: bool = False) -> bytes:
    """Returns a small ELF file with these sections and these symbols defined in the first of them."""
    strings, table = b"\0", struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)
    for name in symbols:
        table += struct.pack("<IBBHQQ", len(strings), FUNCTION, 0, 1, 0, 4)
        strings += name.encode() + b"\0"
    parts = [(name, PROGBITS, content, 0, 0) for name, content in sections.items()]
    link = len(parts) + 2
    parts.append((".dynsym", DYNSYM, table, link, 24) if dynamic else (".symtab", SYMTAB, table, link, 24))
    parts.append((".strtab", STRTAB, strings, 0, 0))
    names = b"\0"
    starts = []
    for name in (*(part[0] for part in parts), ".shstrtab"):
        starts.append(len(names))
        names += name.encode() + b"\0"
    parts.append((".shstrtab", STRTAB, names, 0, 0))
    body, rows = b"", struct.pack("<IIQQQQIIQQ", *[0] * 10)
    for start, (_, kind, content, link_to, entry) in zip(starts, parts, strict=True):
        rows += struct.pack("<IIQQQQIIQQ", start, kind, 0, 0, 64 + len(body), len(content), link_to, 0, 1, entry)
        body += content
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    count = len(parts) + 1
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", ident, 1, machine, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, count, count - 1
    )
    return header + body + rows


def module(
    info: Iterable[tuple[str, str]] = INFO,
    release: str = KERNEL,
    flags: str = FLAGS,
    symbols: Iterable[str] = ("init_module", "cleanup_module"),
) -> bytes:
    """Returns a kernel module that says these things of itself."""
    lines = [f"{key}={value}" for key, value in (*info, ("vermagic", f"{release} {flags} "))]
    return elf({".text": b"\0" * 16, ".modinfo": b"\0".join(line.encode() for line in lines) + b"\0"}, symbols)


def libnoe(functions: Iterable[str] = PROTOTYPES, machine: int = AARCH64) -> bytes:
    """Returns a library that exports these functions."""
    return elf({".text": b"\0" * 16}, functions, machine, dynamic=True)


class Tree:
    """A folder that becomes a machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str) -> Path:
        return self.folder / name.lstrip("/")

    def write(self, name: str, content: str | bytes = "", mode: int = 0o644) -> None:
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        path.chmod(mode)

    def link(self, name: str, target: str) -> None:
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)

    def remove(self, *names: str) -> None:
        for name in names:
            path = self.path(name)
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def linux(tree: Tree, release: str = KERNEL, python: str = "3.12") -> None:
    """Makes any Linux computer: a kernel, a user who is nobody special, a Python and the compilers."""
    tree.write("/proc/sys/kernel/osrelease", f"{release}\n")
    tree.write("/proc/version", f"Linux version {release} (build@host) (gcc 14.2.0) #1 SMP\n")
    tree.write("/proc/modules", "ext4 1015808 1 - Live 0x0000000000000000\n")
    someone = os.getuid() + 4242  # so that the files of the folder, which the tester owns, are another user's
    group = os.getgid() + 4242
    ids = f"Uid:\t{someone}\t{someone}\t{someone}\t{someone}\nGid:\t{group}\t{group}\t{group}\t{group}\n"
    tree.write("/proc/self/status", f"Name:\tanynpu\n{ids}Groups:\t{group} {group + 1}\n")
    tree.write("/etc/passwd", f"root:x:0:0:root:/root:/bin/bash\npi:x:{someone}:{group}::/home/pi:/bin/bash\n")
    tree.write("/etc/group", f"root:x:999999:\nrender:x:{os.getgid()}:\npi:x:{group}:\naudio:x:{group + 1}:pi\n")
    tree.write("/etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n")
    tree.write(f"/usr/bin/python{python}", mode=0o755)
    tree.link("/usr/bin/python3", f"python{python}")
    for name in ("cc", "make", "arm-none-eabi-gcc", "riscv64-unknown-elf-gcc", "qemu-system-arm"):
        tree.write(f"/usr/bin/{name}", mode=0o755)
    tree.path("/usr/lib/modules").mkdir(parents=True)
    tree.link("/lib", "usr/lib")


def install_module(tree: Tree, name: str, content: bytes, release: str = KERNEL, place: str = "updates/dkms") -> None:
    """Puts a module where modprobe finds it, beside one that came with the kernel."""
    base = f"/usr/lib/modules/{release}"
    tree.write(f"{base}/{place}/{name}.ko", content)
    tree.write(f"{base}/kernel/fs/ext4/ext4.ko", module((("license", "GPL"),), release))
    tree.write(f"{base}/modules.dep", f"kernel/fs/ext4/ext4.ko:\n{place}/{name}.ko:\n")


def zhouyi(tree: Tree) -> None:
    """Makes an Orange Pi 6 Plus on which everything works."""
    linux(tree)
    tree.write("/sys/class/dmi/id/sys_vendor", "CIX Technology Group Co., Ltd.\n")
    tree.write("/sys/class/dmi/id/product_name", "CIX Phecda Board\n")
    tree.write("/sys/bus/acpi/devices/CIXH4000:00/hid", "CIXH4000\n")
    tree.write(f"/usr/src/linux-headers-{KERNEL}/Makefile")
    tree.link(f"/usr/lib/modules/{KERNEL}/build", f"/usr/src/linux-headers-{KERNEL}")
    install_module(tree, "aipu", module())
    tree.write("/usr/src/aipu-5.11.0/dkms.conf", 'PACKAGE_NAME="aipu"\nAUTOINSTALL="yes"\n')
    tree.link("/var/lib/dkms/aipu/5.11.0/source", "/usr/src/aipu-5.11.0")
    tree.write("/proc/modules", "aipu 139264 0 - Live 0x0000000000000000 (OE)\n")
    tree.write("/sys/module/aipu/initstate", "live\n")
    tree.path("/sys/bus/platform/drivers/armchina/CIXH4000:00").mkdir(parents=True)
    tree.write("/dev/aipu", mode=0o666)
    tree.write("/usr/share/cix/lib/libnoe.so.0.6.0", libnoe())
    tree.link("/usr/share/cix/lib/libnoe.so", "libnoe.so.0.6.0")
    tree.write("/etc/ld.so.conf.d/cix.conf", "/usr/share/cix/lib\n")
    tree.write("/var/lib/dpkg/status", "Package: cix-noe-umd\nStatus: install ok installed\nVersion: 2.0.2\n\n")
    tokens = TensorSpec("tokens", (1, 77), "int32")
    vector = TensorSpec("vector", (1, 512), "int8", quantization=Quantization((1 / 27.67,), (0,)))
    tree.path("/models").mkdir()
    write_cix(tree.path("/models/clip_txt.cix"), [tokens], [vector])


def ryzen(tree: Tree, device: str = "0x17f0", revision: str = "0x10", firmware: str = "17f0_10") -> None:
    """Makes a Ryzen AI laptop on which everything works."""
    release = "6.17.0-5-generic"
    linux(tree, release)
    tree.write("/sys/class/dmi/id/product_name", "HP ZBook Ultra G1a\n")
    base = "/sys/bus/pci/devices/0000:c5:00.1"
    for name, value in (("vendor", "0x1022"), ("device", device), ("revision", revision)):
        tree.write(f"{base}/{name}", f"{value}\n")
    for name, value in (("vendor", "0x8086"), ("device", "0x1502"), ("revision", "0x00")):  # an Ethernet controller
        tree.write(f"/sys/bus/pci/devices/0000:00:19.0/{name}", f"{value}\n")
    install_module(tree, "amdxdna", module((("license", "GPL"),), release), release, "kernel/drivers/accel/amdxdna")
    tree.write("/proc/modules", "amdxdna 151552 0 - Live 0x0000000000000000\n")
    tree.write(f"/usr/lib/firmware/amdnpu/{firmware}/npu.sbin.zst", b"\x28\xb5\x2f\xfd")
    tree.path("/sys/bus/pci/drivers/amdxdna").mkdir(parents=True)
    tree.link("/sys/class/accel/accel0/device/driver", "/sys/bus/pci/drivers/amdxdna")
    tree.write("/dev/accel/accel0", mode=0o666)
    tree.write("/proc/self/limits", "Limit Soft Limit Hard Limit Units\nMax locked memory unlimited unlimited bytes\n")
    packages = "/usr/local/lib/python3.12/dist-packages"
    tree.write(f"{packages}/onnxruntime/capi/libonnxruntime_providers_vitisai.so")
    tree.write(f"{packages}/onnxruntime_vitisai-1.22.1.dist-info/METADATA")
    tree.write("/opt/xilinx/xrt/bin/xrt-smi", mode=0o755)


def rockchip(tree: Tree, chip: str = "rk3588") -> None:
    """Makes an Orange Pi 5 Plus on which everything works; its driver is part of the kernel."""
    release = "6.1.115-vendor-rk35xx"
    linux(tree, release, "3.11")
    base = "/sys/firmware/devicetree/base"
    tree.write(f"{base}/model", "Xunlong Orange Pi 5 Plus\0")
    tree.write(f"{base}/compatible", f"xunlong,orangepi-5-plus\0rockchip,{chip}\0")
    tree.link("/proc/device-tree", base)
    tree.write(f"/usr/lib/modules/{release}/modules.builtin", "kernel/drivers/rknpu/rknpu.ko\n")
    tree.path("/sys/bus/platform/drivers/RKNPU/fdab0000.npu").mkdir(parents=True)
    tree.path("/sys/bus/platform/drivers/panthor").mkdir()
    tree.link("/sys/class/drm/renderD128/device/driver", "/sys/bus/platform/drivers/panthor")
    tree.link("/sys/class/drm/renderD129/device/driver", "/sys/bus/platform/drivers/RKNPU")
    tree.write("/dev/dri/renderD128", mode=0o600)
    tree.write("/dev/dri/renderD129", mode=0o666)
    tree.write("/sys/kernel/debug/rknpu/version", "RKNPU driver: v0.9.8\n")
    tree.write("/usr/lib/librknnrt.so", b"\x7fELF" + bytes(60) + b"librknnrt version: 2.3.2 (429f97ae6b@2025)\0")
    tree.write("/usr/local/lib/python3.11/dist-packages/rknn_toolkit_lite2-2.3.2.dist-info/METADATA")


def plain(tree: Tree) -> None:
    """Makes a computer without an NPU."""
    linux(tree, "6.12.48-amd64", "3.13")
    tree.write("/sys/class/dmi/id/product_name", "ThinkCentre M75q\n")
    for name, value in (("vendor", "0x8086"), ("device", "0x1502"), ("revision", "0x00")):
        tree.write(f"/sys/bus/pci/devices/0000:00:19.0/{name}", f"{value}\n")


@dataclass(frozen=True)
class Case:
    """A machine with one thing wrong: what is done to a healthy one, which check fails first, and words of its fix."""

    base: Callable[[Tree], None]
    damage: Callable[[Tree], None]
    check: str = ""
    fix: str = ""
    evidence: str = ""
    model: str = ""


AIPU = f"/usr/lib/modules/{KERNEL}/updates/dkms/aipu.ko"
PATCH, BUILD, DKMS = "anynpu driver zhouyi patch", "anynpu driver zhouyi build", "anynpu driver zhouyi dkms"


def _nothing(tree: Tree) -> None:
    pass


def _without(*names: str) -> Callable[[Tree], None]:
    return lambda tree: tree.remove(*names)


def _with(name: str, content: str | bytes, mode: int = 0o644) -> Callable[[Tree], None]:
    return lambda tree: tree.write(name, content, mode)


def _no_module(tree: Tree) -> None:
    tree.remove(AIPU, "/var/lib/dkms", "/dev/aipu", "/sys/module/aipu", "/sys/bus/platform/drivers/armchina")
    tree.write("/proc/modules", "")


def _no_module_no_headers(tree: Tree) -> None:
    _no_module(tree)
    tree.remove(f"/usr/src/linux-headers-{KERNEL}", f"/usr/lib/modules/{KERNEL}/build")


def _upgraded(tree: Tree) -> None:
    _no_module(tree)
    install_module(tree, "aipu", module(release="6.12.47"), "6.12.47")
    tree.link("/var/lib/dkms/aipu/5.11.0/source", "/usr/src/aipu-5.11.0")


def _upgraded_without_autoinstall(tree: Tree) -> None:
    _upgraded(tree)
    tree.write("/usr/src/aipu-5.11.0/dkms.conf", 'PACKAGE_NAME="aipu"\n')


def _unloaded(tree: Tree) -> None:
    tree.remove("/dev/aipu", "/sys/module/aipu", "/sys/bus/platform/drivers/armchina/CIXH4000:00")
    tree.write("/proc/modules", "")


def _bad_module(content: bytes) -> Callable[[Tree], None]:
    def damage(tree: Tree) -> None:
        _unloaded(tree)
        tree.write(AIPU, content)

    return damage


def _accepted(tree: Tree) -> None:
    tree.write(AIPU, module(release="6.18.8-current-arm64", flags="SMP preempt mod_unload modversions aarch64"))


def _stuck(tree: Tree) -> None:
    tree.remove("/dev/aipu", "/sys/bus/platform/drivers/armchina/CIXH4000:00")
    tree.write("/proc/modules", "aipu 139264 1 - Loading 0x0000000000000000 (OE+)\n")
    tree.write("/sys/module/aipu/initstate", "coming\n")


def _stuck_without_sysfs(tree: Tree) -> None:
    _stuck(tree)
    tree.remove("/sys/module/aipu")


def _stuck_by_hand(tree: Tree) -> None:
    _stuck(tree)
    tree.remove("/var/lib/dkms")


def _unlisted(tree: Tree) -> None:
    _unloaded(tree)
    tree.write(f"/usr/lib/modules/{KERNEL}/modules.dep", "kernel/fs/ext4/ext4.ko:\n")


def _no_probe(tree: Tree) -> None:
    tree.remove("/dev/aipu", "/sys/bus/platform/drivers/armchina/CIXH4000:00")


def _unsigned(tree: Tree) -> None:
    _unloaded(tree)
    tree.write(SECURE_BOOT, b"\x06\0\0\0\x01")


def _unsigned_by_hand(tree: Tree) -> None:
    _unsigned(tree)
    tree.remove("/var/lib/dkms")


def _signed(tree: Tree) -> None:
    tree.write(SECURE_BOOT, b"\x06\0\0\0\x01")
    tree.write(AIPU, module() + b"signature" + SIGNED)


def _no_groups(tree: Tree) -> None:
    tree.write("/dev/aipu", mode=0o660)
    tree.write("/etc/group", f"root:x:{os.getgid()}:\n")


def _new_member(tree: Tree) -> None:
    tree.write("/dev/aipu", mode=0o660)
    tree.write("/etc/group", f"render:x:{os.getgid()}:other,pi\n")


def _wheel(tree: Tree) -> None:
    tree.remove("/usr/bin/python3")
    tree.write("/usr/bin/python3.13", mode=0o755)
    tree.link("/usr/bin/python3", "python3.13")
    packages = "/usr/local/lib/python3.13/dist-packages"
    tree.write(f"{packages}/libnoe-2.0.1.dist-info/METADATA", "Name: libnoe\nVersion: 2.0.1\n")
    tree.write(f"{packages}/libnoe/libnoe.cpython-313-aarch64-linux-gnu.so")


def _half_configured(tree: Tree) -> None:
    tree.remove("/usr/bin/python3")
    tree.link("/usr/bin/python3", "python3.13")
    tree.write("/usr/bin/python3.13", mode=0o755)
    tree.write(
        "/var/lib/dpkg/status",
        "Package: base-files\nStatus: install ok installed\n\n"
        "Package: cix-noe-umd\nStatus: install ok half-configured\nVersion: 2.0.2\nDescription: UMD\n more: text\n\n",
    )


def _no_libnoe_new_python(tree: Tree) -> None:
    _half_configured(tree)
    tree.remove("/usr/share/cix/lib", "/var/lib/dpkg/status")


IN_TREE = "kernel/drivers/misc/armchina-npu"


def in_tree(tree: Tree) -> None:
    """Makes a board whose kernel brings the driver itself, as armchina_npu.ko."""
    zhouyi(tree)
    tree.remove(AIPU, "/var/lib/dkms", "/sys/module/aipu")
    install_module(tree, "armchina_npu", module(), place=IN_TREE)
    tree.write("/proc/modules", "armchina_npu 139264 0 - Live 0x0000000000000000\n")
    tree.write("/sys/module/armchina_npu/initstate", "live\n")


def _in_tree_stopped(tree: Tree) -> None:
    tree.remove("/dev/aipu", "/sys/module/armchina_npu", "/sys/bus/platform/drivers/armchina/CIXH4000:00")
    tree.write("/proc/modules", "")


def _in_tree_built_in(tree: Tree) -> None:
    tree.remove(f"/usr/lib/modules/{KERNEL}/{IN_TREE}", "/sys/module/armchina_npu")
    tree.write("/proc/modules", "")
    tree.write(f"/usr/lib/modules/{KERNEL}/modules.dep", "")
    tree.write(f"/usr/lib/modules/{KERNEL}/modules.builtin", f"{IN_TREE}/armchina_npu.ko\n")


def _in_tree_other_build(tree: Tree) -> None:
    """No import_ns, no ACPI alias in the file's own words, and no headers: and yet it works."""
    tree.write(f"/usr/lib/modules/{KERNEL}/{IN_TREE}/armchina_npu.ko", module((("license", "GPL"),)))
    tree.remove(f"/usr/src/linux-headers-{KERNEL}", f"/usr/lib/modules/{KERNEL}/build")


def _by_hand(tree: Tree) -> None:
    """The module was loaded with insmod from somewhere else, and the file of the package is another one."""
    tree.write(AIPU, module((("license", "GPL v2"),), symbols=("sky1_probe",)))


def _truncated_model(tree: Tree) -> None:
    content = tree.path("/models/clip_txt.cix").read_bytes()
    tree.write("/models/clip_txt.cix", content[: len(content) // 2])


def _no_driver(tree: Tree) -> None:
    tree.remove("/dev/accel", "/sys/class/accel")
    tree.write("/proc/modules", "")


def _no_npu_firmware(tree: Tree) -> None:
    tree.remove("/usr/lib/firmware/amdnpu", "/dev/accel", "/sys/class/accel")


def _plain_onnxruntime(tree: Tree) -> None:
    packages = "/usr/local/lib/python3.12/dist-packages"
    tree.remove(f"{packages}/onnxruntime/capi/libonnxruntime_providers_vitisai.so")
    tree.write(f"{packages}/onnxruntime-1.23.0.dist-info/METADATA")


def _rocket(tree: Tree) -> None:
    tree.remove("/sys/bus/platform/drivers/RKNPU", "/sys/class/drm/renderD129", "/dev/dri/renderD129")
    tree.remove("/sys/kernel/debug/rknpu")
    tree.write("/usr/lib/modules/6.1.115-vendor-rk35xx/modules.builtin", "")
    tree.write("/sys/module/rocket/initstate", "live\n")


def _old_python(tree: Tree) -> None:
    tree.remove("/usr/bin/python3")
    tree.write("/usr/bin/python3.9", mode=0o755)
    tree.link("/usr/bin/python3", "python3.9")


def _phoenix(tree: Tree) -> None:
    ryzen(tree, "0x1502", "0x00", "1502_00")


LIMITS = "Max locked memory         8388608              8388608              bytes\n"
RESTART = "sudo depmod -a && sudo reboot"
CLIP = "/models/clip_txt.cix"
EARLY = module((*INFO, ("import_ns", '"DMA_BUF"')))
CASES: dict[str, Case] = {
    "healthy": Case(zhouyi, _nothing),
    "healthy-signed": Case(zhouyi, _signed),
    "healthy-with-model": Case(zhouyi, _nothing, model=CLIP),
    "npu-hidden": Case(zhouyi, _without("/sys/bus/acpi"), "board", "--firmware-setup", "CIXH4000"),
    "no-module-no-headers": Case(
        zhouyi, _no_module_no_headers, "headers", f"sudo apt install linux-headers-{KERNEL}", f"{KERNEL}/build"
    ),
    "no-module": Case(zhouyi, _no_module, "module", BUILD, "no aipu.ko"),
    "no-autoinstall": Case(zhouyi, _with("/usr/src/aipu-5.11.0/dkms.conf", "#AUTOINSTALL=yes\n"), "dkms", DKMS),
    "kernel-upgraded": Case(
        zhouyi, _upgraded, "module", f"sudo dkms install aipu/5.11.0 -k {KERNEL}", "there is one for 6.12.47"
    ),
    "kernel-upgraded-without-autoinstall": Case(zhouyi, _upgraded_without_autoinstall, "dkms", DKMS, "AUTOINSTALL"),
    "not-in-modules-dep": Case(zhouyi, _unlisted, "module", "sudo depmod -a", "modules.dep"),
    "truncated-module": Case(zhouyi, _bad_module(module()[:300]), "init-module", DKMS, "not a whole ELF file"),
    "no-init-module": Case(zhouyi, _bad_module(module(symbols=("sky1_probe",))), "init-module", DKMS, "Makefile"),
    "wrong-vermagic": Case(
        zhouyi, _bad_module(module(release="6.12.47")), "vermagic", "sudo dkms install --force aipu/5.11.0", "6.12.47"
    ),
    "accepted-by-symbols": Case(zhouyi, _accepted),
    "other-flags": Case(
        zhouyi, _bad_module(module(flags="SMP mod_unload aarch64")), "vermagic", "dkms install", "preempt"
    ),
    "patched-too-early": Case(zhouyi, _bad_module(EARLY), "namespace", PATCH, '"DMA_BUF"'),
    "not-patched": Case(zhouyi, _bad_module(module(INFO[:1] + INFO[2:])), "namespace", PATCH, "no import_ns"),
    "wrong-chip": Case(zhouyi, _bad_module(module(INFO[:2])), "identity", DKMS, "CIXH4000"),
    "no-licence": Case(zhouyi, _bad_module(module(INFO[1:])), "identity", DKMS, "no licence"),
    "unsigned": Case(zhouyi, _unsigned, "signature", "mokutil --import /var/lib/dkms/mok.pub", "Secure Boot is on"),
    "unsigned-without-dkms": Case(zhouyi, _unsigned_by_hand, "signature", "--key mok.key --cert mok.der", "not signed"),
    "not-loaded": Case(zhouyi, _unloaded, "loaded", "sudo modprobe aipu", "/proc/modules"),
    "stuck": Case(zhouyi, _stuck, "loaded", "sudo dkms remove aipu/5.11.0 --all && sudo reboot", "coming"),
    "stuck-without-dkms": Case(zhouyi, _stuck_by_hand, "loaded", f"/aipu.ko && {RESTART}", "coming"),
    "stuck-without-sysfs": Case(zhouyi, _stuck_without_sysfs, "loaded", "sudo reboot", "coming"),
    "no-probe": Case(zhouyi, _no_probe, "bound", "dmesg", "its probe failed"),
    "no-node": Case(zhouyi, _without("/dev/aipu"), "node", "dmesg", "/dev/aipu"),
    "no-permission": Case(
        zhouyi, _with("/dev/aipu", "", 0o660), "permission", "sudo usermod -aG render $USER", "rw-rw---- group render"
    ),
    "no-group": Case(zhouyi, _no_groups, "permission", "anynpu driver zhouyi udev", "group root"),
    "new-member": Case(zhouyi, _new_member, "permission", "newgrp render    # a member", "pi may not use it"),
    "no-libnoe": Case(
        zhouyi, _without("/usr/share/cix/lib"), "libnoe", "sudo apt install ./cix-noe-umd", "no libnoe.so"
    ),
    "no-libnoe-python-3.13": Case(zhouyi, _no_libnoe_new_python, "libnoe", "sudo dpkg --unpack ./cix-noe-umd"),
    "libnoe-pointer": Case(zhouyi, _with("/usr/share/cix/lib/libnoe.so", POINTER), "libnoe", "git lfs pull", "pointer"),
    "libnoe-other-abi": Case(
        zhouyi,
        _with("/usr/share/cix/lib/libnoe.so", libnoe(sorted(PROTOTYPES)[1:])),
        *("libnoe-abi", "cix-noe-umd", "lacks noe_add_batch (1 of 31 functions)"),
    ),
    "libnoe-x86": Case(
        zhouyi,
        _with("/usr/share/cix/lib/libnoe.so", libnoe(machine=X86_64)),
        *("libnoe-abi", "cix-noe-umd", "is for x86-64"),
    ),
    "python-3.13-wheel": Case(
        zhouyi,
        _wheel,
        "wheel",
        "sudo python3.13 -m pip uninstall --break-system-packages libnoe",
        "fails under Python 3.13, it knows 3.11 and 3.12",
    ),
    "half-configured": Case(zhouyi, _half_configured, "dpkg", "sudo dpkg --configure cix-noe-umd", "half-configured"),
    "in-tree": Case(in_tree, _nothing),
    "in-tree-built-in": Case(in_tree, _in_tree_built_in),
    "in-tree-other-build": Case(in_tree, _in_tree_other_build),
    "in-tree-not-loaded": Case(in_tree, _in_tree_stopped, "loaded", "sudo modprobe armchina_npu", "/proc/modules"),
    "works-though-the-file-is-odd": Case(zhouyi, _by_hand),
    "lfs-pointer-model": Case(zhouyi, _with(CLIP, POINTER), "model", "git -C /models lfs pull", "pointer", CLIP),
    "truncated-model": Case(zhouyi, _truncated_model, "model", f"rm {CLIP}", CLIP, CLIP),
    "no-such-model": Case(zhouyi, _without(CLIP), "model", "ls /models", "no such file", CLIP),
    "ryzen": Case(ryzen, _nothing),
    "ryzen-phoenix": Case(_phoenix, _nothing),
    "ryzen-no-driver": Case(ryzen, _no_driver, "loaded", "sudo modprobe amdxdna"),
    "ryzen-no-firmware": Case(ryzen, _no_npu_firmware, "firmware", "linux-firmware", "amdnpu/17f0_10/npu.sbin"),
    "ryzen-no-permission": Case(ryzen, _with("/dev/accel/accel0", "", 0o660), "permission", "usermod -aG render $USER"),
    "ryzen-memory-lock": Case(ryzen, _with("/proc/self/limits", LIMITS), "memory-lock", "memlock unlimited", "8388608"),
    "ryzen-cpu-only": Case(ryzen, _plain_onnxruntime, "provider", "RYZEN_AI_INSTALLATION_PATH", "onnxruntime 1.23.0"),
    "rockchip": Case(rockchip, _nothing),
    "rockchip-mainline": Case(rockchip, _rocket, "driver", "vendor", "rocket"),
    "rockchip-no-permission": Case(
        rockchip, _with("/dev/dri/renderD129", "", 0o660), "permission", "usermod -aG render $USER", "renderD129"
    ),
    "rockchip-no-runtime": Case(
        rockchip, _without("/usr/lib/librknnrt.so"), "runtime", "librknnrt.so", "no librknnrt.so"
    ),
    "rockchip-no-python": Case(
        rockchip, _without("/usr/local/lib/python3.11"), "python-package", "pip install rknn-toolkit-lite2"
    ),
    "plain": Case(plain, _nothing),
    "plain-old-python": Case(plain, _old_python, "python", "python3.11", "Python 3.9"),
}


def build(name: str, folder: Path) -> Path:
    """Makes the folder of a case and returns it."""
    case = CASES[name]
    tree = Tree(folder)
    case.base(tree)
    case.damage(tree)
    return folder
