"""BM25 with `bm25s` over passages in memory.

Texts and queries become terms in the same way, as in Lucene's analyzers: words of two characters or
more in lower case, without stop words, stemmed by Snowball.
"""

import os
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, cast

import numpy as np
import Stemmer

from cotune.errors import ConfigError

# If jax is installed, bm25s calls it at import, and jax would take three quarters of a GPU's memory.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
import bm25s

_REMEMBERED = 2**17
"""The most answers that a retriever remembers: policies keep writing new queries."""


class BM25Retriever:
    """Rank passages by BM25 (Lucene variant, k1 = 1.5, b = 0.75: the defaults of `bm25s`).

    Args:
        passages: the texts that are returned, in corpus order.
        indexed: the texts that are indexed instead, same length; default: the passages themselves.
            With each title repeated here, "Malaysia" finds the country before its cities.
        language: of the passages and queries, a `search.Language`.

    Answers are remembered: in training the same names are searched thousands of times.
    """

    parallel_searches = 1

    def __init__(
        self,
        passages: Sequence[str],
        indexed: Sequence[str] | None = None,
        language: str = "english",
    ) -> None:
        texts = passages if indexed is None else indexed
        self.passages = list(passages)
        self._index = _build_index(texts, language)
        self._language = language
        self._find = lru_cache(_REMEMBERED)(self._find_passages)

    def search(self, queries: Sequence[str], top_k: int) -> list[list[str]]:
        """Return the `top_k` best passages of each query, best first; ties go to the earlier one.

        A query that shares no term with the corpus gets an empty list.
        """
        return [list(self._find(query, top_k)) for query in queries]

    def _find_passages(self, query: str, top_k: int) -> tuple[str, ...]:
        (words,) = _tokenize([query], self._language, return_ids=False)
        terms = [str(word) for word in words if word in self._index.vocab_dict]
        if not terms:
            return ()
        rows = _find_best(self._index.get_scores(terms), min(top_k, len(self.passages)))
        return tuple(self.passages[row] for row in rows)


def _tokenize(texts: Iterable[str], language: str, **options: Any) -> Any:
    """Return the terms of texts, stemmed and without stop words."""
    if language == "none":
        analysis: dict[str, Any] = {"stopwords": []}
    else:
        # A new stemmer each time: one must not be used by two threads at once.
        analysis = {"stopwords": language, "stemmer": Stemmer.Stemmer(language)}
    # The stub asks for a list, but any iterable works.
    return bm25s.tokenize(cast(Any, texts), show_progress=False, **analysis, **options)


def _build_index(texts: Iterable[str], language: str) -> bm25s.BM25:
    index = bm25s.BM25()
    tokens = _tokenize(texts, language)
    if not tokens.vocab:
        raise ConfigError(
            "environment.corpus: no passage has a word that can be searched for (of two letters or more, and no stop "
            "word); correct the file, or set environment.language to none"
        )
    index.index(tokens, show_progress=False)
    return index


def _find_best(scores: Any, top_k: int) -> list[int]:
    """Return the rows of the `top_k` highest scores, best first; ties go to the lower row.

    Which of several equal scores `retrieve` of bm25s selects depends on the processor. Only scores above zero are
    sorted, and the first rows, in case they are too few.
    """
    rows = np.union1d(np.flatnonzero(scores), np.arange(top_k))
    return rows[np.argsort(-scores[rows], kind="stable")[:top_k]].tolist()
