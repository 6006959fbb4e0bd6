"""`anynpu bisect`: planted faults end in the guilty operator, its bundle repeats them, and bad requests are refused."""

from __future__ import annotations

import contextlib
import io
import json
import math
import shlex

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime")

from faults import case
from run_faults import searched, verdict
from sick import Net, artifact, naive, samples

import anynpu
from anynpu.errors import ConfigError
from anynpu.pipeline.bisect.run import Asked, bisect
from anynpu.records.bisect import BisectRecord
from anynpu.records.load import published
from anynpu.runtime.int8_sums import instruction_set
from anynpu.schema import from_dict, to_dict
from anynpu.seals import check_seal


@pytest.mark.parametrize("seed", [3, 8, 9])
def test_a_planted_fault_ends_in_the_guilty_operator(seed, tmp_path):
    one = case(seed)
    assert one is not None
    record = searched(one, tmp_path)
    assert verdict(one, record) == "exact", (one.fault, record)
    assert record.executed_runs <= 5 + math.ceil(math.log2(record.cuts))
    assert record.difference is not None and record.difference.sqnr_db < 20


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A float model, what ONNX Runtime's quantiser makes of it, and the same with a fault in one layer."""
    folder = tmp_path_factory.mktemp("pair")
    net = Net()
    first = net("Relu", net("Conv", "x", net.weights(8, 4, 3, 3), kernel_shape=[3, 3]), name="first")
    second = net("Relu", net("Conv", first, net.weights(8, 8, 1, 1)), name="second")
    net("Conv", second, net.weights(8, 8, 1, 1), name="third")
    data = samples(0, 4, 8, 8)
    model = net.model(data)
    quantised = naive(model, data)
    stored = next(t for t in quantised.graph.initializer if t.name == "c1_quantized")
    onnx.save(model, folder / "float.onnx")
    onnx.save(quantised, folder / "int8.onnx")
    values = onnx.numpy_helper.to_array(stored)
    stored.CopyFrom(onnx.numpy_helper.from_array(np.roll(values, 1, axis=0), stored.name))
    onnx.save(quantised, folder / "faulty.onnx")
    np.savez(folder / "data.npz", **data)
    return folder


def test_the_bundle_repeats_the_difference(files, cli, tmp_path):
    words = ["bisect", "float.onnx", "faulty.onnx", "--data", "data.npz", "-o", str(tmp_path / "bundle"), "-f", "json"]
    done = cli(*words, cwd=files)
    assert done.returncode == 1, done.stderr
    assert "run 1 of about " in done.stderr
    data = json.loads(done.stdout)
    assert not check_seal(data, "record")
    record = from_dict(BisectRecord, data, "record")
    assert record.guilty is not None and record.guilty.kind == "Conv" and not record.agree
    assert "second" in {each.tensor for each in record.operators} | {record.guilty.tensor}
    bundle = tmp_path / "bundle"
    page = (bundle / "README.md").read_text()
    assert "Conv: two executions of one model disagree" in page and "onnxruntime" in page
    onnx.checker.check_model(onnx.load(bundle / "b.onnx"), full_check=True)
    assert {node.op_type for node in onnx.load(bundle / "a.onnx").graph.node} <= {"Conv", "Relu"}
    assert np.load(bundle / "a" / "0.npy").shape == np.load(bundle / "b" / "0.npy").shape
    (command,) = [line for line in page.splitlines() if line.startswith("anynpu bisect")]
    again = cli(*shlex.split(command)[1:], "-f", "json", cwd=bundle)
    assert again.returncode == 1, again.stderr
    repeated = from_dict(BisectRecord, json.loads(again.stdout), "record")
    assert record.difference is not None
    assert repeated.whole.sqnr_db == pytest.approx(record.difference.sqnr_db, abs=0.5)
    refused = cli(*words, cwd=files)
    assert refused.returncode == 2 and "is there already" in refused.stderr


def test_two_that_agree(files, cli):
    done = cli("bisect", "float.onnx", "int8.onnx", "--data", "data.npz", cwd=files)
    assert done.returncode == 0 and "they agree: the worst output, third" in done.stdout, done.stderr
    assert not bisected(files, "float.onnx", "int8.onnx", tolerance="exact").agree


@pytest.mark.skipif("VNNI" in instruction_set(), reason="this host's CPU adds int8 products exactly")
def test_saturating_kernels_are_found(tmp_path):
    """Weights at the ends of their range under large inputs: without VNNI the sums of two products clip at 16 bits."""
    net = Net(2)
    x = net("Relu", net("Conv", "x", net.weights(16, 4, 3, 3), kernel_shape=[3, 3]))
    loud = np.abs(net.weights(16, 16, 3, 3)) + 0.2
    x = net("Relu", net("Conv", x, loud, kernel_shape=[3, 3], name="sums"), name="loud")
    net("Conv", x, net.weights(8, 16, 1, 1), name="last")
    data = {"x": np.abs(samples(2, 4, 10, 10)["x"]) + 1}
    onnx.save(naive(net.model(data), data), tmp_path / "int8.onnx")
    np.savez(tmp_path / "data.npz", **data)
    record = bisected(tmp_path, "int8.onnx", "int8.onnx", on_a="ort-plain", on_b="ort-native", tolerance="30")
    assert not record.agree and record.guilty is not None
    assert record.guilty.kind == "Conv" and record.guilty.tensor == "last", record
    assert record.difference is not None and record.difference.sqnr_db < 30


def bisected(folder, a: str, b: str, **how) -> BisectRecord:
    """Returns what the search finds, without the command line."""
    asked = Asked(str(folder / a), str(folder / b), **{"data": str(folder / "data.npz"), **how})
    with contextlib.redirect_stdout(io.StringIO()):
        return bisect(asked)


