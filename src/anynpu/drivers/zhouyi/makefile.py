"""The driver's own build rules: what its Makefile lists, as a Kbuild file that every kernel understands.

The kernel's build takes a file `Kbuild` before a `Makefile`, so the vendor's Makefile stays as it is. That one sets
EXTRA_CFLAGS, which kernels from 6.17 on ignore, and looks for headers below $(PWD), which is not the driver's folder.
"""

from __future__ import annotations

import hashlib
import re

FILE = "Kbuild"
FIRST_LINE = "# Written by anynpu; `anynpu driver zhouyi patch --revert` takes it away."
LAST_WORD = "# sha256 of the lines above:"
CHIP_OBJECTS = ("zhouyi/v3.o", "zhouyi/v3_priv.o", "sky1/sky1.o")


def common_objects(makefile: str) -> tuple[str, ...]:
    """Returns the objects that the vendor's Makefile builds for every chip (COMM_OBJ), below armchina-npu/."""
    match = re.search(r"^COMM_OBJ\s*:?=((?:[^\n]*\\\r?\n)*[^\n]*)", makefile, re.MULTILINE)
    words = match.group(1).replace("\\", " ").split() if match else []
    return tuple(word.partition("armchina-npu/")[2] for word in words if word.endswith(".o"))


def is_kbuild_form(makefile: str) -> bool:
    """Tells whether a Makefile has been rewritten by hand the way that new kernels want it."""
    rules = "\n".join(line.partition("#")[0] for line in makefile.splitlines())
    return bool(re.search(r"^\s*ccflags-y", rules, re.MULTILINE)) and "EXTRA_CFLAGS" not in rules


def kbuild(objects: tuple[str, ...], version: str) -> str:
    """Returns the Kbuild file of the driver: Zhouyi V3 in CIX SKY1."""
    lines = [
        FIRST_LINE,
        "obj-m := aipu.o",
        "aipu-y := " + " \\\n\t".join(f"armchina-npu/{name}" for name in (*objects, *CHIP_OBJECTS)),
        "ccflags-y += -I$(src)/armchina-npu -I$(src)/armchina-npu/include -I$(src)/armchina-npu/zhouyi",
        f'ccflags-y += -DKMD_VERSION=\\"{version}\\" -DBUILD_ZHOUYI_V3',
        "ccflags-y += -DCONFIG_ARMCHINA_NPU_ARCH_V3 -DCONFIG_SKY1",
    ]
    body = "\n".join(lines) + "\n"
    return body + f"{LAST_WORD} {hashlib.sha256(body.encode()).hexdigest()}\n"


def is_ours(text: str) -> bool:
    """Tells whether a Kbuild file is one that we wrote and nobody changed."""
    body, sign, digest = text.rpartition(LAST_WORD)
    return bool(sign) and hashlib.sha256(body.encode("latin-1")).hexdigest() == digest.strip()
