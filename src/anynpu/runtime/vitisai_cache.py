"""What ONNX Runtime's VitisAI provider compiled for the NPU, kept under our cache folder.

<cache>/vitisai/<key>/             the provider's own files; the key tells model, options and versions apart
<cache>/vitisai/<key>/anynpu.json  what it is of; written last, so that a compilation that was killed is not reused
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from anynpu.files import default_cache_dir, replace_file, writing
from anynpu.schema import Json, JsonObject

FOLDER, ABOUT = "vitisai", "anynpu.json"


@dataclass(frozen=True)
class Compiled:
    """One compiled model, for listing; `about` is empty where the compilation did not end."""

    key: str
    path: Path
    about: Mapping[str, Json]
    size: int
    used: float

    @property
    def chip(self) -> str:
        return str(self.about.get("chip", ""))


class CompileCache:
    """The compiled models under one cache folder."""

    def __init__(self, cache: Path | None = None) -> None:
        self.cache = cache or default_cache_dir()
        self.folder = self.cache / FOLDER

    @contextmanager
    def entry(self, key: str, about: Mapping[str, Json]) -> Iterator[Path]:
        """Gives the folder of a key to one process at a time; it is kept for the next one only if nothing raises."""
        path, locks = self.folder / key, self.cache / "locks"
        with writing(self.cache):
            locks.mkdir(parents=True, exist_ok=True)
        with writing(self.cache), FileLock(locks / f"{FOLDER}-{key}.lock"):
            if not (path / ABOUT).is_file():
                shutil.rmtree(path, ignore_errors=True)
            path.mkdir(parents=True, exist_ok=True)
            try:
                yield path
            except BaseException:
                if not (path / ABOUT).is_file():
                    shutil.rmtree(path, ignore_errors=True)
                raise
            replace_file(path / ABOUT, json.dumps({**about, "used": time.time()}, indent=1) + "\n")

    def entries(self) -> Iterator[Compiled]:
        """Yields every compiled model, and what compilations that did not end left."""
        for path in sorted(p for p in self.folder.glob("*") if p.is_dir()):
            size = sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
            try:
                about: JsonObject = json.loads((path / ABOUT).read_text("utf-8"))
            except (OSError, ValueError, RecursionError):
                about = {}
            about = about if isinstance(about, dict) else {}
            used = about.get("used")
            yield Compiled(path.name, path, about, size, used if isinstance(used, float) else path.stat().st_mtime)

    def remove(self, key: str) -> None:
        """Removes one compiled model."""
        with writing(self.cache):
            (self.cache / "locks").mkdir(parents=True, exist_ok=True)
            with FileLock(self.cache / "locks" / f"{FOLDER}-{key}.lock"):
                shutil.rmtree(self.folder / key, ignore_errors=True)

    def clear(self, model: str = "") -> tuple[Compiled, ...]:
        """Removes what was compiled, of one model or of all, and returns what that was."""
        doomed = tuple(c for c in self.entries() if not model or c.about.get("model") == model)
        for compiled in doomed:
            self.remove(compiled.key)
        return doomed
