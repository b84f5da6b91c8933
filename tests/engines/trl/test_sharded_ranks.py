"""Runs whose gradients, moments or weights are spread over two gloo ranks are those of one process.

accelerate and DeepSpeed are told, in the ranks alone, to do on a CPU what they do on GPUs.
"""

import importlib
import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from rich.console import Console
from safetensors.torch import load_file

from cotune.cli.train import resume, train
from cotune.engines.trl import run_file_setup
from cotune.engines.trl.joint_trainer import TRLBest
from cotune.engines.trl.sharding import (
    check_sharding,
    check_spread,
    is_sharded,
    restore_weights,
    sharding_of,
)
from cotune.engines.trl.trl_joint import TRLJoint
from cotune.errors import ConfigError
from cotune.run.run_dir import RunDir
from tests.engines.trl.killed_run import reward_lengths
from tests.engines.trl.kills import cotune, numbers, run_file, with_sections, without
from tests.engines.trl.ranks import on_two_ranks
from tests.policy.tiny import tiny_model, tiny_tokenizer

WRAPPERS = {"fsdp2": "FSDPModule", "zero2": "DeepSpeedEngine"}
ZERO2 = {
    "zero_optimization": {"stage": 2},
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
}
SPREAD: dict[str, dict[str, Any]] = {"fsdp2": {"fsdp": True}, "zero2": {"deepspeed": ZERO2}}


def content(engine_args: dict[str, Any], micro_batch_size: int) -> dict[str, Any]:
    """Two steps of INSPO with an evolution before the second, each saved; best/ after the first."""
    return with_sections(
        training={
            "steps": 2,
            "micro_batch_size": micro_batch_size,
            "schedule": "constant",
            "save_every": 1,
            "engine_args": {"use_cpu": True, **engine_args},
        },
        strategy={"evolve_every": 1},
        evaluation={"every": 1, "before": False},
    ) | {"seed": 3}  # draws an instruction of the evolution at the second step


def on_a_cpu(kind: str) -> None:
    """Lets accelerate and DeepSpeed do on a CPU what they do on GPUs, over gloo."""
    if kind == "fsdp2":  # accelerate heeds its plugin on accelerators alone
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    if kind == "zero2":  # DeepSpeed would compile a reduction through shared memory
        deepspeed = importlib.import_module("deepspeed")  # an extra

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def watch(kind: str) -> list[TRLJoint]:
    """The joint runs that will be made, in order."""
    joints: list[TRLJoint] = []
    build, configure = run_file_setup.build_trainer, run_file_setup.grpo_config

    def configured(*arguments: Any) -> Any:
        args = configure(*arguments)
        assert args.device.type == "cpu"
        on_a_cpu(kind)
        return args

    def build_watched(*arguments: Any) -> Any:
        trainer = build(*arguments)
        joints.append(trainer.joint)
        return trainer

    run_file_setup.build_trainer, run_file_setup.grpo_config = build_watched, configured
    return joints


def state_of(joint: TRLJoint) -> dict[str, Any]:
    """How a finished run was spread, and its weights, in a number a tensor, as this rank has them."""
    trainer, model = joint.trainer, joint.unwrapped
    with joint.policy() as policy:
        sums = {name: p.detach().double().sum().item() for name, p in policy.named_parameters()}
    return {
        "world_size": dist.get_world_size(),
        "wrapper": [c.__name__ for c in type(trainer.model_wrapped).__mro__],
        "sharding": sharding_of(trainer),
        "here": sum(p.to_local().numel() if is_sharded(model) else p.numel() for p in model.parameters()),  # type: ignore[attr-defined]
        "parameters": sum(p.numel() for p in model.parameters()),
        "weights": sums,
    }  # fmt: skip


