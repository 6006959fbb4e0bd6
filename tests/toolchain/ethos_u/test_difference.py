"""Faults planted in a stream: the operation and the tensor at which it parts from TFLite-Micro are named."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ethosu.vela", reason="pip install 'anynpu[build]'")
pytest.importorskip("tflite_micro", reason="pip install 'anynpu[build]'")


from compiled import compile_model, samples
from test_damage import network

from anynpu.runtime.ethos_u.difference import first_difference
from anynpu.runtime.ethos_u.model import Model, NpuCall, read_model
from anynpu.runtime.ethos_u.stream import Operation
from anynpu.runtime.ethos_u.twin import Twin
from anynpu.runtime.ethos_u.weights import Decoder
from anynpu.targets.flatbuffer import operators
from anynpu.targets.vela.origin import FILE, write_origins

pytestmark = pytest.mark.build


@pytest.fixture(scope="module", params=("ethos-u55-128", "ethos-u85-256"))
def compiled(request, tmp_path_factory) -> tuple[Path, Model, Path]:
    """A network, what Vela makes of it, and the table of where each operation comes from."""
    folder = tmp_path_factory.mktemp(request.param)
    source = network(folder / "net.tflite")
    model = read_model(compile_model(source, request.param, folder))
    write_origins(folder / "net_debug.xml", operators(source), folder)
    return source, model, folder / FILE


def planted(model: Model, kind: str, nth: int, **registers: int) -> Model:
    """Returns the model with other registers in the nth operation of a kind."""

    def change(call: NpuCall) -> NpuCall:
        chosen = [op for op in call.stream.operations if op.kind == kind][nth]
        changed = dataclasses.replace(chosen, registers={**chosen.registers, **registers})
        ops: tuple[Operation, ...] = tuple(changed if op is chosen else op for op in call.stream.operations)
        return dataclasses.replace(call, stream=dataclasses.replace(call.stream, operations=ops))

    return dataclasses.replace(model, calls=tuple(change(c) if isinstance(c, NpuCall) else c for c in model.calls))


FAULTS = [
    ("conv", "CONV_2D", {"ACTIVATION_MAX": 0xFF90}),
    ("conv", "CONV_2D", {"OFM_ZERO_POINT": 77}),
    ("depthwise", "DEPTHWISE_CONV_2D", {"ACTIVATION_MAX": 0xFF90}),
    ("elementwise", "ADD", {"OFM_ZERO_POINT": 90}),
]


@pytest.mark.parametrize(("kind", "layer", "registers"), FAULTS)
def test_a_planted_fault_is_named(compiled, kind, layer, registers):
    source, model, origins = compiled
    inputs = [value[1] for value in samples(model, 2)]
    twin = Twin(planted(model, kind, 0, **registers), Decoder())
    said = first_difference(twin, origins, source.read_bytes(), inputs)
    assert f"of {layer} t" in said and "values" in said, said


def test_a_stream_without_faults_has_no_first_difference(compiled):
    source, model, origins = compiled
    inputs = [value[0] for value in samples(model, 1)]
    assert np.prod(inputs[0].shape) > 0
    assert first_difference(Twin(model), origins, source.read_bytes(), inputs) == ""
