"""What a run will spend at most, reckoned from its run file."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cotune.config.build import build_environment
from cotune.config.run_file import RunConfig, TrainingConfig
from cotune.data.dataset import SPLITS, read_dataset
from cotune.environments.description import DESCRIPTION_CHARS
from cotune.environments.environment_options import (
    PythonOptions,
    SingleTurnOptions,
    ToolsOptions,
    TrlOptions,
    VerifiersOptions,
)
from cotune.environments.math import MathOptions, read_splits
from cotune.environments.search import SearchOptions, questions_of
from cotune.llm.client import OpenAIOptions, worst_case_price
from cotune.methods.composed import ComposedOptions
from cotune.methods.gepa.gepa import GepaOptions
from cotune.methods.inspo.inspo import InspoOptions
from cotune.methods.p2o.hints import dev_count
from cotune.methods.p2o.p2o import P2OOptions
from cotune.methods.sft import SFTOptions, optimizer_steps

# Of a proposer's prompt, besides what it shows of rollouts: our words, and the environment.
_FIXED_CHARS = 2000 + DESCRIPTION_CHARS
_CHARS_PER_TOKEN = 4


@dataclass(frozen=True)
class Plan:
    """Upper bounds.

    Attributes:
        rollouts: by purpose.
        calls: of the optimizer LLM.
        price: of these calls in the run file's currency; None where nothing is paid.
        rows: that supervised fine-tuning fits; None of a run that does none.
        steps: what the run takes: rollout batches, or optimizer steps of supervised fine-tuning.
    """

    rollouts: Mapping[str, int]
    calls: int
    price: float | None
    rows: int | None = None
    steps: int = 0


def plan_run(config: RunConfig) -> Plan:
    """The most that training to the last step can spend, every round and phase in full.

    Raises:
        ConfigError: a file of questions that cannot be read.
    """
    training, sizes = config.training, split_sizes(config)
    if isinstance(config.strategy, SFTOptions):
        return _plan_fit(config, config.strategy, sizes)
    inspo, p2o = _methods(config)
    batch = training.questions_per_step * training.group_size * (1 + training.resample_rounds)
    steps = training.steps if config.has_batches else 0
    found = {"train": steps * batch}
    if training.rollout_budget is not None:
        found["train"] = min(found["train"], training.rollout_budget)
    calls: list[tuple[int, int]] = []  # how many, of how many characters
    if inspo is not None:
        phases = evolutions(inspo, training.steps)
        if inspo.verify:
            rows = inspo.verification_tasks * (inspo.candidates + 1)  # and their parent
            found["verify"] = phases * inspo.verification_rounds * rows
        calls.append(((1 + phases) * inspo.verification_rounds, _proposal_chars(config, inspo)))
    if p2o is not None:
        enough = sizes["train"] >= p2o.hints.hard_set_min_count
        phases = hint_phases(config, sizes["train"]) if enough else 0
        hints, dev = p2o.hints, dev_count(sizes["train"], p2o.hints.dev_size)  # if all are hard
        # The last batch of a phase may go over its budget, by a beam scored on dev at most.
        overrun = hints.beam * (hints.minibatch + dev)
        found["evolve"] = phases * (hints.evaluations(dev) + overrun)
        # A proposal costs the evaluation of a minibatch, at least.
        count = phases * math.ceil(found["evolve"] / max(1, phases) / hints.minibatch)
        calls.append((count, _gepa_chars(config, hints.minibatch, hints.max_chars)))
    if isinstance(config.strategy, GepaOptions):
        gepa = config.strategy
        found["evolve"] = gepa.budget + gepa.overrun
        count = math.ceil(found["evolve"] / gepa.minibatch)
        calls.append((count, _gepa_chars(config, gepa.minibatch, gepa.max_instruction_chars)))
    # Under the best instruction, under the initial one or with the best hint: composed, under all.
    closing = 3 if inspo is not None and p2o is not None else 2
    found["evaluate"] = (closing + config.evaluation.before) * sizes["test"]
    if config.evaluation.every:
        evaluations = math.ceil(max(1, steps) / config.evaluation.every)
        found["evaluate"] += evaluations * sizes["validation"]
    price = None
    if isinstance(config.llm, OpenAIOptions):
        options = config.llm
        price = sum(worst_case_price(options, chars, count) for count, chars in calls)
    count = sum(count for count, _ in calls)
    return Plan(found, count, price if calls else None, steps=training.steps)


def _plan_fit(config: RunConfig, options: SFTOptions, sizes: Mapping[str, int]) -> Plan:
    """Of supervised fine-tuning: every reference, or all rollouts that may be kept."""
    training, sampled = config.training, 0
    rows = sizes["train"]
    if options.data == "rollouts":
        sampled = rollouts_sampled(config, options, sizes["train"])
        rows = min(sampled, sizes["train"] * options.most_per_question)
    steps = optimizer_steps(rows, options.epochs, training.micro_batch_size, accumulation(training))
    every = config.evaluation.every
    found = {
        "train": sampled,
        "evaluate": (1 + config.evaluation.before) * sizes["test"]
        + (math.ceil(steps / every) * sizes["validation"] if every else 0),
    }
    return Plan(found, 0, None, rows, steps)


def rollouts_sampled(config: RunConfig, options: SFTOptions, tasks: int) -> int:
    """Rollouts of rejection sampling: `samples` a question, within the budget."""
    budget = config.training.rollout_budget
    asked = options.samples * tasks
    return asked if budget is None else min(asked, budget)


def accumulation(training: TrainingConfig) -> int:
    """Micro-batches of an optimizer step in one process: as many rows as one of GRPO's has."""
    rows = training.questions_per_step * training.group_size
    return rows // (training.mini_batches * training.micro_batch_size)


