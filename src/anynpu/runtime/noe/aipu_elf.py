"""The program inside a .cix file: a small ELF file for the NPU whose notes list its border tensors.

The vendor's library reads it without checking much: what would make it read outside of the file is refused here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from anynpu.elf import CURRENT, EMPTY, EXECUTABLE, NO_BITS, read_elf, text_at
from anynpu.errors import IntegrityError

MACHINE = 0x29A
ZHOUYI_V3 = 5
NOTES = ".note.aipu"
INPUT, OUTPUT = 0, 1
PAGE = 4096
"""The library may read beyond the weights up to the end of a page, and compilers round sizes up."""
MOST_SECTIONS, MOST_NOTES, MOST_BUFFERS, MOST_TENSORS = 4096, 4096, 1 << 18, 256
_WORDS3, _WORDS4 = struct.Struct("<3I"), struct.Struct("<4I")
_TENSOR = struct.Struct("<5Ifi5I")
_SUBGRAPH = struct.Struct("<14Ii")
_PRIVATE_DATA_SIZE = 10
"""Which number of a subgraph's record: ElfSubGraphDesc in parser_elf.h of Arm China's Compass_NPU_Driver."""


@dataclass(frozen=True)
class Section:
    """A named part of the program."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True)
class BorderTensor:
    """An input or output as the program's list of buffers describes it, in the vendor's convention."""

    id: int
    nbytes: int
    dtype: int
    scale: float
    zero_point: int


@dataclass(frozen=True)
class Program:
    """What the notes of the program say."""

    sections: tuple[Section, ...]
    notes: tuple[Section, ...]
    file_version: int
    build_version: int
    device: int
    flag: int
    inputs: tuple[BorderTensor, ...]
    outputs: tuple[BorderTensor, ...]


def read_program(data: memoryview) -> Program:
    """Returns what an NPU program says of itself; anything else raises IntegrityError."""
    try:
        elf = read_elf(data)
    except IntegrityError as error:
        raise IntegrityError(f"its program is {error.message}") from None
    if (elf.bits, elf.order, elf.kind, elf.versions) != (32, "<", EXECUTABLE, CURRENT):
        raise IntegrityError("its program is not a 32-bit little-endian executable ELF file")
    if elf.machine != MACHINE:
        raise IntegrityError(f"its program is for machine {elf.machine:#x}, not for a Zhouyi NPU ({MACHINE:#x})")
    if not 0 < len(elf.sections) <= MOST_SECTIONS:
        raise IntegrityError("the list of sections of its program is damaged or cut short")
    sections = tuple(
        Section(_sound(s.name), s.offset, 0 if s.kind == NO_BITS else s.size) for s in elf.sections if s.kind != EMPTY
    )
    by_name = {s.name: s for s in reversed(sections)}
    for name in (".text", NOTES):
        if not (section := by_name.get(name)) or not section.size:
            raise IntegrityError(f"its program has no section {name}")
    notes = _notes(data, by_name[NOTES])
    first = {n.name: n for n in reversed(notes)}
    file_version, build_version, device, flag = _message(data, first)
    sizes = {note.name: note.size for note in first.values()}
    data_size = sizes.get("rodata", 0) + sizes.get("desc", 0)
    _check_subgraphs(_note(data, first, "subgraphs"), data_size)
    if sizes.get("remap"):
        remaps = _Reader(_note(data, first, "remap"), "list of remapped addresses")
        remaps.words(4 * remaps.take(struct.Struct("<I"))[0])
    weights_size = None if sizes.get("extra_weight_name") else sizes.get("weight", 0)
    found_tensors = _Buffers(_note(data, first, "fmlist"), data_size, weights_size)
    return Program(
        sections,
        notes,
        file_version,
        build_version,
        device,
        flag,
        _in_order(found_tensors.inputs, "input"),
        _in_order(found_tensors.outputs, "output"),
    )


def _sound(name: str) -> str:
    """Returns the name of a section or note if it is plain text of at most 63 characters, as the library wants."""
    if len(name) > 63 or not name.isascii() or not name.isprintable():
        raise IntegrityError("a section of its program has no valid name")
    return name


def _notes(data: memoryview, section: Section) -> tuple[Section, ...]:
    """Returns the notes by name; each offset is from the start of the program."""
    notes: list[Section] = []
    at, end = section.offset, section.offset + section.size
    while at + 12 <= end:
        name_size, size, _ = _WORDS3.unpack_from(data, at)
        start = at + 12 + _padded(name_size)
        if not 0 < name_size <= 64 or start + size > end or len(notes) >= MOST_NOTES:
            raise IntegrityError("a note of its program is damaged or cut short")
        notes.append(Section(_sound(text_at(bytes(data[at + 12 : at + 12 + name_size]), 0)), start, size))
        at = start + _padded(size)
    return tuple(notes)


def _padded(size: int) -> int:
    return (size + 3) & ~3


def _note(data: memoryview, notes: dict[str, Section], name: str) -> memoryview:
    if name not in notes or not notes[name].size:
        raise IntegrityError(f"its program has no note {name}")
    note = notes[name]
    return data[note.offset : note.offset + note.size]


