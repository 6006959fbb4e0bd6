"""The reader of .cix files: what it says of good ones, and one sentence for each way to be bad."""

from __future__ import annotations

import json
import struct
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from anynpu.errors import ConfigError, IntegrityError
from anynpu.runtime.base import open_artifact
from anynpu.runtime.noe import aipu_elf, cix
from anynpu.runtime.noe.artifact import artifact_of
from anynpu.runtime.noe.cix import read_cix
from anynpu.tensors import Quantization, TensorSpec
from anynpu.testing import cix as writer
from anynpu.testing.cix import cix_bytes, program_bytes, wrap, write_cix


def quantized(scale: float, zero_point: int) -> Quantization:
    """Returns the vendor's scale and zero point in our convention."""
    return Quantization((1 / scale,), (-zero_point,))


IMAGE = TensorSpec("image", (1, 3, 224, 224), "int8", quantization=quantized(64.75, 12))
TOKENS = TensorSpec("tokens", (1, 77), "int32")
FEATURES = TensorSpec("features", (1, 512), "int8", quantization=quantized(27.67, 0))
BOXES = TensorSpec("boxes", (1, 84, 8400), "float16")
GOOD = cix_bytes([IMAGE, TOKENS], [FEATURES, BOXES], b"extra", "two_towers")
FLOAT = TensorSpec("x", (4,), "float32")
OTHER = TensorSpec("y", (4,), "float32")


def refused(data: bytes) -> IntegrityError:
    with pytest.raises(IntegrityError) as caught:
        read_cix(data)
    assert "\n" not in caught.value.message
    return caught.value


def with_word(data: bytes, old: int, new: int, code: str = "I", which: int = 0) -> bytes:
    """Returns the file with the occurrence `which` of a 32-bit number changed."""
    found, at = -1, -1
    while found < which:
        at = data.index(struct.pack("<" + code, old), at + 1)
        found += 1
    return data[:at] + struct.pack("<" + code, new) + data[at + 4 :]


def test_a_good_file_says_everything():
    model = read_cix(GOOD)
    assert (model.name, model.version, model.build_version) == ("two_towers", (1, 0, 0), "6.1.3407")
    assert (str(model.target), model.target.isa, model.target.config) == ("X2_1204", 5, 1204)
    assert [(t.name, t.shape, t.dtype, t.nbytes, t.index) for t in (*model.inputs, *model.outputs)] == [
        ("image", (1, 3, 224, 224), "int8", 150528, 0),
        ("tokens", (1, 77), "int32", 308, 1),
        ("features", (1, 512), "int8", 512, 0),
        ("boxes", (1, 84, 8400), "float16", 1411200, 1),
    ]
    assert model.elf[:4] == b"\x7fELF" and model.elf[-5:] == b"extra" and model.file_size == len(GOOD)
    assert {".text", ".note.aipu", ".anynpu"} <= {s.name for s in model.sections}
    assert {"fmlist", "compilermsg", "subgraphs"} <= {n.name for n in model.notes}
    text = next(s for s in model.sections if s.name == ".anynpu")
    assert model.elf[text.offset : text.offset + text.size] == b"extra"


def test_quantisation_is_turned_into_our_convention():
    image, tokens = read_cix(GOOD).inputs
    assert (image.vendor_scale, image.vendor_zero_point) == (64.75, 12)
    assert image.spec.quantization == Quantization((1 / 64.75,), (-12,))
    pixels = np.array([-1.792, 0.0, 2.146])
    stored = image.spec.to_stored(pixels)
    assert stored.tolist() == np.clip(np.round(pixels * 64.75 - 12), -128, 127).tolist() == [-128, -12, 127]
    assert np.allclose(image.spec.to_real(stored), (stored.astype(float) + 12) / 64.75)
    assert tokens.spec.quantization is None


