"""What no compiler checks: a planted fault of each kind is named, and streams as Vela writes them are silent."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ethosu.vela", reason="pip install 'anynpu[build]'")
pytest.importorskip("tflite_micro", reason="pip install 'anynpu[build]'")


from compiled import CHIPS, Refused, compile_model, samples
from excuses import excuse
from random_graphs import Drawer
from test_damage import network
from test_difference import planted
from vela_graphs import draw_any

from anynpu.errors import AnyNpuError, IntegrityError
from anynpu.runtime.ethos_u.audit import audited
from anynpu.runtime.ethos_u.findings import Audited, Violation
from anynpu.runtime.ethos_u.layers import Layer, read_layers
from anynpu.runtime.ethos_u.model import Model, NpuCall, read_model
from anynpu.runtime.ethos_u.twin import Twin
from anynpu.targets.flatbuffer import TfliteOperator, TfliteTensor, operators
from anynpu.targets.vela.origin import FILE, reads_of, write_origins

pytestmark = pytest.mark.build
Compiled = tuple[Model, dict[tuple[int, int], Layer]]


def compiled_model(source: Path, chip: str, folder: Path, **settings: str) -> Compiled:
    """Returns what Vela makes of a model, and the layers that its operations come from."""
    model = read_model(compile_model(source, chip, folder, **settings))
    write_origins(folder / f"{source.stem}_debug.xml", operators(source), folder)
    return model, read_layers(folder / FILE)


@pytest.fixture(scope="module", params=("ethos-u55-128", "ethos-u65-512", "ethos-u85-256"))
def compiled(request, tmp_path_factory) -> Compiled:
    folder = tmp_path_factory.mktemp(request.param)
    return compiled_model(network(folder / "net.tflite"), request.param, folder)


def violations(model: Model, layers: dict[tuple[int, int], Layer]) -> list[Violation]:
    return Twin(model).audit([value[:1] for value in samples(model, 1)], layers).violations


def only_call(model: Model) -> NpuCall:
    (call,) = (c for c in model.calls if isinstance(c, NpuCall))
    return call


def without_waits(model: Model) -> Model:
    """Returns the model with a stream that waits for nothing."""
    call = only_call(model)
    operations = tuple(dataclasses.replace(o, dma_wait=None, kernel_wait=None) for o in call.stream.operations)
    stream = dataclasses.replace(call.stream, operations=operations)
    return dataclasses.replace(model, calls=(dataclasses.replace(call, stream=stream),))


def test_a_healthy_stream_is_silent_and_stays_in_its_arena(compiled):
    model, layers = compiled
    audit = Twin(model).audit([value[:1] for value in samples(model, 1)], layers)
    assert audit.violations == []
    touched = audit.touched()
    assert 0 < touched["the arena"][0] <= touched["the arena"][1] <= model.arena_bytes


def test_memory_that_nothing_has_written(compiled):
    """More memory than the stream knows of, and an addition that reads there."""
    model, layers = compiled
    call = only_call(model)
    end = call.scratch.nbytes
    wider = dataclasses.replace(call, scratch=dataclasses.replace(call.scratch, shape=(end + 4096,)))
    larger = dataclasses.replace(model, calls=(wider,), arena_bytes=model.arena_bytes + 4096)
    op = next(o for o in call.stream.operations if o.kind == "elementwise")
    fault = violations(planted(larger, "elementwise", 0, IFM_REGION=1, IFM_BASE0=end), layers)[0]
    assert (fault.rule, fault.operation, fault.word, fault.registers) == ("unwritten-read", op.index, op.word, "IFM")
    assert fault.tensor.split()[0] in ("ADD", "LOGISTIC") and "were never written" in fault.message


@pytest.mark.parametrize("chip", ("ethos-u55-128", "ethos-u65-512", "ethos-u85-256"))
def test_a_live_tensor_that_is_overwritten_names_the_writer(chip, tmp_path):
    """A convolution writes over the tensor that the addition behind it reads once more."""
    d = Drawer(np.random.default_rng(4))
    x = d.input((1, 6, 6, 16), "int8", 0.05, 0)
    kept = d.pool(x, "MAX_POOL_2D")
    filtered = d.conv(kept)
    changed = d.pool(filtered, "MAX_POOL_2D")
    out = d.new(changed.shape, "int8", 0.1, 0)
    one = d.pool(kept, "AVERAGE_POOL_2D")
    d.operator("CONCATENATION", [changed.number], [out.number], "ConcatenationOptions", axis=3)
    model, layers = compiled_model(d.write(tmp_path / "net.tflite"), chip, tmp_path)
    assert violations(model, layers) == [] and one.number
    operations = only_call(model).stream.operations
    reader = next(o for o in operations if getattr(layers.get((0, o.word)), "title", "").startswith("AVERAGE_POOL_2D"))
    writer = next(o for o in operations if o.kind == "conv" and o.index < reader.index)
    place = {"OFM_BASE0": reader.address("IFM_BASE0"), "OFM_REGION": reader.register("IFM_REGION")}
    faults = violations(planted(model, "conv", 0, **place), layers)
    told = [f for f in faults if f.rule == "live-write"]
    assert told and (told[0].operation, told[0].registers) == (writer.index, "OFM"), [str(f) for f in faults]
    assert told[0].tensor.startswith("AVERAGE_POOL_2D") and reader.title in told[0].message


def test_a_tensor_that_a_later_operator_reads_is_live(tmp_path):
    """An input of the second stream must survive the first, which must write its own output."""
    d = Drawer(np.random.default_rng(3))
    x, y = (d.input((1, 4, 4, 8), "int8", 0.05, 0) for _ in range(2))
    back = d.dequantize(d.unary(x, "RELU6"))
    out = d.new(x.shape, "int8", 0.05, 0)
    d.operator("ADD", [back.number, y.number], [out.number], "AddOptions")
    model, layers = compiled_model(d.write(tmp_path / "net.tflite"), "ethos-u55-128", tmp_path)
    first = next(c for c in model.calls if isinstance(c, NpuCall))
    assert violations(model, layers) == []
    (kept,) = model.live_across(model.calls.index(first))
    *others, op = first.stream.operations
    changed = dataclasses.replace(op, registers={**op.registers, "OFM_BASE0": kept.offset, "OFM_REGION": 1})
    stream = dataclasses.replace(first.stream, operations=(*others, changed))
    calls = tuple(dataclasses.replace(c, stream=stream) if c is first else c for c in model.calls)
    told = [(f.rule, f.tensor, f.operation) for f in violations(dataclasses.replace(model, calls=calls), {})]
    output = model.tensors[first.outputs[0]].name
    assert told == [("live-write", kept.name, op.index), ("unwritten-output", output, op.index)]


def test_two_streams_may_write_one_output_between_them(tmp_path):
    """Half of what PACK gives comes from an operator on the CPU, so a second stream writes it."""
    source, _ = draw_any(1786, tmp_path / "net.tflite")
    model, layers = compiled_model(source, "ethos-u65-256", tmp_path)
    first, second = (call for call in model.calls if isinstance(call, NpuCall))
    assert set(first.outputs) & set(second.outputs)
    assert violations(model, layers) == []


def test_an_output_that_is_stored_beside_its_place_is_reported(tmp_path):
    d = Drawer(np.random.default_rng(3))
    d.pool(d.input((1, 6, 6, 8), "int8", 0.05, 0), "MAX_POOL_2D")
    model, layers = compiled_model(d.write(tmp_path / "net.tflite"), "ethos-u55-128", tmp_path)
    assert violations(model, layers) == []
    (op,) = only_call(model).stream.operations
    (fault,) = violations(planted(model, "pool", 0, OFM_BASE0=op.address("OFM_BASE0") + 16), layers)
    assert fault.rule == "unwritten-output" and "leaves 16 of" in fault.message


def test_a_write_outside_of_the_arena_is_refused(compiled):
    model, layers = compiled
    with pytest.raises(IntegrityError, match=r"operation \d+ \(conv, word \d+\): bytes \d+ to \d+ are outside of"):
        violations(planted(model, "conv", 0, OFM_BASE0=1 << 24, OFM_REGION=1), layers)


def test_an_unaligned_transfer_or_map(compiled):
    model, layers = compiled
    call = only_call(model)
    if call.stream.product == 0:
        dma = next(o for o in call.stream.operations if o.kind == "dma")
        moved = planted(model, "dma", 0, DMA0_LEN=dma.address("DMA0_LEN") - 8)
        assert ("unaligned", "DMA0_LEN") in {(f.rule, f.registers) for f in violations(moved, layers)}
    op = next(o for o in call.stream.operations if o.kind == "conv")
    shifted = planted(model, "conv", 0, WEIGHT_BASE=op.address("WEIGHT_BASE") + 4)
    try:
        rules = {(f.rule, f.registers) for f in violations(shifted, layers)}
        assert ("unaligned", "WEIGHT_BASE") in rules
    except IntegrityError as error:  # what is there does not decode
        assert "weights" in error.message


def test_a_transfer_onto_itself(compiled):
    model, layers = compiled
    call = only_call(model)
    dma = next(o for o in call.stream.operations if o.kind == "dma")
    registers = {"DMA0_SRC_REGION": 1, "DMA0_DST_REGION": 1, "DMA0_SRC": 0, "DMA0_DST": 16, "DMA0_LEN": 64}
    assert dma.address("DMA0_LEN") and call.scratch.nbytes > 80
    faults = [f for f in violations(planted(model, "dma", 0, **registers), layers) if f.rule == "overlap"]
    assert faults and faults[0].registers == "DMA0_SRC, DMA0_DST" and faults[0].operation == dma.index


def test_an_operation_that_does_not_wait_for_its_transfer(compiled):
    model, layers = compiled
    assert any(o.dma_wait is not None for o in only_call(model).stream.operations)
    faults = violations(without_waits(model), layers)
    assert {f.rule for f in faults} == {"overlap"} and "may still run" in faults[0].message


def test_a_table_that_was_never_loaded(compiled):
    model, layers = compiled
    call = only_call(model)
    loads = [o for o in call.stream.operations if o.kind == "dma" and o.register("DMA0_DST_REGION") >> 8 & 1]
    rest = tuple(o for o in call.stream.operations if o is not loads[0])
    stream = dataclasses.replace(call.stream, operations=rest)
    faults = violations(dataclasses.replace(model, calls=(dataclasses.replace(call, stream=stream),)), layers)
    fault = next(f for f in faults if f.rule == "unloaded-table")
    assert fault.registers == "ACTIVATION" and "were never loaded" in fault.message


def test_more_memory_than_the_manifest_says(compiled):
    model, layers = compiled
    audit = Twin(model).audit([value[:1] for value in samples(model, 1)], layers)
    dedicated = "the fast memory" in audit.touched()
    end = audit.touched()["the fast memory" if dedicated else "the arena"][1]
    assert audited(audit, end, 1 << 30).violations == ()
    (fault,) = audited(audit, end - 1, 1 << 30).violations
    assert fault.rule == "arena" and f"{end:,} bytes" in fault.message and f"{end - 1:,}" in fault.message
    assert audited(audit, end, 1 << 30).notes()[-1].startswith("one run touches ")
    assert Audited().notes() == ()


@pytest.mark.parametrize("chip", ("ethos-u55-128", "ethos-u85-256"))
def test_one_copy_may_serve_several_shapes_of_a_tensor(chip, tmp_path):
    """Vela copies a tensor once where two operators read its bytes in shapes of their own, as attention does."""
    d = Drawer(np.random.default_rng(0))
    x = d.pool(d.input((1, 8, 8, 16), "int8", 0.05, 0), "MAX_POOL_2D")
    rows, words = math.prod(x.shape) // 16, d.like(x, (math.prod(x.shape) // 16, 16))
    whole = d.like(x, (1, rows, 16))
    for shaped in (words, whole):
        d.operator(
            "RESHAPE", [x.number, d.ints(shaped.shape)], [shaped.number], "ReshapeOptions", newShape=list(shaped.shape)
        )
    d.dense(words)
    d.softmax(whole)
    d.dense(whole)
    model, layers = compiled_model(d.write(tmp_path / "net.tflite"), chip, tmp_path)
    assert violations(model, layers) == []


def test_what_another_layer_made_of_a_tensor_is_not_the_tensor():
    """Shapes of one tensor have the same bytes; its slices and sums have not."""
    rows = [
        ("CONV_2D", ["x"], "y"),
        ("RESHAPE", ["y"], "flat"),
        ("RESHAPE", ["flat"], "row"),
        ("SLICE", ["y"], "part"),
        ("LOGISTIC", ["y"], "gate"),
        ("ADD", ["row", "row"], "sum"),
    ]
    tensors = {name: TfliteTensor(name, "int8", (4,)) for name in ("x", *(row[2] for row in rows))}
    graph = [
        TfliteOperator(number, kind, name, tuple(tensors[n] for n in used), (tensors[name],))
        for number, (kind, used, name) in enumerate(rows)
    ]
    reads = reads_of(graph, frozenset(range(len(rows))))
    assert reads[5] == {0, 1, 2} and reads[4] == {0, 1, 2} and reads[3] == {0, 1, 2}


@pytest.mark.parametrize("chip", CHIPS)
def test_random_streams_are_silent(chip, tmp_path):
    """What Vela compiles rightly does nothing that it must not."""
    followed = 0
    for seed in range(CHIPS.index(chip), 44, len(CHIPS)):
        source, kinds = draw_any(seed, tmp_path / f"{seed}.tflite")
        try:
            model, layers = compiled_model(source, chip, tmp_path)
            faults = violations(model, layers)
        except (Refused, AnyNpuError):
            continue
        assert faults == [] or excuse(source, chip), (seed, kinds, [str(f) for f in faults])
        followed += 1
    assert followed
