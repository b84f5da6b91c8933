"""Questions and verifiers of the package `reasoning-gym`, answered in one turn.

The package generates each question from a seed, and its verifiers score answers from 0 to 1. A task's
curriculum has levels; each level of each task is a stratum.
"""

import io
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import fields, replace
from importlib import import_module
from itertools import islice
from typing import Any, Literal, cast

from pydantic import Field, model_validator

from cotune.data.splits import SPLITS, digest, sha, warn
from cotune.environments.base import TaskEnvironment, missing_texts
from cotune.environments.global_draws import generators_kept
from cotune.environments.tag_protocol import ANSWER_TAGS
from cotune.errors import ConfigError
from cotune.rewards.last_number import last_number
from cotune.types import Action, Response, Task, Trajectory
from cotune.utils.packages import installed
from cotune.utils.progress import begin
from cotune.utils.text import did_you_mean, named
from cotune.utils.validation import Model, TextOrFields

PACKAGE = "reasoning-gym"
AnswerForm = Literal["tags", "last_number"]
"""Which text of a reply is its answer."""
_SOLVE = "Solve the problem. Give only the final answer"
INITIAL_INSTRUCTIONS: Mapping[AnswerForm, str] = {
    "tags": f"{_SOLVE}, in the form that the problem asks for, between <answer> and </answer>.",
    "last_number": f"{_SOLVE}, as a number.",
}
NO_ANSWER: Mapping[AnswerForm, str] = {
    "tags": "no answer between <answer> and </answer>",
    "last_number": "no number",
}

_RUNS_CODE = "its verifier evaluates the answer as Python code"
_DIFFERS = "its questions differ from one process to the next, so that no run could be resumed"
REFUSED: Mapping[str, str] = {
    "binary_matrix": _RUNS_CODE,
    "countdown": _RUNS_CODE,
    "intermediate_integration": _RUNS_CODE,
    "n_queens": _RUNS_CODE,
    "polynomial_multiplication": _RUNS_CODE,
    "puzzle24": _RUNS_CODE,
    "simple_integration": _RUNS_CODE,
    "spiral_matrix": _RUNS_CODE,
    "string_insertion": _RUNS_CODE,
    "codeio": _DIFFERS,
    "isomorphic_strings": _DIFFERS,
    "knight_swap": _DIFFERS,
    "ransom_note": _DIFFERS,
    "word_ladder": _DIFFERS,
    "coin_flip": "its verifier accepts the first digits of an answer, such as 0",
    "complex_arithmetic": "its verifier accepts nan",
    "game_of_life_halting": "its verifier accepts any text as the answer yes",
    "composite": "it mixes others; name those in environment.tasks",
}
"""Tasks of the package that no policy should be trained on, as of reasoning-gym 0.1.25, and why."""

_SPAN = 2**29  # seeds of a split; no split is as large
_KEPT = 4096  # scores that are kept, more than a batch of rollouts has
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
    """A level or levels, from 0, of each task's curriculum, without the easier ranges of lower levels;
    null, and for tasks without a curriculum: the task's default configuration."""
    train: int = Field(default=500, ge=1, lt=_SPAN)
    """Number of training questions, in equal shares of each task and level."""
    validation: int = Field(default=100, ge=1, lt=_SPAN)
    """Number of questions for choosing the best policy."""
    test: int = Field(default=200, ge=1, lt=_SPAN)
    """Number of questions for the final evaluation."""
    seed: int = Field(default=0, ge=0)
    """Other questions for another seed."""
    partial_credit: bool = False
    """Take a verifier's scores between 0 and 1 as rewards. Many tasks give some to answers that hold the
    right one among others, or to any text; false: only the full score is rewarded, with 1."""
    answer: AnswerForm = "tags"
    """Which text is the answer: the last one between <answer> and </answer>, or the reply's last number.
    Small models often write no tags."""
    initial_instruction: str | None = None
    """Used if the run file's `instruction` has no text; null: one that asks for the answer in this form."""

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
        given = self.initial_instruction
        if given is not None and (missing := missing_texts(given, self.required)):
            raise ValueError(f"environment.initial_instruction {missing}")
        return self

    @property
    def required(self) -> tuple[str, ...]:
        """Return the texts that an instruction must contain."""
        return ANSWER_TAGS if self.answer == "tags" else ()


