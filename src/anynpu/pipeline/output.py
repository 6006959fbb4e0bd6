"""The folder that the user gets: complete or not there, and never over something else by accident."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path

from anynpu.artifact import EVIDENCE, MANIFEST, Artifact
from anynpu.errors import AccuracyError, ConfigError
from anynpu.files import folder_beside, followed, writing
from anynpu.pipeline.result import BuildResult
from anynpu.quantize.tflite_given import GIVEN
from anynpu.records.parts import REPORT

FAILED = "failed"
"""Where results lie that missed the accuracy gate: apart from those that count."""
WHY = "FAILED.txt"
MOST_CARRIED_BYTES = 8 << 20
"""An artifact carries evidence of at most this size; larger known answers lie next to it only."""


def check_output(out: Path, overwrite: bool, reads: Iterable[str] = (), cache: Path | None = None) -> None:
    """Raises before any work is done if the results could not be put at `out`: it is not a folder, it holds what the
    command reads, or the cache, or it lies in the cache."""
    with writing(out):
        whole = followed(out)
        if out.exists() and not out.is_dir():
            raise ConfigError(f"{out}: is a file, not a folder", "choose another -o")
        if Path.cwd().is_relative_to(whole) or whole.is_mount():
            raise ConfigError(f"{out}: cannot be replaced while it is in use", f"choose a folder in it: -o {out}/build")
        store = None if cache is None else Path(os.path.realpath(cache))
        if store is not None and (whole.is_relative_to(store) or store.is_relative_to(whole)):
            raise ConfigError(f"{out}: the cache {cache} and the output cannot lie in each other", "choose another -o")
        for name in reads:
            module = name.rpartition(":")[0] or name  # of file.py:Class or package.module:factory
            for path in (Path(name), Path(module), Path(module.replace(".", "/") + ".py")):
                # A link in the folder would go with it, wherever it leads.
                places = Path(os.path.realpath(path)), Path(os.path.realpath(path.parent), path.name)
                if path.exists() and any(place.is_relative_to(whole) for place in places):
                    raise ConfigError(f"{out}: holds {path}, which this command reads", "choose another -o")
        ours = (out / REPORT).is_file() or not (out.exists() and any(out.iterdir()))
        if overwrite and not ours:
            raise ConfigError(f"{out}: was not made by anynpu, so --overwrite leaves it alone", "choose another -o")
    parent = next(p for p in whole.parents if p.exists())
    with writing(parent), tempfile.TemporaryDirectory(prefix=".anynpu-", dir=parent):
        pass


def write_output(result: BuildResult, out: Path, overwrite: bool, files: Mapping[str, str | bytes]) -> Path | None:
    """Puts artifacts and reports at `out` in one move and returns where an earlier folder was kept, if any."""
    with folder_beside(out) as (fresh, place):  # a link stays, and what it points to is replaced
        if result.model is not None:
            _copy(result.model, fresh / ("given" if result.model.manifest.format == GIVEN else "float"))
        for chip in result.chips:
            for artifact in chip.artifacts[:-1]:
                step = artifact.manifest.step
                name = f"{step.name if step else 'step'}-{artifact.digest[:8]}"
                if not (fresh / "steps" / name).exists():
                    _copy(artifact, fresh / "steps" / name)
            if chip.artifact is not None and chip.error is None:
                _copy(chip.artifact, fresh / chip.chip)
            elif chip.artifact is not None and isinstance(chip.error, AccuracyError) and result.request.keep_failed:
                _copy(chip.artifact, fresh / FAILED / chip.chip)
                (fresh / FAILED / chip.chip / WHY).write_text(f"{chip.error.message}\n", "utf-8")
            if chip.evidence is not None and chip.error is None:
                _copy(chip.evidence, fresh / EVIDENCE / chip.chip)
                if sum(entry.size for entry in chip.evidence.manifest.files) <= MOST_CARRIED_BYTES:
                    # In the artifact too: a machine that gets this folder alone can still run its known answers.
                    _copy(chip.evidence, fresh / chip.chip / EVIDENCE)
        for name, data in files.items():
            (fresh / name).parent.mkdir(parents=True, exist_ok=True)
            # A file name need not be text; the report shows its odd bytes as \udcXX.
            (fresh / name).write_bytes(data if isinstance(data, bytes) else data.encode("utf-8", "backslashreplace"))
        return swap(fresh, place, overwrite)


def _copy(artifact: Artifact, folder: Path) -> None:
    # Copies, not links: a user who edits a file here must not change the store. File by file: copytree would hide a
    # full disk in an error of its own.
    for name in (*(entry.path for entry in artifact.manifest.files), MANIFEST):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(artifact.file(name), folder / name)


def swap(fresh: Path, out: Path, overwrite: bool) -> Path | None:
    if not out.exists() or not any(out.iterdir()):
        if out.exists():
            out.rmdir()
        fresh.replace(out)
        return None
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    kept, count = out.with_name(f"{out.name}.backup-{stamp}"), 1
    while kept.exists():
        count += 1
        kept = out.with_name(f"{out.name}.backup-{stamp}-{count}")
    out.replace(kept)
    try:
        fresh.replace(out)
    except BaseException:
        kept.replace(out)
        raise
    if overwrite:
        shutil.rmtree(kept)
        return None
    return kept
