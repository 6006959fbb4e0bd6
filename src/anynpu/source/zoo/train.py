"""Trains a zoo model from its recipe: `python -m anynpu.source.zoo.train NAME`.

Writes weights.npz and figures.json into the model's folder. One thread, fixed seeds and deterministic
algorithms: the same machine and versions give the same weights.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrize

from anynpu.measure.metrics import score
from anynpu.runtime.ort import inference_session
from anynpu.source import zoo
from anynpu.source.zoo.cards import Array, Recipe, Samples

TEST_SAMPLES = 1000
CALIBRATION_SAMPLES = 128
COMPARED_SAMPLES = 200
_LOG = logging.getLogger(__name__)


class _RoundedWeight(nn.Module):
    """Rounds a weight to int8 per output channel; gradients pass straight through."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        step = weight.detach().abs().amax(dim=tuple(range(1, weight.dim())), keepdim=True).clamp_min(1e-8) / 127
        return weight + ((weight / step).round() * step - weight).detach()


def _round_activation(_module: nn.Module, _inputs: object, output: torch.Tensor) -> torch.Tensor:
    low, high = output.detach().amin().clamp_max(0), output.detach().amax().clamp_min(0)
    step = (high - low).clamp_min(1e-8) / 255
    return output + ((output / step).round() * step - output).detach()


def _epochs(
    network: nn.Module, loss: Any, data: tuple[torch.Tensor, torch.Tensor], recipe: Recipe, count: int, rate: float
) -> None:
    inputs, labels = data
    steps = count * (len(inputs) // recipe.batch)
    optimiser = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=recipe.weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=rate, total_steps=steps, pct_start=0.2)
    for epoch in range(count):
        total = 0.0
        for batch in torch.randperm(len(inputs))[: steps // count * recipe.batch].reshape(-1, recipe.batch):
            optimiser.zero_grad()
            value = loss(network, inputs[batch], labels[batch])
            value.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 5.0)
            optimiser.step()
            schedule.step()
            total += float(value.detach()) * recipe.batch / len(inputs)
        _LOG.info("epoch %d of %d: loss %.4f", epoch + 1, count, total)


def fit(name: str) -> nn.Module:
    """Returns the network of a model, trained from nothing."""
    recipe, part = zoo.recipe(name), import_module(f"anynpu.source.zoo.{name}.net")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    # Filling memory that is overwritten anyway would double the time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.manual_seed(recipe.seed)
    samples = zoo.samples(name, "train", recipe.samples)
    data = (torch.from_numpy(samples.inputs[zoo.card(name).input_name]), torch.from_numpy(samples.labels))
    _LOG.info("%s: %d training samples", name, recipe.samples)
    # Channels-last is the faster memory format for convolutions on a CPU.
    network: nn.Module = part.build().train().to(memory_format=torch.channels_last)
    _epochs(network, part.loss, data, recipe, recipe.epochs, recipe.learning_rate)
    if recipe.quantised_epochs:
        # Makes every weight and activation round to int8 and returns the hooks that do it
        hooks = []
        for module in network.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                parametrize.register_parametrization(module, "weight", _RoundedWeight())
            last = isinstance(module, nn.Linear) and module.bias is not None
            if last or isinstance(module, nn.ReLU | nn.ReLU6):
                hooks.append(module.register_forward_hook(_round_activation))
        _epochs(network, part.loss, data, recipe, recipe.quantised_epochs, recipe.learning_rate / 10)
        for hook in hooks:
            hook.remove()
        for module in network.modules():
            if parametrize.is_parametrized(module):
                parametrize.remove_parametrizations(module, "weight", leave_parametrized=False)
    return network.eval()


def save(network: nn.Module, path: Path) -> None:
    """Writes the weights, matrices and kernels as float16 to halve the file."""
    state = {key: value.numpy() for key, value in network.state_dict().items()}
    stored = {key: value.astype(np.float16) if value.ndim > 1 else value for key, value in state.items()}
    np.savez_compressed(path, **stored)


def run(network: nn.Module, name: str, samples: Samples) -> dict[str, Array]:
    """Returns the float outputs for the samples."""
    card = zoo.card(name)
    with torch.no_grad():
        parts = [network(part) for part in torch.split(torch.from_numpy(samples.inputs[card.input_name]), 50)]
    return {card.output_names[0]: torch.cat(parts).numpy()}


