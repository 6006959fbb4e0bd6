"""One float model, one calibration, every emitter: torch, ONNX, float TFLite, integer TFLite and QDQ agree."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("ai_edge_litert")
tflm = pytest.importorskip("tflite_micro")

import onnx  # noqa: E402

from anynpu import schema  # noqa: E402
from anynpu.errors import ConfigError, IntegrityError  # noqa: E402
from anynpu.lowering.integer_file import in_layout, quantize_file, read_specs  # noqa: E402
from anynpu.measure.fidelity import compare_arrays  # noqa: E402
from anynpu.quantize.calibration import Dataset  # noqa: E402
from anynpu.quantize.plan import QuantPlan  # noqa: E402
from anynpu.quantize.qdq import write_qdq  # noqa: E402
from anynpu.runtime.ort import inference_session  # noqa: E402
from anynpu.targets.tflite import lower  # noqa: E402
from anynpu.tensors import TensorSpec  # noqa: E402

pytestmark = pytest.mark.build
RNG = np.random.default_rng(1)


class Net(torch.nn.Module):
    """Two inputs and two outputs whose alphabetical order is not theirs."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.deep = torch.nn.Conv2d(8, 8, 3, padding=1, stride=2, groups=8)
        self.last = torch.nn.Linear(8 + 4, 5)

    def forward(self, zebra, apple):
        x = torch.relu(self.first(zebra))
        x = torch.nn.functional.max_pool2d(torch.relu(self.deep(x)), 2)
        return self.last(torch.cat([x.mean((2, 3)), apple], 1)), torch.sigmoid(x)


class Case:
    """A model as ONNX and float TFLite, with data in both layouts and the float results."""

    def __init__(self, folder, module, inputs, outputs, last_inputs, last_outputs, data, test):
        self.folder, self.onnx, self.file = folder, folder / "net.onnx", folder / "net.tflite"
        self.last = last_outputs
        args = tuple(torch.zeros(spec.shape) for spec in inputs)
        names = [spec.name for spec in inputs]
        torch.onnx.export(
            module.eval(), args, str(self.onnx), input_names=names, output_names=outputs, dynamo=False, opset_version=17
        )
        lower(str(self.onnx), str(self.file), last_inputs, last_outputs)
        layouts = {s.name: "NHWC" if s.name in last_inputs else s.layout for s in inputs}
        self.inputs, self.outputs = read_specs(self.file, layouts)
        self.data, self.test = data, test
        self.inner_data, self.inner_test = (in_layout(part, inputs, self.inputs) for part in (data, test))
        self.expected = self.run_onnx(onnx.load(self.onnx))

    def run_onnx(self, model):
        session = inference_session(model.SerializeToString())
        names = [output.name for output in session.get_outputs()]
        rows = [session.run(names, self.test[i]) for i in range(len(self.test))]
        return {name: np.concatenate([row[k] for row in rows]) for k, name in enumerate(names)}

    def run_tflm(self, path):
        inputs, outputs = read_specs(path)
        interpreter = tflm.runtime.Interpreter.from_file(str(path), arena_size=16 << 20)
        rows = []
        for i in range(len(self.inner_test)):
            for k, spec in enumerate(inputs):
                interpreter.set_input(spec.to_stored(self.inner_test[i][spec.name]), k)
            interpreter.invoke()
            rows.append([interpreter.get_output(k).copy() for k in range(len(outputs))])
        return {spec.name: np.concatenate([row[k] for row in rows]) for k, spec in enumerate(outputs)}

    def run_reference(self, path):
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        inputs, outputs = read_specs(path)
        interpreter = Interpreter(str(path), experimental_op_resolver_type=OpResolverType.BUILTIN_REF, num_threads=1)
        interpreter.allocate_tensors()
        rows = []
        for i in range(len(self.inner_test)):
            for spec, detail in zip(inputs, interpreter.get_input_details(), strict=True):
                interpreter.set_tensor(detail["index"], spec.to_stored(self.inner_test[i][spec.name]))
            interpreter.invoke()
            rows.append([interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details()])
        return {spec.name: np.concatenate([row[k] for row in rows]) for k, spec in enumerate(outputs)}

    def sqnr(self, found, specs=()):
        real = {spec.name: spec.to_real(found[spec.name]) for spec in specs} or found
        if specs:
            real = {n: a.transpose(0, 3, 1, 2) if n in self.last else a for n, a in real.items()}
        return min(compare_arrays(name, self.expected[name], real[name]).sqnr_db for name in self.expected)

    def quantized(self, plan):
        path = self.folder / "quantised.tflite"
        figures = quantize_file(self.file, self.inner_data, plan, path)
        return path, figures, self.sqnr(self.run_tflm(path), read_specs(path)[1])


def net_case(folder):
    torch.manual_seed(0)
    inputs = [TensorSpec("zebra", (1, 3, 16, 16), layout="NCHW"), TensorSpec("apple", (1, 4), layout="NF")]

    def data(count):
        zebra, apple = RNG.normal(size=(count, 3, 16, 16)), RNG.uniform(-1, 2, size=(count, 4))
        return Dataset({"zebra": zebra.astype(np.float32), "apple": apple.astype(np.float32)}, None, "test")

    return Case(folder, Net(), inputs, ["yak", "bee"], ["zebra"], ["bee"], data(48), data(16))


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    return net_case(tmp_path_factory.mktemp("net"))


