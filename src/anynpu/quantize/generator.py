"""A user's generator of samples, run in a child process that records what it reads."""

from __future__ import annotations

from pathlib import Path

from anynpu.errors import ConfigError
from anynpu.measure.samples import SampleSet, write_samples
from anynpu.measure.sources import generator_of, read_generator
from anynpu.source.dependencies import Dependencies
from anynpu.source.recorder import Recorder
from anynpu.tensors import TensorSpec


def run_generator(source: str, inputs: tuple[TensorSpec, ...], limit: int | None, out: str) -> Dependencies:
    """Writes the samples of a user's generator into a folder and returns what it read (runs in a child process)."""
    generator = generator_of(source)
    assert generator is not None
    folder = generator[0].resolve().parent
    try:
        with Recorder(folder).watching() as recorder:
            arrays, labels = read_generator(source, *generator, inputs, limit)
    except SystemExit as error:
        raise ConfigError(f"{source} called sys.exit({error.code!r})") from None
    for key, array in arrays.items():
        if array.dtype.kind not in "biufc":
            raise ConfigError(f"{source} gives {array.dtype} for {key}, not numbers")
    write_samples(Path(out), SampleSet(arrays, labels))
    return recorder.found()
