"""What the vendor's tool reads and writes: the network YAML, the checkpoint, its project and its log."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anynpu.errors import ConfigError, IntegrityError
from anynpu.runtime.ai8x import Network
from anynpu.targets.ai8x.memory import Place, width_of
from anynpu.targets.ai8x.memory import passes as memory_passes
from anynpu.targets.ai8x.options import Ai8xFacts
from anynpu.tensors import Array

ARCH = "anynpu"
HEX = re.compile(r"0x([0-9a-fA-F]+)")
NEEDED = ("cnn.c", "cnn.h", "weights.h", "sampledata.h", "sampleoutput.h", "main.c", "log.txt")
FIGURES = {
    "macs": r"Hardware: [\d,]+ ops \(([\d,]+) macc",
    "weight_bytes": r"Weight memory: ([\d,]+) bytes",
    "bias_bytes": r"Bias memory: +([\d,]+) bytes",
    "cycles": r"^Total +([\d,]+) cycles",
}


def network_yaml(network: Network, places: list[Place]) -> str:
    """Returns the YAML that configures the accelerator."""
    lines = ["---", f"arch: {ARCH}", "dataset: sample", "", "layers:"]
    for number, (layer, place) in enumerate(zip(network.layers, places, strict=True)):
        settings = [f"out_offset: 0x{place.out_offset:04x}", f"processors: 0x{place.processors:016x}"]
        if place.out_processors:
            settings.append(f"output_processors: 0x{place.out_processors:016x}")
        settings.append(f"in_offset: 0x{place.in_offset:04x}")
        settings.append(f"operation: {'mlp' if layer.operation == 'linear' else layer.operation}")
        if layer.operation == "conv2d":
            settings.append(f"kernel_size: {layer.kernel[0]}x{layer.kernel[1]}")
        if layer.operation == "conv1d":
            settings.append(f"kernel_size: {layer.kernel[0]}")
        if layer.operation in ("conv2d", "conv1d"):
            settings.append(f"pad: {layer.pad[0]}")
        if layer.operation != "passthrough":
            settings.append(f"activate: {layer.activation.replace('none', 'None')}")
        if layer.groups > 1:
            settings.append(f"conv_groups: {layer.groups}")
        if layer.flatten:
            settings.append("flatten: true")
        if layer.pool is not None:
            (rows, columns), (down, right) = layer.pool.size, layer.pool.stride
            signal = layer.operation == "conv1d"
            kind = "max_pool" if layer.pool.kind == "max" else "avg_pool"
            size = str(rows) if signal or rows == columns else f"[{rows}, {columns}]"
            stride = str(down) if signal or down == right else f"[{down}, {right}]"
            settings += [f"{kind}: {size}", f"pool_stride: {stride}"]
        if layer.width == 32:
            settings.append("output_width: 32")
        if len(layer.sources) > 1:
            settings += ["eltwise: add", f"in_sequences: [{', '.join(map(str, layer.sources))}]"]
        elif layer.sources[0] != number - 1:
            settings.append(f"in_sequences: [{layer.sources[0]}]")
        if place.write_gap:
            settings.append(f"write_gap: {place.write_gap}")
        if number == 0:
            settings.append("data_format: HWC")
        first, *rest = settings
        lines += [f"  # {number}: {layer.name}", f"  - {first}", *(f"    {line}" for line in rest)]
    return "\n".join(lines) + "\n"


def read_config(path: Path) -> tuple[str, str]:
    """Returns the user's own network YAML and the name of the network in it, which the checkpoint is to bear."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config_file={path}: cannot be read ({error})") from None
    match = re.search(r"^arch:[ \t]*([\w.-]+)", text, re.MULTILINE)
    if match is None or not re.search(r"^layers:", text, re.MULTILINE):
        raise ConfigError(f"config_file={path}: no network for ai8xize.py: it has no arch or no layers")
    return text, match[1]


