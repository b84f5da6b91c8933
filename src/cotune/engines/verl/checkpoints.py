"""Checkpoints of veRL, which deletes none: older ones are deleted once a newer one is complete."""

import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from torch.distributed.tensor import DTensor
from transformers import PreTrainedTokenizerBase

from cotune.engines.evaluation import BestPolicy
from cotune.engines.joint import Joint
from cotune.errors import EngineError
from cotune.policy.adapters import write_adapter
from cotune.policy.policy_files import PolicyConfig, policy_path
from cotune.run.best import BestRecord
from cotune.run.checkpoints import complete_checkpoints, numbered_checkpoints, step_of
from cotune.run.scores import Score


def keep_newest(folder: Path, count: int) -> None:
    """Delete all but the newest `count` complete checkpoints, and incomplete ones before the newest."""
    complete = complete_checkpoints(folder)
    for path in numbered_checkpoints(folder):
        if path not in complete[:count] and complete and step_of(path) <= step_of(complete[0]):
            shutil.rmtree(path, ignore_errors=True)


class VerlBest(BestPolicy):
    """Save and load the best policy, whose weights are sharded over veRL's workers.

    A checkpoint that the workers can load is kept beside the run's own, in the folder `checkpoint`. It is written
    under another name, so that a kill leaves the previous one.
    """

    def __init__(self, folder: Path, tokenizer: PreTrainedTokenizerBase, checkpoint: Path) -> None:
        super().__init__(folder, tokenizer)
        self._checkpoint = checkpoint

    def offer(
        self, joint: Joint, score: Score | None, step: int, plain: Score | None = None
    ) -> None:
        super().offer(joint, score, step, plain)
        record = self._read()
        kept_pieces = None if record is None else self._pieces(record.step)
        for folder in self._checkpoint.glob("*"):
            if folder != kept_pieces:
                shutil.rmtree(folder, ignore_errors=True)

    def write_weights(self, joint: Any, folder: Path, step: int) -> None:
        trainer = joint.trainer
        pieces = self._checkpoint / f"new_{step}_{uuid4().hex[:8]}"
        # As in veRL's own saves, the rollout engine has released its memory.
        trainer.checkpoint_manager.sleep_replicas()
        trainer.actor_rollout_wg.save_checkpoint(
            str(pieces / "actor"), None, step, max_ckpt_to_keep=None
        )
        trainer.checkpoint_manager.update_weights(trainer.global_steps)
        weights_folder = pieces / "actor" / "huggingface"
        policy: PolicyConfig = joint.loaded_run.config.policy
        if policy.lora is not None:
            weights = adapter_weights(pieces / "actor")
            write_adapter(folder, weights, policy.lora, policy_path(policy.path))
        elif not any(weights_folder.glob("*.safetensors")):
            raise EngineError(
                f"veRL wrote no weights into {weights_folder}; expected save_contents hf_model"
            )
        else:
            shutil.copytree(weights_folder, folder)
        shutil.rmtree(weights_folder)  # only the copy is kept
        pieces.rename(pieces.with_name(pieces.name.replace("new", "step", 1)))

    def load_weights(self, joint: Any, step: int) -> None:
        trainer = joint.trainer
        pieces = self._pieces(step)
        assert pieces is not None  # `_read` ignores a best policy without them
        trainer.checkpoint_manager.sleep_replicas()
        trainer.actor_rollout_wg.load_checkpoint(
            local_path=str(pieces / "actor"), del_local_after_load=False
        )
        trainer.checkpoint_manager.update_weights(trainer.global_steps)

    def forget(self) -> None:
        super().forget()
        shutil.rmtree(self._checkpoint, ignore_errors=True)

    def _read(self) -> BestRecord | None:
        record = super()._read()
        return record if record is not None and self._pieces(record.step) is not None else None

    def _pieces(self, step: int) -> Path | None:
        """Return the newest complete checkpoint of a step."""
        folders = self._checkpoint.glob(f"step_{step}_*")
        return max(folders, key=lambda path: path.stat().st_mtime, default=None)


def adapter_weights(actor: Path) -> dict[str, torch.Tensor]:
    """Return the weights of an adapter that FSDP's ranks have saved in shards, by PEFT's names."""
    files = sorted(
        actor.glob("model_world_size_*_rank_*.pt"),
        key=lambda file: int(file.stem.rpartition("_")[2]),
    )
    shards = [torch.load(file, map_location="cpu", weights_only=True) for file in files]
    weights: dict[str, torch.Tensor] = {}
    for name, tensor in shards[0].items():
        if isinstance(tensor, DTensor):
            # The first ranks, as many as the last axis has, hold one copy; the others repeat it.
            copy = shards[: tensor.device_mesh.shape[-1]]
            placement: Any = tensor.placements[-1]
            tensor = torch.cat([shard[name].to_local() for shard in copy], placement.dim)
        weights[name.replace(".default.", ".")] = tensor.contiguous()
    return weights