def split_sizes(config: RunConfig) -> dict[str, int]:
    """Questions of each split.

    Raises:
        ConfigError: data that cannot be read; an environment of one's own that cannot be built.
    """
    environment = config.environment
    if isinstance(environment, PythonOptions | VerifiersOptions):
        built = build_environment(config)
        return {split: len(built.tasks(split)) for split in SPLITS}
    if config.dataset is not None:
        return {split: len(tasks) for split, tasks in read_dataset(config.dataset).items()}
    assert not isinstance(environment, SingleTurnOptions | ToolsOptions | TrlOptions)
    if isinstance(environment, SearchOptions):
        return {split: len(tasks) for split, tasks in questions_of(environment).items()}
    if isinstance(environment, MathOptions):
        return {split: len(tasks) for split, tasks in read_splits(environment).items()}
    return {
        "train": environment.train,
        "validation": environment.validation,
        "test": environment.test,
    }


def evolutions(options: InspoOptions, steps: int) -> int:
    """How often INSPO evolves: t mod K_e = 0 and t < T_e, t < T."""
    if not options.evolve_every:
        return 0
    last = min(options.evolve_until, steps)
    return len(range(options.evolve_every, last, options.evolve_every))


def hint_phases(config: RunConfig, tasks: int) -> int:
    """How often hints are evolved: at every epoch's end that a step follows."""
    questions, steps = config.training.questions_per_step, config.training.steps
    return min(steps - 1, (steps - 1) * questions // tasks)  # an epoch may be less than a step


def _methods(config: RunConfig) -> tuple[InspoOptions | None, P2OOptions | None]:
    strategy = config.strategy
    if isinstance(strategy, ComposedOptions):
        return strategy.inspo, strategy.p2o
    return (
        strategy if isinstance(strategy, InspoOptions) else None,
        strategy if isinstance(strategy, P2OOptions) else None,
    )


def _episode_chars(config: RunConfig) -> int:
    return _CHARS_PER_TOKEN * (config.limits.prompt_tokens + config.limits.trajectory_tokens)


def _proposal_chars(config: RunConfig, strategy: InspoOptions) -> int:
    """Characters of the longest prompt of an INSPO proposer."""
    instructions = 10 if strategy.proposer == "history" else 1
    failures = strategy.failures_per_reflection if strategy.proposer == "reflection" else 0
    shown = failures * _episode_chars(config)
    return _FIXED_CHARS + instructions * strategy.max_instruction_chars + shown


def _gepa_chars(config: RunConfig, minibatch: int, text_chars: int) -> int:
    """Characters of GEPA's longest reflection prompt."""
    return _FIXED_CHARS + text_chars + minibatch * _episode_chars(config)
