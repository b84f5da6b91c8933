"""P²O's Phase 2: evolve hints for the hard questions under the current policy (arXiv 2603.21877)."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cotune.methods.contract import HintRules
from cotune.methods.p2o.hints import HintOptions, HintPool, covering
from cotune.methods.proposals import ProposalAccount, surroundings
from cotune.methods.scores import SOLVED_AT
from cotune.methods.text_evolution import (
    FENCED,
    MINIBATCH,
    DevScores,
    Judge,
    Reflector,
    Report,
    Search,
    dev_count,
    evolve_by_gepa,
    gepa_prompt,
    least_budget,
    mean_scores,
    scores_are_lost,
    split,
)
from cotune.protocols import LLM, Recorder, Rollout, State
from cotune.types import Prompt, Task

_BARREN_ROUNDS = 2  # consecutive iterations without a valid hint that end a phase


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """The result of a phase and its cost.

    Attributes:
        pool: the hints with their dev scores; only the empty one if no other was accepted.
        judge: with the number of rollouts spent, and of those that were lost.
        reflector: with its account of the replies; its phase has not ended.
    """

    pool: HintPool
    judge: Judge
    reflector: Reflector

    @property
    def accepted(self) -> int:
        """Return the number of proposals in the pool."""
        return len(self.pool.texts) - 1


def reflect_once(
    dev: Sequence[Task],
    train: Sequence[Task],
    judge: Judge,
    reflector: Reflector,
    search: Search,
    seed_key: str,
    report: Report,
) -> DevScores:
    """Single-turn reflection (the paper's ablation): hints written from the empty one, none evolved.

    Asks about minibatches of train, each evaluated once without a hint, until there are `beam`
    valid hints, or as many as the budget can score on dev, or two rounds in a row bring none, or the
    LLM's budget is spent. All hints and the empty one are then scored on dev in one batch.
    """
    minibatches = _minibatches(train, MINIBATCH, seed_key)
    hints: list[str] = []
    barren = 0
    while barren < _BARREN_ROUNDS:
        # Each further hint costs its minibatch now and its dev scores at the end.
        left = search.budget - judge.evaluations - (1 + len(hints)) * len(dev)
        hints_wanted = min(search.beam - len(hints), left // (MINIBATCH + len(dev)))
        if hints_wanted < 1:
            break
        done = judge.evaluate([("", next(minibatches)) for _ in range(hints_wanted)])
        unsolved = [ts for ts in done if any(t.reward < SOLVED_AT for t in ts)]
        new = reflector.propose([("", ts) for ts in unsolved])
        valid = [hint for hint in new if hint is not None]
        barren = 0 if valid else barren + 1
        hints += valid
        if reflector.account.spent:
            break
    texts = ["", *hints]
    rows = judge.evaluate([(hint, dev) for hint in texts])
    scores = {text: tuple(t.reward for t in row) for text, row in zip(texts, rows, strict=True)}
    means = mean_scores(scores)
    for hint in hints:
        report.accepted(hint, "", means[hint], means[""])
    report.progress(judge.evaluations, len(texts), max(means.values()))
    return scores


def _minibatches(train: Sequence[Task], size: int, seed_key: str) -> Iterator[list[Task]]:
    """Yield parts of train in shuffled order, reshuffled after each pass; the last may be smaller."""
    rng = random.Random(f"{seed_key}/minibatches")
    while True:
        tasks = rng.sample(train, len(train))
        yield from (tasks[i : i + size] for i in range(0, len(tasks), size))


class _HintReport(Report):
    """Records the hints of a phase; "hint_phase_ended" counts the rejected ones."""

    def __init__(self, record: Recorder, budget: int) -> None:
        self._record = record
        self._budget = budget

    def accepted(self, text: str, parent: str, score: float, parent_score: float) -> None:
        self._record("hint_accepted", text=text, parent=parent, mean_dev_score=score)

    def progress(self, evaluations: int, texts: int, best: float) -> None:
        self._record(
            "hint_progress",
            evaluations=evaluations,
            budget=self._budget,
            hints=texts,
            best_mean_dev_score=best,
        )


class HintEvolution:
    """Run phases, skip those with too few hard questions, and end the run if the reflector is useless.

    Args:
        rules: the contract of a hint.
        seed: seed of all draws, which are keyed by (seed, step).
        description: the environment, described to the reflector.
    """

    def __init__(
        self, rules: HintRules, options: HintOptions, seed: int, description: str = ""
    ) -> None:
        self.options = options
        self._rules = rules
        self._seed = seed
        self._description = description
        self._phases = 0
        self._account = ProposalAccount("hint", FENCED)

    def run(
        self,
        hard: Sequence[Task],
        *,
        instruction: str,
        step: int,
        rollout: Rollout,
        llm: LLM,
        record: Recorder,
        affordable: int | None = None,
        before: HintPool | None = None,
    ) -> HintPool | None:
        """Return the pool to draw from: a phase's, or what is left of the one before.

        If too few questions are hard, the result is None, or `before` with `keep_if_skipped`. The result is
        `before` if a phase cannot be afforded, loses too many scores to errors of the environment, or finds
        no hint because the LLM's budget is spent or no call succeeds. A skipped phase is recorded as a
        "notice".

        Args:
            hard: the hard questions.
            step: the step before which this happens; keys the draws.
            affordable: evaluations that the run can still afford; None for no limit.
            before: the pool so far.

        Raises:
            EvolutionError: see `ProposalAccount.end_phase`. A phase that never called the reflector is not
                counted, nor is one that ended because the LLM's budget is spent.
            CotuneError: what `rollout` or `llm` raised; an LLMError is recorded instead.
        """
        options = self.options
        account = self._account
        if len(hard) < options.hard_set_min_count:
            pool = before if options.keep_if_skipped else None
            dropped = "" if pool is before else ", and the earlier ones are dropped"
            record(
                "notice",
                text=f"{len(hard)} hard questions, hard_set_min_count is {options.hard_set_min_count}: no "
                f"hints are evolved{dropped}",
            )
            return pool
        if obstacle := self._obstacle(len(hard), affordable):
            record("notice", text=obstacle)
            return before
        key = f"p2o/{self._seed}/hints/{step}"
        result = self.phase(hard, instruction, rollout, llm, record, key)
        result.reflector.end_phase()
        judge = result.judge
        if scores_are_lost(judge.lost, judge.evaluations, record, "the earlier hints stay"):
            return before
        unheard = bool(account.spent) or (account.asked > 0 and not account.answered)
        return before if unheard and not result.accepted else result.pool

    def _obstacle(self, hard: int, affordable: int | None) -> str:
        """Return why a phase with so many hard questions cannot find a hint; "" if it can."""
        dev = dev_count(hard, self.options.dev_size)
        cost = self.options.evaluations(dev)
        least = least_budget(dev)
        if cost < least:
            return (
                f"hints.budget is {cost}, but scoring one hint on {dev} questions takes {least}: no hints are "
                "evolved; raise it, or lower hints.dev_size"
            )
        if affordable is not None and cost > affordable:
            return (
                f"a phase of {cost} evaluations is more than the {max(0, affordable)} that rollout_budget "
                "leaves for one: no hints are evolved"
            )
        return ""

    def phase(
        self,
        hard: Sequence[Task],
        instruction: str,
        rollout: Rollout,
        llm: LLM,
        record: Recorder,
        seed_key: str,
    ) -> PhaseResult:
        """Run one phase. The same arguments and replies make the same calls in the same order.

        Args:
            hard: the hard questions, two or more.
            instruction: the instruction that the policy sees with the hint.
            seed_key: seed of all draws.

        Raises:
            CotuneError: what `rollout` or `llm` raised; an LLMError is recorded instead.
        """
        self._phases += 1
        options = self.options
        account = self._account
        dev, train = split(hard, options.dev_size, seed_key)
        budget = options.evaluations(len(dev))
        record(
            "hint_phase",
            phase=self._phases,
            hard=len(hard),
            dev=len(dev),
            train=len(train),
            budget=budget,
            reflection=options.reflection,
        )
        judge = Judge(
            lambda hint: Prompt(instruction, hint), rollout, record, scoring=options.scoring
        )
        account.begin(
            llm,
            record,
            replace(self._rules, instruction=instruction).check,
            lambda text, parent, reason: record(
                "hint_rejected", reason=reason, text=text, parent=parent
            ),
        )
        about = surroundings(self._description)
        reflector = Reflector(
            account,
            lambda parent, examples: about + gepa_prompt(parent, examples),
            options.show_answers,
        )
        search = Search(seed="", budget=budget, beam=options.beam, barren=_BARREN_ROUNDS)
        evolve = evolve_by_gepa if options.reflection == "gepa" else reflect_once
        report = _HintReport(record, budget)
        scores = evolve(dev, train, judge, reflector, search, seed_key, report)
        pool = HintPool(
            tuple(scores),
            tuple(task.id for task in dev),
            tuple(scores.values()),
            tuple(frozenset(reflector.drafts[h].shown if h else ()) for h in scores),
        )
        result = PhaseResult(pool, judge, reflector)
        cover = covering(pool)
        record(
            "hint_phase_ended",
            phase=self._phases,
            evaluations=judge.evaluations,
            budget=budget,
            asked=account.asked,
            proposed=account.answered,
            valid=account.valid,
            accepted=result.accepted,
            covering=len(cover),
            covering_texts=[pool.texts[hint] for hint in cover],
            solved_without=pool.solved_share([0]),
            solved_by_cover=pool.solved_share(cover),
            solved=[
                {"text": text, "dev": [i for i, id in enumerate(pool.dev) if id in solved]}
                for hint, text in enumerate(pool.texts)
                for solved in [pool.solved(hint)]
            ],
        )
        return result

    def state_dict(self) -> State:
        return {"phases": self._phases, "health": self._account.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self._phases = int(state["phases"])
        self._account.load_state_dict(state["health"])
