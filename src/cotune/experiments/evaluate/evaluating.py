"""Score a finished run's best policy on the run's own splits, or on the papers' benchmarks."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cotune.config.build import initial_instruction, run_environment
from cotune.config.run_checks import check_prompts
from cotune.config.run_file import RunConfig, TrainingConfig
from cotune.data.benchmarks import parse_benchmark
from cotune.environments.math import REQUIRED
from cotune.errors import ConfigError
from cotune.experiments.evaluate.metrics import (
    METRICS,
    Figure,
    Values,
    figure,
    is_boxed,
    metric_functions,
    sampled_figures,
)
from cotune.experiments.evaluate.question_sets import QuestionSet, metrics_of, question_sets
from cotune.experiments.evaluate.run_policy import run_policy
from cotune.policy.policy_files import check_whole
from cotune.rewards import REWARDS
from cotune.rewards.functions import RewardFunctions
from cotune.rollout.coordinator import Coordinator
from cotune.rollout.task_order import fingerprint
from cotune.run.best import BestRecord, read_best
from cotune.run.run_dir import RunDir
from cotune.types import Assignment, Prompt, Trajectory
from cotune.utils.text import command_on

SPLITS = ("test", "validation", "train")
AUTO_SAMPLES, AUTO_BELOW = 16, 100
"""`--samples auto`: 16 on sets of fewer than 100 questions, as in P²O's evaluation, otherwise 1."""

_ROWS = 2048  # rolled out at a time: the trajectories of a set need not fit into memory


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """The options of an evaluation.

    Attributes:
        split: a split of the run's own questions; None for test, or for none if benchmarks are given.
        benchmarks: each NAME or NAME=PATH.
        samples: sampled rollouts per question, after the greedy one; 0 for none, "auto" for 16
            on sets of fewer than 100 questions and 1 on others.
        temperature: of sampled rollouts; None for the run's.
        metrics: names of `METRICS`; () for all that apply.
        limit: use only the first questions of each set; None for all.
        untrained: also evaluate the policy that the run started from.

    Raises:
        ConfigError: a value is invalid; the message names the option of the command line.
    """

    split: str | None = None
    benchmarks: tuple[str, ...] = ()
    samples: int | Literal["auto"] = 0
    temperature: float | None = None
    metrics: tuple[str, ...] = ()
    limit: int | None = None
    untrained: bool = False

    def __post_init__(self) -> None:
        if self.split is not None and self.split not in SPLITS:
            raise ConfigError(f"--split is {self.split!r}; expected one of {', '.join(SPLITS)}")
        if self.samples != "auto" and self.samples < 0:
            raise ConfigError(f"--samples is {self.samples}; expected 0 or more, or auto")
        if self.temperature is not None and not 0 < self.temperature < float("inf"):
            raise ConfigError(f"--temperature is {self.temperature}; expected more than 0")
        if self.temperature is not None and self.samples == 0:
            raise ConfigError("--temperature is set, but nothing is sampled; add --samples")
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"--limit is {self.limit}; expected 1 or more")
        for given in self.benchmarks:
            parse_benchmark(given)
        for name in self.metrics:
            if name not in METRICS:
                raise ConfigError(f"--metric is {name!r}; expected one of {', '.join(METRICS)}")

    def samples_of(self, n: int) -> int:
        """Return the sampled rollouts per question on a set of `n`."""
        if self.samples == "auto":
            return AUTO_SAMPLES if n < AUTO_BELOW else 1
        return self.samples


def parse_options(
    *,
    samples: str = "0",
    policy: str = "best",
    benchmarks: Sequence[str] = (),
    metrics: Sequence[str] = (),
    **others: Any,
) -> EvaluationOptions:
    """Parse the options of the command line. Raises ConfigError as `EvaluationOptions` does."""
    if samples != "auto" and not samples.isdecimal():
        raise ConfigError(f"--samples is {samples!r}; expected 0 or more, or auto")
    if policy not in ("best", "initial"):
        raise ConfigError(f"--policy is {policy!r}; expected best or initial")
    return EvaluationOptions(
        samples="auto" if samples == "auto" else int(samples),
        untrained=policy == "initial",
        benchmarks=tuple(benchmarks),
        metrics=tuple(dict.fromkeys(metrics)),
        **others,
    )


