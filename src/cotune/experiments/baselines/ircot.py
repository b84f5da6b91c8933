"""IRCoT: interleaving retrieval with chain-of-thought reasoning (arXiv 2212.10509)."""

import re

from cotune.experiments.baselines.base import Baseline, Steps, ask, retrieved, search, shown
from cotune.types import Task, Turn

MAX_PASSAGES = 15
"""Collected over all searches, as in the paper."""

_REASON = (
    "Reason about the given question step by step, by the passages between <information> and "
    "</information>. Write only the next sentence of the reasoning. Once the answer is known, that "
    'sentence is "So the answer is: " and the answer.'
)
_READ = (
    "Answer the given question by the passages between <information> and </information>. Think "
    "briefly first."
)
_ANSWER = re.compile(r"\banswer is\b|</?answer>", re.IGNORECASE)
# A full stop ends a sentence unless an initial or a common abbreviation stands before it.
_END = re.compile(r"(?<!\b[A-Z])(?<!\b(?:St|Mt|Dr|Mr|Ms|Jr|Sr|No|vs))(?<!\bMrs)[.!?]+(?=\s|$)|\n")


class IRCoT(Baseline):
    """Retrieve with the question, then alternate a sentence of reasoning and a search with it.

    This ends with a sentence that gives the answer, with an empty one, or when one reply of
    `limits.turns` is left. The last reply is the reader's: it answers from passages and question.
    """

    description = "one sentence of reasoning and a search with it, in turn; then a reader answers"
    retrieves = True

    @property
    def instruction(self) -> str:
        return f"{_READ} {self.bench.form.brief}"

    def steps(self, task: Task) -> Steps:
        found = yield from search(task.question)
        turns, passages = [retrieved(found)], list(found.passages)
        reasoning: list[str] = []
        for _ in range(self.limits.turns - 1):
            so_far = f"Reasoning so far: {' '.join(reasoning)}" if reasoning else ""
            reply = yield from ask(self.prompt(task, _REASON, passages, so_far))
            sentence = first_sentence(reply.text)
            if not sentence or says_answer(sentence):
                turns.append(Turn(sentence, action="reason"))
                break
            reasoning.append(sentence)
            found = yield from search(sentence)
            turns.append(Turn(sentence, shown(found), "reason", found.error))
            # The newest first: if not all fit into a prompt, the oldest are left out.
            passages = list(dict.fromkeys([*found.passages, *passages]))[:MAX_PASSAGES]
        stop = self.bench.form.stop
        reply = yield from ask(self.prompt(task, self.instruction, passages, stop=stop))
        return [*turns, Turn(reply.text, action="answer")]


def first_sentence(text: str) -> str:
    """Return the first sentence or line of a text; "" for a blank one.

    >>> first_sentence("St. Ives is in England. So the answer is: pound.")
    'St. Ives is in England.'
    """
    text = text.strip()
    end = _END.search(text)
    return text[: end.end()].strip() if end else text


def says_answer(sentence: str) -> bool:
    """Return whether a sentence ends the reasoning: it has the phrase that gives an answer."""
    return _ANSWER.search(sentence) is not None
