"""INSPO's population: importance weights (Eq. 6), selection (Eq. 4) and pruning (Algorithm 1)."""

import math
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from cotune.methods.method import too_close_to_call
from cotune.protocols import State
from cotune.types import Choice, Instruction


@dataclass(slots=True)
class Member:
    """A living instruction with its observations.

    Attributes:
        start: its weight for sampling until it is first observed.
        window: mean reward of each of the last n steps in which it was drawn, oldest first.
        steps, rollouts: numbers of those in which it was observed since it joined.
        observed: its weight when it was last observed; None if it never was.
    """

    instruction: Instruction
    start: float
    window: deque[float] = field(default_factory=deque[float])
    steps: int = 0
    rollouts: int = 0
    observed: float | None = None

    @property
    def id(self) -> str:
        return self.instruction.id

    @property
    def weight(self) -> float:
        """Return w_j of Eq. 6, the mean of the window; `start` if it is empty."""
        return fmean(self.window) if self.window else self.start

    def observe(self, rewards: Sequence[float]) -> None:
        """Add one step's mean reward r̄ to the window.

        A step in which it was not drawn adds nothing, so that a rarely drawn instruction is not penalised.
        """
        self.window.append(fmean(rewards))
        self.steps += 1
        self.rollouts += len(rewards)
        self.observed = self.weight

    def state_dict(self) -> State:
        return asdict(self) | {"window": list(self.window)}


class Population:
    """The living instructions, oldest first, with n of Eq. 6 (in observed steps) and tau_s of Eq. 4."""

    def __init__(self, window: int, temperature: float) -> None:
        self._window = window
        self._temperature = temperature
        self._members: list[Member] = []

    @property
    def members(self) -> tuple[Member, ...]:
        return tuple(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, instruction_id: str) -> Member:
        return {member.id: member for member in self._members}[instruction_id]

    def new_member(self, instruction: Instruction, start: float = 0.0) -> Member:
        """Return a member to add, with weight `start` until it is first observed."""
        return Member(instruction, start, deque(maxlen=self._window))

    def add(self, member: Member) -> None:
        self._members.append(member)

    def probabilities(self) -> list[float]:
        """Return softmax(w / tau_s) of Eq. 4, the probability of drawing each member, in their order."""
        weights = [member.weight for member in self._members]
        top = max(weights)  # subtracted, so that weights of any size have a finite exponential
        scaled = [math.exp((w - top) / self._temperature) for w in weights]
        total = sum(scaled)
        return [s / total for s in scaled]

    def draw(self, key: str) -> Instruction:
        """Draw one member by Eq. 4. The same key and weights give the same instruction."""
        chosen = random.Random(key).choices(self._members, self.probabilities())
        return chosen[0].instruction

    def observe(self, rewards: Mapping[str, Sequence[float]]) -> None:
        """Add one step's mean reward r̄ to the window of each instruction, by id."""
        for instruction_id, values in rewards.items():
            if values:
                self[instruction_id].observe(values)

    def top(self, k: int) -> list[Member]:
        """Return the k best by weight, best first; ties go to the oldest.

        The best of those observed is always among them: otherwise newcomers that were never drawn
        could drive out every instruction whose reward is known.
        """
        ranked = sorted(self._members, key=lambda m: -m.weight)
        best = self._observed()[:1]
        if best and k > 0 and best[0] not in ranked[:k]:
            return [*ranked[: k - 1], *best]
        return ranked[:k]

    def prune(self, parents: int) -> list[Member]:
        """Drop the bottom floor(N/2), never below `parents` or one; return the dropped."""
        keep = max(len(self) - len(self) // 2, parents, 1)
        return self.keep_only({m.id for m in self.top(keep)})

    def keep_only(self, ids: set[str]) -> list[Member]:
        """Drop all others and return them."""
        dropped = [m for m in self._members if m.id not in ids]
        self._members = [m for m in self._members if m.id in ids]
        return dropped

    def best(self, settled: str | None = None) -> Choice | None:
        """Return argmax w_j among those observed; ties go to the oldest. None if none was observed.

        The start weight of a newcomer is a guess that only orders sampling. The member whose id is `settled` ranks
        first, whatever its weight.
        """
        ranked = sorted(self._observed(), key=lambda m: m.id != settled)
        if not ranked:
            return None
        first, *others = ranked
        assert first.observed is not None
        rivals = [m for m in others if too_close_to_call(first.window, m.window)]
        return Choice(
            first.instruction,
            first.observed,
            first.steps,
            first.rollouts,
            others[0].instruction if others else None,
            bool(others) and others[0] in rivals,
            tuple(m.instruction for m in rivals),
        )

    def _observed(self) -> list[Member]:
        """Return the members that were ever observed, best first."""
        weighed = [(m.observed, m) for m in self._members if m.observed is not None]
        return [m for _, m in sorted(weighed, key=lambda pair: -pair[0])]

    def state_dict(self) -> State:
        return {"members": [member.state_dict() for member in self._members]}

    def load_state_dict(self, state: State) -> None:
        self._members = [self.restore_member(saved) for saved in state["members"]]

    def restore_member(self, state: State) -> Member:
        """Return a member from its `state_dict`; it is not added."""
        instruction = Instruction(**state["instruction"])
        window = deque(state["window"], maxlen=self._window)
        fields: dict[str, Any] = {**state, "instruction": instruction, "window": window}
        return Member(**fields)