@dataclass(frozen=True)
class Column:
    """A prompt and the policy that answers it: the run's best, or the one that it started from."""

    name: str
    label: str
    prompt: Prompt
    trained: bool = True


@dataclass(frozen=True)
class SetResult:
    """The figures of a question set, by column."""

    questions: QuestionSet
    samples: int
    figures: Mapping[str, Sequence[Figure]]
    notices: Sequence[str] = ()


@dataclass(frozen=True)
class Evaluation:
    """The result of `evaluate_run`; `temperature` is of sampled rollouts, `created` Unix time."""

    name: str
    strategy: str
    policy: str
    seed: int
    temperature: float
    columns: Sequence[Column]
    sets: Sequence[SetResult]
    created: float = field(default_factory=time.time)


def evaluate_run(config: RunConfig, run: RunDir, options: EvaluationOptions) -> Evaluation:
    """Score a run's best policy under its best and its initial instruction, and its best hint.

    Write nothing, neither results nor costs. The same seed and options give the same figures: the
    draws of a sampled rollout depend on the seed, the question's place in the set and its number.

    Args:
        config: the run file; its limits, seed and policy settings apply.
        run: the run folder; only best/ is read.
        options: what to evaluate.

    Raises:
        ConfigError: there is no best policy, questions or a metric are not available, or a prompt is
            too long; before any rollout.
    """
    kept = kept_best(run)
    environment = run_environment(config)
    instruction = initial_instruction(config.instruction, environment)
    columns = _columns(kept, instruction, options.untrained)
    sets = question_sets(config, environment, options.split, options.benchmarks, options.limit)
    for questions in sets:
        if questions.rewards is not None:
            show_as_trained(questions.rewards, config.training)
    wanted = [metrics_of(config.rewards, questions, options.metrics) for questions in sets]
    trained_on = kept.training_tasks
    changed = trained_on not in (None, fingerprint(environment.tasks("train")))
    notices = [
        *([_UNFINISHED] if run.read_summary() is None else []),
        *([_OTHER_DATA] if changed else []),
    ]
    figures: list[dict[str, Sequence[Figure]]] = [{} for _ in sets]
    for trained in (True, False):
        mine = [column for column in columns if column.trained is trained]
        if not mine:
            continue
        best = run.best_path if trained else None
        policy = run_policy(config, environment, best=best, temperature=options.temperature)
        if trained and read_best(run.best_path) != kept:
            raise ConfigError(
                f"{run.path}: its best policy was replaced while it was loaded; run the command again"
            )
        for questions, metrics, found in zip(sets, wanted, figures, strict=True):
            k = options.samples_of(len(questions.tasks))
            found |= _of_columns(policy, questions, mine, metrics, k)
    return Evaluation(
        name=config.name,
        strategy=config.strategy.kind,
        policy=config.policy.path,
        seed=config.seed,
        temperature=options.temperature or config.training.temperature,
        columns=columns,
        sets=[
            SetResult(q, options.samples_of(len(q.tasks)), f, [*notices, *_notices(q, columns)])
            for q, f in zip(sets, figures, strict=True)
        ],
    )


def show_as_trained(rewards: RewardFunctions, training: TrainingConfig) -> None:
    """Give reward functions the trainer state of a run that has not started."""
    from transformers import TrainerState

    rewards.trainer_state = TrainerState(max_steps=training.steps * training.optimizer_steps)


def kept_best(run: RunDir) -> BestRecord:
    """Return the record of a run's best policy. Raises ConfigError if there is none, or it is damaged."""
    kept = read_best(run.best_path)
    if kept is None:
        raise ConfigError(
            f"{run.path}: has no best policy yet; finish it with: {command_on(run.path, 'resume')}"
        )
    check_whole(run.best_path)
    return kept


def _columns(kept: BestRecord, initial: str, untrained: bool) -> list[Column]:
    best = Prompt(kept.instruction)
    columns = [
        Column("best", "best instruction", best),
        Column("initial", "initial instruction", Prompt(initial)),
    ]
    if kept.hint:
        hinted = Prompt(kept.instruction, kept.hint)
        columns.append(Column("hinted", "best instruction and hint", hinted))
    if untrained:
        columns += [
            Column("untrained_best", "untrained, best instruction", best, False),
            Column("untrained_initial", "untrained, initial instruction", Prompt(initial), False),
        ]
    return columns