def test_names_and_order_are_kept(net):
    assert [spec.name for spec in net.inputs] == ["zebra", "apple"]
    assert [spec.name for spec in net.outputs] == ["yak", "bee"]
    path, _, _ = net.quantized(QuantPlan())
    inputs, outputs = read_specs(path)
    assert [(spec.name, spec.shape, spec.dtype) for spec in [*inputs, *outputs]] == [
        ("zebra", (1, 16, 16, 3), "int8"),
        ("apple", (1, 4), "int8"),
        ("yak", (1, 5), "int8"),
        ("bee", (1, 4, 4, 8), "int16"),  # a sigmoid that spans a few of its 256 steps
    ]
    from ai_edge_litert.interpreter import Interpreter

    signature = Interpreter(str(path)).get_signature_list()["serving_default"]
    assert set(signature["inputs"]) == {"zebra", "apple"} and set(signature["outputs"]) == {"yak", "bee"}


def test_float_file_computes_what_the_onnx_file_does(net):
    assert net.sqnr(net.run_reference(net.file), net.outputs) > 90


@pytest.mark.parametrize("weights", ["per-channel", "per-tensor"])
def test_integers_follow_the_float_model(net, weights):
    path, figures, int8 = net.quantized(QuantPlan(weights=weights))
    assert int8 > 30 and figures["float_operators"] == []
    json.dumps(schema.to_dict(figures), allow_nan=False)
    micro, reference = net.run_tflm(path), net.run_reference(path)
    assert max(np.abs(micro[n].astype(int) - reference[n].astype(int)).max() for n in micro) <= 2
    _, _, int16 = net.quantized(QuantPlan("int16", weights))
    assert int16 > int8
    qdq = net.sqnr(net.run_onnx(write_qdq(onnx.load(net.onnx), net.data, QuantPlan(weights=weights))))
    assert qdq > 30


@pytest.mark.parametrize("method", ["percentile", "mse", "entropy"])
def test_every_range_method_works(net, method):
    assert net.quantized(QuantPlan(method=method))[2] > 25


def test_equalised_model_computes_the_same(net):
    from anynpu.lowering.net import LoweredForm
    from anynpu.lowering.read import from_bytes
    from anynpu.lowering.write import to_bytes
    from anynpu.quantize.repairs import equalized

    form, count = equalized(LoweredForm(from_bytes(net.file.read_bytes())), net.inner_data)
    assert count == 1 and form.factors
    (net.folder / "equal.tflite").write_bytes(to_bytes(form.graph))
    assert net.sqnr(net.run_reference(net.folder / "equal.tflite"), net.outputs) > 90


def test_float_borders(net):
    path, figures, sqnr = net.quantized(QuantPlan(io="float"))
    assert {spec.dtype for part in read_specs(path) for spec in part} == {"float32"}
    assert figures["conversions"] >= 4 and figures["float_operators"] == [] and sqnr > 30


def test_same_inputs_give_the_same_bytes(net, tmp_path):
    lower(str(net.onnx), str(tmp_path / "again.tflite"), ["zebra"], ["bee"])
    assert (tmp_path / "again.tflite").read_bytes() == net.file.read_bytes()
    for name in ("a", "b"):
        quantize_file(net.file, net.inner_data, QuantPlan(method="mse"), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_float_plan_says_that_everything_is_float(net, tmp_path):
    figures = quantize_file(net.file, net.inner_data, QuantPlan("float32"), tmp_path / "f.tflite")
    assert len(figures["float_operators"]) == sum(figures["operators"].values())


def test_requests_that_cannot_be_met(net, tmp_path):
    with pytest.raises(ConfigError, match="no uint8 activations"):
        quantize_file(net.file, net.inner_data, QuantPlan("uint8"), tmp_path / "u.tflite")
    with pytest.raises(ConfigError, match="zebra") as caught:
        quantize_file(net.file, net.data, QuantPlan(), tmp_path / "u.tflite")
    assert "order" in caught.value.hint
    with pytest.raises(ConfigError, match="the data holds"):
        fewer = Dataset({"zebra": net.inner_data.inputs["zebra"]}, None, "t")
        quantize_file(net.file, fewer, QuantPlan(), tmp_path / "u.tflite")
    for bad in (b"", b"garbage!", net.file.read_bytes()[:200]):
        (tmp_path / "bad.tflite").write_bytes(bad)
        with pytest.raises(IntegrityError, match=r"bad\.tflite"):
            read_specs(tmp_path / "bad.tflite")
    assert not (tmp_path / "u.tflite").exists()


@pytest.mark.parametrize("name", ["resnet8", "kws", "vww", "autoencoder", "detector"])
def test_zoo(name, tmp_path):
    from anynpu.source import zoo

    if not (zoo.folder(name) / "weights.npz").is_file():
        pytest.skip(f"zoo:{name} is not trained")
    card = zoo.card(name)
    spec = TensorSpec(card.input_name, card.input_shape, layout=card.layout)
    parts = [Dataset(dict(zoo.samples(name, s, n).inputs), None, s) for s, n in (("calibration", 64), ("test", 24))]
    images = [card.input_name] if card.layout == "NCHW" else []
    case = Case(tmp_path, zoo.model(name), [spec], list(card.output_names), images, [], *parts)
    path, figures, int8 = case.quantized(QuantPlan())
    assert figures["float_operators"] == []
    micro, reference = case.run_tflm(path), case.run_reference(path)
    assert max(np.abs(micro[n].astype(int) - reference[n].astype(int)).max() for n in micro) <= 2
    _, _, int16 = case.quantized(QuantPlan("int16"))
    qdq = case.sqnr(case.run_onnx(write_qdq(onnx.load(case.onnx), case.data, QuantPlan())))
    print(f"{name}: int8 {int8:.1f} dB, int16 {int16:.1f} dB, QDQ {qdq:.1f} dB")
    assert int16 > int8 > 30 and qdq > 30
