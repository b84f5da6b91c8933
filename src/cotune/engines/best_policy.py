"""The best policy of a run, with the instruction to use it under."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from cotune.engines.joint import Joint
from cotune.policy.policy_files import check_whole
from cotune.run.best import FILE as BEST_JSON
from cotune.run.best import BestRecord, read_best
from cotune.run.json_files import write_atomic
from cotune.run.scores import Score
from cotune.types import Prompt


class BestPolicy:
    """Keep the best policy's weights with the instruction and hint they were best under.

    The folder is a Hugging Face folder (the adapter's, for a run with `policy.lora`) with `instruction.txt`, `hint.txt`
    if there is a hint, and `best.json`; it is always replaced as a whole. Each engine saves and loads weights.

    The best is the policy with the highest validation score; a tie keeps the earlier one. Without validation,
    and for a method with a last stage, it is the last policy. If the initial instruction was checked with it and
    scores at least as high, that instruction is kept in place of the method's.
    """

    def __init__(self, folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
        self._folder = folder
        self._tokenizer = tokenizer

    @property
    def _staged(self) -> Path:
        return self._folder.with_name(self._folder.name + ".new")

    def offer(
        self, joint: Joint, score: Score | None, step: int, plain: Score | None = None
    ) -> None:
        """Keep the current policy if none is kept yet or it scores higher; on rank 0 while the other ranks serve.

        Args:
            score: the policy's on validation; None if there is no evaluation there.
            step: the steps it is trained for.
            plain: its score under the initial instruction, if the strategy checks the uplift.
        """
        kept = self._read()
        em = 0.0 if score is None else score.em
        initial_em = None if plain is None else plain.em
        # If the kept policy is of a later step, it is from steps that a resume has discarded.
        if kept is not None and kept.step <= step:
            kept = kept.method_best
            if _rank(kept.em, kept.initial_em) >= _rank(em, initial_em):
                return
        staged = self._staged
        shutil.rmtree(staged, ignore_errors=True)
        self.write_weights(joint, staged, step)
        self._tokenizer.save_pretrained(staged)
        strategy = joint.coordinator.strategy
        instruction = strategy.best_prompt().instruction
        write_atomic(staged / "instruction.txt", instruction + "\n")
        if hint := strategy.best_hint():
            write_atomic(staged / "hint.txt", hint + "\n")
        # safetensors writes files that only their owner can read; a server may run under another account.
        for weights in staged.rglob("*.safetensors"):
            shutil.copymode(staged / "instruction.txt", weights)
        record = BestRecord(
            em=em,
            initial_em=initial_em,
            initial_interval=None if plain is None else plain.interval,
            step=step,
            instruction_id=strategy.best_instruction_id(),
            instruction=instruction,
            hint=hint,
            validated=score is not None,
            training_tasks=joint.identity.get("the training tasks"),
        )
        if score is not None:
            record = replace(record, measure=score.measure, n=score.n, interval=score.interval)
        if (choice := strategy.choice()) is not None:
            record = replace(record, **choice.evidence)
        record.write(staged)
        self._swap_in(staged)

    def conclude(
        self, trained: int, leader: str, last: Score | None, initial: Prompt
    ) -> BestRecord:
        """Choose the instruction to keep, and add to the record how the run ended; on rank 0.

        Args:
            trained: steps of the whole run.
            leader: id of the instruction that the method ranks first now.
            last: the last policy's score on validation under it; None if it has none.
        """
        record = replace(
            self.read_kept().method_best,
            trained=trained,
            leader=leader,
            last_em=None if last is None else last.em,
        )
        if record.initial_em is not None and record.initial_em >= record.em:
            # What the method observed is of its own instruction.
            record = replace(
                record,
                instruction_id="i0",
                instruction=initial.instruction,
                em=record.initial_em,
                interval=record.initial_interval,
                weight=None,
                observed_steps=None,
                observed_rollouts=None,
                runner_up=None,
                too_close_to_call=None,
                replaced=record,
            )
        # The record is what counts; a run that was killed in between concludes again.
        write_atomic(self._folder / "instruction.txt", record.instruction + "\n")
        record.write(self._folder)
        return record

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

    def restore(self, joint: Joint) -> None:
        """Load the kept weights into the trainer's policy; on every rank."""
        joint.coordinator.comm.broadcast(None)  # wait until rank 0 has written
        record = self.read_kept()
        if record.step != joint.batches:
            if joint.coordinator.comm.rank == 0:
                check_whole(self._folder)
            self.load_weights(joint, record.step)

    def check(self) -> None:
        """Raise ConfigError if the kept policy is damaged."""
        if self._read() is not None:
            check_whole(self._folder)

    def read_kept(self) -> BestRecord:
        """Return the record of what is kept."""
        record = self._read()
        assert record is not None, f"{self._folder}: no policy was kept"
        return record

    def _read(self) -> BestRecord | None:
        # best.json is written last, so a staged folder that contains it is complete.
        if (self._staged / BEST_JSON).is_file():
            self._swap_in(self._staged)
        return read_best(self._folder)


def _rank(em: float, initial_em: float | None) -> tuple[float, float]:
    """Return what policies are compared by: the higher of the scores under two instructions, then the lower."""
    other = em if initial_em is None else initial_em
    return max(em, other), min(em, other)
