"""anynpu.bench and compare give what the verbs give."""

from __future__ import annotations

import numpy as np
import pytest
from test_build_api import SAMPLES, graph

import anynpu
from anynpu.api.feed import judging_samples, usual_metric
from anynpu.errors import ConfigError
from anynpu.source import zoo
from anynpu.tasks.images import Preprocess
from anynpu.tensors import TensorSpec


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("measured") / "out"
    anynpu.build(graph(), "cpu", SAMPLES, output=folder).require()
    return folder


def test_a_bench_has_every_sample_and_its_interval(out):
    found = anynpu.bench(out / "cpu", SAMPLES[:1], runs=40, warmup=2)
    assert found.unit == "ms" and len(found.samples) == 40 == found.record.runs
    low, high = found.interval or (found.median, found.median)  # a busy machine's samples may be worth too few for one
    assert min(found.samples) <= low <= found.median <= high <= max(found.samples)
    assert found.percentile(99.9) is None and found.per_second > 0
    assert found.record.kind == "bench" and found.record.seal and found.record.input == "arrays"
    assert str(found).startswith(found.executed) and found._repr_html_().startswith("<pre>")


def test_a_bench_takes_one_sample(out):
    with pytest.raises(ConfigError, match="hold 3 samples"):
        anynpu.bench(out / "cpu", SAMPLES[:3], runs=2)
    with pytest.raises(ConfigError, match="no such scenario"):
        anynpu.bench(out / "cpu", scenario="sprint")


def test_a_comparison_of_outputs_and_accuracy(out):
    labels = np.arange(40) % 5
    found = anynpu.compare(out / "float", out / "cpu", {"x": SAMPLES, "labels": labels})
    assert not found.worse and found.outputs == "same" and found.sqnr_db > 25 and found.ratio is None
    assert found.record.accuracy.metric == "top1" and found.record.seal
    strict = anynpu.compare(out / "float", out / "cpu", SAMPLES, min_sqnr=90.0)
    assert strict.worse and strict.outputs == "different" and "90 dB" in str(strict)


def test_nothing_to_compare_is_an_error(out):
    with pytest.raises(ConfigError, match="what is to be compared"):
        anynpu.compare(out / "float", out / "cpu")


def test_zoo_models_are_judged_on_their_test_samples():
    expected = zoo.samples("resnet8", "test", 3)
    ((name, images),) = expected.inputs.items()
    spec = TensorSpec(name, (1, *images.shape[1:]), "float32")
    data = judging_samples("zoo:resnet8", (spec,), None, 3)
    assert np.array_equal(data.inputs[name], images) and np.array_equal(data.labels, expected.labels)
    assert usual_metric("zoo:hello") == "mean_top1" and usual_metric("test.npz") == ""
    with pytest.raises(ConfigError, match="lacks input other"):
        judging_samples("zoo:resnet8", (TensorSpec("other", spec.shape, "float32"),), None, 3)
    with pytest.raises(ConfigError, match="-P has no effect"):
        judging_samples("zoo:resnet8", (spec,), Preprocess((32, 32), "stretch"), 3)
