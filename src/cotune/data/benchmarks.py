"""Benchmarks that papers report on, by name, from the Hugging Face hub or from a file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cotune.data.dataset import Column, Columns, tasks_of_rows
from cotune.data.rows import file_rows, hub_rows
from cotune.errors import ConfigError
from cotune.types import Task
from cotune.utils.text import shorten

_FLASHRAG = "RUC-NLPIR/FlashRAG_datasets"


@dataclass(frozen=True)
class Benchmark:
    """A question set, its place on the hub and its columns.

    Attributes:
        name, title: on the command line and in print.
        kind: "qa" has short answers, "math" answers to be boxed.
        hub, subset, split: the repository, its configuration, if it has several, and the split that papers report.
        n: the number of questions.
        columns: the columns that have other names than `dataset.columns` reads by default.
    """

    name: str
    title: str
    kind: Literal["qa", "math"]
    hub: str
    split: str
    n: int
    subset: str | None = None
    columns: Mapping[Column, str | None] = field(default_factory=dict[Column, str | None])


def _qa(name: str, title: str, split: str, n: int) -> Benchmark:
    return Benchmark(name, title, "qa", _FLASHRAG, split, n, subset=name)


BENCHMARKS: Mapping[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        _qa("nq", "Natural Questions", "test", 3610),
        _qa("triviaqa", "TriviaQA", "test", 11313),
        _qa("popqa", "PopQA", "test", 14267),
        _qa("hotpotqa", "HotpotQA", "dev", 7405),
        _qa("2wikimultihopqa", "2WikiMultihopQA", "dev", 12576),
        _qa("musique", "MuSiQue", "dev", 2417),
        _qa("bamboogle", "Bamboogle", "test", 125),
        Benchmark("aime24", "AIME 2024", "math", "HuggingFaceH4/aime_2024", "train", 30),
        Benchmark("aime25", "AIME 2025", "math", "math-ai/aime25", "test", 30),
        Benchmark("amc", "AMC", "math", "AI-MO/aimo-validation-amc", "train", 83),
        Benchmark(
            "math-500", "MATH-500", "math", "HuggingFaceH4/MATH-500", "test", 500,
            columns={"id": "unique_id", "stratum": "level"},
        ),
        Benchmark("minerva", "Minerva Math", "math", "math-ai/minervamath", "test", 272),
        Benchmark(
            "olympiadbench", "OlympiadBench", "math", "Hothan/OlympiadBench", "train", 674,
            subset="OE_TO_maths_en_COMP",
            columns={"context": "context", "stratum": "subfield", "solution": None},
        ),
    )
}  # fmt: skip
"""All benchmarks, by name."""


def parse_benchmark(text: str) -> tuple[Benchmark, Path | None]:
    """Parse `NAME` or `NAME=PATH` into the benchmark and its file. ConfigError: no such name."""
    name, equals, path = text.partition("=")
    benchmark = BENCHMARKS.get(name.strip().lower())
    if benchmark is None:
        raise ConfigError(
            f"--benchmark is {shorten(text)}; expected NAME or NAME=PATH, with a NAME of {', '.join(BENCHMARKS)}"
        )
    return benchmark, Path(path.strip()) if equals else None


def read_benchmark(benchmark: Benchmark, path: Path | None = None) -> list[Task]:
    """Read the tasks of a benchmark, in its order; ids start with its name.

    Args:
        path: a Parquet, JSONL, JSON or CSV file; None reads the hub.
    """
    option = f"--benchmark {benchmark.name}"
    if path is not None:
        rows = file_rows(path, option)
        source = f"{option}: {path}"
    else:
        rows = hub_rows(benchmark.hub, benchmark.subset, benchmark.split, option)
        source = f"{option}: {benchmark.hub}, split {benchmark.split}"
    # Files from elsewhere may lack a column that the hub's have.
    names = {name for row in rows for name in row}
    columns: Columns = {
        role: name for role, name in benchmark.columns.items() if name is None or name in names
    }
    return tasks_of_rows(rows, columns, source, benchmark.name)
