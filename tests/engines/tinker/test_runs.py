"""Whole runs on the fake server: stopped and resumed, kept and exported, by every method, and by the commands."""

import json
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch

pytest.importorskip("tinker", reason="needs the SDK: pip install 'cotune[tinker]'")

from rich.console import Console

from cotune.cli.evaluate import evaluate, try_run
from cotune.cli.train import resume, train
from cotune.config.build import run_policy
from cotune.config.resuming import recorded_config
from cotune.config.run_file import load_config
from cotune.engines.engine import engine_of
from cotune.engines.tinker.run import TinkerBest, learning_rate
from cotune.engines.tinker.server_policy import Adapter, server_path
from cotune.errors import ConfigError, EngineError
from cotune.experiments.evaluate.evaluation import evaluate_run
from cotune.experiments.evaluate.questions import EvaluationOptions
from cotune.experiments.evaluate.score_quadrants import evaluate_quadrants
from cotune.methods.static import StaticStrategy
from cotune.policy.local_policy import load
from cotune.run.checkpoints import complete_checkpoints
from cotune.run.json_files import run_locked
from cotune.run.run_dir import RunDir
from tests.engines.tinker.fake_server import KEY, FakeServer
from tests.engines.tinker.setup import FST, INSPO, P2O, TRAINING, letters, lines, preflight
from tests.helpers import raises_line
from tests.policy.tiny import Letters, tiny_tokenizer
from tests.run_files import write


def failing(name: str, after: int) -> Callable[[str], None]:
    """Fail at the request of a name after so many."""
    calls: list[str] = []

    def fail(request: str) -> None:
        calls.extend([request] if request == name else [])
        if request == name and len(calls) > after:
            raise ValueError("the server broke")

    return fail


