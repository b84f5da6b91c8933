"""Measure how well BM25 finds the relevant passages of a judged collection, with and without stemming.

    python -m cotune_lab.retrieval_quality DOCUMENTS.trec TOPICS.trec QRELS

The files are in TREC's format, such as the Vaswani (NPL) collection's in `tests/fixtures/vaswani_npl` of
PyTerrier's repository. Means over the topics that have judgements, of 1,000 passages each.
"""

import argparse
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from cotune_lab.retrieval_server import Index

DEPTH = 1000
_DOCUMENT = re.compile(r"<DOCNO>\s*(\S+)\s*</DOCNO>(.*?)</DOC>", re.DOTALL)
_TOPIC = re.compile(r"<num>\s*(\d+)\s*</num>\s*<title>(.*?)</title>", re.DOTALL)


def judgements(path: Path) -> dict[str, set[str]]:
    """Return the relevant documents of each topic."""
    relevant: defaultdict[str, set[str]] = defaultdict(set)
    for line in path.read_text(encoding="utf-8").splitlines():
        topic, _, document, relevance = line.split()
        if int(relevance) > 0:
            relevant[topic].add(document)
    return dict(relevant)


def average_precision(ranked: Sequence[str], relevant: set[str]) -> float:
    hits = [rank for rank, document in enumerate(ranked, 1) if document in relevant]
    return sum(count / rank for count, rank in enumerate(hits, 1)) / len(relevant)


def ndcg(ranked: Sequence[str], relevant: set[str], depth: int = 10) -> float:
    gains = [1 / math.log2(rank + 1) for rank in range(1, depth + 1)]
    gained = sum(
        gain for gain, document in zip(gains, ranked, strict=False) if document in relevant
    )
    return gained / sum(gains[: len(relevant)])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("documents", type=Path)
    parser.add_argument("topics", type=Path)
    parser.add_argument("qrels", type=Path)
    parser.add_argument("--languages", nargs="+", default=["none", "english"])
    args = parser.parse_args()
    relevant = judgements(args.qrels)
    topics = {
        number: " ".join(text.split())
        for number, text in _TOPIC.findall(args.topics.read_text(encoding="utf-8"))
        if number in relevant
    }
    documents = [
        {"id": id, "contents": " ".join(text.split())}
        for id, text in _DOCUMENT.findall(args.documents.read_text(encoding="utf-8"))
    ]
    for language in args.languages:
        results = Index(documents, language).search(list(topics.values()), DEPTH)
        ranked = {
            topic: [document["id"] for document, _ in rows]
            for topic, rows in zip(topics, results, strict=True)
        }
        score = sum(average_precision(r, relevant[t]) for t, r in ranked.items()) / len(ranked)
        top = sum(ndcg(r, relevant[t]) for t, r in ranked.items()) / len(ranked)
        print(f"{language:>10}  MAP {score:.4f}  nDCG@10 {top:.4f}  {len(ranked)} topics")


if __name__ == "__main__":
    main()