@pytest.mark.parametrize("dtype", sorted(set(cix.DTYPES.values())))
def test_every_type_is_read_back(dtype):
    spec = TensorSpec("t", (3, 5), dtype)
    small = np.dtype(dtype).kind in "iu" and np.dtype(dtype).itemsize < 4
    wanted = replace(spec, quantization=Quantization((1.0,), (0,))) if small else spec
    model = read_cix(cix_bytes([spec], [spec]))
    assert model.inputs[0].spec == wanted == model.outputs[0].spec


def test_type_numbers_are_the_vendors():
    assert {cix.DTYPES[n] for n in (2, 3, 4, 5)} == {"uint8", "int8", "uint16", "int16"}
    assert (cix.DTYPES[3], cix.DTYPES[5], cix.DTYPES[0xA], cix.DTYPES[0xB]) == ("int8", "int16", "float16", "float32")


def test_numbers_of_tensors_are_those_of_the_program():
    many = [TensorSpec(f"t{i}", (i + 1,), "float32") for i in range(40)]
    model = read_cix(cix_bytes(many[:30], many[30:]))
    assert [t.nbytes for t in model.inputs] == [4 * (i + 1) for i in range(30)]
    assert [t.index for t in model.outputs] == list(range(10))


def built(program: bytes, spec: TensorSpec) -> bytes:
    """Returns a file with one tensor each way made by the public builder, which shares lists of fields."""
    builder = pytest.importorskip("flatbuffers").Builder(0)

    def table(*fields: tuple[str, int]) -> int:
        builder.StartObject(len(fields))
        for index, (kind, value) in enumerate(fields):
            if kind == "part":
                builder.PrependUOffsetTRelativeSlot(index, value, 0)
            else:
                (builder.PrependUint32Slot if kind == "u32" else builder.PrependInt32Slot)(index, value, 0)
        return builder.EndObject()

    def parts(offsets: list[int]) -> int:
        builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            builder.PrependUOffsetTRelative(offset)
        return builder.EndVector()

    def tensor(name: int) -> int:
        shape = builder.CreateNumpyVector(np.array(spec.shape, np.int32))
        scale, zero_point = writer.vendor_quantization(spec)
        return table(
            ("part", name),
            ("part", shape),
            ("i32", writer.CODES[spec.dtype]),
            ("i32", 1),
            ("part", builder.CreateNumpyVector(np.array([scale], np.float32))),
            ("part", builder.CreateNumpyVector(np.array([zero_point], np.int32))),
        )

    names = [builder.CreateString(name) for name in ("here", "there")]
    inputs, outputs = (parts([name]) for name in names)
    tensors = parts([tensor(name) for name in names])
    data, version = builder.CreateByteVector(program), table(("u32", 2), ("u32", 0), ("u32", 7))
    label = builder.CreateString("built")
    subgraph = table(("part", label), ("part", data), ("part", inputs), ("part", outputs), ("i32", 1))
    subgraphs = parts([subgraph])
    fields = (version, label, subgraphs, tensors, inputs, outputs)
    builder.Finish(table(*(("part", field) for field in fields)))
    return bytes(builder.Output())


def test_files_of_the_public_builder_are_read():
    spec = TensorSpec("any", (2, 3), "int16", quantization=quantized(12.5, -3))
    program = program_bytes([spec], [spec], b"extra")
    model = read_cix(built(program, spec))
    assert (model.name, model.version, bytes(model.elf)) == ("built", (2, 0, 7), program)
    assert [t.spec for t in (*model.inputs, *model.outputs)] == [spec.renamed("here"), spec.renamed("there")]


def test_the_writers_files_are_valid_for_the_public_reader():
    pytest.importorskip("flatbuffers")
    from flatbuffers import encode, number_types
    from flatbuffers.table import Table

    root = Table(bytearray(GOOD), encode.Get(number_types.UOffsetTFlags.packer_type, GOOD, 0))
    assert root.String(root.Offset(6) + root.Pos) == b"two_towers"
    at, count = root.Vector(root.Offset(10)), root.VectorLen(root.Offset(10))
    tables = [Table(root.Bytes, root.Indirect(at + 4 * i)) for i in range(count)]
    assert [t.String(t.Offset(4) + t.Pos) for t in tables] == [b"image", b"tokens", b"features", b"boxes"]


