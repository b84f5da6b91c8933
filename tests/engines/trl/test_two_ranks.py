"""Two gloo ranks under torchrun."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer
from trl import GRPOTrainer

from cotune.policy.policy_files import policy_path
from tests.engines.trl.forked_launcher import TORCHRUN, launched
from tests.engines.trl.setup import start
from tests.engines.trl.test_policy_update import gradients
from tests.engines.trl.two_ranks import SIZES, UNEVEN, fingerprint, seen
from tests.forked import run_ranks

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks("tests.engines.trl.two_ranks", folder, "train")
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    sizes = {**SIZES, "per_device_train_batch_size": 6}
    run = start(tmp_path_factory.mktemp("alone"), **sizes)
    run.trainer.train()
    return {
        "batches": [[seen(t) for t in batch] for batch in run.trajectories],
        "weights": fingerprint(run),
        "total": run.strategy.total,
    }


def test_there_are_two_ranks_and_both_end(ranks: list[dict[str, Any]]) -> None:
    assert [(r["world_size"], r["comm_size"]) for r in ranks] == [(2, 2), (2, 2)]


def test_every_group_has_one_instruction_on_both_ranks_a_split_one_too(
    ranks: list[dict[str, Any]],
) -> None:
    assert ranks[0]["batches"] == ranks[1]["batches"]
    for step, batch in enumerate(ranks[0]["batches"]):
        mine, theirs = (r["rows"][step] for r in ranks)
        assert [t["task"] for t in batch] == [*mine, *theirs]
        assert mine[-1] == theirs[0]  # the group in the middle is split
        assert [t["group"] for t in batch] == [0, 0, 1, 1, 2, 2]
        for group in range(3):
            prompts = {(t["instruction"], t["prompt"]) for t in batch if t["group"] == group}
            assert len(prompts) == 1


def test_two_ranks_roll_out_credit_and_train_as_one_process_does(
    ranks: list[dict[str, Any]], alone: dict[str, Any]
) -> None:
    assert ranks[0]["batches"] == alone["batches"]
    assert ranks[0]["total"] == pytest.approx(alone["total"])
    assert ranks[0]["weights"] == pytest.approx(ranks[1]["weights"], abs=0)
    assert ranks[0]["weights"] == pytest.approx(alone["weights"], abs=1e-3)
    twins = [b[i]["ids"] == b[i + 1]["ids"] for b in alone["batches"] for i in (0, 2, 4)]
    assert not all(twins)  # group-mates draw differently, on whatever rank they are


def test_an_evaluation_is_shared_and_counted_once(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["scores"] == ranks[1]["scores"]
    assert ranks[0]["rollouts"] == {"train": 18, "verify": 0, "evolve": 0, "evaluate": 2}


def test_two_ranks_resume_exactly(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["resumed_batches"] == rank["batches"][2:]
        assert rank["resumed_weights"] == rank["weights"]
    assert ranks[0]["metrics"] == [1, 2, 3]
    assert ranks[1]["metrics"] == []  # rank 0 alone writes


def test_ranks_with_unequally_many_rows_that_matter_give_one_processs_gradient(
    tmp_path: Path,
) -> None:
    """TRL gathers a value of every row: the rank with fewer is filled up, at the right scale."""
    run_ranks("tests.engines.trl.two_ranks", tmp_path, "uneven")
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert ranks[0] == ranks[1]
    tokenizer = AutoTokenizer.from_pretrained(policy_path("bundled:geo"))
    for name, rewards in UNEVEN.items():
        for loss_type in ("grpo", "dapo"):
            own = tmp_path / f"alone-{name}-{loss_type}"
            alone = gradients(GRPOTrainer, tokenizer, own, rewards, loss_type=loss_type)
            together = ranks[0][f"{name}-{loss_type}"]
            assert together.keys() == alone.keys()
            assert max(float(g.abs().max()) for g in alone.values()) > 1e-4
            for key, gradient in alone.items():
                close = torch.allclose(torch.tensor(together[key]), gradient, atol=1e-6, rtol=1e-4)
                assert close, (name, loss_type, key)


def test_a_failure_on_either_rank_ends_both_with_its_message(tmp_path: Path) -> None:
    module = "tests.engines.trl.two_ranks"
    script = ("--standalone", "--nproc_per_node", 2, "-m", module, tmp_path, "fail")
    done = launched(TORCHRUN, *script)
    assert done.returncode != 0
    said = {path.stem: path.read_text() for path in tmp_path.glob("*.txt")}
    boom = "RolloutFailed: a rollout failed; rank 1: ValueError: boom"
    assert said == {
        "strategy0": "KeyError: 'lost'",
        "strategy1": "EngineError: rank 0 stopped the run: KeyError: 'lost'",
        "environment0": boom,
        "environment1": boom,
    }
    assert "rank 1: ValueError: boom" in done.stderr
