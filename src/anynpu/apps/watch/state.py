"""What a detector has learnt, in a file: loaded at the next start instead of learning for weeks anew."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import asdict
from pathlib import Path

import numpy as np

from anynpu.apps.watch.detector import HOST_ARRAYS, SERIES_ARRAYS, TABLES, Anomaly, Detector
from anynpu.errors import IntegrityError
from anynpu.files import write_whole

FORM = 3
BASE = ("mid", "high", "low", "season", "scale", "top", "bottom", "spread", "level")
CALIBRATED = ("now", "ring", "count", "usual", "weekly", "habit", "expected", "threshold")


def save(detector: Detector, path: Path, number: int) -> None:
    """Writes what is known, and up to which sample."""
    registry, calibration = detector.registry, detector.calibration
    about = {
        "form": FORM,
        "number": number,
        "hosts": registry.hosts,
        "metrics": registry.metrics,
        "owners": registry.owners,
        "rate": calibration.rate,
        "open": [asdict(anomaly) for anomaly in detector.open.values()],
    }
    arrays = {name: getattr(detector, name) for name in (*HOST_ARRAYS, *SERIES_ARRAYS, *TABLES)}
    arrays |= {f"base_{name}": getattr(detector.baselines, name) for name in BASE}
    arrays |= {f"calibration_{name}": getattr(calibration, name) for name in CALIBRATED}
    if calibration.pool:
        arrays["pool_ratios"] = np.concatenate([ratios for ratios, _ in calibration.pool])
        arrays["pool_kinds"] = np.concatenate([kinds for _, kinds in calibration.pool])
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    write_whole(path, stream.getvalue(), 0o600)


def load(detector: Detector, path: Path) -> int:
    """Fills a new detector with what a file holds, and returns the sample up to which it knows."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file.items())  # read whole before anything is filled
            about = json.loads(bytes(arrays["about"]))
            if about["form"] != FORM:
                raise IntegrityError(f"{path}: of form {about['form']}, this anynpu reads form {FORM}")
            for name in about["hosts"]:
                detector.registry.host(str(name))
            for owner, metric in zip(about["owners"], about["metrics"], strict=True):
                detector.registry.series(int(str(owner)), str(metric))
            detector.grow()
            for name in (*HOST_ARRAYS, *SERIES_ARRAYS, *TABLES):
                _fill(detector, name, arrays[name])
            for name in BASE:
                _fill(detector.baselines, name, arrays[f"base_{name}"])
            for name in CALIBRATED:
                _fill(detector.calibration, name, arrays[f"calibration_{name}"])
            if "pool_ratios" in arrays:
                ratios, kinds = arrays["pool_ratios"], arrays["pool_kinds"]
                detector.calibration.pool, detector.calibration.pooled = [(ratios, kinds)], len(ratios)
            for raw in about["open"]:
                anomaly = Anomaly(**raw)
                detector.open[anomaly.key] = anomaly
            return int(about["number"])
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise IntegrityError(f"{path}: is not what a detector wrote ({error})") from None


def _fill(owner: object, name: str, array: np.ndarray) -> None:
    here = getattr(owner, name)
    if here.shape != array.shape:
        raise ValueError(f"{name} has the shape {array.shape}, not {here.shape}")
    setattr(owner, name, array.astype(here.dtype))
