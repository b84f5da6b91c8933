"""The papers' benchmarks in their own schemas, written here; nothing is downloaded."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from cotune.data import benchmarks
from cotune.data.benchmarks import BENCHMARKS, parse_benchmark, read_benchmark
from cotune.data.rows import Row
from cotune.environments.single_turn import with_final
from cotune.errors import ConfigError


def write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    parquet.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


SEARCH_R1_PROMPT = (
    "Answer the given question. Use <search> and <answer> Beijing </answer>. Question: "
)


def search_r1(source: str, index: int, question: str, answers: list[str]) -> dict[str, Any]:
    """A row as Search-R1's qa_search_test_merge.py writes it."""
    return {
        "id": f"test_{index}",
        "question": question,
        "golden_answers": answers,
        "data_source": source,
        "prompt": [{"role": "user", "content": f"{SEARCH_R1_PROMPT}{question}\n"}],
        "ability": "fact-reasoning",
        "reward_model": {"ground_truth": {"target": answers}, "style": "rule"},
        "extra_info": {"index": index, "split": "test"},
        "metadata": None,
    }


def read(name: str, path: Path) -> Any:
    return read_benchmark(BENCHMARKS[name], path)


def test_search_r1_parquet(tmp_path: Path) -> None:
    rows = [
        search_r1("hotpotqa", 0, "who wrote it?", ["Ann", "Ann B."]),
        search_r1("hotpotqa", 1, "Where is it?", ["Rome", " "]),
    ]
    tasks = read("hotpotqa", write(tmp_path / "test.parquet", rows))
    assert [(t.id, t.question, t.answers) for t in tasks] == [
        ("hotpotqa-test_0", "who wrote it?", ("Ann", "Ann B.")),
        ("hotpotqa-test_1", "Where is it?", ("Rome",)),
    ]
    assert tasks[1].columns["reward_model"]["style"] == "rule"
    assert tasks[0].context == ()  # the question, not Search-R1's prompt around it


AIME24 = {"id": 60, "problem": "Find $x$.", "solution": "It is \\boxed{204}.", "answer": "204",
          "url": "https://artofproblemsolving.com", "year": "2024"}  # fmt: skip
AMC = {"id": 0, "problem": "How many?", "answer": 142.0, "url": "https://artofproblemsolving.com"}
MATH_500 = {"problem": "Convert.", "solution": "So $\\boxed{3}$.", "answer": "\\frac{1}{2}",
            "subject": "Precalculus", "level": 2, "unique_id": "test/precalculus/807.json"}  # fmt: skip
OLYMPIAD = {"id": 1606, "question": "Determine $T$.", "solution": ["First …", "Then …"],
            "final_answer": ["$\\frac{1}{72}$", "$1$, $2$"], "context": None, "image_1": None,
            "modality": "Text-only", "difficulty": "Competition", "is_multiple_answer": False,
            "unit": None, "answer_type": "Numerical", "error": None, "subfield": "Algebra",
            "subject": "Math", "language": "English"}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "row", "expected"),
    [
        ("musique", {"id": "dev_7", "question": "Which?", "golden_answers": ["yes"], "metadata": {"type": "x"}}, ("dev_7", "Which?", ("yes",), "", "")),
        ("aime24", AIME24, ("60", "Find $x$.", ("204",), "", "It is \\boxed{204}.")),
        ("aime25", {"id": "0", "problem": "P", "answer": "70"}, ("0", "P", ("70",), "", "")),
        ("amc", AMC, ("0", "How many?", ("142",), "", "")),
        ("math-500", MATH_500, ("test/precalculus/807.json", "Convert.", ("\\frac{1}{2}",), "2", "So $\\boxed{3}$.")),
        ("minerva", {"question": "Q", "answer": "2.45e6"}, (None, "Q", ("2.45e6",), "", "")),
        ("olympiadbench", OLYMPIAD, ("1606", "Determine $T$.", ("$\\frac{1}{72}$", "$1$, $2$"), "Algebra", "")),
        ("olympiadbench", {**OLYMPIAD, "context": "Let $T=4$."}, ("1606", "Let $T=4$.\n\nDetermine $T$.", ("$\\frac{1}{72}$", "$1$, $2$"), "Algebra", "")),
    ],
)  # fmt: skip
def test_schemas(tmp_path: Path, name: str, row: dict[str, Any], expected: tuple[Any, ...]) -> None:
    task = with_final(*read(name, write(tmp_path / "test.parquet", [row])))
    id = task.id.removeprefix(f"{name}-") if expected[0] is not None else None
    assert (id, task.question, task.answers, task.stratum, task.solution) == expected


def test_names_paths_and_what_the_hub_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_benchmark("HotpotQA") == (BENCHMARKS["hotpotqa"], None)
    assert parse_benchmark("amc=a=b.jsonl") == (BENCHMARKS["amc"], Path("a=b.jsonl"))
    with pytest.raises(ConfigError, match=r"--benchmark is 'hotpot'; expected NAME .* hotpotqa"):
        parse_benchmark("hotpot")
    # The hub is asked for what the registry says.
    requests: list[tuple[str, str | None, str]] = []

    def hub(name: str, subset: str | None, split: str, field: str) -> list[Row]:
        requests.append((name, subset, split))
        return [{"id": "a", "question": "q", "golden_answers": ["x"]}]

    monkeypatch.setattr(benchmarks, "hub_rows", hub)
    assert [t.id for t in read_benchmark(BENCHMARKS["hotpotqa"])] == ["hotpotqa-a"]
    assert requests == [("RUC-NLPIR/FlashRAG_datasets", "hotpotqa", "dev")]


def test_the_documented_list_is_the_registry() -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "evaluating.md"
    section = page.read_text(encoding="utf-8").partition("with so many questions:\n\n")[2]
    listed = section.partition("\n\n")[0].splitlines()
    assert listed == [
        f"- `{b.name}`: {b.hub}{f' ({b.subset})' if b.subset else ''}, {b.split}, {b.n:,}"
        f"{f', by `{stratum}`' if (stratum := b.columns.get('stratum')) else ''}"
        for b in BENCHMARKS.values()
    ]
