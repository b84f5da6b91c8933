"""The questions of an evaluation, with their environment and scoring."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cotune.config.build import build_rewards, initial_instruction
from cotune.config.run_checks import check_columns, check_retriever
from cotune.config.run_file import RunConfig, ScriptRun
from cotune.data.benchmarks import Benchmark, parse_benchmark, read_benchmark
from cotune.data.dataset import Columns, tasks_of_rows
from cotune.data.rows import file_rows
from cotune.environments.base import TaskEnvironment
from cotune.environments.single_turn import MathEnvironment, with_final
from cotune.errors import ConfigError
from cotune.protocols import Environment
from cotune.rewards.functions import RewardFunctions
from cotune.types import Task


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """The options of an evaluation."""

    split: str | None = None
    """A split of the run's own questions; None for test, or for none if others are given."""
    benchmarks: Sequence[str] = ()
    """Each NAME or NAME=PATH."""
    samples: int = 0
    """Sampled rollouts per question, after the greedy one; 0 for none."""
    temperature: float | None = None
    """Of sampled rollouts; None for the run's."""
    limit: int | None = None
    """Use only the first questions of each set; None for all."""
    questions: Sequence[Path] = ()
    """Files, in the form of the run's own data."""


@dataclass(frozen=True)
class QuestionSet:
    """Questions with their environment and scoring.

    Attributes:
        name, title: the split's, the benchmark's, or the file's; `environment.tasks(name)` are the questions.
        source: "run", a file, or the hub's name and split.
        rewards: reward functions; None if the environment scores.
        tasks: the first of the questions, which are evaluated.
        has_short_answers: whether it is a benchmark of question answering, with exact match and F1 beside the reward.
    """

    name: str
    title: str
    source: str
    environment: Environment
    rewards: RewardFunctions | None
    tasks: Sequence[Task]
    has_short_answers: bool = False


def question_sets(
    config: RunConfig, environment: Environment, options: EvaluationOptions
) -> list[QuestionSet]:
    """Read and check the questions to evaluate on: a split of the run, files, and benchmarks.

    Reward functions see the state of a trainer that has not begun. Raises ConfigError: questions cannot be read, or they
    do not fit the environment; or the retrieval server does not answer.
    """
    check_retriever(environment)
    sets: list[QuestionSet] = []
    parsed = [parse_benchmark(text) for text in options.benchmarks]
    if options.split is not None or not (parsed or options.questions):
        name = options.split or "test"
        tasks = environment.tasks(name)[: options.limit]
        title = f"the {name} split"
        if not tasks:
            other = "another split, or a benchmark"
            if isinstance(config, ScriptRun):
                other = "a file of them, in the form of train_dataset: --questions FILE"
            raise ConfigError(f"--split {name} has no questions; name {other}")
        sets.append(
            QuestionSet(name, title, "run", environment, build_rewards(config.rewards), tasks)
        )
    for path in options.questions:
        tasks = _read_questions(config, environment, path)[: options.limit]
        of_file = Benchmark(path.stem, path.name, "qa", "", "", 0)
        sets.append(_benchmark_set(config, environment, of_file, tasks, str(path)))
    for benchmark, path in parsed:
        tasks = read_benchmark(benchmark, path)[: options.limit]
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
        raise ConfigError(f"{repeated[0]} is given twice; expected each set of questions once")
    return sets


def _read_questions(config: RunConfig, environment: Environment, path: Path) -> list[Task]:
    """Read a file of questions in the form of `dataset`, or of a script's data, with its instruction or without."""
    rows = file_rows(path, "--questions")
    columns: Columns = {} if config.dataset is None else config.dataset.columns
    if isinstance(config, ScriptRun) and rows and "prompt" in rows[0]:
        columns = {"question": "prompt"}
    tasks = tasks_of_rows(rows, columns, f"--questions: {path}", path.stem)
    if isinstance(environment, MathEnvironment):
        return [with_final(task) for task in tasks]
    if not isinstance(config, ScriptRun):
        return tasks
    text = config.instruction.text or ""
    questions = [task.question.replace(text, "").strip() for task in tasks]
    return [replace(t, question=q, chat=True) for t, q in zip(tasks, questions, strict=True)]


def _benchmark_set(
    config: RunConfig,
    environment: Environment,
    benchmark: Benchmark,
    tasks: Sequence[Task],
    source: str,
) -> QuestionSet:
    """Put a benchmark into an environment: mathematics with boxed answers, others and files the run's own."""
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
        option = "benchmark" if benchmark.hub else "questions"
        raise ConfigError(
            f"--{option} {name}: environment.kind {config.environment.kind} brings its own "
            "questions; expected a run on search, or on questions of a data set"
        )
    else:
        benchmark_environment = environment.with_tasks({name: tasks})
        # The box marks a benchmark's answer; its words are compared as words.
        boxed = isinstance(environment, MathEnvironment) and benchmark.hub
        rewards = RewardFunctions(["exact_match"]) if boxed else build_rewards(config.rewards)
        check_columns(rewards, benchmark_environment, [name])
    # Files of the user's own have answers that need not be short.
    has_short_answers = bool(benchmark.hub) and benchmark.kind == "qa"
    return QuestionSet(
        name, benchmark.title, source, benchmark_environment, rewards, tasks, has_short_answers
    )
