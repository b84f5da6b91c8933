"""Scores of a policy under prompts by name, and `cotune evaluate`: a finished run's figures, as tables or as data."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, cast

from rich.console import Console

from cotune.config.build import initial_instruction, run_environment, run_policy
from cotune.config.run_checks import check_prompts
from cotune.config.run_file import RunConfig
from cotune.environments.single_turn import REQUIRED
from cotune.errors import ConfigError
from cotune.experiments.evaluate.questions import (
    METRICS,
    EvaluationOptions,
    QuestionSet,
    is_boxed,
    metrics_of,
    question_sets,
)
from cotune.policy.policy_files import check_whole
from cotune.rewards.functions import AnswerReward
from cotune.rollout.coordinator import Coordinator
from cotune.rollout.task_order import fingerprint
from cotune.run.best import BestRecord, read_best
from cotune.run.run_dir import RunDir
from cotune.run.scores import score_values
from cotune.types import Assignment, Prompt, Trajectory
from cotune.utils.tables import Cell, Scores, Table, on_console
from cotune.utils.text import one_line

OpenPolicy = Callable[..., Coordinator]
"""`run_policy`, or another engine's `Engine.open_policy`."""
Values = Callable[[Sequence[Trajectory]], list[float]]
"""A metric: gives a batch of finished, scored rollouts its values."""

PASSES_AT = 1.0
"""The lowest value at which a sample counts as right in pass@k."""
_ROWS = 2048  # rolled out at a time: the trajectories of a set need not fit into memory
_UNFINISHED = "The run is not finished: these are figures of the best policy so far."
_OTHER_DATA = (
    "The training questions are not those that the run was trained on (has its data changed?), so that the "
    "policy may have been trained on some of these."
)


def metric_functions() -> dict[str, Values]:
    """Return the functions of `METRICS`.

    `boxed` reads the last box of the policy's own text; a reference answer may be a text with a box.
    """
    return {
        "reward": lambda ts: [t.reward for t in ts],
        "exact_match": AnswerReward("exact_match"),
        "f1": AnswerReward("f1_squad"),
        "boxed": AnswerReward("boxed"),
    }


# ---- a policy's scores


@dataclass(eq=False)
class PromptScores:
    """What a policy scored under a prompt, question by question.

    Attributes:
        values: by metric and decoding ("greedy", "sampled"), the values of each question's rollouts.
        divergences: of one sampled rollout of each question, the sum of KL(policy ‖ initial policy) over its own
            tokens, in nats, and the number of these tokens; [] without an initial policy.
        rollouts, generated_tokens: what it cost.
    """

    values: dict[str, dict[str, list[list[float]]]]
    divergences: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    rollouts: int = 0
    generated_tokens: int = 0

    @property
    def rewards(self) -> dict[str, list[float]]:
        """By decoding, the mean reward of each question's rollouts."""
        by_decoding = self.values["reward"]
        return {name: [fmean(row) for row in rows] for name, rows in by_decoding.items()}


def score(
    policy: Coordinator,
    prompts: Mapping[str, Prompt],
    questions: QuestionSet,
    samples: int = 0,
    metrics: Sequence[str] = ("reward",),
    initial: Coordinator | None = None,
    greedy_rewards: Mapping[str, Sequence[float]] | None = None,
) -> dict[str, PromptScores]:
    """Score a policy under prompts by name, greedily and sampled; equal prompts once, as the same object.

    Draws depend on the seed, a question's place in the set, and the number of the sample; not on the other prompts.

    The divergence is exact over the vocabulary at every position of the policy's own rollouts, at their temperature.
    Its sum over a rollout's own tokens is an unbiased estimate for the sequence. Unlike Schulman's k1 and k3
    (http://joschu.net/blog/kl-approx.html) it has no noise from the tokens that were drawn (Rao-Blackwellized: Amini,
    Vieira and Cotterell, arXiv 2504.10637), at the same two forward passes.

    Args:
        samples: sampled rollouts of each question; 0 for none.
        metrics: names of `METRICS`.
        initial: the policy to compute the divergence from, which needs a sample; None for none.
        greedy_rewards: by the name of a prompt, its questions' greedy rewards if they are known already ([]: they are
            not), in place of rollouts; only with the metric "reward".

    Raises:
        ConfigError: a prompt is too long; before any rollout.
    """
    distinct = list(dict.fromkeys(prompts.values()))
    for prompt in distinct:
        check_prompts(
            questions.environment, policy.codec, prompt.instruction, policy.settings.limits,
            [questions.name], strategy="static",
        )  # fmt: skip
    functions = metric_functions()
    values_of = {name: functions[name] for name in metrics}
    measured = {
        prompts[name]: rewards for name, rewards in (greedy_rewards or {}).items() if rewards
    }
    scores = {
        prompt: _score_prompt(
            policy, prompt, questions, samples, values_of, initial, measured.get(prompt)
        )
        for prompt in distinct
    }
    return {name: scores[prompt] for name, prompt in prompts.items()}


