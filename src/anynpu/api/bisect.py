"""anynpu.bisect: the smallest sub-model on which two executions of one model disagree."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from os import PathLike
from pathlib import Path

from anynpu import schema, tool
from anynpu.api.live import Samples, samples_file
from anynpu.errors import ConfigError
from anynpu.files import writing
from anynpu.pipeline.bisect.run import Asked
from anynpu.pipeline.output import swap
from anynpu.records.bisect import BisectRecord
from anynpu.store import Store
from anynpu.tasks.images import Preprocess


def bisect(
    a: str | PathLike[str],
    b: str | PathLike[str],
    data: Samples | None = None,
    *,
    preprocess: Preprocess | None = None,
    limit: int = Asked.limit,
    tolerance: float | str = "",
    on_a: str = "",
    on_b: str = "",
    output: str | PathLike[str] | None = None,
    overwrite: bool = False,
    different_networks: bool = False,
    cache_dir: str | PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> BisectRecord:
    """Cuts two executions of one model that disagree to the smallest sub-model that still does.

    `a` and `b` are artifact folders of builds, .onnx or .tflite files, or "float". The names are those of the flags of
    `anynpu bisect`; `output` takes the bundle, moved into place when it is whole.
    """
    out = None if output is None else Path(output)
    if out is not None:
        _check_out(out, overwrite)
    store = Store(Path(cache_dir) if cache_dir else None)
    log = store.log("bisect")
    with writing(log):
        log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="anynpu-bisect-") as name:
        room = Path(name)
        request = Asked(
            a=str(a),
            b=str(b),
            data=samples_file(data, room, "data"),
            preprocess=preprocess,
            limit=limit,
            tolerance=str(tolerance),
            on_a=on_a,
            on_b=on_b,
            different_networks=different_networks,
            out=str(room / "bundle") if out is not None else "",
            cache=str(store.cache),
        )
        answer = tool.call(
            "anynpu.pipeline.bisect.run:bisect",
            {"asked": request},
            scratch=room,
            log=log,
            progress=progress,
            whole_environment=True,
        )
        record: BisectRecord = schema.from_dict(BisectRecord, answer, "bisect")
        if out is not None and (room / "bundle").is_dir():
            out.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".anynpu-", dir=out.absolute().parent) as folder:
                fresh = Path(folder) / "bundle"
                shutil.copytree(room / "bundle", fresh)
                swap(fresh, out, overwrite)
    return record


def _check_out(out: Path, overwrite: bool) -> None:
    """Raises before any work is done where the bundle may not be put."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out}: is a file, not a folder", "choose another -o")
    if not out.exists() or not any(out.iterdir()):
        return
    if not overwrite:
        raise ConfigError(f"{out}: is there already", "choose another -o, or give --overwrite")
    if not (out / "bisect.json").is_file():
        raise ConfigError(f"{out}: is not a bundle, so --overwrite leaves it alone", "choose another -o")
