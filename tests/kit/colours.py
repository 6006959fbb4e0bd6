"""A classifier of red, green and blue pictures."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from anynpu.tasks.card import Card
from anynpu.tasks.images import Preprocess

COLOURS = {"red": 0, "green": 1, "blue": 2}
CLASSES = Card("classify", preprocess=Preprocess(resize="stretch"), labels=tuple(COLOURS))
LAYOUT = {"layout": "NCHW", "channels": "RGB"}


def net(path, inputs, outputs, nodes, **constants):
    infos = [[helper.make_tensor_value_info(*each) for each in side] for side in (inputs, outputs)]
    given = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph([helper.make_node(*n[:3], **n[3]) for n in nodes], "net", *infos, given)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def colours_net(path, wrong=0.0):
    """The means of red, green and blue; `wrong` of red is taken for green, so that a weak red is missed."""
    weight = np.eye(3, dtype=np.float32)
    weight[1, 0] = wrong
    nodes = [
        ("Conv", ["image", "weight"], ["mixed"], {}),
        ("GlobalAveragePool", ["mixed"], ["pooled"], {}),
        ("Flatten", ["pooled"], ["means"], {}),
    ]
    net(path, [("image", 1, [1, 3, 8, 8])], [("means", 1, [1, 3])], nodes, weight=weight[:, :, None, None])
