"""Questions and verifiers of the package `reasoning-gym`, answered in one turn.

The package generates each question from a seed, and its verifiers score answers from 0 to 1. A task's
curriculum has levels; each level of each task is a stratum.
"""

import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Literal, cast

from pydantic import Field, model_validator

from cotune.data.splits import SPLITS, digest, sha, warn
from cotune.environments.base import TaskEnvironment
from cotune.environments.environment_kind import EnvironmentKind, numbers_of_questions
from cotune.environments.global_draws import generators_kept
from cotune.environments.tag_protocol import ANSWER_TAGS
from cotune.errors import ConfigError
from cotune.rewards.last_number import last_number
from cotune.types import Task, Trajectory
from cotune.utils.packages import installed
from cotune.utils.progress import begin
from cotune.utils.text import did_you_mean, named
from cotune.utils.validation import Model, TextOrFields

PACKAGE = "reasoning-gym"
AnswerForm = Literal["tags", "last_number"]
"""Which text of a reply is its answer."""
_SOLVE = "Solve the problem. Give only the final answer"
_FORMS: Mapping[AnswerForm, tuple[str, str]] = {
    "tags": (
        f"{_SOLVE}, in the form that the problem asks for, between <answer> and </answer>.",
        "no answer between <answer> and </answer>",
    ),
    "last_number": (f"{_SOLVE}, as a number.", "no number"),
}
"""The initial instruction, and what is wrong with a reply without an answer."""

_REFUSED_BY_REASON = {
    "its verifier evaluates the answer as Python code": (
        "binary_matrix", "countdown", "intermediate_integration", "n_queens",
        "polynomial_multiplication", "puzzle24", "simple_integration", "spiral_matrix",
        "string_insertion",
    ),
    "its questions differ from one process to the next, so that no run could be resumed": (
        "codeio", "isomorphic_strings", "knight_swap", "ransom_note", "word_ladder",
    ),
    "its verifier accepts an answer that needs no thought, such as 0, nan or any text": (
        "coin_flip", "complex_arithmetic", "game_of_life_halting",
    ),
    "it mixes others; name those in environment.tasks": ("composite",),
}  # fmt: skip
REFUSED: Mapping[str, str] = {
    name: reason for reason, names in _REFUSED_BY_REASON.items() for name in names
}
"""Tasks of the package that no policy should be trained on, as of reasoning-gym 0.1.25, and why."""

_SPAN = 2**29  # seeds of a split; no split is as large
_SPARE = 8  # questions that may be drawn for each one that is wanted


class GymTask(TextOrFields):
    """A task of reasoning-gym."""

    name: str
    """The name of its data set, such as chain_sum."""
    config: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Fields of its configuration; they replace those of a level."""
    difficulty: int | tuple[int, ...] | None = None
    """A level or levels of its curriculum, from 0; null: the environment's."""


class ReasoningGymOptions(Model):
    """Generated questions of the package `reasoning-gym`, scored by its verifiers."""

    kind: Literal["reasoning-gym"] = "reasoning-gym"
    tasks: tuple[GymTask, ...] = Field(min_length=1)
    """Names of its data sets, each alone or as {name: …, config: {…}, difficulty: …}."""
    difficulty: int | tuple[int, ...] | None = None
    """A level or levels, from 0, of each task's curriculum, without the easier ranges of lower levels; what
    has no level as high has its highest. null, and for tasks without a curriculum: the default
    configuration."""
    train: int = Field(default=500, ge=1, lt=_SPAN)
    """Number of training questions, in equal shares of each task and level."""
    validation: int = Field(default=100, ge=1, lt=_SPAN)
    """Number of questions for choosing the best policy."""
    test: int = Field(default=200, ge=1, lt=_SPAN)
    """Number of questions for the final evaluation."""
    seed: int = Field(default=0, ge=0)
    """Other questions for another seed."""
    answer: AnswerForm = "tags"
    """Which text is the answer: the last one between <answer> and </answer>, or the reply's last number.
    Small models often write no tags."""

    @model_validator(mode="after")
    def _consistent(self) -> "ReasoningGymOptions":
        twice = [name for name, n in Counter(task.name for task in self.tasks).items() if n > 1]
        if twice:
            raise ValueError(f"environment.tasks names {twice[0]} twice; expected each task once")
        for task in self.tasks:
            if (reason := REFUSED.get(task.name)) is not None:
                raise ValueError(
                    f"environment.tasks: {task.name} is refused: {reason}; name another"
                )
            if own := sorted({"seed", "size"} & task.config.keys()):
                raise ValueError(
                    f"environment.tasks: config of {task.name} sets {own[0]}; set environment.seed, "
                    "train, validation and test instead"
                )
        return self


