"""Changed and damaged files: what is opened is what was made, or it is named."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_build import Place, edit_json, place, reseal, zero

from anynpu.artifact import MANIFEST, Artifact, Made, Manifest, Step, seal
from anynpu.errors import IntegrityError
from anynpu.runtime import tflite_form
from anynpu.seals import check_seal, sealed
from anynpu.tensors import Quantization, TensorSpec

__all__ = ["place"]

VERBS = {
    "run": ("run", "out/cpu", "-i", "one.npy"),
    "bench": ("bench", "out/cpu", "-n", "2", "-q"),
    "eval": ("eval", "out/cpu", "--data", "test.npz", "--metric", "top1", "-q"),
    "compare": ("compare", "out/float", "out/cpu", "--data", "test.npz"),
    "show": ("show", "out/cpu"),
    "classify": ("classify", "out/cpu", "one.npy"),
    "detect": ("detect", "out/cpu", "one.npy"),
    "firmware": ("firmware", "out/cpu", "-b", "host", "-o", "tree"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_weights_that_were_zeroed_at_the_same_size(place: Place, verb: str) -> None:
    zero(place.out / "cpu" / "model.onnx")
    place.call(*VERBS[verb]).refused(8, "out/cpu/model.onnx: has changed since it was made")


def test_a_file_that_is_cut_short(place: Place) -> None:
    path = place.out / "cpu" / "model.onnx"
    path.write_bytes(path.read_bytes()[:-7])
    place.call(*VERBS["run"]).refused(8, "out/cpu/model.onnx: has changed since it was made", "bytes, not")


def test_a_file_that_is_gone(place: Place) -> None:
    (place.out / "cpu" / "model.onnx").unlink()
    place.call(*VERBS["run"]).refused(8, "out/cpu/model.onnx: is missing")


def test_a_change_that_keeps_size_and_time_stamp(place: Place) -> None:
    path = place.out / "cpu" / "model.onnx"
    os.utime(path, (1, 1))
    time.sleep(2.1)  # from here on the hash is noted down
    assert place.call(*VERBS["run"]).status == 0
    zero(path)
    os.utime(path, (1, 1))
    place.call(*VERBS["run"]).refused(8, "out/cpu/model.onnx: has changed since it was made")


MANIFESTS: dict[str, Callable] = {
    "scale": lambda m: m["outputs"][0].update(layout="NC"),
    "shape": lambda m: m["outputs"][0].update(shape=[1, 4]),
    "note": lambda m: m.update(notes=["100 % on the NPU"]),
    "hash": lambda m: m["files"][0].update(sha256="0" * 64),
    "no-seal": lambda m: m.pop("seal"),
}


@pytest.mark.parametrize("change", MANIFESTS)
def test_a_manifest_that_was_edited(place: Place, change: str) -> None:
    edit_json(place.out / "cpu" / MANIFEST, MANIFESTS[change])
    place.call(*VERBS["run"]).refused(8, "out/cpu/manifest.json: has changed since it was made")


def test_extra_files_beside_the_sealed_ones_are_no_damage(place: Place) -> None:
    (place.out / "cpu" / "notes.txt").write_text("mine")
    assert place.call(*VERBS["run"]).status == 0


def test_known_answers_that_were_exchanged(place: Place) -> None:
    path = place.out / "evidence" / "cpu" / "vectors.npz"
    with np.load(path) as stored:
        arrays = {name: stored[name] * 0 for name in stored.files}
    np.savez(path, **arrays)
    place.call(*VERBS["bench"]).refused(8, "out/evidence/cpu/vectors.npz: has changed")


@pytest.mark.parametrize("step", ["import", "data", "cpu", "verify"])
def test_a_kept_step_that_was_zeroed_is_built_again(place: Place, step: str) -> None:
    kept = place.stored(step)
    before = kept.main.read_bytes()
    zero(kept.main)
    done = place.build("--overwrite", "-f", "json")
    assert done.status == 0, done.err
    assert any("was built again" in note and kept.main.name in note for note in json.loads(done.out)["notes"])
    assert kept.main.read_bytes() == before or step == "verify"
    Artifact.open(kept.path)


def test_a_proof_that_was_edited_to_100_db_is_made_again(place: Place) -> None:
    def praise(proof: dict) -> None:
        for figures in proof["outputs"].values():
            figures["sqnr_db"] = 100.0

    edit_json(place.stored("verify").main, praise)
    done = place.build("--overwrite", "-f", "json")
    assert json.loads(done.out)["chips"][0]["verification"]["sqnr_db"] < 90
    assert any("verify was built again" in note for note in json.loads(done.out)["notes"])


def test_verifying_the_cache_hashes_whatever_is_noted(place: Place) -> None:
    zero(place.stored("cpu").main)
    done = place.call("cache", "verify")
    assert done.status == 8 and "1 damaged" in done.out and "has changed" in done.out


def better(record: dict) -> None:
    record["latency"]["samples"] = [value / 2 for value in record["latency"]["samples"]]


READERS = {
    "report": ("report", "bench.json", "-o", "page.html"),
    "compare": ("compare", "bench.json", "bench.json"),
    "regress": ("regress", "--add", "bench.json", "--ledger", "ledger.jsonl"),
}


@pytest.mark.parametrize("verb", READERS)
def test_a_bench_that_was_edited(place: Place, verb: str) -> None:
    edit_json(place.folder / "bench.json", better)
    place.call(*READERS[verb]).refused(8, "bench.json: has changed since it was made")


@pytest.mark.parametrize("verb", ["report", "show"])
def test_a_build_report_that_was_edited(place: Place, verb: str) -> None:
    edit_json(place.out / "report.json", lambda r: r["chips"][0]["verification"].update(sqnr_db=100.0))
    command = ("report", "out") if verb == "report" else ("show", "out/cpu", "--layers")
    place.call(*command).refused(8, "has changed since it was made")


def test_an_eval_that_was_edited(place: Place) -> None:
    assert place.call(*VERBS["eval"], "-o", "eval.json").status == 0
    edit_json(place.folder / "eval.json", lambda r: r.update(score=1.0))
    place.call("report", "eval.json").refused(8, "eval.json: has changed since it was made")


@pytest.mark.parametrize("verb", READERS)
def test_a_record_without_a_seal_is_read_with_a_note(place: Place, verb: str) -> None:
    edit_json(place.folder / "bench.json", lambda r: r.pop("seal"))
    done = place.call(*READERS[verb])
    assert done.status == 0 and "bench.json: has no seal" in done.out + done.err


def test_a_record_that_was_only_laid_out_anew_is_sound(place: Place) -> None:
    path = place.folder / "bench.json"
    record = json.loads(path.read_text())
    whole = json.loads(json.dumps(record), parse_float=lambda t: int(float(t)) if float(t).is_integer() else float(t))
    path.write_text(json.dumps(dict(reversed(whole.items())), indent=3))
    assert place.call(*READERS["report"]).status == 0


def test_a_row_of_the_ledger_that_was_edited(place: Place) -> None:
    assert place.call(*READERS["regress"]).status == 0
    path = place.folder / "ledger.jsonl"
    row = json.loads(path.read_text())
    path.write_text(json.dumps({**row, "value": row["value"] / 2}) + "\n")
    place.call("regress", "--ledger", "ledger.jsonl").refused(8, "line 1: has changed since it was added")


def test_a_row_of_the_ledger_that_was_taken_out(place: Place) -> None:
    for command in (("--add", "bench.json"), ("--add", "out/report.json")):
        assert place.call("regress", *command, "--ledger", "ledger.jsonl").status == 0
    path = place.folder / "ledger.jsonl"
    path.write_text("\n".join(path.read_text().splitlines()[1:]) + "\n")
    done = place.call("regress", "--ledger", "ledger.jsonl")
    assert done.status == 0 and "1 rows follow one that is not there any more" in done.out


def test_a_cell_of_a_sweep_that_was_edited(place: Place) -> None:
    flags = ("-m", "net.onnx", "-t", "null", "-o", "sweep", "-q", "--jobs", "1")
    assert place.call("sweep", *flags).status == 0
    [cell] = (place.folder / "sweep" / "cells").glob("*.json")
    edit_json(cell, lambda r: r["chips"][0].update(seconds=0.001))
    place.call("sweep", *flags).refused(8, "has changed since it was made")


def conv(net: Any) -> tuple[int, ...]:
    net.conv(net.input([1, 4, 4, 2]), "y", [1, 4, 4, 2], 3)
    return 1, 4, 4, 3


def too_small(net: Any) -> tuple[int, ...]:
    """Writes two MiB to a tensor of two bytes: every offset of the file is right."""
    net.operator("RELU", [net.input([1, 1024, 1024, 2])], [net.tensor("y", [1, 1, 1, 2])])
    return 1, 1, 1, 2


def tflite(folder: Path, change: Callable[[bytes], bytes] = bytes, make: Callable[[Any], Any] = conv) -> Path:
    """Makes an artifact by hand; the file is changed before it is sealed."""
    from tflite_builder import Builder

    folder.mkdir()
    net = Builder()
    shape = make(net)
    model = net.write(folder / "model.tflite")
    model.write_bytes(change(model.read_bytes()))
    stored = Quantization((0.05,), (0,))
    taken = tuple(net.tensors[net.inputs[0]].shape)
    specs = (TensorSpec("input", taken, "int8", "NHWC", quantization=stored),)
    outputs = (TensorSpec("y", shape, "int8", "NHWC", quantization=stored),)
    manifest = Manifest("tflite", "model.tflite", specs, outputs, "f" * 64)
    seal(folder, manifest, Step("by hand"), Made("2026-01-01T00:00:00+00:00", 0.0))
    np.save(folder.parent / "image.npy", np.zeros(taken, np.float32))
    return folder


def far(data: bytes) -> bytes:
    """Makes the root lead out of the file."""
    return b"\xff\xff\xff\x7f" + data[4:]


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def lost(data: bytes) -> bytes:
    """Lets an operator read a tensor that the graph does not have."""
    return data.replace(b"\x03\0\0\0\0\0\0\0\x01\0\0\0\x02\0\0\0", b"\x03\0\0\0\0\0\0\0\x01\0\0\0\x63\0\0\0")


@pytest.mark.parametrize(
    ("change", "device"),
    [(far, "tflm"), (cut, "litert"), (lost, "tflm")],
    ids=["far-tflm", "cut-litert", "lost-tflm"],
)
def test_a_damaged_tflite_file_with_the_right_hash(place: Place, change: Callable[[bytes], bytes], device: str) -> None:
    tflite(place.folder / "hand", change)
    done = place.call("run", "hand", "-i", "image.npy", "--on", device)
    done.refused(8, "hand/model.tflite: is a damaged TFLite file")


def test_a_file_that_kills_its_runtime(place: Place) -> None:
    tflite(place.folder / "hand", make=too_small)
    for _ in range(2):  # it is not remembered as one that was survived
        done = place.call("run", "hand", "-i", "image.npy", "--on", "tflm")
        done.refused(8, "hand/model.tflite", "ends with signal SIGSEGV")


def test_a_sound_tflite_file_that_was_made_by_hand_runs(place: Place) -> None:
    tflite(place.folder / "hand")
    for device in ("tflm", "litert"):
        assert place.call("run", "hand", "-i", "image.npy", "--on", device).status == 0


def test_no_flip_of_a_bit_in_a_tflite_file_is_anything_else_than_damage(tmp_path: Path) -> None:
    data = (tflite(tmp_path / "hand") / "model.tflite").read_bytes()
    tflite_form.check(data, "model")
    refused = 0
    for at in range(len(data)):
        try:
            tflite_form.check(data[:at] + bytes([data[at] ^ 0x80]) + data[at + 1 :], "model")
        except IntegrityError:
            refused += 1
    assert refused > len(data) // 10


def test_a_damaged_onnx_file_with_the_right_hash(place: Place) -> None:
    path = place.out / "cpu" / "model.onnx"
    path.write_bytes(path.read_bytes()[:100])
    reseal(place.out / "cpu")
    place.call(*VERBS["run"]).refused(8, "ONNX Runtime refuses the model")


def test_a_manifest_with_a_seal_that_says_other_than_the_model(place: Place) -> None:
    artifact = Artifact.read(place.out / "cpu")
    outputs = tuple(TensorSpec("other", spec.shape, spec.dtype) for spec in artifact.manifest.outputs)
    reseal(place.out / "cpu", outputs=outputs)
    assert place.call(*VERBS["run"]).status in (6, 8)


def test_a_seal_is_of_values_and_not_of_text() -> None:
    record = {"kind": "bench", "a": 1.0, "b": (1, 2.5), "nested": {"seal": "x"}}
    whole = json.loads(json.dumps(sealed(record)))
    assert check_seal(whole, "r") == "" and sealed(whole) == whole
    for change in ({"a": 1.5}, {"b": [1, 2.4]}, {"nested": {"seal": "y"}}, {"more": 1}, {"seal": ""}):
        with pytest.raises(IntegrityError, match="r: has changed"):
            check_seal({**whole, **change}, "r")
