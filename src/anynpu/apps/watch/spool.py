"""Samples on disk until the collector has acknowledged them: small files of lines, each with its checksum.

    spool/00000017.jsonl    crc32 in hexadecimal, a blank, one sample as JSON

A line is written before it is sent, and a file is removed after all of it was acknowledged: a killed agent sends some
samples twice, and loses none. Lines are not synced to the disk one by one, which would wear out a board's card: a loss
of power may cost the last seconds. When the spool is full the oldest file goes.
"""

from __future__ import annotations

import json
import zlib
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from anynpu.apps.watch.samples import Sample
from anynpu.errors import ConfigError

A_FILE = 120
"""Samples in one file: an hour's."""
MOST_WAITING = 2000
"""Samples held in memory while the disk takes none."""


@dataclass
class Spool:
    """The samples of one agent that are not acknowledged."""

    folder: Path
    most_bytes: int = 64 << 20
    dropped: int = 0
    damaged: int = 0
    waiting: list[Sample] = field(default_factory=list)
    """What the disk did not take."""
    disk_error: str = ""
    _current: Path | None = None
    _lines: int = 0

    def __post_init__(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{self.folder}: cannot be made ({error.strerror})", "choose another --spool") from None

    def files(self) -> list[Path]:
        """Returns the files that hold samples, oldest first."""
        return sorted(path for path in self.folder.glob("*.jsonl") if path.stem.isdigit())

    def add(self, sample: Sample) -> None:
        """Keeps a sample; on a disk that takes nothing it waits in memory."""
        self.waiting.append(sample)
        try:
            while self.waiting:
                if self._current is None or self._lines >= A_FILE or not self._current.exists():
                    files = self.files()
                    number = int(files[-1].stem) + 1 if files else 1
                    self._current, self._lines = self.folder / f"{number:08d}.jsonl", 0
                body = json.dumps(asdict(self.waiting[0]), separators=(",", ":"), allow_nan=False).encode()
                line = b"%08x %s\n" % (zlib.crc32(body), body)
                with self._current.open("ab", buffering=0) as stream:
                    start = stream.tell()
                    if stream.write(line) != len(line):  # the disk filled up in the middle of the line
                        stream.truncate(start)
                        raise OSError(28, "No space left on device")
                self._lines += 1
                del self.waiting[0]
            self.disk_error = ""
        except OSError as error:
            self.disk_error = error.strerror or str(error)
            over = len(self.waiting) - MOST_WAITING
            if over > 0:
                del self.waiting[:over]
                self.dropped += over
        files = self.files()
        sizes = [path.stat().st_size for path in files]
        while len(files) > 1 and sum(sizes) > self.most_bytes:
            self.dropped += sum(1 for _ in files[0].open("rb"))
            files.pop(0).unlink(missing_ok=True)
            sizes.pop(0)

    def oldest(self) -> tuple[Path | None, list[Sample]]:
        """Returns the oldest file and its samples; without any file, what waits in memory."""
        for path in self.files():
            samples = []
            for line in path.read_bytes().splitlines():
                checksum, _, body = line.partition(b" ")
                try:
                    if int(checksum, 16) != zlib.crc32(body):
                        raise ValueError("checksum")
                    raw = json.loads(body)
                    metrics = {str(k): float(v) for k, v in raw["metrics"].items() if isinstance(v, int | float)}
                    times = float(raw["time_s"]), float(raw["uptime_s"])
                    samples.append(Sample(raw["id"], raw["boot"], *times, metrics))
                except (ValueError, KeyError, TypeError):
                    self.damaged += 1  # a line that a loss of power cut short
            if samples:
                return path, samples
            if path != self._current or self._lines >= A_FILE:
                path.unlink(missing_ok=True)
        return None, list(self.waiting)

    def acknowledge(self, path: Path | None, count: int) -> None:
        """Forgets samples that the collector has."""
        if path is None:
            del self.waiting[:count]
            return
        if path == self._current:
            self._current = None  # what comes next goes into a new file: nothing unsent is in this one
        with suppress(OSError):
            path.unlink()

    def __len__(self) -> int:
        """The samples that wait, roughly: whole files are counted by their lines."""
        lines = 0
        for path in self.files():
            with suppress(OSError):
                lines += path.read_bytes().count(b"\n")
        return lines + len(self.waiting)