class ReasoningGymEnvironment(TaskEnvironment):
    """Generated questions answered in one turn; by default the last text between the answer tags counts.

    The reward is 1 for the verifier's full score, else 0: many verifiers give a part of it to answers
    that hold the right one among others, or to any text. `reward/verifier` in the metrics is the score
    with these parts. A verifier that raises scores 0, and is counted as `reward/verifier_failed`.

    Raises:
        ConfigError: the package is missing; it refuses a task's name, level or configuration; or there
            are too few different questions.
    """

    takes_any_tasks = False

    def __init__(self, options: ReasoningGymOptions) -> None:
        if installed(PACKAGE) is None:
            raise ConfigError(
                f"environment.kind {PACKAGE} needs the package {PACKAGE}, which is not installed: pip "
                f"install 'cotune[{PACKAGE}]'"
            )
        texts = set[str]()
        tasks: dict[str, list[Task]] = {}
        with generators_kept():  # some draw from the process's own generators
            strata = [stratum for task in options.tasks for stratum in _strata(task, options)]
            # Held-out splits first, so that they do not depend on the number of training questions.
            for split in reversed(SPLITS):
                tasks[split] = _split(options, strata, split, texts)
        self._form: AnswerForm = options.answer
        instruction, self.no_answer = _FORMS[options.answer]
        super().__init__({split: tasks[split] for split in SPLITS}, instruction)
        self._verifiers = {stratum.label: stratum.dataset("test", 1) for stratum in strata}

    @property
    def required(self) -> tuple[str, ...]:
        return ANSWER_TAGS if self._form == "tags" else ()

    def read_answer(self, text: str) -> str | None:
        """Return the last text between the answer tags, or the last number."""
        if self._form == "tags":
            return last_answer(text)
        number = last_number(text)
        return None if number is None else f"{number:f}"

    def score(self, trajectory: Trajectory) -> tuple[float, str | None]:
        """Return the reward of the answer in the policy's own text, and that answer."""
        answer = self.read_answer(trajectory.own_text)
        score, _ = self._verify(trajectory.task, answer)
        return float(score == 1), answer

    def reward_parts(self, trajectory: Trajectory) -> dict[str, float]:
        """Return the verifier's own score, and 1 under `verifier_failed` if it raised."""
        score, failed = self._verify(trajectory.task, self.read_answer(trajectory.own_text))
        return {"verifier": score, "verifier_failed": float(failed)}

    def _verify(self, task: Task, answer: str | None) -> tuple[float, bool]:
        """Return the verifier's score of an answer, between 0 and 1, and whether it failed."""
        if answer is None:
            return 0.0, False
        try:
            score = float(self._verifiers[task.stratum].score_answer(answer, dict(task.columns)))
        except Exception as error:  # noqa: BLE001 - what it cannot read is a wrong answer
            reason = type(error).__name__
            warn(f"environment: a verifier of {task.stratum} raised {reason}; such answers score 0")
            return 0.0, True
        return (min(max(score, 0.0), 1.0), False) if math.isfinite(score) else (0.0, True)


def last_answer(text: str) -> str | None:
    """Return the last text between the answer tags, stripped; None if there is none or it is blank.

    >>> last_answer("between <answer> and </answer>: <answer> 7 </answer> and so on")
    '7'
    """
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(end, 0))
    if start < 0:
        return None
    return text[start + len("<answer>") :].partition("</answer>")[0].strip() or None


