r"""Mathematics problems answered in one turn, the final answer in \boxed{…}."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

from cotune.data.rows import Row, file_rows, hub_rows, id_field, plain_text, shortened, text_field
from cotune.data.splits import SPLITS, Question, digest, hold_out, sha, warn, without_held
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
"""Columns that are tried, in this order, if the options name none."""

_HUB = "hub:"  # hub:owner/name or hub:owner/name:split
_GSM8K_MARK = "####"
# DeepMath's reasoning traces: 4.9 of its 5 GB, read only if one is named as the solution.
_TRACES = frozenset(("r1_solution_1", "r1_solution_2", "r1_solution_3"))


class MathEnvironment(TaskEnvironment):
    r"""Problems answered in one turn; its last \boxed{…} is the answer.

    A turn ends at EOS or at its token limit. Set `limits.turns` to 1, so that an episode without
    an answer is reported as stopped at its turn limit.

    Args:
        tasks: the tasks of each split.
        initial_instruction: the instruction that training starts from.
        reward: scores the answer, or None, against a task's answers; `BoxedReward()` by default.

    Raises:
        ConfigError: a task id is repeated in a split.
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
        """End each episode; a turn without a boxed answer is invalid."""
        return [
            Response(done=True, action="answer")
            if _answer(action.text) is not None
            else Response(done=True, action="invalid", error=NO_ANSWER)
            for action in actions
        ]

    def reference(self, task: Task) -> str:
        r"""Return the solution, with \boxed{answer} after it if it has none."""
        if not task.answers or _answer(task.solution) is not None:
            return task.solution.strip()
        reasoning = task.solution
        if _GSM8K_MARK in reasoning:
            reasoning = reasoning.rpartition(_GSM8K_MARK)[0]
        return f"{reasoning.strip()} \\boxed{{{task.answers[0]}}}".strip()

    def score(self, trajectory: Trajectory) -> tuple[float, str | None]:
        """Return the reward of the last boxed answer in the policy's own text, and that answer."""
        answer = _answer(trajectory.own_text)
        return self._reward(answer, trajectory.task.answers), answer

    def scores(self, trajectories: Sequence[Trajectory]) -> list[tuple[float, str | None]]:
        """Return the rewards of a batch; no answer waits long for another one that never ends."""
        if (
            not isinstance(self._reward, BoxedReward)
            or type(self).score is not MathEnvironment.score
        ):
            return [self.score(trajectory) for trajectory in trajectories]
        answers = [_answer(t.own_text) for t in trajectories]
        pairs = [(a, t.task.answers) for a, t in zip(answers, trajectories, strict=True)]
        return list(zip(self._reward.score(pairs), answers, strict=True))


