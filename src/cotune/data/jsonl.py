"""Corpora and question files in Search-R1's JSONL formats."""

import hashlib
import json
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from cotune.data.documents import Document, join_contents
from cotune.errors import ConfigError
from cotune.types import Task

ANSWER_FIELDS = ("answers", "golden_answers", "answer")


def read_corpus(path: Path) -> list[tuple[str, str]]:
    """Title and text of each passage, in file order.

    A line is `{"id": …, "contents": "\\"Title\\"\\ntext"}`: the first line of `contents` is the
    title, its quotes are dropped, and the rest is the text. Contents of one line are a text with
    the title "". A line without `contents` may have `title` and `text`. Blank lines of the file are
    skipped; other fields are ignored.

    Raises:
        ConfigError: no such file, not JSON Lines, `contents` missing or blank, an id that comes
            twice, no passage at all.
    """
    return [(document.title, document.text) for _, document in corpus_rows(path)]


def corpus_rows(path: Path, field: str = "environment.corpus") -> Iterator[tuple[int, Document]]:
    """Where each passage's line begins, in bytes, and the passage, in file order.

    Ids are compared when the last line was read: one that comes twice is an error then.

    Args:
        path: as for `read_corpus`; not held in memory.
        field: what messages call the file: where it was named.

    Raises:
        ConfigError: as `read_corpus`.
    """
    count, hashes = 0, array("q")  # eight bytes an id: a corpus may have 20 million
    for number, offset, line in _lines(path, field):
        document = parse_passage(line, f"{field}: {path}, line {number}", str(count))
        hashes.append(hash(document.id))
        count += 1
        yield offset, document
    if not count:
        raise ConfigError(f'{field}: {path} is empty; expected lines of {{"id": …, "contents": …}}')
    if np.unique(np.frombuffer(hashes, dtype=np.int64)).size < count:
        _refuse_repeated_id(path, field)


def parse_passage(line: str, where: str, number: str) -> Document:
    """One line of a corpus; ConfigError, beginning with `where`, if it is none.

    `number` is the id of a passage that has none.
    """
    row = _parsed(line, where)
    id = row.get("id")
    id = number if id is None else id
    if isinstance(id, bool) or not isinstance(id, str | int):
        raise ConfigError(f'{where}: "id" is {shortened(id)}; expected text or an integer')
    if "contents" not in row and "title" in row and "text" in row:
        title = row["title"]
        if not isinstance(title, str):
            raise ConfigError(f'{where}: "title" is {shortened(title)}; expected text')
        title = " ".join(title.split())
        return Document(
            str(id), join_contents(title, text_field(row, "text", where, '"text": "…"'))
        )
    return Document(str(id), text_field(row, "contents", where, '"contents": "\\"Title\\"\\ntext"'))


def _refuse_repeated_id(path: Path, field: str) -> None:
    """Names both lines of an id that comes twice; does nothing if only the hashes were equal."""
    lines: dict[str, int] = {}
    for count, (number, _, line) in enumerate(_lines(path, field)):
        where = f"{field}: {path}, line {number}"
        id = parse_passage(line, where, str(count)).id
        if id in lines:
            raise ConfigError(
                f"{where}: the id {shortened(id)} came before, in line {lines[id]}; give each "
                "passage an id of its own, or none"
            )
        lines[id] = number


def read_tasks(path: Path, split: str) -> list[Task]:
    """The tasks of a split, in file order.

    A line is `{"question": …, "answers": …}`; `golden_answers` and `answer` are read where
    `answers` is not there, and one string does for a list. `id` (text or integer) defaults to a
    hash of the question, `stratum` to "".

    Raises:
        ConfigError: no such file, not JSON Lines, a field missing or of the wrong kind, an id that
            comes twice, no question at all.
    """
    tasks: dict[str, Task] = {}
    for where, row in json_rows(path, f"environment.{split}"):
        question = text_field(row, "question", where, '"question": "…"')
        digest = hashlib.sha1(question.encode()).hexdigest()[:12]
        id, stratum = row.get("id", f"{split}-{digest}"), row.get("stratum", "")
        if isinstance(id, bool) or not isinstance(id, str | int):
            raise ConfigError(f'{where}: "id" is {shortened(id)}; expected text or an integer')
        if not isinstance(stratum, str):
            raise ConfigError(f'{where}: "stratum" is {shortened(stratum)}; expected text')
        task = Task(str(id), question, _answers(row, where), stratum)
        if task.id in tasks:
            raise ConfigError(
                f"{where}: the task {task.id!r} came before; drop one of the two or give each its "
                '"id" (without one it is a hash of the question)'
            )
        tasks[task.id] = task
    if not tasks:
        raise ConfigError(
            f'environment.{split}: {path} is empty; expected lines of {{"question": …, "answers": …}}'
        )
    return list(tasks.values())


def json_rows(path: Path, field: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each line's object with "field: file, line n" to start a message with."""
    for number, _, line in _lines(path, field):
        where = f"{field}: {path}, line {number}"
        yield where, _parsed(line, where)


def _lines(path: Path, field: str) -> Iterator[tuple[int, int, str]]:
    """Number (from 1), first byte and text of each line that is not blank."""
    number = offset = 0
    try:
        with path.open("rb") as lines:
            for number, raw in enumerate(lines, 1):
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                if text.strip():
                    yield number, offset, text
                offset += len(raw)
    except OSError as error:
        raise ConfigError(
            f"{field}: cannot read {path} ({error.strerror}); name a JSONL file"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{field}: {path} is not UTF-8 in line {number} ({error.reason}); save it as UTF-8"
        ) from error


def _parsed(line: str, where: str) -> Mapping[str, Any]:
    try:
        row: object = json.loads(line)
        # A lone surrogate ("\ud800") is legal JSON, but no tokenizer and no file takes it.
        if "\\u" in line:
            json.dumps(row, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"{where}: not JSON ({reason}): {shortened(line.strip())}; put one JSON object on each line"
        ) from error
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: {shortened(row)}; expected a JSON object in braces")
    return cast(dict[str, Any], row)


def text_field(row: Mapping[str, Any], name: str, where: str, example: str) -> str:
    if name not in row:
        raise ConfigError(
            f'{where}: no field "{name}", only {", ".join(row) or "an empty object"}; add {example}'
        )
    value = row[name]
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(
            f'{where}: "{name}" is {shortened(value)}; expected text, as in {example}'
        )
    return value.strip()


def _answers(row: Mapping[str, Any], where: str) -> tuple[str, ...]:
    name = next((name for name in ANSWER_FIELDS if name in row), None)
    if name is None:
        raise ConfigError(
            f'{where}: no field "answers", only {", ".join(row)}; add "answers": ["…"] '
            "(or golden_answers, or answer)"
        )
    value = row[name]
    answers = cast("list[object]", [value] if isinstance(value, str) else value)
    listed = isinstance(answers, list)  # pyright: ignore[reportUnnecessaryIsInstance]
    texts = [a for a in answers if isinstance(a, str) and a.strip()] if listed else []
    if not texts or len(texts) != len(answers):
        raise ConfigError(
            f'{where}: "{name}" is {shortened(value)}; expected text or a list of texts, none blank'
        )
    return tuple(texts)


def shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
