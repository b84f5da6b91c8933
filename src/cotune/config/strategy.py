"""Build a strategy from a method's options, for run files and for your own trainers; no pydantic."""

from dataclasses import replace

from cotune.environments.description import description_of
from cotune.methods.method import Context, MethodOptions
from cotune.methods.registry import method_of
from cotune.protocols import Environment, Strategy, TokenRules
from cotune.types import Limits

_SEPARATOR = 8  # tokens between an evolved text and what stands beside it, generously


def build_strategy(
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
        options: the method's options.
        environment: provides the training questions and the texts that an instruction must contain.
        instruction: the initial one.
        seed: seed of all draws.
        limits: token limits; they determine the length limit of evolved texts.
        tokens: the policy's codec; None disables token counting.
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
            # The other half is for the question, the chat template and texts that do not evolve.
            max_tokens=max(1, limits.prompt_tokens // 2 - _SEPARATOR),
            control_tokens=tokens.control_tokens,
        )
    return method_of(options.kind).build(options, context)
