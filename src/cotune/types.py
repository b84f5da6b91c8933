"""The values that flow through a training step, all frozen.

A `Task` is a question. A strategy makes `Assignment`s of it: which `Prompt` a rollout is sampled
under and which one it is trained on. A rollout is a `Trajectory` of `Turn`s; within it the policy
writes `Sample`s and the environment answers each `Action` with a `Response`.

Letters in shapes: B rows of a batch, G rollouts of a group, T tokens, P prompt tokens, C completion
tokens, V entries of the vocabulary.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, ClassVar, Literal


class Section:
    """Base of options that are dataclasses; as a section of a run file they refuse unknown fields."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}


# ---- questions and prompts


@dataclass(frozen=True, slots=True)
class Task:
    """One question with its accepted answers.

    Attributes:
        id: stable across epochs and runs; everything recorded about a task is keyed by it.
        answers: ground truths, any of which counts.
        stratum: the row of a result table that it belongs to ("2 hops"); "" without strata.
        solution: a reference solution, if the data has one. It is never shown to a proposer.
        context: messages before the question, as (role, content): a system prompt, earlier turns.
        chat: whether the data has the question as chat messages; reward functions then get messages.
        columns: all columns of the data's row, for reward functions. Saved states leave them out.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    stratum: str = ""
    solution: str = ""
    context: tuple[tuple[str, str], ...] = ()
    chat: bool = False
    columns: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)

    def own_columns(self) -> dict[str, Any]:
        """Return copies of the columns' values, for the user's code, which may change them."""
        return copy.deepcopy(dict(self.columns))


@dataclass(frozen=True, slots=True)
class Prompt:
    """The text around a question: an instruction and optionally a hint (P²O's template)."""

    instruction: str
    hint: str = ""

    def under_hint(self, message: str) -> str:
        """Put the hint before the user's message: P²O's T(x, z). Without a hint return it as it is."""
        hint = self.hint.strip()
        return f"{hint}\n\n{message}" if hint else message


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction and where it came from.

    Attributes:
        id: "i0" is the initial one; later ones are numbered in the order of their birth.
        parent: id of the instruction it was derived from; None for the initial one.
        origin: "initial", "rewrite", "bank" or the kind of proposer that wrote it.
        born: the step at which it joined the population; 0 for the initial one.
        critique: its author's criticism of the parent; "" if there was none.
        shown: ids of the questions that its author, or an ancestor's, was shown with their answers;
            it is not verified on them.
    """

    id: str
    text: str
    parent: str | None = None
    origin: str = "initial"
    born: int = 0
    critique: str = ""
    shown: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # A saved state has a list.
        object.__setattr__(self, "shown", tuple(self.shown))


@dataclass(frozen=True, slots=True)
class Choice:
    """The best instruction by weight, with the evidence for it.

    Attributes:
        steps, rollouts: in how many of them it was observed.
        runner_up: the next by weight; None if there is no other.
        too_close: whether the two cannot be told apart (`too_close_to_call`).
        rivals: all that cannot be told apart from it, best first.
    """

    instruction: Instruction
    weight: float
    steps: int
    rollouts: int
    runner_up: Instruction | None
    too_close: bool
    rivals: tuple[Instruction, ...] = ()

    @property
    def evidence(self) -> dict[str, Any]:
        """What is recorded of it, as `best.json` and the events name it."""
        return {
            "weight": self.weight,
            "observed_steps": self.steps,
            "observed_rollouts": self.rollouts,
            "runner_up": self.runner_up.id if self.runner_up else None,
            "too_close_to_call": self.too_close,
        }


# ---- what a strategy decides


@dataclass(frozen=True, slots=True)
class Assignment:
    """The prompts of one rollout: the one it is sampled under and the one it is trained on.

    Attributes:
        sampled: the prompt that the policy sees while it writes.
        trained: the prompt that the gradient is taken on; never with a hint.
        instruction_id: the instruction that it is sampled under, and that is credited with the reward.
        group: index of the rollout's group in its batch; a group shares the task and is the unit
            over which advantages are normalised.
        teacher: in a last stage the prompt under which a teacher reads the rollout; None without a teacher.
    """

    task: Task
    sampled: Prompt
    trained: Prompt
    instruction_id: str
    group: int
    teacher: Prompt | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Distillation(Section):
    """Options of training on one prompt with rollouts sampled under another (P²O, arXiv 2603.21877, Eq. 4).

    The other prompt x̃ has a hint that x, which is trained on, does not have, or another instruction. π_old(ỹ|x) and
    π_old(ỹ|x̃) are the probabilities of a token under the two; their quotient is the context ratio.

    Attributes:
        ratio: "original", the paper's, has π_old(ỹ|x) in the denominator of the importance ratio, which starts at 1.
            "masked_signed" also leaves out the tokens whose context ratio is outside [low, high] if the advantage is
            not positive: raising an improbable token is bounded, pushing it down is not.
        low, high: bounds of the context ratio, with the mask; the defaults are those of P²O's scripts.
    """

    ratio: Literal["original", "masked_signed"] = "original"
    low: float = 0.01
    high: float = 10.0

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high:
            raise ValueError(f"low is {self.low} and high {self.high}; expected 0 <= low < high")


@dataclass(frozen=True, slots=True)
class Progress:
    """The position of a run, counted in rollout batches (not optimizer steps).

    Attributes:
        step: the current batch, counted from 1: t in the papers.
        epoch: passes over the training tasks completed before this batch.
        total_steps: T.
        rollouts_left: policy rollouts that the run may still make, this batch's included; None without a budget.
    """

    step: int
    epoch: int
    total_steps: int
    rollouts_left: int | None = None


Metrics = Mapping[str, float]
Purpose = str
"""The purpose of rollouts: "train", "verify", "evolve", "try", or "evaluate", to which files add when."""


# ---- a rollout


@dataclass(frozen=True, slots=True)
class Limits(Section):
    """Limits of an episode, in tokens and turns; the defaults are INSPO's for 3B models.

    Attributes:
        turns: turns of the policy, the final answer included.
        turn_tokens: tokens that the policy may write in one turn.
        observation_tokens: tokens of one observation; the rest is cut off.
        trajectory_tokens: tokens after the prompt, written and observed together.
        prompt_tokens: tokens of the prompt; a longer one is an error and never cut.
    """

    turns: int = 4
    turn_tokens: int = 500
    observation_tokens: int = 500
    trajectory_tokens: int = 4096
    prompt_tokens: int = 4096

    def __post_init__(self) -> None:
        for limit in fields(self):
            least = 2 if limit.name == "trajectory_tokens" else 1
            if getattr(self, limit.name) < least:
                raise ValueError(
                    f"limits.{limit.name} is {getattr(self, limit.name)}; expected {least} or more"
                )


class StopReason(StrEnum):
    """The reason why an episode ended."""

    ANSWERED = "answered"
    TURN_LIMIT = "turn limit"
    TURN_TOKENS = "turn token limit"
    TOKEN_LIMIT = "token limit"
    CONTEXT_LIMIT = "context limit"
    ENVIRONMENT_ERROR = "environment error"


LIMITED_BY: Mapping[str, str] = {
    StopReason.TURN_TOKENS: "turn_tokens",
    StopReason.TOKEN_LIMIT: "trajectory_tokens",
    StopReason.CONTEXT_LIMIT: "context",
    StopReason.TURN_LIMIT: "turns",
}
"""The field of `limits`, or the policy's context, that cut an episode off, by why it ended."""

SEARCH_FAILED = "search failed"
"""Prefix of `Turn.error` if a retriever could not carry out the turn's search."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: the policy's text and the environment's reply.

    Attributes:
        text: the policy's own tokens of this turn, decoded.
        observation: the environment's reply as the policy saw it, after truncation; "" if none. Of
            chat messages only the contents: what the template adds is in the trajectory's tokens.
        action: how the environment understood it ("search", "answer", "invalid", …).
        error: what was wrong with the action or the tool, in a few words; "" if nothing.
        messages: the turn as TRL gives it to reward functions: the policy's message, with `tool_calls` if it
            made any, and the messages that the environment replied with. Run folders leave it out.
    """

    text: str
    observation: str = ""
    action: str = ""
    error: str = ""
    messages: tuple[Mapping[str, Any], ...] = field(default=(), compare=False)

    def row(self) -> dict[str, str]:
        """Return the turn as plain data, without its messages."""
        texts = ("text", "observation", "action", "error")
        return {name: getattr(self, name) for name in texts}


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One finished rollout.

    Attributes:
        sampled_prompt_ids: tokens of the prompt it was sampled under, (P,).
        prompt_ids: tokens of the prompt that the gradient is taken on, (P',).
        completion_ids: everything after the prompt: own tokens, observations, closing EOS, (C,).
        mask: 1 for tokens that the policy wrote, else 0, (C,).
        logprobs: log-probability of each own token when it was sampled, 0.0 elsewhere, (C,).
        turns: the same completion as text.
        answer: the final answer; None if there is none.
        parts: the value of each reward function before weighting, by name; empty without any.
        row: its position in the rollout call.
        feedback: what reward functions said about it; "" if they said nothing.
        teacher_prompt_ids: tokens of the prompt that its teacher reads it under; () without a teacher.
        scored: whether anything scored it; its reward is 0 if every reward function returned None.
        extra: what reward functions logged for it with TRL's `log_extra`, by column.
        logged: metrics that reward functions logged for the batch it was scored in, by name.
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
    feedback: str = ""
    teacher_prompt_ids: tuple[int, ...] = ()
    scored: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any], compare=False)

    @property
    def task(self) -> Task:
        return self.assignment.task

    @property
    def trained_mask(self) -> tuple[int, ...]:
        """1 for tokens that are trained on, else 0, (C,): none if the rollout was not `judged`."""
        return self.mask if self.judged else (0,) * len(self.mask)

    @property
    def judged(self) -> bool:
        """Whether its reward says something about the policy: not if the environment broke or nothing scored it."""
        return self.scored and self.stop is not StopReason.ENVIRONMENT_ERROR

    @property
    def own_text(self) -> str:
        """All the text that the policy wrote, without prompt and observations."""
        return "".join(turn.text for turn in self.turns)

    @property
    def full_text(self) -> str:
        """The completion as the policy saw it: own text and observations in order."""
        return "".join(turn.text + turn.observation for turn in self.turns)

    @property
    def generated_tokens(self) -> int:
        return sum(self.mask)

    @property
    def truncated_by(self) -> str:
        """Return the limit that cut the rollout off; "" if it ended by itself.

        A turn limit of 1 cuts nothing off: the policy was meant to answer in that turn.
        """
        if self.stop is StopReason.TURN_LIMIT and len(self.turns) < 2:
            return ""
        return LIMITED_BY.get(self.stop, "")


