"""Evaluation of a run before, during and after training, the same for every engine."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cotune.config.build import initial_instruction
from cotune.config.run_file import EvaluationConfig
from cotune.engines.best_policy import BestPolicy
from cotune.engines.joint import TrainingRun
from cotune.environments.environment_options import InstructionConfig
from cotune.run.run_dir import RunDir
from cotune.run.scores import EXACT_MATCH, Score, measure_of, score_trajectories
from cotune.types import Choice, Prompt


@dataclass(frozen=True)
class Outcome:
    """The result of a finished run.

    Attributes:
        before: test score of the untrained policy, initial instruction; None if not measured.
        after: test score of the reported policy, best instruction.
        plain: test score of the reported policy, initial instruction.
        hinted: test score of the reported policy, best instruction and hint; None without hints.
        choice: how the strategy chose the best instruction; None if it does not say.
        ended_early: why training ended before its last step; "" if it did not.
    """

    before: Score | None
    after: Score
    plain: Score
    instruction: str
    instruction_id: str
    steps: int
    hinted: Score | None = None
    choice: Choice | None = None
    ended_early: str = ""


_PROMPTS = {"before": "initial", "plain": "initial", "hinted": "best with hint"}
# Names of the scores in trackers, which display them as eval/em and test/em.
_SCORES = {
    "before": "test_em_before",
    "during": "eval_em",
    "after": "test_em",
    "plain": "test_em_plain",
    "hinted": "test_em_hinted",
}


class RunEvaluation:
    """Evaluate before, during and after training; keep the best policy.

    Args:
        options: when to evaluate.
        instruction: the initial one.
        run: the run folder.
        best: keeps the best policy on validation.
        report: receives every score under its tracker name.
    """

    def __init__(
        self,
        options: EvaluationConfig,
        instruction: InstructionConfig,
        run: RunDir,
        best: BestPolicy,
        report: Callable[[Any, Mapping[str, float]], None],
    ) -> None:
        self._options, self._instruction = options, instruction
        self._run, self._best, self._report = run, best, report

    def __call__(self, joint: TrainingRun, trained: int) -> None:
        """Evaluate if due; the hook before a step's rollouts, on rank 0."""
        if trained == 0 and self._options.before:
            self._measure(joint, "test", "before", self._initial(joint), "i0")
        every = self._options.every
        if every and trained and trained % every == 0:
            score = self._measure(joint, "validation", "during")
            self._best.offer(joint, score.em, trained)

    def finish(self, joint: TrainingRun) -> Outcome:
        """Score the reported policy: the best on validation, or the last one without validation."""
        joint.begin_closing()
        if joint.ended_early and joint.coordinator.comm.rank == 0:
            joint.parts.journal.event("notice", joint.coordinator.step, text=joint.ended_early)
        em = 0.0
        if self._options.every:
            em = self._measure(joint, "validation", "during").em
        joint.coordinator.on_rank_zero(lambda: self._keep(joint, em))
        instruction_id, kept = self._best.restore(joint)
        text = kept.instruction
        after = self._measure(joint, "test", "after", Prompt(text), instruction_id)
        initial = self._initial(joint)
        plain = after
        if text != initial.instruction:
            plain = self._measure(joint, "test", "plain", initial, "i0")
        hinted = None
        if kept.hint:
            hinted = self._measure(joint, "test", "hinted", kept, instruction_id)
        return Outcome(
            self._before(),
            after,
            plain,
            text,
            instruction_id,
            joint.batches,
            hinted,
            self._choice(joint),
            joint.ended_early,
        )

    def _keep(self, joint: TrainingRun, em: float) -> None:
        if not self._options.every:
            # The kept policy is from a run with fewer steps, and no score says which is better.
            self._best.forget()
        self._best.offer(joint, em, joint.batches)

    def forget(self) -> None:
        """Drop what an earlier run kept, when a run starts from the beginning."""
        self._best.forget()

    def _choice(self, joint: TrainingRun) -> Choice | None:
        """Return the strategy's choice of the best instruction, if it makes one; record it."""
        choose = getattr(joint.coordinator.strategy, "choice", None)
        best: Choice | None = choose() if choose else None
        if best is None or joint.coordinator.comm.rank != 0:
            return None
        joint.parts.journal.event(
            "best_instruction",
            joint.coordinator.step,
            id=best.instruction.id,
            weight=best.weight,
            observed_steps=best.steps,
            observed_rollouts=best.rollouts,
            runner_up=best.runner_up.id if best.runner_up else None,
            too_close_to_call=best.too_close,
        )
        return best

    def _measure(
        self,
        joint: TrainingRun,
        split: str,
        when: str,
        prompt: Prompt | None = None,
        instruction_id: str = "",
    ) -> Score:
        tasks = joint.parts.environment.tasks(split)
        trajectories = joint.coordinator.evaluate(tasks, prompt, instruction_id)
        score = score_trajectories(
            trajectories, measure_of(joint.parts.environment, joint.parts.rewards)
        )
        if joint.coordinator.comm.rank == 0:
            # Record under the following step, so that a resume drops these lines and writes them
            # again.
            step, journal = joint.coordinator.step, joint.parts.journal
            journal.event(
                "evaluated",
                step,
                trained=joint.batches,
                split=split,
                when=when,
                prompt=_PROMPTS.get(when, "best"),
                instruction_id=trajectories[0].assignment.instruction_id,
                em=score.em,
                n=score.n,
                measure=score.measure,
                by_stratum={name: list(value) for name, value in score.by_stratum.items()},
            )
            journal.trajectories(step, f"evaluate_{when}", trajectories)
            self._report(joint, {_SCORES[when]: score.em})
        return score

    def _initial(self, joint: TrainingRun) -> Prompt:
        return Prompt(initial_instruction(self._instruction, joint.parts.environment))

    def _before(self) -> Score | None:
        """Return the score before training, including one from an interrupted attempt."""
        for row in self._run.read_events():
            if row["kind"] == "evaluated" and row.get("when") == "before":
                strata = {name: (em, n) for name, (em, n) in row["by_stratum"].items()}
                return Score(row["em"], row["n"], strata, row.get("measure", EXACT_MATCH))
        return None