def _score_prompt(
    policy: Coordinator,
    prompt: Prompt,
    questions: QuestionSet,
    samples: int,
    metrics: Mapping[str, Values],
    initial: Coordinator | None,
    greedy_rewards: Sequence[float] | None,
) -> PromptScores:
    # Draws are keyed by the number of calls: each prompt has a coordinator of its own.
    coordinator = Coordinator(
        strategy=policy.strategy, environment=questions.environment, codec=policy.codec,
        sampler=policy.sampler, llm=policy.llm, record=policy.record,
        settings=policy.settings, rewards=questions.rewards,
    )  # fmt: skip
    decodings = {"greedy": 1, "sampled": samples} if samples else {"greedy": 1}
    scores = PromptScores({name: {decoding: [] for decoding in decodings} for name in metrics})
    for decoding, k in decodings.items():
        greedy = decoding == "greedy"
        size = max(1, _ROWS // k)
        for start in range(0, len(questions.tasks), size):
            if greedy and greedy_rewards is not None:
                # A call is counted all the same, so that the samples' draws do not change.
                coordinator.next_sampling("evaluate", greedy)
                rows = greedy_rewards[start : start + size]
                scores.values["reward"][decoding] += [[reward] for reward in rows]
                continue
            assignments = [
                Assignment(task, prompt, prompt, "", group)
                for group, task in enumerate(questions.tasks[start : start + size], start)
                for _ in range(k)
            ]
            rollouts = coordinator.rollout(assignments, purpose="evaluate", greedy=greedy)
            scores.rollouts += len(rollouts)
            scores.generated_tokens += sum(rollout.generated_tokens for rollout in rollouts)
            for name, values_of in metrics.items():
                values = values_of(rollouts)
                rows = [values[first : first + k] for first in range(0, len(values), k)]
                scores.values[name][decoding] += rows
            if initial is not None and not greedy:
                scores.divergences += _divergences(policy, initial, rollouts[::k])
    return scores


def _divergences(
    policy: Coordinator, initial: Coordinator, rollouts: Sequence[Trajectory]
) -> list[tuple[float, int]]:
    from cotune.policy.divergence import rollout_divergences

    samplers = cast(Any, policy.sampler), cast(Any, initial.sampler)
    with samplers[0].model() as p, samplers[1].model() as q, samplers[0].casts():
        return rollout_divergences(p, q, rollouts, policy.settings.temperature)


# ---- a finished run


@dataclass(frozen=True)
class Column:
    """A prompt that the best policy answers."""

    name: str
    label: str
    instruction: str
    hint: str = ""


@dataclass(frozen=True)
class Figure:
    """One number of an evaluation: a metric's mean over n questions, under a `Column`'s prompt.

    Attributes:
        title: its name in tables; "exact match" for a reward that is exact match.
        statistic: "greedy", "avg@8", "pass@4", …
        interval: 95 %, lower and upper end; None if a single question gives no spread.
        by_stratum: the "mean" and the number of questions, "n", of each stratum, in name order.
    """

    column: str
    metric: str
    title: str
    statistic: str
    mean: float
    interval: tuple[float, float] | None
    n: int
    by_stratum: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class SetResult:
    """The figures of a `QuestionSet`: of its `n` questions, with `samples` sampled rollouts of each."""

    name: str
    title: str
    source: str
    n: int
    samples: int
    figures: Sequence[Figure]
    notices: Sequence[str]


@dataclass(frozen=True)
class Evaluation:
    """The result of `evaluate_run`; as JSON, what `cotune evaluate --json` prints. `created` is Unix time."""

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


def best_record(run: RunDir) -> BestRecord:
    """Return the record of a run's best policy. Raises ConfigError if there is none, or it is damaged."""
    record = read_best(run.best_path)
    if record is None:
        raise ConfigError(
            f"{run.path}: has no best policy yet; finish it with: {run.how_to_resume()}"
        )
    check_whole(run.best_path)
    return record


def evaluate_run(
    config: RunConfig, run: RunDir, options: EvaluationOptions, open_policy: OpenPolicy = run_policy
) -> Evaluation:
    """Score a run's best policy under its best and its initial instruction, and its best hint.

    Write nothing, neither results nor costs. The same seed and options give the same figures.

    Args:
        config: the run file; its limits, seed and policy settings apply.
        open_policy: the engine's.

    Raises:
        ConfigError: there is no best policy, questions are not available, or a prompt is too long; before any rollout.
    """
    record = best_record(run)
    environment = run_environment(config)
    initial = initial_instruction(config.instruction.text, environment)
    columns = [
        Column("best", "best instruction", record.instruction),
        Column("initial", "initial instruction", initial),
    ]
    if record.hint:
        label = "best instruction and hint"
        columns.append(Column("hinted", label, record.instruction, record.hint))
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
                figures=_figures_on(config, policy, columns, questions, options.samples),
                notices=[*notices, *_boxless(questions, columns)],
            )
            for questions in sets
        ],
    )


