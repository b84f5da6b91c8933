"""Banks of instructions and hints: text files in sections, part of which is held out."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

Sections = Mapping[str, tuple[str, ...]]
_HEADER = re.compile(r"\[(held-out )?(instructions|hints): ([^\]]+)\]")


@dataclass(frozen=True)
class Bank:
    """The texts of a bank by section: instructions by form, hints by type of question.

    Attributes:
        instructions, hints: the texts that may be proposed.
        held_out_instructions, held_out_hints: texts of the same sections that never are.
    """

    instructions: Sections
    hints: Sections
    held_out_instructions: Sections
    held_out_hints: Sections


def read_sections(path: Path) -> Bank:
    """Read a bank, one text a line; lines that begin with # are comments.

    Raises:
        ValueError: a line stands outside a section, or a section's header is not of the form
            `[instructions: NAME]` or `[hints: NAME]`, with or without `held-out`.
    """
    sections_of: dict[tuple[bool, str], dict[str, list[str]]] = {}
    texts: list[str] | None = None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if header := _HEADER.fullmatch(text):
            sections = sections_of.setdefault((header[1] is not None, header[2]), {})
            texts = sections.setdefault(header[3], [])
        elif texts is None or text.startswith("["):
            raise ValueError(f"{path.name}, line {number}: {text!r} is in no section; correct it")
        else:
            texts.append(text)

    def part(held_out: bool, what: str) -> Sections:
        return {name: tuple(texts) for name, texts in sections_of.get((held_out, what), {}).items()}

    return Bank(
        part(False, "instructions"),
        part(False, "hints"),
        part(True, "instructions"),
        part(True, "hints"),
    )
