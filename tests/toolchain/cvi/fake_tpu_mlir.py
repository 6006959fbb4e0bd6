"""A TPU-MLIR for tests: its three programs read their flags as strictly as the real ones, and its runtime computes.

`write_tool(root, deploy={"crash": True})` makes one of the programs fail in that way. What a program was given is kept
in `root/seen`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from anynpu.testing.capsules import write_environment

PROGRAM = """
import argparse, hashlib, json, struct, sys, time
from pathlib import Path
from anynpu.testing.misbehave import misbehave

ROOT = Path({root!r})
NAME = {name!r}
plan = json.loads((ROOT / "plan.json").read_text()).get(NAME, {{}})
(ROOT / "seen").mkdir(exist_ok=True)
with (ROOT / "seen" / (NAME + ".txt")).open("a") as seen:
    seen.write(" ".join(sys.argv[1:]) + chr(10))
misbehave(plan)
if plan.get("status") or plan.get("nothing"):
    sys.exit(plan.get("status"))
parser = argparse.ArgumentParser()
"""

TRANSFORM = """
for flag in ("model_name", "model_def", "input_shapes", "mlir", "test_input", "test_result", "excepts", "pixel_format",
             "resize_dims"):
    parser.add_argument("--" + flag)
for flag in ("keep_aspect_ratio", "dynamic"):
    parser.add_argument("--" + flag, action="store_true")
