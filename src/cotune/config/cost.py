"""The most that a run spends: rollouts by purpose, calls of the LLM, and their price."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape

from cotune.config.build import build_environment, describe_llm
from cotune.config.run_file import RIVALS, EvaluationConfig, RunConfig
from cotune.data.dataset import SPLITS, read_dataset
from cotune.environments.base import DESCRIPTION_CHARS
from cotune.llm.client import OpenAIOptions
from cotune.methods.contract import MAX_CHARS
from cotune.methods.method import MethodOptions, RunShape
from cotune.methods.registry import method_of
from cotune.types import Limits
from cotune.utils.tables import plain_table

# A proposer's prompt without rollouts: our wording, the environment's description and the longest parent.
_FIXED_CHARS = 2000 + DESCRIPTION_CHARS + MAX_CHARS
_CHARS_PER_TOKEN = 4


@dataclass(frozen=True)
class Plan:
    """Upper bounds on a run's cost."""

    rollouts: Mapping[str, int]
    """By purpose."""
    calls: int
    """Calls of the optimizer LLM."""
    price: float | None
    """Of these calls in US dollars, each answered at once, four characters a token; None if no endpoint is asked."""


def plan_run(config: RunConfig, sizes: Mapping[str, int] | None = None) -> Plan:
    """Return the most that training a run file to its last step can spend; without `sizes` of splits, read the data."""
    sizes = sizes or split_sizes(config)
    return plan_method(
        config.strategy,
        config.shape(sizes["train"]),
        sizes,
        config.limits,
        config.evaluation,
        config.proposer,
        has_batches=config.has_batches,
    )


def plan_method(
    options: MethodOptions,
    shape: RunShape,
    sizes: Mapping[str, int],
    limits: Limits,
    evaluation: EvaluationConfig,
    llm: object,
    *,
    has_batches: bool = True,
) -> Plan:
    """Return the most that training with a method can spend, every round and phase in full.

    Args:
        sizes: the questions of each split.
        llm: the one that proposes, or its options.
        has_batches: whether training batches are rolled out.
    """
    method = method_of(options.kind)
    steps = shape.steps if has_batches else 0
    cost = method.cost(options, shape)
    train = steps * shape.questions_per_step * shape.group_size + cost.rollouts.get("train", 0)
    if shape.rollout_budget is not None:
        train = min(train, shape.rollout_budget)
    # Under the best instruction, and under the initial one or with the best hint.
    closing = 1 if method.evolves is None else 2
    evaluate = (closing + evaluation.before) * sizes["test"]
    if evaluation.every:
        evaluations = math.ceil(max(1, steps) / evaluation.every)
        evaluate += evaluations * cost.validations * sizes["validation"]
        evaluate += min(RIVALS, cost.rivals) * sizes["validation"]
    price: float | None = None
    if isinstance(llm, OpenAIOptions) and method.needs_llm:
        episode_tokens = limits.prompt_tokens + limits.trajectory_tokens
        prompt_tokens = _FIXED_CHARS // _CHARS_PER_TOKEN + cost.shown_rollouts * episode_tokens
        price = cost.calls * llm.price(prompt_tokens, llm.max_tokens)
    rollouts: dict[str, int] = {**cost.rollouts, "train": train, "evaluate": evaluate}
    return Plan(rollouts, cost.calls, price)


def show_plan(planned: Plan, name: str, limits: Limits, llm: Any, console: Console) -> None:
    """Print a plan: rollouts and tokens by purpose, calls of the LLM and their price."""
    title = f"{escape(name)}: what it spends at most"
    table = plain_table(title, [""], ["rollouts", "generated tokens"])
    tokens_per_rollout = min(limits.turns * limits.turn_tokens, limits.trajectory_tokens)
    for purpose, count in planned.rollouts.items():
        table.add_row(purpose, f"{count:,}", f"{count * tokens_per_rollout:,}")
    console.print(table)
    console.print(f"Tokens are upper bounds: {tokens_per_rollout:,} in a rollout.", highlight=False)
    proposals = f"at most {planned.calls:,} proposals{_price_text(llm, planned)}"
    console.print(f"proposer: {describe_llm(llm)}; {proposals}", markup=False)


def _price_text(llm: object, planned: Plan) -> str:
    """Return what calls of an endpoint cost at most; "" for texts, rules and an LLM of the user's own."""
    if not isinstance(llm, OpenAIOptions) or planned.price is None:
        return ""
    if not llm.price(1, 1):
        return ", at unknown cost: llm.price_per_million_prompt_tokens is not set"
    text = f", at most {planned.price:.2f} at the prices of llm, without retries"
    return text if llm.budget is None else f"{text}; stopped at the budget of {llm.budget:.2f}"


def split_sizes(config: RunConfig) -> dict[str, int]:
    """Count the questions of each split.

    Raises ConfigError: the data cannot be read, or the environment that brings it cannot be built.
    """
    if config.dataset is not None:
        tasks = read_dataset(config.dataset)
        return {split: len(rows) for split, rows in tasks.items()}
    environment = build_environment(config.environment, None, config.instruction)
    return {split: len(environment.tasks(split)) for split in SPLITS}


def tokens_at_most(limits: Limits, rollouts: Mapping[str, int]) -> dict[str, int]:
    """Return the most tokens that rollouts, counted by purpose, use, by the kinds that have a price.

    A turn prefills the prompt or the observation before it; what was sent with earlier turns is cached.
    """
    prompt = limits.prompt_tokens
    turn = limits.turn_tokens + limits.observation_tokens
    ends = [turns * turn - limits.observation_tokens for turns in range(1, limits.turns + 1)]
    ends = [prompt + min(end, limits.trajectory_tokens) for end in ends]
    observed = min((limits.turns - 1) * limits.observation_tokens, limits.trajectory_tokens)
    sampled = min(limits.turns * limits.turn_tokens, limits.trajectory_tokens)
    of_rollout = {"prefill": prompt + observed, "cached": sum(ends[:-1]), "sample": sampled}
    tokens = {kind: count * sum(rollouts.values()) for kind, count in of_rollout.items()}
    return {**tokens, "train": ends[-1] * rollouts["train"]}
