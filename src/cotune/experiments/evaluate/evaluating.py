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
from cotune.rollout.coordinator import Coordinator
from cotune.rollout.task_order import fingerprint
from cotune.run.best import read_best
from cotune.run.run_dir import RunDir
from cotune.types import Prompt

_UNFINISHED = "The run is not finished: these are figures of the best policy so far."
_OTHER_DATA = (
    "The training questions are not those that the run was trained on (has its data changed?), so that the "
    "policy may have been trained on some of these."
)


@dataclass(frozen=True)
class Column:
    """A prompt that the best policy answers."""

    name: str
    label: str
    instruction: str
    hint: str = ""

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
    initial = initial_instruction(config.instruction.text, environment)
    columns = [
        Column("best", "best instruction", record.instruction),
        Column("initial", "initial instruction", initial),
    ]
    if record.hint:
        columns.append(
            Column("hinted", "best instruction and hint", record.instruction, record.hint)
        )
    sets = question_sets(config, environment, options)
    # A script's training questions are not there to compare.
    trained_on = environment.tasks("train")
    changed = trained_on and record.training_tasks not in (None, fingerprint(trained_on))
    notices = [_UNFINISHED] * (run.read_summary() is None) + [_OTHER_DATA] * bool(changed)
    policy = open_policy(config, environment, best=run.best_path, temperature=options.temperature)
    if read_best(run.best_path) != record:
        raise ConfigError(
            f"{run.path}: its best policy was replaced while it was loaded; run the command again"
        )
    return Evaluation(
        name=config.name,
        strategy=config.strategy.kind,
        policy=config.policy.path,
        seed=config.seed,
        temperature=options.temperature or config.training.temperature,
        columns=columns,
        sets=[
            SetResult(
                name=questions.name,
                title=questions.title,
                source=questions.source,
                n=len(questions.tasks),
                samples=options.samples,
                figures=_figures(config, policy, columns, questions, options.samples),
                notices=[*notices, *_boxless(questions, columns)],
            )
            for questions in sets
        ],
    )


def _figures(
    config: RunConfig,
    policy: Coordinator,
    columns: Sequence[Column],
    questions: QuestionSet,
    samples: int,
) -> list[Figure]:
    titles = metrics_of(config.rewards, questions)
    functions = metric_functions(REWARDS[questions.f1])
    metrics = {name: functions[name] for name in titles}
    prompts = {column.name: column.prompt for column in columns}
    scores = score(policy, prompts, questions, samples, metrics)
    strata = [task.stratum for task in questions.tasks]
    return [
        figure
        for column, scored in scores.items()
        for name, values in scored.values.items()
        for figure in figures_of(column, name, titles[name], values, strata)
    ]


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
