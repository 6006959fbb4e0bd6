"""Is a module what it should be? Read from the file itself; nothing is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from anynpu.drivers.elf_module import KernelModule, read_module
from anynpu.drivers.root import Root
from anynpu.errors import ConfigError, IntegrityError

PACKED = ("", ".xz", ".gz", ".zst")
ALIAS, NAMESPACE, LICENCES, MACHINE = "acpi*:CIXH4000:*", "DMA_BUF", ("GPL v2", "GPL"), "aarch64"


@dataclass(frozen=True)
class Check:
    """One property of a module: is it there, what was found, and what to do if not."""

    name: str
    ok: bool
    found: str
    hint: str = ""


def checks(module: KernelModule, release: str = "") -> tuple[Check, ...]:
    """Returns every check of a module; `release` is the kernel it must fit, empty where none is known."""
    spaces, licences = module.values("import_ns"), module.values("license")
    has_init = "init_module" in module.symbols
    acpi = [alias for alias in module.values("alias") if alias.startswith("acpi")]
    results = [
        Check("processor", module.machine == MACHINE, module.machine, "build with --arch arm64"),
        Check("init_module", has_init, "defined" if has_init else "not defined: it would load and do nothing", REBUILD),
        Check("licence", len(licences) == 1 and licences[0] in LICENCES, ", ".join(licences) or "none", REBUILD),
        Check("import_ns", spaces == (NAMESPACE,), ", ".join(spaces) or "none", REBUILD),
        Check("alias", ALIAS in module.values("alias"), ", ".join(acpi) or "no ACPI device", REBUILD),
    ]
    if release:
        hint = f"built for another kernel: build it with the headers of {release}"
        results.append(Check("vermagic", module.release == release, module.vermagic or "none", hint))
    return tuple(results)


REBUILD = "restore the vendor's files, then `anynpu driver zhouyi patch` and `build`"


def read(path: Path) -> KernelModule:
    """Returns what the module in a file says of itself."""
    try:
        return read_module(path.read_bytes())
    except IntegrityError as error:
        raise IntegrityError(f"{path}: {error.message}", "build it again") from None


def find(path: Path) -> Path:
    """Returns the module that a path names: itself, or aipu.ko in the folder."""
    if path.is_file():
        return path
    module = next((path / f"aipu.ko{end}" for end in PACKED if (path / f"aipu.ko{end}").is_file()), None)
    if module is None:
        raise ConfigError(f"{path}: there is no aipu.ko", "`anynpu driver zhouyi build TREE` makes one")
    return module


def installed(root: Root, release: str = "") -> tuple[str, ...]:
    """Returns the paths of every installed module of this driver, of one kernel or of all."""
    releases = (release,) if release else root.names("/lib/modules")
    ends = tuple(f"/aipu.ko{end}" for end in PACKED)
    places = (f"/lib/modules/{name}/{part}" for name in releases for part in ("updates", "extra"))
    return tuple(path for place in places for path in root.walk(place) if path.endswith(ends))
