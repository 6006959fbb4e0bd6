"""Files: written whole or not at all, never over something else by accident, and hashed once per change.

<cache>/hashes/ab12....json    the hashes of the files of one folder, with the state they had when they were hashed
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from anynpu.errors import ConfigError

_CHOSEN = "ANYNPU_COMMAND_CACHE_DIR"
HASHES = "hashes"
SETTLED_NS = 2_000_000_000
"""A file that changed so shortly before it was hashed may change again under the same time stamp: it is not noted."""
STREAMS = ("/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/")


@contextmanager
def cache_chosen(path: Path | None) -> Iterator[None]:
    """Makes a folder, if one is named, the cache of all that this process and its children do in the meantime."""
    if path is None:
        yield
        return
    before = os.environ.get(_CHOSEN, "")
    os.environ[_CHOSEN] = str(path.expanduser().absolute())
    try:
        yield
    finally:
        os.environ[_CHOSEN] = before


def default_cache_dir() -> Path:
    """Returns the cache folder: the chosen one, or the usual one."""
    return Path(chosen) if (chosen := os.environ.get(_CHOSEN)) else usual_cache_dir()


def usual_cache_dir() -> Path:
    """Returns ANYNPU_CACHE_DIR, or anynpu under the user's cache folder."""
    if chosen := os.environ.get("ANYNPU_CACHE_DIR"):
        return Path(chosen).expanduser().absolute()
    if os.name == "nt" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "anynpu" / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "anynpu"


def cards_in(package: str) -> tuple[str, ...]:
    """Returns the names of the TOML files that ship in a package."""
    from importlib import resources

    files = [each.name for each in resources.files(package).iterdir()]
    return tuple(sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml")))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns the errors of a full, read-only or forbidden disk into one sentence about `path`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise ConfigError(f"{path}: no space left on the disk", "free some, or choose another folder") from error
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM, errno.EBUSY, errno.ELOOP):
            raise ConfigError(f"{path}: cannot be written ({error.strerror})", "choose another folder") from error
        if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG):
            raise ConfigError(f"{path}: cannot be a folder here ({error.strerror})", "choose another folder") from error
        raise


def replace_file(path: Path, data: bytes | str, mode: int | None = None) -> None:
    """Writes a file next to its place and moves it in: whatever goes wrong, the earlier file is there, whole.

    A link stays, and the file that it points to is replaced. A file keeps the mode that it had unless one is given.
    What is not a file (a pipe, a terminal, /dev/null) is written to as it is.
    """
    content = data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data
    if is_stream(path):
        with path.open("wb") as stream:
            stream.write(content)
        return
    path = followed(path)
    if mode is None:
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o666 & ~_umask()
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_whole(path: Path, data: bytes | str, mode: int | None = None) -> None:
    """Writes a file as `replace_file` does; a disk that is full or read-only is a sentence about `path`."""
    with writing(path):
        replace_file(path, data, mode)


def followed(path: Path) -> Path:
    """Returns where a path leads when every link is followed, whether something is there or not."""
    whole = Path(os.path.realpath(path))
    if whole.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return whole


def follow_umask(folder: Path) -> None:
    """Gives a folder that `tempfile` made, which its owner alone may enter, the mode that any new folder has."""
    folder.chmod(0o777 & ~_umask())


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


@contextmanager
def folder_beside(out: Path) -> Iterator[tuple[Path, Path]]:
    """Yields a new folder next to `out`, and `out` with its links followed: the caller moves the one to the other.

    Whatever is not moved there is removed, and a disk that is full or read-only is a sentence about `out`.
    """
    with writing(out):
        place = followed(out)
        place.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=".anynpu-", dir=place.parent))
        try:
            follow_umask(fresh)
            yield fresh, place
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def is_stream(path: Path) -> bool:
    """Says whether a path names something that is written to as it is: stdout, a pipe, a terminal, /dev/null."""
    if str(path.absolute()).startswith(STREAMS):
        return True
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def check_free(path: Path, overwrite: bool, reads: Iterable[Path | str | None] = (), flag: str = "-o") -> None:
    """Raises before any work is done if a result may not be written to `path`: it is there and --overwrite is not
    given, it is one of the files that the command reads, or a sealed artifact holds it."""
    if is_stream(path):
        return
    with writing(path):
        if path.is_dir():
            raise ConfigError(f"{path}: is a folder, not a file", f"choose another {flag}")
        if not followed(path).parent.is_dir():
            raise ConfigError(f"{path}: there is no such folder", f"make it, or choose another {flag}")
        if not path.exists():
            return
        for read in reads:
            with suppress(OSError, ValueError):
                if read is not None and path.samefile(read):
                    raise ConfigError(
                        f"{path}: is read by this command, and the result would replace it", f"choose another {flag}"
                    )
        if folder := _sealed_in(path):
            raise ConfigError(f"{path}: is a file of the artifact {folder}", f"choose another {flag}")
        if not overwrite:
            raise ConfigError(f"{path}: is there already", f"--overwrite replaces it; or choose another {flag}")
        if not os.access(path, os.W_OK):
            raise ConfigError(f"{path}: cannot be written (it is read-only)", f"choose another {flag}")


def _sealed_in(path: Path) -> Path | None:
    """Returns the artifact whose manifest lists a file, or None."""
    whole = followed(path)
    for folder in whole.parents:
        manifest = folder / "manifest.json"
        if manifest == whole:
            return folder
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            if manifest.is_file():
                entries = json.loads(manifest.read_text("utf-8")).get("files", ())
                if whole.relative_to(folder).as_posix() in {entry["path"] for entry in entries}:
                    return folder
    return None


def hash_file(path: Path) -> str:
    """Returns the sha256 of a file."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error


def hashes(folder: Path, names: Sequence[str], anew: bool = False) -> dict[str, str]:
    """Returns the sha256 of files of a folder, each hashed once as long as it stays as it is.

    A file counts as unchanged while device, inode, size and the times of its content and of its inode are the same;
    nobody can set the last of these. `anew` hashes everything whatever is noted.
    """
    folder = folder.absolute()
    memo = default_cache_dir() / HASHES / f"{hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]}.json"
    noted: Mapping[str, Any] = {}
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        files = {} if anew else json.loads(memo.read_text("utf-8"))["files"]
        noted = files if isinstance(files, dict) else {}
    sums: dict[str, str] = {}
    fresh: dict[str, list[Any]] = {}
    for name in names:
        before, now_ns = _state(folder / name), time.time_ns()
        entry = noted.get(name)
        if isinstance(entry, list) and entry[:-1] == before and before is not None:
            sums[name] = str(entry[-1])
            continue
        sums[name] = hash_file(folder / name)
        if before is not None and _state(folder / name) == before and now_ns - max(before[3:]) > SETTLED_NS:
            fresh[name] = [*before, sums[name]]
    if fresh:
        kept = {name: entry for name, entry in noted.items() if name in sums}
        with suppress(OSError):  # a read-only or full cache: the files are hashed again the next time
            memo.parent.mkdir(parents=True, exist_ok=True)
            replace_file(memo, json.dumps({"folder": str(folder), "files": {**kept, **fresh}}))
    return sums


def _state(path: Path) -> list[int] | None:
    try:
        state = path.stat()
    except OSError:
        return None
    return [state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns]


def forget_hashes(cache: Path, everything: bool = False) -> None:
    """Drops what is noted of folders that are gone, or of all."""
    for memo in (cache / HASHES).glob("*.json"):
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            if everything or not Path(json.loads(memo.read_text("utf-8"))["folder"]).is_dir():
                memo.unlink()
