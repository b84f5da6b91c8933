"""Evaluation of a run before, during and after training: its best policy, and its end with summary, best/ and report."""

import logging
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from transformers import PreTrainedTokenizerBase

from cotune.config.resuming import recorded_config
from cotune.config.run_file import RIVALS, EvaluationConfig
from cotune.engines.joint import Joint, RunSettings
from cotune.experiments.report.run_report import write_report
from cotune.export.export import complete_best
from cotune.policy.policy_files import check_whole
from cotune.protocols import Environment
from cotune.run.best import FILE as BEST_JSON
from cotune.run.best import BestRecord, read_best
from cotune.run.events import truncation_notice
from cotune.run.json_files import write_atomic
from cotune.run.record import Record
from cotune.run.run_dir import RunDir
from cotune.run.scores import Score, measure_of, recorded_score, score_trajectories
from cotune.types import Prompt, Trajectory
from cotune.utils.text import one_line

_log = logging.getLogger("cotune")


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
        recorded_best = self._read()
        em = 0.0 if score is None else score.em
        initial_em = None if plain is None else plain.em
        # If the kept policy is of a later step, it is from steps that a resume has discarded.
        if recorded_best is not None and recorded_best.step <= step:
            method_best = recorded_best.method_best
            if _rank(method_best.em, method_best.initial_em) >= _rank(em, initial_em):
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
        )
        if score is not None:
            record = replace(record, measure=score.measure, n=score.n, interval=score.interval)
        if (choice := strategy.choice()) is not None:
            record = replace(record, **choice.evidence)
        record.write(staged)
        self._swap_in(staged)

    def conclude(self, trained: int, initial: Prompt) -> BestRecord:
        """Choose the instruction to keep, and add to the record how the run ended; on rank 0.

        Args:
            trained: steps of the whole run.
            initial: the prompt with the initial instruction.
        """
        record = replace(self.read_kept().method_best, trained=trained)
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


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a finished run; a score is None if it was not measured.

    Attributes:
        kept: which pair of policy and instruction is reported, and why.
        before: test score of the untrained policy, initial instruction.
        after, plain, hinted: test scores of the reported policy under the best instruction, the initial one, and the
            best one with the hint.
        ended_early: why training ended before its last step; "" if it did not.
    """

    kept: BestRecord
    steps: int
    before: Score | None = None
    after: Score | None = None
    plain: Score | None = None
    hinted: Score | None = None
    ended_early: str = ""


_PROMPTS = {
    "before": "initial", "plain": "initial", "uplift": "initial", "hinted": "best with hint",
}  # fmt: skip
# Names of the scores in trackers, which display them as eval/em and test/em.
_SCORES = {
    "before": "test_em_before",
    "during": "eval_em",
    "uplift": "eval_em_plain",
    "after": "test_em",
    "plain": "test_em_plain",
    "hinted": "test_em_hinted",
}


class RunEvaluation:
    """Evaluate before, during and after training; keep the best policy.

    Args:
        initial: the prompt with the initial instruction.
        report: receives each score that trackers show, under its name there.

    Attributes:
        rollouts: those of the last validation under the best instruction.
    """

    def __init__(
        self,
        options: EvaluationConfig,
        initial: Prompt,
        run: RunDir,
        best: BestPolicy,
        report: Callable[[Any, Mapping[str, float]], None] = lambda joint, scores: None,
    ) -> None:
        self._options = options
        self._initial = initial
        self._report = report
        self._run = run
        self.best = best
        self.rollouts: list[Trajectory] = []
        self._measured: list[Trajectory] = []

    def __call__(self, joint: Joint, trained: int) -> None:
        """Evaluate if due; the hook before a step's rollouts, on rank 0."""
        if trained == 0 and self._options.before:
            self._measure(joint, "test", "before", self._initial, "i0")
        every = self._options.every
        if every and trained and trained % every == 0:
            self.validate(joint, trained)

    def validate(self, joint: Joint, trained: int) -> Score:
        """Score the policy on validation and keep it if it is the best; on rank 0."""
        score, plain = self.during(joint)
        if not joint.coordinator.strategy.has_teacher:
            self.best.offer(joint, score, trained, plain)
        return score

    def during(self, joint: Joint, last: bool = False) -> tuple[Score, Score | None]:
        """Score the policy on validation; on rank 0, because only its strategy knows the best prompt.

        If the strategy checks the uplift, also under the initial instruction if that is not the best one, so that a
        policy into which the gain has moved is kept.
        """
        strategy = joint.coordinator.strategy
        score: Score | None = None
        if last:  # when the policy may just have been validated under this instruction
            score = self._validated(joint, strategy.best_instruction_id())
        if score is None:
            score = self._measure(joint, "validation", "during")
            self.rollouts = self._measured
        if last:
            score = self._settle(joint, score)
        same = strategy.best_prompt().instruction == self._initial.instruction
        if same or not strategy.checks_uplift:
            return score, None
        plain = self._validated(joint, "i0")
        return score, plain or self._measure(joint, "validation", "uplift", self._initial, "i0")

    def _settle(self, joint: Joint, score: Score) -> Score:
        """Score the instructions that the strategy cannot tell from its best, and settle on the best; return its score."""
        strategy = joint.coordinator.strategy
        choice = strategy.choice()
        if choice is None:
            return score
        for rival in choice.rivals[:RIVALS]:
            rival_score = self._validated(joint, rival.id)
            if rival_score is None:
                prompt = Prompt(rival.text)
                rival_score = self._measure(joint, "validation", "contender", prompt, rival.id)
            if rival_score.em > score.em:
                strategy.settle(rival.id)
                score = rival_score
        return score

    def _measure(
        self,
        joint: Joint,
        split: str,
        when: str,
        prompt: Prompt | None = None,
        instruction_id: str = "",
        trained: int | None = None,
    ) -> Score:
        """Score the policy; `trained` is its number of steps if it is not the last one."""
        tasks = joint.parts.environment.tasks(split)
        trajectories = joint.coordinator.evaluate(tasks, prompt, instruction_id)
        self._measured = trajectories
        score = score_trajectories(
            trajectories, measure_of(joint.parts.environment, joint.parts.rewards)
        )
        if joint.coordinator.comm.rank == 0:
            # In a run file under the following step, so that a resume drops these lines and writes them again.
            joint.parts.record.score(
                joint.coordinator.current_step,
                trajectories,
                score,
                split=split,
                when=when,
                trained=joint.batches if trained is None else trained,
                prompt=_PROMPTS.get(when, "best"),
            )
            if when in _SCORES:
                self._report(joint, {_SCORES[when]: score.em})
        return score

    def finish(self, joint: Joint) -> Outcome:
        """Score the reported policy: the best on validation, or the last one without validation."""
        joint.begin_closing()
        if joint.ended_early and joint.coordinator.comm.rank == 0:
            joint.parts.record.event(
                "notice", joint.coordinator.current_step, text=joint.ended_early
            )
        on_rank_zero = joint.coordinator.on_rank_zero
        score: Score | None = None
        uplift: Score | None = None
        if self._options.every:
            score, uplift = on_rank_zero(lambda: self.during(joint, last=True))
        on_rank_zero(lambda: self._offer(joint, score, uplift))
        self.best.restore(joint)
        best: BestRecord = on_rank_zero(lambda: self._conclude(joint))
        identity = best.instruction_id
        after = plain = hinted = None
        if joint.parts.environment.tasks("test"):
            prompt = Prompt(best.instruction)
            after = plain = self._measure(joint, "test", "after", prompt, identity, best.step)
            if best.instruction != self._initial.instruction:
                plain = self._measure(joint, "test", "plain", self._initial, "i0", best.step)
            if best.hint:
                prompt = Prompt(best.instruction, best.hint)
                hinted = self._measure(joint, "test", "hinted", prompt, identity, best.step)
        return Outcome(
            kept=best,
            steps=joint.batches,
            before=self._read_score(when="before"),
            after=after,
            plain=plain,
            hinted=hinted,
            ended_early=joint.ended_early,
        )

    def _offer(self, joint: Joint, score: Score | None, plain: Score | None) -> None:
        """Keep the last policy if it is the best."""
        if score is None or joint.coordinator.strategy.has_teacher:
            # The kept policy is from a run with fewer steps. Without scores it is unknown which one is
            # better; and with a last stage, the earlier policy was not finished.
            self.best.forget()
        self.best.offer(joint, score, joint.batches, plain)

    def _conclude(self, joint: Joint) -> BestRecord:
        """Choose the instruction to keep with the kept policy; record the choice and the pair."""
        strategy = joint.coordinator.strategy
        step = joint.coordinator.current_step
        leader = strategy.best_instruction_id()
        record = self.best.conclude(joint.batches, self._initial)
        if (choice := strategy.choice()) is not None:
            identity = choice.instruction.id
            joint.parts.record.event("best_instruction", step, id=identity, **choice.evidence)
        joint.parts.record.event(
            "best_kept",
            step,
            id=record.instruction_id,
            policy_step=record.step,
            trained=record.trained,
            em=record.em if record.validated else None,
            initial_em=record.initial_em,
            interval=record.interval,
            observed_steps=record.observed_steps,
            observed_rollouts=record.observed_rollouts,
            leader=leader,
            text=record.statement(),
        )
        return record

    def _validated(self, joint: Joint, instruction_id: str) -> Score | None:
        """Return the policy's score on validation under an instruction; None if it was not measured yet."""
        trained = joint.batches
        return self._read_score(split="validation", trained=trained, instruction_id=instruction_id)

    def _read_score(self, **fields: object) -> Score | None:
        """Return the score of the first evaluation with these fields, of whichever attempt, from its rollouts."""
        for row in self._run.read_events():
            if row["kind"] == "evaluated" and fields.items() <= row.items():
                purpose = f"evaluate_{row['when']}"
                rollouts = [
                    rollout
                    for rollout in self._run.read_trajectories(row["step"], purpose)
                    if rollout["attempt"] == row["attempt"]
                    and rollout["instruction"] == row["instruction_id"]
                ]
                return recorded_score(row, rollouts, row["measure"])
        return None


