"""INSPO's proposers: prompts that ask an LLM for better instructions, and parsing of its replies.

Two in the form of INSPO's Appendix E: reflection (the parent and failed rollouts; the method itself)
and paraphrase (only the parent). `<ins_0>...</ins_0>` goes in, `<ins_1>...</ins_1>` to `<ins_N>...</ins_N>` come out. Prompts are
joined from strings; a model's output is never used as a template.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from cotune.methods.contract import neutralised, protocol_tags
from cotune.methods.inspo.replay import Experience
from cotune.methods.proposals import ReplyForm, Request, surroundings, without_reasoning
from cotune.types import Instruction, StopReason

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
        description: the agent's environment; "" keeps INSPO's wording.
        required: texts besides tags that every candidate must contain; () keeps INSPO's wording, too.
        others: failures under other instructions.
    """
    own_heading = "An agent that was given this prompt still gets the following examples wrong:"
    foreign = (
        "The agent got the following examples wrong when it was given other prompts; it may make "
        "the same mistakes with this one:"
    )
    examples = [own_heading, *map(_example, failures)] if failures else []
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


def _example(failure: Experience) -> str:
    ended = "" if failure.stop is StopReason.ANSWERED else f"\n[stopped: {failure.stop.value}]"
    answers = " | ".join(failure.task.answers)
    truth = f"Correct answer: {answers}\n" if answers else ""
    feedback = f"Feedback: {neutralised(failure.feedback)}\n" if failure.feedback else ""
    return (
        f"<example>\nQuestion: {neutralised(failure.task.question)}\n"
        f"Response: {neutralised(failure.text).strip()}{ended}\n{truth}{feedback}</example>"
    )


def _format_rules(parent: str, count: int, attempt: int, required: Sequence[str]) -> str:
    lines: list[str] = []
    tags = protocol_tags(parent)
    if required_texts := [text for text in required if text not in tags]:
        lines.append(f"{KEEP} {', '.join(required_texts)}")
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
    request = _ASKED.search("\n".join(prompt.splitlines()[-2:]))  # above may be texts of models
    return None if request is None else int(request[1])


def parse_candidates(text: str) -> list[str]:
    """Return the candidates of a reply in the order of their numbers; never raises.

    Reasoning before the answer (`<think>...</think>`) is removed with the drafts in it, to the end of
    the reply if it is not closed. Code fences around a candidate are also removed. Numbers may have
    gaps; if a number is repeated, the last one counts; `<ins_0>` is the parent repeated; an unclosed
    candidate, an empty one and a duplicate are dropped.
    """
    by_number: dict[int, str] = {}
    for match in _CANDIDATE.finditer(without_reasoning(text, _CANDIDATE)):
        number = match.group(1)
        if len(number) <= 6 and int(number) > 0:
            by_number[int(number)] = _unfenced(match.group(2))
    return list(dict.fromkeys(by_number[i] for i in sorted(by_number) if by_number[i]))


def critique_of(text: str) -> str:
    """Return the text of a reply before its first candidate."""
    before = _OPENING.split(without_reasoning(text, _CANDIDATE), maxsplit=1)[0]
    return re.sub(r"```\w*\s*\Z", "", before).strip()


def _unfenced(candidate: str) -> str:
    inner = _FENCED.match(candidate.strip())
    return (inner.group(1) if inner else candidate).strip()


def _read(reply: str) -> tuple[str, list[str]]:
    return critique_of(reply), parse_candidates(reply)


TAGGED = ReplyForm(_read, "in <ins_1>...</ins_1> tags")
"""How the replies to the prompts of this module hold their texts."""


# ---- the proposers


@dataclass(frozen=True, kw_only=True, slots=True)
class Brief:
    """What a proposer may use.

    Attributes:
        parent: the instruction to improve.
        failures: failed rollouts, those under the parent first; [] if there are none, and for a proposer that
            reads none.
        form: candidates wanted, number of the request, description of the environment, required texts.
    """

    parent: Instruction
    failures: Sequence[Experience]
    form: tuple[int, int, str, Sequence[str]]


def reflect(brief: Brief) -> Request | None:
    """Ask with the parent and failed rollouts: INSPO itself. Return None if nothing failed."""
    parent = brief.parent
    failures = brief.failures
    if not failures:
        return None
    under_parent = [failure for failure in failures if failure.instruction_id == parent.id]
    others = [failure for failure in failures if failure.instruction_id != parent.id]
    prompt = reflection_prompt(parent.text, under_parent, *brief.form, others=others)
    tasks = tuple(failure.task for failure in failures)
    return Request(prompt, parent.text, parent.shown, tasks)


def paraphrase(brief: Brief) -> Request:
    """Ask with the parent alone."""
    parent = brief.parent
    return Request(paraphrase_prompt(parent.text, *brief.form), parent.text, parent.shown)


ProposerKind = Literal["reflection", "paraphrase"]
PROPOSERS: dict[ProposerKind, Callable[[Brief], Request | None]] = {
    "reflection": reflect,
    "paraphrase": paraphrase,
}
"""All proposers, by the name in `strategy.proposer`; None if there is nothing to learn from."""