given = parser.parse_args()
import numpy as np
import onnx
model = onnx.load(given.model_def)
shapes = [[d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input]
if json.loads(given.input_shapes) != shapes:
    sys.exit("input shapes error")
if given.test_input:
    sample = np.load(given.test_input)
    if sorted(sample.files) != sorted(i.name for i in model.graph.input):
        sys.exit("assert name in inputs")
    np.savez(given.test_result, **{n: sample[n] for n in sample.files})
graph, lines, places = model.graph, ["// " + given.model_def], []
given_names = [("Input", i.name) for i in graph.input]
extra = [("Permute", "put_in_Permute")] if plan.get("extra") else []
for kind, name in given_names + [(n.op_type, n.output[0] + "_" + n.op_type) for n in graph.node] + extra:
    lines.append(f'  %1 = "top.{kind}"(%0) {{a = 1}} : (tensor<1xf32>) -> tensor<1x4xf32> loc(#loc{len(places)})')
    places.append(f'#loc{len(places)} = loc("{name}")')
Path(given.mlir).write_text(chr(10).join(lines + places))
"""

CALIBRATION = """
parser.add_argument("mlir_file")
for flag in ("data_list", "input_num", "cali_method", "tune_num", "search", "expected_cos", "quantize_table",
             "processor", "inference_num", "quantize_method_list"):
    parser.add_argument("--" + flag)
parser.add_argument("-o")
given = parser.parse_args()
if given.search and not given.quantize_table:
    parser.error("please set --quantize_table when --search is not False")
import numpy as np
import onnx
files = Path(given.data_list).read_text().split()
if len(files) != int(given.input_num):
    sys.exit("input_num")
most = {}
for file in files:
    sample = np.load(file)
    for name in sample.files:
        most[name] = max(most.get(name, 0.0), float(np.abs(sample[name]).max()))
lines = [f"# genetated time: {time.time()}"] + [f"{n} {v:.7f} {-v:.7f} {v:.7f}" for n, v in most.items()]
graph = onnx.load(Path(given.mlir_file).read_text().splitlines()[0][3:]).graph
lines += ["put_in_Permute 2.0 -2.0 2.0"] if "put_in_Permute" in Path(given.mlir_file).read_text() else []
lines += [f"{node.output[0]}_{node.op_type} 1.0 -1.0 1.0" for node in graph.node]
Path(given.o).write_text(chr(10).join(lines) + chr(10))
if given.search == "search_qtable":
    import shutil
    if not shutil.which("dot"):
        sys.exit("graphviz.backend.execute.ExecutableNotFound")
    Path(given.quantize_table).write_text("# made" + chr(10) + "scores_Gemm BF16" + chr(10))
"""

DEPLOY = """
for flag in ("mlir", "quantize", "processor", "model", "calibration_table", "quantize_table", "test_input",
             "test_reference", "tolerance", "excepts", "opt", "num_core"):
    parser.add_argument("--" + flag)
for flag in ("skip_validation", "quant_input", "quant_output", "asymmetric", "dynamic"):
    parser.add_argument("--" + flag, action="store_true")
given = parser.parse_args()
import base64
import onnx
source = Path(Path(given.mlir).read_text().splitlines()[0][3:]).read_bytes()
graph = onnx.load_model_from_string(source).graph
ranges = {}
if given.calibration_table:
    rows = [line.split() for line in Path(given.calibration_table).read_text().splitlines() if line[0] != "#"]
    ranges = {row[0]: float(row[1]) for row in rows}
mixed = Path(given.quantize_table).read_text() if given.quantize_table else ""
body = json.dumps({
    "onnx": base64.b64encode(source).decode(), "ranges": ranges, "time": time.strftime("%Y-%m-%d %H:%M:%S"),
    "input": given.quant_input, "output": given.quant_output, "bf16": "BF16" in mixed,
    "garbage": bool(plan.get("garbage")), "odd": plan.get("odd", ""), "quantize": given.quantize,
}).encode()
if given.model.endswith(".cvimodel"):
    chip = plan.get("chip", given.processor).encode()
    head = struct.pack("<8sIBB16s16s2s", b"CviModel", len(body), 1, 4, hashlib.md5(body).digest(), chip, b"Cv")
else:
    head = struct.pack("<IIIQ", 0xFF55AAEE, 64, len(body), 0).ljust(64, bytes(1))
whole = head + body
if plan.get("truncated"):
    whole = whole[: len(whole) // 2]
if plan.get("other"):
    whole = b"not a model"
Path(given.model).write_bytes(whole)
cpu = plan.get("cpu", "")
lines = ["func.func @main(%arg0: tensor<1xf32>) {"]
lines += ['func.func @subfunc_0(%arg0: x) attributes {id = 0 : i64, mode = #tpu<run_mode TPU_STATIC>} {']
places = []
for node in graph.node:
    if node.op_type == cpu:
        lines += ['func.func @subfunc_1(%arg0: x) attributes {id = 1 : i64, mode = #tpu<run_mode CPU>} {']
        lines += [f'%1 = "tpu.GenericCpu"(%0) {{cpu_op_name = "soft"}} : x loc(#loc{len(places)})']
    else:
        lines += ['func.func @subfunc_2(%arg0: x) attributes {id = 2 : i64, mode = #tpu<run_mode TPU_STATIC>} {']
        lines += [f'%1 = "tpu.{node.op_type}"(%0) {{a = 1}} : x loc(#loc{len(places)})']
    places.append(f'#loc{len(places)} = loc("{node.output[0]}_{node.op_type}")')
stored, named = [], []
for name, threshold in ranges.items():
    scale = threshold / 127 * (2 if name == plan.get("wider") else 1)
    kind = f"tensor<1x4x!quant.uniform<i8:f32, {scale}>>"
    stored.append(f'  %1 = "tpu.Add"(%0) {{a = 1}} : ({kind}) -> {kind} loc(#loc{len(named)})')
    named.append(f'#loc{len(named)} = loc("{name}")')
if not plan.get("no_stored"):
    Path("model_" + given.processor + "_int8_tpu.mlir").write_text(chr(10).join(stored + named))
if not plan.get("no_final"):
    final = "model_" + given.processor + "_" + given.quantize.lower() + "_final.mlir"
    Path(final).write_text(chr(10).join(lines + places))
if given.model.endswith(".bmodel"):
    Path("compiler_profile_0.txt").write_text("TCYC : 9454\\n\\nflops: 1, runtime: 0.009454ms, x\\n")
"""

RUNTIME = """
import base64, json
import numpy as np

class Tensor:
    def __init__(self, name, dtype, shape, scale):
        self.name, self.dtype, self.qscale, self.qzero_point = name, dtype, scale, 0
        kinds = {"f32": np.float32, "i8": np.int8, "bf16": np.uint16, "i32": np.int32, "f64": np.float64}
        self.data = np.zeros(shape, kinds[dtype])

class Model:
    def __init__(self, path, device=0, library="", output_all_tensors=False):
        import onnxruntime
        content = open(path, "rb").read()
        facts = json.loads(content[content.index(b"{"):])
        self.facts = facts
        self.session = onnxruntime.InferenceSession(base64.b64decode(facts["onnx"]))
        self.networks = ["model"]
        odd = facts["bf16"]
        self.inputs = []
        for i in self.session.get_inputs():
            kind = ("bf16" if odd else "i8") if facts["input"] else "f32"
            scale = 127 / facts["ranges"][i.name] if kind == "i8" else 1.0
            self.inputs.append(Tensor(i.name, kind, i.shape, scale))
        self.outputs = []
        for o in self.session.get_outputs():
            kind = facts["odd"] or (("bf16" if odd else "i8") if facts["output"] else "f32")
            shape = list(o.shape) + [1, 1]
            self.outputs.append(Tensor(o.name + "_Gemm", kind, shape, 0.05 if kind == "i8" else 1.0))

    def Net(self, name):
        return self

    def forward_dynamic(self, shapes):
        self.forward()
        return [list(o.data.shape) for o in self.outputs]

    def forward(self):
        feeds = {t.name: t.data.astype(np.float32) / np.float32(t.qscale) for t in self.inputs}
        found = self.session.run(None, feeds)
        for tensor, value in zip(self.outputs, found):
            if self.facts["garbage"]:
                value = np.random.default_rng(int(abs(value).sum() * 1e4)).normal(0, 1, value.shape)
            stored = np.clip(np.rint(value / tensor.qscale), -128, 127) if tensor.dtype == "i8" else value
            tensor.data[...] = stored.reshape(tensor.data.shape)
"""


def write_tool(root: Path, version: str = "1.30.2", **plan: dict[str, Any]) -> Path:
    """Writes the environment; `transform`, `calibration` and `deploy` say how that program misbehaves."""
    root.mkdir(parents=True, exist_ok=True)
    texts = {"transform": TRANSFORM, "calibration": CALIBRATION, "deploy": DEPLOY}
    files = {"transform": "model_transform.py", "calibration": "run_calibration.py", "deploy": "model_deploy.py"}
    programs = {files[name]: PROGRAM.format(root=str(root), name=name) + text for name, text in texts.items()}
    packages = {"tpu_mlir/__init__.py": "", "tpu_mlir/lib/libcmodel_bm1684x.so": ""}
    packages |= {f"tpu_mlir/python/pyruntime_{name}.py": RUNTIME for name in ("cvi", "bm")}
    write_environment(root, packages, {"tpu-mlir": version}, programs)
    (root / "plan.json").write_text(json.dumps(plan))
    return root


def seen(root: Path, name: str) -> str:
    """Returns the last command line that a program was given."""
    return (root / "seen" / f"{name}.txt").read_text().splitlines()[-1]
