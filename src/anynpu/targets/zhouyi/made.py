"""What cixbuild made: is the file a model, for that NPU, with the tensors and types that were asked for?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from anynpu.errors import IntegrityError
from anynpu.runtime.noe.cix import Cix, CixTensor, read_cix
from anynpu.targets.zhouyi.options import ZhouyiOptions
from anynpu.tensors import TensorSpec

AGAIN = "the log has cixbuild's own words; build again, or report the file"


def read_made(path: Path, options: ZhouyiOptions) -> Cix:
    """Returns the compiled model; garbage, a git-lfs pointer or one for another NPU raises IntegrityError."""
    cix = read_cix(path)
    # The file names instruction set and configuration but counts no cores: X2_1204 is X2_1204MP3 too.
    if str(cix.target) != options.target.partition("MP")[0]:
        raise IntegrityError(f"cixbuild was asked for {options.target} and wrote a model for {cix.target}", AGAIN)
    return cix


def specs_of(
    what: str, tensors: Sequence[CixTensor], asked: Sequence[TensorSpec], options: ZhouyiOptions
) -> tuple[TensorSpec, ...]:
    """Returns the tensors of the compiled model under the names, in the order and layouts of the float model."""
    if len(tensors) != len(asked):
        raise IntegrityError(f"the compiled model has {len(tensors)} {what}s, the float model {len(asked)}", AGAIN)
    specs = []
    for spec, tensor in zip(asked, pair(what, tensors, asked), strict=True):
        place = f"{what} {spec.name} of the compiled model"
        if tensor.shape != spec.shape:
            raise IntegrityError(
                f"{place} has shape {list(tensor.shape)}, the float model's has {list(spec.shape)}", AGAIN
            )
        allowed = allowed_types(spec, options)
        if tensor.dtype not in allowed:
            raise IntegrityError(f"{place} holds {tensor.dtype}; these options allow {', '.join(allowed)}", AGAIN)
        if (
            np.dtype(spec.dtype).kind == "f"
            and np.dtype(tensor.dtype).kind in "iu"
            and tensor.spec.quantization is None
        ):
            raise IntegrityError(
                f"{place} holds {tensor.dtype} and does not say what real numbers it stands for", AGAIN
            )
        specs.append(replace(tensor.spec, name=spec.name, layout=spec.layout, channels=spec.channels))
    return tuple(specs)


def pair(what: str, tensors: Sequence[CixTensor], asked: Sequence[TensorSpec]) -> tuple[CixTensor, ...]:
    """Returns the compiled tensors in the order of the float model's: by name, or by place where names are new.

    The parser orders inputs by name and leaves outputs as they are; it may put `_0` behind a name.
    """
    by_name = {tensor.name: tensor for tensor in tensors} | {t.name.removesuffix("_0"): t for t in tensors}
    if all(spec.name in by_name for spec in asked):
        paired = tuple(by_name[spec.name] for spec in asked)
        if len({id(tensor) for tensor in paired}) == len(tensors):
            return paired
    order = sorted(range(len(asked)), key=lambda i: asked[i].name) if what == "input" else list(range(len(asked)))
    places = dict(zip(order, tensors, strict=True))
    return tuple(places[i] for i in range(len(asked)))


def allowed_types(spec: TensorSpec, options: ZhouyiOptions) -> tuple[str, ...]:
    """Returns the types that a tensor of the float model may have in the compiled one."""
    if np.dtype(spec.dtype).kind in "iu":
        return ("int32", "uint32", "int16", "uint16", "int8", "uint8")
    wide = options.activation_bits == 16 or bool(options.wide_nodes)
    types = [] if options.activation_bits == 16 and not options.float_nodes else ["int8", "uint8"]
    types += ["int16", "uint16"] if wide else []
    return (*types, "float16", "float32") if options.float_nodes else tuple(types)
