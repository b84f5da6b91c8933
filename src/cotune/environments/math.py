r"""Mathematics problems answered in one turn, the final answer in \boxed{…}."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

from cotune.data.dataset_splits import warn
from cotune.data.jsonl import shortened, text_field
from cotune.data.math_data import OF_TRAIN, Selection, read_rows, select
from cotune.environments.base import TaskEnvironment, missing_texts
from cotune.errors import ConfigError
from cotune.rewards import Reward
from cotune.rewards.boxed import BoxedReward, last_boxed
from cotune.types import Action, Response, Task, Trajectory

INITIAL_INSTRUCTION = "Solve the problem. Put the final answer in \\boxed{}."
NO_ANSWER = "no \\boxed{} answer"
REQUIRED = ("\\boxed",)

QUESTION_COLUMNS = ("question", "problem")
ANSWER_COLUMNS = ("answers", "answer", "final_answer")
"""What is read where the options name no column; the first that a line has."""

_GSM8K_MARK = "####"
_SPLITS = ("train", "validation", "test")


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
        train: problems (`read_problems`): a JSONL, JSON, CSV or Parquet file, a folder of Parquet
            files, or `hub:owner/name`, with `:split` after it where that is not "train".
        validation, test: the same, or how many problems are held out of the training data by a
            hash of their text, at most a tenth and a fifth of them.
        question_column: null reads `question`, else `problem`.
        answer_column: null reads `answers`, `answer` or `final_answer`, else the last box of the
            solution.
        solution_column: a reference solution, where a line has one.
        stratum_column: what tables group by, where a line has it; "level" for MATH, say.
        difficulty_column: where `difficulty_at_least` looks.
        difficulty_at_least: easier training problems are left out; null keeps all. What is held
            out of the training data is held out of these; files of their own stay whole.
        limit: only so many training problems, drawn by `seed`; null: all. What is held out stays.
        seed: of that draw, whatever the order of the file.
        seconds: for comparing one answer; it scores 0 after that.
        plain_integers: a ground truth that is a plain integer is equalled by plain integers alone,
            so that boxing "12*13" does not answer 156.
        initial_instruction: text.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    kind: Literal["math"] = "math"
    train: Path
    validation: int | Path
    test: int | Path
    question_column: str | None = None
    answer_column: str | None = None
    solution_column: str = "solution"
    stratum_column: str = "stratum"
    difficulty_column: str = "difficulty"
    difficulty_at_least: float | None = None
    limit: int | None = None
    seed: int = 0
    seconds: float = 5.0
    plain_integers: bool = False
    initial_instruction: str = INITIAL_INSTRUCTION

    def __post_init__(self) -> None:
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise ValueError(f"environment.seconds is {self.seconds}; expected more than 0")
        if missing := missing_texts(self.initial_instruction, REQUIRED):
            raise ValueError(f"environment.initial_instruction {missing}")
        for name in ("validation", "test", "limit"):
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise ValueError(f"environment.{name} is {value}; expected 1 or more")
        bound = self.difficulty_at_least
        if bound is not None and not math.isfinite(bound):
            raise ValueError(f"environment.difficulty_at_least is {bound}; expected a number")


def math_environment(options: MathOptions) -> MathEnvironment:
    """Reads the files; ConfigError names the file and line at fault."""
    return MathEnvironment(
        read_splits(options),
        options.initial_instruction,
        BoxedReward(options.seconds, plain_integers=options.plain_integers),
    )


def read_splits(options: MathOptions) -> dict[str, list[Task]]:
    """The tasks of each split: what is held out, and of the rest those that the options choose.

    A training problem whose text is also in a held-out file is left out, and a warning says how many.

    Raises:
        ConfigError: as `read_problems`; too few problems to hold some out, none that is hard enough.
    """
    return select(
        {split: _problems(getattr(options, split), split, options) for split in _files(options)},
        Selection(
            at_least=options.difficulty_at_least,
            column=options.difficulty_column,
            hold_out={s: n for s in _SPLITS if isinstance(n := getattr(options, s), int)},
            limit=options.limit,
            seed=options.seed,
            source=f"environment.train: {options.train}",
        ),
    )


def read_problems(path: Path, split: str, options: MathOptions) -> list[Task]:
    r"""The tasks of a file or of a data set of the hub, in its order.

    A row is `{"question": …, "answers": …}` in the columns of the options: DeepScaleR's
    (problem, answer, solution) and DeepMath's (question, final_answer, difficulty) are found as
    they are. Answers are a text or a number, or a list of those. Of an answer that holds a
    \boxed{…} the last one counts, of one in GSM8K's form ("reasoning #### 72") what follows the
    mark; the reasoning is then the solution, unless the row has one. `id` (text or integer) defaults
    to a hash of the question; of rows without one that ask the same the first is kept, and a warning
    says how many were not.

    Raises:
        ConfigError: no such file, one that cannot be read as what its name says, a field missing or
            of the wrong kind, an id that comes twice, no problem at all.
    """
    return [task for task, _ in _problems(path, split, options)]


def _files(options: MathOptions) -> list[str]:
    return [split for split in _SPLITS if not isinstance(getattr(options, split), int)]


def _problems(path: Path, split: str, options: MathOptions) -> list[tuple[Task, str]]:
    """Tasks, each with where its row stands."""
    tasks: dict[str, tuple[Task, str]] = {}
    rows = read_rows(path, f"environment.{split}", kept=options.solution_column)
    repeated = 0
    difficulty = options.difficulty_column
    for where, row in rows:
        task = _task(row, where, split, options)
        if split == OF_TRAIN and options.difficulty_at_least is not None:
            task = replace(task, columns={difficulty: row.get(difficulty)})
        if task.id not in tasks:
            tasks[task.id] = (task, where)
        elif row.get("id") is None:
            repeated += 1
        else:
            raise ConfigError(
                f"{where}: the task {task.id!r} came before; drop one of the two or give each its "
                'own "id" (without one it is a hash of the question)'
            )
    if not tasks:
        raise ConfigError(
            f'environment.{split}: {path} is empty; expected rows of {{"question": …, "answers": …}}'
        )
    if repeated:
        warn(
            f"environment.{split}: {path}: {repeated} rows ask a question again; the first is kept"
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
