"""The protocols on one page.

A strategy decides prompts, an environment answers and scores, a sampler writes tokens, an LLM
proposes, a comm connects ranks. Nothing here imports an engine.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from cotune.types import (
    Action,
    Assignment,
    Calls,
    Completion,
    Distillation,
    Metrics,
    Progress,
    Prompt,
    Purpose,
    Response,
    Sample,
    SampleRequest,
    Sampling,
    Task,
    Trajectory,
)

State = dict[str, Any]
"""What `state_dict` returns: JSON-serialisable, nothing else."""


class Recorder(Protocol):
    """Takes one event of a strategy, to be shown and written to events.jsonl."""

    def __call__(self, kind: str, /, **fields: object) -> None: ...


class Rollout(Protocol):
    """Rolls assignments out under the current policy, scored; one trajectory each, in order."""

    def __call__(
        self, assignments: Sequence[Assignment], *, purpose: Purpose, greedy: bool = False
    ) -> list[Trajectory]: ...


class LLM(Protocol):
    """A language model that is asked for proposals.

    One that has an attribute `identity`, a text, says by it which model answers: a phase that was cut
    off takes recorded replies only of the same. Otherwise its class stands for it.
    """

    def complete(self, prompt: str) -> Completion:
        """Raises LLMError when no reply is to be had."""
        ...


class Strategy(Protocol):
    """Which prompt each rollout is sampled under and trained on; what is learnt from rewards.

    Called in this order at every step t: `evolve_if_due`, `assign`, `observe`. The state is saved
    after `observe`, so that a phase that is due survives a kill.
    """

    @property
    def distillation(self) -> Distillation:
        """How rollouts whose trained prompt is not the sampled one are trained on."""
        ...

    def evolve_if_due(
        self, progress: Progress, rollout: Rollout, llm: LLM, record: Recorder
    ) -> Metrics:
        """Does what fell due at the end of step `progress.step` - 1; called once at step 1, too."""
        ...

    def assign(
        self, tasks: Sequence[Task], group_size: int, progress: Progress
    ) -> list[Assignment]:
        """`group_size` assignments for each task, group after group."""
        ...

    def observe(
        self, trajectories: Sequence[Trajectory], progress: Progress, record: Recorder
    ) -> Metrics:
        """Credits the rewards of step `progress.step`."""
        ...

    def best_prompt(self) -> Prompt:
        """What to evaluate and to ship with: the best instruction, no hint."""
        ...

    def best_instruction_id(self) -> str: ...

    def best_hint(self) -> str:
        """The hint that helps most, for who wants to keep one at inference; "" where there is none."""
        ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


class Environment(Protocol):
    """Where tasks come from, how actions are answered, how an episode is scored.

    `environments.base.TaskEnvironment` has all but `respond`. One may also have a `description`, a
    text for the LLM that proposes, in place of what its tools' schemas say.
    """

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings after which a turn ends."""
        ...

    @property
    def required(self) -> tuple[str, ...]:
        """Texts that every instruction must hold: the tags by which a policy acts, say."""
        ...

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        """JSON schemas of the tools that the chat template is to offer; () for none."""
        ...

    @property
    def initial_instruction(self) -> str: ...

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of "train", "validation" or "test", in a fixed order."""
        ...

    def messages(self, task: Task, prompt: Prompt) -> list[dict[str, str]]:
        """The chat messages of a task under a prompt."""
        ...

    def respond(self, actions: Sequence[Action]) -> list[Response]:
        """Answers a batch of actions; a failed tool is an error observation, not an exception."""
        ...

    def score(self, trajectory: Trajectory) -> tuple[float, str | None]:
        """Reward and final answer, from the policy's own tokens only."""
        ...


class Rewards(Protocol):
    """Scores finished rollouts in place of an environment, a batch at a time."""

    def __call__(
        self, trajectories: Sequence[Trajectory], environment: Environment
    ) -> list[Trajectory]:
        """The same rollouts in order, with reward, parts and answer."""
        ...


class Codec(Protocol):
    """Text to tokens and back. Prompts are rendered once; observations are encoded apart."""

    @property
    def eos_id(self) -> int: ...

    def render(
        self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """A prompt, up to where the policy begins to write."""
        ...

    def render_next(
        self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """What follows the EOS of the policy's turn, up to where its next one begins.

        Control tokens that a message spells out do not become tokens.
        """
        ...

    def read_calls(
        self, ids: Sequence[int], tools: Sequence[Mapping[str, Any]], context_ids: Sequence[int]
    ) -> Calls:
        """The tool calls of a turn, in the chat template's own form; bad ones are data."""
        ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class TokenRules(Protocol):
    """What the contract of an instruction needs of the policy's tokenizer."""

    @property
    def control_tokens(self) -> tuple[str, ...]: ...

    def count(self, text: str) -> int: ...


class Session(Protocol):
    """One rollout call's sampling; may keep each row's KV cache between its turns."""

    def generate(self, requests: Sequence[SampleRequest]) -> list[Sample]: ...

    def close(self) -> None: ...


class Sampler(Protocol):
    """The current policy."""

    def open(self, sampling: Sampling) -> Session: ...


class Retriever(Protocol):
    """Queries to passages, best first."""

    def search(self, queries: Sequence[str], top_k: int) -> list[list[str]]: ...


class Comm(Protocol):
    """Several processes that roll out together; one strategy, on rank 0."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        ...

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value in rank order, on every rank."""
        ...
