"""Score a finished run's best policy on the run's own splits, or on the papers' benchmarks."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cotune.config.build import initial_instruction, run_environment
from cotune.config.run_checks import check_prompts
from cotune.config.run_file import RunConfig
from cotune.environments.math import REQUIRED
from cotune.errors import ConfigError
from cotune.experiments.evaluate.metrics import (
    Figure,
    Values,
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
from cotune.experiments.evaluate.run_policy import run_policy
from cotune.policy.policy_files import check_whole
from cotune.rewards import REWARDS
from cotune.rollout.coordinator import Coordinator
from cotune.rollout.task_order import fingerprint
from cotune.run.best import BestRecord, read_best
from cotune.run.run_dir import RunDir
from cotune.types import Assignment, Prompt, Trajectory

Scores = dict[str, dict[str, list[list[float]]]]
"""By metric and decoding ("greedy", "sampled"), the values of each question's rollouts."""
_ROWS = 2048  # rolled out at a time: the trajectories of a set need not fit into memory


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


def evaluate(
    policy: Coordinator,
    prompts: Iterable[Prompt],
    questions: QuestionSet,
    samples: int,
    metrics: Mapping[str, Values],
    watch: Callable[[Prompt, bool, Sequence[Trajectory]], None] = lambda *_: None,
) -> dict[Prompt, Scores]:
    """Score a policy's answers under each of some prompts, greedily and sampled; equal prompts once.

    Draws depend on the seed, a question's place in the set, and the number of the sample; not on the
    other prompts.

    Args:
        samples: sampled rollouts of each question; 0 for none.
        metrics: functions that give a batch of rollouts its values, by name.
        watch: called with the prompt, whether it was greedy, and the rollouts of some questions at a
            time, each question's together.

    Returns:
        By prompt: by metric and decoding ("greedy", "sampled"), the values of each question's rollouts.

    Raises:
        ConfigError: a prompt is too long; before any rollout.
    """
    prompts = list(dict.fromkeys(prompts))
    for prompt in prompts:
        check_prompts(
            questions.environment, policy.codec, prompt.instruction, policy.settings.limits,
            [questions.name], strategy="static",
        )  # fmt: skip
    decodings = {"greedy": 1, "sampled": samples} if samples else {"greedy": 1}
    scores: dict[Prompt, Scores] = {}
    for prompt in prompts:
        # Draws are keyed by the number of calls: each prompt has a coordinator of its own.
        coordinator = Coordinator(
            strategy=policy.strategy, environment=questions.environment, codec=policy.codec,
            sampler=policy.sampler, llm=policy.llm, record=policy.record,
            settings=policy.settings, rewards=questions.rewards,
        )  # fmt: skip
        scores[prompt] = {name: {decoding: [] for decoding in decodings} for name in metrics}
        for decoding, k in decodings.items():
            size = max(1, _ROWS // k)
            for start in range(0, len(questions.tasks), size):
                assignments = [
                    Assignment(task, prompt, prompt, "", group)
                    for group, task in enumerate(questions.tasks[start : start + size], start)
                    for _ in range(k)
                ]
                greedy = decoding == "greedy"
                rollouts = coordinator.rollout(assignments, purpose="evaluate", greedy=greedy)
                watch(prompt, greedy, rollouts)
                for name, values_of in metrics.items():
                    values = values_of(rollouts)
                    rows = [values[first : first + k] for first in range(0, len(values), k)]
                    scores[prompt][name][decoding] += rows
    return scores


def evaluate_run(config: RunConfig, run: RunDir, options: EvaluationOptions) -> Evaluation:
    """Score a run's best policy under its best and its initial instruction, and its best hint.

    Write nothing, neither results nor costs. The same seed and options give the same figures.

    Args:
        config: the run file; its limits, seed and policy settings apply.
        run: the run folder; only best/ is read.
        options: what to evaluate.

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
        policy = run_policy(config, environment, best=best, temperature=options.temperature)
        if trained and read_best(run.best_path) != record:
            raise ConfigError(
                f"{run.path}: its best policy was replaced while it was loaded; run the command again"
            )
        for questions in sets:
            titles = metrics_of(config.rewards, questions)
            functions = metric_functions(REWARDS[questions.f1])
            if is_boxed(questions.environment) and questions.rewards is None:
                functions["boxed"] = functions["reward"]  # as the environment compares them
            prompts = [column.prompt for column in columns_of_policy]
            metrics = {name: functions[name] for name in titles}
            scores = evaluate(policy, prompts, questions, options.samples, metrics)
            strata = [task.stratum for task in questions.tasks]
            figures[questions.name] += [
                figure
                for column in columns_of_policy
                for name, values in scores[column.prompt].items()
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


def best_record(run: RunDir) -> BestRecord:
    """Return the record of a run's best policy. Raises ConfigError if there is none, or it is damaged."""
    record = read_best(run.best_path)
    if record is None:
        raise ConfigError(
            f"{run.path}: has no best policy yet; finish it with: {run.how_to_resume()}"
        )
    check_whole(run.best_path)
    return record


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
