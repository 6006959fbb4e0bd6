"""The chip's C compiler: whether it is here, and what it makes of the generated files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from anynpu import tool
from anynpu.errors import IntegrityError, ToolFailed
from anynpu.runtime.device import elf

FLAGS = ("-std=c99", "-ffunction-sections", "-fdata-sections")
"""What every project tree compiles the model with, besides the flags of the core."""
PROBE = "#include <stdint.h>\n#include <string.h>\nint32_t probe;\n"


def version(program: str) -> str:
    """Returns the first line that a compiler says of its version, or an empty string where it is not installed."""
    if shutil.which(program) is None:
        return ""
    with tempfile.TemporaryDirectory(prefix="anynpu-") as scratch:
        done = tool.run([program, "--version"], cwd=Path(scratch), log=Path(scratch) / "log", timeout_s=30)
    return done.output.partition("\n")[0].strip()


@dataclass(frozen=True)
class Compiler:
    """A C compiler with the flags of a core, and the packages to install where it is missing."""

    program: str
    flags: tuple[str, ...] = ()
    package: str = ""

    @property
    def all_flags(self) -> tuple[str, ...]:
        """The flags of the core and those of every project tree."""
        return (*self.flags, *(flag for flag in FLAGS if flag not in self.flags))

    def missing(self) -> str:
        """Returns why the generated files cannot be compiled here and what to install, or an empty string."""
        install = f" (install {self.package})" if self.package else ""
        if shutil.which(self.program) is None:
            return f"{self.program} is not installed{install}"
        with tempfile.TemporaryDirectory(prefix="anynpu-") as name:
            folder = Path(name)
            (folder / "probe.c").write_text(PROBE, "utf-8")
            try:
                (probe,) = self._objects([folder / "probe.c"], folder, folder / "log")
            except ToolFailed:
                # Its own words name the folder: the sentence is kept with the artifact and must not change.
                return f"{self.program} does not compile for this core{install}"
            return "" if elf.is_elf(probe) else f"{self.program} makes no ELF files"

    def footprint(
        self, sources: Sequence[Path], scratch: Path, log: Path, named: Callable[[elf.Section], elf.Section]
    ) -> elf.Footprint:
        """Returns what the objects of `sources` occupy, their sections under the names that `named` gives them."""
        with tempfile.TemporaryDirectory(prefix="objects-", dir=scratch) as name:
            objects = self._objects(sources, Path(name), log)
            if wrong := [path.name for path in objects if not elf.is_elf(path)]:
                raise IntegrityError(f"{self.program} makes no ELF files of the generated C ({wrong[0]})")
            sections = [named(section) for path in objects for section in elf.footprint(path).sections]
        return elf.Footprint(tuple(sections)).merged()

    def _objects(self, sources: Sequence[Path], folder: Path, log: Path) -> list[Path]:
        objects = [folder / f"{source.stem}.o" for source in sources]
        for source, result in zip(sources, objects, strict=True):
            argv = [self.program, *self.all_flags, "-c", str(source.absolute()), "-o", str(result)]
            tool.run(argv, cwd=folder, log=log, hint="the generated code does not compile")
        return objects
