"""Hints evolved by `gepa.optimize`, through its public adapter and strategies (P²O, Phase 2).

gepa is told nothing that outlives the phase: no run folder, no cache, no pickle. The same inputs
and the same replies of policy and LLM make the same calls in the same order, so that a phase that
was stopped is resumed by replaying what both said.
"""

import hashlib
from collections.abc import Mapping, Sequence
from importlib import import_module
from statistics import fmean
from typing import Any

from cotune.contracts import Recorder
from cotune.evolution.hint_reflection import Judge, Record, Reflector, example
from cotune.evolution.hints import HintOptions, HintPool
from cotune.records import Task, Trajectory

_PART = "hint"  # gepa's name for the one text that evolves
_BARREN_ITERATIONS = 2

Candidate = dict[str, str]
Job = tuple[Candidate, Mapping[str, Sequence[Record]], list[str]]


def evolve_by_gepa(
    dev: Sequence[Task],
    train: Sequence[Task],
    judge: Judge,
    reflector: Reflector,
    options: HintOptions,
    seed_key: str,
    record: Recorder,
) -> HintPool:
    """The empty hint and all that gepa accepted, with their scores on dev.

    An iteration draws `beam` parents from the instance-level Pareto front, reflects on a minibatch
    of train with each, and scores on dev the children that are strictly better on their
    minibatch. Ends when the budget is spent, or when two iterations in a row brought no lawful
    hint. No batch of evaluations begins after the budget is spent, so that it is exceeded by part
    of one batch at most.

    Raises:
        Exception: whatever the rollout, the LLM (but LLMError) or the recorder raised.
    """
    from gepa.proposer.reflective_mutation.reflection_lm import ReflectionProposal
    from gepa.strategies.proposal_sampling import IndependentSampling
    from gepa.strategies.proposal_selection import AllImprovements

    budget = options.evaluations(len(dev))
    reflection = _Reflection(judge, reflector, budget, ReflectionProposal)
    gepa: Any = import_module("gepa")  # untyped: its generics cannot be inferred from our arguments
    result: Any = gepa.optimize(
        seed_candidate={_PART: ""},
        trainset=list(train),
        valset=list(dev),
        adapter=_Adapter(judge, options.show_answers, reflection, gepa.EvaluationBatch),
        reflection_strategy=reflection,
        reflection_minibatch_size=options.minibatch,
        sampling_strategy=IndependentSampling(options.beam),
        selection_strategy=_WithinBudget(AllImprovements(), judge, budget, len(dev)),
        acceptance_criterion="strict_improvement",
        candidate_selection_strategy="pareto",
        frontier_type="instance",
        use_merge=False,
        cache_evaluation=False,
        track_best_outputs=False,
        display_progress_bar=False,
        run_dir=None,
        logger=_Silence(),
        max_metric_calls=budget,
        stop_callbacks=[_Progress(reflection, judge, budget, record)],
        seed=_seed(seed_key),
        raise_on_exception=True,
    )
    if reflection.failure is not None:
        raise reflection.failure
    return HintPool(
        tuple(candidate[_PART] for candidate in result.candidates),
        tuple(task.id for task in dev),
        tuple(tuple(row[i] for i in range(len(dev))) for row in result.val_subscores),
    )


