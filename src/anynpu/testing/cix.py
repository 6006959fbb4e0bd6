"""Writes .cix files for tests, with every part that the reader, the fake library and the vendor's parser look at.

    write_cix(path, [TensorSpec("image", (1, 3, 8, 8), "uint8")], [TensorSpec("scores", (1, 4), "float16")])

The program in it does nothing. `payload_extra` is its last section, `.anynpu`, and the last bytes of the file: room for
what a fake needs in order to compute something. The layouts are those of Arm China's own parser (parser_elf.h and
parser_base.h of Compass_NPU_Driver), and `make test-noe-real` runs these files on the vendor's library.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from anynpu.errors import ConfigError
from anynpu.runtime.noe.aipu_elf import INPUT, MACHINE, OUTPUT, ZHOUYI_V3
from anynpu.runtime.noe.cix import DTYPES
from anynpu.tensors import TensorSpec

EXTRA = ".anynpu"
DEVICE = ZHOUYI_V3 << 16 | 1204
BUILD_VERSION = 6 | 1 << 8 | 3407 << 16
CODES = {name: code for code, name in DTYPES.items()}
RODATA_MARK = b"anpu"
PRIVATE_DATA_BYTES = 256
"""Room that every task of a subgraph has to itself; without any, the vendor's library crashes in noe_create_job."""

Writer = Callable[[bytearray], int]
"""Appends a part of a FlatBuffer and returns where it begins."""


def write_cix(
    path: Path,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    payload_extra: bytes = b"",
    name: str = "model",
    device: int = DEVICE,
) -> None:
    """Writes a .cix file with these inputs and outputs."""
    path.write_bytes(cix_bytes(inputs, outputs, payload_extra, name, device))


def cix_bytes(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    payload_extra: bytes = b"",
    name: str = "model",
    device: int = DEVICE,
) -> bytes:
    """Returns the bytes of a .cix file with these inputs and outputs."""
    return wrap(program_bytes(inputs, outputs, payload_extra, device), inputs, outputs, name)


def vendor_quantization(spec: TensorSpec) -> tuple[float, int]:
    """Returns scale and zero point in the vendor's convention, real = (stored + zero_point) / scale."""
    if spec.quantization is None:
        return 1.0, 0
    return 1 / spec.quantization.scale[0], -spec.quantization.zero_point[0]


def wrap(program: bytes, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], name: str = "model") -> bytes:
    """Returns a .cix file around a program; the program is its end, so that a cut file shows."""
    both = {spec.name: spec for spec in (*inputs, *outputs)}
    if any(both[spec.name] != spec for spec in inputs):
        raise ConfigError("an input and an output of one name must be the same tensor")
    names = [_vector([_text(spec.name) for spec in specs]) for specs in (inputs, outputs)]
    tensors = [_tensor(spec) for spec in both.values()]
    version = _table([_inline("<I", part) for part in (1, 0, 0)])
    part = _table([_text(name), _bytes(program), *names, _inline("<i", 1)], last=1)
    graph = _table([version, _text(name), _vector([part]), _vector(tensors), *names], last=2)
    out = bytearray(4)
    struct.pack_into("<I", out, 0, graph(out))
    return bytes(out)


def _tensor(spec: TensorSpec) -> Writer:
    scale, zero_point = vendor_quantization(spec)
    return _table(
        [
            _text(spec.name),
            _numbers("i", spec.shape),
            _inline("<i", CODES[spec.dtype]),
            _inline("<i", 0 if spec.quantization is None else 1),
            _numbers("f", (scale,)),
            _numbers("i", (zero_point,)),
        ]
    )


def _align(out: bytearray, width: int = 4, ahead: int = 0) -> int:
    """Pads until what is `ahead` of the end is a multiple of `width`; returns the end."""
    out.extend(bytes(-(len(out) + ahead) % width))
    return len(out)


def _inline(form: str, value: int) -> bytes:
    return struct.pack(form, value)


def _table(fields: Sequence[Writer | bytes], last: int = 0) -> Writer:
    """A table of four-byte fields; the part that field `last` refers to is written after all others."""

    def write(out: bytearray) -> int:
        size = 4 + 2 * len(fields)
        _align(out, 4, size)
        vtable = len(out)
        out.extend(
            struct.pack(f"<HH{len(fields)}H", size, 4 + 4 * len(fields), *(4 + 4 * i for i in range(len(fields))))
        )
        at = len(out)
        out.extend(struct.pack("<i", at - vtable))
        for value in fields:
            out.extend(value if isinstance(value, bytes) else bytes(4))
        for index in sorted(range(len(fields)), key=lambda i: (i == last, i)):
            _refer(out, at + 4 + 4 * index, fields[index])
        return at

    return write


def _refer(out: bytearray, slot: int, part: Writer | bytes) -> None:
    if not isinstance(part, bytes):
        target = part(out)
        struct.pack_into("<I", out, slot, target - slot)