def checkpoint_arrays(network: Network, parameters: dict[str, Array]) -> tuple[list[str], dict[str, Array]]:
    """Returns the names of a quantised checkpoint's tensors in order, and the tensors: whole numbers as floats."""
    tensors: dict[str, Array] = {}
    for number, layer in enumerate(network.layers):
        if layer.operation == "passthrough":
            continue
        weight, bias = parameters[f"weight{number}"], parameters.get(f"bias{number}")
        key = f"layer{number}"
        tensors[f"{key}.op.weight"] = weight[..., 0] if layer.operation == "conv1d" else weight
        if bias is not None and bias.any():
            tensors[f"{key}.op.bias"] = bias.astype(np.int64) * 2 ** (layer.bits - 1)
        # The tool itself adds what weights of fewer bits are short of.
        tensors[f"{key}.output_shift"] = np.array([layer.shift - (8 - layer.bits)])
        tensors[f"{key}.weight_bits"] = np.array([layer.bits])
        tensors[f"{key}.bias_bits"] = np.array([8])
        tensors[f"{key}.quantize_activation"] = np.array([1])
        tensors[f"{key}.adjust_output_shift"] = np.array([0])
        tensors[f"{key}.shift_quantile"] = np.array([1])
    return list(tensors), {name: np.asarray(value, np.float32) for name, value in tensors.items()}


def relocate(project: Path, room: Path) -> None:
    """Takes the folder that the tool worked in out of the texts that it wrote: equal networks give equal projects."""
    for path in sorted(project.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            if str(room).encode() in content:
                path.write_bytes(content.replace(f"{room}/".encode(), b""))


def known_answer(path: Path, shape: tuple[int, int, int], width: int, facts: Ai8xFacts) -> NDArray[np.int64]:
    """Returns the outputs that the vendor's tool computed for its sample, from the memory image in sampleoutput.h."""
    addresses, words = _image(path)
    channel, pixel = np.indices((shape[0], shape[1] * shape[2]))
    share, passes = width_of(shape[0]), memory_passes(shape[0])
    turn, processor = np.divmod(channel, share)
    units = width // 8
    wanted = facts.memory_base + (processor // 16) * facts.group_stride + (pixel * passes + turn) * units * 4
    wanted += (processor % 16 // 4 * 4) * facts.processor_stride + (processor % 4) * 4 * (units == 4)
    wanted += int(addresses.min()) - facts.memory_base
    at = np.minimum(np.searchsorted(addresses, wanted), len(addresses) - 1)
    if not np.array_equal(addresses[at], wanted):
        raise IntegrityError(f"{path.name}: it does not hold every output of the network", "the file is truncated")
    stored = words[at]
    if width == 8:
        stored = (stored >> (8 * (processor % 4))) & 0xFF
    return np.where(stored >= 1 << (width - 1), stored - (1 << width), stored).reshape(shape)


def _image(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns addresses in order and their words: runs of address, mask, count, words; a zero ends them."""
    numbers = np.array([int(text, 16) for text in HEX.findall(path.read_text("utf-8", "replace"))], np.int64)
    addresses, words, at = [], [], 0
    while at < len(numbers) and numbers[at]:
        count = int(numbers[at + 2]) if at + 2 < len(numbers) else 0
        if not 0 < count <= len(numbers) - at - 3:
            raise IntegrityError(f"{path.name}: it ends in the midst of its numbers", "the file is truncated")
        addresses.append(numbers[at] + 4 * np.arange(count))
        words.append(numbers[at + 3 : at + 3 + count])
        at += 3 + count
    if not addresses or at >= len(numbers):
        raise IntegrityError(f"{path.name}: it has no end", "the file is truncated")
    joined = np.concatenate(addresses)
    order = np.argsort(joined)
    return joined[order], np.concatenate(words)[order]


@dataclass(frozen=True)
class Figures:
    """What the vendor's tool says of the network in its log."""

    macs: int | None
    weight_bytes: int | None
    bias_bytes: int | None
    cycles: int | None


def read_log(text: str) -> Figures:
    """Returns the figures of a log; None for what it does not say."""
    matches = {name: re.search(pattern, text, re.MULTILINE) for name, pattern in FIGURES.items()}
    return Figures(**{name: int(match[1].replace(",", "")) if match else None for name, match in matches.items()})
