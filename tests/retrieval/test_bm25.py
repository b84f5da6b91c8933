import random

import bm25s
import pytest

from cotune.environments.search import Language
from cotune.errors import ConfigError
from cotune.retrieval.bm25 import BM25Retriever

PASSAGES = ["the mountains", "the houses of the city", "die Häuser der Stadt"]


@pytest.mark.parametrize(
    ("language", "query", "rows"),
    [
        ("english", "Mountain climbing", [0]),
        ("english", "the of", []),
        ("german", "Haus", [2]),
        ("none", "mountain house", []),
        ("none", "of", [1]),
    ],
)
def test_words_are_stemmed_and_stop_words_dropped_by_language(
    language: Language, query: str, rows: list[int]
):
    retriever = BM25Retriever(PASSAGES, language=language)
    assert retriever.search([query], 1) == [[PASSAGES[i] for i in rows]]


def test_equal_queries_and_another_top_k():
    retriever = BM25Retriever(["red fox", "red whale", "blue whale"])
    results = retriever.search(["red", "whale", "red"], 2)
    assert results[0] == results[2]
    results[0].clear()  # what is handed out is the caller's own
    assert len(retriever.search(["red"], 2)[0]) == 2
    assert len(retriever.search(["red"], 1)[0]) == 1
    assert len(retriever.search(["red"], 99)[0]) == 3


@pytest.mark.parametrize("top_k", [1, 3, 40])
def test_the_ranking_is_that_of_bm25s_with_ties_by_row(top_k: int):
    words_of = ["red", "blue", "old", "quick", "fox", "whale", "owl", "river", "iron", "music"]
    draw = random.Random(3)
    texts = [f"number{i} {' '.join(draw.choices(words_of, k=12))}" for i in range(1000)]
    queries = [
        f"number{draw.randrange(200)} {' '.join(draw.choices(words_of, k=3))}" for _ in range(100)
    ]
    library = bm25s.BM25()
    library.index(bm25s.tokenize(texts, stopwords=[], show_progress=False), show_progress=False)
    all_queries = ["red fox", "owl", *queries, "number7", "number7 number7"]
    # Two words find several passages of equal score, a rare one fewer passages than are asked for.
    words = [[w for w in text.split() if w in library.vocab_dict] for text in all_queries]
    results = BM25Retriever(texts, language="none").search(all_queries, top_k)
    for row, passages in zip(words, results, strict=True):
        scores = library.get_scores(row).tolist()
        best = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:top_k]
        assert passages == [texts[i] for i in best]


def test_a_corpus_without_words_is_refused():
    with pytest.raises(ConfigError, match="no passage has a word that can be searched for"):
        BM25Retriever(["a b", "the of and"], language="english")
