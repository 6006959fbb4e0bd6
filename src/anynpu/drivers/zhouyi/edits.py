"""The changes that make the driver build on every kernel, one small function each.

A change only inserts whole lines, and every inserted line ends in a marker with the change's name. So a patched file
says itself what was done to it, and taking the marked lines out again restores every byte.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anynpu.drivers.zhouyi import ctext
from anynpu.errors import ConfigError

MARKER = re.compile(r"/\* anynpu: ([a-z-]+) \*/\r?\n?$")
SKY1, DMA_BUF, MM = "armchina-npu/sky1/sky1.c", "armchina-npu/aipu_dma_buf.c", "armchina-npu/aipu_mm.c"
DEVFREQ_FIRST, DEVFREQ_LAST = "sky1_npu_devfreq_target", "sky1_npu_devfreq_remove"
DEVFREQ_ONLY, DEVFREQ_LABEL = "remove_debugfs_dir", "devfreq_init_failed"
IOVA = "aipu_mm_reserved_iova_for_never_map"
DESCRIPTION = "Driver of the Zhouyi NPU in CIX SKY1"

MISSING, OURS, DONE, CONFLICT, LOST = "missing", "ours", "done", "one kernel only", "no place"


@dataclass(frozen=True)
class Insert:
    """Lines that go before a line, counted from zero."""

    line: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """What a change finds in a file: where to insert, or why there is nothing to insert."""

    state: str
    inserts: tuple[Insert, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class Change:
    """A change of one file; its docstring is the sentence that the user reads."""

    name: str
    file: str
    find: Callable[[str], Place]

    @property
    def sentence(self) -> str:
        return (self.find.__doc__ or "").strip()


def since(major: int, minor: int) -> str:
    """Returns the directive that begins what kernels from this version on compile."""
    return f"#if LINUX_VERSION_CODE >= KERNEL_VERSION({major}, {minor}, 0)"


def lost(name: str) -> Place:
    return Place(LOST, why=f"{name} is not where it is expected")


def devfreq(text: str) -> Place:
    """The devfreq functions call SCMI functions that only the vendor's kernel has: compile them when asked for."""
    first, last = ctext.function(text, DEVFREQ_FIRST), ctext.function(text, DEVFREQ_LAST)
    if first is None or last is None:
        return lost(DEVFREQ_FIRST if first is None else DEVFREQ_LAST)
    if any("CONFIG_ENABLE_DEVFREQ" in condition for condition in ctext.conditions(text, first.start)):
        return Place(DONE, why="stands under CONFIG_ENABLE_DEVFREQ already")
    # Nobody else calls this one; left out of the condition it would be an unused function.
    helper = ctext.function(text, DEVFREQ_ONLY)
    start = helper.start if helper and helper.start < first.start else first.start
    spans = [(ctext.line_of(text, start), ctext.line_of(text, last.close) + 1)]
    label = re.search(rf"^{DEVFREQ_LABEL}:[ \t\r]*$", ctext.code(text), re.MULTILINE)
    if label:  # only the guarded code jumps there
        spans.append((ctext.line_of(text, label.start()), ctext.line_of(text, label.start()) + 1))
    inserts = [(Insert(begin, ("#ifdef CONFIG_ENABLE_DEVFREQ",)), Insert(end, ("#endif",))) for begin, end in spans]
    return Place(MISSING, tuple(insert for pair in inserts for insert in pair))


def remove(text: str) -> Place:
    """platform_driver.remove returns nothing from kernel 6.11 on, int before."""
    field = re.search(r"^[ \t]*\.remove\s*=\s*(\w+)\s*,", ctext.code(text), re.MULTILINE)
    name = field.group(1) if field else ""
    function = ctext.function(text, name) if name else None
    if field is None or function is None:
        return lost("the platform driver's remove function")
    if ctext.is_versioned(text, field.start(1)) or ctext.is_versioned(text, function.start):
        return Place(DONE, why="depends on the kernel's version already")
    if "void" in function.kind.split():
        return Place(CONFLICT, why=f"{name} returns nothing on every kernel: kernels before 6.11 refuse that")
    argument = function.arguments.split("*")[-1].strip()
    line = ctext.line_of(text, field.start(1))
    wrapper = (
        since(6, 11),
        f"static void {name}_void({function.arguments.strip()})",
        "{",
        f"\t{name}({argument});",
        "}",
        "#endif",
    )
    return Place(
        MISSING,
        (
            Insert(ctext.line_of(text, function.close) + 1, wrapper),
            Insert(line, (since(6, 11), f"\t.remove = {name}_void,", "#else")),
            Insert(line + 1, ("#endif",)),
        ),
    )


def import_ns(text: str) -> Place:
    """MODULE_IMPORT_NS takes a string from kernel 6.13 on, a plain name before."""
    calls = list(ctext.calls(text, "MODULE_IMPORT_NS"))
    if not calls:
        return lost("MODULE_IMPORT_NS")
    if len(calls) > 1 or ctext.is_versioned(text, calls[0].start):
        return Place(DONE, why="depends on the kernel's version already")
    if calls[0].argument.startswith('"'):
        return Place(CONFLICT, why="MODULE_IMPORT_NS has a string on every kernel: those before 6.13 want a plain name")
    line = ctext.line_of(text, calls[0].start)
    string = f'MODULE_IMPORT_NS("{calls[0].argument}");'
    return Place(MISSING, (Insert(line, (since(6, 13), string, "#else")), Insert(line + 1, ("#endif",))))


