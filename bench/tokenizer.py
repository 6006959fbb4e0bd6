"""CLIP's tokens: time a text beside the `tokenizers` package with the same vocabulary.

Writes bench/results/tokenizer.json.

    python bench/tokenizer.py [bpe_simple_vocab_16e6.txt.gz]

Both sides are warm and run on one thread, in turns, a round of every text each; the ratio is of the medians of rounds.
`tokenizers` runs the pipeline that CLIP models are published with (NFC, lower case, the pattern, byte pairs): it does
not mend mojibake or HTML entities, which the reference does. `cleaned` gives it the same cleaning in front.
"""

from __future__ import annotations

import html
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import ftfy
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE

from anynpu.tasks.clip_tokens import ClipTokens
from anynpu.tasks.clip_vocabulary import read_vocabulary

ROOT = Path(__file__).parents[1]
ROUNDS = 15
WORDS = ("'s|'t|'re|'ve|'m|'ll|'d|[\\p{L}]+|[\\p{N}]|[^\\s\\p{L}\\p{N}]+", "removed")
NOUNS = ("cat", "dog", "bus", "house", "mountain", "bicycle", "violin", "newspaper", "sandwich", "telescope")
FRAMES = (
    "a photo of a {}",
    "two people standing beside a large red {} in the rain, looking at their phones",
    "It's the {}'s best day of 2024!",
    "black-and-white drawing of a {} under 3 trees (with caption)",
)
FOREIGN = (
    "une photo d’un {} à la plage",
    "фотография: {} на улице",
    "東京の{}の写真",
    "Foto von einem großen {} 🚲",
    "&quot;{}&quot; &amp; more",
)


def main() -> None:
    default = Path(os.environ.get("ANYNPU_MODELS_DIR", ROOT / ".models")) / "bpe_simple_vocab_16e6.txt.gz"
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    vocabulary = read_vocabulary(path)
    ours, theirs = ClipTokens(vocabulary), _published(vocabulary.ids, vocabulary.merges)
    english = [frame.format(noun) for frame in FRAMES for noun in NOUNS] * 5
    mixed = [frame.format(noun) for frame in FOREIGN for noun in NOUNS] * 4
    assert all(ours.encode(text) == theirs.encode(text).ids for text in english)

    def cleaned(text: str) -> list[int]:
        return list(theirs.encode(html.unescape(html.unescape(ftfy.fix_text(text))).strip()).ids)

    result = {
        "english": _race(english, {"ours": ours.encode, "tokenizers": lambda text: theirs.encode(text).ids}),
        "mixed scripts": _race(
            mixed, {"ours": ours.encode, "tokenizers": lambda text: theirs.encode(text).ids, "cleaned": cleaned}
        ),
    }
    out = ROOT / "bench" / "results" / "tokenizer.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def _published(ids: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
    """Returns the pipeline of a published CLIP tokenizer.json."""
    tokenizer = Tokenizer(BPE(ids, merges, end_of_word_suffix="</w>", continuing_subword_prefix=""))
    steps = [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    tokenizer.normalizer = normalizers.Sequence(steps)
    split = pre_tokenizers.Split(Regex(WORDS[0]), WORDS[1], invert=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return tokenizer


def _race(texts: list[str], sides: dict[str, Callable[[str], list[int]]]) -> dict[str, object]:
    rounds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(ROUNDS + 2):
        for name, encode in sides.items():
            started = time.process_time_ns()
            for text in texts:
                encode(text)
            rounds[name].append((time.process_time_ns() - started) / len(texts) / 1000)
    medians = {name: round(statistics.median(values[2:]), 2) for name, values in rounds.items()}
    ratios = {f"ours / {name}": round(medians["ours"] / us, 3) for name, us in medians.items() if name != "ours"}
    return {"texts": len(texts), "rounds": ROUNDS, "cpu_us_a_text": medians, **ratios}


if __name__ == "__main__":
    main()
