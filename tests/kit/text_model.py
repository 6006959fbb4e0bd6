"""A text model as an artifact, made without torch: a table of vectors, one a token, and their mean."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tiny_bert import SPECIAL, WORDS, write_tokenizer

from anynpu import schema
from anynpu.artifact import Artifact, Manifest, Step, seal
from anynpu.tasks import card as cards
from anynpu.tensors import TensorSpec
from anynpu.testing.models import NOW

LENGTH, WIDTH = 16, 8


def table(seed: int = 0) -> np.ndarray:
    """Returns the vectors of all tokens."""
    return np.random.default_rng(seed).normal(size=(len(SPECIAL) + len(WORDS), WIDTH)).astype(np.float32)


def expected(text: str, seed: int = 0) -> np.ndarray:
    """Returns the vector of a text of known words."""
    words = [*SPECIAL, *WORDS]
    numbers = [words.index("[CLS]"), *(words.index(word) for word in text.split()), words.index("[SEP]")]
    mean = table(seed)[numbers].mean(0)
    return mean / np.linalg.norm(mean)


def text_artifact(folder: Path, seed: int = 0) -> Artifact:
    """Writes the artifact."""
    from onnx import TensorProto, helper, numpy_helper

    from anynpu.testing.models import save

    folder.mkdir(parents=True)
    shape = [1, LENGTH]
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["looked"], "look"),
        helper.make_node("Cast", ["attention_mask"], ["mask"], "mask", to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["wide"], "wide"),
        helper.make_node("Mul", ["looked", "wide"], ["states"], "states"),
    ]
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, shape) for n in ("input_ids", "attention_mask")]
    output = helper.make_tensor_value_info("states", TensorProto.FLOAT, [1, LENGTH, WIDTH])
    constants = [
        numpy_helper.from_array(table(seed), "table"),
        numpy_helper.from_array(np.array([2], np.int64), "last"),
    ]
    graph = helper.make_graph(nodes, "text", inputs, [output], constants)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "model.onnx")
    (folder.parent / "card.toml").write_text(
        'kind = "embed-text"\n[text]\nform = "bert"\ntokenizer = "tokenizer.json"\npooling = "mean"\n'
        f'[space]\nname = "test"\nwidth = {WIDTH}\n'
    )
    write_tokenizer(folder.parent / "tokenizer.json")
    chosen = cards.choose(str(folder.parent / "card.toml"))
    chosen.copy_to(folder)
    ids = tuple(TensorSpec(name, (1, LENGTH), "int64") for name in ("input_ids", "attention_mask"))
    states = (TensorSpec("states", (1, LENGTH, WIDTH)),)
    return seal(
        folder, Manifest("onnx", "model.onnx", ids, states, task=schema.to_dict(chosen.task())), Step("import"), NOW
    )