def _of_columns(
    policy: Coordinator,
    questions: QuestionSet,
    columns: Sequence[Column],
    titles: Mapping[str, str],
    k: int,
) -> dict[str, Sequence[Figure]]:
    """Return the figures of each column; roll out equal prompts once."""
    for column in columns:
        check_prompts(
            questions.environment, policy.codec, column.prompt.instruction,
            policy.settings.limits, [questions.name], strategy="static",
        )  # fmt: skip
    functions = metric_functions(REWARDS[questions.f1])
    if is_boxed(questions.environment) and questions.rewards is None:
        functions["boxed"] = functions["reward"]  # as the environment compares them
    metrics = {name: functions[name] for name in titles}
    known: dict[Prompt, Sequence[Figure]] = {}
    for column in columns:
        if column.prompt not in known:
            known[column.prompt] = _figures(policy, questions, column.prompt, titles, metrics, k)
    return {column.name: known[column.prompt] for column in columns}


def _figures(
    policy: Coordinator,
    questions: QuestionSet,
    prompt: Prompt,
    titles: Mapping[str, str],
    metrics: Mapping[str, Values],
    k: int,
) -> list[Figure]:
    """Return greedy figures and those of k samples, metric by metric."""
    coordinator = on_questions(policy, questions)
    strata = [task.stratum for task in questions.tasks]
    greedy = values_of(coordinator, questions, prompt, metrics, 1, greedy=True)
    sampled = values_of(coordinator, questions, prompt, metrics, k, greedy=False) if k else {}
    found: list[Figure] = []
    for name, title in titles.items():
        found.append(figure(name, title, "greedy", [v for (v,) in greedy[name]], strata))
        if k:
            found += sampled_figures(name, title, sampled[name], strata)
    return found


def on_questions(policy: Coordinator, questions: QuestionSet) -> Coordinator:
    """Return a coordinator of a policy on a question set; every prompt needs its own.

    Draws are keyed by the number of calls, so prompts then do not depend on each other.
    """
    return Coordinator(
        strategy=policy.strategy, environment=questions.environment, codec=policy.codec,
        sampler=policy.sampler, llm=policy.llm, journal=policy.journal, meter=policy.meter,
        settings=policy.settings, rewards=questions.rewards,
    )  # fmt: skip


def values_of(
    coordinator: Coordinator,
    questions: QuestionSet,
    prompt: Prompt,
    metrics: Mapping[str, Values],
    k: int,
    *,
    greedy: bool,
    seen: Callable[[Sequence[Trajectory]], None] = lambda _: None,
) -> dict[str, list[list[float]]]:
    """Return the values of k rollouts of each question, by metric.

    Args:
        seen: called with the rollouts of some questions at a time, each question's k together.
    """
    values: dict[str, list[list[float]]] = {name: [] for name in metrics}
    size = max(1, _ROWS // k)
    for start in range(0, len(questions.tasks), size):
        assignments = [
            Assignment(task, prompt, prompt, "", group)
            for group, task in enumerate(questions.tasks[start : start + size], start)
            for _ in range(k)
        ]
        found = coordinator.rollout(assignments, purpose="evaluate", greedy=greedy)
        seen(found)
        for name, of_batch in metrics.items():
            given = of_batch(found)
            values[name] += [given[first : first + k] for first in range(0, len(found), k)]
    return values


_UNFINISHED = "The run is not finished: these are figures of the best policy so far."
_OTHER_DATA = (
    "The training questions are not those that the run was trained on (has its data changed?), so that the "
    "policy may have been trained on some of these."
)


def _notices(questions: QuestionSet, columns: Sequence[Column]) -> list[str]:
    """Return warnings about the figures of a set."""
    boxed = is_boxed(questions.environment)
    return [
        f"{column.label}: does not mention {REQUIRED[0]}{{}}, from which answers are read on "
        f"{questions.title}"
        for column in columns
        if boxed and REQUIRED[0] not in column.prompt.instruction + column.prompt.hint
    ]
