"""The scorers against the official ones, written here independently as their scripts have them."""

import collections
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.rewards.qa import exact_match, f1_squad, normalize


def official_normalize(s: str) -> str:
    def remove_articles(text: str) -> str:
        return re.sub(re.compile(r"\b(a|an|the)\b", re.UNICODE), " ", text)

    def white_space_fix(text: str) -> str:
        return " ".join(text.split())

    def remove_punc(text: str) -> str:
        exclude = set(string.punctuation)
        return "".join(ch for ch in text if ch not in exclude)

    return white_space_fix(remove_articles(remove_punc(s.lower())))


def squad2_compute_f1(a_gold: str, a_pred: str) -> float:
    def get_tokens(s: str) -> list[str]:
        return official_normalize(s).split() if s else []

    gold_toks, pred_toks = get_tokens(a_gold), get_tokens(a_pred)
    common = collections.Counter(gold_toks) & collections.Counter(pred_toks)
    num_same = sum(common.values())
    if len(gold_toks) == 0 or len(pred_toks) == 0:
        return int(gold_toks == pred_toks)
    if num_same == 0:
        return 0
    precision = 1.0 * num_same / len(pred_toks)
    recall = 1.0 * num_same / len(gold_toks)
    return (2 * precision * recall) / (precision + recall)


# Words that normalisation acts on, so that overlaps and empty texts are common.
WORDS = st.sampled_from(
    [
        "the", "A", "an", "cat", "Cat.", "the-cat", "yes", "No!", "noanswer", "İ", "ß", "'",
        "\u00a0", "٣",
    ]
)  # fmt: skip
TEXT = st.text() | st.lists(WORDS, max_size=5).map(" ".join)
GOLDS = st.lists(TEXT, max_size=3)


@given(TEXT)
def test_normal_form_is_the_official_one(text: str):
    assert normalize(text) == official_normalize(text)


@given(TEXT, GOLDS)
def test_f1_is_squads(answer: str, golds: list[str]):
    official = max((squad2_compute_f1(gold, answer) for gold in golds), default=0)
    assert f1_squad(answer, golds) == official


@pytest.mark.parametrize(
    ("answer", "golds", "em", "f1"),
    [
        ("The Cat!", ["cat"], 1, 1),
        # 2 shared tokens of 2 and 3: precision 1, recall 2/3, F1 = 4/5.
        ("new york", ["New York City"], 0, 0.8),
        ("york", ["Paris", "New York"], 0, 2 / 3),
        ("yes", ["yes it is"], 0, 0.5),
        ("the", ["an"], 1, 1),
        ("the-cat", ["cat"], 0, 0),
        ("cat", [], 0, 0),
        (None, ["cat"], 0, 0),
    ],
)
def test_by_hand(answer: str | None, golds: list[str], em: float, f1: float):
    assert exact_match(answer, golds) == em
    assert f1_squad(answer, golds) == pytest.approx(f1)
