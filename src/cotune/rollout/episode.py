"""One rollout as a state machine on token ids; `rollout/drivers.py` runs many of them.

Token in, token out: a prompt is tokenized once, the policy's tokens are never decoded and tokenized
again, observations are tokenized on their own and appended with mask 0:

    while not episode.done:
        request = episode.request()             # the context and the number of tokens allowed
        action = episode.advance(ids, logprobs) # the policy's turn; None if the episode ended
        episode.observe(response)               # the environment's response
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from cotune.errors import ConfigError
from cotune.protocols import Codec, Environment
from cotune.types import (
    Action,
    Assignment,
    Calls,
    Limits,
    Prompt,
    Response,
    SampleRequest,
    StopReason,
    Trajectory,
    Turn,
)
from cotune.utils.values import finite

_LONGEST_TOKEN = 256  # characters, generously


class Episode:
    """One rollout of one assignment; engine-free.

    Args:
        row: names the episode to the sampler's session.
        sampled_prompt_ids: rendered prompt to write under, (P,).
        prompt_ids: rendered prompt to train on, (P',).
        context_tokens: tokens that the policy can attend to, prompt included; None is unlimited.
        tools: JSON schemas of the tools that the policy may call through its chat template.
        stop: strings that end a turn, to tell such a turn from one that was cut off.
        teacher_prompt_ids: rendered prompt of a teacher; () without one.

    Raises:
        ConfigError: the prompt is longer than `limits.prompt_tokens`, or leaves no room to write.
    """

    def __init__(
        self,
        row: int,
        assignment: Assignment,
        sampled_prompt_ids: Sequence[int],
        prompt_ids: Sequence[int],
        limits: Limits,
        codec: Codec,
        context_tokens: int | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        stop: Sequence[str] = (),
        teacher_prompt_ids: Sequence[int] = (),
    ) -> None:
        longest = max(len(sampled_prompt_ids), len(prompt_ids), len(teacher_prompt_ids))
        if longest > limits.prompt_tokens:
            raise ConfigError(
                f"the prompt of task {assignment.task.id} has {longest} tokens, but limits.prompt_tokens is "
                f"{limits.prompt_tokens}; raise it, or shorten the instruction or the question"
            )
        if context_tokens is not None and context_tokens - longest < 2:
            raise ConfigError(
                f"the prompt of task {assignment.task.id} has {longest} tokens, but the policy's context holds "
                f"{context_tokens}; shorten the instruction or the question, or choose a policy with a longer context"
            )
        self.row = row
        self.assignment = assignment
        self.stop_reason: StopReason | None = None
        self._sampled_prompt_ids = tuple(sampled_prompt_ids)
        self._prompt_ids = tuple(prompt_ids)
        self._teacher_prompt_ids = tuple(teacher_prompt_ids)
        self._limits = limits
        self._codec = codec
        self._tools = tools
        in_context = sys.maxsize if context_tokens is None else context_tokens - longest
        # Own and observed tokens that fit. One place stays free for a closing EOS.
        self._fitting = min(limits.trajectory_tokens, in_context) - 1
        self._context_binds = in_context < limits.trajectory_tokens
        self._completion: list[int] = []
        self._mask: list[int] = []
        self._logprobs: list[float] = []
        self._turns: list[Turn] = []
        self._pending = ""
        self._message: Mapping[str, Any] = {}
        self._stops = tuple(stop)
        self._cut_off = False

    @property
    def done(self) -> bool:
        return self.stop_reason is not None

    @property
    def _room(self) -> int:
        return self._fitting - len(self._completion)

    def request(self) -> SampleRequest:
        """Return the context to continue and the maximum number of new tokens."""
        return SampleRequest(
            row=self.row,
            context_ids=(*self._sampled_prompt_ids, *self._completion),
            max_tokens=min(self._limits.turn_tokens, self._room),
        )

    def advance(self, ids: Sequence[int], logprobs: Sequence[float]) -> Action:
        """Take one turn of the policy. Return the action for the environment.

        A closing EOS is left out of the turn's text but stays the policy's own token.
        """
        context = (*self._sampled_prompt_ids, *self._completion)
        full = len(ids) >= min(self._limits.turn_tokens, self._room)
        for token, logprob in zip(ids, logprobs, strict=True):
            self._completion.append(token)
            self._mask.append(1)
            self._logprobs.append(logprob)
        closed = bool(ids) and ids[-1] in self._codec.end_ids
        self._pending = self._codec.decode(list(ids[:-1] if closed else ids))
        self._cut_off = full and not closed and not self._pending.endswith(self._stops)
        last = len(self._turns) + 1 >= self._limits.turns or self._room < 1
        calls = self._codec.read_calls(ids, self._tools, context)
        self._message = calls.message or {"role": "assistant", "content": self._pending}
        if not self._tools:
            calls = Calls()
        assignment = self.assignment
        turns = tuple(self._turns)
        prompt = Prompt(assignment.trained.instruction)  # a hint is for the policy alone
        return Action(assignment.task, turns, self._pending, last, self.row, calls, prompt)

    def observe(self, response: Response) -> None:
        """Take the environment's answer to the last turn and decide whether the episode continues."""
        observation = ""
        replies = list[dict[str, str]]()
        if response.messages and not (response.done or response.failed):
            replies = self._append_messages(response.messages)
            observation = readable(replies)
        elif not response.done:
            observation = self._append_observation(response.observation)
        messages = (self._message, *replies)
        turn = Turn(self._pending, observation, response.action, response.error, messages)
        self._turns.append(turn)
        self.stop_reason = self._stop(response)

    def trajectory(self) -> Trajectory:
        """Return the finished rollout, unscored.

        A completion that does not end in EOS gets one with mask 0: trainers treat a missing EOS as a
        truncated rollout and an empty completion as an error.
        """
        if self.stop_reason is None:
            raise RuntimeError(
                "the episode is not over: trajectory() comes after the last observe()"
            )
        completion = list(self._completion)
        mask = list(self._mask)
        logprobs = list(self._logprobs)
        if not completion or completion[-1] != self._codec.eos_id:
            completion.append(self._codec.eos_id)
            mask.append(0)
            logprobs.append(0.0)
        return Trajectory(
            assignment=self.assignment,
            sampled_prompt_ids=self._sampled_prompt_ids,
            prompt_ids=self._prompt_ids,
            completion_ids=tuple(completion),
            mask=tuple(mask),
            logprobs=tuple(logprobs),
            turns=tuple(self._turns),
            stop=self.stop_reason,
            row=self.row,
            teacher_prompt_ids=self._teacher_prompt_ids,
        )

    def _append_messages(self, messages: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
        """Append chat messages as the template renders them, after an EOS if the policy wrote none.

        Returns them as the policy sees them. The contents share the limit of an observation. If they do not
        all fit, nothing is appended and the episode ends for lack of room: messages are never cut in half.
        """
        messages = [{**m, "content": self._bound(m["content"])} for m in messages]
        fitting = [
            {**message, "content": self._cut(message["content"], tokens)}
            for message, tokens in zip(messages, self._shares(messages), strict=True)
        ]
        closed = bool(self._completion) and self._completion[-1] in self._codec.end_ids
        following = self._codec.render_next(fitting, self._tools)
        ids = [*([] if closed else [self._codec.eos_id]), *following]
        # Messages are useless if the policy cannot write a token after them.
        if len(ids) >= self._room:
            self._fitting = len(self._completion)
            return []
        self._append_observed(ids)
        return fitting

    def _shares(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the token limit of each message; long ones get what short ones leave unused."""
        sizes = [len(self._codec.encode(message["content"])) for message in messages]
        shares = [0] * len(sizes)
        tokens_left = self._limits.observation_tokens
        for served, i in enumerate(sorted(range(len(sizes)), key=sizes.__getitem__)):
            shares[i] = min(sizes[i], tokens_left // (len(sizes) - served))
            tokens_left -= shares[i]
        return shares

    def _bound(self, text: str) -> str:
        """Cut a text to a length that surely fills an observation: encoding megabytes takes gigabytes of memory."""
        return text[: _LONGEST_TOKEN * self._limits.observation_tokens]

    def _cut(self, text: str, tokens: int) -> str:
        ids = self._codec.encode(text)
        return text if len(ids) <= tokens else self._codec.decode(ids[:tokens])

    def _append_observed(self, ids: Sequence[int]) -> None:
        self._completion += ids
        self._mask += [0] * len(ids)
        self._logprobs += [0.0] * len(ids)

    def _append_observation(self, text: str) -> str:
        """Append an observation, cut to its limit and the room left. Return its text."""
        if not text:
            return ""
        text = self._bound(text)
        ids = self._codec.encode(text)
        fitting = ids[: max(0, min(self._limits.observation_tokens, self._room))]
        self._append_observed(fitting)
        return text if len(fitting) == len(ids) else self._codec.decode(fitting)

    def _stop(self, response: Response) -> StopReason | None:
        if response.failed:
            return StopReason.ENVIRONMENT_ERROR
        last = len(self._turns) >= self._limits.turns
        full = StopReason.CONTEXT_LIMIT if self._context_binds else StopReason.TOKEN_LIMIT
        if self._cut_off and (response.done or last):
            return StopReason.TURN_TOKENS if self._room > 0 else full
        # Environments end an episode in its last turn even if the policy did not.
        cut_short = bool(response.error) or response.action == "invalid"
        if response.done and (response.action == "answer" or (last and not cut_short)):
            return StopReason.ANSWERED
        if last:
            return StopReason.TURN_LIMIT
        if self._room < 1:
            return full
        return StopReason.ANSWERED if response.done else None


def readable(messages: Sequence[Mapping[str, str]]) -> str:
    """Return messages as text for people and proposers: one content per line, prefixed by the tool if several."""
    if not messages:
        return ""
    several = len(messages) > 1
    lines = [
        f"{m['name']}: {m['content']}" if several and "name" in m else m["content"]
        for m in messages
    ]
    return "\n" + "\n".join(lines) + "\n"


def new_episodes(
    assignments: Iterable[Assignment],
    environment: Environment,
    codec: Codec,
    limits: Limits,
    first_row: int = 0,
    context_tokens: int | None = None,
    seed: int = 0,
) -> list[Episode]:
    """Return one episode per assignment, rows counted from `first_row`; `seed` is what an environment draws by."""
    placed = [(assignment, row, seed) for row, assignment in enumerate(assignments, first_row)]
    begun = begin_episodes(placed, environment)
    return place_episodes(begun, environment, codec, limits, first_row, context_tokens)


def begin_episodes(
    placed: Sequence[tuple[Assignment, int, int]], environment: Environment
) -> list[Assignment]:
    """Return the assignment of each (assignment, row, seed), with the task as the environment asks it.

    An environment may have a method `begin(tasks, rows, seeds)` that returns the tasks as they are asked.
    """
    begin = getattr(environment, "begin", None)
    if begin is None or not placed:
        return [assignment for assignment, _, _ in placed]
    assignments, rows, seeds = zip(*placed, strict=True)
    tasks = begin([a.task for a in assignments], rows, seeds)
    return [replace(a, task=task) for a, task in zip(assignments, tasks, strict=True)]


def place_episodes(
    begun: Sequence[Assignment],
    environment: Environment,
    codec: Codec,
    limits: Limits,
    first_row: int = 0,
    context_tokens: int | None = None,
) -> list[Episode]:
    """Return one episode for each assignment that has begun, rows counted from `first_row`; render equal prompts once."""
    rendered: dict[tuple[str, str, str, str], list[int]] = {}
    tools = environment.tools

    def render(assignment: Assignment, prompt: Prompt) -> list[int]:
        key = (assignment.task.id, assignment.task.question, prompt.instruction, prompt.hint)
        if key not in rendered:
            rendered[key] = codec.render(environment.messages(assignment.task, prompt), tools)
        return rendered[key]

    return [
        Episode(
            row,
            assignment,
            render(assignment, assignment.sampled),
            # P²O Eq. 4: the gradient is taken on this prompt, x, which lacks the hint of the one above, x̃.
            render(assignment, assignment.trained),
            limits,
            codec,
            context_tokens,
            tools,
            environment.stop,
            () if assignment.teacher is None else render(assignment, assignment.teacher),
        )
        for row, assignment in enumerate(begun, first_row)
    ]


def responses(environment: Environment, actions: Sequence[Action]) -> Sequence[Response]:
    """Return the environment's response to each action; ConfigError if it gives anything else."""
    result: Any = environment.respond(actions)  # of the user's own class
    listed = cast("Sequence[object]", result if isinstance(result, list | tuple) else ())
    unusable = [response for response in listed if not isinstance(response, Response)]
    if unusable or len(listed) != len(actions):
        returned = (unusable or [cast(object, result)])[0]
        raise ConfigError(
            f"environment: {type(environment).__name__}.respond returned {returned!r:.120} for {len(actions)} actions; "
            "expected a list with a cotune.Response for each, in order"
        )
    return cast("Sequence[Response]", listed)


def score_all(trajectories: Sequence[Trajectory], environment: Environment) -> list[Trajectory]:
    """Fill in the environment's rewards and answers.

    An environment may have a method `scores`, which takes a batch in place of `score`, and a method
    `reward_parts` that returns the value of each of its functions.
    """
    batch = getattr(environment, "scores", None)
    name = "score" if batch is None else "scores"
    pairs: Sequence[Any] = (  # of the user's own class
        [environment.score(t) for t in trajectories] if batch is None else batch(trajectories)
    )
    parts = getattr(environment, "reward_parts", None)
    may_not_score = bool(getattr(environment, "own_reward", ""))
    scored: list[Trajectory] = []
    for trajectory, pair in zip(trajectories, pairs, strict=True):
        try:
            score, answer = pair
        except (TypeError, ValueError):
            score, answer = ("", None)
        unscored = score is None and may_not_score
        reward = 0.0 if unscored else finite(score)
        if reward is None or not isinstance(answer, str | None):
            raise ConfigError(
                f"environment: {type(environment).__name__}.{name} gave {pair!r:.80} for task {trajectory.task.id}; "
                f"expected (reward, answer): a finite number, and text or None; fix `{name}`"
            )
        result = replace(trajectory, reward=reward, answer=answer, scored=not unscored)
        scored.append(result if parts is None else replace(result, parts=parts(result)))
    return scored
