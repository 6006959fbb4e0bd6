"""The training itself: the rounding student learns to give what the float model gives, and labels where they are."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anynpu.arrays import read_npz
from anynpu.errors import AccuracyError, AnyNpuError, ConfigError
from anynpu.files import write_whole
from anynpu.source.torch_arrays import to_array, to_tensor
from anynpu.tasks.yolo import Layout
from anynpu.training.objects import Objects
from anynpu.training.record import Epoch
from anynpu.training.student import Student, require_torch

BATCH = 32
BATCH_MACS = 1e10
"""Of one step at most: what it keeps for the gradients grows with it, 0.6 GB for a YOLOv8n sample of 4.4e9."""
HELD_EVERY = 8
"""Every eighth sample judges the epochs and is not trained on."""
PATIENCE = 5
FORGIVEN = 1.25
"""How far above the best held-out loss that of the last epoch may lie for its weights to be kept: the rate is low by
then, which is worth more to weights of few bits than what some hundred held-out samples say."""
RATES = {8: 0.002, 4: 0.008, 2: 0.02, 1: 0.02}
"""The size of a first step as a share of the weights' own, by the bits of weights: coarse grids want large steps."""
FEWEST_SAMPLES = 16
MOST_MACS = 1e12
"""The work of a training, which epochs are cut to: three minutes or so of one core. A clock would make the result
depend on what else the machine does."""
GPU_FACTOR = 16
"""How much more a GPU takes: of one step, and of the work of a training so many times that again."""
OBJECT_SHARE = 0.8
"""Of the loss of a detector; the rest is that of its maps as they are."""
RETRIES = 3
"""How often a first epoch without labels that ends further from the float model than it began is taken back."""
RETRY_RATE = 0.25
"""What the rate is multiplied by then: a deep net of 8 bits may need steps a twentieth of those of a small one."""
FEWEST_EPOCHS = 4
FEWEST_STEPS = 32
"""Of an epoch: where the samples make fewer, they are gone through several times."""
SOFTNESS = 2.0
"""What scores are divided by before float and rounded classes are compared: so the unlikely ones count too."""
MANY_MACS = 5e7
"""From this many multiplications a sample on, several threads are worth their company."""


@dataclass(frozen=True)
class Settings:
    """How to train; equal settings on one machine give equal weights."""

    seed: int = 0
    epochs: int = 12
    rate: float = 1.0
    """A factor of all first steps."""
    label_share: float = 0.2
    learn_ranges: bool = True
    classes: bool = False
    """Whether the only output is a score for each class, of which the order counts more than the size."""


@dataclass(frozen=True)
class Lesson:
    """What is learnt from: samples by input, the float model's answers by output, and classes where they are known."""

    inputs: Mapping[str, Any]
    answers: Mapping[str, Any]
    labels: Any | None = None
    scored: str = ""
    """The output that labels are of."""
    maps: Layout | None = None
    """Where a detector that is decoded on the host has boxes and scores."""


def device_of() -> str:
    """Returns where torch trains: a GPU where it sees one, else the CPU."""
    return "cuda" if require_torch().cuda.is_available() else "cpu"


