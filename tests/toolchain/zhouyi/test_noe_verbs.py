"""The verbs over models on the (fake) NPU: run, bench, embed, similar, detect; and an int8 model bit for bit."""

from __future__ import annotations

import json
import shutil

import clip_vocabulary_maker as maker
import numpy as np
import pytest

from anynpu.artifact import Artifact
from anynpu.runtime.noe.session import NoeSession
from anynpu.tasks import card as cards
from anynpu.tasks.clip_tokens import ClipTokens
from anynpu.tasks.images import fit, to_input
from anynpu.testing import noe

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler (package gcc)")
SPACE = '[space]\nname = "clip"\nwidth = 512\n'
TEXT = f'kind = "embed-text"\n[text]\nform = "clip"\ntokenizer = "v.txt.gz"\nvocabulary = {maker.SIZE}\n{SPACE}'
IMAGE = (
    'kind = "embed-image"\n[preprocess]\nresize = "shortest-crop"\ninterpolation = "bicubic"\n'
    "mean = [0.48145466, 0.4578275, 0.40821073]\nstd = [0.26862954, 0.26130258, 0.27577711]\n" + SPACE
)
BOXES = 'kind = "detect"\n[preprocess]\nresize = "letterbox"\n[yolo]\nversion = "v8"\ndecode = "model"\n'


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The fake library, and artifacts `text`, `image` and `yolo` with their cards."""
    folder = tmp_path_factory.mktemp("noe")
    noe.build_fake(folder)
    maker.write_merges(folder / "v.txt.gz")
    for name, content, make in (
        ("text", TEXT, noe.clip_text),
        ("image", IMAGE, noe.clip_image),
        ("yolo", BOXES, noe.yolo),
    ):
        (folder / f"{name}.toml").write_text(content)
        chosen = cards.choose(str(folder / f"{name}.toml"))
        files = {f"{cards.FOLDER}/{name}": path.read_bytes() for name, path in chosen.files.items()}
        make(folder / name, task=chosen.task(), files=files)
    return folder


@pytest.fixture
def call(cli, models):
    """Calls a verb in a process of its own; what it prints must be one JSON record, however much the library prints."""
    environment = noe.environment(models / "libnoe.so", NOISY=1)

    def run(*arguments):
        done = cli(*map(str, arguments), "-f", "json", **environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def unit(stored):
    vector = stored.astype(np.float64)
    return vector / np.linalg.norm(vector)


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(3).integers(0, 256, (300, 400, 3)).astype(np.uint8)
    path = tmp_path_factory.mktemp("photos") / "noise.png"
    image.fromarray(pixels).save(path)
    return path, pixels


def text_vector(models, text):
    return unit(noe.expect_text(ClipTokens.read(models / "v.txt.gz", maker.SIZE)([text]).astype(np.int32))[0])


def image_vector(models, pixels):
    preprocess = cards.choose(str(models / "image.toml")).card.preprocess
    fitted, _ = fit(pixels, (224, 224), preprocess, "NCHW")
    return unit(noe.expect_image(to_input(fitted, preprocess, noe.IMAGE))[0])


@pytest.mark.parametrize("subject", ["image", "image/model.cix"])
def test_run_an_artifact_and_a_bare_file(subject, call, models, tmp_path):
    pixels = np.random.default_rng(1).integers(-128, 128, (1, 3, 224, 224)).astype(np.int8)
    np.save(tmp_path / "x.npy", pixels)
    record = call("run", models / subject, "-i", tmp_path / "x.npy", "-o", tmp_path / "y.npz")
    wanted = noe.expect_image(pixels) / np.float32(27.67)
    assert record["executed"] == "Zhouyi NPU through libnoe"
    assert np.allclose(record["outputs"]["embedding"]["values"], wanted.ravel(), atol=1e-6)
    with np.load(tmp_path / "y.npz") as archive:
        assert np.allclose(archive["embedding"], wanted)


def test_bench_tells_copies_and_device_apart(call, models, tmp_path):
    np.save(tmp_path / "x.npy", np.arange(77, dtype=np.int32)[None])
    record = call("bench", models / "text", "-i", tmp_path / "x.npy", "-n", "50", "--warmup", "5")
    assert {"copy in", "hand over", "device", "copy out"} <= set(
        json.dumps(record["stages"]).replace('"', ",").split(",")
    )
    assert "libnoe" in json.dumps(record)


def test_embed_texts(call, models):
    record = call("embed", models / "text", "--text", "the cat", "--text", "mat")
    vectors = [np.array(item["vector"]) for item in record["items"]]
    assert np.allclose(vectors, [text_vector(models, text) for text in ("the cat", "mat")], atol=1e-6)


def test_embed_images(call, models, photo):
    path, pixels = photo
    (item,) = call("embed", models / "image", path)["items"]
    assert np.allclose(item["vector"], image_vector(models, pixels), atol=1e-6)


def test_similar_between_both_towers(call, models, photo):
    path, pixels = photo
    record = call("similar", models / "text", "--with", models / "image", "--text", "a cat", "--text", "dog", path)
    wanted = [[text_vector(models, text) @ image_vector(models, pixels)] for text in ("a cat", "dog")]
    assert np.allclose(record["cosines"], wanted, atol=1e-5)


def test_detect(call, models, tmp_path):
    image = pytest.importorskip("PIL.Image")
    pixels = np.zeros((640, 640, 3), np.uint8)
    pixels[202:206, 98:102] = (16, 200, 0)
    image.fromarray(pixels).save(tmp_path / "dot.png")
    (found,) = call("detect", models / "yolo", tmp_path / "dot.png")["images"]
    (box,) = found["detections"]
    assert (box["class"], box["box"]) == (16, [84, 188, 116, 220]) and box["score"] == pytest.approx(200 / 256)


def test_a_failing_device_has_its_exit_status_and_sentence(cli, models, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((1, 77), np.int32))
    for switch, status, sentence in (
        ({"INIT_STATUS": 3}, 6, "OPEN_DEV_FAIL"),
        ({"EXCEPTION": 1}, 6, "JOB_EXCEPTION"),
        ({"CRASH": 1}, 6, "libnoe crashed in an inference (SIGSEGV)"),
        ({"SIZE_ADD": 1}, 8, "libnoe says"),
    ):
        environment = noe.environment(models / "libnoe.so", NOISY=1, **switch)
        done = cli("run", str(models / "text"), "-i", str(tmp_path / "x.npy"), **environment)
        assert (done.returncode, done.stdout) == (status, "") and sentence in done.stderr


@pytest.fixture(scope="module")
def kws(tmp_path_factory):
    """zoo:kws as int8 TFLite and as generated C, both built by anynpu."""
    for package in ("torch", "ai_edge_litert", "tflite_micro"):
        pytest.importorskip(package)
    from anynpu.cli.main import main

    out = tmp_path_factory.mktemp("kws") / "out"
    assert main(["build", "-m", "zoo:kws", "-t", "tflm,host", "-q", "-o", str(out)]) == 0
    return Artifact.open(out / "tflm"), Artifact.open(out / "host")


@pytest.mark.build
@pytest.mark.parametrize("isolate", [True, False], ids=["isolated", "in-process"])
def test_an_int8_model_gives_every_bit_that_our_cpu_sessions_give(isolate, kws, models, tmp_path):
    from anynpu.runtime.host_c import HostCSession
    from anynpu.runtime.tflm import TflmSession

    micro, c = kws
    plugin = noe.build_plugin(c, tmp_path)
    made = noe.model(tmp_path / "kws", c.manifest.inputs, c.manifest.outputs, str(plugin))
    with noe.switches(models / "libnoe.so"):
        npu, sessions = NoeSession(made, isolate=isolate), (TflmSession(micro), HostCSession(c))
        (given,), (name,) = npu.inputs, [spec.name for spec in npu.outputs]
        draw, seen = np.random.default_rng(0), set()
        for _ in range(100):
            x = draw.integers(-128, 128, given.shape).astype(np.int8)
            got = npu.run({given.name: x})[name]
            seen.add(got.tobytes())
            for session in sessions:
                (wanted,) = session.run({session.inputs[0].name: x}).values()
                assert got.dtype == wanted.dtype and np.array_equal(got, wanted)
        npu.close()
    assert len(seen) > 50  # the outputs differ: the comparison says something
