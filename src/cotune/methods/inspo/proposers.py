"""INSPO's proposers: prompts that ask an LLM for better instructions, and parsing of its replies.

Two in the form of INSPO's Appendix E: "reflection" (the parent and failed rollouts; the method itself) and
"paraphrase" (only the parent). `<ins_0>...</ins_0>` goes in, `<ins_1>...</ins_1>` to `<ins_N>...</ins_N>` come out.
Prompts are joined from strings; a model's output is never used as a template.
"""

import re
from collections.abc import Sequence
from typing import Literal

from cotune.methods.contract import neutralised, protocol_tags
from cotune.methods.inspo.replay import Experience
from cotune.methods.proposals import Request, surroundings, without_reasoning
from cotune.types import Instruction, StopReason

ProposerKind = Literal["reflection", "paraphrase"]
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


def propose(
    parent: Instruction,
    failures: Sequence[Experience] | None,
    count: int,
    attempt: int = 1,
    description: str = "",
    required: Sequence[str] = (),
) -> Request:
    """Ask for `count` better instructions: by reflection on failures, or for paraphrases without any.

    Args:
        failures: failed rollouts, one or more; None for paraphrases.
        attempt: the round of its phase, from 1.
        description: the agent's environment; "" keeps INSPO's wording.
        required: texts besides tags that every candidate must contain; () keeps INSPO's wording, too.
    """
    heading = "" if failures is None else "The initial prompt is:\n\n"
    parts = [f"{heading}<ins_0>\n{parent.text}\n</ins_0>"]
    if failures is None:
        parts.append(f"Improve the above prompt.\nGive {count} different candidates.")
    else:
        under_parent = [failure for failure in failures if failure.instruction_id == parent.id]
        others = [failure for failure in failures if failure.instruction_id != parent.id]
        parts += [_OWN_FAILURES, *map(_example, under_parent)] if under_parent else []
        parts += [_OTHER_FAILURES, *map(_example, others)] if others else []
        parts.append(
            "First analyze why the agent made these mistakes and what in the prompt allowed them. "
            "Then take these reasons into account: revise and improve the initial prompt.\n"
            f"Give {count} different but better candidates. Write general strategies, never the "
            "answers to these examples."
        )
    parts.append(_format_rules(parent.text, count, attempt, required))
    prompt = surroundings(description) + "\n\n".join(parts)
    tasks = tuple(failure.task for failure in failures or ())
    return Request(prompt, parent.text, parent.shown, tasks)


_OWN_FAILURES = "An agent that was given this prompt still gets the following examples wrong:"
_OTHER_FAILURES = (
    "The agent got the following examples wrong when it was given other prompts; it may make "
    "the same mistakes with this one:"
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


def read_tagged(reply: str) -> tuple[str, list[str]]:
    """Return what a reply to these prompts says before its first candidate, and the candidates by number; never raises.

    Reasoning before the answer is removed with the drafts in it, and code fences around a candidate. Numbers may
    have gaps; if a number is repeated, the last one counts; `<ins_0>` is the parent repeated; an unclosed candidate,
    an empty one and a duplicate are dropped.
    """
    answer = without_reasoning(reply, _CANDIDATE)
    by_number: dict[int, str] = {}
    for match in _CANDIDATE.finditer(answer):
        number = match.group(1)
        if len(number) <= 6 and int(number) > 0:
            candidate = match.group(2).strip()
            inner = _FENCED.match(candidate)
            by_number[int(number)] = inner.group(1).strip() if inner else candidate
    critique = re.sub(r"```\w*\s*\Z", "", _OPENING.split(answer, maxsplit=1)[0]).strip()
    return critique, list(dict.fromkeys(by_number[i] for i in sorted(by_number) if by_number[i]))
