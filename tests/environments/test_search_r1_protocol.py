"""Search-R1's protocol: recorded transcripts, run through `Episode` turn by turn.

The transcripts are written by hand from what Search-R1 does; where cotune differs on purpose, `differs`
says how.
"""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.environments.search import SEARCH_R1_INSTRUCTION, SearchEnvironment, TagProtocol
from cotune.errors import RetrievalError
from cotune.rewards import exact_match
from cotune.types import Limits, Prompt, Task, Trajectory
from tests.helpers import under
from tests.scripted import CharacterCodec, roll_out

SEARCH_R1 = TagProtocol()
CODEC = CharacterCodec()
TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts" / "search_r1").glob("*.json"))


class RecordedRetriever:
    """Finds what a transcript says; "down" cannot be searched for."""

    def __init__(self, found: dict[str, list[str]]) -> None:
        self.found, self.queries = found, list[str]()

    def search(self, queries: Sequence[str], top_k: int) -> list[list[str]]:
        self.queries += queries
        if "down" in queries:
            raise RetrievalError("the server is down")
        return [self.found.get(query, [])[:top_k] for query in queries]


def run(recorded: dict[str, Any]) -> tuple[Trajectory, RecordedRetriever]:
    retriever = RecordedRetriever(recorded["retrieval"])
    task = Task("t", recorded["question"], tuple(recorded["answers"]))
    environment = SearchEnvironment(
        {"test": [task]}, retriever, recorded["instruction"], exact_match
    )
    assignments = [under(environment.tasks("test")[0], recorded["instruction"])]
    limits = Limits(**recorded["limits"])
    (trajectory,) = roll_out(environment, recorded["turns"], assignments, limits)
    return trajectory, retriever


def runs_of(trajectory: Trajectory) -> list[dict[str, str]]:
    """The completion as stretches that the policy wrote and that it was shown."""
    pairs = zip(trajectory.mask, trajectory.completion_ids, strict=True)
    return [
        {"own" if own else "shown": CODEC.decode([token for _, token in stretch])}
        for own, stretch in itertools.groupby(pairs, key=lambda pair: pair[0])
    ]


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_a_recorded_transcript(path: Path) -> None:
    recorded = json.loads(path.read_text(encoding="utf-8"))
    got, retriever = run(recorded)
    # An observation and the closing EOS, or two turns, can be neighbours.
    merged: list[dict[str, str]] = []
    for stretch in recorded["expected"]["completion"]:
        (kind, text), *_ = stretch.items()
        if merged and kind in merged[-1]:
            merged[-1][kind] += text
        else:
            merged.append({kind: text})
    assert {
        "prompt": CODEC.decode(got.prompt_ids), "completion": runs_of(got),
        "queries": retriever.queries, "actions": [turn.action for turn in got.turns],
        "answer": got.answer, "reward": got.reward, "stop": got.stop,
    } == {**recorded["expected"], "completion": merged}  # fmt: skip


@given(st.lists(st.sampled_from(["<search>", "</search>", "<answer>", "</answer>", "a", "\n"])))
def test_the_action_is_that_of_the_first_closing_tag(parts: list[str]) -> None:
    text = "".join(parts)
    parsed = SEARCH_R1.parse(text)
    closing = next((part for part in parts if part.startswith("</")), None)
    assert parsed == SEARCH_R1.parse(
        text[: text.index(closing) + len(closing)] if closing else text
    )
    if parsed.action == "invalid":
        assert closing is None or closing.replace("/", "") not in text[: text.index(closing)]
    else:
        assert closing == f"</{parsed.action}>"


@given(st.lists(st.text() | st.just("<search>a</search>"), max_size=3), st.text())
def test_an_answer_comes_from_exactly_one_turn(texts: list[str], answer: str) -> None:
    texts = [text.replace("<", "") for text in texts]
    told = f"<answer>{answer.replace('<', '')}</answer>"
    expected = answer.replace("<", "").strip() or None
    assert SEARCH_R1.answer(texts) is None
    assert SEARCH_R1.answer([*texts, told]) == expected
    assert SEARCH_R1.answer([told, *texts, told]) is None


def test_unclosed_answers_are_read_in_linear_time() -> None:
    """A quadratic parser needs minutes, more than a test may take."""
    text = "<answer>" * 2**17
    assert SEARCH_R1.answer([text]) is None
    assert SEARCH_R1.answer([f"<answer>a</answer>{text}"]) == "a"


def test_passages_are_numbered_whatever_form_they_come_in() -> None:
    forms = ['(Title: "A") a', "(Title: B) b", "c <answer>"]
    assert SEARCH_R1.information(forms) == (
        '\n\n<information>Doc 1(Title: "A") a\nDoc 2(Title: B) b\nDoc 3(Title: ) c ‹answer>'
        "</information>\n\n"
    )


def test_other_questions_are_asked_in_the_same_form() -> None:
    env = SearchEnvironment({}, None, "Do.", exact_match)
    (task,) = env.with_tasks({"nq": [Task("t", "who was it", ())]}).tasks("nq")
    (message,) = env.messages(task, Prompt(SEARCH_R1_INSTRUCTION))
    assert message["content"] == f"{SEARCH_R1_INSTRUCTION} Question: who was it?\n"
    (message,) = env.messages(task, Prompt("Do.", "A hint."))
    assert message["content"] == "A hint.\n\nDo. Question: who was it?\n"
