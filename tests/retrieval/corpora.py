"""Small corpora, written by rule."""

import json
import random
from pathlib import Path

WORDS = [
    "red", "blue", "green", "old", "quick", "fox", "whale", "owl", "river", "mountain", "island",
    "capital", "harbour", "bridge", "winter", "summer", "iron", "silver", "music", "garden",
]  # fmt: skip


def write_corpus(path: Path, count: int) -> Path:
    """So many passages, no two of equal words: "Place 17" and twelve words, among them "number17"."""
    draw = random.Random(3)
    rows = (
        {
            "id": f"d{i}",
            "contents": f'"Place {i}"\nnumber{i} ' + " ".join(draw.choices(WORDS, k=12)),
        }
        for i in range(count)
    )
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


def queries(count: int) -> list[str]:
    """So many queries; each is of a few words, and some come twice."""
    draw = random.Random(5)
    return [
        f"number{draw.randrange(200)} {' '.join(draw.choices(WORDS, k=3))}" for _ in range(count)
    ]
