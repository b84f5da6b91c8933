"""Question answering: exact match and token F1 in [0, 1], as in the official scorers.

All return the best score over the ground truths; without an answer or a ground truth it is 0.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

Reward = Callable[[str | None, Sequence[str]], float]
"""Scores a final answer, or None if there is none, against the accepted answers."""

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize(text: str) -> str:
    """Return SQuAD's normal form: lower case, no ASCII punctuation, no articles, single spaces.

    In this order, as in the official scorers: "the-cat" becomes "thecat", which has no article.
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(answer: str | None, golds: Sequence[str]) -> float:
    """Return 1 if the answer equals a ground truth in normal form, else 0: Search-R1's `em_check`."""
    return _best(lambda a, b: float(a == b), answer, golds)


def f1_squad(answer: str | None, golds: Sequence[str]) -> float:
    """Return the token F1 of SQuAD 2.0's `compute_f1`: if either is empty, 1 if both are, else 0."""
    return _best(_f1, answer, golds)


def _best(score: Callable[[str, str], float], answer: str | None, golds: Sequence[str]) -> float:
    """Return the highest score of the normalised answer over the normalised ground truths."""
    if answer is None:
        return 0.0
    normal = normalize(answer)
    return max((score(normal, normalize(gold)) for gold in golds), default=0.0)


def _f1(answer: str, gold: str) -> float:
    """Return the harmonic mean of the precision and recall of the answer's tokens."""
    if not (answer and gold):
        return float(answer == gold)
    answer_tokens = answer.split()
    gold_tokens = gold.split()
    same = (Counter(answer_tokens) & Counter(gold_tokens)).total()
    if same == 0:
        return 0.0
    precision = same / len(answer_tokens)
    recall = same / len(gold_tokens)
    return 2 * precision * recall / (precision + recall)


REWARDS: Mapping[str, Reward] = {"exact_match": exact_match, "f1_squad": f1_squad}
"""Rewards by the name that a run file gives them."""
