"""A libnoe.so for tests: the vendor's library as C that is compiled on demand, and .cix files for it to run.

    library = build_fake(folder)
    with switches(library, EXCEPTION=3):          # the third inference fails as a device does
        session = NoeSession(clip_text(folder / "text"))

It has the real library's functions and structures, and ends the process with a sentence where the real one crashes.
Each switch is an environment variable, ANYNPU_FAKE_NOE_<NAME>:

    INIT_STATUS=0x3  LOAD_STATUS=0x8   noe_init_context, noe_load_graph_helper give this status
    EXCEPTION  HANG  STUCK  CRASH      the inference of this number (-1: all) gives 0x11; 0x23 when its time is over;
                                       never returns; dies of SIGSEGV
    CRASH_LOAD=1                       loading dies of SIGSEGV
    ZERO=1                             every call succeeds and no output is ever written
    SPOILED=FILE  HUNG=FILE            while the file exists, one bit of every output is wrong; every inference hangs
    SIZE_ADD  ZERO_ADD  DTYPE          the first output is described differently than in the file
    ONE_THREAD=1  TRAP_CLEANED=1       a call from another thread, or with a cleaned job, ends the process
    MOST_JOBS  DELAY_US  NOISY=1       this many jobs at a time; the time of an inference; every call prints
    TARGET  UMD_VERSION  KMD_VERSION   what the device says of itself
    SHAPES=1x3x8x8:1x3x16x16           smallest and largest shape of inputs that may change, with ; between them
    JOURNAL=FILE                       a line for every call: process, thread, name
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from anynpu import tool
from anynpu.artifact import Artifact, Step, seal
from anynpu.runtime.noe.artifact import manifest_of
from anynpu.runtime.noe.cix import read_cix
from anynpu.runtime.noe.library import VARIABLE
from anynpu.tensors import Array, Quantization, TensorSpec
from anynpu.testing.cix import write_cix
from anynpu.testing.models import NOW

SOURCES = Path(__file__).with_name("libnoe")
PREFIX = "ANYNPU_FAKE_NOE_"
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", "-shared", "-fPIC")
MARK = b"anynpu-fake-noe:"
MODEL = "model.cix"

# The scales of the published CLIP and YOLO models, in our convention.
TEXT = TensorSpec("tokens", (1, 77), "int32")
IMAGE = TensorSpec("image", (1, 3, 224, 224), "int8", "NCHW", "RGB", Quantization((1 / 64.75,), (-12,)))
EMBEDDING = TensorSpec("embedding", (1, 512), "int8", quantization=Quantization((1 / 27.67,), (0,)))
PICTURE = TensorSpec("images", (1, 3, 640, 640), "uint8", "NCHW", "RGB", Quantization((1 / 255,), (0,)))
BOXES = TensorSpec("output0", (1, 84, 8400), "float16")


def build_fake(folder: Path, compiler: str = "cc") -> Path:
    """Returns the fake libnoe.so, compiled into a folder."""
    library = folder / "libnoe.so"
    sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
    argv = [compiler, *FLAGS, *sources, "-o", str(library), "-ldl", "-lpthread"]
    tool.run(argv, cwd=folder, log=folder / "libnoe.log", hint="install the package gcc")
    return library


def build_plugin(artifact: Artifact, folder: Path, compiler: str = "cc") -> Path:
    """Returns generated C as a plug-in that the fake runs."""
    sources = [str(artifact.file(f.path).resolve()) for f in artifact.manifest.files if f.path.endswith(".c")]
    library = folder / "plugin.so"
    argv = [compiler, "-std=c99", "-O2", "-shared", "-fPIC", *sources, "-o", str(library)]
    tool.run(argv, cwd=folder, log=folder / "plugin.log", hint="install the package gcc")
    return library


def environment(library: Path, **values: object) -> dict[str, str]:
    """Returns the environment in which sessions use the fake with these switches."""
    return {VARIABLE: str(library), **{PREFIX + name: str(value) for name, value in values.items()}}


@contextmanager
def switches(library: Path, **values: object) -> Iterator[None]:
    """Uses the fake with these switches, and only these, within the block."""
    wanted = environment(library, **values)
    before = {k: v for k, v in os.environ.items() if k.startswith(PREFIX) or k in wanted}
    _replace(before, wanted)
    try:
        yield
    finally:
        _replace({k: v for k, v in os.environ.items() if k.startswith(PREFIX) or k in wanted}, before)


def _replace(old: Mapping[str, str], new: Mapping[str, str]) -> None:
    for name in old:
        os.environ.pop(name, None)
    os.environ.update(new)


def model(
    folder: Path,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    executor: str = "mix",
    task: Mapping[str, object] | None = None,
    files: Mapping[str, bytes] | None = None,
) -> Artifact:
    """Returns an artifact with a .cix file that the fake computes by `executor`: a name, or the path of a plug-in.

    `files` are put next to it, such as the vocabulary that the card `task` names.
    """
    folder.mkdir(parents=True)
    write_cix(folder / MODEL, inputs, outputs, MARK + executor.encode() + b"\0")
    for name, content in (files or {}).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    manifest = manifest_of(read_cix(folder / MODEL), MODEL)
    stated = replace(manifest, inputs=tuple(inputs), outputs=tuple(outputs), task=dict(task or {}))
    return seal(folder, stated, Step("zhouyi"), NOW)


def clip_text(folder: Path, **options: Any) -> Artifact:
    """Returns a model of the form of CLIP's text tower."""
    return model(folder, [TEXT], [EMBEDDING], "clip-text", **options)


