r"""Mathematics problems answered in one turn, the final answer in \boxed{…}."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

from cotune.contracts import ConfigError
from cotune.environments.base import TaskEnvironment, missing_texts
from cotune.records import Action, Response, Task, Trajectory
from cotune.retrieval.corpus import (
    json_rows,
    shortened,
    text_field,
)
from cotune.rewards import Reward
from cotune.rewards.boxed import BoxedReward, last_boxed

INITIAL_INSTRUCTION = "Solve the problem. Put the final answer in \\boxed{}."
NO_ANSWER = "no \\boxed{} answer"
REQUIRED = ("\\boxed",)

QUESTION_COLUMNS = ("question", "problem")
ANSWER_COLUMNS = ("answers", "answer", "final_answer")
"""What is read where the options name no column; the first that a line has."""

_GSM8K_MARK = "####"


class MathEnvironment(TaskEnvironment):
    r"""Problems of one turn: its last \boxed{…} is the answer.

    A turn ends at EOS or at its token limit. Set `limits.turns` to 1, so that an episode without
    an answer is said to have stopped at its turn limit.

    Args:
        tasks: the tasks of each split.
        initial_instruction: what training starts from.
        reward: scores the answer, or None, against a task's answers; `BoxedReward()` by default.

    Raises:
        ConfigError: a task id twice in a split.
    """

    def __init__(
        self,
        tasks: Mapping[str, Sequence[Task]],
        initial_instruction: str = INITIAL_INSTRUCTION,
        reward: Reward | None = None,
    ) -> None:
        super().__init__(tasks, initial_instruction)
        self._reward = BoxedReward() if reward is None else reward

    measure: ClassVar[str] = "exact match"

    @property
    def required(self) -> tuple[str, ...]:
        return REQUIRED

    def respond(self, actions: Sequence[Action]) -> list[Response]:
        """Every turn is its episode's last; without a boxed answer it is invalid."""
        return [
            Response(done=True, action="answer")
            if _answer(action.text) is not None
            else Response(done=True, action="invalid", error=NO_ANSWER)
            for action in actions
        ]

    def reference(self, task: Task) -> str:
        r"""See `TaskEnvironment.reference`: the solution, with \boxed{answer} after it if it has none."""
        if not task.answers or _answer(task.solution) is not None:
            return task.solution.strip()
        reasoning = task.solution
        if _GSM8K_MARK in reasoning:
            reasoning = reasoning.rpartition(_GSM8K_MARK)[0]
        return f"{reasoning.strip()} \\boxed{{{task.answers[0]}}}".strip()

    def score(self, trajectory: Trajectory) -> tuple[float, str | None]:
        """The reward of the last boxed answer in the policy's own text, and that answer."""
        answer = _answer(trajectory.own_text)
        return self._reward(answer, trajectory.task.answers), answer


