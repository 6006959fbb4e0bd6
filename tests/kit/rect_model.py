"""A small int8 model whose input is 10 high and 14 wide, as artifacts of every kind that a project can be made of."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from tflite_builder import Builder

from anynpu import plugins
from anynpu.artifact import Artifact, Made, Manifest, Step, seal
from anynpu.firmware.generator.generate import generate
from anynpu.firmware.generator.source import Names
from anynpu.runtime.tflm import TflmSession
from anynpu.schema import to_dict
from anynpu.targets.base import Work
from anynpu.targets.vela import Vela
from anynpu.targets.vela.command import VelaOptions
from anynpu.tensors import Quantization, TensorSpec

SHAPE = (1, 10, 14, 3)
FINGERPRINT = "5a" * 32
MADE = Made("", 0.0)
SCALE = float(np.float32(0.05))


def spec(name: str, shape: tuple[int, ...], layout: str = "NHWC") -> TensorSpec:
    return TensorSpec(name, shape, "int8", layout, quantization=Quantization((SCALE,), (0,)))


def tflite(out: Path, left_over: str = "") -> Artifact:
    """Returns the quantised model under out/tflm; with `left_over` its last operator is one that no Ethos-U55 has.

    SPACE_TO_DEPTH is one that the C generator has a kernel for, SPACE_TO_BATCH_ND one for TFLite-Micro alone.
    """
    folder = out / "tflm"
    folder.mkdir(parents=True)
    b = Builder()
    first = b.conv(b.input(SHAPE, name="image"), "first", SHAPE, 6, padding="VALID", relu=True)
    shape = (1, 8, 12, 6)
    b.conv(first, "answer", shape, 4, stride=2 if not left_over else 1, padding="VALID")
    output = (1, 3, 5, 4)
    if left_over:
        answer = b.operators[-1].outputs[0]
        output = (1, 3, 5, 16) if left_over == "SPACE_TO_DEPTH" else (4, 3, 5, 4)
        deep = b.tensor("deep", output)
        if left_over == "SPACE_TO_DEPTH":
            b.operator("SPACE_TO_DEPTH", [answer], [deep], options="SpaceToDepthOptions", blockSize=2)
        else:
            block, crops = b.constant("block", [2, 2]), b.constant("crops", [[0, 0], [0, 0]])
            b.operator(left_over, [answer, block, crops], [deep])
    b.write(folder / "model.tflite")
    outputs = (spec("deep" if left_over else "answer", output),)
    manifest = Manifest("tflite", "model.tflite", (spec("image", SHAPE),), outputs, FINGERPRINT)
    artifact = seal(folder, manifest, Step("tflite", platform="tflm"), MADE)
    evidence(artifact, artifact, out)
    return artifact


def answers(model: Artifact) -> dict[str, np.ndarray]:
    """Returns what TFLite-Micro answers to five inputs, saturating ones among them."""
    session = TflmSession(model)
    inputs = np.random.default_rng(3).integers(-128, 128, (5, *SHAPE[1:])).astype(np.int8)
    inputs[1], inputs[2] = 127, -128
    (output,) = (s.name for s in model.manifest.outputs)
    outputs = np.concatenate([session.run({"image": x[None]})[output].copy() for x in inputs])
    return {"input:image": inputs, f"output:{output}": outputs}


def evidence(executed: Artifact, shown: Artifact, out: Path) -> Path:
    """Writes the known answers of `shown`, which come from `executed`, as a build leaves them."""
    folder = out / "evidence" / shown.path.name
    folder.mkdir(parents=True)
    np.savez(folder / "vectors.npz", **answers(executed))
    (folder / "verification.json").write_text("{}\n")
    seal(folder, Manifest("evidence", "verification.json"), Step("verify", {"candidate": executed.digest}), MADE)
    return folder / "vectors.npz"


def generated(out: Path, chip: str) -> Artifact:
    """Returns the model as generated C under out/CHIP."""
    model = Artifact.open(out / "tflm") if (out / "tflm").is_dir() else tflite(out)
    folder = out / chip
    folder.mkdir()
    made = generate(model.main, Names("rect", FINGERPRINT))
    made.write(folder)
    m, details = model.manifest, {"layers": [to_dict(layer) for layer in made.layers]}
    manifest = Manifest("c", "anynpu_model.c", m.inputs, m.outputs, FINGERPRINT, details=details)
    artifact = seal(folder, manifest, Step("mcu_c", {"model": model.digest}, platform=chip), MADE)
    evidence(model, artifact, out)
    return artifact


def compiled(out: Path, chip: str, left_over: str = "SPACE_TO_BATCH_ND") -> Artifact:
    """Returns the model as Vela compiles it for a chip, with one operator left to the CPU, under out/CHIP."""
    model = Artifact.open(out / "tflm") if (out / "tflm").is_dir() else tflite(out, left_over)
    folder = out / chip
    folder.mkdir()
    work = Work(out / "log", lambda done, total: None)
    manifest = Vela().compile(model, None, plugins.platform(chip), VelaOptions(optimise="size"), folder, work)
    artifact = seal(folder, manifest, Step("vela", {"model": model.digest}, platform=chip), MADE)
    evidence(model, artifact, out)
    return artifact


def neutron(out: Path) -> Artifact:
    """Returns a stand-in for what NXP's neutron-converter makes: the same file with the NPU operator's other name."""
    made = compiled(out, "ethos-u55-128")
    folder = out / "mcxn947"
    shutil.copytree(made.path, folder)
    file = folder / "model_vela.tflite"
    rename_operator(file, folder / "model_neutron.tflite", b"NeutronGraph")
    file.unlink()
    (folder / "manifest.json").unlink()
    m = made.manifest
    made_for = {"accelerator": "mcxn94x"}
    manifest = Manifest("tflite-neutron", "model_neutron.tflite", m.inputs, m.outputs, FINGERPRINT, details=made_for)
    artifact = seal(folder, manifest, Step("neutron", dict(m.step.inputs), platform="mcxn947"), MADE)
    evidence(Artifact.open(out / "tflm"), artifact, out)
    return artifact


def rename_operator(source: Path, target: Path, name: bytes) -> None:
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(source.read_bytes(), 0))
    for code in model.operatorCodes:
        if code.customCode == b"ethos-u":
            code.customCode = name
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    target.write_bytes(bytes(builder.Output()))