@pytest.fixture(scope="module")
def runs(policy: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An unbroken INSPO run, and the same stopped by its server in its third step and resumed."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        unbroken_server = FakeServer(policy, names_modules=False).install(patch)
        unbroken = train(letters(folder / "unbroken", policy, INSPO), quiet=True)
        server = FakeServer(policy, names_modules=False).install(patch)
        server.fail = failing("update", 3 + 2)  # the probe makes three
        with pytest.raises(EngineError) as error:
            train(letters(folder / "broken", policy, INSPO), quiet=True)
        server.fail = lambda name: None
        broken = resume(folder / "broken", quiet=True)
    return RunDir.open(unbroken), RunDir.open(broken), str(error.value), unbroken_server, server


def test_a_resumed_run_is_the_unbroken_one(runs: Any) -> None:
    unbroken, broken, error, _, _ = runs
    assert "failed (an update): the server broke; then continue: cotune resume" in error
    assert [e["from_step"] for e in broken.read_events() if e["kind"] == "resumed"] == [2]
    expected, resumed = lines(unbroken), lines(broken)
    for name in expected:
        assert resumed[name] == expected[name], name
    assert [row["step"] for row in expected["metrics"]] == [1, 2, 3, 4]
    assert all(row["rows_sent"] > 0 for row in expected["metrics"])
    assert all(row["server/drift"] < 1e-5 for row in expected["metrics"])
    assert all(row["grad_norm"] > 0 for row in expected["metrics"])
    assert len(expected["instructions"]) > 1


def test_a_run_whose_episodes_do_not_wait_broken_during_rollouts_is_the_unbroken_one(
    runs: Any, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeServer(policy, names_modules=False).install(monkeypatch)
    in_flight = [0]
    in_third_step = []

    def fail(name: str) -> None:
        if name == "sample":
            in_flight.append(in_flight[-1] + 1)
            time.sleep(random.random() / 100)
            in_flight.append(in_flight[-1] - 1)
            in_third_step.extend([name] if len(server.adams) == 3 + 2 else [])
            if len(in_third_step) == 20:
                raise ValueError("the server broke")

    server.fail = fail
    raw = letters(tmp_path / "apart", policy, INSPO)
    raw["environment"] = "tests.policy.tiny:ApartLetters"
    with pytest.raises(EngineError, match=r"failed \(sampling\): the server broke"):
        train(raw, quiet=True)
    resume(tmp_path / "apart", quiet=True)
    apart = RunDir.open(tmp_path / "apart")
    assert [e["from_step"] for e in apart.read_events() if e["kind"] == "resumed"] == [2]
    assert max(in_flight) > 1  # however slow the machine is
    assert lines(apart) == lines(runs[0])


def test_the_server_evaluates_what_it_kept(
    runs: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # With the same scores as at the end of the run, and no adapter that could be trained.
    run, _, _, server, _ = runs
    server.install(monkeypatch)
    names: list[str] = []
    monkeypatch.setattr(server, "fail", names.append)

    def rewards(options: EvaluationOptions, *changes: str) -> dict[str, Any]:
        evaluate(run.path, Console(), options, True, changes)
        (questions,) = json.loads(capsys.readouterr().out)["sets"]
        figures = [figure for figure in questions["figures"] if figure["metric"] == "reward"]
        return {figure["column"]: pytest.approx(figure["mean"]) for figure in figures}

    scores = {e["when"]: e["em"] for e in run.read_events() if e["kind"] == "evaluated"}
    means = rewards(EvaluationOptions())
    assert (scores["after"], scores["plain"]) == (means["best"], means["initial"])
    assert set(names) == {"get", "capabilities", "sample"}
    # In this process, with the exported adapter.
    assert rewards(EvaluationOptions(), "training.engine=trl")["best"] == scores["after"]
    assert set(names) == {"get", "capabilities", "sample"}
    # It scores quadrants without a divergence.
    config = recorded_config(run)
    options = EvaluationOptions(samples=2)
    quadrants = evaluate_quadrants(config, run, options, None, engine_of(config).open_policy)
    assert quadrants.trained
    assert not quadrants.divergences
    for name, when in {"trained_prompted": "after", "trained_plain": "plain"}.items():
        rewards = [row["reward"] for row in run.read_evaluation(when)]
        assert quadrants.rewards[name]["greedy"] == pytest.approx(rewards)
    plain = quadrants.rewards["initial_plain"]["greedy"]
    assert plain != pytest.approx(quadrants.rewards["trained_plain"]["greedy"])


def test_what_cannot_be_evaluated_is_one_line(
    runs: Any, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Any
) -> None:
    run = runs[0]
    folder = tmp_path / "run"
    shutil.copytree(run.path, folder)
    server = FakeServer(policy).install(monkeypatch)
    config = recorded_config(RunDir.open(folder))
    options = EvaluationOptions()
    with pytest.raises(EngineError, match=r"failed \(weights to sample from\)"):
        evaluate_run(config, RunDir.open(folder), options, engine_of(config).open_policy)
    with run_locked(folder):
        assert "is being trained; wait for it" in refused("evaluate", folder, "--trust")
    (folder / "best" / "tinker.json").unlink()
    assert "no tinker.json names a policy" in refused("evaluate", folder, "--trust")
    assert "would get your key" in refused("evaluate", folder)

    def fail(name: str) -> None:
        raise httpx.ConnectError("refused")

    server.fail = fail
    silent = refused("evaluate", run.path, "--trust")
    assert "the Tinker server at http://server does not answer" in silent
    hosted = ("--set", "training.engine_args={}")
    monkeypatch.delenv("TINKER_API_KEY")
    assert "variable TINKER_API_KEY is not set" in refused("evaluate", run.path, *hosted)


def test_what_is_left_on_the_server_and_in_the_folder(runs: Any, policy: str) -> None:
    unbroken, broken, error, server, _ = runs
    checkpoints = complete_checkpoints(unbroken.checkpoints_path)
    assert [path.name for path in checkpoints] == ["checkpoint-4", "checkpoint-2"]
    best = json.loads((unbroken.best_path / "tinker.json").read_text())["path"]
    kinds = [path.split("/")[3] for path in server.saved]
    assert kinds.count("weights") == 2
    assert [path for path in server.saved if "/sampler_weights/" in path] == [best]
    # The key is in no file.
    assert server.arguments["api_key"] == KEY
    files = [p for run in (unbroken, broken) for p in run.path.rglob("*") if p.is_file()]
    assert not [p for p in files if KEY.encode() in p.read_bytes()]
    assert KEY not in error
    # The best policy is an adapter that PEFT loads.
    config = json.loads((unbroken.best_path / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == policy
    assert len(config["target_modules"]) == 7
    assert (unbroken.best_path / "chat_template.jinja").is_file()
    assert "adapter" in (unbroken.best_path / "README.md").read_text().lower()
    model, _ = load(unbroken.best_path, "float32")
    served = server.create_sampling_client(best).owner.model
    ids = torch.tensor([[2, 5, 6, 7, 8, 9]])
    with torch.no_grad():
        assert torch.allclose(model(ids).logits, served(ids).logits, atol=1e-5)
        base, _ = load(policy, "float32")
        assert not torch.allclose(model(ids).logits, base(ids).logits, atol=1e-3)


def test_an_interrupted_save_leaves_the_older_best_on_the_server(
    server: FakeServer, adapter: Adapter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joint: Any = SimpleNamespace(
        adapter=adapter, service=adapter.service, base=server.model, identity={},
        coordinator=SimpleNamespace(strategy=StaticStrategy("say ")),
    )  # fmt: skip
    best = TinkerBest(tmp_path / "best", tiny_tokenizer(), adapter.service)
    best.offer(joint, None, 2)
    older_path = server_path(tmp_path / "best")

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TinkerBest, "_swap_in", fail)
        with pytest.raises(KeyboardInterrupt):
            best.offer(joint, None, 1)  # kept: step 2 was discarded
    assert server_path(tmp_path / "best") == older_path
    assert older_path in server.saved
    best.forget()
    assert older_path not in server.saved
    best.offer(joint, None, 0)
    assert older_path not in server.saved
    assert server_path(tmp_path / "best") in server.saved
    # An archive that is none is one line.
    monkeypatch.setattr("cotune.engines.tinker.server_policy._fetch", lambda url: b"<html>busy")
    with raises_line("the server gave no whole tar archive", error=EngineError):
        adapter.export("best-1", tmp_path / "best", "base")


@pytest.mark.parametrize("strategy", [P2O, FST, {**INSPO, "groups": "mixed", "target": "initial"}])
def test_methods(
    strategy: dict[str, Any], policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeServer(policy, reduction="mean").install(monkeypatch)
    args = {**TRAINING["engine_args"], "row_multiple": 4}
    raw = letters(
        tmp_path / "run", policy, strategy, steps=3, mini_batches=3, engine_args=args, save_every=0
    )
    run = RunDir.open(train(raw, quiet=True))
    metrics = run.read_metrics()
    assert [row["optimizer_step"] for row in metrics] == [3, 6, 9]
    assert all(row["server/drift"] < 1e-5 for row in metrics if "server/drift" in row)
    assert all(rows % 4 == 0 for rows in server.sent[3:])
    if strategy["kind"] == "p2o":
        assert metrics[-1]["hinted_share"] > 0
    if strategy.get("distillation") or strategy.get("target"):
        assert any("p2o/ratio_mean" in row for row in metrics)
    assert not complete_checkpoints(run.checkpoints_path)


def test_a_spent_budget_ends_the_run_once(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeServer(policy, futures=True).install(monkeypatch)
    raw = letters(tmp_path / "run", policy, {"kind": "static"}, rollout_budget=30)
    run = RunDir.open(train(raw, quiet=True))
    assert [row["step"] for row in run.read_metrics()] == [1, 2]
    assert [p.name for p in complete_checkpoints(run.checkpoints_path)] == ["checkpoint-2"]
    resume(run.path, quiet=True, assignments=["training.rollout_budget=40"])
    assert [row["step"] for row in run.read_metrics()] == [1, 2, 3]


def test_the_rate_follows_its_schedule(policy: str, tmp_path: Path) -> None:
    raw = letters(
        tmp_path / "run", policy, {"kind": "static"}, schedule="cosine", warmup=0.25, mini_batches=2
    )
    training = preflight(raw).config.training
    rates = [learning_rate(training, step) for step in range(8)]
    assert rates[0] == 0.0
    assert rates[2] == pytest.approx(1e-2)
    assert rates[2:] == sorted(rates[2:], reverse=True)


def test_commands(
    policy: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    refused: Any,
) -> None:
    from cotune.cli.doctor import show
    from cotune.cli.plan import plan

    raw = letters(tmp_path / "run", policy, {"kind": "static"})
    file = write(tmp_path / "run.yaml", raw)
    console = Console(width=300)
    FakeServer(policy).install(monkeypatch)
    show(file, console)
    printed = capsys.readouterr().out
    assert "experimental: run on SkyRL 0.3.0's server with 0.24.1" in printed
    assert "server: losses are a sum, seeds repeat their draws" in printed
    tried = try_run(file, console, count=2, greedy=True)
    assert "2 rollouts" in capsys.readouterr().out
    local = run_policy(load_config(file), Letters())
    again = local.rollout([t.assignment for t in tried], greedy=True)
    assert [t.completion_ids for t in tried] == [t.completion_ids for t in again]
    plan(file, console)
    assert "what it spends at most" in capsys.readouterr().out
    FakeServer(policy, reduction="mean of rows").install(monkeypatch)
    assert "adds up losses in an unknown way" in refused("train", file)
    with pytest.raises(ConfigError, match="does not time steps"):
        preflight(raw).engine.measure(None, 1)
    assert os.listdir(tmp_path) == ["run.yaml"]
