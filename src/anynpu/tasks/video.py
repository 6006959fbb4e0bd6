"""Frames of videos and cameras, through OpenCV; animations through Pillow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from anynpu.errors import DeviceError, IntegrityError
from anynpu.tasks.images import opencv
from anynpu.tasks.picture import MOST_PIXELS, Picture, read_frames

SUFFIXES = (".avi", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".webm")
ANIMATIONS = (".gif",)


def is_video(path: Path) -> bool:
    return path.suffix.lower() in (*SUFFIXES, *ANIMATIONS)


def frames(path: Path) -> Iterator[Picture]:
    """Yields the frames of a video file or an animation; one without any raises."""
    if path.suffix.lower() in ANIMATIONS:
        yield from read_frames(path)
        return
    capture = opencv("a video")
    count = 0
    with closing(_Capture(capture, capture.VideoCapture(str(path)))) as source:
        for picture in source:
            count += 1
            yield picture
    if not count:
        raise IntegrityError(f"{path} is not a readable video")


def camera(number: int) -> Iterator[Picture]:
    """Yields what a camera sees, without end."""
    capture = opencv("a camera")
    device = capture.VideoCapture(number)
    if not device.isOpened():
        raise DeviceError(f"camera {number} does not open", "VideoCapture", cause="there is none, or it is in use")
    with closing(_Capture(capture, device)) as source:
        yield from source
    raise DeviceError(f"camera {number} gives no more pictures", "VideoCapture.read", cause="it was unplugged")


class _Capture:
    """An open capture as an iterator of pictures."""

    def __init__(self, cv2: Any, capture: Any) -> None:
        self._cv2, self._capture = cv2, capture

    def __iter__(self) -> Iterator[Picture]:
        while True:
            good, frame = self._capture.read()
            if not good:
                return
            if frame.shape[0] * frame.shape[1] > MOST_PIXELS:
                raise IntegrityError(f"a frame of {frame.shape[1]}x{frame.shape[0]} is more than is read")
            yield Picture(np.ascontiguousarray(self._cv2.cvtColor(frame, self._cv2.COLOR_BGR2RGB)))

    def close(self) -> None:
        self._capture.release()
