"""Supervised fine-tuning: training data from reference answers or from rejection sampling.

The instruction stays the initial one, so a run evaluates under `StaticStrategy`; an engine does the
fitting. Rejection sampling keeps the policy's own rollouts that succeeded, as in STaR
(arXiv 2203.14465) and RFT (arXiv 2308.01825).
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from cotune.errors import EngineError
from cotune.methods.method import Method, RunShape
from cotune.methods.static import StaticStrategy
from cotune.protocols import Codec
from cotune.types import Trajectory

IGNORED = -100
"""The label of tokens that are not targets."""


@dataclass(frozen=True, kw_only=True)
class SFTOptions:
    """Supervised fine-tuning under the initial instruction.

    Attributes:
        data: "answers" trains on each training question's reference: the data's solution, else its
            first accepted answer in the form that the environment takes. "rollouts" trains on
            rollouts of the initial policy that succeeded (rejection sampling).
        epochs: passes over the training data.
        samples: rollouts per training question; fewer if training.rollout_budget is reached.
        keep_from: the lowest reward of a rollout to train on.
        keep_per_question: the most distinct rollouts kept per question; null: all.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    kind: Literal["sft"] = "sft"
    data: Literal["answers", "rollouts"] = "answers"
    epochs: int = 2
    samples: int = 4
    keep_from: float = 1.0
    keep_per_question: int | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "samples", "keep_per_question"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"strategy.{name} is {value}; expected 1 or more")
        if not math.isfinite(self.keep_from):
            raise ValueError(f"strategy.keep_from is {self.keep_from}; expected a finite number")

    @property
    def most_per_question(self) -> int:
        """Return the maximum number of rows per question."""
        if self.data == "answers":
            return 1
        most = self.keep_per_question
        return self.samples if most is None else min(self.samples, most)


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One sequence to fit.

    Attributes:
        task: id of its question.
        input_ids: prompt and completion, (T,).
        labels: the same ids at the policy's own tokens, `IGNORED` elsewhere, (T,).
    """

    task: str
    input_ids: tuple[int, ...]
    labels: tuple[int, ...]

    @property
    def targets(self) -> int:
        """Return the number of tokens in the loss."""
        return sum(label != IGNORED for label in self.labels)


def rollout_row(trajectory: Trajectory) -> TrainingRow:
    """Convert a rollout to a row; only the policy's own tokens are targets.

    Tokens after the last own token are dropped: nothing is learnt from them.
    """
    own = [i for i, mine in enumerate(trajectory.mask) if mine]
    end = own[-1] + 1 if own else 0
    completion = trajectory.completion_ids[:end]
    labels = [
        token if mine else IGNORED
        for token, mine in zip(completion, trajectory.mask[:end], strict=True)
    ]
    prompt = trajectory.prompt_ids
    return TrainingRow(
        trajectory.task.id, (*prompt, *completion), (*[IGNORED] * len(prompt), *labels)
    )


def reference_row(
    task: str, prompt_ids: Sequence[int], text: str, codec: Codec, stop: Sequence[str]
) -> TrainingRow:
    """Build a row from a reference, in the form in which the policy would write it.

    An EOS ends it, unless the text ends with a stop string: the sampler stops there, and the policy
    never writes an EOS after it.

    Args:
        task: the question's id.
        prompt_ids: the rendered prompt, (P,).
        text: the reference.
        codec: the policy's codec.
        stop: strings after which a turn ends.
    """
    ids = codec.encode(text)
    if not text.endswith(tuple(stop)) or not stop:
        ids = [*ids, codec.eos_id]
    return TrainingRow(task, (*prompt_ids, *ids), (*[IGNORED] * len(prompt_ids), *ids))


def accepted(trajectories: Sequence[Trajectory], options: SFTOptions) -> list[Trajectory]:
    """Select the rollouts to train on, in order: the first few different successes per question.

    Two rollouts are the same if the policy wrote the same turns.
    """
    seen: defaultdict[str, set[tuple[str, ...]]] = defaultdict(set)
    kept: list[Trajectory] = []
    for trajectory in trajectories:
        texts = tuple(turn.text for turn in trajectory.turns)
        known = seen[trajectory.task.id]
        full = options.keep_per_question is not None and len(known) >= options.keep_per_question
        rewarded = trajectory.reward >= options.keep_from and trajectory.generated_tokens > 0
        if rewarded and not full and texts not in known:
            known.add(texts)
            kept.append(trajectory)
    return kept


def optimizer_steps(rows: int, epochs: int, micro_batch_size: int, accumulation: int) -> int:
    """Return the optimizer steps of a fit; an epoch's last batch may be smaller than the others."""
    micro_batches = -(-rows // micro_batch_size)
    return epochs * -(-micro_batches // accumulation)


def check_accepted(kept: int, sampled: int, highest: float, options: SFTOptions) -> None:
    """Raise EngineError if rejection sampling has left nothing to train on."""
    if kept:
        return
    raise EngineError(
        f"none of the {sampled:,} rollouts has a reward of {options.keep_from:g} or more (the highest "
        f"is {highest:g}), so there is nothing to fine-tune on: lower strategy.keep_from, raise "
        "strategy.samples, or start from a policy or an instruction that sometimes succeeds"
    )


def _check(options: SFTOptions, shape: RunShape) -> None:
    if shape.frozen:
        raise ValueError(
            "training.frozen is true, but strategy.kind sft trains nothing but the policy; "
            "remove training.frozen"
        )
    if options.data == "answers" and not shape.has_references:
        raise ValueError(
            f"strategy.data is answers, but environment.kind {shape.environment} rewards what a "
            "policy does and gives no reference answers; set strategy.data: rollouts"
        )


METHOD = Method(
    options=SFTOptions,
    build=lambda options, context: StaticStrategy(context.instruction),
    label="SFT",
    about="supervised fine-tuning under the static instruction",
    card="Supervised fine-tuning under a fixed instruction",
    tags=("sft",),
    needs_llm=lambda options: False,
    supervised=True,
    check=_check,
)
