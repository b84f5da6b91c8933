"""Prompts that ask an LLM for better instructions, and parsing of its replies.

Three proposers in the form of INSPO's Appendix E: reflection (the parent and failed rollouts; the
method itself), paraphrase (only the parent) and history (instructions with their scores).
`<ins_0>...</ins_0>` goes in, `<ins_1>...</ins_1>` to `<ins_N>...</ins_N>` come out. Prompts are
joined from strings; a model's output is never used as a template.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cotune.errors import BudgetError, LLMError
from cotune.methods.inspo.replay import Experience
from cotune.methods.instruction_rules import (
    CUT_OFF,
    neutralised,
    protocol_tags,
    surroundings,
    without_reasoning,
)
from cotune.methods.llm_health import LLMHealth
from cotune.protocols import LLM, Recorder, State
from cotune.types import StopReason

ProposerKind = Literal["reflection", "paraphrase", "history"]

KEEP = "Keep these texts in every candidate, letter by letter:"
"""Begins the line of a prompt that names required texts, such as \\boxed."""

# A candidate runs from its opening tag to its own closing one with no other opening tag between:
# if a closing tag is missing, only that candidate is lost.
_CANDIDATE = re.compile(
    r"<\s*ins_(\d+)\s*>((?:(?!<\s*ins_\d+\s*>).)*?)<\s*/\s*ins_\1\s*>", re.DOTALL | re.IGNORECASE
)
_ASKED = re.compile(
    r"List the candidates in <ins_1>\.\.\.</ins_1> to <ins_(\d+)>\.\.\.</ins_\1> tags\."
)
_OPENING = re.compile(r"<\s*ins_0*[1-9]\d*\s*>", re.IGNORECASE)
_FENCED = re.compile(r"\A```[^\n]*\n(.*?)\n?```\Z", re.DOTALL)
_CRITIQUE_CHARS = 2000


def reflection_prompt(
    parent: str,
    failures: Sequence[Experience],
    count: int,
    attempt: int = 1,
    description: str = "",
    required: Sequence[str] = (),
    others: Sequence[Experience] = (),
) -> str:
    """Build INSPO's own prompt: parent and failures in, critique and `count` candidates out.

    Args:
        failures: rollouts under the parent.
        description: the agent's environment; "" keeps INSPO's wording, here and in the other prompts.
        required: texts besides tags that every candidate must contain; () keeps INSPO's wording, too.
        others: failures under other instructions.
    """
    own = "An agent that was given this prompt still gets the following examples wrong:"
    foreign = (
        "The agent got the following examples wrong when it was given other prompts; it may make "
        "the same mistakes with this one:"
    )
    examples = [own, *map(_example, failures)] if failures else []
    examples += [foreign, *map(_example, others)] if others else []
    return surroundings(description) + "\n\n".join(
        (
            f"The initial prompt is:\n\n<ins_0>\n{parent}\n</ins_0>",
            *examples,
            "First analyze why the agent made these mistakes and what in the prompt allowed them. "
            "Then take these reasons into account: revise and improve the initial prompt.\n"
            f"Give {count} different but better candidates. Write general strategies, never the "
            "answers to these examples.",
            _format_rules(parent, count, attempt, required),
        )
    )


def paraphrase_prompt(
    parent: str, count: int, attempt: int = 1, description: str = "", required: Sequence[str] = ()
) -> str:
    """Build the paraphrase prompt: only the parent in, `count` rewrites out."""
    return surroundings(description) + "\n\n".join(
        (
            f"<ins_0>\n{parent}\n</ins_0>",
            f"Improve the above prompt.\nGive {count} different candidates.",
            _format_rules(parent, count, attempt, required),
        )
    )


def history_prompt(
    scored: Sequence[tuple[str, float]],
    original: str,
    count: int,
    attempt: int = 1,
    description: str = "",
    required: Sequence[str] = (),
) -> str:
    """Build the history prompt: instructions scored 0 to 100, worst first; `count` candidates out."""
    shown = "\n".join(
        f"<ins_{i}>\n{text}\n</ins_{i}>\n<score_{i}>{score:.1f}</score_{i}>"
        for i, (text, score) in enumerate(scored, 1)
    )
    return surroundings(description) + "\n\n".join(
        (
            f"<history>\n{shown}\n</history>",
            'The above is a history of "instruction: score" pairs; scores range from 0 to 100. '
            "Analyze what leads to a better score.\n"
            f"Give {count} different but better candidates, concise, effective and diverse.",
            _format_rules(original, count, attempt, required),
        )
    )


def _example(failure: Experience) -> str:
    ended = "" if failure.stop is StopReason.ANSWERED else f"\n[stopped: {failure.stop.value}]"
    answers = " | ".join(failure.task.answers)
    truth = f"Correct answer: {answers}\n" if answers else ""
    said = f"Feedback: {neutralised(failure.feedback)}\n" if failure.feedback else ""
    return (
        f"<example>\nQuestion: {neutralised(failure.task.question)}\n"
        f"Response: {neutralised(failure.text).strip()}{ended}\n{truth}{said}</example>"
    )


def _format_rules(parent: str, count: int, attempt: int, required: Sequence[str]) -> str:
    lines: list[str] = []
    tags = protocol_tags(parent)
    if kept := [text for text in required if text not in tags]:
        lines.append(f"{KEEP} {', '.join(kept)}")
    if tags:
        lines.append(
            "Keep the XML tags of the original prompt in every candidate, the beginning and the "
            f"ending ones: {' '.join(tags)}"
        )
    lines.append(
        f"List the candidates in <ins_1>...</ins_1> to <ins_{count}>...</ins_{count}> tags."
    )
    if attempt > 1:
        lines.append(f"This is request {attempt} for this prompt: differ from what came before.")
    return "\n".join(lines)


def candidates_asked(prompt: str) -> int | None:
    """Return how many candidates a prompt of this module asks for; None for another prompt."""
    found = _ASKED.search("\n".join(prompt.splitlines()[-2:]))  # above may be texts of models
    return None if found is None else int(found[1])


def parse_candidates(text: str) -> list[str]:
    """Return the candidates of a reply in the order of their numbers; never raises.

    Reasoning before the answer (`<think>...</think>`) is removed with the drafts in it, to the end of
    the reply if it is not closed. Code fences around a candidate are also removed. Numbers may have
    gaps; if a number is repeated, the last one counts; `<ins_0>` is the parent repeated; an unclosed
    candidate, an empty one and a duplicate are dropped.
    """
    found: dict[int, str] = {}
    for match in _CANDIDATE.finditer(without_reasoning(text, _CANDIDATE)):
        number = match.group(1)
        if len(number) <= 6 and int(number) > 0:
            found[int(number)] = _unfenced(match.group(2))
    return list(dict.fromkeys(found[i] for i in sorted(found) if found[i]))


def critique_of(text: str) -> str:
    """Return the text of a reply before its first candidate, at most 2,000 characters."""
    before = _OPENING.split(without_reasoning(text, _CANDIDATE), maxsplit=1)[0]
    return re.sub(r"```\w*\s*\Z", "", before).strip()[:_CRITIQUE_CHARS]


def _unfenced(candidate: str) -> str:
    inner = _FENCED.match(candidate.strip())
    return (inner.group(1) if inner else candidate).strip()


@dataclass(frozen=True, slots=True)
class Proposal:
    """A reply of an LLM; it has no candidates if it could not be parsed."""

    candidates: tuple[str, ...]
    critique: str


class ProposalAccount:
    """Ask an LLM and track its phases, so that a run with a useless LLM ends."""

    def __init__(self) -> None:
        self._health = LLMHealth(needed=True)
        # Of the current phase:
        self._valid = self._read = False
        self._spent = ""

    def ask(self, prompt: str, llm: LLM, record: Recorder, most: int) -> Proposal | None:
        """Return the first `most` candidates; None if the call failed or the LLM gives no more.

        A failed call, a reply that was cut off and one without candidates are recorded as
        "proposal_failed".
        """
        try:
            reply = llm.complete(prompt)
        except BudgetError as error:
            self._spent = str(error)
            return None
        except LLMError as error:
            self._fail(f"{type(error).__name__}: {error}", record)
            return None
        candidates = () if reply.truncated else tuple(parse_candidates(reply.text)[:most])
        if reply.truncated:
            self._fail(CUT_OFF, record)
        elif not candidates:
            self._fail("no <ins_1>...</ins_1> candidate in the reply", record)
        self._read |= bool(candidates)
        return Proposal(candidates, critique_of(reply.text))

    def valid(self, count: int, reasons: Sequence[str]) -> None:
        """Record a reply's valid candidates, and why the contract rejected the others."""
        if count:
            self._valid = True
        elif reasons:
            self._health.blame([f"all candidates broke the contract: {reasons[0]}"])

    def _fail(self, reason: str, record: Recorder) -> None:
        self._health.blame([reason])
        record("proposal_failed", reason=reason)

    def end_phase(self, llm: LLM, record: Recorder, last: bool = False) -> None:
        """End a phase of proposals: the initial rewrites, or one evolution.

        Args:
            last: whether this is the last phase.

        Raises:
            EvolutionError: see `LLMHealth.end_phase`.
        """
        self._health.end_phase(
            llm,
            record,
            "proposal",
            "a reply with valid <ins_1>...</ins_1> candidates",
            valid=self._valid,
            read=self._read,
            spent=self._spent,
            last=last,
        )
        self._valid = self._read = False
        self._spent = ""

    def state_dict(self) -> State:
        return {"health": self._health.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self._health.load_state_dict(state["health"])
