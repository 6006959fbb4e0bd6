"""Valid files of every kind that anynpu reads, each in a folder of its own with the commands that read it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from small_net import write_net

from anynpu import schema
from anynpu.artifact import Artifact, Made, Manifest, Step, seal
from anynpu.tasks.card import Card, Chosen
from anynpu.tasks.text import TextInput
from anynpu.tensors import Quantization, TensorSpec
from anynpu.testing.cix import write_cix

NOW = Made("2026-01-01T00:00:00+00:00", 0.0)
Main = Callable[[list[str]], int]
Commands = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Seed:
    """A folder, the file in it that is to be damaged, and the commands that then read it from there.

    `resealed` says that the manifest is made to fit the damaged file: what is behind the check of hashes is tried too.
    """

    kind: str
    folder: Path
    file: str
    form: str
    commands: Commands
    resealed: str = ""


NET = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(4, 3)
    def forward(self, x):
        return self.line(x)
"""


def _call(main: Main, *arguments: str) -> None:
    """Runs a command in a fork: threads that a runtime starts must not be there when cases are forked."""
    child = os.fork()
    if child == 0:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os._exit(main(list(arguments)))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 1), (arguments, status)


def _sealed(folder: Path, format: str, main: str, *specs: tuple[TensorSpec, ...], task: Chosen | None = None) -> Path:
    if task is not None:
        task.copy_to(folder)
    manifest = Manifest(format, main, *specs, fingerprint="f" * 64, task=task.task() if task else {})
    seal(folder, manifest, Step("test"), NOW)
    return folder


def _made(root: Path, name: str) -> Path:
    folder = root / name
    folder.mkdir()
    return folder


