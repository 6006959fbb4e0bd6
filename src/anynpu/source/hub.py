"""Compiled models from CIX's model hub: their cards, their download, and the artifact that is made of one.

A card says what the file should hold; the file says what it does hold; where the two differ the model is refused, since
a wrong layout or scale gives plausible nonsense. The hub publishes no hashes that were seen: the first download of an
address is remembered, and a later one must be the same.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict

from filelock import FileLock

from anynpu import schema
from anynpu.artifact import MANIFEST, Artifact, Made, Manifest, Step, hash_file, seal
from anynpu.errors import ConfigError, IntegrityError
from anynpu.files import default_cache_dir, folder_beside, replace_file, writing
from anynpu.runtime.noe.artifact import manifest_of
from anynpu.runtime.noe.cix import Cix, read_cix
from anynpu.runtime.noe.hub_cards import CLOSE, HubModel
from anynpu.runtime.noe.hub_cards import model as model  # known from here to those who fetch
from anynpu.runtime.noe.hub_cards import names as names
from anynpu.source import fetch
from anynpu.tasks import card as cards

BASE = "https://modelscope.cn/models/cix/ai_model_hub_25_Q3/resolve/master"
VARIABLE = "ANYNPU_HUB"
MODEL = "model.cix"
LOCK = "hub.lock.json"


@dataclass(frozen=True)
class Fetched:
    """A model that was fetched: its artifact, where from, and whether its hash was known before."""

    artifact: Artifact
    address: str
    sha256: str
    known: bool


def base_address(stated: str = "") -> str:
    """Returns where the hub is: what the user states, else ANYNPU_HUB, else CIX's own address."""
    return (stated or os.environ.get(VARIABLE) or BASE).rstrip("/")


