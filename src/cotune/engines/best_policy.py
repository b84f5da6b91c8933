"""The best policy of a run, with the instruction to use it under."""

import shutil
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from cotune.engines.joint import TrainingRun
from cotune.policy.policy_files import read_best
from cotune.run.json_files import write_atomic, write_json_atomic
from cotune.types import Prompt


class BestPolicy:
    """Keep the best policy's weights with the instruction and hint they were best under.

    The folder is a Hugging Face folder (the adapter's, for a run with `policy.lora`) with
    `instruction.txt`, `hint.txt` if there is a hint, and `best.json` with the score. Each engine
    implements how weights are saved and loaded.

    Args:
        folder: the folder to keep it in; always replaced as a whole.
        tokenizer: saved with the weights.
    """

    def __init__(self, folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
        self._folder, self._tokenizer = folder, tokenizer

    @property
    def _staged(self) -> Path:
        return self._folder.with_name(self._folder.name + ".new")

    def offer(self, joint: TrainingRun, em: float, step: int) -> None:
        """Keep the current policy if none is kept yet or it scores higher.

        Called on rank 0 while the other ranks serve.
        """
        known = self._read()
        # A kept policy of a later step was written before a resume, by steps that were discarded.
        if known is not None and known["step"] <= step and known["em"] >= em:
            return
        staged = self._staged
        shutil.rmtree(staged, ignore_errors=True)
        self.write_weights(joint, staged, step)
        self._tokenizer.save_pretrained(staged)
        strategy = joint.coordinator.strategy
        text = strategy.best_prompt().instruction
        write_atomic(staged / "instruction.txt", text + "\n")
        if hint := strategy.best_hint():
            write_atomic(staged / "hint.txt", hint + "\n")
        chosen = {
            "schema_version": 1,
            "em": em,
            "step": step,
            "instruction_id": strategy.best_instruction_id(),
            "instruction": text,
            "hint": hint,
        }
        write_json_atomic(staged / "best.json", chosen)
        self._swap_in(staged)

    def write_weights(self, joint: Any, folder: Path, step: int) -> None:
        """Save the current policy to a new folder that `from_pretrained` can read; on rank 0."""
        raise NotImplementedError

    def load_weights(self, joint: Any, step: int) -> None:
        """Load the policy kept at a step as the current one; on every rank."""
        raise NotImplementedError

    def forget(self) -> None:
        """Delete the kept policy."""
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.rmtree(self._staged, ignore_errors=True)

    def _swap_in(self, staged: Path) -> None:
        """Replace the folder by a complete one; `_read` recovers from a kill in between."""
        shutil.rmtree(self._folder, ignore_errors=True)
        staged.rename(self._folder)

    def restore(self, joint: TrainingRun) -> tuple[str, Prompt]:
        """Load the kept weights into the trainer's policy.

        Returns:
            The instruction's id, and the prompt (instruction and hint) that was best with these
            weights.
        """
        joint.coordinator.comm.broadcast(None)  # wait until rank 0 has written
        known = self._read()
        if known is None:
            raise FileNotFoundError(f"{self._folder}: no policy was kept")
        if known["step"] != joint.batches:
            self.load_weights(joint, known["step"])
        return known["instruction_id"], Prompt(known["instruction"], known["hint"])

    def _read(self) -> dict[str, Any] | None:
        # best.json is written last, so a staged folder that contains it is complete.
        if (self._staged / "best.json").is_file():
            self._swap_in(self._staged)
        try:
            return read_best(self._folder)
        except (OSError, ValueError):
            return None