def pm_put(text: str) -> Place:
    """pm_runtime_put() returns nothing on new kernels (int in 6.17, nothing in 7.0): do not use what it returns."""
    inserts = []
    for call in ctext.calls(text, "pm_runtime_put"):
        start = text.rfind("\n", 0, call.start) + 1
        used = re.fullmatch(r"([ \t]*)(\w+)\s*=\s*", text[start : call.start])
        if used is None and text[start : call.start].strip():
            return Place(LOST, why=f"line {ctext.line_of(text, start) + 1} uses pm_runtime_put() in another way")
        if used is None or ctext.is_versioned(text, call.start):
            continue
        space, variable = used.groups()
        instead = f"{space}{variable} = (pm_runtime_put({call.argument}), 0);"
        inserts.append(Insert(ctext.line_of(text, call.start), (since(6, 18), instead, "#else")))
        inserts.append(Insert(ctext.line_of(text, call.end - 1) + 1, ("#endif",)))
    return Place(MISSING, tuple(inserts)) if inserts else Place(DONE, why="its result is not used")


def iova(text: str) -> Place:
    """The reservation of IOVA space reads a private structure known to fit through 6.12: later kernels skip it."""
    function = ctext.function(text, IOVA)
    if function is None:
        return lost(IOVA)
    body = ctext.code(text)[function.open : function.close]
    guarded = [int(minor) for minor in re.findall(r"KERNEL_VERSION\s*\(\s*6\s*,\s*(\d+)", body)]
    if guarded or ctext.is_versioned(text, function.start):
        return Place(DONE, why="is skipped on newer kernels already")
    begin, end = ctext.line_of(text, function.open) + 1, ctext.line_of(text, function.close)
    return Place(MISSING, (Insert(begin, (since(6, 13), "\treturn 0;", "#else")), Insert(end, ("#endif",))))


def description(text: str) -> Place:
    """A module without MODULE_DESCRIPTION makes newer kernels' build complain."""
    if next(ctext.calls(text, "MODULE_DESCRIPTION"), None) or '"description=' in text:
        return Place(DONE, why="is there already")
    licence = next(ctext.calls(text, "MODULE_LICENSE"), None)
    if licence is None:
        return lost("MODULE_LICENSE")
    return Place(MISSING, (Insert(ctext.line_of(text, licence.start), (f'MODULE_DESCRIPTION("{DESCRIPTION}");',)),))


CHANGES = (
    Change("devfreq", SKY1, devfreq),
    Change("remove", SKY1, remove),
    Change("import-ns", DMA_BUF, import_ns),
    Change("pm-put", SKY1, pm_put),
    Change("iova", MM, iova),
    Change("description", SKY1, description),
)
FILES = tuple(dict.fromkeys(change.file for change in CHANGES))


def names_in(text: str) -> set[str]:
    """Returns the names of the changes whose markers a file holds."""
    return {match.group(1) for line in lines_of(text) if (match := MARKER.search(line))}


def strip(text: str) -> str:
    """Returns the file without the lines that carry a marker."""
    return "".join(line for line in lines_of(text) if not MARKER.search(line))


def apply(text: str, changes: Sequence[Change]) -> str:
    """Returns a file that carries no markers with the changes made; those that find no place make none."""
    lines, end = lines_of(text), "\r\n" if "\r\n" in text else "\n"
    before: dict[int, list[str]] = {}
    for change in changes:
        for insert in change.find(text).inserts:
            marked = [f"{line} /* anynpu: {change.name} */{end}" for line in insert.lines]
            before.setdefault(insert.line, []).extend(marked)
    wants_version = any("LINUX_VERSION_CODE" in line for marked in before.values() for line in marked)
    if wants_version and not re.search(r"^\s*#\s*include\s*<linux/version.h>", text, re.MULTILINE):
        first = re.search(r"^\s*#\s*include\b", text, re.MULTILINE)
        at = ctext.line_of(text, first.end()) if first else 0
        before.setdefault(at, []).insert(0, f"#include <linux/version.h> /* anynpu: version */{end}")
    if len(lines) in before and not text.endswith("\n"):
        raise ConfigError("the last line of the file has no line end, so that nothing can follow it", "add a line end")
    return "".join("".join(before.get(n, [])) + line for n, line in enumerate([*lines, ""]))


def is_consistent(text: str, changes: Sequence[Change]) -> bool:
    """Tells whether the marked lines are exactly those that we would insert, so that they can be taken out."""
    present = names_in(text)
    return apply(strip(text), [change for change in changes if change.name in present]) == text


def lines_of(text: str) -> list[str]:
    """Returns the lines with their ends; only a line feed ends a line, whatever else Python would split at."""
    parts = text.split("\n")
    return [part + "\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
