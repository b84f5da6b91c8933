"""The questions of a search environment: JSONL or Search-R1's Parquet files, held out or sampled.

Search-R1's `qa_search_train_merge.py` writes Parquet rows `{"data_source", "prompt": [{"role", "content"}],
"reward_model": {"style", "ground_truth": {"target": […]}}, "extra_info": {"split", "index"}}`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from cotune.data.rows import id_field, json_rows, listed, parquet_batches, shortened, text_field
from cotune.data.splits import SPLITS, Question, digest, hold_out, sha, without_held
from cotune.errors import ConfigError
from cotune.types import Task

Split = Literal["train", "validation", "test"]
Sample = Mapping[Split, int]
"""The number of questions of a split that are kept."""

ANSWER_FIELDS = ("answers", "golden_answers", "answer")

_COLUMNS = ("data_source", "prompt", "question", "reward_model", "golden_answers", "extra_info")
_MARK = "Question: "  # stands before the question in the template, on the same line
_REWARD = "{style, ground_truth: {target: [texts]}}"
_PROMPT = f"[{{role: user, content: '… {_MARK}…'}}]"


def check_questions(validation: int | Path, test: int | Path, sample: Sample) -> None:
    """Raise ValueError for numbers of questions below 1 and unknown splits."""
    held_out = {"validation": validation, "test": test}
    counts = {name: n for name, n in held_out.items() if isinstance(n, int)}
    counts |= {f"sample.{name}": n for name, n in sample.items()}
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"environment.{name} is {count}; expected 1 or more")
    if unknown := sorted(set(sample) - set(SPLITS)):
        raise ValueError(
            f"environment.sample names {', '.join(unknown)}; expected {', '.join(SPLITS)}"
        )


def read_questions(
    train: Path,
    validation: int | Path,
    test: int | Path,
    sample: Sample,
    asked: Callable[[Task], Task] = lambda task: task,
) -> dict[str, list[Task]]:
    """Read the tasks of each split, in the files' order.

    Questions of a validation or test file are dropped from `train`, with a warning that counts them,
    so that the splits share none. Questions are held out and sampled by a hash of their text:
    shuffling changes nothing, added rows change little, and equal questions stay together.

    Args:
        train: a file of questions, or a folder of Parquet files.
        validation, test: the same, or the number of questions of `train` to hold out.
        sample: the number of questions of a split to keep.
        asked: returns a task as its environment asks it; tasks with equal questions are equal.

    Raises:
        ConfigError: a file cannot be read, too few questions to hold some out, or every training
            question is in a held-out file.
    """
    tasks = {"train": read_split(train, "train")}
    wanted: dict[str, int] = {}
    for split, given in (("validation", validation), ("test", test)):
        if isinstance(given, int):
            wanted[split] = given
        else:
            tasks[split] = read_split(given, split)
    source = f"environment.train: {train}"
    questions = [Question(task, "", asked(task).question, "") for task in tasks["train"]]
    files = [split for split in tasks if split != "train"]
    held = {asked(task).question for split in files for task in tasks[split]}
    parts = hold_out(without_held(questions, held, source), wanted, source, "environment")
    tasks |= {split: [question.task for question in part] for split, part in parts.items()}
    return {split: _sampled(tasks[split], sample.get(split)) for split in SPLITS}


def read_split(path: Path, split: str) -> list[Task]:
    """Read the tasks of a JSONL or Parquet file, or of a folder of Parquet files.

    Raises:
        ConfigError: the file does not exist or cannot be read.
    """
    if path.is_dir() or path.suffix.lower() == ".parquet":
        if not path.exists():
            raise ConfigError(f"environment.{split}: no file {path}; name a Parquet or JSONL file")
        return read_parquet_tasks(path, split)
    return read_tasks(path, split)


def _sampled(tasks: Sequence[Task], count: int | None) -> list[Task]:
    if count is None or count >= len(tasks):
        return list(tasks)
    # Not the hash that holds questions out: held-out questions are its first and last.
    kept = sorted(tasks, key=lambda task: sha(f"sample {task.question} {task.id}"))[:count]
    ids = {task.id for task in kept}
    return [task for task in tasks if task.id in ids]


def read_tasks(path: Path, split: str) -> list[Task]:
    """Read the tasks of a JSONL file, in file order.

    A line is `{"question": …, "answers": …}`; without `answers`, `golden_answers` or `answer` is
    read. A single answer may be a string. `id` (text or integer) defaults to a hash of the question,
    `stratum` to "".

    Raises:
        ConfigError: the file does not exist, is empty or not JSON Lines, a field is missing or of
            the wrong type, or an id is repeated.
    """

    def read(row: Mapping[str, Any], where: str) -> Task:
        question = text_field(row, "question", where, '"question": "…"')
        stratum = row.get("stratum", "")
        if not isinstance(stratum, str):
            raise ConfigError(f'{where}: "stratum" is {shortened(stratum)}; expected text')
        id = id_field(row, where, f"{split}-{digest(question)}")
        return Task(id, question, _listed_answers(row, where), stratum, columns=row)

    rows = json_rows(path, f"environment.{split}")
    fix = 'drop one of the two or give each its "id" (without one it is a hash of the question)'
    tasks = _distinct(((where, read(row, where)) for where, row in rows), fix)
    if not tasks:
        raise ConfigError(
            f'environment.{split}: {path} is empty; expected lines of {{"question": …, "answers": …}}'
        )
    return tasks


def _distinct(read: Iterable[tuple[str, Task]], fix: str) -> list[Task]:
    """Return tasks given with their rows' places; ConfigError for a repeated id."""
    tasks: dict[str, Task] = {}
    for where, task in read:
        if task.id in tasks:
            raise ConfigError(f"{where}: the task {task.id!r} came before; {fix}")
        tasks[task.id] = task
    return list(tasks.values())


