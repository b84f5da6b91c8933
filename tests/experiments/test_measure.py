"""`cotune measure`: drift along checkpoints, other words, next tasks, and what it refuses."""

import json
import os
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, Mock

import pandas as pd
import pytest
import torch
import yaml
from peft import get_peft_model
from transformers import AutoModelForCausalLM

from cotune.config.build import run_policy
from cotune.config.run_file import RunConfig
from cotune.experiments import measure
from cotune.experiments.chains import look_at
from cotune.experiments.evaluate.quadrants import hash_of_best
from cotune.experiments.measure import MeasuredRun, drift_chart, figures_of, measure_tables
from cotune.policy.adapters import lora_config, save_weights
from cotune.policy.local_policy import load, load_model
from cotune.policy.policy_files import LoraOptions, policy_path
from cotune.run.checkpoints import save_state
from cotune.run.record import Record
from cotune.types import Prompt, Task
from tests.command_line import Command, Refused
from tests.experiments.compare.folders import Start, finish, trajectory
from tests.experiments.evaluate.folders import LADDER, write_run
from tests.experiments.report.pages import check

PLAIN = "Solve the problem in \\boxed{}."
FILES = {
    "run.yaml": "training: {step: 2}", "x/run.yaml": "training: {}", "long.txt": "word " * 2000,
    "policy.yaml": "policy: {path: bundled:geo}", "reward.yaml": "rewards: [nope]",
}  # fmt: skip
BOXED = "Solve the problem. Put the final answer in \\boxed{}."


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """A run of INSPO with two checkpoints: the weights of the first are the initial ones, the second's the best."""
    folder = tmp_path_factory.mktemp("measure") / "run"
    strategy = {"kind": "inspo", "evolve_until": 1, "verification_tasks": 2}
    changes = LADDER | {"strategy": strategy, "instruction": PLAIN, "name": "INSPO, seed 0"}
    config = write_run(folder, changes, BOXED)
    model = AutoModelForCausalLM.from_pretrained(folder / "best")
    torch.manual_seed(0)
    with torch.no_grad():
        model.lm_head.weight.add_(torch.randn_like(model.lm_head.weight), alpha=0.02)
    model.save_pretrained(folder / "best")
    for step, weights in ((1, policy_path("bundled:ladder")), (2, folder / "best")):
        checkpoint = folder / f"checkpoints/checkpoint-{step}"
        shutil.copytree(weights, checkpoint)
        save_state(checkpoint, {})
    return config


