"""A joint run on TRL: what its hooks receive, return and log."""

from pathlib import Path
from typing import Any

import pytest
import torch

from cotune.errors import ConfigError
from cotune.rollout.coordinator import SingleProcess
from cotune.utils.progress import listening
from tests.engines.trl.setup import Run, start

TWO_STEPS_A_BATCH = {
    "per_device_train_batch_size": 3,
    "gradient_accumulation_steps": 1,
    "steps_per_generation": 2,
    "max_steps": 6,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, list[Any]]:
    """Two batches at a temperature of 0.7, with what TRL passed to our reward function."""
    run = start(tmp_path_factory.mktemp("run"), temperature=0.7)
    rewards: list[Any] = []
    reward: Any = run.trainer.reward_funcs[0]

    def record_rewards(**arguments: Any) -> Any:
        rewards.append(arguments)
        return reward(**arguments)

    run.trainer.reward_funcs[0] = record_rewards  # type: ignore[call-overload]
    run.trainer.train()
    return run, rewards


def test_rewards_metrics_and_tokens_are_those_of_trls_log(trained: Any) -> None:
    run, rewards = trained
    scores = [[t.reward for t in batch] for batch in run.trajectories]
    assert [[row[""] for row in call["cotune_parts"]] for call in rewards] == scores
    assert len({score for batch in scores for score in batch}) > 2
    assert run.logged("reward") == pytest.approx([sum(s) / len(s) for s in scores], abs=1e-6)
    assert run.logged("reward_mean") == pytest.approx(run.logged("reward"), abs=1e-6)
    # Metrics of strategy and batch are in the run folder, too.
    assert run.logged("counting/total")[-1] == pytest.approx(run.strategy.total)
    assert run.logged("counting/started") == [1.0, 2.0]
    rows = run.folder.read_metrics()
    assert [row["step"] for row in rows] == [1, 2]
    for name in ("counting/total", "loss", "grad_norm"):
        assert [row[name] for row in rows] == pytest.approx(run.logged(name))
    assert {"turns_mean", "zero_advantage_share"} <= rows[0].keys()
    # Tokens are counted as TRL counts them.
    tokens = [sum(t.generated_tokens for t in batch) for batch in run.trajectories]
    assert [6 * length for length in run.logged("completions/mean_length")] == pytest.approx(tokens)
    totals = run.folder.totals()
    assert (totals.rollouts["train"], totals.generated_tokens["train"]) == (12, sum(tokens))


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, list[Any], dict[str, Any]]:
    """Three batches of two optimizer steps each, with TRL's prepared batches and what was reported."""
    run = start(tmp_path_factory.mktemp("run"), temperature=0.7, **TWO_STEPS_A_BATCH)
    assert (run.joint.order.questions, run.joint.total_batches) == (2, 3)
    reported: dict[str, list[tuple[int, int]]] = {}
    outputs = run.outputs()
    with listening(lambda kind, done, total: reported.setdefault(kind, []).append((done, total))):
        run.trainer.train()
    return run, outputs, reported


def test_steps_that_share_a_batch(halves: Any) -> None:
    # The strategy's time counts batches, not optimizer steps.
    run, _, _ = halves
    assert run.trainer.state.global_step == 6
    assert (run.joint.batches, run.strategy.batches) == (3, 3)
    rows = run.folder.read_metrics()
    assert [row["step"] for row in rows] == [1, 1, 2, 2, 3, 3]
    assert [row["optimizer_step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert run.folder.totals().rollouts["train"] == 18
    assert run.joint.progress(3).epoch == 0
    assert run.joint.progress(4).epoch == 1  # 3 batches × 2 questions = all 6 tasks
    # With two optimizer steps a batch TRL computes log π_old itself, at its temperature.
    _, outputs, _ = halves
    assert len(outputs) == len(run.trajectories) == 3
    for output, batch in zip(outputs, run.trajectories, strict=True):
        old = output["old_per_token_logps"]
        for row, t in enumerate(batch):
            mask = torch.tensor(t.mask) == 1
            actual = old[row, : len(t.mask)][mask]
            torch.testing.assert_close(actual, torch.tensor(t.logprobs)[mask], atol=1e-4, rtol=0)
    # Rollouts, their tokens and the update are reported.
    _, _, reported = halves
    rows = 6
    assert reported["train"][0] == (0, rows)
    assert (rows, rows) in reported["train"]
    assert all(done < total for done, total in reported["tokens"])
    assert reported["update"] == [(1, 2), (2, 2)] * 3


def test_a_second_call_of_train_is_refused(tmp_path: Path) -> None:
    run = start(tmp_path, max_steps=1)
    run.trainer.train()
    with pytest.raises(ConfigError, match=r"sent other tasks at step 2 .*call train once"):
        run.trainer.train()
    assert run.strategy.batches == 1


def test_the_policy_is_in_evaluation_mode_while_it_is_sampled_and_only_then(tmp_path: Path) -> None:
    run = start(tmp_path, max_steps=1)
    model = run.trainer.model
    assert isinstance(model, torch.nn.Module)
    for training in (True, False):
        model.train(training)
        with run.joint.policy() as policy:
            assert not policy.training
        assert model.training is training
    assert isinstance(run.joint.coordinator.comm, SingleProcess)