def restored(joint: TRLJoint, best: Path) -> dict[str, float]:
    """The weights once they are lost and `best`, which may be an earlier step's, is put in place."""
    for parameter in joint.unwrapped.parameters():
        parameter.detach().zero_()
    joint.batches += 1  # or what is at hand would be taken for the best
    TRLBest(best, joint.trainer.processing_class).restore(joint)  # type: ignore[arg-type]
    joint.batches -= 1
    with joint.policy() as policy:
        return {name: p.detach().double().sum().item() for name, p in policy.named_parameters()}


def cut_off(folder: Path, rank: int) -> None:
    """Leaves of a finished run what a kill after its first step would have."""
    dist.barrier()
    if rank == 0:
        run = RunDir.open(folder)
        shutil.rmtree(run.checkpoints_path / "checkpoint-2")
        shutil.rmtree(run.best_path)
        (run.path / "summary.json").unlink()
    dist.barrier()


def train_rank(folder: Path, rank: int, kind: str) -> dict[str, Any]:
    """Trains a run file, then its second half again."""
    reward_lengths()
    joints, console = watch(kind), Console(quiet=True)
    rank_folder = folder / f"file{rank}"
    rank_folder.mkdir()
    path = run_file(rank_folder, kind, {**content(SPREAD[kind], 3)})
    path.write_text(path.read_text().replace(str(rank_folder / kind), str(folder / kind)))
    train(path, console, quiet=True)
    states = {"whole": state_of(joints[0])}
    states["whole"]["best"] = restored(joints[0], folder / kind / "best")
    if rank == 0:
        shutil.copytree(folder / kind, folder / "unbroken")
    cut_off(folder / kind, rank)
    resume(folder / kind, console, quiet=True)
    states["resumed"] = state_of(joints[1])
    return states


# ---- the tests


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """The same run in one process."""
    folder = tmp_path_factory.mktemp("alone")
    result = cotune("nowhere", 0, "train", str(run_file(folder, "alone", content({}, 6))))
    assert result.returncode == 0, result.stdout + result.stderr
    return RunDir.open(folder / "alone")


def rolled_out(run: RunDir, step: int) -> list[dict[str, Any]]:
    """A step's rollouts: what was assigned, and the tokens."""
    names = ("task", "instruction", "group", "sampled", "completion_ids")
    return [{name: row[name] for name in names} for row in run.read_trajectories(step, "train")]


def weights(run: RunDir) -> dict[str, torch.Tensor]:
    return load_file(run.checkpoints_path / "checkpoint-2" / "model.safetensors")