def test_every_cut_of_a_file_is_refused():
    data = cix_bytes([FLOAT], [FLOAT], b"end")
    for size in range(len(data)):
        refused(data[:size])


def test_every_cut_of_the_program_is_refused():
    program = program_bytes([FLOAT], [FLOAT], b"end")
    assert read_cix(wrap(program, [FLOAT], [FLOAT])).elf == program
    for size in range(len(program)):
        assert "program" in refused(wrap(program[:size], [FLOAT], [FLOAT])).message


def test_a_pointer_says_what_to_do(tmp_path):
    path = tmp_path / "model.cix"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 132\n")
    with pytest.raises(IntegrityError, match=r"model\.cix: is a git-lfs pointer") as caught:
        read_cix(path)
    assert "git lfs pull" in caught.value.hint and caught.value.exit_status == 8


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "is empty"),
        (bytes(4096), "begins with zeros"),
        (program_bytes([FLOAT], [FLOAT]), "is a bare ELF file"),
        (np.random.default_rng(0).bytes(4096), "leads to byte"),
        (b"PK\x03\x04" + bytes(100), "leads to byte"),
        (cix_bytes([FLOAT], [FLOAT], device=4 << 16 | 1204), "instruction set 4"),
        (with_word(GOOD, aipu_elf.MACHINE << 16 | 2, 0xB7 << 16 | 2), "machine 0xb7"),
        (wrap(b"", [FLOAT], [FLOAT]), "program is not an ELF file"),
        (wrap(b"\x7fELF" + bytes(100), [FLOAT], [FLOAT]), "program is not an ELF file"),
        (wrap(b"\x7fELF\2\1" + bytes(100), [FLOAT], [FLOAT]), "not a 32-bit little-endian executable"),
        (GOOD.replace(b".text\0", b".next\0"), "no section .text"),
        (GOOD.replace(b".note.aipu\0", b".note.aipi\0"), "no section .note.aipu"),
        (GOOD.replace(b"fmlist\0", b"fmlost\0"), "no note fmlist"),
        (GOOD.replace(b"compilermsg\0", b"compilermsh\0"), "no note compilermsg"),
        (GOOD.replace(b"subgraphs\0", b"subgrafs\0\0"), "no note subgraphs"),
        (GOOD.replace(b"tokens\0", b"tok\nns\0"), "control characters"),
        (GOOD.replace(b"tokens\0", b"tok\xffns\0"), "not UTF-8"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_model_is_told_in_a_sentence(data, sentence):
    assert sentence in refused(data).message


@pytest.mark.parametrize(
    ("at", "value", "sentence"),
    [
        (6, 0, "not a 32-bit little-endian executable"),
        (20, 2, "not a 32-bit little-endian executable"),
        (46, 48, "a damaged list of sections"),
        (48, 0, "the list of sections of its program is damaged"),
        (50, 0, "without the names of its sections"),
    ],
    ids=["first version", "version", "size of a section", "number of sections", "section of names"],
)
def test_a_header_that_the_library_would_not_take_is_refused(at, value, sentence):
    program = bytearray(program_bytes([FLOAT], [FLOAT]))
    program[at] = value
    assert sentence in refused(wrap(bytes(program), [FLOAT], [FLOAT])).message


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_is_none_is_refused(scale):
    small = TensorSpec("x", (4,), "int8", quantization=quantized(3.25, 1))
    data = cix_bytes([small], [OTHER])
    packed = struct.pack("<f", 3.25)
    assert data.count(packed) == 2
    assert "scale" in refused(data.replace(packed, struct.pack("<f", scale))).message


def test_what_no_program_can_mean_is_refused():
    inside = program_bytes([FLOAT], [FLOAT])
    for other, sentence in (
        (TensorSpec("x", (5,), "float32"), "has 20 bytes, its program says 16: they do not fit"),
        (TensorSpec("x", (4, 0), "float32"), "has the shape [4, 0]"),
        (TensorSpec("x", (1,) * 17, "float32"), "a list of 17 numbers"),
    ):
        assert sentence in refused(wrap(inside, [other], [replace(other, name="y")])).message
    assert "names 2 inputs, its program has 1" in refused(wrap(inside, [FLOAT, BOXES], [FLOAT])).message
    assert "same name twice" in refused(wrap(inside, [FLOAT, FLOAT], [FLOAT])).message


SMALL = TensorSpec("x", (4,), "int8", quantization=quantized(3.25, 1))


@pytest.mark.parametrize(
    ("container", "sentence"),
    [
        (replace(SMALL, dtype="uint8"), "data type 0x2 in the model and 0x3 in its program"),
        (replace(SMALL, shape=(3,)), "has 3 bytes, its program says 4: the rest is taken for padding"),
        (replace(SMALL, quantization=quantized(3.5, 1)), "has the scale 3.5 in the model and 3.25 in its program"),
        (replace(SMALL, quantization=quantized(3.25, 2)), "has the zero point 2 in the model and 1 in its program"),
    ],
    ids=["type", "padding", "scale", "zero-point"],
)
def test_the_program_counts_where_the_container_disagrees(container, sentence):
    data = wrap(program_bytes([SMALL], [SMALL]), [container], [container])
    model = read_cix(data)
    assert sentence in model.warnings[0] and len(model.warnings) == 2
    tensor = model.inputs[0]
    assert (tensor.dtype, tensor.nbytes, tensor.vendor_scale, tensor.vendor_zero_point) == ("int8", 4, 3.25, 1)
    with pytest.raises(IntegrityError, match=r"its program") as caught:
        read_cix(data, strict=True)
    assert "--strict" in caught.value.hint


def test_a_strict_environment_refuses_it_too(monkeypatch):
    other = replace(SMALL, dtype="uint8")
    monkeypatch.setenv("ANYNPU_NOE_STRICT", "1")
    assert "data type" in refused(wrap(program_bytes([SMALL], [SMALL]), [other], [other])).message


def test_a_type_nobody_knows_is_refused(monkeypatch):
    monkeypatch.setitem(writer.CODES, "float32", 0xD)
    assert "data type 0xd, which anynpu does not know" in refused(cix_bytes([FLOAT], [FLOAT])).message


def test_a_scale_on_real_numbers_is_not_used():
    odd = replace(FLOAT, quantization=quantized(2.0, 0))
    model = read_cix(cix_bytes([odd], [OTHER]))
    assert "the scale 2 in its program is not used" in model.warnings[0] and model.inputs[0].spec.quantization is None


def in_note(name: str, offset: int, value: int) -> bytes:
    """Returns a file with a number of a note changed."""
    program = bytearray(program_bytes([FLOAT], [OTHER]))
    note = next(n for n in aipu_elf.read_program(memoryview(bytes(program))).notes if n.name == name)
    struct.pack_into("<I", program, note.offset + offset, value)
    return wrap(bytes(program), [FLOAT], [OTHER])


@pytest.mark.parametrize(
    ("note", "offset", "value", "sentence"),
    [
        ("subgraphs", 44, 0, "subgraph 0 of its program has no private data (size 0): libnoe crashes"),
        ("fmlist", 8, 0, "the list of buffers of its program is empty: libnoe crashes"),
        ("fmlist", 92, 0x10000, "refers to data outside of the 96 bytes it has"),
        ("fmlist", 160, 0xFFFFFFFF, "refers to data outside"),
        ("fmlist", 28, 0x7FFFFFFF, "are not among the 64"),
        ("fmlist", 32, 0x7FFFFFFF, "weights of 2147483647 bytes"),
        ("remap", 0, 0x10000, "list of remapped addresses of its program is damaged"),
    ],
    ids=["no-private-data", "no-buffers", "weight-slot", "input-slot", "weight-place", "weight-size", "remap"],
)
def test_what_crashes_the_real_library_is_refused(note, offset, value, sentence):
    """Each was found by changing a number of a file that the vendor's library (0.6.0) runs, until it crashed."""
    assert sentence in refused(in_note(note, offset, value)).message


def test_a_tensor_outside_of_its_buffer_is_refused():
    data = cix_bytes([FLOAT], [FLOAT])
    at = data.index(struct.pack("<5I", 0, 16, aipu_elf.INPUT, 0, 0xB))
    assert "does not fit its buffer" in refused(data[:at] + struct.pack("<I", 4090) + data[at + 4 :]).message


@pytest.mark.parametrize("count", [0x7FFFFFFF, 0xFFFFFFFF, 100_000])
@pytest.mark.parametrize("where", ["buffers", "parts", "references", "subgraphs", "payload"])
def test_a_huge_count_is_refused(where, count):
    program = program_bytes([FLOAT], [FLOAT])
    maps = program.index(b"fmlist\0") + 8
    graphs = program.index(b"subgraphs\0") + 12
    at = {"buffers": maps + 24, "parts": maps + 40, "references": maps + 28 + 16 + 44, "subgraphs": graphs}
    if where == "payload":
        data = wrap(program, [FLOAT], [FLOAT])
        data = with_word(data, len(program), count)
    else:
        place = at[where]
        data = wrap(program[:place] + struct.pack("<I", count) + program[place + 4 :], [FLOAT], [FLOAT])
    began = time.process_time()
    assert "cut short" in refused(data).message
    assert time.process_time() - began < 5


def crowded(count: int) -> bytes:
    """Returns a file whose list of tensors leads to the same table again and again."""
    data = bytearray(cix_bytes([FLOAT], [FLOAT]))
    root = struct.unpack_from("<I", data)[0]
    slot = root + 4 + 4 * 3
    vector = slot + struct.unpack_from("<I", data, slot)[0]
    table = vector + 4 + struct.unpack_from("<I", data, vector + 4)[0]
    out = bytearray(data) + bytes(-len(data) % 4)
    # A table of its own at the end of the list; offsets lead forward only, so it is copied behind the list.
    start = len(out)
    out += struct.pack("<I", count) + bytes(4 * count)
    vtable = table - struct.unpack_from("<i", data, table)[0]
    copy = len(out)
    out += data[vtable : table + 28] + struct.pack("<I", 5) + b"other\0\0\0"
    moved = copy + table - vtable
    struct.pack_into("<I", out, moved + 4, moved + 28 - (moved + 4))
    for i in range(count):
        struct.pack_into("<I", out, start + 4 + 4 * i, moved - (start + 4 + 4 * i))
    struct.pack_into("<I", out, slot, start - slot)
    return bytes(out)


@pytest.mark.parametrize(("count", "sentence"), [(4096, "x is not described"), (4097, "4097 entries where at most")])
def test_many_references_to_one_place_cost_little(count, sentence):
    data = crowded(count)
    tracemalloc.start()
    began = time.process_time()
    message = refused(data).message
    seconds, peak = time.process_time() - began, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sentence in message and seconds < 20 and peak < 2 * len(data) + (1 << 20)


def test_a_long_list_of_empty_buffers_ends_in_bounded_time():
    program = program_bytes([FLOAT], [FLOAT])
    maps = struct.pack("<7I", 0, 0, 1, 1, 1, 0, 1 << 20) + bytes(16 << 20)
    large = wrap(_with_note(program, "fmlist", maps), [FLOAT], [FLOAT])
    began = time.process_time()
    assert "list of buffers" in refused(large).message
    assert time.process_time() - began < 20


def _with_note(program: bytes, name: str, content: bytes) -> bytes:
    """Returns the program with a section of notes at its end in which this note comes first."""
    notes = struct.pack("<3I", len(name) + 1, len(content), 1) + name.encode() + b"\0"
    notes += bytes(-len(notes) % 4) + content
    out = bytearray(program) + bytes(-len(program) % 4)
    row = 52 + 40 * 3  # after the empty one: .text, .rodata, .note.aipu
    offset, size = struct.unpack_from("<2I", out, row + 16)
    struct.pack_into("<2I", out, row + 16, len(out), len(notes) + size)
    return bytes(out) + notes + program[offset : offset + size]


def test_reading_a_large_file_copies_nothing(tmp_path):
    path = tmp_path / "large.cix"
    write_cix(path, [FLOAT], [FLOAT], bytes(32 << 20))
    tracemalloc.start()
    model = read_cix(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < model.file_size + (1 << 20)


def test_what_is_no_file_is_the_users_mistake(tmp_path):
    for path in (tmp_path, tmp_path / "none.cix", Path("/dev/null")):
        with pytest.raises(ConfigError):
            read_cix(path)


def test_a_file_is_an_artifact(tmp_path):
    path = tmp_path / "clip.cix"
    write_cix(path, [IMAGE, TOKENS], [FEATURES])
    artifact = open_artifact(path)
    assert (artifact.manifest.format, artifact.main) == ("cix", path)
    assert [(s.name, s.layout) for s in artifact.manifest.inputs] == [("image", "NCHW"), ("tokens", "")]
    assert artifact.manifest.notes == ("layout NCHW of input image follows from its shape",)
    artifact.verify()
    assert artifact.digest == artifact_of(path).digest
    write_cix(path, [IMAGE, TOKENS], [FEATURES], b"weights")
    assert artifact_of(path).manifest.fingerprint != artifact.manifest.fingerprint
    with pytest.raises(IntegrityError, match="has changed"):
        artifact.verify()


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((1, 3, 64, 64), "NCHW"),
        ((1, 64, 64, 3), "NHWC"),
        ((1, 1, 28, 28), "NCHW"),
        ((1, 3, 3, 3), ""),
        ((1, 3, 64, 3), ""),
        ((1, 16, 64, 64), ""),
        ((3, 64, 64), ""),
    ],
)
def test_a_layout_is_taken_from_the_shape_only_where_it_leaves_no_choice(tmp_path, shape, layout):
    write_cix(tmp_path / "m.cix", [TensorSpec("x", shape, "uint8")], [OTHER])
    assert artifact_of(tmp_path / "m.cix").manifest.inputs[0].layout == layout


def test_show_prints_both_conventions(cli, tmp_path):
    (tmp_path / "m.cix").write_bytes(GOOD)
    text = cli("show", "m.cix")
    assert text.returncode == 0 and "X2_1204" in text.stdout and "6.1.3407" in text.stdout
    (line,) = (line for line in text.stdout.splitlines() if "image" in line)
    assert "0.015444, -12" in line and "64.75, 12" in line and "150,528" in line
    record = json.loads(cli("show", "m.cix", "-f", "json").stdout)
    assert (record["schema_version"], record["kind"], record["target"]["config"]) == (1, "cix", 1204)
    assert record["tensors"][0]["vendor"] == {"dtype": 3, "scale": 64.75, "zero_point": 12}
    assert record["tensors"][0]["quantization"]["zero_point"] == [-12]


def test_a_damaged_file_is_exit_status_8(cli, tmp_path):
    (tmp_path / "m.cix").write_bytes(GOOD[:1000])
    done = cli("show", "m.cix")
    assert done.returncode == 8 and "cut short" in done.stderr and done.stdout == ""
