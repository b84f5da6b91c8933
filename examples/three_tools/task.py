"""The task: three tools, questions about them, and a reward. It uses neither cotune nor TRL.

python task.py      # writes questions.jsonl for run.yaml
"""

import ast
import datetime
import json
import operator
import random
from collections.abc import Sequence
from pathlib import Path

from datasets import Dataset

INSTRUCTION = "Answer the question in a word or number."
WORDS = {
    "adit": "entrance", "bosky": "wooded", "cairn": "stones", "dreich": "gloomy", "eyot": "island",
    "fettle": "condition", "gloam": "dusk", "haar": "fog", "inkle": "ribbon", "jorum": "bowl",
    "knoll": "hill", "lea": "meadow", "mizzle": "drizzle", "nidus": "nest", "ooze": "mud",
    "pinnace": "boat", "quoin": "corner", "rill": "brook", "sett": "burrow", "tarn": "lake",
}  # fmt: skip
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def calculator(expression: str) -> int:
    """Works out a sum, difference or product.

    Args:
        expression: such as 12 + 30.
    """
    parsed = ast.parse(expression, mode="eval").body
    if not isinstance(parsed, ast.BinOp) or type(parsed.op) not in _OPERATORS:
        raise ValueError("expected two numbers with +, - or * between them")
    try:
        left, right = int(ast.unparse(parsed.left)), int(ast.unparse(parsed.right))
    except ValueError:
        raise ValueError("expected two whole numbers") from None
    return _OPERATORS[type(parsed.op)](left, right)


def dictionary(word: str) -> str:
    """Says what a word means.

    Args:
        word: in lower case.
    """
    return WORDS[word]


async def calendar(day: str) -> str:
    """Says which day of the week a day is.

    Args:
        day: as 2026-01-31.
    """
    return datetime.date.fromisoformat(day).strftime("%A")


TOOLS = [calculator, dictionary, calendar]


def exact(completions: Sequence[object], answer: Sequence[str], **_: object) -> list[float]:
    """Return 1 for each completion whose last message is the answer, else 0."""
    replies = [completion[-1]["content"] for completion in completions]  # type: ignore[index]
    return [float(text.strip() == right) for text, right in zip(replies, answer, strict=True)]


def questions(count: int = 32, seed: int = 0) -> Dataset:
    """Questions in TRL's form: `prompt`, chat messages, and a column for the reward."""
    return Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": row["question"]}], "answer": row["answer"]}
            for row in rows(count, seed)
        ]
    )


def rows(count: int, seed: int) -> list[dict[str, str]]:
    """Different questions, each with its answer and the call that gives it."""
    rng, by_question = random.Random(seed), dict[str, dict[str, str]]()
    while len(by_question) < count:
        row = question(rng)
        by_question[row["question"]] = row
    return list(by_question.values())


def question(rng: random.Random) -> dict[str, str]:
    """A question with its answer, and the call that gives it."""
    kind = rng.choice(["calculator", "dictionary", "calendar"])
    if kind == "calculator":
        text = f"{rng.randint(10, 99)} {rng.choice('+-*')} {rng.randint(2, 99)}"
        return _row(f"What is {text}?", str(calculator(text)), kind, "expression", text)
    if kind == "dictionary":
        word = rng.choice(list(WORDS))
        return _row(f"What does {word} mean?", WORDS[word], kind, "word", word)
    date = datetime.date(2020, 1, 1) + datetime.timedelta(rng.randrange(3650))
    weekday = date.strftime("%A")
    return _row(f"Which day of the week is {date}?", weekday, kind, "day", str(date))


def _row(text: str, answer: str, tool: str, parameter: str, argument: str) -> dict[str, str]:
    return {
        "question": text,
        "answer": answer,
        "tool": tool,
        "parameter": parameter,
        "argument": argument,
    }


def write_questions(path: Path, count: int = 120) -> None:
    """A JSON object a line: `question` and `answer`."""
    lines = [
        json.dumps({key: row[key] for key in ("question", "answer")}) for row in rows(count, 0)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_questions(Path(__file__).with_name("questions.jsonl"))