def _picture(path: Path, size: tuple[int, int] = (24, 20)) -> Path:
    from PIL import Image

    pixels = np.random.default_rng(len(path.name)).integers(0, 256, (*size[::-1], 3), np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def built(root: Path, main: Main) -> Path:
    """Builds a small net for the cpu; what comes out is the stuff of most seeds."""
    folder = _made(root, "built")
    write_net(folder / "net.onnx")
    rng = np.random.default_rng(0)
    np.save(folder / "x.npy", rng.random((12, 3, 8, 8), np.float32))
    np.savez(folder / "one.npz", x=rng.random((1, 3, 8, 8), np.float32))
    np.savez(folder / "labelled.npz", x=rng.random((12, 3, 8, 8), np.float32), labels=np.arange(12) % 5)
    here = str(folder)
    net, out = f"{here}/net.onnx", f"{here}/out"
    _call(main, "build", "-m", net, "-t", "cpu", "--data", f"{here}/labelled.npz", "--min-sqnr", "0", "-o", out, "-q")
    bench = ("--runs", "30", "--warmup", "1", "-q", "-o")
    _call(main, "bench", f"{out}/cpu", *bench, f"{here}/bench.json")
    _call(main, "bench", f"{out}/float", *bench, f"{here}/bench2.json")
    _call(main, "eval", f"{out}/cpu", "--data", f"{here}/labelled.npz", "--metric", "top1", "--allow-overlap", "-q",
          "-o", f"{here}/eval.json")  # fmt: skip
    for record in ("out/report.json", "bench.json", "eval.json"):
        _call(main, "regress", "--add", f"{here}/{record}", "--ledger", f"{here}/ledger.jsonl", "-q")
    return folder


def _of_artifacts(root: Path, base: Path) -> Iterator[Seed]:
    show, run = ("show", "a"), ("run", "a", "-i", "one.npz")
    bench = ("bench", "a", "-n", "2", "--warmup", "1")
    for name in ("float", "cpu"):
        folder = _made(root, f"artifact-{name}")
        shutil.copytree(base / "out" / name, folder / "a")
        shutil.copytree(base / "out" / name, folder / "b")
        shutil.copy(base / "one.npz", folder)
        shutil.copy(base / "labelled.npz", folder)
        score = ("eval", "a", "--data", "labelled.npz", "--metric", "top1", "--allow-overlap")
        compare = ("compare", "a", "b", "--data", "labelled.npz")
        main = Artifact.open(folder / "a").manifest.main
        yield Seed("manifest", folder, "a/manifest.json", "json", (show, run, bench, score, compare))
        yield Seed("ONNX", folder, f"a/{main}", "binary", (show, run, score))
        yield Seed("ONNX", folder, f"a/{main}", "binary", (run, show, bench), resealed="a")
    folder = _made(root, "out")
    shutil.copytree(base / "out", folder / "out")
    chip = (("bench", "out/cpu", "-n", "2", "--warmup", "1"), ("show", "out/cpu", "--layers"))
    report = ("report", "out", "--as", "html", "-o", "-")
    for file in sorted(p for p in (folder / "out" / "evidence" / "cpu").rglob("*") if p.suffix in (".json", ".npz")):
        form = "json" if file.suffix == ".json" else "binary"
        yield Seed("record" if form == "json" else ".npy", folder, str(file.relative_to(folder)), form, (*chip, report))


def _of_records(root: Path, base: Path) -> Iterator[Seed]:
    folder = _made(root, "records")
    for name in ("out/report.json", "bench.json", "bench2.json", "eval.json", "ledger.jsonl"):
        shutil.copy(base / name, folder)
    shapes = tuple(("report", "{file}", "--as", kind, "-o", "-") for kind in ("html", "markdown", "junit"))
    add = ("regress", "--add", "{file}", "--ledger", "new.jsonl")
    for name in ("report.json", "eval.json"):
        yield Seed("record", folder, name, "json", (*shapes, add))
    yield Seed("record", folder, "bench.json", "json", (*shapes, add, ("compare", "{file}", "bench2.json")))
    ledger = (("regress", "--ledger", "{file}"), ("regress", "--ledger", "{file}", "--add", "eval.json"))
    yield Seed(
        "ledger",
        folder,
        "ledger.jsonl",
        "text",
        (*ledger, ("compare", "bench.json", "bench2.json", "--ledger", "{file}")),
    )


def _of_models(root: Path, base: Path) -> Iterator[Seed]:
    folder = _made(root, "model")
    shutil.copy(base / "net.onnx", folder)
    shutil.copy(base / "x.npy", folder)
    net, data = ("-m", "net.onnx"), ("--data", "x.npy", "-o", "o", "-q")
    null = ("build", *net, "-t", "null", "-o", "o", "-q")
    cpu = ("build", *net, "-t", "cpu", *data, "--min-sqnr", "-300")
    chips = ("check", *net, "-t", "cpu,null")
    yield Seed("ONNX", folder, "net.onnx", "binary", (("show", "net.onnx"), null, chips, null, cpu))
    yield Seed(".npy", folder, "x.npy", "binary", (cpu,))
    folder = _made(root, "checkpoint")
    (folder / "net.py").write_text(NET)
    import torch
    from safetensors.torch import save_file

    state = {"line.weight": torch.ones(3, 4), "line.bias": torch.zeros(3)}
    torch.save(state, folder / "c.pth")
    save_file(state, folder / "c.safetensors")
    for name in ("c.pth", "c.safetensors"):
        show = ("show", "-m", "net.py:Net", "--ckpt", name, "--shape", "x=1,4")
        yield Seed("checkpoint", folder, name, "binary", (show,))


def _of_arrays(root: Path, base: Path) -> Iterator[Seed]:
    folder = _made(root, "arrays")
    shutil.copytree(base / "out" / "float", folder / "a")
    rng = np.random.default_rng(1)
    np.save(folder / "one.npy", rng.random((1, 3, 8, 8), np.float32))
    np.savez(folder / "one.npz", x=rng.random((1, 3, 8, 8), np.float32))
    np.savez_compressed(folder / "deflated.npz", x=rng.random((1, 3, 8, 8), np.float32))
    shutil.copy(base / "labelled.npz", folder)
    for name in ("one.npy", "one.npz", "deflated.npz"):
        run = (("run", "a", "-i", name, "-o", "y.npz"), ("bench", "a", "-n", "2", "--warmup", "1", "-i", name))
        yield Seed(".npy", folder, name, "binary", run)
    score = ("eval", "a", "--data", "labelled.npz", "--metric", "top1")
    yield Seed(".npy", folder, "labelled.npz", "binary", (score, ("compare", "a", "a", "--data", "labelled.npz")))


def _of_tflite(root: Path) -> Iterator[Seed]:
    from tflite_builder import Builder

    folder = _made(root, "tflite")
    _made(folder, "a")
    net = Builder()
    x = net.input((1, 8), "int8", name="x")
    weights = net.tensor("w", (4, 8), "int8", np.arange(32) % 7 - 3)
    y = net.tensor("y", (1, 4), "int8")
    net.operator("FULLY_CONNECTED", [x, weights], [y], options="FullyConnectedOptions", weightsFormat=0)
    net.write(folder / "a" / "model.tflite")
    quantization = Quantization((0.05,), (0,))
    specs = tuple((TensorSpec(n, s, "int8", quantization=quantization),) for n, s in (("x", (1, 8)), ("y", (1, 4))))
    _sealed(folder / "a", "tflite", "model.tflite", *specs)
    np.save(folder / "x.npy", np.ones((1, 8), np.float32))
    runs = tuple(("run", "a", "-i", "x.npy", "--on", device) for device in ("litert", "tflm"))
    commands = (*runs, ("show", "a"), ("bench", "a", "-n", "2", "--warmup", "1"))
    yield Seed("TFLite", folder, "a/model.tflite", "binary", commands)
    yield Seed("TFLite", folder, "a/model.tflite", "binary", (*runs, *runs, ("show", "a")), resealed="a")


def _of_cix(root: Path) -> Iterator[Seed]:
    folder = _made(root, "cix")
    image = TensorSpec("image", (1, 3, 8, 8), "uint8", layout="NCHW", channels="RGB")
    write_cix(folder / "m.cix", [image], [TensorSpec("scores", (1, 4), "float16")], b"extra" * 20)
    np.save(folder / "x.npy", np.zeros((1, 3, 8, 8), np.uint8))
    _picture(folder / "p.png")
    commands = (
        ("show", "m.cix"),
        ("run", "m.cix", "-i", "x.npy"),
        ("classify", "m.cix", "p.png", "--task", "imagenet"),
    )
    yield Seed(".cix", folder, "m.cix", "binary", (*commands, ("show", "m.cix", "-f", "json")))


def _of_pictures(root: Path) -> Iterator[Seed]:
    from blocks import artifact, scene
    from colours import CLASSES, LAYOUT, colours_net

    folder = _made(root, "pictures")
    artifact(folder / "detector")
    colours_net(_made(folder, "classifier") / "model.onnx")
    specs = (TensorSpec("image", (1, 3, 8, 8), **LAYOUT),), (TensorSpec("means", (1, 3)),)
    _sealed(folder / "classifier", "onnx", "model.onnx", *specs, task=Chosen(CLASSES, {}))
    names = [f"p.{kind}" for kind in ("png", "jpg", "bmp", "gif", "webp", "tif", "ppm")]
    for name in names:
        _picture(_made(folder, name.replace(".", "-")) / name)
        (folder / name).write_bytes((folder / name.replace(".", "-") / name).read_bytes())
    for name in names:
        labelled = _made(folder, "labelled-" + name[2:])
        for colour in ("red", "green", "blue"):
            _picture(_made(labelled, colour) / name)
        file = f"labelled-{name[2:]}/red/{name}"
        yield Seed("image", folder, file, "binary", (
            ("detect", "detector", file), ("classify", "classifier", file),
            ("eval", "classifier", "--data", f"labelled-{name[2:]}"),
            ("bench", "classifier", "-n", "2", "--warmup", "1", "--scope", "pipeline", "-i", file),
        ))  # fmt: skip
    photos = _made(folder, "photos")
    scene(photos / "two.png", ("red", 32, 32), ("blue", 96, 64))
    box = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [24, 24, 32, 32], "area": 1024, "iscrowd": 0}
    picture = {"id": 1, "file_name": "two.png", "width": 128, "height": 128}
    coco = {
        "images": [picture],
        "annotations": [box],
        "categories": [{"id": 1, "name": "red"}, {"id": 2, "name": "blue"}],
    }
    (folder / "coco.json").write_text(json.dumps(coco))
    voc = "<annotation><filename>two.png</filename><size><width>128</width><height>128</height></size><object><name>red"
    voc += (
        "</name><difficult>0</difficult><bndbox><xmin>25</xmin><ymin>25</ymin><xmax>56</xmax><ymax>56</ymax></bndbox>"
    )
    (_made(folder, "voc") / "two.xml").write_text(voc + "</object></annotation>")
    for file, form, given in (("coco.json", "json", "coco.json"), ("voc/two.xml", "text", "voc")):
        score = ("eval", "detector", "--data", "photos", "--annotations", given)
        yield Seed("annotations", folder, file, form, (score, (*score, "-f", "json")))
    yield Seed("manifest", folder, "detector/manifest.json", "json", (("detect", "detector", "p.png"),))
    yield Seed("manifest", folder, "classifier/manifest.json", "json", (("classify", "classifier", "p.png"),))


