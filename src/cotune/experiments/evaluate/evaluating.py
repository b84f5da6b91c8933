"""Score a finished run's best policy on the run's own splits, or on the papers' benchmarks."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from cotune.config.build import initial_instruction, run_environment
from cotune.config.run_file import RunConfig
from cotune.environments.math import REQUIRED
from cotune.errors import ConfigError
from cotune.experiments.evaluate.metrics import (
    Figure,
    figures_of,
    is_boxed,
    metric_functions,
)
from cotune.experiments.evaluate.question_sets import (
    EvaluationOptions,
    QuestionSet,
    metrics_of,
    question_sets,
)
from cotune.experiments.evaluate.run_policy import OpenPolicy, best_record, run_policy
from cotune.experiments.evaluate.scoring import score
from cotune.rewards import REWARDS
from cotune.rollout.task_order import fingerprint
from cotune.run.best import BestRecord, read_best
from cotune.run.run_dir import RunDir
from cotune.types import Prompt


@dataclass(frozen=True)
class Column:
    """A prompt and the policy that answers it: the run's best, or the one that it started from."""

    name: str
    label: str
    instruction: str
    hint: str = ""
    trained: bool = True

    @property
    def prompt(self) -> Prompt:
        return Prompt(self.instruction, self.hint)


@dataclass(frozen=True)
class SetResult:
    """The figures of a question set.

    Attributes:
        name, title, source: those of its `QuestionSet`.
        n: its questions.
        samples: sampled rollouts of each.
        figures: of each column in turn.
    """

    name: str
    title: str
    source: str
    n: int
    samples: int
    figures: Sequence[Figure]
    notices: Sequence[str]

    def of(self, column: Column) -> list[Figure]:
        return [figure for figure in self.figures if figure.column == column.name]


@dataclass(frozen=True)
class Evaluation:
    """The result of `evaluate_run`; as JSON, what `cotune evaluate --json` prints.

    Attributes:
        temperature: of sampled rollouts.
        created: Unix time.
    """

    name: str
    strategy: str
    policy: str
    seed: int
    temperature: float
    columns: Sequence[Column]
    sets: Sequence[SetResult]
    created: float = field(default_factory=lambda: round(time.time(), 3))
    schema_version: int = 1
    kind: str = "evaluation"


def evaluate_run(
    config: RunConfig, run: RunDir, options: EvaluationOptions, open_policy: OpenPolicy = run_policy
) -> Evaluation:
    """Score a run's best policy under its best and its initial instruction, and its best hint.

    Write nothing, neither results nor costs. The same seed and options give the same figures.

    Args:
        config: the run file; its limits, seed and policy settings apply.
        run: the run folder; only best/ is read.
        options: what to evaluate.
        open_policy: the engine's.

    Raises:
        ConfigError: there is no best policy, questions are not available, or a prompt is too long; before
            any rollout.
    """
    record = best_record(run)
    environment = run_environment(config)
    instruction = initial_instruction(config.instruction.text, environment)
    columns = _columns(record, instruction, options.policy == "initial")
    sets = question_sets(config, environment, options)
    # A script's training questions are not there to compare.
    trained_on = environment.tasks("train")
    changed = trained_on and record.training_tasks not in (None, fingerprint(trained_on))
    notices = [
        *([_UNFINISHED] if run.read_summary() is None else []),
        *([_OTHER_DATA] if changed else []),
    ]
    figures: dict[str, list[Figure]] = {questions.name: [] for questions in sets}
    for trained in dict.fromkeys(column.trained for column in columns):
        columns_of_policy = [column for column in columns if column.trained is trained]
        best = run.best_path if trained else None
        policy = open_policy(config, environment, best=best, temperature=options.temperature)
        if trained and read_best(run.best_path) != record:
            raise ConfigError(
                f"{run.path}: its best policy was replaced while it was loaded; run the command again"
            )
        for questions in sets:
            titles = metrics_of(config.rewards, questions)
            functions = metric_functions(REWARDS[questions.f1])
            if is_boxed(questions.environment) and questions.rewards is None:
                functions["boxed"] = functions["reward"]  # as the environment compares them
            prompts = {column.name: column.prompt for column in columns_of_policy}
            metrics = {name: functions[name] for name in titles}
            scores = score(policy, prompts, questions, options.samples, metrics)
            strata = [task.stratum for task in questions.tasks]
            figures[questions.name] += [
                figure
                for column in columns_of_policy
                for name, values in scores[column.name].values.items()
                for figure in figures_of(column.name, name, titles[name], values, strata)
            ]
    return Evaluation(
        name=config.name,
        strategy=config.strategy.kind,
        policy=config.policy.path,
        seed=config.seed,
        temperature=options.temperature or config.training.temperature,
        columns=columns,
        sets=[
            SetResult(
                q.name, q.title, q.source, len(q.tasks), options.samples, figures[q.name],
                [*notices, *_boxless(q, columns)],
            )
            for q in sets
        ],
    )  # fmt: skip


def _columns(record: BestRecord, initial: str, untrained: bool) -> list[Column]:
    best = record.instruction
    columns = [
        Column("best", "best instruction", best),
        Column("initial", "initial instruction", initial),
    ]
    if record.hint:
        columns.append(Column("hinted", "best instruction and hint", best, record.hint))
    if untrained:
        columns += [
            Column("untrained_best", "untrained, best instruction", best, trained=False),
            Column("untrained_initial", "untrained, initial instruction", initial, trained=False),
        ]
    return columns


_UNFINISHED = "The run is not finished: these are figures of the best policy so far."
_OTHER_DATA = (
    "The training questions are not those that the run was trained on (has its data changed?), so that the "
    "policy may have been trained on some of these."
)


def _boxless(questions: QuestionSet, columns: Sequence[Column]) -> list[str]:
    """Return a notice for each prompt that does not ask for the box that answers are read from."""
    if not is_boxed(questions.environment):
        return []
    return [
        f"{column.label}: does not mention {REQUIRED[0]}{{}}, from which answers are read on "
        f"{questions.title}"
        for column in columns
        if REQUIRED[0] not in column.instruction + column.hint
    ]