def _vector(parts: Sequence[Writer]) -> Writer:
    def write(out: bytearray) -> int:
        at = _align(out)
        out.extend(struct.pack("<I", len(parts)) + bytes(4 * len(parts)))
        for index, part in enumerate(parts):
            _refer(out, at + 4 + 4 * index, part)
        return at

    return write


def _numbers(code: str, values: Sequence[float]) -> Writer:
    return _bytes(struct.pack(f"<{len(values)}{code}", *values), len(values))


def _text(text: str) -> Writer:
    encoded = text.encode()
    return _bytes(encoded + b"\0", len(encoded))


def _bytes(content: bytes, count: int | None = None) -> Writer:
    """A vector; where no count is given it holds bytes, and they begin at a multiple of 16."""

    def write(out: bytearray) -> int:
        at = _align(out, 16 if count is None else 4, 4 if count is None else 0)
        out.extend(struct.pack("<I", len(content) if count is None else count) + content)
        return at

    return write


def program_bytes(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    extra: bytes = b"",
    device: int = DEVICE,
    build_version: int = BUILD_VERSION,
    private_data_bytes: int = PRIVATE_DATA_BYTES,
) -> bytes:
    """Returns an ELF file for the NPU that has these inputs and outputs and does nothing."""
    # What the program reads: our mark, how many tensors, then size and address of each and the weight's
    # address. The addresses are 0 in the file: the library fills them in, where the list of buffers says.
    sizes = b"".join(struct.pack("<II", spec.nbytes, 0) for spec in (*inputs, *outputs))
    rodata = struct.pack("<4sII", RODATA_MARK, len(inputs), len(outputs)) + sizes + bytes(4)
    # One subgraph: number and kind, where its program, buffers and data begin, then the room for what it
    # prints, profiles and keeps to itself, and no subgraphs that must run before it.
    places = (0, 0, 0, 0, 0, len(rodata), 0, 64)
    rooms = (0, 0, private_data_bytes, 0, 0, 0)
    notes = {
        "rodata": rodata,
        "desc": bytes(64),
        "weight": bytes(64),
        "fmlist": _feature_maps(inputs, outputs),
        "remap": struct.pack("<I", 0),
        "subgraphs": struct.pack("<I14Iii", 1, *places, *rooms, 0, 0),
        "compilermsg": struct.pack("<4I8i", 1 << 24 | 1 << 16, build_version, device, 0, *[0] * 8),
    }
    sections = {
        ".text": bytes(64),
        ".rodata": bytes(16),
        ".note.aipu": b"".join(_note(name, content) for name, content in notes.items()),
    }
    return _elf(sections, extra)


def _feature_maps(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> bytes:
    """The list of buffers: one group with a weight, and a buffer for each input and output."""
    weight = struct.pack("<4I", 0, 64, 32, 1) + struct.pack("<5Ifi5I", 0, 64, 4, 0, 3, 1.0, 0, 0, 0, 0, 0xFFFFFFFF, 1)
    weight_slot = 12 + 8 * (len(inputs) + len(outputs))
    parts = [weight + struct.pack("<I", weight_slot)]
    for kind, specs in ((INPUT, inputs), (OUTPUT, outputs)):
        for id, spec in enumerate(specs):
            scale, zero_point = vendor_quantization(spec)
            parts.append(struct.pack("<4I", -(-spec.nbytes // 4096) * 4096, 4096, 0, 1))
            code = CODES[spec.dtype]
            part = (0, spec.nbytes, kind, id, code, scale, zero_point, 0, 0, 0, 0xFFFFFFFF, 1, 8 + 4 * len(parts))
            parts.append(struct.pack("<5Ifi6I", *part))
    count = len(inputs) + len(outputs)
    return struct.pack("<7I", 0, 0, 1, 4096, 4096, 1, count) + b"".join(parts)


def _note(name: str, content: bytes) -> bytes:
    label = name.encode() + b"\0"
    padded = (part + bytes(-len(part) % 4) for part in (label, content))
    return struct.pack("<3I", len(label), len(content), 1) + b"".join(padded)


def _elf(sections: dict[str, bytes], extra: bytes) -> bytes:
    """Returns an ELF file of these sections, the list of them first and `extra` last."""
    parts = {**sections, ".shstrtab": b"", EXTRA: extra}
    names = b"\0" + b"".join(name.encode() + b"\0" for name in parts)
    parts[".shstrtab"] = names
    start = 52 + 40 * (len(parts) + 1)
    header = struct.pack(
        "<16s2H5I6H", b"\x7fELF\x01\x01\x01", 2, MACHINE, 1, 0, 0, 52, 0, 52, 0, 0, 40, len(parts) + 1, len(parts) - 1
    )
    rows, body = [bytes(40)], bytearray()
    kinds = {".note.aipu": 7, ".shstrtab": 3}
    for name, content in parts.items():
        body.extend(bytes(-(start + len(body)) % 16))
        label = names.index(b"\0" + name.encode() + b"\0") + 1
        rows.append(struct.pack("<10I", label, kinds.get(name, 1), 0, 0, start + len(body), len(content), 0, 0, 4, 0))
        body.extend(content)
    return header + b"".join(rows) + bytes(body)