def _of_text(root: Path) -> Iterator[Seed]:
    import clip_vocabulary_maker as maker
    from onnx import helper, numpy_helper, save
    from tiny_bert import SPECIAL, WORDS, write_tokenizer

    from anynpu.tasks.space import Space

    folder = _made(root, "text")
    write_tokenizer(folder / "tokenizer.json")
    maker.write_merges(folder / "v.txt.gz")
    for name, size, form, file in (
        ("bert", len(SPECIAL) + len(WORDS), "bert", "tokenizer.json"),
        ("clip", maker.SIZE, "clip", "v.txt.gz"),
    ):
        made = _made(folder, name)
        table = np.random.default_rng(0).standard_normal((size, 4)).astype(np.float32)
        nodes = [helper.make_node("Gather", ["table", "ids"], ["rows"]),
                 helper.make_node("ReduceMean", ["rows"], ["vector"], axes=[1], keepdims=0)]  # fmt: skip
        names = ("input_ids",) if form == "bert" else ("text",)
        nodes[0].input[1] = names[0]
        graph = helper.make_graph(nodes, "t", [helper.make_tensor_value_info(names[0], 7, [1, 8])],
                                  [helper.make_tensor_value_info("vector", 1, [1, 4])],
                                  [numpy_helper.from_array(table, "table")])  # fmt: skip
        save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), made / "model.onnx")
        card = Card("embed-text", text=TextInput(form, file, size if form == "clip" else None), space=Space("s", 4))
        specs = (TensorSpec(names[0], (1, 8), "int64"),), (TensorSpec("vector", (1, 4)),)
        _sealed(made, "onnx", "model.onnx", *specs, task=Chosen(card, {file: folder / file}))
        asset = next(p for p in made.rglob("*") if p.name == file)
        embed = ("embed", name, "--text", "a photo of the cat", "-o", "v.npz")
        inner = str(asset.relative_to(folder))
        yield Seed("text", folder, inner, "json" if form == "bert" else "binary", (embed,), resealed=name)
        yield Seed("text", folder, inner, "binary", (embed,))
    (folder / "texts.txt").write_text("a cat sits\nthe dog runs\n")
    yield Seed("text", folder, "texts.txt", "text", (("embed", "bert", "--file", "texts.txt", "-o", "v.jsonl"),
                                                    ("similar", "bert", "--file", "texts.txt")))  # fmt: skip
    (folder / "pairs.csv").write_text(
        'sentence1,sentence2,score\n"a cat","the cat",4.5\ndog,bus,1\nred,blue,2.5\nmat,"cat, dog",0.2\n'
    )
    (folder / "pairs.tsv").write_text("a cat\tthe cat\t4.5\ndog\tbus\t1\nred\tblue\t2.5\n")
    for name in ("pairs.csv", "pairs.tsv"):
        yield Seed("CSV", folder, name, "text", (("eval", "bert", "--data", name),))