def _figures_on(
    config: RunConfig,
    policy: Coordinator,
    columns: Sequence[Column],
    questions: QuestionSet,
    samples: int,
) -> list[Figure]:
    titles = metrics_of(config.rewards, questions)
    prompts = {column.name: Prompt(column.instruction, column.hint) for column in columns}
    scores = score(policy, prompts, questions, samples, list(titles))
    strata = [task.stratum for task in questions.tasks]
    return [
        figure
        for column, scored in scores.items()
        for name, values in scored.values.items()
        for figure in figures_of(column, name, titles[name], values, strata)
    ]


def figures_of(
    column: str,
    metric: str,
    title: str,
    values: Mapping[str, Sequence[Sequence[float]]],
    strata: Sequence[str],
) -> list[Figure]:
    """Return the figures of a metric: greedy, and of k samples avg@k and pass@k.

    The samples of a question are not independent trials: they enter as their mean, and intervals count
    questions. A sample passes if its value reaches `PASSES_AT`: pass@k is the share of questions that one
    of them answers. F1 has none, since part of an answer is not an answer.

    Args:
        values: by decoding, "greedy" and "sampled", the values of each question's rollouts.
        strata: the stratum of each question; "" for none.
    """
    by_statistic: dict[str, Sequence[float]] = {}
    for decoding, rows in values.items():
        if decoding == "greedy":
            by_statistic["greedy"] = [value for (value,) in rows]
        else:
            k = len(rows[0])
            by_statistic[f"avg@{k}"] = [fmean(row) for row in rows]
            if metric != "f1":
                by_statistic[f"pass@{k}"] = [float(max(row) >= PASSES_AT) for row in rows]
    figures: list[Figure] = []
    for statistic, each in by_statistic.items():
        overall = score_values(each, strata, title)
        by_stratum = {name: {"mean": em, "n": n} for name, (em, n) in overall.by_stratum.items()}
        interval = overall.interval
        figures.append(
            Figure(column, metric, title, statistic, overall.em, interval, overall.n, by_stratum)
        )
    return figures


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


def show_evaluation(evaluation: Evaluation, console: Console) -> None:
    """Print a table for each set, and the notes on its figures."""
    for result in evaluation.sets:
        head = [Cell(f"On {result.title}"), *(Cell(column.label) for column in evaluation.columns)]
        console.print(on_console(Table(head, list(_rows(result, evaluation.columns)))))
        basis = f"{result.n:,} question{'s' * (result.n != 1)}; 95 % intervals over questions"
        if result.samples:
            basis += (
                f"; sampled: {result.samples} per question, temperature {evaluation.temperature}"
            )
        console.print(basis, markup=False, highlight=False, soft_wrap=True)
        for notice in map(one_line, result.notices):
            console.print(notice, style="yellow", markup=False, highlight=False, soft_wrap=True)


def _rows(result: SetResult, columns: Sequence[Column]) -> Iterator[list[Cell]]:
    """Yield the metrics, each with its statistics, and these with their strata; prompts are columns."""
    metric = ""
    by_column = [[f for f in result.figures if f.column == column.name] for column in columns]
    for figures in zip(*by_column, strict=True):
        first = figures[0]
        form = Scores(first.title != METRICS["reward"])
        if first.metric != metric:
            yield [Cell(first.title)]
            metric = first.metric
        yield [Cell(first.statistic), *(form.cell(each.mean, each.interval) for each in figures)]
        if not first.statistic.startswith("pass@"):
            for stratum, of in first.by_stratum.items():
                means = [form.cell(each.by_stratum[stratum]["mean"]) for each in figures]
                yield [Cell(f"· {stratum} ({of['n']:,})"), *means]
