"""Questions in Search-R1's Parquet files, as its `qa_search_train_merge.py` writes them.

A row is `{"data_source", "prompt": [{"role", "content"}], "reward_model": {"style", "ground_truth":
{"target": […]}}, "extra_info": {"split", "index"}}` with other columns beside them. Rows are read a few
thousand at a time, and only the columns that make a task.
"""
# pyarrow has no type stubs.
# pyright: basic

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from cotune.data.jsonl import shortened
from cotune.errors import ConfigError
from cotune.types import Task

_COLUMNS = ("data_source", "prompt", "question", "reward_model", "golden_answers", "extra_info")
_MARK = "Question: "  # what the question follows in the template, on the same line
_BATCH = 4096
_REWARD = "{style, ground_truth: {target: [texts]}}"
_PROMPT = f"[{{role: user, content: '… {_MARK}…'}}]"


def read_parquet_tasks(path: Path, split: str) -> list[Task]:
    """The tasks of a split, in file order.

    The question is what follows "Question: " in the user's message; of a prompt that has no such
    mark, and of rows without a prompt, the column `question`. Messages before the user's (a system
    prompt) stay before it. Answers are `reward_model.ground_truth.target`, without that column
    `golden_answers`. The stratum is `data_source`. The id is made of data source, `extra_info.split`
    and `extra_info.index`, so that it stays when rows are shuffled or left out; of rows without
    them, of the question.

    Args:
        path: a Parquet file, or a folder of them that are read by name.
        split: names the field in errors.

    Raises:
        ConfigError: no such file, not Parquet, columns missing or nested otherwise, a row without
            question or answer, an id that comes twice, no row at all.
    """
    field = f"environment.{split}"
    tasks: dict[str, Task] = {}
    for where, row in _rows(path, field):
        task = _task(row, where, split)
        if task.id in tasks:
            raise ConfigError(
                f"{where}: the task {task.id!r} came before; drop one of the two, or give each row its "
                "own extra_info.index"
            )
        tasks[task.id] = task
    if not tasks:
        raise ConfigError(f"{field}: {path} holds no rows; expected one for each question")
    return list(tasks.values())


def _rows(path: Path, field: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each row's columns with "field: file, row n" to start a message with."""
    import pyarrow
    import pyarrow.parquet as parquet

    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise ConfigError(f"{field}: the folder {path} holds no Parquet file; name one that does")
    for file in files:
        number = 0
        try:
            with parquet.ParquetFile(file) as opened:
                columns = _columns(opened.schema_arrow.names, f"{field}: {file}")
                for batch in opened.iter_batches(batch_size=_BATCH, columns=columns):
                    for row in batch.to_pylist():
                        number += 1
                        yield f"{field}: {file}, row {number}", row
        except (OSError, pyarrow.ArrowException) as error:
            said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise ConfigError(
                f"{field}: {file} cannot be read as Parquet ({said}); mend or rename the file"
            ) from error


def _columns(names: Sequence[str], where: str) -> list[str]:
    """The columns to read; ConfigError where those are missing that cannot be."""
    for wanted in (("prompt", "question"), ("reward_model", "golden_answers")):
        if not set(wanted) & set(names):
            shown = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
            raise ConfigError(
                f"{where} has the columns {shown or '(none)'}; expected {' or '.join(wanted)}, as "
                "Search-R1's files have it: rename a column, or read the file by dataset.path with "
                "dataset.columns and environment: single_turn"
            )
    return [name for name in _COLUMNS if name in names]


def _task(row: Mapping[str, Any], where: str, split: str) -> Task:
    context, question = _asked(row, where)
    source = row.get("data_source")
    if source is not None and not isinstance(source, str):
        raise ConfigError(f'{where}: "data_source" is {shortened(source)}; expected text')
    stratum = source or ""
    return Task(
        id=_id(row.get("extra_info"), stratum, question, split),
        question=question,
        answers=_answers(row, where),
        stratum=stratum,
        context=context,
    )


def _asked(row: Mapping[str, Any], where: str) -> tuple[tuple[tuple[str, str], ...], str]:
    """What stands before the user's message, as (role, content), and the question."""
    context: tuple[tuple[str, str], ...] = ()
    own = row.get("question")
    content = ""
    if row.get("prompt") is not None:
        *before, (role, content) = _messages(row["prompt"], where)
        context = tuple(before)
        _, mark, told = content.partition(_MARK)
        if role == "user" and mark and told.strip():
            return context, told.strip()
    if isinstance(own, str) and own.strip():
        return context, own.strip()
    came = f'"prompt" ends with {shortened(content)}' if content else f'"question" is {own!r}'
    raise ConfigError(
        f"{where}: {came}; expected Search-R1's template, {_PROMPT}: mend it, or add a column question"
    )


def _messages(value: object, where: str) -> list[tuple[str, str]]:
    """Chat messages as (role, content), at least one."""
    messages = cast("list[object]", value) if isinstance(value, list) else []
    found = [
        (m["role"], m["content"])
        for m in messages
        if isinstance(m, dict)
        and m.get("role") in ("system", "user", "assistant")
        and isinstance(m.get("content"), str)
    ]
    if not found or len(found) != len(messages):
        raise ConfigError(f'{where}: "prompt" is {shortened(value)}; expected {_PROMPT}')
    return found


def _answers(row: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """The accepted answers, blank ones left out."""
    name, expected = "golden_answers", "a list of texts"
    value: Any = row.get(name)
    if "reward_model" in row:
        name, expected = "reward_model", _REWARD
        value = row[name]
        for part in ("ground_truth", "target"):
            value = value.get(part) if isinstance(value, dict) else None
    members = [value] if isinstance(value, str) else value
    texts = [a for a in members if isinstance(a, str)] if isinstance(members, list) else []
    answers = tuple(a for a in texts if a.strip())
    if not answers or len(texts) != len(members):
        raise ConfigError(
            f'{where}: "{name}" is {shortened(row.get(name))}; expected {expected}, one at least'
        )
    return answers


def _id(extra: object, source: str, question: str, split: str) -> str:
    info = cast("dict[str, Any]", extra) if isinstance(extra, dict) else {}
    index = info.get("index")
    if isinstance(index, int):
        # Merged files count each data set's rows from 0.
        return "-".join(filter(None, (source, str(info.get("split") or split), str(index))))
    digest = hashlib.sha1(question.encode()).hexdigest()[:12]
    return "-".join(filter(None, (source, split, digest)))