def _of_settings(root: Path, base: Path) -> Iterator[Seed]:
    folder = _made(root, "settings")
    shutil.copy(base / "net.onnx", folder)
    shutil.copytree(base / "out" / "float", folder / "a")
    (folder / "c.toml").write_text(
        'model = "net.onnx"\ntarget = ["null"]\ndata = "random:4"\nlimit = 4\nmin_sqnr = 1.0\nrequire_npu = "0%"\n'
        'shape = { x = [1, 3, 8, 8] }\nlayout = { x = "NCHW" }\n[preprocess]\nmean = [0.5]\n[option]\nmethod = "mse"\n'
    )
    build = ("build", "-c", "c.toml", "-o", "o", "-q")
    yield Seed("TOML", folder, "c.toml", "text", (build, (*build, "--plan"), ("show", "-c", "c.toml")))
    sweep = 'model = ["net.onnx"]\ntarget = ["null"]\ndata = "random:4"\n[option]\nmethod = ["mse", "minmax"]\n'
    (folder / "s.toml").write_text(sweep)
    yield Seed("TOML", folder, "s.toml", "text", (("sweep", "-c", "s.toml", "-o", "o", "--plan"),))
    data = Path(sys.modules["anynpu"].__path__[0]) / "data"
    shutil.copy(data / "toolchains" / "rknn.toml", folder / "rknn.toml")
    yield Seed(
        "TOML", folder, "rknn.toml", "text", (("tool", "show", "./rknn.toml"), ("tool", "verify", "./rknn.toml"))
    )
    for name in ("yolov8", "minilm", "imagenet"):
        shutil.copy(data / "models" / f"{name}.toml", folder)
        task = ("build", "-m", "net.onnx", "-t", "null", "--task", f"{name}.toml", "-o", "o", "-q")
        yield Seed("TOML", folder, f"{name}.toml", "text", (task,))
    for name in ("cpu", "ethos-u55-128", "cortex-m55", "zhouyi-z3"):
        shutil.copy(data / "platforms" / f"{name}.toml", folder)
        yield Seed("TOML", folder, f"{name}.toml", "text", (("!platform", "{file}"),))
    rows = "".join(f"{at / 10},{1 + at % 3}\n" for at in range(100))
    (folder / "power.csv").write_text("time,watts\n" + rows)
    (folder / "volts.csv").write_text("time_ms,volts,current_ma\n" + "".join(f"{at},5.0,{at}\n" for at in range(100)))
    bench = ("bench", "a", "-n", "2", "--warmup", "1", "--energy-csv", "{file}")
    window = ("--energy-window", "2,8", "--energy-idle", "0,1")
    yield Seed("CSV", folder, "power.csv", "text", ((*bench, *window),))
    yield Seed("CSV", folder, "volts.csv", "text", ((*bench, "--energy-window", "0.02,0.08"),))
    (folder / "labels.txt").write_text("cat\ndog\nbus\n")
    (folder / "body.json").write_text(json.dumps({"input": ["text"], "model": "m"}))
    yield Seed("record", folder, "body.json", "json", (("bench", "http://127.0.0.1:9/x", "--body", "body.json"),))


def seeds(root: Path, main: Main) -> list[Seed]:
    """Makes every seed under `root`."""
    base = built(root, main)
    of_build = (_of_artifacts, _of_records, _of_models, _of_arrays, _of_settings)
    of_their_own = (_of_tflite, _of_cix, _of_pictures, _of_text)
    made = [seed for make in of_build for seed in make(root, base)]
    return made + [seed for make in of_their_own for seed in make(root)]


def reseal(folder: Path) -> None:
    """Makes the manifest of an artifact fit the files that are in its folder now."""
    manifest = schema.from_dict(Manifest, json.loads((folder / "manifest.json").read_text()), "manifest")
    assert manifest.step is not None
    seal(folder, manifest, manifest.step, NOW)
