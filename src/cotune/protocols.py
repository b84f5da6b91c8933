"""The seams of cotune: protocols, and the base class of strategies. Implement one to plug in a part of your own.

    Strategy      decides which prompt each rollout uses and learns from the rewards
    Environment   provides tasks, answers the policy's actions, scores episodes
    Rewards       score episodes in place of the environment
    LLM           writes proposals: instructions and hints
    Sampler       writes the policy's tokens (an engine provides it)
    Codec         turns messages into tokens and back (the policy's tokenizer)
    Retriever     answers search queries
    Comm          connects the processes of a run (an engine provides it)

Nothing here imports an engine.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from cotune.types import (
    Action,
    Assignment,
    Calls,
    Choice,
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
"""The result of a `state_dict`: JSON-serialisable values only."""


# ---- strategies and what they are given


class Recorder(Protocol):
    """Shows one event of a strategy and writes it to events.jsonl."""

    def __call__(self, kind: str, /, **fields: object) -> None: ...


class Rollout(Protocol):
    """Rolls assignments out under the current policy; returns one scored trajectory each, in order."""

    def __call__(
        self, assignments: Sequence[Assignment], *, purpose: Purpose, greedy: bool = False
    ) -> list[Trajectory]: ...


class LLM(Protocol):
    """A language model that writes proposals.

    It may have an attribute `identity`, a string that names the model (the class name by default).
    A resumed run uses recorded replies only if they came from the same model.

    If an attribute `optional` is true, a run whose proposals all fail continues. An attribute `origin` is recorded as
    the origin of its proposals. With `state_dict` and `load_state_dict` it has a state, as JSON, that is saved with
    the run. If it has an attribute `seed`, a run file sets it to its own.
    """

    def complete(self, prompt: str) -> Completion:
        """Reply to a prompt.

        Raises:
            LLMError: no usable reply was returned.
            BudgetError: it has no more replies to give; the run continues without new proposals.
        """
        ...


class Strategy(ABC):
    """Decides which prompt each rollout is sampled under and trained on, and learns from rewards.

    Each step t calls `evolve_if_due`, `assign` and `observe`, in this order. Checkpoints are saved
    after `observe`, so an evolution that is due then is still due after a resume.

    A strategy must define `assign`, `best_prompt` and its state; every other method is a hook that does
    nothing by default.
    """

    # ---- a step

    def evolve_if_due(
        self, progress: Progress, rollout: Rollout, llm: LLM, record: Recorder
    ) -> Metrics:
        """Run the evolution that fell due at the end of step `progress.step` - 1, if any.

        `rollout` verifies proposals or scores hints.
        """
        return {}

    @abstractmethod
    def assign(
        self, tasks: Sequence[Task], group_size: int, progress: Progress
    ) -> list[Assignment]:
        """Return `group_size` assignments for each task, group after group."""

    def observe(
        self, trajectories: Sequence[Trajectory], progress: Progress, record: Recorder
    ) -> Metrics:
        """Credit prompts with the rewards of step `progress.step`."""
        return {}

    @property
    def distillation(self) -> Distillation:
        """Return how rollouts that are trained on another prompt than they saw are weighted."""
        return Distillation()

    @property
    def has_teacher(self) -> bool:
        """Return whether the run ends with a last stage, in which successes have a teacher.

        The policy of the last step is then kept, whatever earlier policies score.
        """
        return False

    # ---- the result

    @abstractmethod
    def best_prompt(self) -> Prompt:
        """Return the prompt to evaluate and ship: the best instruction without a hint."""

    def best_instruction_id(self) -> str:
        """Return the id of the instruction in `best_prompt`; "i0" is the initial one."""
        return "i0"

    def best_hint(self) -> str:
        """Return the most helpful hint, for users who keep one at inference; "" if there is none."""
        return ""

    def choice(self) -> Choice | None:
        """Return the evidence for the best instruction, recorded at a run's end; None if none is chosen."""
        return None

    def settle(self, instruction_id: str) -> None:  # noqa: B027  a hook
        """Make one of `choice().rivals` the choice: it scored higher on validation at a run's end."""

    @property
    def checks_uplift(self) -> bool:
        """Return whether policies are also scored on validation under the initial instruction.

        That instruction is then kept unless `best_prompt` scores higher.
        """
        return False

    # ---- saved state

    @abstractmethod
    def state_dict(self) -> State:
        """Return the whole state as JSON values; `load_state_dict` restores it exactly."""

    @abstractmethod
    def load_state_dict(self, state: State) -> None:
        """Restore a state. Raises ConfigError if it is of another run."""


