"""Artifacts: sealed folders that say what they hold and notice when it is not so any more."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anynpu.artifact import (
    MANIFEST,
    Artifact,
    Estimates,
    Made,
    Manifest,
    OperatorPlacement,
    Placement,
    Step,
    seal,
)
from anynpu.errors import AnyNpuError, ConfigError, IntegrityError
from anynpu.tensors import Quantization, TensorSpec

MADE = Made("2026-01-01T00:00:00+00:00", 1.5)
STEP = Step("vela", {"model": "ab" * 32}, {"optimise": "size"}, {"vela": "5.2"})
OPERATORS = (
    OperatorPlacement("conv", "CONV_2D", "npu", macs=900),
    OperatorPlacement("soft", "SOFTMAX", "cpu", "not in the table", macs=100),
)


@pytest.fixture
def sealed(tmp_path: Path) -> Artifact:
    folder = tmp_path / "a"
    (folder / "sub").mkdir(parents=True)
    (folder / "model.tflite").write_bytes(b"model" * 100)
    (folder / "sub" / "table.bin").write_bytes(b"x")
    return seal(folder, manifest(), STEP, MADE)


def manifest() -> Manifest:
    return Manifest(
        format="tflite",
        main="model.tflite",
        inputs=(TensorSpec("x", (1, 2), "int8", "NF", quantization=Quantization((1,), (3,))),),  # type: ignore[arg-type]
        placement=Placement("Ethos-U55", OPERATORS),
        estimates=Estimates("vela", latency_ms=2, macs=1000),
        details={"pair": (1, 2), "nested": {"a": 1.0}},
    )


def edit(artifact: Artifact, change: Callable[[dict], object]) -> None:
    file = artifact.path / MANIFEST
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


def test_a_sealed_folder_opens_as_what_it_was(sealed: Artifact) -> None:
    again = Artifact.open(sealed.path)
    again.verify()
    assert again.manifest == sealed.manifest
    assert again.digest == sealed.digest == again.manifest.seal
    assert again.main.read_bytes() == b"model" * 100
    assert [f.path for f in again.manifest.files] == ["model.tflite", "sub/table.bin"]


def test_the_digest_knows_the_content_and_not_the_time(sealed: Artifact) -> None:
    later = replace(sealed.manifest, made=Made("2030-01-01T00:00:00+00:00", 9.0))
    assert later.digest == sealed.digest
    for change in ({"notes": ("n",)}, {"format": "onnx"}, {"step": replace(STEP, options={})}, {"files": ()}):
        assert replace(sealed.manifest, **change).digest != sealed.digest


def test_a_step_must_make_its_main_file(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=r"step vela: it made no file model\.tflite"):
        seal(tmp_path, manifest(), STEP, MADE)
    assert not (tmp_path / MANIFEST).exists()


def test_what_is_no_artifact_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        Artifact.open(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"no manifest\.json in it"):
        Artifact.open(tmp_path)


def test_a_missing_or_shorter_file_is_noticed_on_opening(sealed: Artifact) -> None:
    sealed.main.write_bytes(b"model")
    with pytest.raises(IntegrityError, match=r"model\.tflite: has changed since it was made: 5 bytes, not 500"):
        Artifact.open(sealed.path)
    sealed.main.unlink()
    with pytest.raises(IntegrityError, match=r"model\.tflite: is missing"):
        Artifact.open(sealed.path)


def test_a_changed_byte_is_noticed_on_opening(sealed: Artifact) -> None:
    data = bytearray(sealed.main.read_bytes())
    data[7] ^= 1
    sealed.main.write_bytes(data)
    with pytest.raises(IntegrityError, match=r"model\.tflite: has changed since it was made"):
        Artifact.open(sealed.path)


def test_a_main_file_that_is_not_sealed_is_refused(sealed: Artifact) -> None:
    (sealed.path / "other.tflite").write_bytes(b"x")
    Artifact.open(sealed.path)
    changed = replace(sealed.manifest, main="other.tflite")
    edit(sealed, lambda data: data.update(main="other.tflite", seal=changed.digest))
    with pytest.raises(IntegrityError, match=r"manifest\.json: has changed"):
        Artifact.open(sealed.path)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["inputs"][0]["quantization"].update(scale=[2.0]),
        lambda data: data["placement"]["operators"][1].update(device="npu"),
        lambda data: data["estimates"].update(latency_ms=0.5),
        lambda data: data.pop("seal"),
    ],
)
def test_a_changed_manifest_is_noticed_on_opening(sealed: Artifact, change: Callable[[dict], object]) -> None:
    edit(sealed, change)
    with pytest.raises(IntegrityError, match=r"manifest\.json: has changed"):
        Artifact.open(sealed.path)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "sub/../../x", ".."])
def test_names_that_lead_out_of_the_folder_are_refused(sealed: Artifact, name: str) -> None:
    with pytest.raises(IntegrityError, match="leads out of the folder"):
        sealed.file(name)
    edit(sealed, lambda data: data["files"][0].update(path=name))
    with pytest.raises(IntegrityError, match="leads out of the folder"):
        Artifact.open(sealed.path)


def test_another_schema_version_is_refused(sealed: Artifact) -> None:
    edit(sealed, lambda data: data.update(schema_version=99))
    with pytest.raises(IntegrityError, match="schema version 99, this anynpu reads 1"):
        Artifact.open(sealed.path)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.update(formt="x"),
        lambda data: data.pop("main"),
        lambda data: data.update(files={"a": 1}),
        lambda data: data["inputs"][0].update(dtype="float8"),
        lambda data: data["inputs"][0]["quantization"].update(scale=[0.0]),
    ],
)
def test_a_manifest_that_is_not_one_is_an_integrity_error(sealed: Artifact, change: Callable[[dict], object]) -> None:
    edit(sealed, change)
    with pytest.raises(IntegrityError, match=r"manifest\.json"):
        Artifact.open(sealed.path)


@given(st.data())
def test_a_garbled_manifest_never_raises_anything_else(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("g")
    (folder / "model.tflite").write_bytes(b"m")
    artifact = seal(folder, manifest(), STEP, MADE)
    text = bytearray((folder / MANIFEST).read_bytes())
    cut = data.draw(st.integers(0, len(text) - 1))
    if data.draw(st.booleans()):
        text = text[:cut]
    else:
        text[cut] = data.draw(st.integers(0, 255))
    (folder / MANIFEST).write_bytes(text)
    try:
        opened = Artifact.open(folder)
        opened.verify()
    except AnyNpuError as error:
        assert isinstance(error, IntegrityError)
    else:
        assert opened.digest == artifact.digest


def test_shares_are_the_lower_of_operators_and_macs() -> None:
    placement = Placement("n", OPERATORS)
    assert (placement.operator_share, placement.mac_share, placement.share) == (0.5, 0.9, 0.5)
    assert placement.elsewhere() == (OPERATORS[1],)
    heavy = Placement("n", (OPERATORS[0], replace(OPERATORS[0], macs=10), replace(OPERATORS[1], macs=9000)))
    assert heavy.share == heavy.mac_share == 910 / 9910


def test_shares_without_known_macs_or_operators() -> None:
    unknown = Placement("n", (OPERATORS[0], replace(OPERATORS[1], macs=None)))
    assert unknown.mac_share is None and unknown.share == 0.5
    assert Placement("n", (replace(OPERATORS[0], macs=0),)).mac_share is None
    assert Placement("n", ()).share == 0.0


def test_addresses_depend_on_everything_that_matters() -> None:
    assert STEP.address == replace(STEP, inputs=dict(STEP.inputs)).address
    changes = (
        {"name": "x"},
        {"inputs": {}},
        {"options": {}},
        {"tools": {}},
        {"platform": "p"},
        {"platform_digest": "d"},
    )
    assert len({replace(STEP, **change).address for change in changes} | {STEP.address}) == len(changes) + 1
