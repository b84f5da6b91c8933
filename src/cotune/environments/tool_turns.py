"""Turns with tool calls, answered: what environments with tools share.

A turn without calls is the answer. A call that fails (no such tool, arguments that do not fit, an
exception, too long) is an observation that says so, so that the policy can learn from it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cotune.environments.tool_functions import BadArguments, Tool, text_of
from cotune.environments.tool_runner import Job, Outcome, ToolRunner
from cotune.errors import ConfigError
from cotune.types import Action, Response, ToolCall

OUT_OF_TURNS = "calls a tool in its last turn"
TIMED_OUT = "took too long"

_SHOWN = 120  # characters of a turn's error

Tools = Callable[[Action], Sequence[Tool]]
"""The tools of an episode."""


@dataclass
class _Answer:
    """What becomes of one call: what the policy reads, and what was wrong in a few words."""

    name: str
    job: Job | None = None
    text: str = ""
    error: str = ""
    timed_out: bool = False

    def take(self, outcome: Outcome, shown: Callable[[Any], str]) -> None:
        """Fills in what the call gave, or why it gave nothing."""
        self.timed_out = outcome.timed_out
        if outcome.timed_out:
            self._fail(TIMED_OUT, f"{self.name} {outcome.error}")
        elif outcome.error is not None:
            kind = type(outcome.error).__name__
            self._fail(kind, f"{kind}: {_said(outcome.error)}")
        else:
            try:
                self.text = shown(outcome.value)
            except ConfigError:
                raise
            except Exception as error:  # noqa: BLE001 - a result whose own text fails
                self._fail(type(error).__name__, f"its result has no text: {_said(error)}")

    def _fail(self, error: str, text: str) -> None:
        self.error, self.text = f"{self.name}: {error}", f"Error: {text}"


def answered(
    actions: Sequence[Action],
    tools: Tools,
    runner: ToolRunner,
    shown: Callable[[Any], str] = text_of,
    stateful: bool = False,
) -> list[Response]:
    """Makes the calls of all episodes side by side.

    Args:
        actions: one turn of each episode.
        tools: what an episode may call.
        runner: makes the calls.
        shown: a result as the policy reads it.
        stateful: an episode's tools share a state: its calls are made one after the other, and one
            that takes too long breaks the environment, for it may still be at work on the state.
    """
    turns = [_prepared(action, tools) for action in actions]
    lanes: list[list[_Answer]] = []
    for turn in turns:
        made = [answer for answer in turn if answer.job is not None]
        lanes += [made] if stateful else [[answer] for answer in made]
    jobs = [[answer.job for answer in lane if answer.job is not None] for lane in lanes]
    for lane, outcomes in zip(lanes, runner.run(jobs), strict=True):
        for answer, outcome in zip(lane, outcomes, strict=True):
            answer.take(outcome, shown)
    return [_response(action, turn, stateful) for action, turn in zip(actions, turns, strict=True)]


def _prepared(action: Action, tools: Tools) -> list[_Answer]:
    """The calls of a turn that are to be made, and those that cannot be with the reason."""
    if action.last or action.calls.error:
        return []
    known = {tool.name: tool for tool in tools(action)} if action.calls.calls else {}
    return [_call(call, known) for call in action.calls.calls]


def _call(call: ToolCall, known: dict[str, Tool]) -> _Answer:
    tool = known.get(call.name)
    if tool is None:
        names = ", ".join(known)
        name = call.name[:_SHOWN]
        text = f"Error: there is no tool {name!r}; the tools are {names}"
        return _Answer(name, text=text, error="no such tool")
    try:
        bound = tool.bind(call.arguments)
    except BadArguments as error:
        return _Answer(tool.name, text=f"Error: {error}", error=f"{tool.name}: bad arguments")
    return _Answer(
        tool.name, Job(tool.function, tool.seconds, bound.args, bound.kwargs, tool.worker)
    )


def _response(action: Action, turn: Sequence[_Answer], stateful: bool) -> Response:
    calls = action.calls
    if calls.error:
        text = f"Error: {calls.error}. Write the call again in the form shown, or answer without."
        message = {"role": "user", "content": text}
        return Response(done=action.last, action="invalid", error=calls.error, messages=(message,))
    if not calls.calls:
        return Response(done=True, action="answer")
    if action.last:
        return Response(done=True, action=_named(action), error=OUT_OF_TURNS)
    errors = "; ".join(dict.fromkeys(answer.error for answer in turn if answer.error))
    return Response(
        action=_named(action, [answer.name for answer in turn if answer.error != "no such tool"]),
        error=errors[:_SHOWN],
        failed=stateful and any(answer.timed_out for answer in turn),
        messages=tuple({"role": "tool", "name": a.name, "content": a.text} for a in turn),
    )


def _named(action: Action, known: Sequence[str] = ()) -> str:
    """What a turn was taken for: its tool, or how many calls."""
    count = len(action.calls.calls)
    if count > 1:
        return f"{count} calls"
    return known[0] if known else "call"


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the user's own class
        return "(without a text)"
