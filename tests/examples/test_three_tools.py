"""The example three_tools, with TRL alone and with INSPO, and the tutorial that shows its files."""

import asyncio
import difflib
import io
import json
from pathlib import Path
from types import ModuleType

import pytest
from rich.console import Console
from transformers import AutoTokenizer

import cotune
from cotune.cli.evaluate import try_run
from cotune.cli.train import train
from tests.docs.sources import DOCS, blocks
from tests.examples.three_tools import FOLDER

TUTORIAL = DOCS / "tutorial.md"
TOOLS = ("calculator", "dictionary", "calendar")
INITIAL = "Answer the question in a word or number."


def text_of(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


# ---- what it costs to change over


def test_the_diff_from_a_plain_trl_script_is_twenty_lines() -> None:
    """The tutorial shows all of it except the docstrings at the top and the line numbers."""
    before, after = (text_of(n).splitlines() for n in ("plain_trl.py", "with_cotune.py"))
    lines = list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]
    changed = [line for line in lines if line[:1] in "+-"]
    assert 0 < len(changed) <= 20
    # What is trained stays in a file of its own, which neither library has a hand in.
    assert "import cotune" not in text_of("plain_trl.py")
    for library in ("cotune", "trl"):
        assert not [i for i in ("import", "from") if f"{i} {library}" in text_of("task.py")]

    diff = ["@@" if line.startswith("@@") else line for line in lines]
    (snippet,) = blocks(TUTORIAL, "diff")
    assert diff[-len(snippet.splitlines()) :] == snippet.splitlines()
    omitted = diff[: -len(snippet.splitlines())]
    assert not [line for line in omitted if "import" in line]


@pytest.mark.parametrize(("language", "file"), [("python", "task.py"), ("json", "questions.jsonl")])
def test_the_tutorials_snippets_stand_in_the_example(language: str, file: str) -> None:
    snippets = blocks(TUTORIAL, language)
    assert snippets
    for block in snippets:
        assert f"\n{block}" in f"\n{text_of(file)}", block
        if language == "json":
            assert set(json.loads(block)) == {"question", "answer"}
    assert blocks(TUTORIAL, "yaml") == [text_of("run.yaml")]


# ---- the parts


def test_what_the_tools_say_is_the_answer(example: dict[str, ModuleType]) -> None:
    task = example["task"]
    tool_names = set[str]()
    for row in task.rows(60, seed=5):
        tool = getattr(task, row["tool"])
        result = tool(**{row["parameter"]: row["argument"]})
        assert str(asyncio.run(result) if row["tool"] == "calendar" else result) == row["answer"]
        tool_names.add(row["tool"])
    assert tool_names == set(TOOLS)
    with pytest.raises(ValueError, match="two numbers"):
        task.calculator("__import__('os')")


def test_the_questions_file_is_what_its_script_writes(
    example: dict[str, ModuleType], tmp_path: Path
) -> None:
    example["task"].write_questions(tmp_path / "questions.jsonl")
    assert (tmp_path / "questions.jsonl").read_text(encoding="utf-8") == text_of("questions.jsonl")


# ---- the run file


@pytest.fixture
def folder(cwd: Path) -> Path:
    """Copy the files that the run file names, and make the copy the current folder."""
    for name in ("run.yaml", "task.py", "questions.jsonl", "instructions.txt"):
        (cwd / name).write_text(text_of(name), encoding="utf-8")
    (cwd / "policy").symlink_to(FOLDER / "policy")
    return cwd


def test_a_few_rollouts_of_the_run_file(folder: Path) -> None:
    out = io.StringIO()
    trajectories = try_run(Path("run.yaml"), Console(file=out, width=100), count=8)
    with_tools = [t for t in trajectories if len(t.turns) > 1]
    assert with_tools
    assert any(turn.observation for t in with_tools for turn in t.turns)
    assert any(t.reward for t in with_tools)
    assert "8 rollouts: mean reward" in out.getvalue()


@pytest.mark.slow
def test_the_run_file_trains(folder: Path) -> None:
    """Without a key, its instructions come from the file."""
    changes = ["training.steps=2", "strategy.evolve_every=1", "strategy.evolve_until=2"]
    changes += ["training.questions_per_step=4", "training.micro_batch_size=16"]
    changes += ["dataset.validation=4", "dataset.test=4", "evaluation.before=false"]
    changes += ["llm={kind: bank, path: instructions.txt}"]
    train(Path("run.yaml"), Console(file=io.StringIO()), assignments=changes)
    run = cotune.open_run(folder / "runs" / "three-tools")
    assert [row["step"] for row in run.read_metrics()] == [1, 2]
    texts = [row["text"] for row in run.read_instructions()]
    assert len(texts) > 1
    assert set(texts[1:]) <= set(text_of("instructions.txt").strip().split("\n\n"))
    best = AutoTokenizer.from_pretrained(run.best_path)
    assert (run.best_path / "instruction.txt").is_file()
    assert best.chat_template


# ---- runs


def test_a_step_of_trl_alone(example: dict[str, ModuleType], tmp_path: Path) -> None:
    example["plain_trl"].main(["--steps", "1", "--output", str(tmp_path / "trl")])


@pytest.mark.slow
def test_the_script_trains(example: dict[str, ModuleType], tmp_path: Path) -> None:
    llm = str(FOLDER / "instructions.txt")
    example["with_cotune"].main(["--steps", "1", "--llm", llm, "--output", str(tmp_path)])
    run = cotune.open_run(tmp_path / "cotune")
    (row,) = run.read_metrics()
    assert row["reward/exact"] == pytest.approx(row["reward_mean"])
    tokenizer = AutoTokenizer.from_pretrained(FOLDER / "policy")
    rollouts = run.read_trajectories(1, "train")
    with_tools = [row for row in rollouts if row["turns"][0]["action"] in TOOLS]
    assert any(row["reward"] == 1 for row in with_tools)
    for row in with_tools:
        pairs = list(zip(row["completion_ids"], row["mask"], strict=True))
        assert "<tool_call>" in tokenizer.decode([token for token, mask in pairs if mask])
        assert "<tool_response>" in tokenizer.decode([token for token, mask in pairs if not mask])
