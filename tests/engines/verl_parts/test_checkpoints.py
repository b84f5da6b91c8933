"""Checkpoints are pairs: veRL's folder, and cotune's state, written last."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed
from peft import PeftModel
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from cotune.engines.verl.checkpoints import VerlBest, adapter_weights, keep_newest
from cotune.methods.static import StaticStrategy
from cotune.policy.adapters import adapter_base, write_adapter
from cotune.policy.policy_files import PolicyConfig
from cotune.run.checkpoints import save_state
from cotune.run.scores import Score
from tests.policy.test_adapters import OPTIONS, adapted, logits
from tests.policy.tiny import tiny_model, tiny_tokenizer


def write_checkpoint(folder: Path, step: int) -> Path:
    """veRL's half of a checkpoint."""
    path = folder / f"global_step_{step}"
    (path / "actor").mkdir(parents=True)
    (path / "actor" / "model.pt").write_bytes(b"weights")
    return path


@pytest.mark.parametrize(
    ("pairs", "torn", "keep", "kept_steps"),
    [
        ((2, 4, 8, 10), (6,), 2, {8, 10}),
        # What is torn after the newest pair may still be written.
        ((2, 4), (6,), 1, {4, 6}),
        # Nothing is deleted while no pair is whole.
        ((), (2, 4), 1, {2, 4}),
    ],
)
def test_of_older_pairs_the_newest_are_kept_and_torn_ones_go(
    pairs: tuple[int, ...], torn: tuple[int, ...], keep: int, kept_steps: set[int], tmp_path: Path
) -> None:
    for step in (*pairs, *torn):
        folder = write_checkpoint(tmp_path, step)
        if step in pairs:
            save_state(folder, {"batches": step})
    (tmp_path / "best").mkdir()
    keep_newest(tmp_path, keep)
    expected = {"best", *(f"global_step_{step}" for step in kept_steps)}
    assert {path.name for path in tmp_path.iterdir()} == expected


def test_the_best_policy_is_kept_with_the_pieces_that_the_workers_load(tmp_path: Path) -> None:
    """Of two scores, under the method's instruction and the initial one, the higher counts first."""

    class Workers:
        def save_checkpoint(self, path: str, *_: Any, **__: Any) -> None:
            folder = Path(path) / "huggingface"
            folder.mkdir(parents=True)
            (folder / "config.json").write_text("{}")
            save_file({}, folder / "model.safetensors")
            (Path(path) / "shard.pt").write_bytes(b"a piece")

    replicas = SimpleNamespace(sleep_replicas=lambda: None, update_weights=lambda _: None)
    trainer = SimpleNamespace(
        checkpoint_manager=replicas, actor_rollout_wg=Workers(), global_steps=0
    )
    coordinator = SimpleNamespace(strategy=StaticStrategy("Do."))
    loaded_run = SimpleNamespace(config=SimpleNamespace(policy=PolicyConfig()))
    joint: Any = SimpleNamespace(
        trainer=trainer, coordinator=coordinator, identity={}, loaded_run=loaded_run
    )
    best = VerlBest(tmp_path / "best", tiny_tokenizer(), tmp_path / "pieces")
    for step, score, plain, expected in (
        (1, 0.5, 0.25, 1), (2, 0.5, 0.25, 1), (3, 0.5, 0.75, 3), (4, 0.625, None, 3),
    ):  # fmt: skip
        scores = [None if em is None else Score(em, 4, {}) for em in (score, plain)]
        best.offer(joint, scores[0], step, scores[1])
        assert best.read_kept().step == expected
        (pieces,) = (tmp_path / "pieces").iterdir()
        assert pieces.name.startswith(f"step_{expected}_")
    best.check()


def test_the_shards_of_an_adapter_become_one_that_peft_loads(tmp_path: Path) -> None:
    policy = adapted()
    for rank in range(6):  # two copies, each in three shards
        store = FakeStore()
        torch.distributed.init_process_group("fake", store=store, rank=rank, world_size=6)
        mesh = init_device_mesh("cpu", (2, 3))
        shards: dict[str, torch.Tensor] = {}
        for name, weight in policy.named_parameters():
            if ".lora_" in name:
                # Of 4 rows, two ranks have 2 and the last has none.
                piece = [*weight.detach().chunk(3), weight.detach()[:0]][rank % 3].clone()
                shards[name] = DTensor.from_local(piece, mesh, [Replicate(), Shard(0)])
        torch.save(shards, tmp_path / f"model_world_size_6_rank_{rank}.pt")
        torch.distributed.destroy_process_group()
    folder = tmp_path / "adapter"
    write_adapter(folder, adapter_weights(tmp_path), OPTIONS, "owner/base")
    loaded = PeftModel.from_pretrained(tiny_model(tiny_tokenizer(), layers=3), folder)
    assert torch.equal(logits(loaded), logits(policy))
    assert adapter_base(folder) == "owner/base"
