"""An LLM and a policy that answer from a list, and a codec without a tokenizer."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cotune.environments.tool_calls import read_hermes, turn_message
from cotune.errors import LLMError
from cotune.protocols import Codec, Environment, Rewards
from cotune.rollout.drivers import run_episodes
from cotune.rollout.episode import new_episodes
from cotune.types import (
    Assignment,
    Calls,
    Completion,
    Limits,
    Sample,
    SampleRequest,
    Sampling,
    Trajectory,
)


class ScriptedLLM:
    """An `LLM` that answers from a list, in order.

    Args:
        replies: a text, a `Completion` with its token counts, or an `LLMError` to raise.

    Attributes:
        prompts: what it was asked, in order.
    """

    def __init__(self, replies: Iterable[str | Completion | LLMError]) -> None:
        self._replies = list(replies)
        self.prompts: list[str] = []

    def complete(self, prompt: str) -> Completion:
        """Raise AssertionError when there are more questions than replies."""
        self.prompts.append(prompt)
        if len(self.prompts) > len(self._replies):
            raise AssertionError(
                f"ScriptedLLM was asked {len(self.prompts)} times, expected at most "
                f"{len(self._replies)}: add a reply"
            )
        reply = self._replies[len(self.prompts) - 1]
        if isinstance(reply, LLMError):
            raise reply
        return reply if isinstance(reply, Completion) else Completion(reply)


@dataclass
class Author:
    """An LLM whose n-th reply (from 0) is a function of n and the prompt."""

    write: Callable[[int, str], str]
    prompts: list[str] = field(default_factory=list[str])

    def complete(self, prompt: str) -> Completion:
        self.prompts.append(prompt)
        return Completion(self.write(len(self.prompts) - 1, prompt))


def raising(error: Exception) -> Callable[[int, str], str]:
    """Make an `Author` fail."""

    def write(n: int, prompt: str) -> str:
        raise error

    return write


class CharacterCodec:
    """A `Codec` without a tokenizer: a character's token is its code point; EOS is 0."""

    eos_id = 0
    end_ids = frozenset({0})

    def render(
        self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        offered = "".join(f"[{tool['function']['name']}]" for tool in tools)
        return self.encode(offered + "".join(message["content"] for message in messages))

    def render_next(
        self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        return self.encode("".join(f"[{m['role']}: {m['content']}]" for m in messages))

    def read_calls(
        self, ids: Sequence[int], tools: Sequence[Mapping[str, Any]], context_ids: Sequence[int]
    ) -> Calls:
        """Calls as Hermes and Qwen write them."""
        if not tools:
            return Calls()
        text = self.decode([i for i in ids if i != self.eos_id])
        calls = read_hermes(text)
        return replace(calls, message=turn_message(calls, text))

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


Reply = str | Sequence[int]
"""One turn of a scripted policy: a text, or token ids (to close with EOS, say)."""
Replies = Sequence[Reply] | Callable[[int, int, str], Reply]
"""Those of the first, second, … turn of every row; or a function of row, turn (from 0) and the context as text."""


class ScriptedSampler:
    """A `Sampler` whose policy writes given texts, cut to the room left in the episode.

    Args:
        codec: text to tokens.
        reply: what it writes.
        logprob: of every token.

    Attributes:
        opened: what each rollout call asked for, in order.
        requests: what each `generate` call asked for, in order.
    """

    def __init__(self, codec: Codec, reply: Replies, logprob: float = -1.0) -> None:
        self.codec, self.logprob = codec, logprob
        self._reply = reply
        self.opened: list[Sampling] = []
        self.requests: list[Sequence[SampleRequest]] = []

    def open(self, sampling: Sampling) -> "ScriptedSession":
        self.opened.append(sampling)
        return ScriptedSession(self)

    def reply(self, row: int, turn: int, context: str) -> Reply:
        """Raise AssertionError when there are more turns than replies."""
        if callable(self._reply):
            return self._reply(row, turn, context)
        if turn >= len(self._reply):
            raise AssertionError(
                f"ScriptedSampler was asked for turn {turn + 1}, expected at most "
                f"{len(self._reply)}: add a reply"
            )
        return self._reply[turn]


def roll_out(
    environment: Environment,
    replies: Replies,
    assignments: Sequence[Assignment],
    limits: Limits | None = None,
    rewards: Rewards | None = None,
    **settings: Any,
) -> list[Trajectory]:
    """Roll out episodes of a scripted policy, a character a token; `settings` are `new_episodes`'."""
    codec = CharacterCodec()
    episodes = new_episodes(assignments, environment, codec, limits or Limits(), **settings)
    session = ScriptedSampler(codec, replies).open(Sampling(stop=environment.stop))
    return run_episodes(episodes, environment, session, rewards)


class ScriptedSession:
    """See `ScriptedSampler`."""

    def __init__(self, sampler: ScriptedSampler) -> None:
        self._sampler = sampler
        self._turns: Counter[int] = Counter()

    def generate(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        self._sampler.requests.append(requests)
        return [self._sample(request) for request in requests]

    def close(self) -> None:
        pass

    def _sample(self, request: SampleRequest) -> Sample:
        codec, turn = self._sampler.codec, self._turns[request.row]
        self._turns[request.row] += 1
        reply = self._sampler.reply(request.row, turn, codec.decode(request.context_ids))
        ids = codec.encode(reply) if isinstance(reply, str) else reply
        completion = tuple(ids[: request.max_tokens])
        return Sample(completion, (self._sampler.logprob,) * len(completion))


def shown(trajectory: Trajectory, mask_value: int) -> str:
    """What the policy wrote (1) or what it was shown (0), a character a token."""
    pairs = zip(trajectory.completion_ids, trajectory.mask, strict=True)
    return CharacterCodec().decode([token for token, mask in pairs if mask == mask_value])
