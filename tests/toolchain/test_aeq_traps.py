"""Ways in which ai-edge-quantizer fails, most without an error: each is shown wrong the plain way, right our way."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("litert_torch")
aeq = pytest.importorskip("ai_edge_quantizer")
tflm = pytest.importorskip("tflite_micro")

from anynpu.measure.fidelity import compare_arrays  # noqa: E402
from anynpu.quantize.calibration import Dataset  # noqa: E402
from anynpu.quantize.plan import QuantPlan  # noqa: E402
from anynpu.quantize.tflite import convert_module, inline_buffers, quantize_file, read_specs  # noqa: E402
from anynpu.quantize.tflite_file import external_buffers, read_model  # noqa: E402
from anynpu.tensors import TensorSpec  # noqa: E402

pytestmark = pytest.mark.build
RNG = np.random.default_rng(3)


class Dense(torch.nn.Module):
    """Two layers; the second one's weights are larger than what stays inside the flatbuffer."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 1024), torch.nn.Linear(1024, 512)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


class Product(torch.nn.Module):
    """A batched product with a constant right side."""

    def __init__(self):
        super().__init__()
        right = torch.randn(1, 2, 16, 8)
        right[..., 0] *= 1e-3  # the kernels take the scale of the first channel for all of them
        self.right = torch.nn.Parameter(right)

    def forward(self, x):
        return torch.matmul(x, self.right)


class Joined(torch.nn.Module):
    """A constant in front of what is computed, as the class token of a vision transformer stands."""

    def __init__(self):
        super().__init__()
        self.layer, self.token = torch.nn.Linear(16, 16), torch.nn.Parameter(torch.randn(1, 1, 16))

    def forward(self, x):
        return self.layer(torch.cat([self.token, self.layer(x)], 1))


class Case:
    """One model as float file, with data and float results."""

    def __init__(self, folder, module, values):
        self.folder, self.file = folder, folder / "float.tflite"
        module.eval()
        convert_module(module, [TensorSpec("x", (1, *values.shape[1:]))], ["y"], self.file)
        self.data = Dataset({"x": values.astype(np.float32)}, None, "test")
        with torch.no_grad():
            rows = [module(torch.from_numpy(self.data[i]["x"])).numpy() for i in range(len(self.data))]
        self.expected = np.concatenate(rows)

    def sqnr(self, content):
        path = self.folder / "candidate.tflite"
        path.write_bytes(content)
        (taken,), (given,) = read_specs(path)
        interpreter = tflm.runtime.Interpreter.from_bytes(bytes(content), arena_size=8 << 20)
        rows = []
        for index in range(len(self.data)):
            interpreter.set_input(taken.to_stored(self.data[index]["x"]), 0)
            interpreter.invoke()
            rows.append(given.to_real(interpreter.get_output(0)))
        return compare_arrays("y", self.expected, np.concatenate(rows)).sqnr_db

    def ours(self):
        quantize_file(self.file, self.data, QuantPlan(), self.folder / "ours.tflite")
        return (self.folder / "ours.tflite").read_bytes()

    def plain(self, update=None):
        """Quantises as the package's own documentation does."""
        from ai_edge_quantizer import calibrator, qtyping, quantizer

        work = quantizer.Quantizer(str(self.file))
        for name in ("ALL_SUPPORTED", "INPUT", "OUTPUT"):
            work.add_static_config(".*", qtyping.TFLOperationName[name], 8, 8)
        rows = {"serving_default": [self.data[i] for i in range(len(self.data))]}
        if update is None:
            found = work.calibrate(rows)
        else:
            calibration = calibrator.Calibrator(str(self.file), qsv_update_func=update)
            calibration.calibrate(rows, work._recipe_manager)
            found = calibration.get_model_qsvs()
        return bytes(work.quantize(found, enable_progress_report=False).quantized_model), found


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    torch.manual_seed(0)
    values = RNG.normal(size=(24, 16))
    values[12:] *= 4.0  # the second half is louder than the first
    return Case(tmp_path_factory.mktemp("dense"), Dense(), values)


@pytest.fixture(scope="module")
def product(tmp_path_factory):
    torch.manual_seed(0)
    return Case(tmp_path_factory.mktemp("product"), Product(), RNG.normal(size=(8, 2, 4, 16)))


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    torch.manual_seed(0)
    return Case(tmp_path_factory.mktemp("joined"), Joined(), RNG.normal(size=(8, 3, 16)))


def min_max(*args):
    from ai_edge_quantizer.utils import qsv_utils

    return qsv_utils.min_max_update(*args)


def test_its_own_calibration_clips(dense):
    content, found = dense.plain()
    highest = float(dense.data.inputs["x"].max())
    assert float(np.max(found["x"]["max"])) < 0.8 * highest, "the moving average no longer clips"
    assert dense.sqnr(inline_buffers(content)) < 20
    assert dense.sqnr(dense.ours()) > 30


def test_per_channel_batch_matmul_is_zero(product):
    assert "BATCH_MATMUL" in str(quantize_file(product.file, product.data, QuantPlan(), product.folder / "q.tflite"))
    content, _ = product.plain(min_max)
    assert product.sqnr(inline_buffers(content)) < 1, "per-channel BATCH_MATMUL works now"
    assert product.sqnr(product.ours()) > 30


def test_ranges_of_fewer_axes_than_the_tensor_refuse_a_concatenated_constant(joined):
    from ai_edge_quantizer import qtyping, quantizer

    work = quantizer.Quantizer(str(joined.file))
    work.add_static_config(".*", qtyping.TFLOperationName.ALL_SUPPORTED, 8, 8)
    names = [tensor.name.decode() for tensor in read_model(joined.file.read_bytes()).subgraphs[0].tensors]
    limits = {name: {"min": np.array([-4], np.float32), "max": np.array([4], np.float32)} for name in names}
    with pytest.raises(ValueError, match="Ranks of scales"):
        work.quantize(limits, enable_progress_report=False)
    assert joined.sqnr(joined.ours()) > 30


def test_outside_buffers_are_garbage_in_tflite_micro(dense):
    content, _ = dense.plain(min_max)
    assert external_buffers(content) > 0
    assert dense.sqnr(content) < 5, "TFLite-Micro reads outside buffers now"
    inside = inline_buffers(content)
    assert external_buffers(inside) == 0
    assert dense.sqnr(inside) > 30
    assert external_buffers(dense.ours()) == 0 and dense.sqnr(dense.ours()) > 30


def test_inlined_buffers_are_aligned(dense):
    from ai_edge_litert import schema_py_generated as schema

    content = dense.ours()
    model = schema.Model.GetRootAs(content, 0)
    start = np.frombuffer(content, np.uint8).__array_interface__["data"][0]
    seen = 0
    for index in range(model.BuffersLength()):
        if model.Buffers(index).DataLength():
            at = model.Buffers(index).DataAsNumpy().__array_interface__["data"][0] - start
            assert at % 16 == 0, f"buffer {index} begins at {at}"
            seen += 1
    assert seen >= 4 and len(read_model(content).buffers) >= seen
