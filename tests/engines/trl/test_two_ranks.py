"""Two gloo ranks under torchrun."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from peft import LoraConfig
from transformers import AutoTokenizer
from trl import GRPOTrainer

import cotune
from cotune.engines.trl.joint_trainer import TRLBest
from cotune.engines.trl.policy_update import PolicyUpdate
from cotune.policy.policy_files import policy_path
from cotune.types import Distillation, Trajectory
from tests.engines.trl.ranks import on_two_ranks
from tests.engines.trl.script_runs import STEPS, ScriptTraining, begin
from tests.engines.trl.setup import HintedRows, Run, scored, start
from tests.engines.trl.test_policy_update import gradients
from tests.policy.tiny import Letters, tiny_tokenizer

pytestmark = pytest.mark.slow

# Three groups of two rollouts, three rollouts a rank: the second group is split.
SIZES = {"per_device_train_batch_size": 3, "num_generations": 2, "max_steps": 3}
SAVING = {"save_strategy": "steps", "save_steps": 2}


def rollout_row(trajectory: Trajectory) -> dict[str, Any]:
    """A rollout as JSON."""
    return {
        "task": trajectory.task.id,
        "group": trajectory.assignment.group,
        "instruction": trajectory.assignment.instruction_id,
        "prompt": trajectory.assignment.sampled.instruction,
        "ids": list(trajectory.completion_ids),
        "reward": trajectory.reward,
    }


def train(folder: Path, rank: int) -> dict[str, Any]:
    """Trains three batches, evaluates, then trains the third once more from the checkpoint."""
    rank_folder = folder / f"rank{rank}"
    shared = {"output_dir": str(folder / "checkpoints")}
    run = start(rank_folder, **SIZES, **SAVING, **shared)
    run.trainer.train()
    weights = fingerprint(run)
    tasks = run.joint.parts.environment.tasks("validation")
    scores = [t.reward for t in run.joint.coordinator.evaluate(tasks)]
    rollouts = dict(run.folder.totals().rollouts) if rank == 0 else None
    again = start(rank_folder, resume=True, **SIZES, **SAVING, **shared)
    again.trainer.train(resume_from_checkpoint=str(folder / "checkpoints" / "checkpoint-2"))
    return {
        "world_size": dist.get_world_size(),
        "comm_size": run.joint.coordinator.comm.size,
        "batches": [[rollout_row(t) for t in batch] for batch in run.trajectories],
        "weights": weights,
        "total": run.strategy.total,
        "scores": scores,
        "rollouts": rollouts,
        "metrics": [row["step"] for row in again.folder.read_metrics()],
        "resumed_batches": [[rollout_row(t) for t in batch] for batch in again.trajectories],
        "resumed_weights": fingerprint(again),
    }


def fingerprint(run: Run) -> list[float]:
    """The policy's weights, in a number a tensor."""
    return [weight.double().sum().item() for weight in run.weights.values()]


def train_adapter(folder: Path, shared: Path, **changes: Any) -> dict[str, Any]:
    """Trains an adapter with a KL term and gradient checkpointing, loses it, and restores the best; `shared` is all ranks'."""
    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    run = start(
        folder,
        trainer_arguments={"peft_config": config},
        gradient_checkpointing=True,
        ddp_find_unused_parameters=False,
        **{**SIZES, "output_dir": str(shared / "checkpoints"), "beta": 0.05, **changes},
    )
    run.trainer.train()
    weights = fingerprint(run)
    best = TRLBest(shared / "best", tiny_tokenizer())
    joint = run.joint
    joint.coordinator.on_rank_zero(lambda: best.offer(joint, scored(1.0), joint.batches))
    model: Any = run.trainer.model
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.zero_()
    run.joint.batches += 1  # or what is at hand would be taken for the best
    best.restore(run.joint)
    return {
        "weights": weights,
        "restored": fingerprint(run),
        "kl": run.logged("kl"),
        "texts": [[t.own_text for t in batch] for batch in run.trajectories],
    }


# Rows with an advantage, of three a rank: all on rank 0 and one on rank 1; none and two.
UNEVEN = {"left": [1.0, 0.0, 1.0, 0.0, 1.0, 1.0], "right": [0.0, 0.0, 1.0, 1.0, 0.0, 1.0]}


def uneven(folder: Path, rank: int) -> dict[str, Any]:
    """Gradients of batches whose rows with an advantage lie mostly, or all, on one rank."""
    tokenizer = AutoTokenizer.from_pretrained(policy_path("bundled:geo"))
    results: dict[str, Any] = {}
    for name, rewards in UNEVEN.items():
        for loss_type in ("grpo", "dapo"):
            case_folder = folder / f"{name}-{loss_type}-{rank}"
            grads = gradients(
                PolicyUpdate,
                tokenizer,
                case_folder,
                rewards,
                loss_type=loss_type,
                gradient_accumulation_steps=1,
            )
            results[f"{name}-{loss_type}"] = {key: g.tolist() for key, g in grads.items()}
    return results


