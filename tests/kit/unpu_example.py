"""The example command of µNPU-Bench, as it is written there, and files for it with a model of our zoo."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np

from anynpu.source import zoo

# Its words and their order; the shapes are those of the model.
EXAMPLE = shlex.split("""
    --model model/yolo/yolov1_96.py
    --model_ckpt model/yolo/yolov1.pth.tar
    --model_name ai85yolo96
    --model_module_name Yolov1_net
    --target_format ai8x
    --target_hardware max78000
    --data_sample model/yolo/sample_data_nchw.npy
    --input_shape 1 3 32 32
    --output_shape 256 32 32
    --input_names input
    --output_names output
    --bit_width 8
    --avg_pool_rounding
    --q_scale 0.85
    --fifo
    --config_file model/yolo/ai85-yolo-96-hwc.yaml
    --out_dir model/yolo/out
    --overwrite
""")


def write_example(root: Path) -> Path:
    """Writes their files, which hold the zoo's four-convolution network, and returns their folder."""
    import torch

    folder = root / "model/yolo"
    folder.mkdir(parents=True)
    source = Path(zoo.__file__).parent / "hello"
    text = (source / "net.py").read_text("utf-8").replace("SmallModel", "Yolov1_net")
    (folder / "yolov1_96.py").write_text(text)
    with np.load(source / "weights.npz") as weights:
        state = {name: torch.from_numpy(np.array(weights[name])) for name in weights.files}
    torch.save({"epoch": 1, "arch": "ai85yolo96", "state_dict": state}, folder / "yolov1.pth.tar")
    samples = zoo.samples("hello", "calibration", 32).inputs["input"]
    np.save(folder / "sample_data_nchw.npy", samples)
    return folder


def without(flag: str) -> list[str]:
    """Returns the example without a flag and its value."""
    at = EXAMPLE.index(flag)
    return EXAMPLE[:at] + EXAMPLE[at + 2 :]