def conclude(
    settings: RunSettings,
    run: Record,
    outcome: Outcome,
    environment: Environment,
    tokenizer: Any = None,
) -> None:
    """Write a finished run's summary, complete best/, write the report, and say where both are."""
    os.chdir(settings.working_folder)  # the policy's path may be relative
    run.event("run_finished", outcome.steps + 1)
    write_run_summary(settings, run, outcome)
    complete_best(recorded_config(run), run, environment, tokenizer)
    report = write_report(run.path)
    if settings.console is None:
        _log.info("step %d: trained; report %s", outcome.steps, report)
    else:
        _show_result(settings.console, run, outcome, report)


def write_run_summary(settings: RunSettings, run: Record, outcome: Outcome) -> None:
    """Write the summary.json of one run, with a single arm."""
    run_settings = settings.record
    kind = run_settings["strategy"]["kind"]
    after = outcome.after
    best = outcome.kept
    totals = run.totals()
    events = run.read_events()
    ended = [row["reason"] for row in events if row["kind"] == "proposals_ended"]
    arm: dict[str, Any] = {
        **_figures("em", after),
        **_figures("em_before", outcome.before),
        **_figures("em_initial_instruction", outcome.plain),
        "measure": after.measure if after else None,
        "em_interval": after.interval if after else None,
        "policy_rollouts": totals.rollouts,
        "generated_tokens": sum(totals.generated_tokens.values()),
        "llm_calls": totals.llm_calls,
        "money": totals.money,
        "seconds": round(run.seconds_spent(), 1),
        "steps": outcome.steps,
        "best_instruction": best.instruction,
        "folder": ".",
        "ended_early": outcome.ended_early or None,
        "failed_phases": sum(row["kind"] == "phase_failed" for row in events),
        "proposals_ended": ended[-1] if ended else None,
        "best_step": best.step,
        "kept": best.statement(),
    }
    if outcome.hinted:
        arm |= _figures("em_with_hint", outcome.hinted)
    run.write_summary(
        {
            "name": run_settings["name"],
            "strategy": kind,
            "seed": settings.seed,
            "llm": settings.llm_name,
            "policy": run_settings["policy"]["path"],
            "arms": {kind: arm},
            "asked_steps": run_settings["training"]["steps"],
            "rollout_budget": settings.rollout_budget,
            "best_instruction": best.instruction,
        }
    )


def _figures(name: str, score: Score | None) -> dict[str, Any]:
    """Return a score as entries of a summary's arm; None if it was not measured."""
    if score is None:
        return {name: None}
    by_stratum = {stratum: em for stratum, (em, _) in score.by_stratum.items()}
    return {name: score.em, f"{name}_by_stratum": by_stratum, f"{name}_n": score.n}


def _show_result(console: Console, run: RunDir, outcome: Outcome, report: Path) -> None:
    steps = run.read_metrics()
    if cut := truncation_notice(steps[-1]) if steps else "":
        console.print(f"[yellow]last step: {cut}[/]", highlight=False)
    best = outcome.kept
    text = f"best instruction {best.instruction_id}: {one_line(best.instruction)}"
    console.print(text, markup=False, highlight=False)
    console.out(result_files(run, report), highlight=False)


def result_files(run: RunDir, report: Path) -> str:
    """Say where the best policy and the report are, a line each."""
    return f"best policy: {run.best_path}\nreport: {report}"
