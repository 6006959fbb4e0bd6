"""Trains a small map from the features of a picture into the space of sentences, and measures what it is worth.

    scripts/search_starter.sh            fetches what is needed and calls this
    python scripts/search_starter.py --backbone mobilenet.pth --sentences .models --names zero_shot_metadata.py \
        --emoji google.tgz --emoji twitter.tgz -o starter

It is ridge regression from the 1,280 features of MobileNetV2 (ImageNet) to the vectors of all-MiniLM-L6-v2, from two
kinds of pairs: the 1,000 rows of the classifier with the names of their classes, which stand for photographs, and
drawings (emoji) with their names. A fifth of the emoji, by name, is held out: neither their names nor their pictures
are seen in training. What comes out is a net, its card, and `recall.json`.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import io
import itertools
import json
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from search_net import Projected, load_backbone

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZE, BATCH, WIDTH = 224, 32, 384
LEFT_OUT = ("Flags", "Symbols", "Component")
RIDGES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
CARD = """kind = "embed-image"
title = "MobileNetV2 features projected into the space of all-MiniLM-L6-v2"

[preprocess]
resize = "shortest-crop"
shortest = 256
interpolation = "bilinear"
channels = "RGB"
mean = [0.485, 0.456, 0.406]
std = [0.229, 0.224, 0.225]

[space]
name = "sentence-transformers/all-MiniLM-L6-v2"
width = 384
"""


def held_out(name: str) -> bool:
    """Says whether a name belongs to the fifth that is not trained on; the same in every run."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 5 == 0


def read_emoji(archive: Path) -> list[tuple[str, Image.Image]]:
    """Returns the pictures of a package of emoji with their names, on white."""
    found = []
    with tarfile.open(archive) as packed:
        entries = json.load(packed.extractfile("package/emoji.json"))
        names = {each["image"]: each for each in entries if each["category"] not in LEFT_OUT}
        for member in packed:
            entry = names.get(Path(member.name).name)
            if entry is None or "/64/" not in member.name:
                continue
            image = Image.open(io.BytesIO(packed.extractfile(member).read())).convert("RGBA")
            white = Image.new("RGBA", image.size, "white")
            found.append((entry["name"].lower(), Image.alpha_composite(white, image).convert("RGB")))
    return sorted(found, key=lambda pair: pair[0])


def said(what: str, done: int, total: int) -> None:
    print(f"\r{what}: {done} of {total}", end="\n" if done == total else "", file=sys.stderr, flush=True)


def features(net: Projected, images: Sequence[Image.Image]) -> np.ndarray:
    rows = []
    for start in range(0, len(images), BATCH):
        said("features of pictures", start, len(images))
        some = [np.asarray(image.resize((SIZE, SIZE), 2), np.float32) / 255 for image in images[start : start + BATCH]]
        batch = (np.stack(some) - np.float32(MEAN)) / np.float32(STD)
        with torch.no_grad():
            rows.append(net.pooled(torch.from_numpy(batch.transpose(0, 3, 1, 2).copy())).numpy())
    said("features of pictures", len(images), len(images))
    return np.concatenate(rows)


