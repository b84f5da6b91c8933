"""Track whether the optimizer LLM is useful, over the phases of a run."""

from collections.abc import Iterable

from cotune.errors import EvolutionError
from cotune.protocols import LLM, Recorder, State

_ENDS_A_RUN = 2  # failed phases in a row
_MOST_CAUSES = 5
_ADVICE = "correct llm, or set llm.optional: true to continue without its proposals"


def reads_prompts(llm: LLM) -> bool:
    """Return whether an LLM's replies can depend on what its prompts show; a bank's cannot."""
    return getattr(llm, "origin", "") != "bank"


class LLMHealth:
    """Count the phases whose proposals all failed, and end a run whose LLM is useless.

    Every failed phase is recorded as "phase_failed". Two in a row end the run, unless the LLM is
    `optional`. Once a proposal of the run was valid, a phase has failed only if no reply could be read:
    all proposals of a working LLM may be rejected, for instance as near copies. An LLM that has nothing
    left to give (BudgetError) has not failed either; this is recorded once, as "proposals_ended".

    Args:
        needed: whether the run is pointless without a valid proposal, so that an LLM that has nothing
            left before the first one has failed.
    """

    def __init__(self, needed: bool = False) -> None:
        self._needed = needed
        self._useful = False  # a proposal of the run was valid
        self._failed = 0  # phases in a row
        self._causes: list[str] = []  # of these phases
        self._ended = False

    def blame(self, reasons: Iterable[str]) -> None:
        """Note why proposals of this phase failed."""
        self._causes = list(dict.fromkeys([*self._causes, *reasons]))[:_MOST_CAUSES]

    def end_phase(
        self,
        llm: LLM,
        record: Recorder,
        what: str,
        expected: str,
        *,
        valid: bool,
        read: bool,
        spent: str,
        last: bool = False,
    ) -> None:
        """End a phase in which the LLM was asked, or had nothing left to give.

        Args:
            what: what was proposed.
            expected: what a reply should have held.
            valid: whether a proposal of the phase met the contract.
            read: whether a reply of the phase could be read.
            spent: why the LLM has nothing left to give; "" if it has.
            last: whether no other phase can follow.

        Raises:
            EvolutionError: the phase failed, the LLM is not optional, and this is the second such
                phase in a row, or the last one of a run without any valid proposal.
        """
        self._useful |= valid
        if valid or (self._useful and read):
            self._failed, self._causes, self._ended = 0, [], False
        elif not spent or (self._needed and not self._useful):
            self.blame([spent] if spent else [])
            self._fail(llm, record, what, expected, last and not self._useful)
        if spent:
            if not self._ended:
                record("proposals_ended", reason=spent)
            self._ended = True

    def _fail(self, llm: LLM, record: Recorder, what: str, expected: str, last: bool) -> None:
        self._failed += 1
        causes = "; ".join(self._causes)
        record("phase_failed", reason=causes, in_a_row=self._failed)
        if getattr(llm, "optional", False) or (self._failed < _ENDS_A_RUN and not last):
            return
        advice = getattr(llm, "advice", "") or _ADVICE
        phases = "the only phase" if self._failed == 1 else f"{self._failed} phases in a row"
        raise EvolutionError(
            f"every {what} of {phases} failed ({causes}); expected {expected}: {advice}"
        )

    def state_dict(self) -> State:
        return {
            "useful": self._useful,
            "failed": self._failed,
            "causes": list(self._causes),
            "ended": self._ended,
        }

    def load_state_dict(self, state: State) -> None:
        self._useful = bool(state["useful"])
        self._failed, self._causes = int(state["failed"]), list(state["causes"])
        self._ended = bool(state["ended"])