class ReasoningGymEnvironment(TaskEnvironment):
    """Generated questions answered in one turn; by default the last text between the answer tags counts.

    Rewards are the package's scores, 0 without an answer. A verifier that raises scores 0, and the
    metrics count it as `reward/verifier_failed`; `reward/verifier` is the score with partial credit.

    Raises:
        ConfigError: the package is missing; a task, level or configuration is unknown or refused; or
            there are too few different questions.
    """

    takes_any_tasks = False

    def __init__(self, options: ReasoningGymOptions) -> None:
        strata = _strata(options)
        # Held-out splits first, so that they do not depend on the number of training questions.
        seen, tasks = set[str](), dict[str, list[Task]]()
        with generators_kept():  # some draw from the process's own generators
            for split in reversed(SPLITS):
                tasks[split] = _drawn(options, strata, split, seen)
        self._form: AnswerForm = options.answer
        self._required = options.required
        given = options.initial_instruction
        super().__init__(
            {split: tasks[split] for split in SPLITS},
            INITIAL_INSTRUCTIONS[options.answer] if given is None else given,
        )
        self._verifiers = {stratum.label: stratum.dataset("test", 1) for stratum in strata}
        self._partial_credit = options.partial_credit
        self._scores: dict[tuple[str, str], tuple[float, bool]] = {}

    @property
    def required(self) -> tuple[str, ...]:
        return self._required

    def respond(self, actions: Sequence[Action]) -> list[Response]:
        """End each episode; a turn without an answer is invalid."""
        return [
            Response(done=True, action="answer")
            if answer_of(action.text, self._form) is not None
            else Response(done=True, action="invalid", error=NO_ANSWER[self._form])
            for action in actions
        ]

    def reference(self, task: Task) -> str:
        """Return the generator's answer, between the tags if they are needed; "" for a task without one."""
        if not task.answers:
            return ""
        return f"<answer>{task.answers[0]}</answer>" if self._form == "tags" else task.answers[0]

    def score(self, trajectory: Trajectory) -> tuple[float, str | None]:
        """Return the reward of the answer in the policy's own text, and that answer."""
        answer = answer_of(trajectory.own_text, self._form)
        score, _ = self._verified(trajectory.task, answer)
        return (score if self._partial_credit else float(score == 1)), answer

    def reward_parts(self, trajectory: Trajectory) -> dict[str, float]:
        """Return the verifier's own score, and 1 under `verifier_failed` if it raised."""
        score, failed = self._verified(trajectory.task, answer_of(trajectory.own_text, self._form))
        return {"verifier": score, "verifier_failed": float(failed)}

    def _verified(self, task: Task, answer: str | None) -> tuple[float, bool]:
        """Return the verifier's score of an answer, between 0 and 1, and whether it failed.

        A rollout asks for it twice, so scores are kept.
        """
        if answer is None:
            return 0.0, False
        key = task.id, answer
        if key not in self._scores:
            if len(self._scores) >= _KEPT:
                self._scores.clear()
            self._scores[key] = self._verify(task, answer)
        return self._scores[key]

    def _verify(self, task: Task, answer: str) -> tuple[float, bool]:
        try:
            score = float(self._verifiers[task.stratum].score_answer(answer, dict(task.columns)))
        except Exception as error:  # noqa: BLE001 - what it cannot read is a wrong answer
            reason = type(error).__name__
            name = task.stratum
            warn(f"environment: a verifier of {name} raised {reason}; such answers score 0")
            return 0.0, True
        return (min(max(score, 0.0), 1.0), False) if math.isfinite(score) else (0.0, True)


def answer_of(text: str, form: AnswerForm) -> str | None:
    """Return the answer of a reply, stripped; None if it has none.

    >>> answer_of("3 + 4 is 7.", "last_number"), answer_of("3 + 4 is 7.", "tags")
    ('7', None)
    """
    if form == "tags":
        return last_answer(text)
    number = last_number(text)
    return None if number is None else f"{number:f}"


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


class _Stratum:
    """A task at one level of its curriculum, or in its default configuration.

    Attributes:
        label: the name of the stratum.
    """

    def __init__(self, task: GymTask, level: int | None, seed: int) -> None:
        self.name, self._task, self._level = task.name, task, level
        self.label = task.name if level is None else f"{task.name} level {level}"
        self._seed = int(sha(f"reasoning-gym/{seed}/{self.label}")[:8], 16) % _SPAN

    def dataset(self, split: str, count: int) -> Any:
        """Return the package's data set for a split, with room for `count` questions.

        Seeds of different splits are at least `_SPAN` minus the size of a split apart.
        """
        given: dict[str, Any] = {
            **self._task.config,
            "seed": self._seed + _SPAN * SPLITS.index(split),
            "size": _SPARE * count + 100,
        }
        factory = import_module("reasoning_gym.factory")
        dataset, config = factory.DATASETS[self.name]
        try:
            if self._level is None:
                return dataset(config=config(**given))
            return dataset(config=replace(self._of_level(factory), **given))
        except Exception as error:
            reason = named(error, 160)
            field = "" if self._level is None else f" at difficulty {self._level}"
            raise ConfigError(
                f"environment.tasks: reasoning-gym refuses {self.name}{field} ({reason}); change its "
                "config or difficulty"
            ) from error

    def _of_level(self, factory: Any) -> Any:
        """Return the configuration of the level, whose ranges leave out those of lower levels."""
        base = import_module("reasoning_gym.coaching.base_curriculum")
        curriculum = factory.create_curriculum(self.name)
        curriculum.set_global_level(self._level)
        only = base.DefaultCurriculumContext(mode=base.RangeAttributeMode.UPPER_BOUND)
        return curriculum.generate_configuration(context=only)