def _message(data: memoryview, notes: dict[str, Section]) -> tuple[int, int, int, int]:
    """Returns the compiler's message: file version, build version, device, flag."""
    note = _note(data, notes, "compilermsg")
    if not 16 <= len(note) <= 48:  # the library copies it into 48 bytes, whatever its length
        raise IntegrityError(f"the compiler's message in its program is {len(note)} bytes long, not 16 to 48")
    file_version, build_version, device, flag = _WORDS4.unpack_from(note)
    if (isa := device >> 16 & 0xF) != ZHOUYI_V3:
        raise IntegrityError(
            f"its program is for instruction set {isa}, a Zhouyi Z3 has {ZHOUYI_V3}: built for another NPU"
        )
    return file_version, build_version, device, flag


@dataclass
class _Reader:
    """Reads records one after the other; a record that is not whole raises."""

    data: memoryview
    what: str
    at: int = 0
    records: int = 0

    def take(self, form: struct.Struct) -> tuple[int, ...]:
        self.records += 1
        if self.at + form.size > len(self.data) or self.records > MOST_BUFFERS:
            raise IntegrityError(f"the {self.what} of its program is damaged or cut short")
        record = form.unpack_from(self.data, self.at)
        self.at += form.size
        return record

    def words(self, count: int) -> memoryview:
        if count < 0 or self.at + 4 * count > len(self.data):
            raise IntegrityError(f"the {self.what} of its program is damaged or cut short")
        self.at += 4 * count
        return self.data[self.at - 4 * count : self.at]

    def buffers(self, count: int, data_size: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Gives each buffer's parts with the buffer they belong to.

        The library writes a part's address into the program's read-only data of `data_size` bytes, at every offset that
        the part lists, without comparing the two.
        """
        for _ in range(count):
            buffer = self.take(_WORDS4)
            for _ in range(buffer[3]):
                part = self.take(_TENSOR)
                offsets = self.words(part[-1])
                if len(offsets) and max(struct.unpack(f"<{part[-1]}I", offsets)) + 4 > data_size:
                    raise IntegrityError(
                        f"the {self.what} of its program refers to data outside of the {data_size} bytes it has"
                    )
                yield buffer, part


@dataclass
class _Buffers:
    """The inputs and outputs in the list of buffers, by id."""

    data: memoryview
    data_size: int
    weights_size: int | None
    """None where the weights lie in a file of their own."""
    inputs: dict[int, BorderTensor] = field(default_factory=dict)
    outputs: dict[int, BorderTensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        reader = _Reader(self.data, "list of buffers")
        _, _, count = reader.take(_WORDS3)
        if not count:
            raise IntegrityError("the list of buffers of its program is empty: libnoe crashes on such a program")
        for _ in range(count):
            stack, align, static, reused = reader.take(_WORDS4)
            if not stack or not align or not reused:
                raise IntegrityError("the list of buffers of its program has a group without stack or buffers")
            for (offset, size, *_), _ in reader.buffers(static, self.data_size):
                if self.weights_size is not None and offset + size > self.weights_size + PAGE:
                    raise IntegrityError(f"weights of {size} bytes at {offset} are not among the {self.weights_size}")
            for (room, *_), part in reader.buffers(reused, self.data_size):
                offset, size, kind, id, dtype, scale, zero_point = part[:7]
                if kind not in (INPUT, OUTPUT):
                    continue
                if offset + size > room:
                    raise IntegrityError(
                        f"a tensor of {size} bytes at {offset} does not fit its buffer of {room} bytes"
                    )
                tensors, what = ((self.inputs, "input"), (self.outputs, "output"))[kind]
                if id in tensors or len(tensors) >= MOST_TENSORS:
                    raise IntegrityError(f"its program describes {what} {id} twice, or too many of them")
                tensors[id] = BorderTensor(id, size, dtype, float(scale), zero_point)


def _in_order(tensors: dict[int, BorderTensor], what: str) -> tuple[BorderTensor, ...]:
    if sorted(tensors) != list(range(len(tensors))):
        raise IntegrityError(f"the {what}s of its program are not numbered from 0 without gaps")
    return tuple(tensors[i] for i in range(len(tensors)))


def _check_subgraphs(note: memoryview, data_size: int) -> None:
    """Raises unless every subgraph record is whole and gives its tasks data of their own.

    The library writes the address of that data into every task without asking whether there is any (job_v3.cpp of
    Arm China's Compass_NPU_Driver): with a size of 0, noe_create_job of libnoe 0.6.0 crashes.
    """
    reader = _Reader(note, "list of subgraphs")
    (count,) = reader.take(struct.Struct("<I"))
    for number in range(count):
        record = reader.take(_SUBGRAPH)
        if not record[_PRIVATE_DATA_SIZE]:
            raise IntegrityError(
                f"subgraph {number} of its program has no private data (size 0): libnoe crashes on such a program",
                "compile the model again; cixbuild gives every subgraph private data",
            )
        reader.words(max(0, record[-1]))
        (private,) = reader.take(struct.Struct("<i"))
        for _ in reader.buffers(max(0, private), data_size):
            pass
