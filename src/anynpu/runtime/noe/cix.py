"""A .cix file: a FlatBuffer with the names and shapes of a model's tensors around a program for the Zhouyi NPU.

    CixGraph     0 version  1 name  2 subgraphs  3 tensors  4 inputs  5 outputs
    CixVersion   0 major  1 minor  2 patch
    CixSubgraph  0 name  1 data (the program)  2 inputs  3 outputs  4 backend
    CixTensor    0 name  1 shape  2 dtype  3 qtype  4 scale  5 zero_point

Needs no vendor library: the real one crashes on most damaged files, so they are told apart here, on any machine.
It takes sizes, types and scales from the program and does not look at what the container says of them. So the program
counts here too, and a container that disagrees is a warning, or with `strict` an error. The vendor counts
real = (stored + zero_point) / scale; `CixTensor.spec` is in our convention.
"""

from __future__ import annotations

import math
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from anynpu.elf import MAGIC
from anynpu.errors import ConfigError, IntegrityError
from anynpu.runtime.noe import flat
from anynpu.runtime.noe.aipu_elf import BorderTensor, Section, read_program
from anynpu.tensors import Quantization, TensorSpec

STRICT = "ANYNPU_NOE_STRICT"
LFS_POINTER = b"version https://git-lfs"
LARGEST_FILE = (1 << 31) - 1
MOST_BORDER_TENSORS, MOST_TENSORS, MOST_SUBGRAPHS, MOST_AXES = 256, 4096, 1024, 16
DTYPES = {
    1: "bool",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "uint32",
    7: "int32",
    8: "uint64",
    9: "int64",
    0xA: "float16",
    0xB: "float32",
    0xC: "float64",
}
"""The vendor's numbers for the types that anynpu carries."""


@dataclass(frozen=True)
class CixTensor:
    """An input or output: `index` is its number for the vendor's library, scale and zero point are the vendor's."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    """What the library reads or writes; more than the elements need where the compiler pads a tensor."""
    index: int
    vendor_dtype: int
    vendor_scale: float
    vendor_zero_point: int

    @property
    def spec(self) -> TensorSpec:
        """The tensor in our convention; nothing in the file says which axis is which."""
        kind, quantization = np.dtype(self.dtype), None
        plain = kind.itemsize >= 4 and self.vendor_scale in (0, 1) and self.vendor_zero_point == 0
        # Small integers stand for real numbers; floats, truth values and plain 32-bit numbers stand for themselves.
        if kind.kind not in "fb" and not plain:
            quantization = Quantization((1 / self.vendor_scale,), (-self.vendor_zero_point,))
        return TensorSpec(self.name, self.shape, self.dtype, quantization=quantization)


@dataclass(frozen=True)
class CixTarget:
    """The NPU that the program was compiled for, as far as the file says: it does not count cores."""

    arch: int
    isa: int
    config: int
    revision: int

    def __str__(self) -> str:
        return f"X2_{self.config}"


@dataclass(frozen=True)
class Cix:
    """What a .cix file says; `elf` is the program itself, for the vendor's library."""

    name: str
    version: tuple[int, int, int]
    inputs: tuple[CixTensor, ...]
    outputs: tuple[CixTensor, ...]
    target: CixTarget
    build_version: str
    sections: tuple[Section, ...]
    notes: tuple[Section, ...]
    file_size: int
    elf: memoryview = field(repr=False)
    warnings: tuple[str, ...] = ()
    """Where the container contradicts the program, which is what the library runs."""


def read_cix(source: Path | bytes, strict: bool | None = None) -> Cix:
    """Returns what a .cix file, or its bytes, says; IntegrityError says in one sentence why it is not one.

    With `strict`, or ANYNPU_NOE_STRICT=1, a container that contradicts its program is an error too.
    """
    place = "the model" if isinstance(source, bytes) else str(source)
    try:
        cix = _read(memoryview(source if isinstance(source, bytes) else _load(source)))
        if cix.warnings and (os.environ.get(STRICT, "0") != "0" if strict is None else strict):
            raise IntegrityError(cix.warnings[0], "without --strict the program counts, as it does for the library")
        return cix
    except IntegrityError as error:
        raise IntegrityError(f"{place}: {error.message}", error.hint) from None


def _load(path: Path) -> bytes:
    try:
        state = path.stat()
        if not stat.S_ISREG(state.st_mode):
            raise ConfigError(f"{path}: is not a file", "name a .cix file")
        if state.st_size > LARGEST_FILE:
            raise IntegrityError(f"{state.st_size} bytes are more than a .cix file can have")
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None


