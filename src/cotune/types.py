"""The values that flow through the loop, all frozen.

Dimension suffixes used in names and comments: B rows of a batch, G rollouts of a group, T tokens,
P prompt tokens, C completion tokens, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Literal


@dataclass(frozen=True, slots=True)
class Task:
    """One question with its accepted answers.

    Attributes:
        id: stable across epochs and runs; everything kept about a task is kept under it.
        question: what the policy is asked.
        answers: ground truths, any of which counts.
        stratum: what tables group by ("2 hops"); "" where the world has no strata.
        solution: a reference solution, where the data has one; shown to nobody, but no hint may
            quote it.
        context: messages that the data has before the question, as (role, content): a system
            prompt, earlier turns.
        columns: all columns of the data's row, for reward functions; no saved state has them.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    stratum: str = ""
    solution: str = ""
    context: tuple[tuple[str, str], ...] = ()
    columns: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What stands around a question: an instruction and, at times, a hint (P²O's template)."""

    instruction: str
    hint: str = ""

    def under_hint(self, message: str) -> str:
        """The user's message with the hint before it: P²O's T(x, z). Without one, as it is."""
        hint = self.hint.strip()
        return f"{hint}\n\n{message}" if hint else message


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one rollout is sampled under and what it is trained on.

    Attributes:
        task: the question.
        sampled: the prompt the policy sees while it writes.
        trained: the prompt its gradient is taken on; the same one except in P²O.
        instruction_id: which instruction is credited with the reward.
        group: index of the rollout's group within its batch; group-mates share the task.
    """

    task: Task
    sampled: Prompt
    trained: Prompt
    instruction_id: str
    group: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Distillation:
    """How a rollout sampled under a hint is trained on without it (P²O, arXiv 2603.21877, Eq. 4).

    π_old(ỹ|x) and π_old(ỹ|x̃) are the chances of a token under the prompt that is trained on and
    under the hinted one; their quotient is the context ratio.

    Attributes:
        ratio: the denominator of the importance ratio. "original" is π_old(ỹ|x): it starts at 1.
            "hint" is π_old(ỹ|x̃): off-policy. "masked" is "original" with each token's loss
            multiplied by whether its context ratio lies in [low, high]. "off" is no distillation:
            the gradient is taken on the hinted prompt (an ablation).
        low, high: bounds of the context ratio.
        soft: a token outside of the bounds is scaled by how far it is out, instead of masked.
        drop_failed: failed rollouts under a hint weigh nothing in the loss.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    ratio: Literal["original", "hint", "masked", "off"] = "masked"
    low: float = 0.01
    high: float = 10.0
    soft: bool = False
    drop_failed: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high:
            raise ValueError(f"low is {self.low} and high {self.high}; expected 0 <= low < high")


class StopReason(StrEnum):
    """Why an episode ended."""

    ANSWERED = "answered"
    TURN_LIMIT = "turn limit"
    TOKEN_LIMIT = "token limit"
    CONTEXT_LIMIT = "context limit"
    ENVIRONMENT_ERROR = "environment error"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool, as the policy's chat template writes it."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Calls:
    """What a turn asks of tools.

    Attributes:
        calls: in the order they were written; a turn may hold several.
        error: why what looks like a call is none, in a few words; "" if all could be read.
        said: what the turn says besides; "" where a call could not be read.
    """

    calls: tuple[ToolCall, ...] = ()
    error: str = ""
    said: str = ""


SEARCH_FAILED = "search failed"
"""What the error of a turn begins with whose search a retriever could not carry out."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: what the policy wrote and what came back.

    Attributes:
        text: the policy's own tokens of this turn, decoded.
        observation: the environment's reply as the policy saw it (after truncation); "" if none.
            Of chat messages the contents: what the template puts around them is in the
            trajectory's tokens alone.
        action: what the environment took it for ("search", "answer", "invalid", …).
        error: what was wrong with the action or the tool, in a few words; "" if nothing.
    """

    text: str
    observation: str = ""
    action: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One finished rollout.

    Attributes:
        assignment: what it was sampled under and is trained on.
        sampled_prompt_ids: prompt tokens it was sampled under, (P,).
        prompt_ids: prompt tokens its gradient is taken on, (P',).
        completion_ids: what followed the prompt: own tokens, observations, closing EOS, (C,).
        mask: 1 where the policy wrote the token, else 0, (C,).
        logprobs: log-probability of each own token when it was sampled, 0.0 elsewhere, (C,).
        turns: the same completion as text.
        stop: why it ended.
        answer: the one final answer, or None.
        reward: the environment's score.
        parts: what each reward function gave, by name, before weights; empty without any.
        logged: metrics that reward functions logged of the batch it was scored in, by name.
        row: which of a rollout call's episodes it was.
    """

    assignment: Assignment
    sampled_prompt_ids: tuple[int, ...]
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    turns: tuple[Turn, ...]
    stop: StopReason
    answer: str | None = None
    reward: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict[str, float], hash=False)
    row: int = 0
    logged: Mapping[str, float] = field(default_factory=dict[str, float], hash=False)

    @property
    def task(self) -> Task:
        return self.assignment.task

    @property
    def own_text(self) -> str:
        """All the policy wrote; no prompt, no observation."""
        return "".join(turn.text for turn in self.turns)

    @property
    def full_text(self) -> str:
        """The completion as it was seen: own text and observations in order."""
        return "".join(turn.text + turn.observation for turn in self.turns)

    @property
    def generated_tokens(self) -> int:
        return sum(self.mask)


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the run stands, in rollout batches (never optimizer steps).

    Attributes:
        step: the batch at hand, counted from 1: t of the papers.
        epoch: passes over the training tasks completed before this batch.
        total_steps: T.
        rollouts_left: policy rollouts that the run may still spend, this batch's included; None
            where it has no budget.
    """

    step: int
    epoch: int
    total_steps: int
    rollouts_left: int | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """An LLM's reply and what it used, in tokens; `truncated` where their limit cut it off."""

    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction and where it came from.

    Attributes:
        id: "i0" is the initial one; then by birth.
        text: what the policy is told.
        parent: id of the instruction it was derived from; None for the initial one.
        origin: "initial", "rewrite" or the kind of proposer that wrote it.
        born: the step at which it joined; 0 at the start.
        critique: what its author said was wrong before; "" where nothing was said.
    """

    id: str
    text: str
    parent: str | None = None
    origin: str = "initial"
    born: int = 0
    critique: str = ""


Metrics = Mapping[str, float]
Purpose = str
"""What rollouts are spent on: "train", "verify", "evolve" or "evaluate"."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn.

    Attributes:
        temperature: softmax temperature; 0 is greedy.
        stop: strings after which a turn ends; the token that completes one is kept.
        seed: seeds the draws of one rollout call, from (run seed, purpose, step).
    """

    temperature: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One row to continue: `row` names it for as long as a sampler's session lasts."""

    row: int
    context_ids: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Sample:
    """What the policy wrote for a request: token ids and their log-probabilities, both (T,)."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of an episode, in tokens and turns; defaults are INSPO's for 3B models.

    Attributes:
        turns: answers of the policy, the final one included.
        turn_tokens: own tokens of one turn.
        observation_tokens: tokens of one observation; the rest is cut off.
        trajectory_tokens: tokens after the prompt, own and observed together.
        prompt_tokens: tokens of the prompt; a longer one is an error, never cut.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    turns: int = 4
    turn_tokens: int = 500
    observation_tokens: int = 500
    trajectory_tokens: int = 4096
    prompt_tokens: int = 4096

    def __post_init__(self) -> None:
        for name in ("turns", "turn_tokens", "observation_tokens", "prompt_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"limits.{name} is {getattr(self, name)}; expected 1 or more")
        if self.trajectory_tokens < 2:
            raise ValueError(
                f"limits.trajectory_tokens is {self.trajectory_tokens}; expected 2 or more"
            )


@dataclass(frozen=True, slots=True)
class Action:
    """One turn of one episode, as an environment receives it.

    Attributes:
        task: the question.
        turns: the turns before; none at the episode's first.
        text: what the policy wrote, without its closing EOS.
        last: whether nobody is left to read an answer.
        row: names the episode within a rollout call; an environment with a state of its own keeps
            it under this.
        calls: what the text asks of tools, where the environment has any.
        prompt: the one it is trained on, without a hint: what an environment may be shown of it.
    """

    task: Task
    turns: tuple[Turn, ...]
    text: str
    last: bool
    row: int = 0
    calls: Calls = field(default_factory=Calls)
    prompt: Prompt = Prompt("")


@dataclass(frozen=True, slots=True)
class Response:
    """What an environment answers to an action.

    Attributes:
        observation: text to append after the policy's turn; "" for nothing.
        done: whether the episode is over.
        action: what the turn was taken for.
        error: what was wrong with it; "" for nothing.
        failed: the environment itself broke; ends the episode as an environment error.
        messages: chat messages to append in place of an observation, as {"role", "content"} and
            for a tool its "name": the policy's turn is closed, the chat template renders them and
            opens its next turn.
    """

    observation: str = ""
    done: bool = False
    action: str = ""
    error: str = ""
    failed: bool = False
    messages: tuple[Mapping[str, str], ...] = ()
