"""Building the module in a copy of the tree, and what the compiler's complaints mean."""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from anynpu import tool
from anynpu.drivers.plan import write_file
from anynpu.drivers.zhouyi.kernel import Kernel
from anynpu.drivers.zhouyi.tree import BY_HAND, Tree
from anynpu.errors import ToolFailed

MODULE = "aipu.ko"
BUILD_TIMEOUT_S = 1800
RESTORE = "restore the vendor's files, then patch"
PATCH = "`anynpu driver zhouyi patch TREE` makes it"
HINTS = (
    (r"implicit declaration of function .scmi_device_", f"the change 'devfreq' is missing; {PATCH}"),
    (r"armchina_aipu\w*\.h: No such file|KMD_VERSION. undeclared", f"the change 'kbuild' is missing; {PATCH}"),
    (
        r"does not import it|from namespace DMA_BUF",
        f"MODULE_IMPORT_NS has a string although this kernel wants a plain name (before 6.13): {RESTORE}",
    ),
    (r"before .DMA_BUF.|.DMA_BUF. undeclared", f"the change 'import-ns' is missing; {PATCH}"),
    (r"void value not ignored|invalid use of void expression", f"the change 'pm-put' is missing; {PATCH}"),
    (
        r"incompatible[- ]pointer[- ]type|remove.*incompatible",
        f"the change 'remove' is missing or made by hand; {PATCH}",
    ),
    (
        r"gcc-\d+: (?:not found|No such file|command not found)",
        "these headers want the compiler that built the kernel: install it, or choose another with --cc",
    ),
    (
        r"unrecognized command-line option",
        "the compiler is older than the one that built the kernel: install that one, or name it with --cc",
    ),
    (r"Exec format error", "the headers' own programs are for another processor: take linux-kbuild for this machine"),
)


@dataclass(frozen=True)
class Built:
    """A module that was built, and how long that took."""

    module: Path
    log: Path
    seconds: float
    warnings: int


def hint_for(log: str) -> str:
    """Returns what the first complaint of a build that we know means, or an empty text."""
    hints = [(match.start(), hint) for pattern, hint in HINTS if (match := re.search(pattern, log))]
    return min(hints)[1] if hints else ""


def build(tree: Tree, kernel: Kernel, out: Path) -> Built:
    """Builds the module in a copy of the tree, which stays as it is, and leaves it with its log in a folder."""
    log = out / "build.log"
    write_file(log, b"")
    with tempfile.TemporaryDirectory(prefix="anynpu-driver-") as scratch:
        copy = Path(scratch) / "aipu"
        shutil.copytree(tree.folder, copy, ignore=shutil.ignore_patterns(".git", "*.o", "*.ko", "*.cmd", "*.mod*"))
        try:
            done = tool.run(kernel.make(copy, "modules"), cwd=copy, log=log, timeout_s=BUILD_TIMEOUT_S)
        except ToolFailed as failure:
            failure.hint = hint_for(log.read_text("utf-8", "replace")) or "the log has the compiler's whole words"
            if tree.kind == BY_HAND:
                failure.hint = f"this tree is patched by hand: {RESTORE} ({failure.hint})"
            raise
        module = copy / MODULE
        if not module.is_file():
            raise ToolFailed(f"make ended without {MODULE}", argv=done.argv, status=0, log=str(log))
        write_file(out / MODULE, module.read_bytes())
    return Built(out / MODULE, log, done.seconds, len(re.findall(r"\bwarning:.*\[-W", done.output)))