def figures_in(output: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The figures that the command wrote, by policy and name."""
    rows = json.loads((output / "measure.json").read_text())["figures"]
    return {(row["policy"], row["figure"]): row for row in rows}


def test_drift_and_other_words(run: RunConfig, tmp_path: Path, run_command: Command) -> None:
    bank = tmp_path / "others.txt"
    bank.write_text(f"{PLAIN}\n---\n{BOXED}\n---\nSay <b>nothing</b>.")
    ended = run_command("measure", run.output, "--reworded", bank, "--output", tmp_path / "out")
    assert ended.status == 0, ended.err
    assert "KL per" in ended.out
    figures = figures_in(tmp_path / "out")
    for instruction in ("initial", "best"):
        score, token, sequence = (
            {p: figures[p, f"{name}, {instruction} instr."] for p in ("initial", "step 1", "step 2", "best")}
            for name in ("Score", "KL per token", "KL per sequence")
        )  # fmt: skip
        assert token["initial"]["mean"] == token["step 1"]["mean"] == 0.0
        assert token["step 1"]["interval"] is None
        assert score["initial"]["mean"] == score["step 1"]["mean"]
        # Loaded from two folders, the same weights drift as far.
        assert token["step 2"]["mean"] == token["best"]["mean"] > 1e-4
        assert sequence["best"]["mean"] > token["best"]["mean"]
        low, high = token["best"]["interval"]
        assert 0 <= low < token["best"]["mean"] < high
    for policy in ("initial", "best"):
        scores = [figures[policy, f"Score, {of} instr."]["mean"] for of in ("initial", "best")]
        lowest, mean, highest = (
            figures[policy, f"{name}, under 3 others"]["mean"] for name in ("Lowest", "Mean", "Highest")
        )  # fmt: skip
        assert lowest <= min(scores) <= max(scores) <= highest
        assert lowest <= mean <= highest
        assert (policy, "Score, without any") in figures
    page = check(tmp_path / "out/report.html")
    assert "Score against divergence" in page.words
    assert "Say <b>nothing</b>." in page.words


def finish_training(config: RunConfig, words: tuple[str, ...]) -> int:
    """In place of a training: a best policy, and a curve of two validations."""
    instruction = "Kept." if config.strategy.kind == "inspo" else config.instruction.text
    finish(config, (1.0, 0.0), {"train": 8}, instruction=instruction or "", strata=("", ""))
    record = Record.open(config.output)
    tasks = [Task(f"v{i}", "?", ("a",), "") for i in range(2)]
    for step, rewards in ((2, (0.0, 0.0)), (3, (1.0, 0.5))):
        rows = [trajectory(t, r, Prompt("")) for t, r in zip(tasks, rewards, strict=True)]
        record.rollouts(step, "evaluate_during", rows)
    shutil.copytree(policy_path(config.policy.path), record.best_path, dirs_exist_ok=True)
    best = {"schema_version": 1, "instruction": instruction}
    (record.best_path / "best.json").write_text(json.dumps(best))
    return 0


def test_next_tasks(run: RunConfig, tmp_path: Path, start: Start, run_command: Command) -> None:
    processes = start(finish_training)
    first = {"environment": {"seed": 1}, "training": {"steps": 2}, "instruction": None}
    second = {"environment": {"seed": 2}, "training": {"steps": 5}, "strategy": {"kind": "static"}}
    words: list[object] = [run.output, "--limit", "2"]
    for name, fields in (("first", first), ("second", second)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(fields))
        words += ["--then", tmp_path / f"{name}.yaml"]
    assert run_command("measure", *words, "--output", tmp_path / "out").status == 0
    figures = figures_in(tmp_path / "out")
    folder = tmp_path / "out/inspo/seed-0"

    of_best = f"best-{hash_of_best(run.output)[:8]}"

    def recorded(name: str) -> tuple[object, ...]:
        raw = Record.open(folder / name).read_config()
        return raw["policy"]["path"], raw["instruction"]["text"], raw["training"]["rollout_budget"]

    assert recorded("initial/first") == ("bundled:ladder", None, 16)
    assert recorded("initial/second") == ("bundled:ladder", PLAIN, 40)
    # From the run's policy on; a method that evolves the instruction takes it along.
    assert recorded(f"{of_best}/first") == (str(run.output / "best"), None, 16)
    assert recorded(f"{of_best}/second") == (str(folder / of_best / "first/best"), PLAIN, 40)
    end = figures["best", "second: end, test split"]
    assert (end["mean"], end["gain"][0]) == (0.5, 0.0)
    assert figures["initial", "first: area, mean of validations"]["mean"] == (0.5 + 0.25) / 2
    assert len(processes.started) == 4
    # What is trained is not trained again, but for what began from a best policy that a resume has replaced.
    tasks = {"first": first, "second": second}

    def states() -> list[str]:
        of_run = MeasuredRun(run.output).next_tasks(tasks, tmp_path / "out/../out")
        look_at(of_run)
        return [chain.state for chain in of_run]

    assert states() == ["done", "done", "done"]
    record = run.output / "best/best.json"
    original = record.read_text()
    record.write_text(json.dumps(json.loads(original) | {"step": 9}))
    assert states() == ["done", "done", "waiting"]
    record.write_text(original)


def test_adapters_are_merged_before_the_next_task(
    run: RunConfig,
    tmp_path: Path,
    start: Start,
    run_command: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    adapter_run = tmp_path / "own"
    lora = {"policy": {"path": "bundled:ladder", "lora": {"rank": 2}}}
    config = write_run(adapter_run, LADDER | lora, BOXED)
    shutil.rmtree(adapter_run / "best")
    no_weights = shutil.ignore_patterns("model.safetensors")
    shutil.copytree(run.output / "best", adapter_run / "best", ignore=no_weights)
    base = load_model(policy_path("bundled:ladder"))
    model = get_peft_model(base, lora_config(LoraOptions(rank=2)))
    save_weights(model, adapter_run / "best")

    def outcome(config: RunConfig, words: tuple[str, ...]) -> int:
        if words[0] == "export":
            for part in load(adapter_run / "best", merge=True):
                part.save_pretrained(words[-1])
            return 0
        finish_training(config, words)
        shutil.rmtree(config.output / "best")
        shutil.copytree(adapter_run / "best", config.output / "best")
        return 0

    processes = start(outcome)
    loaded: list[tuple[Path, Path | None]] = []

    def load_policy(config: RunConfig, *args: Any, best: Path | None = None) -> Any:
        loaded.append((Path(config.policy.path), best))
        return run_policy(config, *args, best=best)

    monkeypatch.setattr(measure, "run_policy", load_policy)
    task = tmp_path / "next.yaml"
    task.write_text("training: {steps: 2}")
    words = ("--limit", 1, "--then", task, "--output", tmp_path / "out")
    ended = run_command("measure", adapter_run, *words)
    assert ended.status == 0, ended.err
    merged = adapter_run / f"merged-{hash_of_best(adapter_run)[:8]}"
    assert [words[0] for words in processes.started] == ["train", "export", "train"]
    assert (merged / "model.safetensors").exists()
    # An adapter is loaded on what its run started from.
    bases = {start for start, best in loaded if best == adapter_run / "best"}
    assert bases == {Path(config.policy.path)}
    (next_run,) = (tmp_path / "out").glob("*/seed-*/best-*/next")
    assert Record.open(next_run).read_config()["policy"]["path"] == str(merged)


def test_what_runs_share_is_trained_and_scored_once(
    run: RunConfig,
    tmp_path: Path,
    start: Start,
    run_command: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processes = start(finish_training)
    monkeypatch.setattr(measure, "run_chains", run_chains := Mock(wraps=measure.run_chains))
    monkeypatch.setattr(measure, "score", score := Mock(wraps=measure.score))
    bank = tmp_path / "bank.txt"
    bank.write_text("Answer.")
    other_run = shutil.copytree(run.output, tmp_path / "other")
    text = (other_run / "run.yaml").read_text()
    # With one name, but other options: no seed of one method.
    (other_run / "run.yaml").write_text(text.replace("evolve_until: 1", "evolve_until: 2"))
    task = tmp_path / "next.yaml"
    task.write_text("{training: {steps: 2}, strategy: {kind: static}}")
    words = (run.output, other_run, "--limit", 1, "--then", task, "--output", tmp_path / "out")
    words += ("--at-once", 2, "--reworded", bank)
    assert run_command("measure", *words).status == 0
    assert [call.args[1] for call in run_chains.call_args_list] == [2]
    assert [set(call.args[1]) for call in score.call_args_list].count({"Answer.", ""}) == 3
    assert len(processes.started) == 3  # from the initial policy, and from two best ones
    rows = json.loads((tmp_path / "out/measure.json").read_text())["figures"]
    ends = {(row["run"], row["policy"]) for row in rows if row["figure"] == "next: end, test split"}
    names = map(os.path.relpath, (run.output, other_run))
    assert ends == {(name, start) for name in names for start in ("initial", "best")}
    # Interrupted at the last score, the command goes on with the second run, which has six.
    score.side_effect = [DEFAULT] * 10 + [KeyboardInterrupt] + [DEFAULT] * 6
    assert [run_command("measure", *words).status for _ in range(2)] == [130, 0]
    assert json.loads((tmp_path / "out/measure.json").read_text())["figures"] == rows


def test_a_next_task_that_fails_leaves_the_rest(
    run: RunConfig, tmp_path: Path, start: Start, run_command: Command
) -> None:
    start(lambda *_: 1)
    task = tmp_path / "next.yaml"
    task.write_text("training: {steps: 2}")
    words = (run.output, "--limit", 1, "--then", task, "--output", tmp_path / "out")
    ended = run_command("measure", *words)
    assert ended.status == 1
    assert ("best", "Score, best instr.") in figures_in(tmp_path / "out")
    assert "INSPO, seed 0, best: stage next, status 1: ValueError" in ended.err


def test_seeds_are_averaged_and_what_one_lacks_is_left_out() -> None:
    def values(seed: int, policy: str, rewards: list[float], figure: str = "x: end, y") -> Any:
        columns = {"run": "A", "seed": seed, "policy": policy, "table": "Next task"}
        of_questions = {"question": ["a", "b"], "stratum": ["", ""], "reward": rewards}
        return pd.DataFrame(columns | {"figure": figure} | of_questions)

    rows = figures_of(
        [
            values(0, "initial", [0.0, 1.0]), values(0, "best", [1.0, 1.0]),
            values(1, "initial", [0.0, 0.0]), values(1, "best", [1.0, 0.0]),
            values(1, "step 8", [1.0, 1.0]),
        ]
    )  # fmt: skip
    assert [(row["policy"], row["mean"], row["seeds"]) for row in rows] == [
        ("initial", 0.25, 2), ("best", 0.75, 2),
    ]  # fmt: skip
    assert rows[-1]["gain"][0] == 0.5
    (table,) = measure_tables(rows)
    assert table.rows[-1][1].note.startswith("+50.0")
    assert drift_chart(rows) is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("nope", "nope is not a run folder"),
        ("RUN RUN", "two folders are inspo, seed 0; expected each once"),
        ("RUN --reworded nope.txt", "--reworded: cannot read nope.txt"),
        ("RUN --then nope.yaml", "nope.yaml: No such file or directory; expected a run file"),
        ("RUN --then run.yaml --then x/run.yaml", "--then: expected files whose names differ"),
        ("RUN --then run.yaml", "--then run: training.step"),
        ("RUN --output run.yaml", "--output: "),
        ("RUN --output RUN", "holds something else; choose another folder"),
        ("RUN --then policy.yaml", "--then policy: policy.path is 'bundled:geo'; expected the r"),
        ("RUN --then reward.yaml", "--then reward: rewards: 'nope'"),
        ("RUN --reworded long.txt", "--reworded: 'word word"),
    ],
)
def test_mistakes_are_one_line(
    words: str, message: str, run: RunConfig, cwd: Path, refused: Refused
) -> None:
    (cwd / "x").mkdir()
    for name, text in FILES.items():
        (cwd / name).write_text(text)
    assert message in refused("measure", *words.replace("RUN", str(run.output)).split())
    assert {path.name for path in cwd.iterdir()} == {name.split("/")[0] for name in FILES}