def _seed(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")


class _Silence:
    """A logger for gepa, whose messages the run's events replace."""

    def log(self, message: str) -> None:
        pass


class _Adapter:
    """gepa's `GEPAAdapter`: the current policy in place of a fixed task model."""

    propose_new_texts = None  # declared, or some versions of gepa propose nothing

    def __init__(
        self, judge: Judge, show_answers: bool, reflection: "_Reflection", evaluation_batch: Any
    ) -> None:
        self._judge, self._show_answers = judge, show_answers
        self._reflection, self._evaluation_batch = reflection, evaluation_batch

    def evaluate(
        self, batch: Sequence[Task], candidate: Candidate, capture_traces: bool = False
    ) -> Any:
        return self.batch_evaluate([(candidate, batch)])[0]

    def batch_evaluate(self, items: Sequence[tuple[Candidate, Sequence[Task]]]) -> list[Any]:
        """gepa's `EvaluationBatch` of each item; all items in one rollout call."""
        done = self._judge.evaluate([(candidate[_PART], tasks) for candidate, tasks in items])
        return [
            self._evaluation_batch(outputs=ts, scores=[t.reward for t in ts], trajectories=ts)
            for ts in done
        ]

    def make_reflective_dataset(
        self, candidate: Candidate, eval_batch: Any, components_to_update: list[str]
    ) -> Mapping[str, Sequence[Record]]:
        trajectories: list[Trajectory] = eval_batch.trajectories
        try:
            return {_PART: [example(t, self._show_answers) for t in trajectories]}
        except BaseException as error:
            self._reflection.failure = error  # gepa would pass over it
            raise


class _Reflection:
    """gepa's `BatchReflectionLM` around a `Reflector`.

    A job that brings no lawful hint gets no new text, for which gepa pays no evaluation. gepa
    swallows what is raised here and asks again job by job: the first error is kept, nothing is
    asked after it, and the phase raises it when gepa has returned.

    Attributes:
        failure: the error that ends the phase; None for none.
        barren: iterations in a row in which the LLM was asked and brought no lawful hint.
    """

    def __init__(self, judge: Judge, reflector: Reflector, budget: int, proposal: Any) -> None:
        self._judge, self._reflector, self._budget = judge, reflector, budget
        self._proposal = proposal
        self.failure: BaseException | None = None
        self.barren = 0

    def reflect(
        self,
        candidate: Candidate,
        reflective_dataset: Mapping[str, Sequence[Record]],
        components_to_update: list[str],
    ) -> tuple[Any, "_Reflection"]:
        return self.reflect_many([(candidate, reflective_dataset, components_to_update)])[0]

    def reflect_many(self, jobs: Sequence[Job]) -> list[tuple[Any, "_Reflection"]]:
        if self.failure is not None:
            raise self.failure
        if self._judge.evaluations >= self._budget:
            return [(self._proposal(new_texts={}), self) for _ in jobs]
        try:
            hints = [
                self._reflector.propose(candidate[_PART], dataset[_PART])
                for candidate, dataset, _ in jobs
            ]
        except BaseException as error:
            self.failure = error
            raise
        if hints:
            self.barren = 0 if any(hint is not None for hint in hints) else self.barren + 1
        texts = [{} if hint is None else {_PART: hint} for hint in hints]
        return [(self._proposal(new_texts=new), self) for new in texts]


class _WithinBudget:
    """gepa's `SelectionStrategy`: all improvements, largest first, as far as the budget reaches.

    gepa looks at the budget between iterations only; the children of one iteration, `beam` × dev
    evaluations, could exceed it by thousands.
    """

    def __init__(self, improvements: Any, judge: Judge, budget: int, dev: int) -> None:
        self._improvements, self._judge = improvements, judge
        self._budget, self._dev = budget, dev

    def select(self, proposals: list[Any], state: Any, acceptance_criterion: Any) -> list[Any]:
        improved: list[Any] = self._improvements.select(proposals, state, acceptance_criterion)
        left = max(0, self._budget - self._judge.evaluations)
        return sorted(improved, key=_loss)[: -(-left // self._dev)]


def _loss(proposal: Any) -> float:
    """Minibatch reward before less that after; equal ones keep their order."""
    return sum(proposal.subsample_scores_before) - sum(proposal.subsample_scores_after)


class _Progress:
    """gepa's `StopperProtocol`, called before every iteration and after the last one.

    Reports from here, since gepa swallows what a callback of its own raises.
    """

    def __init__(
        self, reflection: _Reflection, judge: Judge, budget: int, record: Recorder
    ) -> None:
        self._reflection, self._judge = reflection, judge
        self._budget, self._record = budget, record
        self._known = 1  # the seed

    def __call__(self, gepa_state: Any) -> bool:
        texts = [candidate[_PART] for candidate in gepa_state.program_candidates]
        means = [fmean(scores.values()) for scores in gepa_state.prog_candidate_val_subscores]
        for i in range(self._known, len(texts)):
            parent = texts[gepa_state.parent_program_for_candidate[i][0]]
            self._record("hint_accepted", text=texts[i], parent=parent, mean_dev_score=means[i])
        self._known = len(texts)
        self._record(
            "hint_progress",
            evaluations=self._judge.evaluations,
            budget=self._budget,
            hints=len(texts),
            best_mean_dev_score=max(means),
        )
        return self._reflection.failure is not None or self._reflection.barren >= _BARREN_ITERATIONS