def _strata(options: ReasoningGymOptions) -> list[_Stratum]:
    """Check names, configurations and levels, and return the strata in the order of the options."""
    if installed(PACKAGE) is None:
        raise ConfigError(
            f"environment.kind {PACKAGE} needs the package {PACKAGE}, which is not installed: pip "
            f"install 'cotune[{PACKAGE}]'"
        )
    with generators_kept():
        import_module("reasoning_gym")
    factory = import_module("reasoning_gym.factory")
    known = sorted(factory.DATASETS.keys() - REFUSED.keys())
    strata: list[_Stratum] = []
    for task in options.tasks:
        if task.name not in factory.DATASETS:
            near = did_you_mean(task.name, known)
            raise ConfigError(
                f"environment.tasks: {PACKAGE} has no task {task.name!r}{near}; expected one of its "
                f"{len(known)} names, such as {known[0]} or {known[-1]}"
            )
        _check_config(task, factory.DATASETS[task.name][1])
        strata += [_Stratum(task, level, options.seed) for level in _levels(task, options, factory)]
    return strata


def _check_config(task: GymTask, config: Any) -> None:
    names = [field.name for field in fields(config) if field.name not in ("seed", "size")]
    for given in task.config:
        if given not in names:
            raise ConfigError(
                f"environment.tasks: {task.name} has no configuration {given!r}"
                f"{did_you_mean(given, names)}; expected {', '.join(names) or 'none'}"
            )


def _levels(task: GymTask, options: ReasoningGymOptions, factory: Any) -> tuple[int | None, ...]:
    """Return the levels of a task, each once; (None,) for its default configuration."""
    if not factory.has_curriculum(task.name):
        if task.difficulty is not None:
            raise ConfigError(
                f"environment.tasks: {task.name} has no curriculum, but sets difficulty; remove it, "
                "and set fields of its config"
            )
        return (None,)
    given = options.difficulty if task.difficulty is None else task.difficulty
    if given is None:
        return (None,)
    asked = (given,) if isinstance(given, int) else given
    attributes = cast("dict[str, Any]", factory.create_curriculum(task.name).attributes)
    most = max(len(attribute.levels) for attribute in attributes.values()) - 1
    wrong = [level for level in asked if not 0 <= level <= most]
    if wrong or not asked:
        raise ConfigError(
            f"environment.difficulty is {wrong[0] if wrong else '[]'}, but {task.name} has the levels "
            f"0 to {most}; choose among them, or set the task's own difficulty"
        )
    return tuple(dict.fromkeys(asked))


def _drawn(
    options: ReasoningGymOptions, strata: Sequence[_Stratum], split: str, seen: set[str]
) -> list[Task]:
    """Return the tasks of a split, the strata in turn; `seen` holds the texts that are taken."""
    count, drawn = cast("int", getattr(options, split)), list[list[Task]]()
    for i, stratum in enumerate(strata):
        share = len(range(i, count, len(strata)))
        # At a high level some generators may never finish; this says which.
        begin(f"generating questions of {stratum.label}")
        drawn.append(list(islice(_questions(stratum, split, share, seen), share)))
    return [drawn[i % len(strata)][i // len(strata)] for i in range(count)]


def _questions(stratum: _Stratum, split: str, share: int, seen: set[str]) -> Iterator[Task]:
    """Yield different questions of a stratum; ConfigError if it has too few."""
    dataset, found, reason = stratum.dataset(split, share), 0, ""
    for index in range(len(dataset)):
        try:
            with redirect_stdout(io.StringIO()):  # some print
                entry = cast("dict[str, Any]", dataset[index])
        except Exception as error:  # noqa: BLE001 - some seeds give no puzzle
            reason = f" ({type(error).__name__} in the generator)"
            continue
        text = " ".join(str(entry["question"]).split())
        if text in seen:
            continue
        seen.add(text)
        found += 1
        yield _task(entry, stratum, split)
    raise ConfigError(
        f"environment.{split} asks for {share} questions of {stratum.label}, and {found} different ones "
        f"were found that no other split has{reason}; lower it, or change the task's config or difficulty"
    )


def _task(entry: Mapping[str, Any], stratum: _Stratum, split: str) -> Task:
    question, answer = str(entry["question"]), entry["answer"]
    return Task(
        id=f"{stratum.name}-{split}-{digest(question)}",
        question=question,
        answers=(answer,) if isinstance(answer, str) and answer.strip() else (),
        stratum=stratum.label,
        columns=dict(entry),
    )
