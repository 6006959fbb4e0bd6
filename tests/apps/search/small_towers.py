"""Two towers of one space, small enough to know what they answer: a picture's mean colour, and the colours in a text.

Their space has four axes: red, green, blue, and a little of everything, so that no vector is zero.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SPACE = '[space]\nname = "{}"\nwidth = 4\n'
IMAGE_CARD = 'kind = "embed-image"\n[preprocess]\nresize = "stretch"\n'
TEXT_CARD = 'kind = "embed-text"\n[text]\nform = "bert"\ntokenizer = "tokenizer.json"\n'
COLOURS = ("red", "green", "blue")


def write_towers(folder: Path) -> None:
    """Writes image.onnx, text.onnx, tokenizer.json and their cards."""

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *COLOURS, "dog", "rain", "sun"]
    vocabulary = {word: number for number, word in enumerate(words)}
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    axes = np.zeros((len(words), 4), np.float32)
    axes[:, 3] = 0.1
    for at, colour in enumerate(COLOURS):
        axes[vocabulary[colour], at] = 3.0
    _save(
        folder / "text.onnx",
        [helper.make_node("Gather", ["axes", "input_ids"], ["states"]),
         helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
         helper.make_node("Unsqueeze", ["mask", "last"], ["weights"]),
         helper.make_node("Mul", ["states", "weights"], ["kept"]),
         helper.make_node("ReduceSum", ["kept", "one"], ["vector"], keepdims=0)],
        [helper.make_tensor_value_info(name, TensorProto.INT64, [1, 8]) for name in ("input_ids", "attention_mask")],
        {"axes": axes, "last": np.array([2]), "one": np.array([1])},
    )  # fmt: skip
    turn = np.concatenate([np.eye(3, dtype=np.float32), np.full((3, 1), 0.01, np.float32)], axis=1)
    _save(
        folder / "image.onnx",
        [helper.make_node("GlobalAveragePool", ["image"], ["mean"]),
         helper.make_node("Flatten", ["mean"], ["flat"]),
         helper.make_node("Gemm", ["flat", "turn", "little"], ["vector"])],
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 16, 16])],
        {"turn": turn, "little": np.full(4, 0.02, np.float32)},
    )  # fmt: skip
    for name in ("tiny", "other"):
        (folder / f"image-{name}.toml").write_text(IMAGE_CARD + SPACE.format(name))
        (folder / f"text-{name}.toml").write_text(TEXT_CARD + SPACE.format(name))


def _save(path, nodes, inputs, constants) -> None:
    held = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    output = helper.make_tensor_value_info("vector", TensorProto.FLOAT, [1, 4])
    graph = helper.make_graph(nodes, "tower", inputs, [output], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)
