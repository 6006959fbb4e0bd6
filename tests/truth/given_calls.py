"""The command line called in this process, and small models and samples to call it with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from anynpu.cli.main import main, root

CLASSES = 3


class Answer(NamedTuple):
    """What a call came to."""

    status: int
    out: str
    err: str

    @property
    def all(self) -> str:
        return self.out + self.err


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> Answer:
    """Returns what the command line says; an internal error fails the test."""
    capsys.readouterr()
    status = main(arguments)
    captured = capsys.readouterr()
    assert "internal error" not in captured.err and "Traceback" not in captured.err, captured.err
    return Answer(status, captured.out, captured.err)


def write_linear(path: Path, classes: int = CLASSES) -> Path:
    """Writes a classifier of `classes` inputs whose largest input is its answer."""
    weights = (4 * np.eye(classes) + 0.01).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, classes])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, classes])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    onnx.checker.check_model(model)
    return path


def write_labelled(path: Path, count: int = 60, **labels: np.ndarray) -> np.ndarray:
    """Writes samples of the classifier with their true labels, or with `labels`; returns the true ones."""
    rng = np.random.default_rng(0)
    values = rng.uniform(0, 1, (count, CLASSES)).astype(np.float32)
    truth = values.argmax(axis=1)
    np.savez(path, x=values, **({"labels": truth} | labels))
    return truth


def commands(
    command: click.Command = root, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yields every command with the words that call it, groups that do something by themselves too."""
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            inner = command.get_command(ctx, name)
            assert inner is not None
            yield from commands(inner, (*path, name))
    if path and (not isinstance(command, click.Group) or command.invoke_without_command):
        yield path, command
