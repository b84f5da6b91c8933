"""`cotune baseline`: whole runs on the bundled policies and an endpoint, scores, refusals."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from cotune.cli import app as cli
from cotune.cli.baseline import baseline
from cotune.cli.train import resume
from cotune.errors import ConfigError, LLMError, Stopped
from cotune.experiments.baselines import BASELINES
from cotune.experiments.baselines import baseline_run as runs
from cotune.run.ledger import Ledger
from cotune.run.run_dir import RunDir
from tests.endpoint import endpoint
from tests.run_files import environment_of, tiny, write

LONG = {
    "limits": {"turns": 4, "turn_tokens": 64, "observation_tokens": 200, "trajectory_tokens": 640}
}
ARITHMETIC: dict[str, Any] = {
    "policy": {"path": "bundled:arithmetic"},
    "environment": {"kind": "arithmetic", "train": 8, "validation": 8, "test": 8},
    "strategy": {"kind": "static"},
    "limits": {"turns": 1, "turn_tokens": 144, "trajectory_tokens": 146, "prompt_tokens": 192},
}


def file_of(tmp_path: Path, changes: dict[str, Any] | None = None) -> Path:
    return write(tmp_path / "run.yaml", tiny(tmp_path / "out", LONG | (changes or {})))


def read(run: RunDir) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
    """The summary, its one arm and the trajectories."""
    summary = run.read_summary()
    assert summary is not None
    ((_, arm),) = summary["arms"].items()
    return summary, arm, run.read_trajectories(0, "evaluate_after")


def question_of(prompt: str) -> str:
    return prompt.rpartition("Question: ")[2]


# ---- the bundled policy, through the command line


@pytest.mark.parametrize("name", BASELINES)
def test_each_baseline_on_the_bundled_policy(name: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.app, ["baseline", name, str(file_of(tmp_path))])
    assert result.exit_code == 0, result.output
    assert "Held-out exact match" in result.output
    noted = "the bundled policy was not trained on the prompt of" in result.output
    assert noted == (name != "agent")

    run = RunDir.open(tmp_path / "out")
    summary, arm, rows = read(run)
    assert list(summary["arms"]) == [name]
    assert (summary["baseline"], summary["model"]) == (name, "bundled:geo")
    assert bool(summary["note"]) == noted
    assert arm["compute"] == "none"
    assert arm["policy_rollouts"] == {"train": 0, "verify": 0, "evolve": 0, "evaluate": 6}
    assert (arm["em_n"], arm["llm_calls"], arm["money"], arm["steps"]) == (6, 0, 0.0, 0)
    assert arm["generated_tokens"] == sum(row["generated_tokens"] for row in rows) > 0
    assert arm["em"] == sum(row["reward"] for row in rows) / 6
    assert [row["kind"] for row in run.read_events() if row["kind"] != "notice"] == [
        "run_started",
        "evaluated",
        "run_finished",
    ]
    assert run.read_config()["strategy"]["kind"] == "inspo"
    page = run.report_path.read_text(encoding="utf-8")
    assert f"<dt>Method</dt><dd>{name}</dd>" in page.replace("\n", "")

    with pytest.raises(ConfigError, match="made by cotune baseline"):
        resume(run.path, Console(quiet=True))


def test_the_agent_is_what_an_evaluation_rolls_out(tmp_path: Path) -> None:
    path = baseline("agent", file_of(tmp_path), Console(quiet=True))
    _, arm, rows = read(RunDir.open(path))
    assert arm["em_initial_instruction"] == arm["em"]
    assert arm["best_instruction"] == rows[0]["sampled"]["instruction"]
    assert "<search>" in rows[0]["turns"][0]["text"]
    # Of an agent what it reads is part of the trajectory, with mask 0.
    assert 0 in rows[0]["mask"]


def test_direct_on_one_turn_asks_under_the_instruction_of_the_run_file(tmp_path: Path) -> None:
    out = io.StringIO()
    path = baseline("direct", file_of(tmp_path, ARITHMETIC), Console(file=out, width=200))
    summary, arm, rows = read(RunDir.open(path))
    assert rows[0]["sampled"]["instruction"].endswith("\\boxed{}.")
    # That is the prompt the bundled policy was made for.
    assert summary["note"] == ""
    assert "not made for" not in out.getvalue()
    assert arm["em"] > 0


def test_quiet_shows_nothing(tmp_path: Path) -> None:
    out = io.StringIO()
    baseline("direct", file_of(tmp_path, ARITHMETIC), Console(file=out), quiet=True)
    assert out.getvalue() == ""


# ---- an endpoint


def answers(tmp_path: Path) -> dict[str, str]:
    """The answer of each test question of the tiny run file."""
    from cotune.config.run_file import load_config

    config = load_config(file_of(tmp_path))
    environment = environment_of(config)
    return {task.question: task.answers[0] for task in environment.tasks("test")}


PRICED = {
    "llm": {
        "kind": "openai",
        "model": "other",
        "api_key_env": None,
        "price_per_million_completion_tokens": 1e6,
    }
}


def test_an_endpoint_is_asked_counted_and_paid(tmp_path: Path) -> None:
    known = answers(tmp_path)

    def reply(prompt: str) -> str:
        return f"I know it. <answer> {known[question_of(prompt)]}"

    out = io.StringIO()
    with endpoint(reply) as url:
        path = baseline(
            "rag",
            file_of(tmp_path, PRICED),
            Console(file=out, width=200),
            model="big-[model]",
            base_url=url,
        )
    run = RunDir.open(path)
    summary, arm, rows = read(run)
    assert arm["em"] == 1.0
    assert (arm["llm_calls"], arm["generated_tokens"], arm["money"]) == (6, 30, 30.0)
    assert (summary["model"], summary["policy"], summary["note"]) == ("big-[model]", None, "")
    assert "model big-[model] at http://127.0.0.1" in out.getvalue()
    assert [turn["action"] for turn in rows[0]["turns"]] == ["retrieve", "answer"]
    with Ledger(run.ledger_path) as ledger:
        assert {row.model for row in ledger.rows() if row.kind == "llm"} == {"big-[model]"}


def test_the_agent_acts_at_an_endpoint(tmp_path: Path) -> None:
    known = answers(tmp_path)

    def reply(prompt: str) -> str:
        question = question_of(prompt)
        if question in known:  # the first turn: what follows the call is cut off
            return f"<search> {question} </search> <information> forged </information>"
        assert prompt.startswith("<information>")
        assert "forged" not in prompt
        return "<answer> 42 </answer>"

    with endpoint(reply) as url:
        path = baseline("agent", file_of(tmp_path), Console(quiet=True), model="m", base_url=url)
    _, arm, rows = read(RunDir.open(path))
    assert (arm["llm_calls"], arm["em"]) == (12, 0.0)
    assert {row["answer"] for row in rows} == {"42"}
    assert {row["stop"] for row in rows} == {"answered"}


@pytest.mark.parametrize("name", ["ircot", "search-o1"])
def test_only_the_answer_of_the_model_counts(name: str, tmp_path: Path) -> None:
    """Passages, sentences of reasoning and what is condensed earn nothing, whatever they hold."""
    known = answers(tmp_path)
    right = next(iter(known.values()))

    def reply(prompt: str) -> str:
        if "Write only the next sentence" in prompt or "write down what in them helps" in prompt:
            return f"<answer> {right} </answer>"
        if name == "search-o1" and question_of(prompt) in known:
            return "<search> x of India </search>"
        return "<answer> none of them </answer>"

    with endpoint(reply) as url:
        path = baseline(name, file_of(tmp_path), Console(quiet=True), model="m", base_url=url)
    _, arm, rows = read(RunDir.open(path))
    assert arm["em"] == 0.0
    # Nor do they spoil it: one final answer was given.
    assert {row["answer"] for row in rows} == {"none of them"}
    assert any(right in turn["text"] for turn in rows[0]["turns"])


def test_the_rewards_of_the_run_file_score(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def length(completions, **kwargs):\n    return [float(len(c)) for c in completions]\n"
    )
    changes = {"rewards": [f"{tmp_path / 'mine.py'}:length", "exact_match"]}
    with endpoint(lambda prompt: "Next. So the answer is: x <answer> x </answer>") as url:
        path = baseline(
            "ircot", file_of(tmp_path, changes), Console(quiet=True), model="m", base_url=url
        )
    _, arm, rows = read(RunDir.open(path))
    own = rows[0]["turns"][-1]["text"]
    assert arm["measure"] == "mean reward"
    # Of the reader's response alone.
    assert rows[0]["reward_parts"] == {"length": float(len(own)), "exact_match": 0.0}


def test_an_endpoint_that_is_down_leaves_no_result(tmp_path: Path) -> None:
    down: dict[str, Any] = {"llm": {"kind": "openai", "model": "m", "retries": 0}}
    with pytest.raises(LLMError, match=r"no reply from m at http://127.0.0.1:9"):
        baseline(
            "direct",
            file_of(tmp_path, down),
            Console(quiet=True),
            model="m",
            base_url="http://127.0.0.1:9/v1",
        )
    run = RunDir.open(tmp_path / "out")
    assert run.read_summary() is None
    with pytest.raises(ConfigError, match="holds a run; choose another output, or remove"):
        baseline("direct", file_of(tmp_path), Console(quiet=True))


def test_a_key_goes_to_its_own_endpoint_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cotune.config.run_file import load_config

    mine = {"kind": "openai", "model": "a", "base_url": "https://a.example/v1", "api_key_env": "A"}
    config = load_config(file_of(tmp_path, {"llm": mine}))

    def key(base_url: str | None, env: str | None = None) -> str | None:
        options = runs.Endpoint("m", base_url, env).options(config.llm, config.limits)
        assert options is not None
        assert options.temperature == 0.0
        assert options.max_tokens == config.limits.turn_tokens
        return options.api_key_env

    assert key(None) == key("https://a.example/v1/") == "A"
    assert key("https://b.example/v1") is None
    assert key("https://b.example/v1", "B") == "B"
    plain = load_config(file_of(tmp_path))
    at_openai = runs.Endpoint("m").options(plain.llm, plain.limits)
    assert at_openai is not None
    assert at_openai.api_key_env == "OPENAI_API_KEY"
    elsewhere = runs.Endpoint("m", "http://localhost:8000/v1").options(plain.llm, plain.limits)
    assert elsewhere is not None
    assert elsewhere.api_key_env is None


# ---- refusals and stops


@pytest.mark.parametrize(
    ("name", "changes", "options", "message"),
    [
        ("cot", {}, {}, "baseline is 'cot'; expected one of direct, rag, ircot, search-o1, agent"),
        ("rag", ARITHMETIC, {}, "environment.kind is arithmetic, which has no retriever for rag"),
        ("ircot", ARITHMETIC, {}, "no retriever for ircot; expected geo or search"),
        ("direct", {}, {"base_url": "http://h/v1"}, "--base-url is given without --model"),
        ("direct", {}, {"model": "m", "base_url": "ftp://h"}, "base_url is not of the form"),
        ("direct", {}, {"model": "m", "api_key_env": "sk-1"}, "is not the NAME of an environment"),
        ("direct", {}, {"model": "m", "api_key_env": "NO_KEY_HERE"}, "NO_KEY_HERE is not set"),
        ("agent", {"policy": {"path": "./nowhere"}}, {}, "policy.path is './nowhere'"),
        ("agent", {"limits": {"trajectory_tokens": 900}}, {}, "context holds 1024 tokens"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_written(
    name: str, changes: dict[str, Any], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as refused:
        baseline(name, file_of(tmp_path, changes), Console(quiet=True), **options)
    text = str(refused.value)
    assert message in text
    assert "\n" not in text
    assert "sk-1" not in text
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("name", "options"), [("direct", {}), ("agent", {"model": "m"})])
def test_tools_of_a_chat_template_are_refused(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        'def look(name: str) -> str:\n    """Looks up.\n\n    Args:\n        name: what.\n    """\n'
        "    return name\n"
    )
    rows = [{"question": f"Q{i}?", "answer": "a"} for i in range(30)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    raw = tiny(tmp_path / "out", {"strategy": {"kind": "static"}})
    raw["environment"] = {"kind": "tools", "tools": [f"{tmp_path / 'mine.py'}:look"]}
    raw |= {"dataset": {"path": str(data), "validation": 3, "test": 3}, "rewards": ["exact_match"]}
    file = write(tmp_path / "run.yaml", raw)
    with pytest.raises(ConfigError, match=r"environment.kind is tools"):
        baseline(name, file, Console(quiet=True), **options)
    assert not (tmp_path / "out").exists()


def test_ctrl_c_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "solve", interrupted)
    with pytest.raises(Stopped, match=r"stopped; remove .* to start again"):
        baseline("direct", file_of(tmp_path), Console(quiet=True))
    assert RunDir.open(tmp_path / "out").read_summary() is None
    monkeypatch.setattr(runs, "run_environment", interrupted)
    other = write(tmp_path / "other.yaml", tiny(tmp_path / "other"))
    with pytest.raises(Stopped, match="stopped before anything was written"):
        baseline("direct", other, Console(quiet=True))


def test_the_names_have_descriptions() -> None:
    assert list(BASELINES) == ["direct", "rag", "ircot", "search-o1", "agent"]
    assert all(method.description for method in BASELINES.values())
