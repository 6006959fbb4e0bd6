"""A detector of coloured blocks, small enough to be written by hand and honest enough to find them."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper
from PIL import Image

from anynpu.artifact import Made, Manifest, Step, seal
from anynpu.schema import to_dict
from anynpu.tasks.card import Card
from anynpu.tasks.images import Preprocess
from anynpu.tasks.yolo import Head
from anynpu.tensors import TensorSpec

SIZE, COUNT = 64, 8 * 8 + 4 * 4 + 2 * 2
CARD = Card("detect", preprocess=Preprocess(resize="letterbox"), labels=("red", "blue"), yolo=Head(decode="model"))


def blocks_model(path):
    """The mean of the first and the last channel over cells of 8x8 pixels are the scores of two classes."""
    boxes = np.zeros((1, 4, COUNT), np.float32)
    y, x = np.divmod(np.arange(64), 8)
    boxes[0, :, :64] = [x * 8 + 4, y * 8 + 4, np.full(64, 16), np.full(64, 16)]
    constants = {
        "boxes": boxes,
        "ends": np.array([0, 2]),
        "flat": np.array([1, 2, 64]),
        "more": np.array([0, 0, 0, 0, 0, COUNT - 64]),
    }
    nodes = [
        helper.make_node("AveragePool", ["images"], ["means"], kernel_shape=[8, 8], strides=[8, 8]),
        helper.make_node("Gather", ["means", "ends"], ["two"], axis=1),
        helper.make_node("Reshape", ["two", "flat"], ["scores"]),
        helper.make_node("Pad", ["scores", "more"], ["padded"]),
        helper.make_node("Concat", ["boxes", "padded"], ["output0"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "blocks",
        [helper.make_tensor_value_info("images", 1, [1, 3, SIZE, SIZE])],
        [helper.make_tensor_value_info("output0", 1, [1, 6, COUNT])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def artifact(folder, card=CARD, channels="RGB", outputs=(1, 6, COUNT), **spec):
    folder.mkdir()
    blocks_model(folder / "model.onnx")
    image = TensorSpec("images", (1, 3, SIZE, SIZE), layout="NCHW", channels=channels, **spec)
    task = to_dict(card) if card else {}
    manifest = Manifest("onnx", "model.onnx", (image,), (TensorSpec("output0", outputs),), task=task)
    seal(folder, manifest, Step("test"), Made("2026-01-01T00:00:00+00:00", 0.0))
    return folder


def scene(path, *squares, size=(128, 128)):
    """Black, with squares (colour, x, y) of 16 pixels: two cells of the model wide would be 32."""
    pixels = np.zeros((*size, 3), np.uint8)
    for color, x, y in squares:
        pixels[y : y + 16, x : x + 16] = {"red": (255, 0, 0), "blue": (0, 0, 255)}[color]
    Image.fromarray(pixels).save(path)
    return path
