"""Environments of `verifiers.v1`, with their own data, tools and rewards."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from cotune.data.splits import hold_out
from cotune.environments.base import PromptFormat
from cotune.environments.registry import EnvironmentKind, Tasks
from cotune.errors import ConfigError
from cotune.utils.importing import import_object
from cotune.utils.text import named
from cotune.utils.validation import Model

if TYPE_CHECKING:
    from cotune.environments.verifiers_rollouts import VerifiersEnvironment

_FIELD = "environment.environment"


class VerifiersOptions(Model):
    """An environment of `verifiers.v1`, with its own data, tools and rewards."""

    kind: Literal["verifiers"] = "verifiers"
    environment: str
    """An installed taskset's id, or `package.module:name` of a function that returns an environment."""
    args: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Fields of the environment's config, `{taskset: …, agent: …}`; or the function's arguments."""
    validation: int = Field(default=100, ge=1)
    """Number of questions held out for validation, at most a tenth of all."""
    test: int = Field(default=200, ge=1)
    """Number of questions held out for the final evaluation, at most a fifth of all."""


def from_verifiers(
    environment: Any,
    initial_instruction: str | None = None,
    prompt_format: PromptFormat | None = None,
    *,
    validation: int = 100,
    test: int = 200,
) -> "VerifiersEnvironment":
    """Use an environment of `verifiers.v1`, with its own rollout loop and rewards.

    The trained policy is sampled in place of a served model.

    Args:
        environment: an `Env` of `verifiers.v1` with one agent.
        initial_instruction: None is the system prompt that all tasks share.
        prompt_format: None puts the instruction into the system message.
        validation: questions that are held out for validation, at most a tenth of all.
        test: questions that are held out for the test, at most a fifth of all.

    Raises:
        ConfigError: `verifiers` is not installed, or the environment cannot be trained on.
    """
    rollouts = _rollouts()
    rollouts.check(environment)
    vf_tasks = dict(zip(map(str, range(rollouts.MAX_TASKS)), environment.taskset, strict=False))
    questions, shared = rollouts.questions_of(vf_tasks)
    counts = {"validation": validation, "test": test}
    places = hold_out([key for _, key in questions], counts, _FIELD, "environment")
    tasks = {split: [questions[i][0] for i in rows] for split, rows in places.items()}
    return rollouts.VerifiersEnvironment(
        environment,
        vf_tasks,
        tasks,
        shared if initial_instruction is None else initial_instruction,
        prompt_format or PromptFormat(role="system"),
    )


def verifiers_environment(options: VerifiersOptions, tasks: Tasks | None) -> "VerifiersEnvironment":
    """Build the environment of a run file, which brings its own tasks."""
    rollouts = _rollouts()
    try:
        if ":" in options.environment:
            environment = import_object(options.environment, _FIELD)(**options.args)
        else:
            environment = rollouts.load(options.environment, options.args)
    except ConfigError:
        raise
    except Exception as error:  # a third-party package may raise anything
        raise ConfigError(
            f"{_FIELD}: verifiers cannot load {options.environment!r} ({named(error)}); install it, or change "
            "environment.args"
        ) from error
    return from_verifiers(environment, validation=options.validation, test=options.test)


def _rollouts() -> Any:
    """Import what needs the package; ConfigError if that is missing or too old or new."""
    try:
        return import_module("cotune.environments.verifiers_rollouts")
    except ImportError as error:
        raise ConfigError(
            f"environment.kind verifiers needs a package verifiers with verifiers.v1 ({error}); install it: "
            "pip install 'cotune[verifiers]'"
        ) from error


KIND = EnvironmentKind(
    options=VerifiersOptions, build=verifiers_environment, runs_user_code=True, extra="verifiers"
)
