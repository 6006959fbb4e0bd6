"""Indexes thousands of pictures, kills the indexing at random moments, resumes it, and looks whether anything is lost
or computed twice.

    python bench/search.py --image-model starter/image/cpu --pictures 10000 [--real FOLDER] [--kills 3] [--json OUT]

Pictures are drawn (shapes on a ground, JPEG and PNG, 160 to 1,600 pixels wide); those of --real are copied in first.
One in fifty is a copy of another, and one in five hundred cannot be read.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from anynpu.apps.search.index import Index
from anynpu.apps.search.models import Models
from anynpu.apps.search.reading import decode, kind_of, read
from anynpu.errors import AnyNpuError


def drawn(seed: int) -> Image.Image:
    chance = random.Random(seed)

    def colour():
        return tuple(chance.randrange(256) for _ in range(3))

    width = chance.choice((160, 320, 640, 1024, 1600))
    image = Image.new("RGB", (width, width * 3 // 4), colour())
    pen = ImageDraw.Draw(image)
    for _ in range(chance.randrange(3, 9)):
        corners = sorted(chance.randrange(width) for _ in range(2)), sorted(chance.randrange(width) for _ in range(2))
        box = (corners[0][0], corners[1][0], corners[0][1] + 1, corners[1][1] + 1)
        chance.choice((pen.ellipse, pen.rectangle))(box, fill=colour())
    return image


def readable(path: Path) -> bool:
    """Returns whether a file is a picture that the search takes too."""
    try:
        return kind_of(str(path)) == "image" and decode(read(str(path), "image"), str(path)) is not None
    except (AnyNpuError, OSError):
        return False


def make(folder: Path, count: int, real: Path | None) -> tuple[int, int]:
    """Fills the folder; returns how many contents there are to compute, and how many files cannot be read."""
    chance = random.Random(0)
    contents, broken = set(), 0
    sources = [path for path in sorted(real.rglob("*")) if readable(path)] if real is not None else []
    for at in range(count):
        path = folder / f"{at % 40:02d}" / f"{at:05d}{'.png' if at % 4 == 0 else '.jpg'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if at % 500 == 499:
            path.write_bytes(b"\xff\xd8\xff broken")
            broken += 1
        elif at % 50 == 49:
            shutil.copy(next(iter(folder.glob(f"{(at - 7) % 40:02d}/{at - 7:05d}.*"))), path)
        elif at < len(sources):
            path = path.with_suffix(sources[at].suffix)
            shutil.copy(sources[at], path)
            contents.add(sources[at].read_bytes())
        else:
            image = drawn(chance.randrange(2**40))
            image.save(path, **({} if path.suffix == ".png" else {"quality": 88}))
            contents.add(path.read_bytes())
    return len(contents), broken


def points(index: Path) -> int:
    if not (index / "index.json").exists():
        return 0
    with Index(index, Models()) as opened:
        collection = opened.collection("images")
        return collection.count() if collection is not None else 0


def noted(index: Path) -> int:
    """Returns how many files a run has noted, without getting in its way."""
    try:
        with sqlite3.connect(f"file:{index / 'files.sqlite'}?mode=ro", uri=True) as ledger:
            return int(ledger.execute("SELECT count(*) FROM files").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image-model", required=True)
    parser.add_argument("--pictures", type=int, default=10_000)
    parser.add_argument("--real", type=Path)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="of the pictures; made if it is not there")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="anynpu-search-"))
    folder, index = given.folder or scratch / "pictures", scratch / "index"
    if not folder.exists():
        contents, broken = make(folder, given.pictures, given.real)
        (folder / ".made.json").write_text(json.dumps([contents, broken]))
    contents, broken = json.loads((folder / ".made.json").read_text())
    argv = [sys.executable, "-m", "anynpu", "search", "index", str(folder), "--index", str(index)]
    argv += ["--image-model", given.image_model, "-q", "-f", "json"]
    chance, record, at_kill = np.random.default_rng(1), {"pictures": given.pictures, "contents": contents}, []
    for _ in range(given.kills):
        running = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        before, more = at_kill[-1] if at_kill else 0, int(chance.integers(20, max(21, contents // (given.kills + 2))))
        while noted(index) < before + more and running.poll() is None:
            time.sleep(0.05)  # a busy machine takes as long as it takes
        time.sleep(float(chance.uniform(0, 0.5)))
        os.kill(running.pid, signal.SIGKILL)
        running.wait()
        at_kill.append(points(index))
    done = subprocess.run(argv, capture_output=True, text=True)
    summary = json.loads(done.stdout)["folders"][0]
    record |= {
        "points_after_each_kill": at_kill,
        "computed_in_the_last_run": summary["computed"],
        "computed_twice": summary["computed"] + (at_kill[-1] if at_kill else 0) - contents,
        "points": points(index),
        "unreadable": len(summary["problems"]),
        "unreadable_made": broken,
        "seconds": round(summary["seconds"], 1),
        "images_per_second": round(summary["computed"] / summary["seconds"], 1),
        "share_in_model": round(summary["model_s"] / summary["seconds"], 3),
        "status": done.returncode,
    }
    again = subprocess.run(argv, capture_output=True, text=True)
    summary = json.loads(again.stdout)["folders"][0]
    record["second_run"] = {"computed": summary["computed"], "seconds": round(summary["seconds"], 1)}
    text = json.dumps(record, indent=1)
    print(text)
    if given.json:
        given.json.write_text(text)
    shutil.rmtree(scratch)
    fine = record["computed_twice"] == 0 and record["points"] == contents and record["unreadable"] == broken
    sys.exit(not fine)


if __name__ == "__main__":
    main()