def prepare_torch(macs: float) -> Any:
    """Returns torch, set to give equal results for equal seeds."""
    torch = require_torch()
    torch.set_num_threads((os.cpu_count() or 1) if macs > MANY_MACS else 1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    if hasattr(torch.utils, "deterministic"):  # torch 2.2: memory that is overwritten anyway would be filled first
        torch.utils.deterministic.fill_uninitialized_memory = False
    return torch


def batch_of(macs: float, device: str = "cpu") -> int:
    """Returns how many samples a step takes: fewer of a large model, so that they fit into memory."""
    most = BATCH_MACS * (GPU_FACTOR if device == "cuda" else 1)
    return int(min(BATCH, max(1.0, most / max(macs, 1.0))))


def answers_of(
    module: Any, inputs: Mapping[str, Any], outputs: tuple[str, ...], device: str, batch: int = BATCH
) -> dict[str, Any]:
    """Returns what a module gives for samples, in batches."""
    import torch

    many = torch.func.vmap(module)
    parts: list[tuple[Any, ...]] = []
    count = len(next(iter(inputs.values())))
    with torch.no_grad():
        for start in range(0, count, batch):
            results = many(*(values[start : start + batch].to(device) for values in inputs.values()))
            parts.append(results if isinstance(results, tuple) else (results,))
    return {name: torch.cat([part[at] for part in parts]) for at, name in enumerate(outputs)}


def check_samples(inputs: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Raises for samples that nothing can be learnt from."""
    count = len(next(iter(inputs.values())))
    if count < FEWEST_SAMPLES:
        raise ConfigError(
            f"training needs at least {FEWEST_SAMPLES} samples, here are {count}",
            "give more with --data, or leave --qat out",
        )
    if all(bool((values == values[:1]).all()) for values in inputs.values()):
        raise ConfigError(f"all {count} training samples are the same", "give real samples with --data")


class Fit:
    """One training under way; what it needs to go on is kept after every epoch."""

    def __init__(self, student: Student, lesson: Lesson, settings: Settings, macs: float) -> None:
        self.torch = prepare_torch(macs)
        self.device = device_of()
        self.student, self.settings = student, settings
        student.module.to(self.device)
        self.inputs = {name: values.to(self.device) for name, values in lesson.inputs.items()}
        self.answers = {name: values.to(self.device) for name, values in lesson.answers.items()}
        self.labels = None if lesson.labels is None else lesson.labels.to(self.device)
        self.scored = list(lesson.answers).index(lesson.scored) if lesson.scored else 0
        # Samples of equal energy: each output counts by what varies in it.
        self.spread = [max(float(values.var()), 1e-12) for values in self.answers.values()]
        rows = [values.reshape(len(values), -1) for values in self.answers.values()]
        self.probabilities = all(
            bool((row >= 0).all() and self.torch.allclose(row.sum(1), self.torch.ones_like(row[:, 0]), atol=1e-3))
            for row in rows
        )
        count = len(next(iter(self.inputs.values())))
        every = self.torch.arange(count)
        self.held, self.taught = every[::HELD_EVERY], every[every % HELD_EVERY != 0]
        affordable = MOST_MACS * (GPU_FACTOR**2 if self.device == "cuda" else 1) / max(3 * macs, 1.0)
        epoch = max(len(self.taught), FEWEST_STEPS * BATCH)
        self.epochs = min(settings.epochs, max(FEWEST_EPOCHS, int(affordable / epoch)))
        self.batch = batch_of(macs, self.device)
        self.steps = max(1, min(epoch, int(affordable / self.epochs)) // self.batch)
        self.many = self.torch.func.vmap(student.module)
        self.objects = None if lesson.maps is None else Objects(lesson.maps, self.answers)
        # Every tensor moves in steps of its own size, biases and scales as fast as the coarsest weights
        rates = {name: self.settings.rate * RATES[bits] for name, bits in self.student.bits().items()}
        fastest = max(rates.values())
        groups = []
        for name, values in self.student.weights().items():
            size = float(values.detach().pow(2).mean().sqrt()) or 1.0
            groups.append({"params": [values], "lr": rates.get(name, fastest) * size})
        if scales := self.student.scales():
            groups.append({"params": scales, "lr": fastest})
        for group in groups:
            group["first"] = group["lr"]
        self.optimiser = self.torch.optim.Adam(groups)
        self.history: list[Epoch] = []
        self.best: dict[str, Any] = self._state()
        self.best_loss = math.inf
        self.retries = 0

    def _state(self) -> dict[str, Any]:
        return {name: values.detach().cpu().clone() for name, values in self.student.module.named_parameters()}

    def loss(self, rows: Any) -> Any:
        """Returns the loss of samples: the distance to the float model's answers, and to labels."""
        results = self.many(*(values[rows] for values in self.inputs.values()))
        outputs = results if isinstance(results, tuple) else (results,)
        wanted = [want[rows] for want in self.answers.values()]
        if self.settings.classes and len(outputs) == 1:
            total = self.divergence(outputs[0], wanted[0])
        else:
            pairs = zip(outputs, wanted, self.spread, strict=True)
            total = sum(((out - want) ** 2).mean() / spread for out, want, spread in pairs) / len(outputs)
        if self.objects is not None:
            named = [dict(zip(self.answers, each, strict=True)) for each in (outputs, wanted)]
            total = (1 - OBJECT_SHARE) * total + OBJECT_SHARE * self.objects.loss(*named)
        if self.labels is not None:
            share = self.settings.label_share
            crossed = self.torch.nn.functional.cross_entropy(self._scores(outputs[self.scored]), self.labels[rows])
            total = (1 - share) * total + share * crossed
        return total

    def divergence(self, output: Any, wanted: Any) -> Any:
        """Returns how far the classes of an output are from the wanted ones, both softened."""
        functional = self.torch.nn.functional
        rounded, sought = (functional.log_softmax(self._scores(each) / SOFTNESS, 1) for each in (output, wanted))
        return functional.kl_div(rounded, sought, reduction="batchmean", log_target=True) * SOFTNESS**2

    def _scores(self, output: Any) -> Any:
        """Returns the scores of classes, one row a sample; probabilities become logarithms."""
        scores = output.reshape(len(output), -1)
        return self.torch.log(scores.clamp_min(1e-6)) if self.probabilities else scores

    def run(self, checkpoint: Path | None, report: Callable[[Epoch, int], None]) -> None:
        """Trains to the end, from a checkpoint where there is one; the student has the weights to keep then."""
        if checkpoint is not None and checkpoint.is_file():
            self._resume(checkpoint)
        # Labels may lead away from the float model; without them that is harm.
        untrained = math.inf if self.history or self.labels is not None else self.held_out_loss()
        while len(self.history) < self.epochs:
            losses = [epoch.held_out_loss for epoch in self.history]
            if len(losses) > PATIENCE and min(losses[-PATIENCE:]) > FORGIVEN * min(losses[:-PATIENCE]):
                break  # the held-out loss has risen for good
            epoch = self._epoch(len(self.history))
            does_harm = not epoch.held_out_loss <= untrained  # what is not a number does
            if not self.history and does_harm and self.retries < RETRIES:
                self.student.module.load_state_dict(self.best, strict=False)
                self.optimiser.state.clear()
                self._slow_down(1)
                continue
            if not math.isfinite(epoch.held_out_loss):
                raise AccuracyError(
                    f"training: the loss is {epoch.held_out_loss} in epoch {epoch.number}",
                    "loss",
                    epoch.held_out_loss,
                    0.0,
                    hint="smaller steps did not help: look for samples far from the others, or leave --qat out",
                )
            self.history.append(epoch)
            if epoch.held_out_loss < self.best_loss:
                self.best_loss, self.best = epoch.held_out_loss, self._state()
            if checkpoint is not None:
                self._keep(checkpoint)
            report(epoch, self.epochs)
        if self.history[-1].held_out_loss > FORGIVEN * self.best_loss:
            self.student.module.load_state_dict(self.best, strict=False)
        if checkpoint is not None:
            checkpoint.unlink(missing_ok=True)

    def _slow_down(self, retries: int) -> None:
        self.retries += retries
        for group in self.optimiser.param_groups:
            group["first"] *= RETRY_RATE**retries

    def _epoch(self, number: int) -> Epoch:
        """Returns what an epoch came to; it ends where the loss is no longer a number."""
        order = self.torch.Generator().manual_seed(self.settings.seed * 100_003 + number)
        rounds = -(-self.steps * self.batch // len(self.taught))
        orders = [self.torch.randperm(len(self.taught), generator=order) for _ in range(rounds)]
        mixed = self.taught[self.torch.cat(orders)]
        # The rate is halved for every epoch that more than doubled the held-out loss.
        losses = [epoch.held_out_loss for epoch in self.history]
        total, slowdown = 0.0, 2.0 ** sum(loss > 2 * min(losses[:at]) for at, loss in enumerate(losses) if at)
        for step in range(self.steps):
            done = (number * self.steps + step) / (self.epochs * self.steps)
            for group in self.optimiser.param_groups:
                group["lr"] = group["first"] / slowdown * 0.5 * (1 + math.cos(math.pi * done))
            self.optimiser.zero_grad()
            loss = self.loss(mixed[step * self.batch : (step + 1) * self.batch].to(self.device))
            value = float(loss.detach())
            if not math.isfinite(value):
                return Epoch(number + 1, value, value)
            loss.backward()
            for group in self.optimiser.param_groups:
                for values in group["params"]:
                    if values.grad is not None:
                        values.grad.nan_to_num_(0.0, 0.0, 0.0)
            self.optimiser.step()
            total += value
        return Epoch(number + 1, total / self.steps, self.held_out_loss())

    def held_out_loss(self) -> float:
        """Returns the loss of the samples that are not trained on."""
        with self.torch.no_grad():
            parts = [float(self.loss(rows.to(self.device))) * len(rows) for rows in self.held.split(self.batch)]
        return sum(parts) / len(self.held)

    def _keep(self, path: Path) -> None:
        """Writes what it takes to go on after this epoch."""
        arrays = {f"now:{name}": to_array(values) for name, values in self._state().items()}
        arrays |= {f"best:{name}": to_array(values) for name, values in self.best.items()}
        for at, moments in self.optimiser.state_dict()["state"].items():
            arrays |= {f"adam:{at}:{name}": to_array(values) for name, values in moments.items()}
        arrays["retries"] = np.asarray(self.retries)
        arrays["history"] = np.asarray([(e.loss, e.held_out_loss) for e in self.history], np.float64)
        path.parent.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)  # type: ignore[arg-type]  # numpy types the keywords as its own options
        write_whole(path, buffer.getvalue())

    def _resume(self, path: Path) -> None:
        """Goes on where a checkpoint ends; one that does not fit is left aside."""
        try:
            arrays = read_npz(path)
        except AnyNpuError:
            return
        names = set(self._state())
        if {name.removeprefix("now:") for name in arrays if name.startswith("now:")} != names:
            return
        self.student.module.load_state_dict({name: to_tensor(arrays[f"now:{name}"]) for name in names}, strict=False)
        self.best = {name: to_tensor(arrays[f"best:{name}"]) for name in names}
        state: dict[int, dict[str, Any]] = {}
        for name in arrays:
            if name.startswith("adam:"):
                _, at, what = name.split(":", 2)
                state.setdefault(int(at), {})[what] = to_tensor(arrays[name])
        whole = self.optimiser.state_dict()
        self.optimiser.load_state_dict({**whole, "state": state})
        self.history = [Epoch(at + 1, *map(float, row)) for at, row in enumerate(arrays["history"])]
        self.best_loss = min(epoch.held_out_loss for epoch in self.history)
        self._slow_down(int(arrays.get("retries", 0)))