@pytest.mark.parametrize(
    ("sides", "how", "said"),
    [
        (("float.onnx", "nowhere.onnx"), {}, "no such file or folder"),
        (("float.onnx", "data.npz"), {}, "is neither an ONNX nor a TFLite file"),
        (("float.onnx", "faulty.onnx"), {"data": ""}, "there are no samples to run"),
        (("float.onnx", "faulty.onnx"), {"on_b": "tflm"}, "does not run onnx"),
        (("float.onnx", "other.onnx"), {}, "are different models: their outputs are third and y"),
    ],
)
def test_what_it_is_not_for(files, sides, how, said):
    relu = onnx.helper.make_node("Relu", ["x"], ["y"])
    borders = [[onnx.helper.make_tensor_value_info(n, 1, [1, 4, 8, 8])] for n in "xy"]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([relu], "r", *borders)), files / "other.onnx")
    with pytest.raises(ConfigError, match=said):
        bisected(files, *sides, **how)


def test_a_wrong_tolerance_and_a_float_model_of_no_build(files, cli):
    done = cli("bisect", "float", "int8.onnx", "--tolerance", "much", cwd=files)
    assert done.returncode == 2 and "neither a number of dB nor 'exact'" in done.stderr
    with pytest.raises(ConfigError, match="lies in no build's output folder"):
        bisect(Asked("float", str(files / "int8.onnx")))


def test_a_disagreement_that_is_in_the_inputs_already(files, tmp_path):
    for name in ("float.onnx", "int8.onnx"):
        (tmp_path / name).write_bytes((files / name).read_bytes())
    np.savez(tmp_path / "data.npz", x=20 * np.load(files / "data.npz")["x"])
    with pytest.raises(ConfigError, match="in the inputs already: B stores x from -"):
        bisected(tmp_path, "float.onnx", "int8.onnx")


def test_artifacts_of_different_networks_are_refused(tmp_path):
    data = samples(0, 4, 8, 8)
    np.savez(tmp_path / "data.npz", **data)
    for seed, name in ((0, "one"), (1, "two")):
        net = Net(seed)
        net("Conv", "x", net.weights(8, 4, 1, 1), name="y")
        artifact(net.model(data), "onnx", data, tmp_path / name, fingerprint=name)
    with pytest.raises(ConfigError, match="are different models"):
        bisected(tmp_path, "one", "two")
    assert not bisected(tmp_path, "one", "two", different_networks=True).agree


@pytest.fixture(scope="module")
def defect(tmp_path_factory):
    """A file with a RESIZE_NEAREST_NEIGHBOR that Vela 5.2.0 compiles to something else for the Ethos-U85."""
    pytest.importorskip("ethosu.vela", reason="pip install 'anynpu[build]'")
    pytest.importorskip("tflite_micro", reason="pip install 'anynpu[build]'")
    folder = tmp_path_factory.mktemp("defect")
    net = Net(3)
    first = net("Relu", net("Conv", "x", net.weights(8, 4, 3, 3), kernel_shape=[3, 3]), name="first")
    how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    smaller = net("Resize", first, "", np.array([1, 1, 0.75, 0.75], np.float32), name="smaller", **how)
    net("Conv", net("Relu", net("Conv", smaller, net.weights(8, 8, 1, 1))), net.weights(4, 8, 1, 1), name="last")
    data = samples(3, 4, 10, 10)
    onnx.save(net.model(data), folder / "net.onnx")
    np.savez(folder / "data.npz", **data)
    np.savez(folder / "last.npz", **{name: each.transpose(0, 2, 3, 1) for name, each in data.items()})
    return folder


def test_a_defect_of_a_compiler_is_cut_out_and_compiled_alone(defect, cli):
    for model, data, chips, out in (
        ("net.onnx", "data.npz", "tflite", "plain"),
        ("plain/tflite/model.tflite", "last.npz", "tflm,ethos-u85-256", "out"),
    ):
        given = ["-t", chips, "--data", data, "--min-sqnr", "-300", "-o", out, "-q"]
        done = cli("build", "-m", model, *given, cwd=defect)
        assert done.returncode == 0, done.stderr
    words = ["bisect", "out/tflm", "out/ethos-u85-256", "--tolerance", "exact", "-o", "bundle", "-f", "json"]
    done = cli(*words, cwd=defect)
    assert done.returncode == 1, done.stderr
    record = from_dict(BisectRecord, json.loads(done.stdout), "record")
    assert record.guilty is not None and record.guilty.kind == "RESIZE_NEAREST_NEIGHBOR" and record.alone
    assert "ethos-u-vela" in record.b.versions
    page = (defect / "bundle" / "README.md").read_text()
    assert "anynpu bisect model.tflite compiled-b/ethos-u85-256 --data inputs.npz --tolerance exact --on-a tflm" in page
    assert (defect / "bundle" / "compiled-b" / "ethos-u85-256" / "model_vela.tflite").is_file()


def test_from_python_arrays_will_do_and_the_record_fits_its_schema(files, tmp_path):
    jsonschema = pytest.importorskip("jsonschema")
    given = dict(np.load(files / "data.npz"))
    asked = (files / "float.onnx", files / "faulty.onnx", given)
    record = anynpu.bisect(*asked, output=tmp_path / "bundle", tolerance=20, cache_dir=tmp_path / "cache")
    assert not record.agree and record.guilty is not None
    assert (tmp_path / "bundle" / "bisect.json").is_file()
    jsonschema.validate(json.loads(json.dumps(to_dict(record))), published("bisect"))
    with pytest.raises(ConfigError, match="is there already"):
        anynpu.bisect(*asked, output=tmp_path / "bundle", cache_dir=tmp_path / "cache")
