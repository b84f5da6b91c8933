"""Questions and verifiers of the package `reasoning-gym`, answered in one turn.

The package generates each question from a seed, and its verifiers score answers from 0 to 1. A task's
curriculum has levels; each level of each task is a stratum.
"""

import io
import itertools
import math
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cotune import ConfigError, Task, TaskEnvironment, Trajectory
from cotune.data.splits import SPLITS, digest, sha
from cotune.environments.registry import EnvironmentKind
from cotune.environments.trl_factory import keep_generators
from cotune.utils.progress import begin
from cotune.utils.text import named
from cotune_lab.last_number import last_number

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

RUN_ANSWERS = frozenset({
    "binary_matrix", "countdown", "intermediate_integration", "n_queens", "polynomial_multiplication",
    "puzzle24", "simple_integration", "spiral_matrix", "string_insertion",
})  # fmt: skip
"""Tasks of reasoning-gym 0.1.25 whose verifiers evaluate the answer as Python code."""
REFUSED = RUN_ANSWERS | {
    # Their questions differ from one process to the next.
    "codeio", "isomorphic_strings", "knight_swap", "ransom_note", "word_ladder",
    # Their verifiers accept an answer that needs no thought, such as 0, nan or any text.
    "coin_flip", "complex_arithmetic", "game_of_life_halting",
    # It mixes others, some of them refused.
    "composite",
}  # fmt: skip
"""Tasks that no policy should be trained on."""

_SPARE = 8  # questions that may be drawn for each one that is needed


class GymTask(BaseModel):
    """A task of reasoning-gym."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    """The name of its data set, such as chain_sum."""
    config: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Fields of its configuration; they replace those of a level."""
    difficulty: int | None = None
    """A level of its curriculum, from 0, without the easier ranges of lower levels; what has no level as
    high has its highest. null: the default configuration."""

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class ReasoningGymOptions(BaseModel):
    """Generated questions of the package `reasoning-gym`, scored by its verifiers."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: Literal["reasoning-gym"] = "reasoning-gym"
    tasks: tuple[GymTask, ...] = Field(min_length=1)
    """Names of its data sets, each alone or as {name: …, config: {…}, difficulty: …}; one for each level."""
    train: int = Field(default=500, ge=1)
    """Number of training questions, in equal shares of each task and level."""
    validation: int = Field(default=100, ge=1)
    """Number of questions for choosing the best policy."""
    test: int = Field(default=200, ge=1)
    """Number of questions for the final evaluation."""
    seed: int = Field(default=0, ge=0)
    """Other questions for another seed."""
    answer: AnswerForm = "tags"
    """Which text is the answer: the last one between <answer> and </answer>, or the reply's last number.
    Small models often write no tags."""

    @model_validator(mode="after")
    def _consistent(self) -> "ReasoningGymOptions":
        labels = [_label(task) for task in self.tasks]
        for task, label in zip(self.tasks, labels, strict=True):
            if labels.count(label) > 1:
                raise ValueError(f"environment.tasks names {label} twice; expected each once")
            if task.name in REFUSED:
                raise ValueError(
                    f"environment.tasks: {task.name} is refused: its verifier runs answers as Python code or "
                    "accepts any, or its questions cannot be repeated; name another"
                )
        return self


class ReasoningGymEnvironment(TaskEnvironment):
    """Generated questions answered in one turn; by default the last text between the answer tags counts.

    The reward is 1 for the verifier's full score, else 0: many verifiers give a part of it to answers
    that hold the right one among others, or to any text. `reward/verifier` in the metrics is the score
    with these parts. A verifier that raises scores 0.

    Raises:
        ConfigError: the package is missing; it refuses a task's name, level or configuration; or there
            are too few different questions.
    """

    takes_any_tasks = False

    def __init__(self, options: ReasoningGymOptions) -> None:
        if find_spec("reasoning_gym") is None:
            raise ConfigError(
                f"environment.kind {PACKAGE} needs {PACKAGE}, which is not installed: pip install -e 'lab[{PACKAGE}]'"
            )
        self._form: AnswerForm = options.answer
        self.required = ("<answer>", "</answer>") if options.answer == "tags" else ()
        instruction, self.no_answer = _FORMS[options.answer]
        with keep_generators():  # some draw from the process's own generators
            self._datasets = {_label(task): _make_dataset(options, task) for task in options.tasks}
            super().__init__(_draw_splits(options, self._datasets), instruction)

    def read_answer(self, text: str) -> str | None:
        """Return the last text between the answer tags, or the last number."""
        if self._form == "tags":
            return last_answer(text)
        number = last_number(text)
        return None if number is None else f"{number:f}"

    def score(self, trajectory: Trajectory) -> tuple[float, str | None]:
        """Return the reward of the answer in the policy's own text, and that answer."""
        answer = self.answer_of(trajectory)
        return float(self._verify(trajectory.task, answer) == 1), answer

    def reward_parts(self, trajectory: Trajectory) -> dict[str, float]:
        """Return the verifier's own score."""
        return {"verifier": self._verify(trajectory.task, self.answer_of(trajectory))}

    def _verify(self, task: Task, answer: str | None) -> float:
        """Return the verifier's score of an answer, between 0 and 1."""
        if answer is None:
            return 0.0
        try:
            score = float(self._datasets[task.stratum].score_answer(answer, dict(task.columns)))
        except Exception:  # noqa: BLE001 - what it cannot read is a wrong answer
            return 0.0
        return min(max(score, 0.0), 1.0) if math.isfinite(score) else 0.0


