"""A machine seen through its files, below `/` or below any folder that looks like it; nothing outside is ever read."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from anynpu.errors import ConfigError, DeviceError

MOST_LINKS = 40
PIECE = 1 << 16
MOST_BYTES = 64 << 20
"""No file that is read whole is larger: modules and vendor libraries have a few megabytes."""


class Unreadable(DeviceError):
    """A file is there and this user may not read it: what it says is unknown."""


class Root:
    """The files of a machine. Paths are absolute, as on the machine itself; links are followed inside the root."""

    def __init__(self, folder: Path = Path("/")) -> None:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: no such folder", "--root names a folder that looks like /")
        self.folder = folder.absolute()

    @property
    def is_host(self) -> bool:
        """Whether this is the machine that runs us."""
        return self.folder == Path("/").absolute()

    def real(self, path: str) -> Path:
        """Returns where a path is on this disk, with every link followed as the machine itself would."""
        todo, done, links = list(reversed(PurePosixPath(path).parts)), PurePosixPath("/"), 0
        while todo:
            part = todo.pop()
            if part in ("/", "."):
                continue
            if part == "..":
                done = done.parent
                continue
            here = self.folder / str(done / part).lstrip("/")
            target = _link(here)
            if not target:
                done = done / part
                continue
            links += 1
            if links > MOST_LINKS:
                raise Unreadable(f"{path}: too many links")
            done = PurePosixPath("/") if target.startswith("/") else done
            todo += reversed(PurePosixPath(target).parts)
        return self.folder / str(done).lstrip("/")

    def inside(self, path: str) -> str:
        """Returns a path with its links followed, as the machine itself would name it."""
        return "/" + str(self.real(path).relative_to(self.folder)).removeprefix(".")

    def status(self, path: str) -> os.stat_result | None:
        """Returns the status of what a path names, or None where there is nothing."""
        try:
            return self.real(path).lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _unreadable(path, error) from None

    def exists(self, path: str) -> bool:
        """Returns whether a path names anything."""
        return self.status(path) is not None

    def is_file(self, path: str) -> bool:
        """Returns whether a path names a plain file."""
        status = self.status(path)
        return status is not None and stat.S_ISREG(status.st_mode)

    def is_device(self, path: str) -> bool:
        """Returns whether a path names a device; below a folder that looks like `/` a plain file stands for one."""
        status = self.status(path)
        return status is not None and (
            stat.S_ISCHR(status.st_mode) or (not self.is_host and stat.S_ISREG(status.st_mode))
        )

    def read_bytes(self, path: str, most: int = MOST_BYTES) -> bytes:
        """Returns the content of a file, at most `most` bytes of it, or nothing where there is no such file."""
        content = bytearray()
        try:
            with self.real(path).open("rb", buffering=0) as stream:
                # Piece by piece: the kernel refuses to answer a read of many megabytes of a sysctl file.
                while len(content) < most and (piece := stream.read(min(most - len(content), PIECE))):
                    content += piece
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return b""
        except OSError as error:
            if error.errno in (errno.ENODEV, errno.ENXIO, errno.EINVAL):  # a sysfs file of a device that is not there
                return b""
            raise _unreadable(path, error) from None
        return bytes(content)

    def read(self, path: str) -> str:
        """Returns the text of a file without spaces and NUL characters around it."""
        return self.read_bytes(path).decode("utf-8", "replace").strip(" \t\r\n\0")

    def names(self, path: str) -> tuple[str, ...]:
        """Returns the names in a folder, sorted, or none where there is no such folder."""
        try:
            return tuple(sorted(entry.name for entry in os.scandir(self.real(path))))
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            raise _unreadable(path, error) from None

    def walk(self, path: str, depth: int = 8) -> Iterator[str]:
        """Yields every file below a folder; links to folders are not followed."""
        for name in self.names(path):
            child = f"{path.rstrip('/')}/{name}"
            here = self.real(path) / name
            if here.is_dir() and not here.is_symlink():
                if depth:
                    yield from self.walk(child, depth - 1)
            else:
                yield child


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except PermissionError as error:
        raise _unreadable(str(path), error) from None
    except OSError:  # no link, or nothing at all
        return ""


def _unreadable(path: str, error: OSError) -> Unreadable:
    return Unreadable(f"{path}: {error.strerror}", hint="sudo anynpu doctor")
