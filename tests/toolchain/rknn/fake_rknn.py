"""A `rknn.api` of our own: it computes by ONNX Runtime, prints the table that the real one prints, and fails to order.

The worker script that talks to it is the real one.
"""

from __future__ import annotations

from pathlib import Path

from anynpu.testing.capsules import write_environment

API = """
import hashlib, json, os, struct
import numpy as np
from anynpu.testing.misbehave import misbehave

MODE = "@MODE@"
TABLE = "D RKNN: [08:51:05.402]                      Network Layer Information Table"
HEAD = "ID   OpType   DataType Target InputShape  OutputShape  Cycles(DDR/NPU/Total)  RW(KB)  FullName"


def say(line):
    print("D RKNN: [08:51:05.402] " + line)


class RKNN:
    def __init__(self, verbose=False):
        assert verbose

    def config(self, target_platform, quantized_dtype, quantized_algorithm, quantized_method, optimization_level,
               remove_reshape):
        if MODE == "config":
            raise ValueError("Traceback (most recent call last):\\n  File x\\nValueError: no such platform!")
        self.settings = [target_platform, quantized_dtype, quantized_algorithm, quantized_method, optimization_level]
        return 0

    def load_onnx(self, model):
        self.model = open(model, "rb").read()
        return 0

    def build(self, do_quantization, dataset=None, auto_hybrid=False):
        import onnxruntime
        if MODE == "code":
            print("\\033[1;31mE\\033[0m \\033[1;31mbuild: Catch exception when building!\\033[0m")
            return -1
        if MODE == "refuses":
            why = "The If('y') will cause the graph to be a dynamic graph!"
            print("\\033[1;31mE\\033[0m \\033[1;31mbuild: " + why + "\\033[0m")
            raise ValueError("Traceback\\nValueError: " + why)
        misbehave({MODE: True})
        if MODE == "no_pairs" and b"DequantizeLinear" in self.model:
            misbehave({"crash": True})
        self.session = onnxruntime.InferenceSession(self.model)
        self.names = [i.name for i in self.session.get_inputs()]
        digest = hashlib.sha256(self.model + json.dumps([self.settings, auto_hybrid]).encode())
        peak = 0.0
        for line in open(dataset) if do_quantization else ():
            values = [np.load(name) for name in line.split()]
            digest.update(b"".join(value.tobytes() for value in values))
            peak = max([peak] + [float(abs(v).max()) for v in self.session.run(None, dict(zip(self.names, values)))])
        self.step = 2 * peak / 255 if do_quantization else 0
        noise = os.urandom(8) if MODE in ("restless", "other") else b""
        self.body = digest.digest() + noise
        self.off = int.from_bytes(os.urandom(2), "little") if MODE == "other" else 0
        if MODE != "silent":
            print(TABLE)
            say(HEAD)
            say("0    InputOperator  INT8  CPU  \\\\  (1,3,8,8)  0/0/0  0  InputOperator:image")
            say("1    ConvRelu  INT8  NPU  (1,3,8,8),(8,3,3,3),(8)  (1,8,8,8)  931/9216/9216  5  Conv:conv1")
            if MODE == "fallback":
                say("2    Softmax   FLOAT CPU  (1,4)  (1,4)  0/0/0  0  Softmax:soft")
            say("3    OutputOperator  INT8  CPU  (1,4,1,1)  \\\\  0/0/0  0  OutputOperator:scores")
            say("Feature Tensor Information Table")
            say("1    ConvRelu  image  INT8  NC1HWC2  (1,3,8,8)  (1,1,8,8,3)  | 0x00000000 0x00000c00 0x00000c00")
            say("Total Internal Memory Size: 99KB")
            say("Total Weight Memory Size: 87.25KB")
        return 0

    def export_rknn(self, path):
        tail = b'{"version":"2.5.0"}'
        whole = b"RKNN" + bytes(12) + struct.pack("<Q", len(self.body)) + bytes(40) + self.body
        whole += struct.pack("<Q", len(tail)) + tail
        if MODE == "truncated":
            whole = whole[:-9]
        if MODE != "missing":
            open(path, "wb").write(whole)
        return 0

    def init_runtime(self):
        print("I Target is None, use simulator!")
        return 0

    def inference(self, inputs, data_format=None):
        assert data_format in (None, ["nchw"]) and len(inputs) == len(self.names)
        if MODE == "dies":
            os._exit(3)
        found = self.session.run(None, dict(zip(self.names, inputs)))
        if MODE == "garbage":
            return [np.random.default_rng(len(self.model)).normal(0, 1, v.shape).astype("float32") for v in found]
        if MODE == "few":
            return found[:-1]
        rounded = [np.rint(v / self.step) * self.step if self.step else v for v in found]
        return [(v + self.off).astype("float32").reshape(*v.shape, 1, 1) for v in rounded]
"""


def write_toolkit(root: Path, mode: str = "", version: str = "2.5.0") -> Path:
    """Writes the environment and returns its folder."""
    packages = {"rknn/__init__.py": "", "rknn/api.py": API.replace("@MODE@", mode)}
    return write_environment(root, packages, {"rknn-toolkit2": version})
