"""What training came to, as files next to the trained model and whatever is compiled from it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from anynpu import schema
from anynpu.arrays import read_npz
from anynpu.records.quantisation import FILE as QUANTISATION
from anynpu.tensors import Array
from anynpu.training.files import INTEGERS, RECORD
from anynpu.training.scheme import Scheme

MODEL = "model.onnx"


@dataclass(frozen=True)
class Epoch:
    """What one epoch came to."""

    number: int
    loss: float
    held_out_loss: float


@dataclass(frozen=True)
class TrainingRecord:
    """What training came to; compilers read the scheme, reports the rest."""

    scheme: Scheme
    samples: int = 0
    labelled: bool = False
    device: str = ""
    seed: int = 0
    epochs: tuple[Epoch, ...] = ()
    notes: tuple[str, ...] = ()
    schema_version: int = 1
    planned: int = 0
    """How many epochs there would have been without an early stop."""


def read_record(folder: Path) -> TrainingRecord | None:
    """Returns what training says of a model, or None where it was not trained."""
    if not (folder / RECORD).is_file():
        return None
    record: TrainingRecord = schema.from_dict(TrainingRecord, schema.read_json(folder / RECORD), RECORD)
    return record


def carry_record(model: Path, out: Path) -> None:
    """Puts what training says of a model, and its quantisation, next to what is compiled from it."""
    for name in (RECORD, INTEGERS, QUANTISATION):
        if (model / name).is_file() and not (out / name).exists():
            shutil.copyfile(model / name, out / name)


def read_integers(folder: Path) -> dict[str, Array]:
    """Returns the integers that training ended with, by the name of the ONNX initializer."""
    return read_npz(folder / INTEGERS)
