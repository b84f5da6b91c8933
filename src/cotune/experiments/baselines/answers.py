"""How a single response is told to give its answer, in the form that an environment scores."""

from dataclasses import dataclass

from cotune.environments.base import TaskEnvironment
from cotune.environments.math import MathEnvironment
from cotune.environments.search import SearchEnvironment
from cotune.errors import ConfigError
from cotune.protocols import Environment

IN_TAGS = "Give the answer inside <answer> and </answer>, for example <answer> Beijing </answer>."


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """How to answer in one response.

    Attributes:
        instruction: says what to do, and how the answer is to be given.
        brief: the latter alone; "" where the run file's instruction says it.
        stop: what ends the response.
    """

    instruction: str
    brief: str = ""
    stop: tuple[str, ...] = ()


def answer_form(environment: Environment, instruction: str, kind: str) -> AnswerForm:
    """The form of an environment.

    Of the tag protocol it is the answer's tags, without the search that its instruction offers.
    An environment of one turn is told what the run file says: that has no tool to leave out.

    Args:
        environment: scores the response.
        instruction: the run file's.
        kind: its `environment.kind`, for the error.

    Raises:
        ConfigError: a single response cannot be scored there.
    """
    if isinstance(environment, SearchEnvironment):
        return AnswerForm(f"Answer the given question. {IN_TAGS}", IN_TAGS, ("</answer>",))
    if isinstance(environment, MathEnvironment) or _one_turn(environment):
        return AnswerForm(instruction)
    raise ConfigError(
        f"environment.kind is {kind}; baselines of one response need questions that one response "
        "answers: search, geo, arithmetic, math or single_turn (cotune baseline agent runs any)"
    )


def _one_turn(environment: Environment) -> bool:
    respond = getattr(type(environment), "respond", None)
    return respond is TaskEnvironment.respond and not environment.tools
