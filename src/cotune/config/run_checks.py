"""Check a run's parts without an engine; `cotune.engines.preflight` runs the checks in order."""

from collections.abc import Iterable, Mapping

from cotune.config.prompt_lengths import longest_prompt
from cotune.environments.base import missing_texts
from cotune.environments.description import description_of
from cotune.errors import ConfigError
from cotune.methods.registry import method_of
from cotune.protocols import Codec, Environment, TokenRules
from cotune.rewards.functions import RewardFunctions, of_environment
from cotune.types import Limits

_TOKENS = ("hub_token", "push_to_hub_token")


def check_instruction(environment: Environment, instruction: str, strategy: str = "static") -> None:
    """Raise ConfigError if no policy can act under the instruction, or the instruction cannot evolve.

    Args:
        instruction: the initial one; blank counts as none.
        strategy: the kind of strategy.
    """
    method = method_of(strategy)
    if "instruction" in method.evolves and not instruction.strip():
        raise ConfigError(
            f"instruction: blank; {method.label} evolves it: say in a sentence or two what the "
            "policy is to do"
        )
    for name in ("stop", "required"):
        if isinstance(texts := getattr(environment, name), str):
            raise ConfigError(
                f"environment: {type(environment).__name__}.{name} is the text {texts!r}; expected a tuple "
                f"of texts: write ({texts!r},), with a comma"
            )
    if missing := missing_texts(instruction, environment.required):
        raise ConfigError(f"instruction {missing}")


def check_prompt_texts(environment: Environment, instruction: str, tokens: TokenRules) -> None:
    """Raise ConfigError if texts could not be put into prompts unchanged.

    Args:
        instruction: the initial one.
        tokens: the policy's codec; a control token written out in an instruction would stay text.
    """
    if found := [token for token in tokens.control_tokens if token in instruction]:
        raise ConfigError(
            f"instruction spells out {', '.join(found)}, control tokens of the policy; the policy "
            "would see a different text instead: remove them"
        )
    description_of(environment)


def check_tokens(engine_args: Mapping[str, object]) -> None:
    """Raise ConfigError if engine_args contains a token, which the run folder would store."""
    for name in _TOKENS:
        if engine_args.get(name) is not None:
            raise ConfigError(
                f"training.engine_args.{name}: the run file is stored with the run, and a token must not "
                "be (the value is not shown); remove it and set the environment variable HF_TOKEN"
            )


def check_splits(environment: Environment, *, validates: bool) -> None:
    """Raise ConfigError if a split that a run needs has no questions.

    Args:
        validates: whether the run is also evaluated on the validation split.
    """
    for split in ("train", "validation", "test") if validates else ("train", "test"):
        if not environment.tasks(split):
            raise ConfigError(
                f"environment: the {split} split has no questions; expected at least one: hold some "
                "out, or give it data of its own"
            )


def check_prompts(
    environment: Environment,
    codec: Codec,
    instruction: str,
    limits: Limits,
    splits: Iterable[str],
    *,
    strategy: str,
    context_tokens: int | None = None,
    leave_out: str = "of the data",
    max_completion_length: int | None = None,
) -> None:
    """Raise ConfigError if the longest prompts of some splits exceed the limit.

    The message names the limit to set, room for evolved texts included.

    Args:
        instruction: the initial one.
        splits: the splits to check; only the tasks with the longest questions are read.
        strategy: the kind of strategy; texts that it evolves may take half of the limit.
        context_tokens: the policy's context length; None if unlimited.
        leave_out: how to leave questions out, for the message.
        max_completion_length: GRPOConfig's, if the limit is what it leaves of the context; None if the
            limit was set.
    """
    found = longest_prompt(environment, codec, instruction, splits, strategy)
    limit, evolves = limits.prompt_tokens, method_of(strategy).evolves
    if found is None or found.needed <= limit:
        return
    texts = " and ".join("instructions" if text == "instruction" else text for text in evolves)
    half = f", half of which is left for evolved {texts}" if evolves else ""
    without = "" if found.fixed == found.tokens else f", {found.fixed} without the instruction"
    prompt = (
        f"the prompt of task {found.task.id} has {found.tokens} tokens{without}; expected at least "
        f"{found.needed}"
    )
    if max_completion_length is not None and context_tokens is not None:
        raise ConfigError(
            f"GRPOConfig.max_completion_length is {max_completion_length} and leaves {limit} tokens of the "
            f"policy's context of {context_tokens} for the prompt{half}, but {prompt}: "
            f"{_shorter_completions(context_tokens - found.needed)}shorten the instruction, or leave long "
            "questions out of the data"
        )
    text = f"limits.prompt_tokens is {limit}{half}, but {prompt}"
    if context_tokens is not None and found.needed + limits.trajectory_tokens > context_tokens:
        text += (
            f", but the policy's context holds {context_tokens}, limits.trajectory_tokens "
            f"({limits.trajectory_tokens}) included"
        )
        other = ""
    else:
        text, other = f"{text}: raise it to {found.needed}", "or "
    bare = found.tokens - len(codec.encode(instruction))
    shorten = "" if bare > limit // (2 if evolves else 1) else "shorten the instruction, or "
    raise ConfigError(f"{text}; {other}{shorten}leave long questions out {leave_out}")


def _shorter_completions(most: int) -> str:
    return f"lower max_completion_length to {most}, " if most > 0 else ""


def check_columns(
    rewards: RewardFunctions | None, environment: Environment, splits: Iterable[str]
) -> None:
    """Check without a call that reward functions get what they need.

    Raises:
        ConfigError: a function needs a column that the data lacks; or there is none, and the environment
            gives no reward.
    """
    if rewards is None:
        if getattr(environment, "needs_rewards", False):
            raise ConfigError(
                f"rewards: missing; {type(environment).__name__} gives none: name reward functions "
                "such as my_package.rewards:exact, or exact_match"
            )
        return
    for split in splits:
        also = list(of_environment(environment, ()))
        rewards.check_tasks(environment.tasks(split), split, also)


def check_retriever(environment: Environment) -> None:
    """Request a passage from a retrieval server, so that a wrong address is found early.

    Raises:
        ConfigError: the environment's search server gives no usable reply.
    """
    check = getattr(getattr(environment, "retriever", None), "check", None)
    if check is not None:
        check()


def check_context(context_tokens: int | None, limits: Limits) -> None:
    """Raise ConfigError if a full episode is longer than the policy's context.

    Args:
        context_tokens: the policy's context length; None if unlimited.
    """
    asked = limits.prompt_tokens + limits.trajectory_tokens
    if context_tokens is not None and asked > context_tokens:
        raise ConfigError(
            f"limits.prompt_tokens + limits.trajectory_tokens is {limits.prompt_tokens} + "
            f"{limits.trajectory_tokens} = {asked}, but the policy's context holds "
            f"{context_tokens} tokens; lower one of the two, in the run file or in cotune.Limits(…)"
        )