def get(
    wanted: HubModel,
    out: Path,
    *,
    base: str = "",
    tokenizer: str = "",
    cache: Path | None = None,
    renew: bool = False,
    overwrite: bool = False,
    timeout_s: float = 30.0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Fetched:
    """Fetches a model, checks it against its card and what was fetched before, and makes an artifact folder of it."""
    out = out.absolute()
    check_folder(out, overwrite)
    if wanted.card is not None:
        task = cards.Chosen(wanted.card)
    elif wanted.tokenizer and not tokenizer:
        task = None
    else:
        chosen = cards.choose(wanted.task, tokenizer)
        task = replace(chosen, card=replace(chosen.card, yolo=wanted.yolo)) if wanted.yolo else chosen
    address = fetch.join(base_address(base), wanted.path)
    room = (cache or default_cache_dir()) / "hub"
    with writing(room):
        room.mkdir(parents=True, exist_ok=True)
        with FileLock(room / f"{schema.digest(address)[:32]}.lock"):
            part = room / f"{schema.digest(address)[:32]}.part"
            limits = fetch.Limits(wanted.megabytes[1] << 20, timeout_s)
            fetch.fetch(address, part, limits, progress)
            digest = _accepted(part, wanted, address, room, renew)
            try:
                artifact = _artifact(part, wanted, task, address, digest, out, overwrite)
            except IntegrityError:
                fetch.forget(part)
                raise
            with FileLock(room / "hub.lock.json.lock"):
                files = _locked(room)
                known = address in files and files[address]["sha256"] == digest
                if not known:
                    files[address] = {"sha256": digest, "size": part.stat().st_size, "at": _now()}
                    replace_file(room / LOCK, json.dumps(files, indent=1, sort_keys=True) + "\n")
            fetch.forget(part)
    return Fetched(artifact, address, digest, known or bool(wanted.sha256))


def check_folder(out: Path, overwrite: bool) -> None:
    """Raises before anything is fetched if the folder could not be written."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out}: is a file, not a folder", "choose another -o")
    if out.is_dir() and any(out.iterdir()):
        if not overwrite:
            raise ConfigError(f"{out}: is not empty", "choose another -o, or give --overwrite")
        if not (out / MANIFEST).is_file():
            raise ConfigError(f"{out}: was not made by anynpu, so --overwrite leaves it alone", "choose another -o")


def _accepted(part: Path, wanted: HubModel, address: str, room: Path, renew: bool) -> str:
    """Returns the hash of a downloaded file that is a model, large enough, and the one that is expected."""
    try:
        read_cix(part)  # a git-lfs pointer, a page of HTML and a cut file are told apart here
        size = part.stat().st_size
        if size < wanted.megabytes[0] << 20:
            raise IntegrityError(f"it has {size} bytes; {wanted.name} has {wanted.megabytes[0]} MiB or more")
    except IntegrityError as error:
        fetch.forget(part)  # going on from here would only make it longer
        hint = error.hint or "fetch it again; where the hub keeps git-lfs pointers, its address must end in resolve/..."
        raise IntegrityError(f"{address}: {error.message.removeprefix(f'{part}: ')}", hint) from None
    digest = hash_file(part)
    earlier = None if renew or wanted.sha256 else _locked(room).get(address)
    before = wanted.sha256 or (earlier["sha256"] if earlier else "")
    if before and digest != before:
        fetch.forget(part)
        who = "the card says" if wanted.sha256 else "the first download had"
        raise IntegrityError(
            f"{address}: its sha256 is {digest}, {who} {before}",
            "" if wanted.sha256 else "if the hub has a new version of it, accept that with --renew",
        )
    return digest


class Locked(TypedDict):
    """A file of the hub as it was first downloaded."""

    sha256: str
    size: int
    at: str


def _locked(room: Path) -> dict[str, Locked]:
    path = room / LOCK
    files: dict[str, Locked] = schema.read_json(path) if path.is_file() else {}
    if not isinstance(files, dict):
        raise IntegrityError(f"{path}: not a list of hashes", "delete it; hashes are then noted down anew")
    return files


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _artifact(
    part: Path,
    wanted: HubModel,
    task: cards.Chosen | None,
    address: str,
    digest: str,
    out: Path,
    overwrite: bool,
) -> Artifact:
    """Makes the folder next to its place and moves it there in one go."""
    manifest = described(wanted, read_cix(part))
    manifest = replace(manifest, task=task.task() if task else {})
    if task is None:
        note = f"give --task {wanted.task} and --tokenizer ({wanted.tokenizer}) when you use it"
        manifest = replace(manifest, notes=(*manifest.notes, note))
    details = {**manifest.details, "hub": wanted.name, "address": address, "licence": wanted.licence}
    with folder_beside(out) as (fresh, place):
        shutil.copyfile(part, fresh / MODEL)
        if task is not None:
            task.copy_to(fresh)
        step = Step("hub", {"file": digest}, {"name": wanted.name})
        seal(fresh, replace(manifest, details=details), step, Made(_now(), 0.0))
        check_folder(place, overwrite)  # again: somebody may have written there in the meantime
        if place.exists():  # an earlier folder makes way by a rename and is removed after that
            with tempfile.TemporaryDirectory(prefix=".anynpu-", dir=place.parent) as aside:
                place.replace(Path(aside) / "old")
                fresh.replace(place)
        else:
            fresh.replace(place)
    return Artifact.open(place)


def described(wanted: HubModel, cix: Cix) -> Manifest:
    """Returns the manifest of the file with what the card adds, or says where the two disagree."""
    manifest = manifest_of(cix, MODEL)
    specs = {}
    for kind, stated, tensors in (("inputs", wanted.inputs, cix.inputs), ("outputs", wanted.outputs, cix.outputs)):
        if len(stated) != len(tensors):
            raise _disagree(wanted, f"{len(stated)} {kind}", f"{len(tensors)}")
        pairs = list(zip(stated, tensors, strict=True))
        for says, tensor in pairs:
            place = f"tensor {tensor.name} of"
            if tensor.shape != says.shape:
                raise _disagree(
                    wanted, f"{place} shape {list(says.shape)} {says.layout}".rstrip(), f"{list(tensor.shape)}"
                )
            if says.dtypes and tensor.dtype not in says.dtypes:
                raise _disagree(wanted, f"{place} type {' or '.join(says.dtypes)}", tensor.dtype)
            if says.scale is not None and not math.isclose(tensor.vendor_scale, says.scale, rel_tol=CLOSE):
                raise _disagree(wanted, f"{place} scale {says.scale:g}", f"{tensor.vendor_scale:g}")
            if says.zero_point is not None and abs(tensor.vendor_zero_point - says.zero_point) > 256 * CLOSE:
                raise _disagree(wanted, f"{place} zero point {says.zero_point}", f"{tensor.vendor_zero_point}")
        specs[kind] = tuple(replace(t.spec, layout=says.layout, channels=says.channels) for says, t in pairs)
    return replace(manifest, inputs=specs["inputs"], outputs=specs["outputs"], notes=(wanted.meaning,))


def _disagree(wanted: HubModel, says: str, has: str) -> IntegrityError:
    return IntegrityError(
        f"the card of {wanted.name} names {says}, the file has {has}",
        "it is another model, or a newer one than the card: fetch the file yourself and look at it with `anynpu show`",
    )