def macs(network: nn.Module, name: str) -> int:
    """Returns the multiply-accumulates of the convolutions and linear layers for one sample."""
    total = 0

    def count(module: nn.Module, _inputs: object, output: torch.Tensor) -> None:
        nonlocal total
        total += output.numel() * next(module.parameters())[0].numel()

    layers = [module for module in network.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    run(network, name, zoo.samples(name, "test", 1))
    for hook in hooks:
        hook.remove()
    return total


class _Feed:
    """Hands calibration samples to onnxruntime one by one."""

    def __init__(self, name: str, inputs: Array) -> None:
        self._batches = iter({name: inputs[i : i + 1]} for i in range(len(inputs)))

    def get_next(self) -> dict[str, Array] | None:
        return next(self._batches, None)


def int8_outputs(network: nn.Module, name: str, samples: Samples) -> dict[str, Array]:
    """Returns the outputs of the network as int8 QDQ in onnxruntime: min-max, per-channel weights."""
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    card = zoo.card(name)
    with tempfile.TemporaryDirectory() as folder:
        plain, quantised = Path(folder, "float.onnx"), Path(folder, "int8.onnx")
        torch.onnx.export(
            network,
            (torch.zeros(card.input_shape),),
            str(plain),
            input_names=[card.input_name],
            output_names=list(card.output_names),
            dynamo=False,
        )
        feed = _Feed(card.input_name, zoo.samples(name, "calibration", CALIBRATION_SAMPLES).inputs[card.input_name])
        quantize_static(
            str(plain),
            str(quantised),
            feed,
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
        )
        session = inference_session(str(quantised), threads=1)
    inputs = samples.inputs[card.input_name]
    rows = [session.run(None, {card.input_name: inputs[i : i + 1]})[0] for i in range(len(inputs))]
    return {card.output_names[0]: np.concatenate(rows)}


def sqnr_db(reference: Array, got: Array) -> tuple[float, float]:
    """Returns the signal-to-noise ratio in dB, with the power and with the variance of the reference as signal."""
    noise = float(np.mean((reference.astype(np.float64) - got) ** 2))
    power, variance = float(np.mean(reference.astype(np.float64) ** 2)), float(np.var(reference.astype(np.float64)))
    return 10 * float(np.log10(power / noise)), 10 * float(np.log10(variance / noise))


def figures(name: str) -> dict[str, float | int]:
    """Returns what the stored model measures on its test set, in float and in int8."""
    network, card = zoo.model(name), zoo.card(name)
    samples = zoo.samples(name, "test", TEST_SAMPLES)
    outputs, int8 = run(network, name, samples), int8_outputs(network, name, samples)
    output = card.output_names[0]
    power, variance = sqnr_db(outputs[output][:COMPARED_SAMPLES], int8[output][:COMPARED_SAMPLES])
    return {
        "accuracy": round(score(card.metric, samples.inputs, outputs, samples.labels), 4),
        "int8_accuracy": round(score(card.metric, samples.inputs, int8, samples.labels), 4),
        "int8_sqnr_db": round(power, 1),
        "int8_sqnr_variance_db": round(variance, 1),
        "macs": macs(network, name),
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "test_samples": TEST_SAMPLES,
    }


def train(name: str) -> dict[str, float | int]:
    """Trains a model, writes its weights and figures, and returns the figures."""
    start = time.process_time()
    network = fit(name)
    seconds = round(time.process_time() - start)
    save(network, zoo.folder(name) / "weights.npz")
    record = {**figures(name), "training_cpu_s": seconds}
    text = json.dumps(record, indent=2, sort_keys=True) + "\n"
    (zoo.folder(name) / "figures.json").write_text(text, encoding="utf-8")
    return record


def main() -> None:
    """Trains the models named on the command line, all of them if none is named."""
    parser = argparse.ArgumentParser(prog="python -m anynpu.source.zoo.train", description=main.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(zoo.names())}")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for name in parser.parse_args().names or zoo.names():
        _LOG.info("%s: %s", name, train(name))


if __name__ == "__main__":
    main()