@dataclass(frozen=True)
class _Stratum:
    """A task at one level of its curriculum, or in its default configuration (None)."""

    task: GymTask
    level: int | None
    seed: int

    @property
    def label(self) -> str:
        name = self.task.name
        return name if self.level is None else f"{name} level {self.level}"

    def dataset(self, split: str, count: int) -> Any:
        """Return the package's data set for a split, with room for `count` questions.

        Seeds of different splits are at least `_SPAN` minus the size of a split apart.
        """
        seed = int(sha(f"reasoning-gym/{self.seed}/{self.label}")[:8], 16) % _SPAN
        fields: dict[str, Any] = {
            **self.task.config,
            "seed": seed + _SPAN * SPLITS.index(split),
            "size": _SPARE * count + 100,
        }
        factory = _factory()
        dataset, config = factory.DATASETS[self.task.name]
        try:
            if self.level is None:
                return dataset(config=config(**fields))
            curriculum = factory.create_curriculum(self.task.name)
            curriculum.set_global_level(self.level)
            base = import_module("reasoning_gym.coaching.base_curriculum")
            # Without the ranges of lower levels.
            only = base.DefaultCurriculumContext(mode=base.RangeAttributeMode.UPPER_BOUND)
            return dataset(
                config=replace(curriculum.generate_configuration(context=only), **fields)
            )
        except Exception as error:
            raise ConfigError(
                f"environment.tasks: reasoning-gym refuses {self.label} ({named(error, 200)}); change "
                "its config or difficulty"
            ) from error


def _factory() -> Any:
    import_module("reasoning_gym")
    return import_module("reasoning_gym.factory")


def _strata(task: GymTask, options: ReasoningGymOptions) -> list[_Stratum]:
    """Return the levels of a task, each once, or its default configuration."""
    factory = _factory()
    if task.name not in factory.DATASETS:
        names = sorted(factory.DATASETS.keys() - REFUSED.keys())
        near = did_you_mean(task.name, names)
        raise ConfigError(
            f"environment.tasks: {PACKAGE} has no task {task.name!r}{near}; expected one of its "
            f"{len(names)} names, such as {names[0]} or {names[-1]}"
        )
    levels = task.difficulty
    if levels is None and factory.has_curriculum(task.name):
        levels = options.difficulty
    each = levels if isinstance(levels, tuple) else (levels,)
    return [_Stratum(task, level, options.seed) for level in dict.fromkeys(each)]


def _split(
    options: ReasoningGymOptions, strata: Sequence[_Stratum], split: str, texts: set[str]
) -> list[Task]:
    """Return the tasks of a split, the strata in turn; `texts` holds the questions that are taken."""
    count = cast("int", getattr(options, split))
    parts = [
        _questions(stratum, split, len(range(i, count, len(strata))), texts)
        for i, stratum in enumerate(strata)
    ]
    return [parts[i % len(strata)][i // len(strata)] for i in range(count)]


def _questions(stratum: _Stratum, split: str, share: int, texts: set[str]) -> list[Task]:
    """Return different questions of a stratum; ConfigError if it has too few."""
    # At a high level some generators may never finish; this says which.
    begin(f"generating questions of {stratum.label}")
    dataset = stratum.dataset(split, share)
    tasks: list[Task] = []
    reason = ""
    for index in range(len(dataset)):
        if len(tasks) == share:
            return tasks
        try:
            with redirect_stdout(io.StringIO()):  # some print
                entry = cast("dict[str, Any]", dataset[index])
        except Exception as error:  # noqa: BLE001 - some seeds give no puzzle
            reason = f" ({type(error).__name__} in the generator)"
            continue
        text = " ".join(str(entry["question"]).split())
        if text not in texts:
            texts.add(text)
            tasks.append(_task(entry, stratum, split))
    raise ConfigError(
        f"environment.{split} asks for {share} questions of {stratum.label}, and {len(tasks)} different "
        f"ones were found that no other split has{reason}; lower it, or change the task's config or "
        "difficulty"
    )


def _task(entry: Mapping[str, Any], stratum: _Stratum, split: str) -> Task:
    question, answer = str(entry["question"]), entry["answer"]
    return Task(
        id=f"{stratum.task.name}-{split}-{digest(question)}",
        question=question,
        answers=(answer,) if isinstance(answer, str) and answer.strip() else (),
        stratum=stratum.label,
        columns=dict(entry),
    )


KIND = EnvironmentKind(
    options=ReasoningGymOptions,
    build=lambda options, tasks: ReasoningGymEnvironment(options),
    sizes=numbers_of_questions,
    extra=PACKAGE,
)
