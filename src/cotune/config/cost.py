"""Compute upper bounds on what a run spends, from its run file."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cotune.config.build import build_environment
from cotune.config.run_file import RIVALS, RunConfig
from cotune.data.dataset import SPLITS, read_dataset
from cotune.environments.description import DESCRIPTION_CHARS
from cotune.llm.client import OpenAIOptions, worst_case_price

# The fixed part of a proposer's prompt: our wording and the environment's description.
_FIXED_CHARS = 2000 + DESCRIPTION_CHARS
CHARS_PER_TOKEN = 4


@dataclass(frozen=True)
class Plan:
    """Upper bounds on a run's cost.

    Attributes:
        rollouts: number of rollouts by purpose.
        calls: calls of the optimizer LLM.
        price: cost of these calls in the run file's currency; None if they are free.
        unretried: the same without retries, at `CHARS_PER_TOKEN` in place of a token per byte.
        steps: rollout batches.
    """

    rollouts: Mapping[str, int]
    calls: int
    price: float | None
    unretried: float = 0.0
    steps: int = 0


def plan_run(config: RunConfig, sizes: Mapping[str, int] | None = None) -> Plan:
    """Return the most that training to the last step can spend, every round and phase in full.

    Args:
        sizes: the questions of each split; None reads the data.

    Raises:
        ConfigError: a question file cannot be read.
    """
    training, sizes = config.training, sizes or split_sizes(config)
    batch = training.questions_per_step * training.group_size
    steps = training.steps if config.has_batches else 0
    cost = config.method.cost(config.strategy, config.shape(sizes["train"]))
    train = steps * batch + cost.rollouts.get("train", 0)
    if training.rollout_budget is not None:
        train = min(train, training.rollout_budget)
    found: dict[str, int] = {**cost.rollouts, "train": train}
    # Under the best instruction, and under the initial one or with the best hint, or both.
    closing = 1 + len(config.method.evolves)
    found["evaluate"] = (closing + config.evaluation.before) * sizes["test"]
    if config.evaluation.every:
        evaluations = math.ceil(max(1, steps) / config.evaluation.every)
        found["evaluate"] += evaluations * cost.validations * sizes["validation"]
        rivals = min(RIVALS, cost.rivals)
        found["evaluate"] += rivals * sizes["validation"]
    price, unretried, llm = None, 0.0, config.proposer
    if isinstance(llm, OpenAIOptions) and cost.proposals:
        limits, price = config.limits, 0.0
        episode = CHARS_PER_TOKEN * (limits.prompt_tokens + limits.trajectory_tokens)
        for p in cost.proposals:
            chars = _FIXED_CHARS + p.text_chars + p.episodes * episode
            price += worst_case_price(llm, chars, p.count)
            unretried += p.count * llm.price(chars // CHARS_PER_TOKEN, llm.max_tokens)
    calls = sum(p.count for p in cost.proposals)
    return Plan(found, calls, price, unretried, steps=training.steps)


def split_sizes(config: RunConfig) -> dict[str, int]:
    """Count the questions of each split.

    Raises:
        ConfigError: data cannot be read, or an environment that must be built for it cannot be.
    """
    if config.dataset is not None:
        tasks = read_dataset(config.dataset)
        return {split: len(rows) for split, rows in tasks.items()}
    if (sizes := config.environment_kind.sizes) is not None:
        return dict(sizes(config.environment))
    environment = build_environment(config.environment, None, config.instruction)
    return {split: len(environment.tasks(split)) for split in SPLITS}
