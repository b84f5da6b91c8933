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
from cotune.errors import ConfigError
from cotune.experiments.evaluate.questions import EvaluationOptions, QuestionSet, question_sets
from cotune.policy.policy_files import check_whole
from cotune.rewards.qa import Reward, exact_match, f1_squad
from cotune.rollout.coordinator import Coordinator
from cotune.run.best import BestRecord, read_best
from cotune.run.run_dir import RunDir
from cotune.run.scores import EXACT_MATCH, MEAN_REWARD, measure_of, score_values
from cotune.types import Assignment, Prompt, Trajectory
from cotune.utils.tables import Cell, Scores, Table, on_console

OpenPolicy = Callable[..., Coordinator]
"""`run_policy`, or another engine's `Engine.open_policy`."""

PASSES_AT = 1.0
"""The lowest value at which a sample counts as right in pass@k."""
_ROWS = 2048  # rolled out at a time: the trajectories of a set need not fit into memory


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
    metrics: Mapping[str, Reward] | None = None,
    initial: Coordinator | None = None,
) -> dict[str, PromptScores]:
    """Score a policy under prompts by name, greedily and sampled; equal prompts once, as the same object.

    Draws depend on the seed, a question's place in the set, and the number of the sample; not on the other prompts.

    The divergence is exact over the vocabulary at every position of the policy's own rollouts, at their temperature.
    Its sum over a rollout's own tokens is an unbiased estimate for the sequence. Unlike Schulman's k1 and k3
    (http://joschu.net/blog/kl-approx.html) it has no noise from the tokens that were drawn (Rao-Blackwellized: Amini,
    Vieira and Cotterell, arXiv 2504.10637), at the same two forward passes.

    Args:
        samples: sampled rollouts of each question; 0 for none.
        metrics: scorers of answers by name, beside "reward".
        initial: the policy to compute the divergence from, which needs a sample; None for none.

    Raises:
        ConfigError: a prompt is too long; before any rollout.
    """
    distinct = list(dict.fromkeys(prompts.values()))
    for prompt in distinct:
        check_prompts(
            questions.environment, policy.codec, prompt.instruction, policy.settings.limits,
            [questions.name], strategy="static",
        )  # fmt: skip
    scores = {
        prompt: _score_prompt(policy, prompt, questions, samples, metrics or {}, initial)
        for prompt in distinct
    }
    return {name: scores[prompt] for name, prompt in prompts.items()}


def _score_prompt(
    policy: Coordinator,
    prompt: Prompt,
    questions: QuestionSet,
    samples: int,
    metrics: Mapping[str, Reward],
    initial: Coordinator | None,
) -> PromptScores:
    # Draws are keyed by the number of calls: each prompt has a coordinator of its own.
    coordinator = Coordinator(
        strategy=policy.strategy, environment=questions.environment, codec=policy.codec,
        sampler=policy.sampler, llm=policy.llm, record=policy.record,
        settings=policy.settings, rewards=questions.rewards,
    )  # fmt: skip
    decodings = {"greedy": 1, "sampled": samples} if samples else {"greedy": 1}
    names = ("reward", *metrics)
    scores = PromptScores({name: {decoding: [] for decoding in decodings} for name in names})
    for decoding, k in decodings.items():
        greedy = decoding == "greedy"
        size = max(1, _ROWS // k)
        for start in range(0, len(questions.tasks), size):
            assignments = [
                Assignment(task, prompt, prompt, "", group)
                for group, task in enumerate(questions.tasks[start : start + size], start)
                for _ in range(k)
            ]
            rollouts = coordinator.rollout(assignments, purpose="evaluate", greedy=greedy)
            scores.rollouts += len(rollouts)
            scores.generated_tokens += sum(rollout.generated_tokens for rollout in rollouts)
            by_metric = {"reward": [rollout.reward for rollout in rollouts]}
            for name, scorer in metrics.items():
                by_metric[name] = [scorer(r.answer, r.task.answers) for r in rollouts]
            for name, values in by_metric.items():
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
        interval: 95 %, lower and upper end; None for equal values other than 0 and 1.
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


@dataclass(frozen=True)
class Evaluation:
    """The result of `evaluate_run`; as JSON, what `cotune evaluate --json` prints.

    Attributes:
        finished: whether the run is; if not, these are figures of the best policy so far.
        created: Unix time.
    """

    name: str
    strategy: str
    policy: str
    seed: int
    temperature: float
    finished: bool
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
    policy = open_policy(config, environment, best=run.best_path, temperature=options.temperature)
    return Evaluation(
        name=config.name,
        strategy=config.strategy.kind,
        policy=config.policy.path,
        seed=config.seed,
        temperature=options.temperature or config.training.temperature,
        finished=run.read_summary() is not None,
        columns=columns,
        sets=[
            SetResult(
                name=questions.name,
                title=questions.title,
                source=questions.source,
                n=len(questions.tasks),
                samples=options.samples,
                figures=_figures_on(policy, columns, questions, options.samples),
            )
            for questions in sets
        ],
    )


def _figures_on(
    policy: Coordinator, columns: Sequence[Column], questions: QuestionSet, samples: int
) -> list[Figure]:
    measure = measure_of(questions.environment, questions.rewards)
    metrics = {"f1": f1_squad} if questions.has_short_answers else {}
    if metrics and measure != EXACT_MATCH:
        metrics = {"exact_match": exact_match, **metrics}
    titles = {"reward": measure, "exact_match": EXACT_MATCH, "f1": "F1"}
    prompts = {column.name: Prompt(column.instruction, column.hint) for column in columns}
    scores = score(policy, prompts, questions, samples, metrics)
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
    if not evaluation.finished:
        console.print("The run is not finished: these are figures of the best policy so far.")


def _rows(result: SetResult, columns: Sequence[Column]) -> Iterator[list[Cell]]:
    """Yield the metrics, each with its statistics, and these with their strata; prompts are columns."""
    metric = ""
    by_column = [[f for f in result.figures if f.column == column.name] for column in columns]
    for figures in zip(*by_column, strict=True):
        first = figures[0]
        form = Scores(first.title != MEAN_REWARD)
        if first.metric != metric:
            yield [Cell(first.title)]
            metric = first.metric
        yield [Cell(first.statistic), *(form.cell(each.mean, each.interval) for each in figures)]
        if not first.statistic.startswith("pass@"):
            for stratum, of in first.by_stratum.items():
                means = [form.cell(each.by_stratum[stratum]["mean"]) for each in figures]
                yield [Cell(f"· {stratum} ({of['n']:,})"), *means]
