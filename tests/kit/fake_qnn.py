"""An onnxruntime-qnn of our own: the provider computes on ONNX Runtime's CPU, and does what a test plans for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from anynpu.testing.capsules import write_environment

PACKAGE = '''
"""Stands for the provider on top of this Python's own onnxruntime."""
import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper
from anynpu.testing.misbehave import misbehave

PLAN = {plan!r}
LACKS = ("Softsign", "Cosh", "Sinh")
SEEN = Path(__file__).with_name("seen.txt")
Real, RealOptions = ort.InferenceSession, ort.SessionOptions


def get_library_path():
    return "libonnxruntime_providers_qnn.so"


def get_qnn_htp_path():
    return "libQnnHtp.so"


class Device:
    ep_name = "QNNExecutionProvider"


class Options(RealOptions):
    def __init__(self):
        super().__init__()
        self.entries, self.provider = {{}}, None

    def add_session_config_entry(self, key, value):
        self.entries[key] = value

    def add_provider_for_devices(self, devices, options):
        self.provider = options


class Session:
    def __init__(self, model, options=None, providers=None):
        self.npu = getattr(options, "provider", None)
        if self.npu is None:
            self.inner = Real(model, providers=providers)
            return
        entries = options.entries
        with SEEN.open("a") as seen:
            seen.write(f"{{sorted(entries)}} {{sorted(self.npu.items())}}\\n")
        graph = onnx.load_model_from_string(model) if isinstance(model, bytes) else onnx.load(model)
        context = [node for node in graph.graph.node if node.op_type == "EPContext"]
        if context:
            stored = Path(model).with_name(helper.get_attribute_value(context[0].attribute[0]).decode()).read_bytes()
            if not stored.endswith(b"END"):
                raise RuntimeError("QNN: Failed to create context from binary")
            graph = onnx.load_model_from_string(stored[:-3])
        left = [node for node in graph.graph.node if node.op_type in LACKS]
        path = entries.get("ep.context_file_path")
        if path and Path(path).exists():
            raise RuntimeError(f"Failed to generate EP context model since the file {{path}} exists already.")
        if left and "session.disable_cpu_ep_fallback" in entries:
            if path:
                write(path, graph, left)  # as the provider does before it refuses
            raise RuntimeError("This session contains graph nodes that are assigned to the default CPU EP, "
                               "but fallback to CPU EP has been explicitly disabled by the user.")
        self.graph, self.loaded = graph, bool(context)
        self.inner = Real(graph.SerializeToString(), providers=["CPUExecutionProvider"])
        if entries.get("ep.context_enable") == "1":
            misbehave({{PLAN: True}})
            if PLAN == "exit":
                os._exit(3)
            if PLAN == "raise":
                raise RuntimeError("QNN: graph prepare failed, error 1002")
            write(entries["ep.context_file_path"], graph, left)

    def get_providers(self):
        return ["QNNExecutionProvider", "CPUExecutionProvider"] if self.npu else self.inner.get_providers()

    def get_outputs(self):
        return self.inner.get_outputs()

    def run(self, names, inputs):
        found = self.inner.run(names, inputs)
        if not self.npu:
            return found
        if PLAN == "crash at run":
            misbehave({{"crash": True}})
        if PLAN == "garbage" or (PLAN == "garbage later" and not written):
            return [np.random.default_rng(0).normal(size=value.shape).astype(value.dtype) for value in found]
        return [-value[:, ::-1] for value in found] if trapped(self.graph.graph) else found


written = []


def write(path, graph, left):
    path = Path(path)
    node = helper.make_node("EPContext", [v.name for v in graph.graph.input], [v.name for v in graph.graph.output],
                            domain="com.microsoft", ep_cache_context=path.stem + "_qnn.bin")
    around = helper.make_graph([node, *left], "context", graph.graph.input, graph.graph.output)
    written.append(path)
    if PLAN != "no file":
        path.write_bytes(helper.make_model(around).SerializeToString(deterministic=True))
        binary = graph.SerializeToString(deterministic=True) + b"END"
        path.with_name(path.stem + "_qnn.bin").write_bytes(binary[:-40] if PLAN == "truncated" else binary)


def trapped(graph):
    """As the HTP does: a convolution behind MaxPool goes wrong where the zero point lies in the middle."""
    stored = {{t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}}
    middle = any(n.op_type == "QuantizeLinear" and stored[n.input[2]].item() == 128 for n in graph.node)
    return middle and any(n.op_type == "MaxPool" for n in graph.node)


ort.register_execution_provider_library = lambda name, path: None
ort.get_ep_devices = lambda: [Device()]
ort.InferenceSession, ort.SessionOptions = Session, Options
'''


def write_tool(root: Path, plan: str = "", version: str = "2.7.0") -> Path:
    """Writes an environment whose provider behaves as planned."""
    return write_environment(
        root, {"onnxruntime_qnn/__init__.py": PACKAGE.format(plan=plan)}, {"onnxruntime-qnn": version}
    )


def seen(root: Path) -> str:
    """Returns the settings of every session that was opened on the provider."""
    (path,) = root.rglob("seen.txt")
    return path.read_text()


class _Writer:
    """Writes a graph in the form of Quark's XINT8: scales of powers of two, zero point 128, int8 weights and biases."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.stored: list[onnx.TensorProto] = []
        self.draw = np.random.default_rng(0)

    def store(self, name: str, values: np.ndarray) -> str:
        self.stored.append(numpy_helper.from_array(values, name))
        return name

    def pair(self, name: str, result: str = "") -> str:
        scale, zero = self.store(f"{name}_s", np.float32(1 / 32)), self.store(f"{name}_z", np.uint8(128))
        self.nodes.append(helper.make_node("QuantizeLinear", [name, scale, zero], [f"{name}_q"]))
        self.nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", scale, zero], [result or f"{name}_d"]))
        return result or f"{name}_d"

    def integers(self, name: str, shape: tuple[int, ...], top: int, scale: float) -> str:
        values = self.store(name, self.draw.integers(-top, top + 1, shape).astype(np.int8))
        parts = [values, self.store(f"{name}_s", np.float32(scale)), self.store(f"{name}_z", np.int8(0))]
        self.nodes.append(helper.make_node("DequantizeLinear", parts, [f"{name}_d"]))
        return f"{name}_d"

    def conv(self, name: str, given: str, channels: int) -> str:
        weights = self.integers(f"{name}_w", (8, channels, 3, 3), 127, 2.0 ** (-9 if channels == 3 else -11))
        bias = self.integers(f"{name}_b", (8,), 40, 1 / 64)
        self.nodes.append(helper.make_node("Conv", [given, weights, bias], [name], name=name, pads=[1, 1, 1, 1]))
        return name


def xint8_net(pool: bool = True) -> onnx.ModelProto:
    """Returns Conv, Relu, MaxPool, Conv, quantised as Quark's XINT8 does; on the HTP its MaxPool spoils it."""
    w = _Writer()
    w.nodes.append(helper.make_node("Relu", [w.conv("first", w.pair("x"), 3)], ["relu"], name="rectify"))
    given, size = w.pair("relu"), 16
    if pool:
        w.nodes.append(helper.make_node("MaxPool", [given], ["pool"], name="pool", kernel_shape=[2, 2], strides=[2, 2]))
        given, size = w.pair("pool"), 8
    w.pair(w.conv("second", given, 8), "y")
    graph = helper.make_graph(
        w.nodes,
        "xint8",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, size, size])],
        w.stored,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