def last_answer(text: str) -> str | None:
    """Return the last text between the answer tags, stripped; None if there is none or it is blank.

    >>> last_answer("between <answer> and </answer>: <answer> 7 </answer> and so on")
    '7'
    """
    before, closing, _ = text.rpartition("</answer>")
    _, opening, answer = before.rpartition("<answer>")
    answer = answer.partition("</answer>")[0]
    return (answer.strip() or None) if closing and opening else None


def _label(task: GymTask) -> str:
    """Return the stratum of a task's questions."""
    return task.name if task.difficulty is None else f"{task.name} level {task.difficulty}"


def _make_dataset(options: ReasoningGymOptions, task: GymTask) -> Any:
    """Return a task's data set, with room for the questions of all splits."""
    gym = import_module("reasoning_gym")
    questions = sum(getattr(options, split) for split in SPLITS)
    size = _SPARE * questions + 100
    seed = int(sha(f"reasoning-gym/{options.seed}/{_label(task)}")[:7], 16)
    try:
        if task.difficulty is None:
            return gym.create_dataset(task.name, **task.config, seed=seed, size=size)
        curriculum = gym.factory.create_curriculum(task.name)
        curriculum.set_global_level(task.difficulty)
        base = import_module("reasoning_gym.coaching.base_curriculum")
        # Without the ranges of lower levels.
        context = base.DefaultCurriculumContext(mode=base.RangeAttributeMode.UPPER_BOUND)
        config = curriculum.generate_configuration(context=context)
        config = replace(config, **task.config, seed=seed, size=size)
        return gym.factory.DATASETS[task.name][0](config=config)
    except Exception as error:
        raise ConfigError(
            f"environment.tasks: reasoning-gym refuses {_label(task)} ({named(error)}); change its "
            "name, config or difficulty"
        ) from error


def _draw_splits(
    options: ReasoningGymOptions, datasets: Mapping[str, Any]
) -> dict[str, list[Task]]:
    """Return the tasks of each split, those of the data sets in turn; no question is in two of them."""
    texts = set[str]()
    streams = {label: _draw_questions(label, dataset, texts) for label, dataset in datasets.items()}
    splits: dict[str, list[Task]] = {split: [] for split in SPLITS}
    # Held-out splits first, so that they do not depend on the number of training questions.
    for split in reversed(SPLITS):
        total = getattr(options, split)
        for label, stream in itertools.islice(itertools.cycle(streams.items()), total):
            # At a high level some generators may never finish; this says which.
            begin(f"generating questions of {label}")
            task = next(stream, None)
            if task is None:
                raise ConfigError(
                    f"environment.{split} asks for {total} questions, and after {len(splits[split])} there is "
                    f"none of {label} that no other split has; lower it, or change the task's config or "
                    "difficulty"
                )
            splits[split].append(task)
    return splits


def _draw_questions(label: str, dataset: Any, texts: set[str]) -> Iterator[Task]:
    """Generate a data set's questions that are not in `texts`, and add them there."""
    for index in range(len(dataset)):
        try:
            with redirect_stdout(io.StringIO()):  # some print
                entry = cast("dict[str, Any]", dataset[index])
        except Exception:  # noqa: BLE001 - some seeds give no puzzle
            continue
        question = str(entry["question"])
        answer = entry["answer"]
        text = " ".join(question.split())
        if text not in texts:
            texts.add(text)
            yield Task(
                id=f"{label.replace(' ', '-')}-{digest(question)}",
                question=question,
                answers=(answer,) if isinstance(answer, str) and answer.strip() else (),
                stratum=label,
                columns=dict(entry),
            )


KIND = EnvironmentKind(
    options=ReasoningGymOptions,
    build=lambda options, tasks: ReasoningGymEnvironment(options),
)
