"""Planted faults of every kind: named, or proved harmless. `run_planted.py` is the whole campaign."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("ethosu.vela", reason="pip install 'anynpu[build]'")
pytest.importorskip("tflite_micro", reason="pip install 'anynpu[build]'")


from compiled import compile_model, micro, samples
from planted import KINDS, judge, plant
from test_damage import network

from anynpu.runtime.ethos_u.model import read_model
from anynpu.runtime.ethos_u.twin import Twin
from anynpu.targets.flatbuffer import operators
from anynpu.targets.vela.origin import FILE, write_origins

pytestmark = pytest.mark.build


@pytest.mark.parametrize("chip", ["ethos-u55-128", "ethos-u65-512", "ethos-u85-256"])
def test_planted_faults_are_named_or_harmless(chip, tmp_path):
    source = network(tmp_path / "net.tflite")
    model = read_model(compile_model(source, chip, tmp_path))
    write_origins(tmp_path / "net_debug.xml", operators(source), tmp_path)
    inputs = samples(model, 4)
    wanted = micro(source, inputs, 1)
    named = dict.fromkeys(KINDS, 0)
    for number in range(20):
        kind = KINDS[number % len(KINDS)]
        fault = plant(model, kind, np.random.default_rng([number, 7]))
        assert fault is not None
        verdict = judge(fault, Twin(model), source, tmp_path / FILE, inputs, wanted)
        assert not verdict.named or "operation " in verdict.where, (fault.what, verdict)
        named[kind] += bool(verdict.named)
    assert sum(named.values()) >= 8, named