def sums(run: RunDir) -> dict[str, float]:
    return {name: tensor.double().sum().item() for name, tensor in weights(run).items()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", WRAPPERS)
def test_two_ranks_are_one_process(tmp_path: Path, alone: RunDir, kind: str) -> None:
    if kind == "zero2":
        pytest.importorskip("deepspeed")
    ranks = on_two_ranks(train_rank, tmp_path, kind)
    unbroken, resumed = RunDir.open(tmp_path / "unbroken"), RunDir.open(tmp_path / kind)
    total = sum(tensor.numel() for tensor in weights(alone).values())
    for rank in ranks:
        for state in (rank["whole"], rank["resumed"]):
            assert state["world_size"] == 2
            assert state["sharding"] == kind
            assert WRAPPERS[kind] in state["wrapper"]
            assert (state["here"], state["parameters"]) == (
                total // 2 if kind == "fsdp2" else total,
                total,
            )
        # Equal on both, bit for bit; and once lost, brought back from best/.
        assert rank["whole"]["weights"] == ranks[0]["whole"]["weights"]
        assert rank["whole"]["best"] == rank["whole"]["weights"]
        assert rank["resumed"]["weights"] == rank["whole"]["weights"]
    for step in (1, 2):  # an instruction of the evolution between them among those of the second
        assert rolled_out(unbroken, step) == rolled_out(alone, step)
        assert rolled_out(resumed, step) == rolled_out(unbroken, step)
    assert {row["instruction"] for row in rolled_out(alone, 2)} - {"i0", "i1", "i2"}
    assert [row["grad_norm"] for row in numbers(unbroken)] == pytest.approx(
        [row["grad_norm"] for row in numbers(alone)], rel=1e-3
    )
    assert numbers(resumed) == numbers(unbroken)
    sharded, expected = sums(unbroken), sums(alone)
    # The trainer's own file under FSDP2 names the tied head, too.
    assert {name: sharded[name] for name in expected} == pytest.approx(expected, abs=1e-2)
    saved = load_file(unbroken.best_path / "model.safetensors")
    assert saved.keys() == expected.keys()
    meta = json.loads((resumed.checkpoints_path / "checkpoint-2" / "cotune-state.json").read_text())
    assert (meta["sharding"], meta["processes"]) == (kind, 2)
    events = [without(run.read_events(), {"time"}) for run in (unbroken, resumed)]
    assert "resumed" in {row["kind"] for row in events[1]} - {row["kind"] for row in events[0]}


# ---- what is refused, and what a resume compares


def trainer_with(**state: Any) -> Any:
    return SimpleNamespace(accelerator=SimpleNamespace(state=SimpleNamespace(**state)))


def fsdp(version: int, efficient_loading: bool = False) -> Any:
    plugin = SimpleNamespace(fsdp_version=version, cpu_ram_efficient_loading=efficient_loading)
    return trainer_with(deepspeed_plugin=None, fsdp_plugin=plugin)


def zero(stage: int) -> Any:
    return trainer_with(deepspeed_plugin=SimpleNamespace(zero_stage=stage))


ALONE = trainer_with(deepspeed_plugin=None)
FSDP2 = fsdp(2)
ZERO_STAGE_2 = zero(2)


def refused(line: str | None) -> Any:
    """Expect a refusal, if there is a line of it."""
    return nullcontext() if line is None else pytest.raises(ConfigError, match=line)


@pytest.mark.parametrize(
    ("trainer", "line"),
    [
        (ALONE, None),
        (FSDP2, None),
        (zero(1), None),
        (ZERO_STAGE_2, None),
        (fsdp(1), "fsdp1; expected FSDP version 2"),
        (zero(3), "zero3; expected .* ZeRO stage 1 or 2"),
        (fsdp(2, efficient_loading=True), "cpu_ram_efficient_loading: false"),
    ],
)
def test_what_no_process_could_sample_from_is_refused(trainer: Any, line: str | None) -> None:
    with refused(line):
        check_sharding(trainer)


@pytest.mark.parametrize(
    ("saved", "trainer", "line"),
    [
        ({"sharding": "none", "processes": 8}, ALONE, None),  # DDP's optimizer is whole
        ({"sharding": "fsdp2", "processes": 8}, FSDP2, None),  # its shards are laid out anew
        ({"sharding": "zero2", "processes": 1}, ZERO_STAGE_2, None),
        ({"sharding": "zero2", "processes": 8}, ZERO_STAGE_2, "by 8 processes"),
        ({"sharding": "zero2", "processes": 1}, ALONE, "sharding zero2, this one with none"),
        ({"sharding": "none", "processes": 1}, FSDP2, "sharding none, this one with fsdp2"),
    ],
)
def test_a_resume_that_could_not_read_the_optimizer_is_refused(
    saved: dict[str, Any], trainer: Any, line: str | None
) -> None:
    with refused(line):
        check_spread(saved, trainer)


def test_the_shards_of_a_checkpoint_are_put_together(tmp_path: Path) -> None:
    saved, loaded = (tiny_model(tiny_tokenizer(), seed) for seed in (0, 1))
    dcp.save(
        {"model": saved.state_dict()},
        storage_writer=dcp.FileSystemWriter(tmp_path / "pytorch_model_fsdp_0"),
        no_dist=True,
    )
    restore_weights(loaded, tmp_path)
    for weight, expected in zip(loaded.parameters(), saved.parameters(), strict=True):
        assert torch.equal(weight, expected)
