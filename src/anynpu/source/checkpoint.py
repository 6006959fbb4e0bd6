"""Weights from checkpoint files: tensors only, unless the user trusts the file."""

from __future__ import annotations

import pickletools
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from anynpu import schema
from anynpu.arrays import read_npz
from anynpu.errors import AnyNpuError, ConfigError, IntegrityError, ToolMissing
from anynpu.source.kinds import CHECKPOINT, kind_of
from anynpu.source.torch_arrays import to_tensor

if TYPE_CHECKING:
    import torch

WRAPPERS = ("state_dict", "model_state_dict", "model")
PREFIXES = ("module.", "_orig_mod.")
LFS_POINTER = b"version https://git-lfs.github.com/spec"
SHOWN = 5
ENDINGS = (".pt", ".pth", ".ckpt", ".tar", ".safetensors", ".npz", ".bin")
READ = (CHECKPOINT, "a zip archive", "a tar archive")
FORMS = "give .pt, .pth, .ckpt, .safetensors or .npz; a network goes with -m"


@runtime_checkable
class FitsCheckpoint(Protocol):
    """A stand-in for a vendor's layer, which has several versions: it takes the form of the one that was trained."""

    def fit_checkpoint(self, figures: Mapping[str, torch.Tensor]) -> None: ...


def load_tensors(path: Path, trust: bool = False) -> dict[str, torch.Tensor]:
    """Returns the tensors of a .pt, .pth, .ckpt, .safetensors or .npz file by name, all finite.

    A checkpoint that needs unpickling of anything but tensors is read only with `trust`: it can run any program.
    """
    if not path.is_file():
        raise ConfigError(f"checkpoint {path} does not exist", "check the path given with --ckpt")
    with path.open("rb") as file:
        head = file.read(4096)
    if not head:
        raise IntegrityError(f"checkpoint {path} is empty", "copy or download it again")
    if head.startswith(LFS_POINTER):
        raise IntegrityError(f"checkpoint {path} is a git-lfs pointer, not the weights", "run: git lfs pull")
    if path.suffix.lower() not in ENDINGS:
        kind = "an ONNX model" if path.suffix.lower() == ".onnx" else kind_of(path, head)
        if kind and kind not in READ:
            raise ConfigError(f"--ckpt {path}: no checkpoint: it looks like {kind}", FORMS)
    if path.suffix == ".npz":
        try:
            tensors = {name: to_tensor(np.array(array)) for name, array in read_npz(path).items()}
        except (AnyNpuError, TypeError) as error:  # torch has no type for text
            raise _damaged(path, "a .npz file of plain arrays", error) from error
    elif path.suffix == ".safetensors":
        tensors = _from_safetensors(path)
    else:
        tensors = _state(_from_torch(path, trust), path)
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise IntegrityError(f"{path}: tensor {name!r} holds NaN or infinite values", "train or export it again")
    return tensors


def load_into(module: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Puts tensors into a module, which must have exactly these names and shapes; wrapper prefixes are stripped."""
    state, names = dict(tensors), {*module.state_dict()}
    while state and not names.issuperset(state):
        # DataParallel and torch.compile put a prefix before every name.
        prefix = next((p for p in PREFIXES if all(name.startswith(p) for name in state)), None)
        if prefix is None:
            break
        state = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    for place, layer in module.named_modules():
        if isinstance(layer, FitsCheckpoint):
            start = f"{place}." if place else ""
            layer.fit_checkpoint({n.removeprefix(start): t for n, t in state.items() if n.startswith(start)})
    own = module.state_dict()
    missing = [name for name in own if name not in state]
    unexpected = [name + schema.near(name, missing or [*own]) for name in state if name not in own]
    parts = [f"has no {_listed(missing)}"] if missing else []
    parts += [f"has unexpected {_listed(unexpected)}"] if unexpected else []
    if parts:
        raise ConfigError(
            f"the checkpoint does not fit the module: it {' and '.join(parts)}",
            "check that the class and its constructor arguments are those that were trained",
        )
    for name, tensor in state.items():
        wanted, got = tuple(own[name].shape), tuple(tensor.shape)
        if wanted != got:
            raise ConfigError(
                f"checkpoint tensor {name!r} has shape {got}, the module wants {wanted}",
                "check the constructor arguments of the module",
            )
    module.load_state_dict(dict(state))


def _from_safetensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        from safetensors.torch import load_file
    except ImportError as error:
        raise ToolMissing("reading .safetensors needs the package safetensors", "pip install safetensors") from error
    try:
        return dict(load_file(path))
    except Exception as error:  # the package raises its own error type and several built-in ones
        raise _damaged(path, "a .safetensors file", error) from error


def _from_torch(path: Path, trust: bool) -> Any:
    import pickle  # noqa: TID251  (only its error type; nothing is unpickled here)

    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)  # noqa: TID251
    except pickle.UnpicklingError as error:
        # torch raises the same error for a foreign object and for bytes that are not a pickle at all.
        if not _is_pickle(path):
            raise _damaged(path, "a torch checkpoint", error) from error
        if not trust:
            raise ConfigError(
                f"checkpoint {path} holds pickled Python objects, not only tensors: loading it can run any program",
                "save a state dict instead, or give --trust-checkpoint if you trust where the file comes from",
            ) from error
    except (RuntimeError, OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise _damaged(path, "a torch checkpoint", error) from error
    try:
        return torch.load(path, map_location="cpu", weights_only=False)  # noqa: TID251
    except Exception as error:  # a trusted pickle runs foreign code, which can raise anything
        raise _damaged(path, "a torch checkpoint", error) from error


def _is_pickle(path: Path) -> bool:
    """Whether a file, or the data.pkl inside it, is a whole pickle; its instructions are listed, never executed."""
    try:
        data = path.read_bytes()
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                data = archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))
        return sum(1 for _ in pickletools.genops(data)) > 1
    except (ValueError, OSError, StopIteration, zipfile.BadZipFile, zlib.error):
        return False


def _damaged(path: Path, kind: str, error: Exception) -> IntegrityError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
    return IntegrityError(f"{path} is not {kind}, or it is damaged: {reason}", "copy or download it again")


def _state(loaded: Any, path: Path) -> dict[str, torch.Tensor]:
    """Returns the state dict inside a loaded checkpoint."""
    import torch

    if isinstance(loaded, torch.nn.Module):
        return dict(loaded.state_dict())
    while isinstance(loaded, Mapping):
        inner = next((loaded[name] for name in WRAPPERS if isinstance(loaded.get(name), Mapping)), None)
        if inner is None:
            break
        loaded = inner
    if isinstance(loaded, Mapping) and isinstance(loaded.get("model"), torch.nn.Module):
        return dict(loaded["model"].state_dict())
    if not isinstance(loaded, Mapping) or not loaded:
        raise ConfigError(f"checkpoint {path} holds no state dict", "save module.state_dict()")
    wrong = [str(name) for name, tensor in loaded.items() if not isinstance(tensor, torch.Tensor)]
    if wrong:
        raise ConfigError(
            f"checkpoint {path} holds entries that are not tensors: {_listed(wrong)}", "save module.state_dict()"
        )
    return {str(name): tensor for name, tensor in loaded.items()}


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
