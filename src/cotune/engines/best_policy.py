"""The best policy of a run with the instruction it is to be used under."""

import shutil
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from cotune.engines.evaluation import Evaluated
from cotune.policy.location import read_best
from cotune.run.json_files import write_atomic, write_json_atomic
from cotune.types import Prompt


class BestPolicy:
    """A Hugging Face folder, of a run with `policy.lora` its adapter's, with `instruction.txt`,
    where there is one `hint.txt`, and `best.json` with what it was chosen by.

    How weights are saved and loaded is each engine's own.

    Args:
        folder: where it is kept; replaced as a whole.
        tokenizer: saved with the weights.
    """

    def __init__(self, folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
        self._folder, self._tokenizer = folder, tokenizer

    @property
    def _staged(self) -> Path:
        return self._folder.with_name(self._folder.name + ".new")

    def offer(self, joint: Evaluated, em: float, step: int) -> None:
        """Keeps the current policy if none is kept or it scores higher.

        Called on rank 0 while the others serve.
        """
        known = self._read()
        # One of a later step is from before a resume, of a run that did not happen.
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
        """Saves the current policy into a new folder, as `from_pretrained` reads it; on rank 0."""
        raise NotImplementedError

    def load_weights(self, joint: Any, step: int) -> None:
        """Makes the kept policy, of a step, the current one; on every rank."""
        raise NotImplementedError

    def forget(self) -> None:
        """Deletes what is kept."""
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.rmtree(self._staged, ignore_errors=True)

    def _swap_in(self, staged: Path) -> None:
        """Replace the folder by a complete one; `_read` repairs a kill in between."""
        shutil.rmtree(self._folder, ignore_errors=True)
        staged.rename(self._folder)

    def restore(self, joint: Evaluated) -> tuple[str, Prompt]:
        """Puts the kept weights into the trainer's policy.

        Returns:
            The instruction's id; instruction and hint that were best with these weights.
        """
        joint.coordinator.comm.broadcast(None)  # rank 0 has written by now
        known = self._read()
        if known is None:
            raise FileNotFoundError(f"{self._folder}: no policy was kept")
        if known["step"] != joint.batches:
            self.load_weights(joint, known["step"])
        return known["instruction_id"], Prompt(known["instruction"], known["hint"])

    def _read(self) -> dict[str, Any] | None:
        # best.json is written last, so a staged folder that has one is whole.
        if (self._staged / "best.json").is_file():
            self._swap_in(self._staged)
        try:
            return read_best(self._folder)
        except (OSError, ValueError):
            return None
