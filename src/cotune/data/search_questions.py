"""The questions of a search environment: files of one's own or Search-R1's, or held out.

Search-R1's `qa_search_train_merge.py` writes Parquet rows `{"data_source", "prompt": [{"role", "content"}],
"reward_model": {"style", "ground_truth": {"target": […]}}, "extra_info": {"split", "index"}}`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from cotune.data.rows import file_rows, id_field, nested, read_messages, shortened, text_field
from cotune.data.splits import SPLITS, Question, digest, hold_out, without_held
from cotune.errors import ConfigError
from cotune.types import Task

ANSWER_FIELDS = ("answers", "golden_answers", "answer")
_ANSWERS_OF_SEARCH_R1 = ("reward_model", "golden_answers")
_MARK = "Question: "  # stands before the question in the template, on the same line
_UNREAD = ("metadata",)  # FlashRAG's own, with whole passages in it


def check_questions(validation: int | Path, test: int | Path) -> None:
    """Raise ValueError for numbers of questions below 1."""
    for name, count in {"validation": validation, "test": test}.items():
        if isinstance(count, int) and count < 1:
            raise ValueError(f"environment.{name} is {count}; expected 1 or more")


def read_questions(
    train: Path,
    validation: int | Path,
    test: int | Path,
    asked: Callable[[Task], Task] = lambda task: task,
) -> dict[str, list[Task]]:
    """Read the tasks of each split, in the files' order.

    Questions of a validation or test file are dropped from `train`, with a warning that counts them,
    so that the splits share none. Questions are held out by a hash of their text:
    shuffling changes nothing, added rows change little, and equal questions stay together.

    Args:
        train: a file of questions, or a folder of Parquet files.
        validation, test: the same, or the number of questions of `train` to hold out.
        asked: returns a task as its environment asks it; tasks with equal questions are equal.

    Raises:
        ConfigError: a file cannot be read, too few questions to hold some out, or every training
            question is in a held-out file.
    """
    tasks = {"train": read_tasks(train, "train")}
    wanted: dict[str, int] = {}
    for split, given in (("validation", validation), ("test", test)):
        if isinstance(given, int):
            wanted[split] = given
        else:
            tasks[split] = read_tasks(given, split)
    source = f"environment.train: {train}"
    questions = [Question(task, "", asked(task).question, "") for task in tasks["train"]]
    files = [split for split in tasks if split != "train"]
    held = {asked(task).question for split in files for task in tasks[split]}
    parts = hold_out(without_held(questions, held, source), wanted, source, "environment")
    tasks |= {split: [question.task for question in part] for split, part in parts.items()}
    return {split: tasks[split] for split in SPLITS}


def read_tasks(path: Path, split: str) -> list[Task]:
    """Read the tasks of a file (`file_rows`), or of a folder of Parquet files, in their order.

    A row is `{"question": …, "answers": …}`; without `answers`, `golden_answers` or `answer` is
    read: a text or a list of texts, of which blank ones are dropped. `id` (text or integer)
    defaults to a hash of the question, `stratum` to "".

    Rows of Parquet are read as Search-R1's. The question is the text after "Question: " in the
    user's message, or the column `question` if there is no prompt or no such mark. Messages before
    the user's (a system prompt) are kept. Answers are `reward_model.ground_truth.target`, or
    `golden_answers` without that column. The stratum is `data_source`. The id is made of data
    source, `extra_info.split` and `extra_info.index`, so that shuffling does not change it, or else
    of the question.

    Args:
        split: names the field in errors.

    Raises:
        ConfigError: the file cannot be read or is empty, a row has no question or answer or a field
            of the wrong type, or an id is repeated.
    """
    field = f"environment.{split}"
    read = _task_of_search_r1 if path.is_dir() or path.suffix.lower() == ".parquet" else _task
    tasks: dict[str, Task] = {}
    for where, row in file_rows(path, field, _UNREAD):
        task = read(row, where, split)
        if task.id in tasks:
            raise ConfigError(
                f"{where}: the task {task.id!r} came before; drop one of the two or give each its own "
                '"id" or extra_info.index (without one it is a hash of the question)'
            )
        tasks[task.id] = task
    if not tasks:
        raise ConfigError(f"{field}: {path} holds no rows; expected one for each question")
    return list(tasks.values())


def _task(row: Mapping[str, Any], where: str, split: str) -> Task:
    question = text_field(row, "question", where, '"question": "…"')
    id = id_field(row, where, f"{split}-{digest(question)}")
    stratum = _text(row, "stratum", where)
    return Task(id, question, _answers(row, ANSWER_FIELDS, where), stratum, columns=row)


def _task_of_search_r1(row: Mapping[str, Any], where: str, split: str) -> Task:
    context: tuple[tuple[str, str], ...] = ()
    question = ""
    if row.get("prompt") is not None:
        context, content = read_messages(row["prompt"], "prompt", where)
        question = content.partition(_MARK)[2].strip()
    if not question:
        template = f'a prompt with Search-R1\'s "… {_MARK}…", or "question": "…"'
        question = text_field(row, "question", where, template)
    source = _text(row, "data_source", where)
    index = nested(row, "extra_info.index")
    if isinstance(index, int):
        # Merged files count each data set's rows from 0.
        parts = (source, str(nested(row, "extra_info.split") or split), str(index))
    else:
        parts = (source, split, digest(question))
    return Task(
        id="-".join(filter(None, parts)),
        question=question,
        answers=_answers(row, _ANSWERS_OF_SEARCH_R1, where),
        stratum=source,
        context=context,
        columns=row,
    )


def _text(row: Mapping[str, Any], name: str, where: str) -> str:
    value = row.get(name)
    if value is not None and not isinstance(value, str):
        raise ConfigError(f'{where}: "{name}" is {shortened(value)}; expected text')
    return value or ""


def _answers(row: Mapping[str, Any], names: Sequence[str], where: str) -> tuple[str, ...]:
    """Return the accepted answers, from the first of these columns that a row has."""
    name = next((name for name in names if name in row), None)
    if name is None:
        raise ConfigError(
            f'{where}: no field "{names[0]}", only {", ".join(row)}; add "answers": ["…"] '
            f"(or {', or '.join(names)})"
        )
    value = nested(row, "reward_model.ground_truth.target" if name == "reward_model" else name)
    members = cast("list[object]", value if isinstance(value, list) else [value])
    texts = [member for member in members if isinstance(member, str)]
    answers = tuple(text for text in texts if text.strip())
    if not answers or len(texts) != len(members):
        shape = "{style, ground_truth: {target: [texts]}}" if name == "reward_model" else "text"
        raise ConfigError(
            f'{where}: "{name}" is {shortened(row[name])}; expected {shape} or a list of texts, one at '
            "least that is not blank"
        )
    return answers
