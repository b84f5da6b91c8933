"""Serve a corpus over Search-R1's `/retrieve`, ranked by BM25.

    python -m cotune_lab.retrieval_server corpus.jsonl --port 8000

It needs `fastapi` and `uvicorn`. The index is built in memory when the server starts: Search-R1's Wikipedia dump
(21 million passages) needs a machine with 100 GB or more; its own server also ranks by embeddings. There is
no authentication.

A request is `{"queries": ["…"], "topk": 3, "return_scores": true}`, the reply `{"result": [[{"document": {"id",
"contents"}, "score"}, …], …]}`; without `return_scores` the lists hold the documents themselves.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import bm25s
import Stemmer
from fastapi import FastAPI
from pydantic import BaseModel, Field

TITLE_WEIGHT = 3
"""How often a title is repeated before its text in what is indexed."""

Document = dict[str, str]
"""A passage: its `id` and its `contents`, a title in quotes, a line break and the text."""


class RetrieveRequest(BaseModel):
    """The body of `POST /retrieve`; `topk` null or 0 is the server's default, as in Search-R1."""

    queries: list[str] = Field(max_length=16_384)
    topk: int | None = Field(default=None, ge=0, le=100)
    return_scores: bool = False


class Index:
    """BM25 (Lucene's variant, k1 = 1.5, b = 0.75) over passages in memory.

    Args:
        documents: the passages.
        language: of the stemmer and the stop words; "none" uses neither.
    """

    def __init__(self, documents: Sequence[Document], language: str = "english") -> None:
        self.documents, self._language = documents, language
        self._bm25 = bm25s.BM25()
        texts = [_indexed(document["contents"]) for document in documents]
        self._bm25.index(self._words(texts), show_progress=False)

    def search(self, queries: Sequence[str], top_k: int) -> list[list[tuple[Document, float]]]:
        """Return document and score of the `top_k` best passages that share a term with each query."""
        if not queries:
            return []
        count = min(top_k, len(self.documents))
        rows, scores = self._bm25.retrieve(self._words(queries), k=count, show_progress=False)
        return [
            [
                (self.documents[row], float(score))
                for row, score in zip(*pair, strict=True)
                if score > 0
            ]
            for pair in zip(rows.tolist(), scores.tolist(), strict=True)
        ]

    def _words(self, texts: Sequence[str]) -> list[list[str]]:
        plain = self._language == "none"
        # A new stemmer each time: one must not be used by two threads at once.
        options: dict[str, Any] = {"stopwords": []}
        if not plain:
            options = {"stopwords": self._language, "stemmer": Stemmer.Stemmer(self._language)}
        words = bm25s.tokenize(list(texts), return_ids=False, show_progress=False, **options)
        return cast("list[list[str]]", words)


def _indexed(contents: str) -> str:
    title, newline, text = contents.partition("\n")
    return f"{(title + ' ') * TITLE_WEIGHT}{text}" if newline else title


def read_documents(path: Path) -> list[Document]:
    """Read a corpus of JSON Lines: `{"id", "contents"}`, or `{"id", "title", "text"}`."""
    documents: list[Document] = []
    for line in path.read_text(encoding="utf-8-sig").splitlines():
        if line.strip():
            row = json.loads(line)
            contents = row.get("contents") or f'"{row["title"]}"\n{row["text"]}'
            documents.append({"id": str(row.get("id", len(documents))), "contents": contents})
    return documents


def create_app(index: Index, top_k: int) -> FastAPI:
    """Return the app; `top_k` is for requests that do not say."""
    app = FastAPI(title="retrieval")

    @app.post("/retrieve")
    def retrieve(body: RetrieveRequest) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        ranked = index.search(body.queries, body.topk or top_k)
        if body.return_scores:
            return {"result": [[{"document": d, "score": s} for d, s in row] for row in ranked]}
        return {"result": [[document for document, _ in row] for row in ranked]}

    return app


def main() -> None:
    import uvicorn

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("corpus", type=Path, help="JSON Lines with id and contents")
    parser.add_argument("--language", default="english", help="stemmer and stop words; or none")
    parser.add_argument("--top-k", type=int, default=3, help="passages if a request does not say")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    index = Index(read_documents(arguments.corpus), arguments.language)
    uvicorn.run(create_app(index, arguments.top_k), host=arguments.host, port=arguments.port)


if __name__ == "__main__":
    main()