# ---- between a sampler and an episode


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of one rollout call.

    Attributes:
        temperature: 0 is greedy.
        stop: strings that end a turn; the token that completes one is kept.
        seed: seeds the draws, from (run seed, purpose, step, call).
        episode_seed: seeds what environments draw. It is the same in all calls whose scores are compared:
            greedy ones, and those of a search in one step.
    """

    temperature: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int = 0
    episode_seed: int = 0


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One row to continue by at most `max_tokens`; `row` identifies it within a sampler's session."""

    row: int
    context_ids: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Sample:
    """The policy's reply to a request: token ids and their log-probabilities, both (T,)."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


# ---- between an episode and its environment


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call, written in the form of the policy's chat template."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Calls:
    """The tool calls of a turn.

    Attributes:
        calls: in the order they were written; a turn may hold several.
        error: why something that looks like a call is not one, in a few words; "" if all are valid.
        text: the rest of the turn's text; "" if a call could not be read.
        message: the whole turn as TRL's chat message: `role`, `content` without control tokens, `tool_calls`
            if there are any, and what else the tokenizer's response template reads; {} if it is the text alone.
    """

    calls: tuple[ToolCall, ...] = ()
    error: str = ""
    text: str = ""
    message: Mapping[str, Any] = field(default_factory=dict[str, Any], compare=False)


@dataclass(frozen=True, slots=True)
class Action:
    """One turn of one episode, as an environment receives it.

    Attributes:
        turns: the earlier turns; empty at the first.
        text: what the policy wrote, without the closing EOS.
        last: whether the policy gets no further turn to read a reply.
        row: identifies the episode within a rollout call, for environments that keep state.
        calls: the tool calls in the text, if the environment has tools.
        prompt: the prompt that is trained on, without a hint: all that an environment may see of it.
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
    """An environment's answer to an action.

    Attributes:
        observation: text to append after the policy's turn; "" for nothing.
        done: whether the episode is over.
        action, error: as a `Turn` has them.
        failed: the environment itself broke; the episode ends as an environment error.
        messages: chat messages to append instead of `observation`, as {"role", "content"} and for a tool its "name".
            The policy's turn is closed, the chat template renders them, and the next turn is opened.
    """

    observation: str = ""
    done: bool = False
    action: str = ""
    error: str = ""
    failed: bool = False
    messages: tuple[Mapping[str, str], ...] = ()


# ---- an LLM


@dataclass(frozen=True, slots=True)
class Completion:
    """An LLM's reply and its usage in tokens; `truncated` if it was cut off at its token limit."""

    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    truncated: bool = False
