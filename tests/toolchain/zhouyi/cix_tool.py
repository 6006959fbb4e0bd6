"""A cixbuild for tests: it reads the .cfg as strictly as the real one and writes a .cix, or fails like it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

SCRIPT = """#!{python}
import configparser, json, os, sys
from pathlib import Path
import numpy as np
from anynpu.testing.misbehave import misbehave

plan = json.loads(Path(__file__).with_name("plan.json").read_text())
KEYS = {{
    "Common": {{"mode"}},
    "Parser": {{"model_type", "model_name", "input_model", "input", "input_shape", "output_dir", "output"}},
    "Optimizer": {{"dataset", "calibration_data", "calibration_batch_size", "output_dir", "weight_bits", "bias_bits",
                  "activation_bits", "quantize_method_for_activation", "quantize_method_for_weight",
                  "trigger_float_op"}},
    "GBuilder": {{"target", "outputs", "tiling"}},
}}

def fail(text, status=1):
    print(text)
    sys.exit(status)

cfg = configparser.ConfigParser()
cfg.read(sys.argv[1])
print("[I] [Parser]: begins", flush=True)
for title, keys in KEYS.items():
    for key in cfg[title]:
        if key not in keys:
            fail(f"[E] Unknown option: {{key}}")
parser, optimizer, builder = cfg["Parser"], cfg["Optimizer"], cfg["GBuilder"]
if "model_name" not in parser:
    fail("KeyError: 'model_name'")
names = parser["input"].split(",")
shapes = [json.loads("[" + part.strip("[] ") + "]") for part in parser["input_shape"].split("],")]
given = np.load(optimizer["calibration_data"])
arrays = [given[f"input{{i}}"] for i in range(len(names))] if len(names) > 1 else [given]
print("[I] [OPT]: begins", flush=True)
for name, shape, array in zip(names, shapes, arrays):
    if list(array.shape[1:]) != shape[1:] or array.dtype not in (np.float32, np.int32):
        fail(f"[E] [OPT]: calibration of {{name}} is {{array.dtype}} {{array.shape}}")
if names != sorted(names):
    fail("[E] inputs out of order")
Path(os.environ["HOME"], "seen.json").write_text(json.dumps({{
    "cfg": Path(sys.argv[1]).read_text(), "environment": dict(os.environ), "argv": sys.argv,
    "most": {{name: float(np.abs(array).max()) for name, array in zip(names, arrays)}},
}}))
print("[I] [GB]: begins", flush=True)
misbehave(plan)
if plan.get("status"):
    sys.exit(plan["status"])
if "content" in plan:
    Path(builder["outputs"]).write_bytes(bytes.fromhex(plan["content"]))
elif not plan.get("nothing"):
    from anynpu.tensors import Quantization, TensorSpec
    from anynpu.testing.cix import DEVICE, write_cix

    def spec(name, shape, dtype, scale, zero):
        return TensorSpec(name, tuple(shape), dtype, quantization=Quantization((scale,), (zero,)) if scale else None)

    inputs = []
    for name, shape, array in zip(names, shapes, arrays):
        whole = array.dtype == np.int32
        scale = 0 if whole else float(np.abs(array).max()) / 127
        inputs.append(spec(name + plan.get("suffix", ""), shape, "int32" if whole else "int8", scale, 0))
    outputs = [spec(*row) for row in plan["outputs"]]
    extra = b"anynpu-fake-noe:" + plan.get("executor", "mix").encode() + b"\\0"
    write_cix(Path(builder["outputs"]), inputs, outputs, extra, parser["model_name"], plan.get("device", DEVICE))
"""


def write_tool(folder: Path, **plan: object) -> Path:
    """Writes cixbuild and what it is to do into a folder, and returns the program.

    outputs=[[name, shape, type, scale, zero point], ...] are those of the .cix it writes (scale 0: none). Switches:
    says=lines to print, status, hang, crash, content=hex of what it writes instead, nothing, executor, device, suffix.
    """
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "cixbuild"
    # Another plan is another tool: its file tells steps of the store apart.
    program.write_text(SCRIPT.format(python=sys.executable) + f"# {json.dumps(plan)}\n")
    program.chmod(0o755)
    (folder / "plan.json").write_text(json.dumps(plan))
    return program