# Rows of three groups of two, three rows a rank; some on both ranks, then on the first alone.
HINTED_ROWS = {"both": (0, 1, 3), "first": (1, 2)}
DISTILLATIONS = {"masked": Distillation(ratio="masked_signed", low=0.3, high=3.0), "filtered": None}


class Solvable(Letters):
    """A rollout of even length is solved, and others have half of their share of "a": only successes are taught."""

    def score(self, trajectory: Trajectory) -> tuple[float, str | None]:
        share, answer = super().score(trajectory)
        return (1.0 if len(trajectory.own_text) % 2 == 0 else share / 2), answer


def distil(folder: Path, checkpoints: Path, **changes: Any) -> dict[str, Any]:
    """By hinted rows and mode: the weights after two batches and the logged ratios and cost."""
    results: dict[str, Any] = {}
    for case, rows in HINTED_ROWS.items():
        for mode, distillation in DISTILLATIONS.items():
            arguments = {"max_steps": 2, "output_dir": str(checkpoints / case / mode)}
            sizes = SIZES | arguments | changes
            strategy = HintedRows(rows, distillation, taught=distillation is None)
            run = start(folder / case / mode, strategy, Solvable(), **sizes)
            run.trainer.train()
            kinds = ("p2o/", "distil/", "hinted", "zero_adv")
            logged = [
                {k: v for k, v in row.items() if k.startswith(kinds)}
                for row in run.folder.read_metrics()
            ]
            results[f"{case}/{mode}"] = {
                "weights": fingerprint(run),
                "metrics": logged,
                "joint": [v for k, v in run.joint.metrics.items() if k.startswith("p2o/")],
            }
    return results


SCRIPT: dict[str, Any] = {
    "per_device_train_batch_size": 3, "per_device_eval_batch_size": 3, "save_strategy": "steps",
    "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "seed": 3,
    "report_to": ["tensorboard"],
}  # fmt: skip


def train_script(folder: Path, **changes: Any) -> ScriptTraining:
    arguments = {"environment": Letters()}
    values = SCRIPT | changes
    training = begin(folder, "inspo", evaluates=True, trainer_arguments=arguments, **values)
    training.trainer.train()
    return training


def script_results(training: ScriptTraining) -> dict[str, Any]:
    model = training.trainer.model
    assert isinstance(model, torch.nn.Module)
    history = training.trainer.state.log_history
    outcome = training.trainer.outcome
    assert outcome is not None
    return {
        "weights": [float(p.detach().double().abs().sum()) for p in model.parameters()],
        "best": outcome.kept.step,
        "em": outcome.kept.em,
        "prompt": training.trainer.best_instruction,
        "scores": [row["eval_reward"] for row in history if "eval_reward" in row],
        "again": training.trainer.evaluate()["eval_reward"],
    }


def work(folder: Path, rank: int) -> dict[str, Any]:
    """All that the tests look at, in one launch."""
    return {
        **train(folder, rank),
        "gradients": uneven(folder, rank),
        "adapter": train_adapter(folder / f"adapter{rank}", folder / "adapters"),
        "script": script_results(train_script(folder / "script")),
        "distilled": distil(folder / f"distilled{rank}", folder / "distilled"),
    }


# ---- the tests


def check_gradients(ranks: list[dict[str, Any]], folder: Path) -> None:
    """TRL gathers a value of every row: the rank with fewer that matter is filled up, at the right scale."""
    assert ranks[0]["gradients"] == ranks[1]["gradients"]
    tokenizer = AutoTokenizer.from_pretrained(policy_path("bundled:geo"))
    for name, rewards in UNEVEN.items():
        for loss_type in ("grpo", "dapo"):
            case_folder = folder / f"alone-{name}-{loss_type}"
            alone = gradients(GRPOTrainer, tokenizer, case_folder, rewards, loss_type=loss_type)
            together = ranks[0]["gradients"][f"{name}-{loss_type}"]
            assert together.keys() == alone.keys()
            assert max(float(g.abs().max()) for g in alone.values()) > 1e-4
            for key, gradient in alone.items():
                close = torch.allclose(torch.tensor(together[key]), gradient, atol=1e-6, rtol=1e-4)
                assert close, (name, loss_type, key)