@dataclass(frozen=True, kw_only=True)
class MathOptions:
    """The user's own problems.

    Attributes:
        train: problems (`read_problems`): a JSONL, JSON, CSV or Parquet file, a folder of Parquet
            files, or `hub:owner/name`, followed by `:split` if the split is not "train".
        validation, test: the same, or the number of problems that are held out of the training data
            by a hash of their text, at most a tenth and a fifth of them.
        question_column: null reads `question` or `problem`.
        answer_column: null reads `answers`, `answer` or `final_answer`, or else the last box of the
            solution.
        solution_column: a reference solution; optional in the data.
        stratum_column: the column that tables group by, such as "level" for MATH; optional.
        difficulty_column: the column that `difficulty_at_least` reads.
        difficulty_at_least: drop easier training problems; null keeps all. Problems are held out
            of the remaining ones; validation and test files stay complete.
        limit: train on this many problems, drawn by `seed`; null: all. Held-out problems stay.
        seed: seed of that draw; the order of the file does not matter.
        seconds: CPU time limit for comparing one answer; beyond it the answer scores 0.
        plain_integers: a ground truth that is a plain integer equals only plain integers, so that
            boxing "12*13" does not answer 156.
        initial_instruction: the instruction that training starts from.
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


def hub_name(path: Path) -> str | None:
    """Return `owner/name`, with or without `:split`, if a path names a data set of the hub."""
    text = path.as_posix()
    return text.removeprefix(_HUB) if text.startswith(_HUB) else None


def math_environment(options: MathOptions) -> MathEnvironment:
    """Build the environment of a run file; ConfigError names the file and line at fault."""
    return MathEnvironment(
        read_splits(options),
        options.initial_instruction,
        BoxedReward(options.seconds, plain_integers=options.plain_integers),
    )


def read_splits(options: MathOptions) -> dict[str, list[Task]]:
    """Read the tasks of each split; training problems are filtered and drawn as the options say.

    Training problems that are also in a held-out file are dropped, with a warning that counts them.

    Raises:
        ConfigError: as `read_problems`; no problem is hard enough, a difficulty is not a number, or
            too few problems to hold some out.
    """
    source = f"environment.train: {options.train}"
    wanted = {s: n for s in SPLITS if isinstance(n := getattr(options, s), int)}
    found = {s: _problems(getattr(options, s), s, options) for s in SPLITS if s not in wanted}
    trained = [
        Question(task, "", task.question, where)
        for task, where in found.pop("train")
        if _hard_enough(task, where, options)
    ]
    if not trained:
        raise ConfigError(
            f"{source} has no problem of {options.difficulty_column} "
            f"{options.difficulty_at_least:g} or more; lower environment.difficulty_at_least"
        )
    tasks = {split: [task for task, _ in rows] for split, rows in found.items()}
    held = {task.question for rows in tasks.values() for task in rows}
    parts = hold_out(without_held(trained, held, source), wanted, source, "environment")
    for split in wanted:
        # An id that was made of the question has the name of its split.
        tasks[split] = [
            replace(task, id=f"{split}-{task.id.removeprefix('train-')}")
            if task.id.startswith("train-")
            else task
            for task in (question.task for question in parts[split])
        ]
    kept = [question.task for question in parts["train"]]
    if options.limit is not None and options.limit < len(kept):
        ranked = sorted(kept, key=lambda task: (sha(f"{options.seed}/{task.question}"), task.id))
        drawn = {task.id for task in ranked[: options.limit]}
        kept = [task for task in kept if task.id in drawn]
    return {"train": kept, **tasks}


def read_problems(path: Path, split: str, options: MathOptions) -> list[Task]:
    r"""Read the tasks of a file or of a data set of the hub, in its order.

    A row is `{"question": …, "answers": …}` in the columns of the options; the columns of DeepScaleR
    (problem, answer, solution) and DeepMath (question, final_answer, difficulty) are found without
    options. Answers are a text, a number or a list of these. Of an answer with a \boxed{…} the last
    one counts, of one in GSM8K's form ("reasoning #### 72") the text after the mark; the reasoning
    is then the solution, unless the row has one. `id` (text or integer) defaults to a hash of the
    question. Of rows without an id that have the same question the first is kept, and a warning
    counts the others.

    Raises:
        ConfigError: the file does not exist, is empty or does not have the format that its name
            says, a field is missing or of the wrong type, or an id is repeated.
    """
    return [task for task, _ in _problems(path, split, options)]


def _hard_enough(task: Task, where: str, options: MathOptions) -> bool:
    if options.difficulty_at_least is None:
        return True
    value = task.columns.get(options.difficulty_column)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(
            f'{where}: "{options.difficulty_column}" is {shortened(value)}; expected a number, which '
            "environment.difficulty_at_least requires, or name another environment.difficulty_column"
        )
    return value >= options.difficulty_at_least


def _rows(path: Path, split: str, options: MathOptions) -> Sequence[Row]:
    field = f"environment.{split}"
    without = _TRACES - {options.solution_column}
    if (name := hub_name(path)) is None:
        return file_rows(path, field, without)
    repository, _, part = name.partition(":")
    fix = f"correct {field}, or download its files on a machine with a network and name them there"
    return hub_rows(repository, None, part or "train", field, fix, without)


def _problems(path: Path, split: str, options: MathOptions) -> list[tuple[Task, str]]:
    """Read tasks, each with the position of its row."""
    tasks: dict[str, tuple[Task, str]] = {}
    repeated = 0
    for where, row in _rows(path, split, options):
        task = _task(row, where, split, options)
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
        warn(f"environment.{split}: {path}: {repeated} rows repeat a question; the first is kept")
    return list(tasks.values())


def _task(row: Mapping[str, Any], where: str, split: str, options: MathOptions) -> Task:
    column = options.question_column or _first(QUESTION_COLUMNS, row) or QUESTION_COLUMNS[0]
    question = text_field(
        row, column, where, f'"{column}": "…" (or set environment.question_column)'
    )
    solution = _optional(row, options.solution_column, where)
    raw = _raw_answers(row, where, solution, options.answer_column)
    reasoned = next((text for text in raw if _GSM8K_MARK in text), "")
    return Task(
        id=id_field(row, where, f"{split}-{digest(question)}"),
        question=question,
        answers=tuple(_final(text, where) for text in raw),
        stratum=_optional(row, options.stratum_column, where),
        solution=solution or reasoned,
        columns=row,
    )


def _raw_answers(
    row: Mapping[str, Any], where: str, solution: str, column: str | None
) -> list[str]:
    """Return the texts of the answer column; without one the solution, if it has a box."""
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
    """Return an answer's last box, its text after GSM8K's mark, or all of it."""
    boxed = last_boxed(text)
    final = (text.rpartition(_GSM8K_MARK)[2] if boxed is None else boxed).strip()
    if not final:
        raise ConfigError(f"{where}: the answer {shortened(text)} is blank at its end; give it")
    return final


def _optional(row: Mapping[str, Any], column: str, where: str) -> str:
    """Return a text or number as text; "" if it is missing or null."""
    value = row.get(column)
    if value is None or value == "":
        return ""
    text = _plain(value)
    if not text:
        raise ConfigError(f'{where}: "{column}" is {shortened(value)}; expected text')
    return text


def _first(columns: Sequence[str], row: Mapping[str, Any]) -> str | None:
    return next((column for column in columns if column in row), None)


def _answer(text: str) -> str | None:
    """Return the last boxed answer, stripped; None if there is none or it is blank."""
    return (last_boxed(text) or "").strip() or None


def _plain(value: object) -> str:
    """Return a text or finite number as text; "" for anything else, such as true."""
    return "" if isinstance(value, bool) else plain_text(value)
