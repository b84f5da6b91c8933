"""What a resume looks at before it trains: whether it is the same run, and whether that had ended."""

import copy
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerState, get_linear_schedule_with_warmup

from cotune.engines.trl import trl_joint
from cotune.engines.trl.joint_trainer import JointTrainer
from cotune.engines.trl.trl_joint import ResumedRate
from cotune.errors import ConfigError
from cotune.protocols import State
from cotune.run.checkpoints import complete_checkpoints, load_state, save_state
from cotune.run.run_dir import RunDir
from cotune.types import Task
from tests.engines.trl.setup import Run, start
from tests.policy.tiny import Letters

# All of these runs sample the same with the same weights.
SAVING: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """Give a trained run, of which the same call gives the same one; tests resume a copy of its folder."""

    @cache
    def run(budget: int | None = None, max_steps: int = 2) -> Run:
        folder = tmp_path_factory.mktemp("trained")
        new_run = start(folder, budget=budget, max_steps=max_steps, **SAVING)
        new_run.trainer.train()
        return new_run

    return run


def copied(run: Run, folder: Path) -> None:
    """Copy a run and its checkpoints into a folder, as a test's own."""
    shutil.copytree(run.folder.path.parent, folder, dirs_exist_ok=True)


def state_of(folder: Path, step: int) -> State:
    return load_state(folder / "checkpoints" / f"checkpoint-{step}")


class Reworded(Letters):
    """The same ids in the same order; one question is another."""

    def __init__(self) -> None:
        super().__init__()
        train = self._tasks["train"]
        train[2] = Task(train[2].id, "ff?", train[2].answers)