def check_adapters(ranks: list[dict[str, Any]], folder: Path) -> None:
    """Two ranks train the adapter that one process trains."""
    alone = train_adapter(folder / "tuned", folder / "own", per_device_train_batch_size=6)
    first, second = (rank["adapter"] for rank in ranks)
    assert first == second
    assert first["texts"] == alone["texts"]
    assert first["weights"] == pytest.approx(alone["weights"], abs=1e-3)
    assert first["kl"] == pytest.approx(alone["kl"], abs=1e-4)
    assert alone["kl"][-1] > 0
    for run in (first, alone):
        assert run["restored"] == run["weights"]


def check_distillation(ranks: list[dict[str, Any]], folder: Path) -> None:
    """Two ranks distil as one process does."""
    first, second = (rank["distilled"] for rank in ranks)
    alone = distil(folder / "hinted", folder / "own", per_device_train_batch_size=6)
    for name, expected in alone.items():
        assert first[name]["weights"] == second[name]["weights"]
        assert first[name]["weights"] == pytest.approx(expected["weights"], abs=1e-3)
        assert first[name]["joint"] == second[name]["joint"]
        for row, expected_row in zip(first[name]["metrics"], expected["metrics"], strict=True):
            assert row == pytest.approx(expected_row, rel=1e-3)
            assert row["distil/share" if "filtered" in name else "p2o/logprob_tokens"] > 0
    masked = [row["p2o/ratio_masked_share"] for row in alone["both/masked"]["metrics"]]
    assert 0 < sum(masked) < len(masked)


def check_script(ranks: list[dict[str, Any]], folder: Path) -> None:
    """Two ranks train, evaluate and keep the best as one process does."""
    first, second = (rank["script"] for rank in ranks)
    assert first == second
    sizes = {"per_device_train_batch_size": 6, "per_device_eval_batch_size": 6}
    alone = script_results(train_script(folder / "script alone", **sizes))
    assert first["best"] == alone["best"] < STEPS  # or the test shows nothing
    assert first["prompt"] == alone["prompt"]
    assert first["scores"] == pytest.approx(alone["scores"], abs=1e-3)
    assert first["weights"] == pytest.approx(alone["weights"], rel=1e-3)
    assert first["again"] == pytest.approx(first["em"])
    assert first["em"] >= max(first["scores"]) - 1e-6
    run = cotune.open_run(folder / "script" / "checkpoints" / "cotune")
    events = [e for e in run.read_events() if e["kind"] == "evaluated"]
    # The trainer's, and those that close the run.
    assert len([e for e in events if e["step"] <= STEPS]) == STEPS
    assert {e["n"] for e in events} == {2}
    assert run.totals().rollouts["evaluate"] == 2 * len(events)


@pytest.mark.filterwarnings("ignore:.*checkpointing.*:FutureWarning")
def test_two_ranks_do_what_one_process_does(tmp_path: Path) -> None:
    ranks = on_two_ranks(work, tmp_path)
    check_gradients(ranks, tmp_path)
    check_adapters(ranks, tmp_path)
    check_distillation(ranks, tmp_path)
    check_script(ranks, tmp_path)
    run = start(tmp_path / "one", **{**SIZES, "per_device_train_batch_size": 6})
    run.trainer.train()
    batches = [[rollout_row(t) for t in batch] for batch in run.trajectories]
    assert [(r["world_size"], r["comm_size"]) for r in ranks] == [(2, 2), (2, 2)]
    # Every group has one instruction on both ranks, a split one, too.
    assert ranks[0]["batches"] == ranks[1]["batches"]
    for batch in ranks[0]["batches"]:
        assert [t["group"] for t in batch] == [0, 0, 1, 1, 2, 2]
        for group in range(3):
            prompts = {(t["instruction"], t["prompt"]) for t in batch if t["group"] == group}
            assert len(prompts) == 1
    # They do as one process does.
    assert ranks[0]["batches"] == batches
    assert ranks[0]["total"] == pytest.approx(run.strategy.total)
    assert ranks[0]["weights"] == pytest.approx(ranks[1]["weights"], abs=0)
    assert ranks[0]["weights"] == pytest.approx(fingerprint(run), abs=1e-3)
    twins = [b[i]["ids"] == b[i + 1]["ids"] for b in batches for i in (0, 2, 4)]
    assert not all(twins)  # group-mates draw differently, on whatever rank they are
    # An evaluation is shared and counted once.
    assert ranks[0]["scores"] == ranks[1]["scores"]
    assert ranks[0]["rollouts"] == {"train": 18, "verify": 0, "evolve": 0, "evaluate": 2}
    # They resume exactly.
    for rank in ranks:
        assert rank["resumed_batches"] == rank["batches"][2:]
        assert rank["resumed_weights"] == rank["weights"]
    assert ranks[0]["metrics"] == [1, 2, 3]
    assert ranks[1]["metrics"] == []  # rank 0 alone writes
