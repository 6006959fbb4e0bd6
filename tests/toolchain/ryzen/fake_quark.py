"""A FAKE AMD Quark for tests: our real worker runs on it; it quantises by rules of its own, or fails as told.

`write_quark(root, **plan)` makes the environment. Switches of the plan: says (printed), no_compiler, raises, crash,
hang, nothing, truncated, skipped (the float model as it is), garbage (weights of zeros), odd_scale, per_channel, signed
(int8 activations), custom_domain, renamed (another output), puts_in (tensors of its own), widens (factors of
ranges, by tensor). It equalises unless told not to, as the real one does: that is printed.
"""

from __future__ import annotations

import json
from pathlib import Path

from anynpu.testing.capsules import write_environment

QUARK_ONNX = '''
import json
from pathlib import Path
import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from anynpu.testing.misbehave import misbehave

PLAN = json.loads(Path(__file__).with_name("plan.json").read_text())
if PLAN.get("no_compiler"):
    raise RuntimeError("Error building extension: /bin/sh: 1: g++: not found")


class ModelQuantizer:
    def __init__(self, config):
        self.config = config.global_quant_config

    def quantize_model(self, model_input, model_output, reader, algorithms=None):
        kind = self.config.name
        print("equalises" if self.config.include_cle else "leaves the weights")
        print("[QUARK-INFO]: quantising", kind, self.config.calibrate_method, [a.told() for a in algorithms or []])
        rows = []
        while (row := reader.get_next()) is not None:
            rows.append(row)
        most = {name: float(max(abs(row[name]).max() for row in rows)) for name in rows[0]}
        print("samples", len(rows), json.dumps(most))
        if "raises" in PLAN:
            raise ValueError(PLAN["raises"])
        misbehave(PLAN)
        if PLAN.get("nothing"):
            return
        model = onnx.load(model_input)
        if not PLAN.get("skipped"):
            bf16 = self.config.extra_options.get("BF16QDQToCast")
            table = self.config.extra_options.get("SaveAndRestore", "")
            model = cast(model) if bf16 else paired(model, rows, kind, Path(table) if table else None)
        if PLAN.get("renamed"):
            model.graph.output[0].name = model.graph.node[-1].output[0] = "other"
        content = model.SerializeToString()
        Path(model_output).write_bytes(content[: len(content) // 2] if PLAN.get("truncated") else content)


def insert(model, change):
    """Puts what `change` gives before every operator that multiplies, for each of its inputs."""
    nodes = []
    for node in model.graph.node:
        if node.op_type in ("Conv", "Gemm", "MatMul"):
            for index, name in enumerate(node.input):
                before, taken = change(name)
                nodes += before
                node.input[index] = taken
        nodes.append(node)
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def cast(model):
    def change(name):
        short, back = name + "_short", name + "_back"
        return [helper.make_node("Cast", [name], [short], to=16), helper.make_node("Cast", [short], [back], to=1)], back

    return insert(model, change)


def ranges_of(model, rows, table):
    """The ranges of the table, or where there is none those of the samples, which become the table."""
    if table is None or not table.exists():
        known = {name: float(np.abs(values).max()) for name, values in observed(model, rows).items()}
        if table is not None:
            known |= dict.fromkeys(PLAN.get("puts_in", []), 3.0)
            table.write_text(json.dumps({"tensors_range": {name: [-most, most] for name, most in known.items()}}))
        return known
    known = {name: max(map(abs, ends)) for name, ends in json.loads(table.read_text())["tensors_range"].items()}
    print("restored", json.dumps(known))
    return {name: most * PLAN.get("widens", {}).get(name, 1) for name, most in known.items()}


def paired(model, rows, kind, table):
    domain = PLAN.get("custom_domain") or ("" if kind == "XINT8" else "com.microsoft")
    dtype, middle, top = {"XINT8": ("uint8", 128, 127), "A8W8": ("int8", 0, 127), "A16W8": ("int16", 0, 32767)}[kind]
    if PLAN.get("signed"):
        dtype, middle = "int8", 0
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    ranges = ranges_of(model, rows, table)

    def constant(array, name):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def scale(array, top):
        value = max(float(np.abs(array).max()), 1e-6) / top
        return np.float32(value * (1.03 if PLAN.get("odd_scale") else 1) if kind != "XINT8" or PLAN.get("odd_scale")
                          else 2.0 ** np.ceil(np.log2(value)))

    def change(name):
        if name in stored:
            array, step = stored[name], scale(stored[name], 127)
            integers = np.clip(np.rint(array / step), -128, 127).astype(np.int8) * (0 if PLAN.get("garbage") else 1)
            steps = np.full(array.shape[0], step) if PLAN.get("per_channel") else step
            inputs = [constant(integers, name + "_q"), constant(steps, name + "_s"), constant(np.int8(0), name + "_z")]
            return [helper.make_node("DequantizeLinear", inputs, [name + "_d"], domain=domain)], name + "_d"
        span = ranges[name] * (127 / 127.5 if kind == "XINT8" else 1)
        step, zero = constant(scale(span, top), name + "_s"), constant(np.array(middle, dtype), name + "_z")
        pair = [helper.make_node("QuantizeLinear", [name, step, zero], [name + "_q"], domain=domain),
                helper.make_node("DequantizeLinear", [name + "_q", step, zero], [name + "_d"], domain=domain)]
        return pair, name + "_d"

    made = insert(model, change)
    made.opset_import.append(helper.make_opsetid("com.amd.quark", 1))
    if domain and domain != "com.amd.quark":
        made.opset_import.append(helper.make_opsetid(domain, 1))
    return made


def observed(model, rows):
    whole = onnx.ModelProto.FromString(model.SerializeToString())
    inner = [name for node in whole.graph.node for name in node.output]
    known = {value.name for value in whole.graph.output}
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in inner if name not in known)
    session = onnxruntime.InferenceSession(whole.SerializeToString(), providers=["CPUExecutionProvider"])
    found = {name: np.concatenate([row[name].ravel() for row in rows]) for name in rows[0]}
    for row in rows:
        for name, value in zip(inner, session.run(inner, row)):
            found[name] = np.append(found.get(name, []), np.abs(value).max())
    return found
'''

CONFIG = """
class _Settings:
    def __init__(self, name):
        self.name, self.calibrate_method, self.extra_options, self.include_cle = name, None, {}, True

class Config:
    def __init__(self, global_quant_config):
        self.global_quant_config = global_quant_config

def get_default_config(name):
    return _Settings(name)
"""

ALGORITHM = """
class _Algorithm:
    def __init__(self, **settings):
        self.settings = settings

    def told(self):
        return [type(self).__name__, self.settings]

class CLEConfig(_Algorithm):
    pass

class AdaRoundConfig(_Algorithm):
    pass
"""

METHODS = """
import enum

class PowerOfTwoMethod(enum.Enum):
    NonOverflow = 0
    MinMSE = 1
"""


def write_quark(root: Path, version: str = "0.13", **plan: object) -> Path:
    """Writes the environment of a Quark that follows a plan and returns its folder."""
    packages = {
        "quark/__init__.py": "",
        "quark/onnx/__init__.py": QUARK_ONNX,
        "quark/onnx/plan.json": json.dumps(plan),
        "quark/onnx/calibration/__init__.py": "",
        "quark/onnx/calibration/methods.py": METHODS,
        "quark/onnx/quantization/__init__.py": "",
        "quark/onnx/quantization/config/__init__.py": CONFIG,
        "quark/onnx/quantization/config/algorithm.py": ALGORITHM,
    }
    return write_environment(root, packages, {"amd-quark": version})