@pytest.mark.parametrize("environment", [Reworded(), Letters(5)], ids=["reworded", "fewer"])
def test_other_training_tasks_are_refused(
    tmp_path: Path, environment: Letters, trained: Callable[..., Run]
) -> None:
    copied(trained(), tmp_path)
    again = start(tmp_path, environment=environment, resume=True, **SAVING)
    before = again.strategy.state_dict(), (tmp_path / "run" / "events.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=r"^the training tasks: differs from what the saved run"):
        again.trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoints" / "checkpoint-1"))
    after = again.strategy.state_dict(), (tmp_path / "run" / "events.jsonl").read_bytes()
    assert after == before  # nothing is taken up, nothing is cut back
    assert (again.joint.batches, again.trajectories) == (0, [])
    same = start(tmp_path, environment=Letters(), resume=True, **SAVING)
    assert not restored_ended(same, newest(tmp_path))  # its training goes on
    assert (same.joint.batches, resumed_events(tmp_path)) == (0, [])
    same.joint.load_state_dict(state_of(tmp_path, 1))
    assert same.joint.batches == 1


def test_another_field_of_the_run_file_is_named_with_what_it_was(tmp_path: Path) -> None:
    saved_identity = {"limits": '{"turns": 4}', "seed": "0"}
    start(tmp_path, identity=saved_identity, max_steps=1, **SAVING).trainer.train()
    state = state_of(tmp_path, 1)
    for identity in ({**saved_identity, "seed": "1"}, {"limits": saved_identity["limits"]}):
        resumed = start(tmp_path, identity=identity, resume=True, **SAVING)
        with pytest.raises(
            ConfigError, match=r"^seed: differs from what the saved run began with \(0\)"
        ):
            resumed.joint.load_state_dict(state)
    start(tmp_path, identity=saved_identity, resume=True, **SAVING).joint.load_state_dict(state)


def resumed_events(folder: Path) -> list[dict[str, Any]]:
    return [row for row in RunDir.open(folder / "run").read_events() if row["kind"] == "resumed"]


def newest(folder: Path) -> Path:
    return complete_checkpoints(folder / "checkpoints")[0]


def restored_ended(run: Run, checkpoint: Path) -> bool:
    trainer: Any = SimpleNamespace(joint=run.joint)
    return JointTrainer._restore_ended(trainer, checkpoint)


def budgeted(folder: Path, budget: int | None, verified: int = 0, **changes: Any) -> Run:
    """A run of up to four batches of six rollouts; some more are verified before it."""
    run = start(folder, budget=budget, **{"max_steps": 4, **SAVING, **changes})
    if verified:
        begin = run.folder.begin_attempt

        def begin_and_count(*saved: int | None) -> int:
            attempt = begin(*saved)
            run.folder.count("verify", verified, 0)
            run.folder.count("evaluate", 1000, 0)  # which a method does not pay
            return attempt

        run.folder.begin_attempt = begin_and_count  # type: ignore[method-assign]
    return run


HALVES = {
    "per_device_train_batch_size": 3, "gradient_accumulation_steps": 1, "steps_per_generation": 2,
    "max_steps": 6, "save_steps": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("budget", "verified", "changes", "batches", "steps"),
    [
        (24, 0, {}, 4, 4),
        (18, 1, {}, 2, 2),
        (18, 0, {}, 3, 3),
        (12, 0, {"save_steps": 3}, 2, 2),  # the last step is saved all the same
        (11, 0, HALVES, 1, 2),  # a batch is trained on to its end
    ],
)
def test_training_ends_before_the_batch_that_would_exceed_the_budget(
    tmp_path: Path, budget: int, verified: int, changes: dict[str, Any], batches: int, steps: int
) -> None:
    run = budgeted(tmp_path, budget, verified, **changes)
    run.trainer.train()
    assert run.joint.batches == len(run.trajectories) == batches
    assert run.trainer.state.global_step == steps
    assert run.folder.totals().rollouts["train"] == 6 * batches
    # After the last of all steps nothing more could be rolled out, whatever the budget.
    last = 6 * batches + verified + 6 > budget
    assert run.joint.ended is state_of(tmp_path, steps)["ended"] is last


def test_a_run_that_its_budget_had_ended_is_taken_up_but_not_trained_on(
    tmp_path: Path, trained: Callable[..., Run]
) -> None:
    first = trained(12, max_steps=4)
    copied(first, tmp_path)
    checkpoint = newest(tmp_path)
    again = budgeted(tmp_path, 12, resume=True)
    assert restored_ended(again, checkpoint)
    assert (again.joint.batches, again.joint.ended, again.trajectories) == (2, True, [])
    assert again.strategy.state_dict() == first.strategy.state_dict()
    assert all(torch.equal(weight, first.weights[name]) for name, weight in again.weights.items())
    (event,) = resumed_events(tmp_path)
    assert event["from_step"] == 2
    assert again.folder.attempt == 2


@pytest.mark.parametrize(("budget", "batches", "ended"), [(None, 4, False), (20, 3, True)])
def test_a_run_whose_budget_was_raised_is_trained_on(
    tmp_path: Path, budget: int | None, batches: int, ended: bool, trained: Callable[..., Run]
) -> None:
    copied(trained(12, max_steps=4), tmp_path)
    again = budgeted(tmp_path, budget, resume=True)
    assert not again.joint.budget_is_spent()
    again.trainer.train(resume_from_checkpoint=str(newest(tmp_path)))
    assert (again.joint.batches, again.joint.ended) == (batches, ended)
    assert state_of(tmp_path, batches)["ended"] is ended
    assert again.joint.budget_is_spent() is ended


# ---- the rate of a resumed run is its own, not the checkpoint's


def optimizer_of(steps: int, base: float) -> tuple[torch.optim.Optimizer, LambdaLR]:
    optimizer = torch.optim.AdamW(
        [{"params": [torch.nn.Parameter(torch.ones(1))]} for _ in range(2)], lr=base
    )
    return optimizer, get_linear_schedule_with_warmup(optimizer, 1, steps)


def stepped(steps: int, base: float, count: int) -> tuple[torch.optim.Optimizer, LambdaLR]:
    optimizer, scheduler = optimizer_of(steps, base)
    for _ in range(count):
        optimizer.step()
        scheduler.step()
    return optimizer, scheduler


@pytest.mark.parametrize(("steps", "base"), [(4, 1e-3), (8, 1e-3), (4, 1e-2), (8, 1e-2)])
@pytest.mark.parametrize("at", [2, 4])
def test_a_resumed_run_has_the_rates_of_one_that_began_so(steps: int, base: float, at: int) -> None:
    saved_states = [copy.deepcopy(part.state_dict()) for part in stepped(4, 1e-3, at)]
    optimizer, scheduler = optimizer_of(steps, base)
    optimizer.load_state_dict(saved_states[0])
    scheduler.load_state_dict(saved_states[1])
    parts: dict[str, Any] = {"optimizer": optimizer, "lr_scheduler": scheduler}
    args: Any = SimpleNamespace(learning_rate=base)
    ResumedRate().on_train_begin(args, TrainerState(global_step=at), None, **parts)
    fresh = stepped(steps, base, at)
    for _ in range(2):
        assert scheduler.get_last_lr() == fresh[1].get_last_lr()
        assert [g["lr"] for g in optimizer.param_groups] == [g["lr"] for g in fresh[0].param_groups]
        for part in (optimizer, scheduler, *fresh):
            part.step()


# ---- only complete checkpoints are resumed from


KEEPING_TWO = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 2}


def test_the_checkpoint_before_stays_until_the_next_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete: list[list[str]] = []

    def save(checkpoint: Path, state: Any) -> None:
        complete.append([path.name for path in complete_checkpoints(checkpoint.parent)])
        save_state(checkpoint, state)

    monkeypatch.setattr(trl_joint, "save_state", save)
    start(tmp_path, **KEEPING_TWO | {"save_total_limit": 1}, max_steps=3).trainer.train()
    assert complete == [[], ["checkpoint-1"], ["checkpoint-2"]]
    assert [path.name for path in (tmp_path / "checkpoints").glob("checkpoint-*")] == [
        "checkpoint-3"
    ]