def sentences(folder: Path, texts: Sequence[str]) -> np.ndarray:
    from safetensors.torch import load_file
    from tokenizers import Tokenizer

    from anynpu.source.bert import minilm

    net = minilm().eval()
    net.load_state_dict(load_file(folder / "minilm.safetensors"))
    tokenizer = Tokenizer.from_file(str(folder / "minilm-tokenizer.json"))
    tokenizer.no_padding()
    encoded = [tokenizer.encode(text).ids for text in texts]
    # Texts of one length run together: nothing is padded, so that each gets the vector that it gets alone.
    order = sorted(range(len(texts)), key=lambda at: len(encoded[at]))
    rows = np.zeros((len(texts), WIDTH), np.float32)
    done = 0
    for _, group in itertools.groupby(order, key=lambda at: len(encoded[at])):
        places = list(group)
        for start in range(0, len(places), BATCH):
            some = places[start : start + BATCH]
            ids = torch.tensor([encoded[at] for at in some])
            with torch.no_grad():
                rows[some] = net(ids, torch.ones_like(ids)).numpy()
            done += len(some)
            said("vectors of names", done, len(texts))
    return unit(rows)


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def fit(x: np.ndarray, y: np.ndarray, weights: np.ndarray, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns the matrix and the offset of ridge regression; the ridge is in units of the features' mean variance."""
    share = weights / weights.sum()
    mean_x, mean_y = share @ x, share @ y
    a = (x - mean_x) * np.sqrt(share)[:, None]
    b = (y - mean_y) * np.sqrt(share)[:, None]
    gram = a.T @ a
    matrix = np.linalg.solve(gram + ridge * np.trace(gram) / len(gram) * np.eye(len(gram)), a.T @ b)
    return matrix, mean_y - mean_x @ matrix


def recall_at_10(queries: np.ndarray, names: Sequence[str], gallery: np.ndarray, labels: Sequence[str]) -> float:
    """Returns the share of names that find a picture of theirs among the first ten."""
    scores = queries @ unit(gallery).T
    hits = 0
    for row, name in zip(scores, names, strict=True):
        hits += name in {labels[at] for at in np.argsort(-row)[:10]}
    return hits / len(names)


def chance(names: Sequence[str], labels: Sequence[str]) -> float:
    """Returns what ten pictures drawn blindly would find."""
    total, shares = len(labels), []
    for name in names:
        own = sum(label == name for label in labels)
        miss = np.prod([(total - own - at) / (total - at) for at in range(10)])
        shares.append(1 - miss)
    return float(np.mean(shares))


def interval(share: float, count: int) -> tuple[float, float]:
    """Returns Wilson's 95 % interval of a share."""
    z = 1.96
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * np.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return round(float(middle - half), 4), round(float(middle + half), 4)


def class_names(path: Path) -> list[str]:
    """Returns the names of ImageNet's classes as open_clip lists them; the file is read, not run."""
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "IMAGENET_CLASSNAMES":
            return list(ast.literal_eval(node.value))
    raise ValueError(f"{path}: no IMAGENET_CLASSNAMES in it")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", type=Path, required=True)
    parser.add_argument("--sentences", type=Path, required=True)
    parser.add_argument("--names", type=Path, required=True)
    parser.add_argument("--emoji", type=Path, action="append", required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    net = Projected().eval()
    rows = load_backbone(net, torch.load(given.backbone, weights_only=True)).numpy()
    pairs = [pair for archive in given.emoji for pair in read_emoji(archive)]
    kept = given.output / "features.npz"
    if kept.exists():
        x = np.load(kept)["x"]
    else:
        x = features(net, [image for _, image in pairs])
        np.savez(kept, x=x)
    labels = np.asarray([name for name, _ in pairs])
    classes = class_names(given.names)
    # A row of the classifier is the direction of its class: it is given the length that features have.
    prototypes = unit(rows - rows.mean(axis=0)) * np.linalg.norm(x - x.mean(axis=0), axis=1).mean() + x.mean(axis=0)
    words = sorted({*labels.tolist(), *classes})
    vectors = dict(zip(words, sentences(given.sentences, words), strict=True))
    test = np.asarray([held_out(name) for name in labels])
    y = np.stack([vectors[name] for name in labels])
    anchors = np.stack([vectors[name] for name in classes])
    known = np.asarray([name not in set(labels[test]) for name in classes])

    def mapped(keep: np.ndarray, ridge: float) -> tuple[np.ndarray, np.ndarray]:
        both_x, both_y = np.concatenate([x[keep], prototypes[known]]), np.concatenate([y[keep], anchors[known]])
        share = np.concatenate([np.full(keep.sum(), 1 / keep.sum()), np.full(known.sum(), 1 / known.sum())])
        return fit(both_x.astype(np.float64), both_y.astype(np.float64), share, ridge)

    def score(keep: np.ndarray, judged: np.ndarray, ridge: float) -> tuple[float, list[str], list[str]]:
        matrix, offset = mapped(keep, ridge)
        names = sorted(set(labels[judged]))
        queries = np.stack([vectors[name] for name in names])
        return recall_at_10(queries, names, x[judged] @ matrix + offset, labels[judged]), names, list(labels[judged])

    # The ridge is chosen on a part of the training names that plays held-out.
    inner = ~test & np.asarray([held_out(f"inner {name}") for name in labels])
    ridge = max(RIDGES, key=lambda each: score(~test & ~inner, inner, each)[0])
    found, names, gallery = score(~test, test, ridge)
    matrix, offset = mapped(~test, ridge)
    # The same pictures by names that were trained on: what it has learnt by heart.
    seen, seen_names, seen_gallery = score(~test, ~test, ridge)
    record = {
        "trained_pictures": int((~test).sum()),
        "class_rows": int(known.sum()),
        "ridge": ridge,
        "held_out": {
            "names": len(names),
            "pictures": len(gallery),
            "recall_at_10": round(found, 4),
            "interval_95": interval(found, len(names)),
            "chance": round(chance(names, gallery), 4),
        },
        "trained": {
            "names": len(seen_names),
            "recall_at_10": round(seen, 4),
            "chance": round(chance(seen_names, seen_gallery), 4),
        },
    }
    with torch.no_grad():
        net.projection.weight.copy_(torch.from_numpy(matrix.T.astype(np.float32)))
        net.projection.bias.copy_(torch.from_numpy(offset.astype(np.float32)))
    torch.save(net.state_dict(), given.output / "projected.pth")
    (given.output / "card.toml").write_text(CARD)
    # What the builds of both models are calibrated with.
    (given.output / "pictures").mkdir(exist_ok=True)
    for at, (_, image) in enumerate(pairs[:: len(pairs) // 96]):
        image.save(given.output / "pictures" / f"{at:03d}.png")
    (given.output / "texts.txt").write_text("\n".join(words[:: len(words) // 200]) + "\n")
    (given.output / "recall.json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
