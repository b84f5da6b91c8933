"""The model of a baseline: dialogues in, replies out; a local policy or an endpoint."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from cotune.protocols import Codec, Sampler
from cotune.rollout.coordinator import stable_seed
from cotune.types import Completion, Limits, SampleRequest, Sampling

_BYTES_PER_TOKEN = 3  # of UTF-8, for unknown tokenizers; English has four
_WORKERS = 8  # requests to an endpoint at a time


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply of the model.

    Attributes:
        text: without a closing EOS, with the stop string that ended it.
        tokens: number of generated tokens.
        ids: those tokens, (T,); () from an endpoint.
        prompt_ids: the prompt before them, (P,); () from an endpoint.
    """

    text: str
    tokens: int = 0
    ids: tuple[int, ...] = ()
    prompt_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    Attributes:
        messages: the dialogue, {"role", "content"} each, the user's last.
        stop: strings that end the reply.
        written: the model's later replies, each with the text shown next. A local policy
            continues the same turn, as in an episode; an endpoint gets a message for each.
    """

    messages: tuple[Mapping[str, str], ...]
    stop: tuple[str, ...] = ()
    written: tuple[tuple[Reply, str], ...] = ()


class Chat(Protocol):
    """A model that answers dialogues, greedily."""

    @property
    def room(self) -> int:
        """The most tokens of a prompt: those of an episode, less a turn."""
        ...

    def count(self, text: str) -> int:
        """Return the tokens of a text."""
        ...

    def size(self, ask: Ask) -> int:
        """Return the tokens of a prompt."""
        ...

    def ask(self, asks: Sequence[Ask]) -> list[Reply]:
        """Return one reply each, in order."""
        ...


def _tokens(limits: Limits) -> tuple[int, int]:
    """Return the most tokens of one reply, and of a prompt: those of an episode less the reply's."""
    reply = min(limits.turn_tokens, limits.trajectory_tokens - 1)
    return reply, limits.prompt_tokens + limits.trajectory_tokens - reply


class PolicyChat:
    """A local policy; `rows_per_call` dialogues are answered together."""

    def __init__(
        self, codec: Codec, sampler: Sampler, limits: Limits, rows_per_call: int = 512
    ) -> None:
        self._codec, self._sampler = codec, sampler
        self._most, self.room = _tokens(limits)
        self._rows = rows_per_call

    def count(self, text: str) -> int:
        return len(self._codec.encode(text))

    def size(self, ask: Ask) -> int:
        return len(self._ids(ask))

    def ask(self, asks: Sequence[Ask]) -> list[Reply]:
        replies: dict[int, Reply] = {}
        for stop in dict.fromkeys(ask.stop for ask in asks):
            rows = [i for i, ask in enumerate(asks) if ask.stop == stop]
            for start in range(0, len(rows), self._rows):
                part = rows[start : start + self._rows]
                found = self._continued([asks[i] for i in part], stop)
                replies.update(zip(part, found, strict=True))
        return [replies[i] for i in range(len(asks))]

    def _continued(self, asks: Sequence[Ask], stop: tuple[str, ...]) -> list[Reply]:
        # A prompt that is too long even without passages loses its beginning.
        prompts = [tuple(self._ids(ask)[-self.room :]) for ask in asks]
        session = self._sampler.open(Sampling(0.0, stop, stable_seed("baseline")))
        try:
            samples = session.generate(
                [SampleRequest(row, ids, self._most) for row, ids in enumerate(prompts)]
            )
        finally:
            session.close()
        return [
            Reply(self._text(sample.ids), len(sample.ids), sample.ids, prompt)
            for sample, prompt in zip(samples, prompts, strict=True)
        ]

    def _ids(self, ask: Ask) -> list[int]:
        ids = self._codec.render(ask.messages)
        for reply, shown in ask.written:
            ids += [*reply.ids, *self._codec.encode(shown)]
        return ids

    def _text(self, ids: Sequence[int]) -> str:
        own = ids[:-1] if ids and ids[-1] == self._codec.eos_id else ids
        return self._codec.decode(own)


class ChatClient(Protocol):
    """A client that sends dialogues; `cotune.llm.client.OpenAIClient` retries and counts the cost."""

    def chat(
        self, messages: Sequence[Mapping[str, str]], stop: Sequence[str] = ()
    ) -> Completion: ...


class EndpointChat:
    """A model at an OpenAI-compatible endpoint. Tokens of a prompt are estimated by its bytes.

    Args:
        client: sends requests. Its LLMError and BudgetError are raised, since an outage is
            not a wrong answer.
        limits: the run file's.
    """

    def __init__(self, client: ChatClient, limits: Limits) -> None:
        self._client = client
        self.room = _tokens(limits)[1]

    def count(self, text: str) -> int:
        return -(-len(text.encode("utf-8", "replace")) // _BYTES_PER_TOKEN)

    def size(self, ask: Ask) -> int:
        return sum(self.count(message["content"]) for message in _dialogue(ask))

    def ask(self, asks: Sequence[Ask]) -> list[Reply]:
        pool = ThreadPoolExecutor(_WORKERS)
        try:
            return list(pool.map(self._one, asks))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # after an error, requests not sent yet

    def _one(self, ask: Ask) -> Reply:
        completion = self._client.chat(_dialogue(ask), ask.stop)
        text = ended(completion.text, ask.stop, completion.truncated)
        return Reply(text, completion.completion_tokens)


def _dialogue(ask: Ask) -> list[Mapping[str, str]]:
    messages = list(ask.messages)
    for reply, shown in ask.written:
        messages.append({"role": "assistant", "content": reply.text})
        messages.append({"role": "user", "content": shown.strip() or "…"})
    return messages


def ended(text: str, stop: Sequence[str], truncated: bool = False) -> str:
    """Return a reply up to its first stop string, including the string.

    Endpoints leave the stop string out, so a tag left open at the end is closed; some ignore it.
    A reply that was cut off at its limit stays open.

    >>> ended("<search> Kota Tinggi ", ("</search>", "</answer>"))
    '<search> Kota Tinggi </search>'
    """
    ends = [text.index(mark) + len(mark) for mark in stop if mark in text]
    if ends:
        return text[: min(ends)]
    opened = {mark: text.rfind(mark.replace("</", "<", 1)) for mark in stop if mark[:2] == "</"}
    last = max(opened, key=opened.__getitem__, default="")
    return text + last if last and opened[last] >= 0 and not truncated else text
