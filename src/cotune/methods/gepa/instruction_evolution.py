"""A phase of GEPA on the instruction, under the current policy (arXiv 2507.19457)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from cotune.errors import EvolutionError
from cotune.methods.gepa.gepa_phase import Evolved, Search, evolve_by_gepa
from cotune.methods.gepa.instruction_reflection import InstructionReflector
from cotune.methods.gepa.reflection import Judge, Reflector
from cotune.methods.inspo.population import too_close_to_call
from cotune.methods.instruction_rules import InstructionRules
from cotune.protocols import LLM, Recorder, Rollout
from cotune.types import Instruction, Prompt, Task

_ORIGIN = "gepa"
_PROGRESS_EVENTS = 20  # of a phase


@dataclass(frozen=True, slots=True)
class Candidates:
    """The instructions of a phase, the initial one first, with what they were worth.

    Attributes:
        scores: rewards, instructions × dev questions; greedy, one rollout each.
        evaluations: rollouts that the phase cost.
    """

    instructions: tuple[Instruction, ...]
    scores: tuple[tuple[float, ...], ...]
    evaluations: int = 0

    def mean(self, index: int) -> float:
        """An instruction's mean reward over dev."""
        return fmean(self.scores[index])

    @property
    def best(self) -> int:
        """The index of the highest mean, of equal ones the earliest."""
        return max(range(len(self.scores)), key=lambda i: (self.mean(i), -i))


def evolve_instruction(
    dev: Sequence[Task],
    train: Sequence[Task],
    *,
    rollout: Rollout,
    llm: LLM,
    rules: InstructionRules,
    search: Search,
    seed_key: str,
    step: int,
    record: Recorder,
    description: str = "",
) -> Candidates:
    """One phase from `search.seed`. The same arguments and replies make the same calls in order.

    Recorded as "gepa_phase", "gepa_progress", "gepa_phase_ended" and "best_instruction"; what
    joins as "instruction_born" with its critique and mean dev score, what does not as
    "instruction_rejected".

    Args:
        dev: questions that instructions are scored on.
        train: questions that are reflected on.
        step: the step before which this happens.
        description: what the LLM is told of the environment.

    Raises:
        EvolutionError: the LLM was asked and no reply kept to the contract, though its budget was
            not spent.
        CotuneError: what `rollout` or `llm` raised; an LLMError is recorded instead.
    """
    record("gepa_phase", dev=len(dev), train=len(train), budget=search.budget)
    judge = Judge(Prompt, rollout)
    lineage = _Lineage(search, step, record)
    reflector = InstructionReflector(llm, rules, judge.met, lineage.unlawful, record, description)
    lineage.critiques = reflector.critiques
    found = evolve_by_gepa(dev, train, judge, reflector, search, seed_key, lineage)
    if reflector.asked and not reflector.lawful and not reflector.spent:
        raise EvolutionError(
            f"every instruction that GEPA was proposed failed ({'; '.join(reflector.reasons)}); "
            "expected a lawful instruction within ``` blocks: check the run file's `llm`"
        )
    candidates = Candidates(tuple(lineage.instructions), found.scores, judge.evaluations)
    _record_ended(candidates, found, reflector, search.budget, record)
    return candidates


def _record_ended(
    candidates: Candidates, found: Evolved, reflector: Reflector, budget: int, record: Recorder
) -> None:
    best, rest = candidates.best, range(len(found.texts))
    record(
        "gepa_phase_ended",
        evaluations=candidates.evaluations,
        budget=budget,
        asked=reflector.asked,
        proposed=reflector.proposed,
        lawful=reflector.lawful,
        accepted=len(found.texts) - 1,
        initial_dev_score=candidates.mean(0),
        best_dev_score=candidates.mean(best),
    )
    others = sorted((i for i in rest if i != best), key=lambda i: (-candidates.mean(i), i))
    second = others[0] if others else None
    record(
        "best_instruction",
        id=candidates.instructions[best].id,
        weight=candidates.mean(best),
        observed_steps=0,
        observed_rollouts=len(found.scores[best]),
        runner_up=None if second is None else candidates.instructions[second].id,
        too_close_to_call=second is not None
        and too_close_to_call(found.scores[best], found.scores[second]),
    )


class _Lineage:
    """gepa's `Report` with ids: names what joins and records what happens.

    Attributes:
        instructions: what has joined, in order.
        critiques: by text, what the LLM said before it.
    """

    def __init__(self, search: Search, step: int, record: Recorder) -> None:
        self.instructions = [Instruction("i0", search.seed)]
        self.critiques: dict[str, str] = {}
        self._ids = {search.seed: "i0"}
        self._step, self._record, self._budget = step, record, search.budget
        self._told = -1
        record("instruction_born", **asdict(self.instructions[0]), score=None, parent_score=None)

    def accepted(self, text: str, parent: str, score: float, parent_score: float) -> None:
        instruction = Instruction(
            id=f"i{len(self.instructions)}",
            text=text,
            parent=self._ids[parent],
            origin=_ORIGIN,
            born=self._step,
            critique=self.critiques.get(text, ""),
        )
        self.instructions.append(instruction)
        self._ids[text] = instruction.id
        self._record(
            "instruction_born", **asdict(instruction), score=score, parent_score=parent_score
        )

    def rejected(
        self, text: str, parent: str, score: float, parent_score: float, improved: bool
    ) -> None:
        reason = "no budget left to score it" if improved else "not above its parent"
        self._refuse(text, parent, reason, score, parent_score)

    def unlawful(self, text: str, parent: str, reason: str) -> None:
        """A text breaks the contract."""
        self._refuse(text, parent, reason, None, None)

    def _refuse(
        self, text: str, parent: str, reason: str, score: float | None, parent_score: float | None
    ) -> None:
        self._record(
            "instruction_rejected",
            reason=reason,
            text=text,
            parent=self._ids[parent],
            origin=_ORIGIN,
            score=score,
            parent_score=parent_score,
        )

    def progress(self, evaluations: int, texts: int, best: float) -> None:
        """Recorded every so often: an iteration may be six rollouts."""
        part = evaluations * _PROGRESS_EVENTS // self._budget
        if part == self._told:
            return
        self._told = part
        self._record(
            "gepa_progress",
            evaluations=evaluations,
            budget=self._budget,
            instructions=texts,
            best_dev_score=best,
        )
