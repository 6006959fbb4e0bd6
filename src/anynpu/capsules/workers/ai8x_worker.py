"""Writes checkpoints for ai8x-synthesis, inside its environment; the Python of that environment must run this file."""

from __future__ import annotations

from collections import OrderedDict


def checkpoint(path: str, arch: str, names: list[str], arrays: dict[str, object]) -> str:
    """Writes a checkpoint that holds tensors and nothing to unpickle, and returns the version of torch."""
    import torch

    tensors = OrderedDict((name, torch.from_numpy(arrays[name])) for name in names)
    torch.save({"epoch": 0, "arch": arch, "state_dict": tensors, "extras": {}}, path)
    return str(torch.__version__)