def _listed_answers(row: Mapping[str, Any], where: str) -> tuple[str, ...]:
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


def read_parquet_tasks(path: Path, split: str) -> list[Task]:
    """Read the tasks of Search-R1's Parquet files, in file order.

    The question is the text after "Question: " in the user's message, or the column `question` if
    there is no prompt or no such mark. Messages before the user's (a system prompt) are kept.
    Answers are `reward_model.ground_truth.target`, or `golden_answers` without that column. The
    stratum is `data_source`. The id is made of data source, `extra_info.split` and
    `extra_info.index`, so that shuffling does not change it, or else of the question.

    Args:
        path: a Parquet file, or a folder of them that are read sorted by name.
        split: names the field in errors.

    Raises:
        ConfigError: no such file, not Parquet, columns missing or nested differently, a row without
            question or answer, a repeated id, or no rows.
    """
    field = f"environment.{split}"
    rows = parquet_batches(path, field, _columns)
    fix = "drop one of the two, or give each row its own extra_info.index"
    tasks = _distinct(((where, _task(row, where, split)) for where, row in rows), fix)
    if not tasks:
        raise ConfigError(f"{field}: {path} holds no rows; expected one for each question")
    return tasks


def _columns(names: Sequence[str], where: str) -> list[str]:
    """Return the columns to read; ConfigError if a required one is missing."""
    for wanted in (("prompt", "question"), ("reward_model", "golden_answers")):
        if not set(wanted) & set(names):
            raise ConfigError(
                f"{where} has the columns {listed(names)}; expected {' or '.join(wanted)}, as in "
                "Search-R1's files: rename a column, or read the file by dataset.path with "
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
        columns=row,
    )


def _asked(row: Mapping[str, Any], where: str) -> tuple[tuple[tuple[str, str], ...], str]:
    """Return the messages before the user's, as (role, content), and the question."""
    context: tuple[tuple[str, str], ...] = ()
    own = row.get("question")
    content = ""
    if row.get("prompt") is not None:
        *before, (role, content) = _messages(row["prompt"], where)
        context = tuple(before)
        _, mark, question = content.partition(_MARK)
        if role == "user" and mark and question.strip():
            return context, question.strip()
    if isinstance(own, str) and own.strip():
        return context, own.strip()
    came = f'"prompt" ends with {shortened(content)}' if content else f'"question" is {own!r}'
    raise ConfigError(
        f"{where}: {came}; expected Search-R1's template, {_PROMPT}: fix it, or add a column question"
    )


def _messages(value: object, where: str) -> list[tuple[str, str]]:
    """Return chat messages as (role, content), at least one."""
    came = value
    messages = cast("list[object]", value if isinstance(value, list) else [value])
    read = [cast("dict[str, Any]", m) for m in messages if isinstance(m, dict)]
    found = [
        (str(m["role"]), str(m["content"]))
        for m in read
        if m.get("role") in ("system", "user", "assistant") and isinstance(m.get("content"), str)
    ]
    if not found or len(found) != len(messages):
        raise ConfigError(f'{where}: "prompt" is {shortened(came)}; expected {_PROMPT}')
    return found


def _answers(row: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Return the accepted answers without blank ones."""
    name, expected = "golden_answers", "a list of texts"
    value: object = row.get(name)
    if "reward_model" in row:
        name, expected = "reward_model", _REWARD
        value = row[name]
        for part in ("ground_truth", "target"):
            value = cast("dict[str, object]", value).get(part) if isinstance(value, dict) else None
    members = cast("list[object]", value if isinstance(value, list) else [value])
    texts = [member for member in members if isinstance(member, str)]
    answers = tuple(text for text in texts if text.strip())
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
    return "-".join(filter(None, (source, split, digest(question))))
