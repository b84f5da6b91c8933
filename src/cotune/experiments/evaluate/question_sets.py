"""The questions of an evaluation, with their environment, scoring and metrics."""

from collections.abc import Sequence
from dataclasses import dataclass

from cotune.config.build import build_rewards, initial_instruction
from cotune.config.run_checks import check_columns, check_retriever
from cotune.config.run_file import RewardConfig, RunConfig
from cotune.data.benchmarks import Benchmark, parse_benchmark, read_benchmark
from cotune.environments.base import TaskEnvironment
from cotune.environments.math import MathEnvironment, with_final
from cotune.environments.search import SearchEnvironment
from cotune.errors import ConfigError
from cotune.experiments.evaluate.metrics import METRICS, is_boxed
from cotune.protocols import Environment
from cotune.rewards import REWARDS
from cotune.rewards.functions import RewardFunctions
from cotune.run.scores import EXACT_MATCH, measure_of
from cotune.types import Task

_SHORT = 12  # words: for longer answers, F1 says little


@dataclass(frozen=True)
class QuestionSet:
    """Questions with their environment and scoring.

    Attributes:
        name: the split's or the benchmark's.
        title: its name in tables.
        source: the source of the questions.
        environment: `environment.tasks(name)` are the questions.
        rewards: reward functions; None if the environment scores.
        tasks: the questions to evaluate.
        f1: the F1 scorer, a name in `cotune.rewards.REWARDS`.
    """

    name: str
    title: str
    source: str
    environment: Environment
    rewards: RewardFunctions | None
    tasks: Sequence[Task]
    f1: str = "f1_squad"


def question_sets(
    config: RunConfig,
    environment: Environment,
    split: str | None,
    benchmarks: Sequence[str],
    limit: int | None,
) -> list[QuestionSet]:
    """Read and check the run's split and the given benchmarks.

    The arguments are those of `EvaluationOptions`. Reward functions see the state of a trainer that has not
    begun.

    Raises:
        ConfigError: a benchmark cannot be read, is given twice, or does not fit the environment; or
            the retrieval server does not answer.
    """
    check_retriever(environment)
    sets: list[QuestionSet] = []
    parsed = [parse_benchmark(text) for text in benchmarks]
    if split is not None or not parsed:
        name = split or "test"
        tasks = environment.tasks(name)[:limit]
        title = f"the {name} split"
        if not tasks:
            raise ConfigError(
                f"--split {name} has no questions; name another split, or a benchmark"
            )
        sets.append(
            QuestionSet(name, title, "run", environment, build_rewards(config.rewards), tasks)
        )
    for benchmark, path in parsed:
        tasks = read_benchmark(benchmark, path)[:limit]
        source = f"{benchmark.hub}, split {benchmark.split}" if path is None else str(path)
        sets.append(_benchmark_set(config, environment, benchmark, tasks, source))
    for questions in sets:
        if questions.rewards is not None:
            from transformers import TrainerState

            training = config.training
            state = TrainerState(max_steps=training.steps * training.optimizer_steps)
            questions.rewards.trainer_state = state
    names = [questions.name for questions in sets]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"--benchmark {repeated[0]} is given twice; expected each name once")
    return sets


def _benchmark_set(
    config: RunConfig,
    environment: Environment,
    benchmark: Benchmark,
    tasks: Sequence[Task],
    source: str,
) -> QuestionSet:
    """Put a benchmark into an environment: mathematics with boxed answers, others the run's own."""
    name = benchmark.name
    rewards: RewardFunctions | None = None
    if benchmark.kind == "math":
        tasks = [with_final(task) for task in tasks]
        benchmark_environment: TaskEnvironment = MathEnvironment(
            {name: tasks}, initial_instruction(config.instruction.text, environment)
        )
        if isinstance(environment, TaskEnvironment):
            benchmark_environment.prompt_format = environment.prompt_format
    elif not isinstance(environment, TaskEnvironment) or not environment.takes_any_tasks:
        raise ConfigError(
            f"--benchmark {name}: environment.kind {config.environment.kind} brings its own "
            "questions; expected a run on search, geo or questions of a data set"
        )
    else:
        benchmark_environment = environment.with_tasks({name: tasks})
        # The box marks the answer; its words are compared as words.
        boxed = isinstance(environment, MathEnvironment)
        rewards = RewardFunctions(["exact_match"]) if boxed else build_rewards(config.rewards)
        check_columns(rewards, benchmark_environment, [name])
    return QuestionSet(
        name, benchmark.title, source, benchmark_environment, rewards, tasks, benchmark.f1
    )


def metrics_of(rewards: Sequence[RewardConfig], questions: QuestionSet) -> dict[str, str]:
    """Return the metrics that apply to a set, with their titles."""
    environment = questions.environment
    measure = measure_of(environment, questions.rewards)
    scored_by_box = is_boxed(environment) and questions.rewards is None
    names = {"reward": METRICS["boxed"] if scored_by_box else measure}
    # The user's own function may read the answer in another form.
    reads_answers = questions.source == "run" and any(r.function not in REWARDS for r in rewards)
    by_box = any(reward.function == "boxed" for reward in rewards)
    answered = all(task.answers for task in questions.tasks)
    if answered and (is_boxed(environment) or by_box):
        # For words in a box (a QA benchmark), the reward is the same.
        added = ["boxed"] if measure != EXACT_MATCH else []
    elif answered and not reads_answers and _short(questions):
        added = ["f1"] if measure == EXACT_MATCH else ["exact_match", "f1"]
    else:
        added = []
    return names | {name: METRICS[name] for name in added}


def _short(questions: QuestionSet) -> bool:
    if isinstance(questions.environment, SearchEnvironment):
        return True
    return all(len(a.split()) <= _SHORT for task in questions.tasks for a in task.answers)
