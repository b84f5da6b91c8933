"""The best policy of a run on veRL: a checkpoint of its workers, and the Hugging Face folder of it."""

import shutil
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from cotune.contracts import EngineError
from cotune.engines.best import BestPolicy
from cotune.engines.evaluation import Evaluated


class VerlBest(BestPolicy):
    """As `BestPolicy`, of weights that lie in pieces with veRL's workers.

    A checkpoint of them is kept until the run is over, since that is what they can load again.

    Args:
        folder: the Hugging Face folder.
        tokenizer: saved with the weights.
        checkpoint: where the workers' own is kept.
    """

    def __init__(self, folder: Path, tokenizer: PreTrainedTokenizerBase, checkpoint: Path) -> None:
        super().__init__(folder, tokenizer)
        self._checkpoint = checkpoint

    def offer(self, joint: Evaluated, em: float, step: int) -> None:
        super().offer(joint, em, step)
        known = self._read()
        for folder in self._checkpoint.glob("step_*"):
            if known is not None and folder != self._pieces(known["step"]).parent:
                shutil.rmtree(folder, ignore_errors=True)

    def write_weights(self, joint: Any, folder: Path, step: int) -> None:
        pieces = self._pieces(step)
        shutil.rmtree(pieces, ignore_errors=True)
        joint.trainer.actor_rollout_wg.save_checkpoint(
            str(pieces), None, step, max_ckpt_to_keep=None
        )
        whole = pieces / "huggingface"
        if not any(whole.glob("*.safetensors")):
            raise EngineError(
                f"veRL wrote no weights into {whole}; expected save_contents hf_model"
            )
        shutil.copytree(whole, folder)

    def load_weights(self, joint: Any, step: int) -> None:
        trainer = joint.trainer
        trainer.checkpoint_manager.sleep_replicas()
        trainer.actor_rollout_wg.load_checkpoint(
            local_path=str(self._pieces(step)), del_local_after_load=False
        )
        trainer.checkpoint_manager.update_weights(trainer.global_steps)

    def forget(self) -> None:
        super().forget()
        shutil.rmtree(self._checkpoint, ignore_errors=True)

    def drop_pieces(self) -> None:
        """The run is over: only the Hugging Face folder is kept."""
        shutil.rmtree(self._checkpoint, ignore_errors=True)

    def _pieces(self, step: int) -> Path:
        return self._checkpoint / f"step_{step}" / "actor"
