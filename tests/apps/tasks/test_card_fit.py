"""A card goes with its model from the build to the run: what does not fit is refused, the rest done one way."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from anynpu import schema
from anynpu.artifact import Artifact
from anynpu.cli.embed import classify
from anynpu.cli.main import main
from anynpu.errors import ConfigError, IntegrityError
from anynpu.tasks import card as cards
from anynpu.tasks.images import Preprocess, check_input, images_in, in_order, load_images, read_image
from anynpu.tensors import TensorSpec

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("PIL")

pytestmark = pytest.mark.build
FLOAT = ("-t", "cpu", "-O", "activations=float32", "-q")
LABELLED = 'labels = ["red", "green", "blue"]\n'


def save_classifier(path: Path) -> None:
    """The mean of each colour as three logits: pictures [1, 3, 224, 224] whose answer is known."""
    from onnx import TensorProto, helper, numpy_helper

    eye = np.eye(3, dtype=np.float32).reshape(3, 3, 1, 1)
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["c"]),
        helper.make_node("GlobalAveragePool", ["c"], ["p"]),
        helper.make_node("Flatten", ["p"], ["logits"]),
    ]
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 224, 224])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 3])
    graph = helper.make_graph(nodes, "g", [image], [logits], [numpy_helper.from_array(eye, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, str(path))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from PIL import Image

    made = tmp_path_factory.mktemp("cards")
    save_classifier(made / "net.onnx")
    (made / "photos").mkdir()
    rng = np.random.default_rng(3)
    for number in range(6):
        pixels = rng.integers(0, 120, (300, 260 + number, 3)).astype(np.uint8)
        pixels[:, :, number % 3] += 120
        Image.fromarray(pixels).save(made / "photos" / f"{number}.png")
    ours = (Path(cards.__file__).parents[1] / "data" / "models" / "imagenet.toml").read_text("utf-8")
    (made / "labelled.toml").write_text(LABELLED + ours)
    (made / "two.toml").write_text('labels = ["a", "b"]\n' + ours)
    return made


@pytest.fixture
def build(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)

    def run(out, *given):
        capsys.readouterr()
        status = main(["build", "-m", "net.onnx", *FLOAT, "--data", "photos", "-o", out, *given])
        return status, capsys.readouterr().err

    return run


def answers(capsys, *given):
    capsys.readouterr()
    status = classify.main([*given, "-f", "json"], standalone_mode=False)
    told = capsys.readouterr()
    return status, json.loads(told.out), told.err


def test_an_imagenet_classifier_numbers_its_classes_or_names_them(build, capsys):
    assert build("plain", "--task", "imagenet")[0] == 0
    _, record, _ = answers(capsys, "plain/cpu", "photos/1.png")
    assert record["items"][0]["classes"][0]["label"] == "1"
    assert build("named", "--task", "labelled.toml")[0] == 0
    _, record, _ = answers(capsys, "named/cpu", "photos/2.png", "--top", "1")
    assert [each["label"] for each in record["items"][0]["classes"]] == ["blue"]


def test_imagenet_pictures_are_those_of_the_usual_transform(folder):
    from PIL import Image

    steps = cards.choose("imagenet").card.preprocess
    spec = TensorSpec("image", (1, 3, 224, 224), "float32", layout="NCHW")
    (ours,) = load_images([folder / "photos" / "3.png"], spec, steps)
    image = Image.open(folder / "photos" / "3.png")
    image = image.resize((256, int(256 * image.height / image.width)), Image.Resampling.BILINEAR)
    top = round((image.height - 224) / 2)
    pixels = np.asarray(image.crop((16, top, 240, top + 224)), np.float32) / 255
    wanted = (pixels - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    assert np.abs(ours - wanted.transpose(2, 0, 1)).max() < 1e-5


@pytest.mark.parametrize("verb", ["build", "check"])
@pytest.mark.parametrize(
    ("task", "said"), [("clip-image", "512 numbers a vector"), ("two.toml", "names 2 labels, the model has 3 classes")]
)
def test_a_card_of_another_model_is_refused_before_anything_is_compiled(folder, monkeypatch, capsys, verb, task, said):
    monkeypatch.chdir(folder)
    output = ("-o", "never") if verb == "build" else ()
    assert main([verb, "-m", "net.onnx", *FLOAT, "--data", "photos", "--task", task, *output]) == 2
    told = capsys.readouterr().err
    assert "does not fit the model" in told and said in told
    assert not (folder / "never").exists()


def test_preprocessing_beside_a_card_is_refused(build):
    status, told = build("never", "--task", "imagenet", "-P", "size=224x224", "-P", "resize=stretch")
    assert status == 2 and "the task card says how images become inputs" in told


def test_calibration_turns_channels_as_running_does(build, folder, capsys):
    """The network's first input channel is blue now; the card's statistics go with their colours."""
    assert build("bgr", "--task", "imagenet", "--channels", "image=BGR")[0] == 0
    _, record, _ = answers(capsys, "bgr/cpu", "photos/2.png")
    assert record["items"][0]["classes"][0]["label"] == "0"
    calibrated = json.loads((folder / "bgr" / "cpu" / "manifest.json").read_text())
    assert calibrated["inputs"][0]["channels"] == "BGR"
    steps = in_order(cards.choose("imagenet").card.preprocess, "BGR")
    assert steps.mean == (0.406, 0.456, 0.485)


def test_what_was_done_to_a_picture_is_said(build, folder, tmp_path, capsys):
    from PIL import Image

    assert build("plain", "--task", "imagenet")[0] == 0
    Image.open(folder / "photos" / "0.png").convert("CMYK").save(tmp_path / "ink.jpg")
    status, _, told = answers(capsys, "plain/cpu", str(tmp_path / "ink.jpg"))
    assert status == 0 and "ink.jpg: CMYK is converted without a colour profile" in told
    assert answers(capsys, "plain/cpu", str(tmp_path / "ink.jpg"), "-q")[2] == ""


def test_a_folder_is_searched_with_its_folders(folder, tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    shutil.copy(folder / "photos" / "0.png", tmp_path / "a.png")
    shutil.copy(folder / "photos" / "0.png", tmp_path / "deep" / "er" / "b.png")
    assert [path.name for path in images_in(tmp_path)] == ["a.png", "b.png"]


def test_a_manifest_that_was_edited_is_not_used(build, folder, tmp_path):
    assert build("plain", "--task", "imagenet")[0] == 0
    copy = shutil.copytree(folder / "plain" / "cpu", tmp_path / "copy")
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["task"]["preprocess"]["mean"] = [0.5]
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(IntegrityError, match="has changed since it was made"):
        classify.main([str(copy), str(folder / "photos")], standalone_mode=False)


def test_a_card_that_names_a_tokenizer_without_its_file_is_refused(build, folder):
    assert build("plain", "--task", "imagenet")[0] == 0
    opened = Artifact.open(folder / "plain" / "cpu")
    text = {"kind": "embed-text", "text": {"form": "clip", "tokenizer": "gone.gz"}, "space": {"name": "x"}}
    manifest = schema.from_dict(type(opened.manifest), schema.to_dict(opened.manifest) | {"task": text}, "m")
    with pytest.raises(IntegrityError, match=r"names no file gone\.gz"):
        cards.of(Artifact(opened.path, manifest))


def test_a_shorter_side_that_does_not_fill_the_input_is_refused():
    spec = TensorSpec("image", (1, 3, 299, 299), "float32", layout="NCHW")
    with pytest.raises(ConfigError, match="a shorter side of 256 does not fill it"):
        check_input(spec, Preprocess(resize="shortest-crop", shortest=256))


def test_a_bomb_is_refused_in_a_sentence(tmp_path):
    import struct
    import zlib

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0))
    (tmp_path / "x.png").write_bytes(b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"")))
    with pytest.raises(ConfigError, match=r"x\.png: its pixels are more than the 89,000,000 that are read"):
        read_image(tmp_path / "x.png")