def clip_image(folder: Path, **options: Any) -> Artifact:
    """Returns a model of the form of CLIP's image tower."""
    return model(folder, [IMAGE], [EMBEDDING], "clip-image", **options)


def yolo(folder: Path, **options: Any) -> Artifact:
    """Returns a model of the form of YOLOv8n."""
    return model(folder, [PICTURE], [BOXES], "yolo", **options)


def expect_mix(inputs: Sequence[Array], outputs: Sequence[TensorSpec]) -> list[Array]:
    """Returns what the executor `mix` gives."""
    results = []
    for number, spec in enumerate(outputs):
        numbers = np.frombuffer(inputs[number % len(inputs)].tobytes(), np.uint8).astype(np.uint32)
        place = np.arange(spec.nbytes, dtype=np.uint32)
        values = (numbers[place % len(numbers)] * 31 + place * 7 + number + 3).astype(np.uint8)
        results.append(values.view(spec.dtype).reshape(spec.shape))
    return results


def expect_text(tokens: Array) -> Array:
    """Returns what the executor `clip-text` gives."""
    i, j = np.arange(tokens.size, dtype=np.uint32), np.arange(512, dtype=np.uint32)
    weights = i[:, None] * np.uint32(31) + j * np.uint32(17) + np.uint32(1)
    sums = ((tokens.ravel().astype(np.uint32) + np.uint32(1))[:, None] * weights).sum(0, dtype=np.uint32)
    values: Array = ((sums >> np.uint32(3)) % 251).astype(np.int32) - 125
    return values.astype(np.int8)[None]


def expect_image(pixels: Array) -> Array:
    """Returns what the executor `clip-image` gives."""
    sums: Array = pixels.ravel().astype(np.int32).reshape(-1, 512).sum(0) >> 5
    return np.asarray(np.clip(sums, -128, 127)).astype(np.int8)[None]


def expect_boxes(pixels: Array) -> Array:
    """Returns what the executor `yolo` gives."""
    red, green = pixels.reshape(3, 640, 640)[:2]
    columns = []
    for stride in (8, 16, 32):
        centres = np.arange(640 // stride) * stride + stride // 2
        y, x = (each.ravel() for each in np.meshgrid(centres, centres, indexing="ij"))
        values = np.zeros((84, x.size), np.float16)
        values[0], values[1], values[2:4] = x, y, 4 * stride
        values[4 + red[y, x] % 80, np.arange(x.size)] = green[y, x] / 256
        columns.append(values)
    return np.concatenate(columns, axis=1)[None]


def guarded(nbytes: int) -> tuple[mmap.mmap, Array]:
    """Returns memory that ends where the process may neither read nor write, and its bytes as an array.

    Whoever touches one byte more than `nbytes` dies of SIGSEGV. The first result must be kept as long as the second.
    """
    page = mmap.PAGESIZE
    body = -(-nbytes // page) * page
    memory = mmap.mmap(-1, body + page)
    base = np.frombuffer(memory, np.uint8)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if protect(base.ctypes.data + body, page, 0) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")
    return memory, base[body - nbytes : body]