def _read(data: memoryview) -> Cix:
    # Raises for the files that are commonly taken for models and are none
    start = bytes(data[: len(LFS_POINTER)])
    if not start:
        raise IntegrityError("is empty", "fetch it again")
    if start == LFS_POINTER:
        raise IntegrityError(
            "is a git-lfs pointer of a few lines, not the model itself",
            "run `git lfs install` and `git lfs pull` in its folder, or download the file itself",
        )
    if start.startswith(MAGIC):
        raise IntegrityError("is a bare ELF file; a .cix file wraps one", "name the .cix file that the compiler wrote")
    if len(data) > 64 and not any(data[:64]):
        raise IntegrityError("begins with zeros: its download or copy was not finished", "fetch it again")
    graph = flat.root(data)
    program_bytes, names = _payload(graph)
    program = read_program(program_bytes)
    encoded = {name.encode(): name for name in (*names[0], *names[1])}
    longest = max(map(len, encoded))
    described: dict[str, flat.Table] = {}
    for table in graph.tables(3, MOST_TENSORS):
        raw = table.view(0)
        name = encoded.get(bytes(raw)) if len(raw) <= longest else None
        if name is not None and described.setdefault(name, table) is not table:
            raise IntegrityError(f"it describes the tensor {name} twice")
    version, device, build = graph.table(0), program.device, program.build_version
    warnings: list[str] = []
    return Cix(
        name=graph.text(1),
        version=(version.number(0, "I"), version.number(1, "I"), version.number(2, "I")) if version else (0, 0, 0),
        inputs=_tensors("input", names[0], described, program.inputs, warnings),
        outputs=_tensors("output", names[1], described, program.outputs, warnings),
        target=CixTarget(device >> 20 & 0xFF, device >> 16 & 0xF, device & 0xFFFF, device >> 28),
        build_version=f"{build & 0xF}.{build >> 8 & 0xFF}.{build >> 16}",
        sections=program.sections,
        notes=program.notes,
        file_size=len(data),
        elf=program_bytes,
        warnings=tuple(warnings),
    )


def _payload(graph: flat.Table) -> tuple[memoryview, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Returns the program, and the names of the model's inputs and outputs."""
    subgraphs = list(graph.tables(2, MOST_SUBGRAPHS))
    if not subgraphs:
        raise IntegrityError("holds no program: not a .cix file, or a damaged one")
    if len(subgraphs) > 1:
        raise IntegrityError(
            f"is split into {len(subgraphs)} programs, and the vendor's library runs the first only",
            "compile it again without operators that leave the NPU",
        )
    names = (graph.texts(4, MOST_BORDER_TENSORS), graph.texts(5, MOST_BORDER_TENSORS))
    for what, ours, theirs in zip(("inputs", "outputs"), names, (2, 3), strict=True):
        if not ours or "" in ours or len(set(ours)) != len(ours):
            raise IntegrityError(f"its {what} have no names, or the same name twice")
        if subgraphs[0].texts(theirs, MOST_BORDER_TENSORS) not in ((), ours):
            raise IntegrityError(f"its program has other {what} than the model")
    return subgraphs[0].view(1), names


def _tensors(
    what: str,
    names: tuple[str, ...],
    described: dict[str, flat.Table],
    programs: tuple[BorderTensor, ...],
    warnings: list[str],
) -> tuple[CixTensor, ...]:
    """Returns the inputs or outputs: names and shapes from the container, all else from the program."""
    if len(names) != len(programs):
        raise IntegrityError(f"it names {len(names)} {what}s, its program has {len(programs)}")
    for name in names:
        if name not in described:
            raise IntegrityError(f"{what} {name} is not described in it")
    tensors = []
    for name, program in zip(names, programs, strict=True):
        place, table = f"{what} {name}", described[name]
        shape = table.numbers(1, "i", MOST_AXES)
        if not shape or min(shape) < 1:
            raise IntegrityError(f"{place} has the shape {list(shape)}")
        if program.dtype not in DTYPES:
            raise IntegrityError(f"{place} is of data type {program.dtype:#x}, which anynpu does not know")
        if (container := table.number(2)) != program.dtype:
            differs = f"{container:#x} in the model and {program.dtype:#x} in its program"
            warnings.append(f"{place} is of data type {differs}")
        dtype = DTYPES[program.dtype]
        needed = math.prod(shape) * np.dtype(dtype).itemsize
        if needed != program.nbytes:
            difference = f"{place} of shape {list(shape)} and type {dtype} has {needed} bytes, its program says "
            if needed > program.nbytes:
                raise IntegrityError(f"{difference}{program.nbytes}: they do not fit")
            warnings.append(f"{difference}{program.nbytes}: the rest is taken for padding")
        _check_quantization(place, dtype, table, program, warnings)
        form = (program.nbytes, program.id, program.dtype, program.scale, program.zero_point)
        tensors.append(CixTensor(name, shape, dtype, *form))
    return tuple(tensors)


def _check_quantization(place: str, dtype: str, table: flat.Table, program: BorderTensor, warnings: list[str]) -> None:
    """Raises for a scale that no stored number can be read with; says where the container has another one."""
    kind = np.dtype(dtype)
    if kind.kind in "fb":
        if program.scale not in (0, 1) or program.zero_point:
            warnings.append(f"{place} is of type {dtype}: the scale {program.scale:g} in its program is not used")
        return
    plain = kind.itemsize >= 4 and program.scale == 0 and not program.zero_point
    if not plain and (not math.isfinite(program.scale) or program.scale <= 0):
        raise IntegrityError(f"{place} has the scale {program.scale:g}; it must be a finite number above zero")
    for what, container, counts in (
        ("scale", table.numbers(4, "f", 1), program.scale),
        ("zero point", table.numbers(5, "i", 1), program.zero_point),
    ):
        if container not in ((), (counts,)):
            warnings.append(
                f"{place} has the {what} {_told(container[0])} in the model and {_told(counts)} in its program"
            )


def _told(value: float) -> str:
    return f"{value:.8g}" if isinstance(value, float) else str(value)
