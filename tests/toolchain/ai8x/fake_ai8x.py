"""An ai8x-synthesis of our own: reads the YAML, the checkpoint and the sample, computes them with plain loops, and
writes a project with the image of the accelerator's memory; `mode` beside it says in which way it fails."""

from __future__ import annotations

from pathlib import Path

from anynpu.testing.capsules import write_environment

TORCH = """
import json
import numpy
__version__ = "2.13.0"
from_numpy = numpy.asarray

def save(given, path):
    tensors = given.pop("state_dict")
    with open(path, "wb") as stream:
        numpy.savez(stream, head=json.dumps({**given, "names": list(tensors)}), **tensors)
"""

AI8XIZE = r"""
import argparse, json, os, re, sys
import numpy as np
from anynpu.testing.misbehave import misbehave

here = os.path.dirname(os.path.abspath(__file__))
mode = open(os.path.join(here, "mode")).read().strip()
open(os.path.join(here, "argv"), "w").write(" ".join(sys.argv[1:]))
flags = argparse.ArgumentParser()
for name in ("config-file", "checkpoint-file", "sample-input", "test-dir", "prefix", "device", "board-name"):
    flags.add_argument("--" + name, required=True)
given, rest = flags.parse_known_args()
assert os.path.realpath(os.getcwd()) == os.path.realpath(here) and "--no-version-check" in rest
print("Configuring device:", given.device)
if mode == "exit":
    sys.exit("ERROR: Layer 5: bias memory capacity exhausted - available groups: [0, 1, 2, 3]")
misbehave({mode: True})

layers = []
for line in open(given.config_file):
    if re.match(r"  - ", line):
        layers.append({})
    found = re.match(r"(?:  - |    )(\w+): (.*)", line)
    if found:
        layers[-1][found[1]] = found[2]
stored = np.load(given.checkpoint_file)
head = json.loads(str(stored["head"]))
assert re.search("^arch: (.*)$", open(given.config_file).read(), re.M)[1] == head["arch"]
data = np.load(given.sample_input)
assert data.dtype == np.int64 and data.min() >= -128 and data.max() <= 127


def pooled(x, layer):
    kind = "max_pool" if "max_pool" in layer else "avg_pool"
    if kind not in layer:
        return x
    size = [int(v) for v in re.findall(r"\d+", layer[kind])] * 2
    step = [int(v) for v in re.findall(r"\d+", layer["pool_stride"])] * 2
    rows, columns = (x.shape[1] - size[0]) // step[0] + 1, (x.shape[2] - size[1]) // step[1] + 1
    out = np.zeros((len(x), rows, columns), np.int64)
    for r in range(rows):
        for c in range(columns):
            part = x[:, r * step[0] : r * step[0] + size[0], c * step[1] : c * step[1] + size[1]]
            out[:, r, c] = part.max(axis=(1, 2)) if kind == "max_pool" else np.trunc(part.mean(axis=(1, 2)))
    return out


def convolved(x, w, pad):
    x = np.pad(x, ((0, 0), (pad, pad), (pad, pad)))
    rows, columns = x.shape[1] - w.shape[2] + 1, x.shape[2] - w.shape[3] + 1
    out = np.zeros((len(w), rows, columns), np.int64)
    for o in range(len(w)):
        for r in range(rows):
            for c in range(columns):
                out[o, r, c] = (x[:, r : r + w.shape[2], c : c + w.shape[3]] * w[o]).sum()
    return out


keys = [n[: -len(".op.weight")] for n in head["names"] if n.endswith(".op.weight")]
results = []
for number, layer in enumerate(layers):
    sources = [int(v) for v in re.findall(r"-?\d+", layer.get("in_sequences", str(number - 1)))]
    values = [pooled(data if s < 0 else results[s], layer) for s in sources]
    x = values[0] if len(values) == 1 else np.clip(sum(values), -128, 127)
    if layer["operation"] == "passthrough":
        results.append(x)
        continue
    key = keys.pop(0)
    w = stored[key + ".op.weight"].astype(np.int64)
    bits = int(stored[key + ".weight_bits"][0])
    w = w[:, :, None, None] if w.ndim == 2 else w
    x = x.reshape(-1, 1, 1) if layer["operation"] == "mlp" else x
    y = convolved(x, w, int(layer.get("pad", 0)))
    if key + ".op.bias" in head["names"]:
        y += 128 * (stored[key + ".op.bias"] // 2 ** (bits - 1)).astype(np.int64)[:, None, None]
    if layer.get("output_width") != "32":
        shift = float(stored[key + ".output_shift"][0]) + 8 - bits
        y = np.clip(np.floor(0.5 + y / (128 / 2.0**shift)), -128, 127).astype(np.int64)
    results.append(np.maximum(y, 0) if layer["activate"] == "relu" else y)

last = results[-1] if mode != "garbage" else results[-1][::-1] + 1
wide = layers[-1].get("output_width") == "32"
words = []
pixels = last.reshape(len(last), -1)
for group in range(0, len(last), 4):
    address = 0x50400000 + int(layers[-1]["out_offset"], 16) + (group % 16 + group // 16 * 512) * 8192
    part = pixels[group : group + 4] & (0xFFFFFFFF if wide else 0xFF)
    for pixel in range(pixels.shape[1]):
        column = [int(v) for v in part[:, pixel]]
        if wide:
            words += [address + 16 * pixel, 0xFFFFFFFF, len(column), *column]
        else:
            words += [address + 4 * pixel, 0xFFFFFFFF, 1, sum(v << 8 * i for i, v in enumerate(column))]
words.append(0)
image = ", ".join(f"0x{word:08x}" for word in words)
image = image[: len(image) // 2] if mode == "truncated" else image
log = (
    "SUMMARY OF OPS\nHardware: 9,000 ops (8,192 macc; 800 comp; 8 add; 0 mul; 0 bitwise)\n"
    "ESTIMATED LATENCY\nTotal                 5,000 cycles\n\nRESOURCE USAGE\n"
    "Weight memory: 1,024 bytes out of 442,368 bytes total (0.2%)\nBias memory:   20 bytes out of 2,048 bytes total\n"
)
if mode == "zero":
    print("WARNING: Layer 2: All output values for the given sample input are zero.")
folder = os.path.join(given.test_dir, given.prefix)
os.makedirs(folder)
written = {"cnn.c": f"// {' '.join(sys.argv)}\n"} | {n: "//" for n in ("cnn.h", "weights.h", "sampledata.h", "main.c")}
written |= {"sampleoutput.h": "#define SAMPLE_OUTPUT { " + image + " }\n", "log.txt": log}
for name, text in written.items():
    if not (mode == "missing" and name == "sampleoutput.h"):
        open(os.path.join(folder, name), "w").write(text)
"""


def write_tool(root: Path, mode: str = "ok") -> tuple[Path, Path]:
    """Writes a checkout and an environment for it, and returns their folders."""
    checkout = root / "ai8x-synthesis"
    checkout.mkdir(parents=True, exist_ok=True)
    (checkout / "ai8xize.py").write_text(AI8XIZE)
    (checkout / "mode").write_text(mode)
    environment = write_environment(root / "environment", {"torch/__init__.py": TORCH}, {"torch": "2.13.0"})
    return checkout, environment