# ---- environments and rewards


@runtime_checkable
class Environment(Protocol):
    """Provides tasks, answers the policy's actions and scores episodes.

    `environments.base.TaskEnvironment` implements everything: one turn, and reward 0. An environment may have
    a `description`, a text that tells the proposing LLM what the environment offers, instead of its
    tools' schemas; the methods `begin`, `scores` and `reward_parts` (`rollout/episode.py`);
    `parallel_responses`, the number of calls of `respond` that may run at the same time, in any threads;
    `measure`, the name of its score; and `offline_rules(seed)`, which returns an LLM that needs no model.
    """

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings that end a turn."""
        ...

    @property
    def required(self) -> tuple[str, ...]:
        """Texts that every instruction must contain, such as the tags by which the policy acts."""
        ...

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        """JSON schemas of the tools that the chat template offers; () for none."""
        ...

    @property
    def initial_instruction(self) -> str: ...

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of "train", "validation" or "test", in a fixed order."""
        ...

    def messages(self, task: Task, prompt: Prompt) -> list[dict[str, str]]:
        """Return the chat messages of a task under a prompt."""
        ...

    def respond(self, actions: Sequence[Action]) -> list[Response]:
        """Answer a batch of actions. A failed tool is an error observation, not an exception."""
        ...

    def score(self, trajectory: Trajectory) -> tuple[float, str | None]:
        """Return reward and final answer, from the policy's own tokens only."""
        ...


class Rewards(Protocol):
    """Scores finished rollouts in place of an environment, a batch at a time."""

    def __call__(
        self, trajectories: Sequence[Trajectory], environment: Environment
    ) -> list[Trajectory]:
        """Return the same rollouts in order, with reward, parts and answer filled in."""
        ...


class Retriever(Protocol):
    """Finds passages. `parallel_searches`, if it has that, is how many calls may run at once, in any threads."""

    def search(self, queries: Sequence[str], top_k: int) -> list[list[str]]:
        """Return up to `top_k` passages for each query, best first."""
        ...


# ---- the policy


class Session(Protocol):
    """The sampling of one rollout call; may keep each row's KV cache between its turns.

    It may have a method `async def sample(request) -> Sample`, of which many calls run at the same time: episodes
    then need not wait for each other's turns.
    """

    def generate(self, requests: Sequence[SampleRequest]) -> list[Sample]: ...

    def close(self) -> None: ...


class Sampler(Protocol):
    """Samples from the current policy."""

    def open(self, sampling: Sampling) -> Session: ...


class Codec(Protocol):
    """Text to tokens and back. A prompt is rendered once; observations are encoded on their own."""

    @property
    def eos_id(self) -> int: ...

    @property
    def end_ids(self) -> frozenset[int]:
        """The tokens that end a turn; the EOS is one of them."""
        ...

    def render(
        self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Return the tokens of a prompt, up to the point where the policy starts to write."""
        ...

    def render_next(
        self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Return the tokens between the end of the policy's turn and the start of its next turn.

        Control tokens that a message contains as text stay text.
        """
        ...

    def read_calls(
        self, ids: Sequence[int], tools: Sequence[Mapping[str, Any]], context_ids: Sequence[int]
    ) -> Calls:
        """Parse a turn as a chat message, with the tool calls in the chat template's form; invalid ones are data.

        Without tools there are no calls, and only the `message` is used.
        """
        ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class TokenRules(Protocol):
    """The parts of the policy's tokenizer that the rules for instructions need."""

    @property
    def control_tokens(self) -> tuple[str, ...]: ...

    def count(self, text: str) -> int: ...


# ---- processes


class Comm(Protocol):
    """Connects processes that roll out together; the strategy lives on rank 0."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value on every rank."""
        ...

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value in rank order, on every rank."""
        ...
