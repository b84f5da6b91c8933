"""Benchmarks that papers report on, by name, from the Hugging Face hub or from a file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from cotune.data.dataset import tasks_of_rows
from cotune.data.rows import Row, file_rows, hub_rows, listed, nested, shortened
from cotune.errors import ConfigError
from cotune.rewards.boxed import last_boxed
from cotune.types import Task

_FLASHRAG = "RUC-NLPIR/FlashRAG_datasets"
_SOURCE = "data_source"  # the column of a data set's name in Search-R1's merged files


# Columns to try, in this order; a dot leads to a nested field.
QUESTION = {"qa": ("question",), "math": ("problem", "question")}
ANSWERS = {
    "qa": ("golden_answers", "answers", "answer", "reward_model.ground_truth.target"),
    "math": ("answer", "final_answer", "answers", "reward_model.ground_truth"),
}
_SOLUTION = "solution"


@dataclass(frozen=True)
class Benchmark:
    """A question set, its place on the hub and its columns.

    Attributes:
        name: the name on the command line.
        title: the name in print.
        kind: "qa" has short answers, "math" answers to be boxed.
        hub: the repository.
        split: the split that papers report.
        n: the number of questions.
        subset: the repository's configuration; None if it has only one.
        id, context, stratum: optional columns.
        stratum_prefix: put before the value of the stratum's column.
        f1: the data set's own scorer, a name in `cotune.rewards.REWARDS`.
    """

    name: str
    title: str
    kind: Literal["qa", "math"]
    hub: str
    split: str
    n: int
    subset: str | None = None
    id: str = "id"
    context: str = ""
    stratum: str = ""
    stratum_prefix: str = ""
    f1: Literal["f1_squad", "f1_hotpot"] = "f1_squad"


def _qa(name: str, title: str, split: str, n: int, **more: Any) -> Benchmark:
    return Benchmark(name, title, "qa", _FLASHRAG, split, n, subset=name, **more)


BENCHMARKS: Mapping[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        _qa("nq", "Natural Questions", "test", 3610),
        _qa("triviaqa", "TriviaQA", "test", 11313),
        _qa("popqa", "PopQA", "test", 14267),
        _qa("hotpotqa", "HotpotQA", "dev", 7405, f1="f1_hotpot"),
        _qa("2wikimultihopqa", "2WikiMultihopQA", "dev", 12576, f1="f1_hotpot"),
        _qa("musique", "MuSiQue", "dev", 2417),
        _qa("bamboogle", "Bamboogle", "test", 125),
        Benchmark("aime24", "AIME 2024", "math", "HuggingFaceH4/aime_2024", "train", 30),
        Benchmark("aime25", "AIME 2025", "math", "math-ai/aime25", "test", 30),
        Benchmark("amc", "AMC", "math", "AI-MO/aimo-validation-amc", "train", 83),
        Benchmark(
            "math-500", "MATH-500", "math", "HuggingFaceH4/MATH-500", "test", 500,
            id="unique_id", stratum="level", stratum_prefix="level ",
        ),
        Benchmark("minerva", "Minerva Math", "math", "math-ai/minervamath", "test", 272),
        Benchmark(
            "olympiadbench", "OlympiadBench", "math", "Hothan/OlympiadBench", "train", 674,
            subset="OE_TO_maths_en_COMP", context="context", stratum="subfield",
        ),
    )
}  # fmt: skip
"""All benchmarks, by name."""


def parse_benchmark(given: str) -> tuple[Benchmark, Path | None]:
    """Parse `NAME` or `NAME=PATH` into the benchmark and its file.

    Raises:
        ConfigError: no such name, or no path after "=".
    """
    name, equals, path = given.partition("=")
    benchmark = BENCHMARKS.get(name.strip().lower())
    if benchmark is None:
        raise ConfigError(
            f"--benchmark is {shortened(given)}; expected NAME or NAME=PATH, with a NAME of "
            f"{', '.join(BENCHMARKS)}"
        )
    if equals and not path.strip():
        raise ConfigError(
            f"--benchmark {benchmark.name}: no path after '='; name a file, or drop '='"
        )
    return benchmark, Path(path.strip()) if equals else None


def read_benchmark(benchmark: Benchmark, path: Path | None = None) -> list[Task]:
    """Read the tasks of a benchmark, in its order; ids start with its name.

    If one of Search-R1's files holds several data sets, they become strata, and their names are put
    before the ids.

    Args:
        benchmark: the benchmark.
        path: a Parquet, JSONL, JSON or CSV file, or a folder of Parquet files; None reads the hub.

    Raises:
        ConfigError: no such file, the hub cannot be reached, no rows, or unexpected columns.
    """
    field = f"--benchmark {benchmark.name}"
    if path is not None:
        rows, source = file_rows(path, field), f"{field}: {path}"
    else:
        fix = f"if the hub cannot be reached, download it and give {field}=PATH"
        rows = hub_rows(benchmark.hub, benchmark.subset, benchmark.split, field, fix)
        source = f"{field}: {benchmark.hub}, split {benchmark.split},"
    if not rows:
        raise ConfigError(f"{source} holds no rows; expected one for each question")
    columns = _columns(benchmark, rows, source)
    mixed = len({row.get(_SOURCE) for _, row in rows}) > 1
    canonical = [(where, _canonical(benchmark, columns, row, where, mixed)) for where, row in rows]
    return tasks_of_rows(canonical, source, benchmark.name)


def _columns(benchmark: Benchmark, rows: Sequence[Row], source: str) -> tuple[str, str]:
    """Return the columns of the questions and of the answers: the first of each that exists."""
    names = list(dict.fromkeys(name for _, row in rows for name in row))

    def first(candidates: Sequence[str]) -> str | None:
        return next((c for c in candidates if c.partition(".")[0] in names), None)

    question, answers = first(QUESTION[benchmark.kind]), first(ANSWERS[benchmark.kind])
    if answers is None and benchmark.kind == "math":
        answers = first((_SOLUTION,))  # which ends with a box
    if question is None or answers is None:
        lacks = (QUESTION if question is None else ANSWERS)[benchmark.kind]
        raise ConfigError(
            f"{source} has the columns {listed(names)}; expected {' or '.join(lacks)}, as in "
            f"{benchmark.hub}: rename a column, or name another file"
        )
    return question, answers


def _canonical(
    benchmark: Benchmark, columns: tuple[str, str], row: Mapping[str, Any], where: str, mixed: bool
) -> dict[str, Any]:
    """Add the columns that `tasks_of_rows` reads to a row."""
    question, source = nested(row, columns[0]), row.get(_SOURCE)
    context = row.get(benchmark.context)
    if isinstance(question, str) and isinstance(context, str) and context.strip():
        question = f"{context.strip()}\n\n{question}"
    id, solution = row.get(benchmark.id), row.get(_SOLUTION)
    stratum = source if mixed else row.get(benchmark.stratum)
    prefix = "" if mixed else benchmark.stratum_prefix
    return {
        **row,
        "question": question,
        "answers": _answers(benchmark, nested(row, columns[1]), columns[1], where),
        # Merged files count each data set's rows from 0.
        "id": f"{source}-{id}" if mixed and id is not None else id,
        "solution": solution if isinstance(solution, str) else None,
        "stratum": None if stratum in (None, "") else f"{prefix}{stratum}",
    }


def _answers(benchmark: Benchmark, value: object, column: str, where: str) -> list[object]:
    """Return the accepted answers of a row without blank ones; the final answers in mathematics."""
    came = shortened(value)
    members = cast("list[object]", value) if isinstance(value, list) else [value]
    found = [m for m in members if m is not None and not (isinstance(m, str) and not m.strip())]
    if not found:
        raise ConfigError(
            f'{where}: "{column}" is {came}; expected an answer, or a list of accepted answers: '
            "fix the row, or drop it"
        )
    if benchmark.kind == "qa":
        return found
    return [_final(member) if isinstance(member, str) else member for member in found]


def _final(answer: str) -> str:
    """Return the last box of a text, or all of it without the dollar signs around it."""
    final = (last_boxed(answer) or answer).strip()
    inner = final[1:-1]
    # "$1$, $2$" is not one formula.
    whole = len(final) > 2 and final[0] == final[-1] == "$" and "$" not in inner
    return inner.strip() if whole else final
