"""From a method's options to its strategy, for run files and for users' own trainers."""

from dataclasses import replace

from cotune.environments.description import description_of
from cotune.methods.method import Context, MethodOptions
from cotune.methods.registry import method_of
from cotune.protocols import Environment, Strategy, TokenRules
from cotune.types import Limits


def strategy_of(
    options: MethodOptions,
    environment: Environment,
    *,
    instruction: str,
    seed: int,
    limits: Limits,
    tokens: TokenRules | None = None,
) -> Strategy:
    """Build the strategy that a method's options describe.

    Args:
        options: of the method.
        environment: gives the training questions, and what an instruction must contain.
        instruction: the initial one.
        seed: of all draws.
        limits: what evolved texts may take of a prompt follows from them.
        tokens: the policy's codec; None counts no tokens.
    """
    context = Context(
        instruction=instruction,
        tasks=environment.tasks("train"),
        seed=seed,
        required=environment.required,
        description=description_of(environment),
    )
    if tokens is not None:
        context = replace(
            context,
            count_tokens=tokens.count,
            max_tokens=evolved_room(limits, options.kind),
            control_tokens=tokens.control_tokens,
        )
    return method_of(options.kind).build(options, context)


def evolved_room(limits: Limits, strategy: str) -> int:
    """Return how many tokens an evolved text may have: half of a prompt's, shared by kinds of text.

    The other half is the question's, the chat template's, and what does not evolve.
    """
    return limits.prompt_tokens // (2 * max(1, len(method_of(strategy).evolves)))
