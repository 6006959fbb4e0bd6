"""The kernels that a model needs, put together from the sources next to this package."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib import resources

from anynpu.errors import IntegrityError

USES = re.compile(r"\A/\* uses:([^*]*)\*/\n")
LOOP = re.compile(r"^/\* loop: (\w+) (\w+) \*/\n", re.MULTILINE)
TITLE = re.compile(r"\A/\*[^*]*\*/\n")
OWN_HEADERS = ("dsp", "mve")
WIDER = (
    ("int8_t", "int16_t"),
    ("_s8", "_s16"),
    ("INT8_", "INT16_"),
    ("vldrbq_", "vldrhq_"),
    ("vstrbq_", "vstrhq_"),
)


@cache
def _text(name: str) -> str | None:
    file = resources.files("anynpu.firmware") / "kernels" / name
    return file.read_text("utf-8") if file.is_file() else None


def part(stem: str, ending: str) -> str:
    """Returns one source; a 16-bit kernel that has none of its own is the 8-bit one with wider values."""
    text = _text(stem + ending)
    if text is None and stem.endswith("_s16") and _text(f"{stem}.c") is None and _text(f"{stem}.h") is None:
        text = _text(stem.removesuffix("_s16") + "_s8" + ending)
        for narrow, wide in WIDER if text else ():
            text = (text or "").replace(narrow, wide)
    return text or ""


def uses(stem: str) -> list[str]:
    """Returns the parts that a part names in its first line."""
    match = USES.match(part(stem, ".c"))
    return match.group(1).split() if match else []


def needed(kernels: Iterable[str]) -> list[str]:
    """Returns all parts that the kernels need, each after what it uses."""
    order: list[str] = []

    def visit(stem: str) -> None:
        if stem in order:
            return
        for other in uses(stem):
            visit(other)
        if not part(stem, ".c") and not part(stem, ".h"):
            raise IntegrityError(f"kernel {stem}: its source is missing from the package")
        order.append(stem)

    for kernel in sorted(set(kernels)):
        visit(kernel)
    return order


def header(parts: Iterable[str]) -> str:
    """Returns the declarations of the parts."""
    return "\n".join(text for stem in parts if stem not in OWN_HEADERS and (text := part(stem, ".h")))


def own_headers(parts: Iterable[str]) -> dict[str, str]:
    """Returns the headers that the kernels include and nobody else does: a core's instructions as functions."""
    stems = [stem for stem in parts if stem in OWN_HEADERS]
    guards = {stem: f"ANYNPU_{stem.upper()}_H" for stem in stems}
    return {
        f"anynpu_{stem}.h": f"#ifndef {guards[stem]}\n#define {guards[stem]}\n\n#include <stdint.h>\n\n"
        f"{part(stem, '.h')}\n#endif /* {guards[stem]} */\n"
        for stem in stems
    }


def body(parts: Iterable[str]) -> str:
    """Returns the functions of the parts."""
    written = []
    for stem in parts:
        text = part(stem, ".c")
        # The loop that a kernel names is written out, so that a compiler inlines what it does to a value.
        if named := LOOP.search(text):
            loop = TITLE.sub("", part(named[1], ".c"))
            if not loop:
                raise IntegrityError(f"kernel {stem}: its loop {named[1]} is missing from the package")
            text = LOOP.sub("", text) + "\n" + loop.replace("KERNEL", stem).replace("ELEMENT", named[2])
        if text:
            written.append(USES.sub("", text))
    return "\n".join(written)