@dataclass(frozen=True, kw_only=True)
class MathOptions:
    """The user's own problems.

    Attributes:
        train, validation, test: JSONL files of problems (`read_problems`).
        question_column: null reads `question`, else `problem`.
        answer_column: null reads `answers`, `answer` or `final_answer`, else the last box of the
            solution.
        solution_column: a reference solution, where a line has one.
        stratum_column: what tables group by, where a line has it; "level" for MATH, say.
        seconds: for comparing one answer; it scores 0 after that.
        plain_integers: a ground truth that is a plain integer is equalled by plain integers alone,
            so that boxing "12*13" does not answer 156.
        initial_instruction: text.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    kind: Literal["math"] = "math"
    train: Path
    validation: Path
    test: Path
    question_column: str | None = None
    answer_column: str | None = None
    solution_column: str = "solution"
    stratum_column: str = "stratum"
    seconds: float = 5.0
    plain_integers: bool = False
    initial_instruction: str = INITIAL_INSTRUCTION

    def __post_init__(self) -> None:
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise ValueError(f"environment.seconds is {self.seconds}; expected more than 0")
        if missing := missing_texts(self.initial_instruction, REQUIRED):
            raise ValueError(f"environment.initial_instruction {missing}")


def math_environment(options: MathOptions) -> MathEnvironment:
    """Reads the files; ConfigError names the file and line at fault."""
    files = {"train": options.train, "validation": options.validation, "test": options.test}
    return MathEnvironment(
        {split: read_problems(path, split, options) for split, path in files.items()},
        options.initial_instruction,
        BoxedReward(options.seconds, plain_integers=options.plain_integers),
    )


def read_problems(path: Path, split: str, options: MathOptions) -> list[Task]:
    r"""The tasks of a split, in file order.

    A line is `{"question": …, "answers": …}` in the columns of the options. Answers are a text or
    a number, or a list of those. Of an answer that holds a \boxed{…} the last one counts, of one
    in GSM8K's form ("reasoning #### 72") what follows the mark; the reasoning is then the solution,
    unless the line has one. `id` (text or integer) defaults to a hash of the question.

    Raises:
        ConfigError: no such file, not JSON Lines, a field missing or of the wrong kind, an id that
            comes twice, no problem at all.
    """
    tasks: dict[str, Task] = {}
    for where, row in json_rows(path, f"environment.{split}"):
        task = _task(row, where, split, options)
        if task.id in tasks:
            raise ConfigError(
                f"{where}: the task {task.id!r} came before; drop one of the two or give each its "
                '"id" (without one it is a hash of the question)'
            )
        tasks[task.id] = task
    if not tasks:
        raise ConfigError(
            f'environment.{split}: {path} is empty; expected lines of {{"question": …, "answers": …}}'
        )
    return list(tasks.values())


def _task(row: Mapping[str, Any], where: str, split: str, options: MathOptions) -> Task:
    column = options.question_column or _first(QUESTION_COLUMNS, row) or QUESTION_COLUMNS[0]
    question = text_field(
        row, column, where, f'"{column}": "…" (or set environment.question_column)'
    )
    id = row.get("id")
    if id is None:
        id = f"{split}-{hashlib.sha1(question.encode()).hexdigest()[:12]}"
    if isinstance(id, bool) or not isinstance(id, str | int):
        raise ConfigError(f'{where}: "id" is {shortened(id)}; expected text or an integer')
    solution = _optional(row, options.solution_column, where)
    raw = _raw_answers(row, where, solution, options.answer_column)
    reasoned = next((text for text in raw if _GSM8K_MARK in text), "")
    return Task(
        id=str(id),
        question=question,
        answers=tuple(_final(text, where) for text in raw),
        stratum=_optional(row, options.stratum_column, where),
        solution=solution or reasoned,
    )


def _raw_answers(
    row: Mapping[str, Any], where: str, solution: str, column: str | None
) -> list[str]:
    """The texts of the answer column; without one the solution, if it holds a box."""
    column = column or _first(ANSWER_COLUMNS, row)
    if column is None and last_boxed(solution) is not None:
        return [solution]
    if column is None or column not in row:
        raise ConfigError(
            f'{where}: no field "{column or ANSWER_COLUMNS[0]}", only {", ".join(row)}; add it, or '
            "set environment.answer_column"
        )
    value: object = row[column]
    members = cast("list[object]", value) if isinstance(value, list) else [value]
    texts = [_plain(member) for member in members]
    if not texts or not all(texts):
        raise ConfigError(
            f'{where}: "{column}" is {shortened(row[column])}; expected text, a number or a list of '
            "them, none blank"
        )
    return texts


def _final(text: str, where: str) -> str:
    """The final answer of a raw one: its last box, what follows GSM8K's mark, or all of it."""
    boxed = last_boxed(text)
    final = (text.rpartition(_GSM8K_MARK)[2] if boxed is None else boxed).strip()
    if not final:
        raise ConfigError(f"{where}: the answer {shortened(text)} is blank at its end; give it")
    return final


def _optional(row: Mapping[str, Any], column: str, where: str) -> str:
    """A text or a number as text; "" where the line has none or null."""
    value = row.get(column)
    if value is None or value == "":
        return ""
    text = _plain(value)
    if not text:
        raise ConfigError(f'{where}: "{column}" is {shortened(value)}; expected text')
    return text


def _plain(value: object) -> str:
    """A text, stripped, or a finite number as text; "" for anything else."""
    if isinstance(value, str):
        return value.strip()
    # json reads NaN and Infinity, too; of an int, isfinite() could overflow.
    if isinstance(value, float) and not math.isfinite(value):
        return ""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else ""


def _first(columns: Sequence[str], row: Mapping[str, Any]) -> str | None:
    return next((column for column in columns if column in row), None)


def _answer(text: str) -> str | None:
    """The last boxed answer, stripped; None where there is none or it is blank."""
    return (last_boxed(text) or "").strip() or None
