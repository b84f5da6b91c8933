"""BM25 over an in-memory corpus, by `bm25s`."""

from collections.abc import Sequence

import bm25s


class BM25Retriever:
    """Ranks passages by BM25 (Lucene variant, k1 = 1.5, b = 0.75: the defaults of `bm25s`).

    Args:
        passages: what is returned to the caller, in corpus order.
        indexed: what is indexed in a passage's place, same length; default: the passages
            themselves. The bundled world repeats each title here, so that "Malaysia" finds
            the country before its cities.

    Equal queries are answered from a memo: in training the same names are searched thousands of
    times. The corpus never changes, so a remembered answer cannot go stale.
    """

    def __init__(self, passages: Sequence[str], indexed: Sequence[str] | None = None) -> None:
        if not passages:
            raise ValueError("BM25Retriever: the corpus is empty; expected at least one passage")
        texts = passages if indexed is None else indexed
        if len(texts) != len(passages):
            raise ValueError(
                f"BM25Retriever: {len(texts)} indexed texts for {len(passages)} passages; "
                "expected one each"
            )
        self.passages = list(passages)
        self._index = bm25s.BM25()
        tokens = bm25s.tokenize(list(texts), stopwords=[], show_progress=False)
        self._index.index(tokens, show_progress=False)
        self._memo: dict[tuple[str, int], tuple[str, ...]] = {}

    def search(self, queries: Sequence[str], top_k: int) -> list[list[str]]:
        """The `top_k` best passages of each query, best first.

        A query that shares no word with the corpus finds nothing: an empty list.
        """
        if top_k < 1:
            raise ValueError(f"top_k is {top_k}; expected at least 1")
        fresh = sorted({q for q in queries if (q, top_k) not in self._memo})
        if fresh:
            found = self._lookup(fresh, min(top_k, len(self.passages)))
            self._memo.update({(q, top_k): row for q, row in zip(fresh, found, strict=True)})
        return [list(self._memo[q, top_k]) for q in queries]

    def _lookup(self, queries: list[str], top_k: int) -> list[tuple[str, ...]]:
        words = bm25s.tokenize(queries, stopwords=[], show_progress=False, return_ids=False)
        vocabulary = self._index.vocab_dict
        known = [[str(word) for word in row if word in vocabulary] for row in words]
        asked = [row for row in known if row]
        if not asked:
            return [()] * len(queries)
        rows, _scores = self._index.retrieve(asked, k=top_k, show_progress=False)
        found = iter(rows)
        return [tuple(self.passages[int(j)] for j in next(found)) if row else () for row in known]
