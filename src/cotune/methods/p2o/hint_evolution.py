"""P²O's Phase 2: evolve hints for the hard questions under the current policy (arXiv 2603.21877)."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from cotune.methods.contract import TextRules
from cotune.methods.method import Evolution
from cotune.methods.p2o.hints import HintOptions, HintPool, covering
from cotune.methods.proposals import ProposalAccount, surroundings
from cotune.methods.scores import SOLVED_AT
from cotune.methods.text_evolution import (
    FENCED,
    MINIBATCH,
    DevScores,
    Record,
    SearchPlan,
    TextSearch,
    dev_count,
    gepa_prompt,
    least_budget,
    mean_scores,
    split,
)
from cotune.protocols import State
from cotune.types import Prompt, Task

_BARREN_ROUNDS = 2  # consecutive iterations without a valid hint that end a phase


class HintSearch(TextSearch):
    """Search for hints under an instruction, and record the events.

    Args:
        instruction: the instruction that the policy sees with the hint.
        about: the environment, described to the reflector.
    """

    def __init__(
        self,
        instruction: str,
        about: str,
        plan: SearchPlan,
        evolution: Evolution,
        account: ProposalAccount,
        rules: TextRules,
    ) -> None:
        self._instruction = instruction
        self._about = about
        rules = replace(rules, beside=instruction)
        super().__init__(plan, evolution, account, rules, self._refuse)

    def _refuse(self, text: str, parent: str, reason: str) -> None:
        self.record("hint_rejected", reason=reason, text=text, parent=parent)

    def prompt(self, text: str) -> Prompt:
        return Prompt(self._instruction, text)

    def reflection_prompt(self, parent: str, examples: Sequence[Record]) -> str:
        return self._about + gepa_prompt(parent, examples)

    def record_accepted(self, text: str, parent: str, score: float, parent_score: float) -> None:
        self.record("hint_accepted", text=text, parent=parent, mean_dev_score=score)

    def record_progress(self, texts: int, best: float) -> None:
        self.record(
            "hint_progress",
            evaluations=self.evaluations,
            budget=self.plan.budget,
            hints=texts,
            best_mean_dev_score=best,
        )

    def reflect_once(self) -> DevScores:
        """Single-turn reflection (the paper's ablation): hints written from the empty one, none evolved.

        Asks about minibatches of train, each evaluated once without a hint, until there are `beam`
        valid hints, or as many as the budget can score on dev, or two rounds in a row bring none, or the
        LLM's budget is spent. All hints and the empty one are then scored on dev in one batch.
        """
        plan = self.plan
        minibatches = _minibatches(plan.train, MINIBATCH, plan.key)
        hints: list[str] = []
        barren = 0
        while barren < plan.barren and not self.account.spent:
            # Each further hint costs its minibatch now and its dev scores at the end.
            left = self.left - (1 + len(hints)) * len(plan.dev)
            affordable = left // (MINIBATCH + len(plan.dev))
            hints_wanted = min(plan.options.beam - len(hints), affordable)
            if hints_wanted < 1:
                break
            done = self.roll_out([("", next(minibatches)) for _ in range(hints_wanted)])
            unsolved = [ts for ts in done if any(t.reward < SOLVED_AT for t in ts)]
            new = [self.propose("", rollouts) for rollouts in unsolved]
            valid = [hint for hint in new if hint is not None]
            barren = 0 if valid else barren + 1
            hints += valid
        scores = self.score(["", *hints])
        means = mean_scores(scores)
        for hint in hints:
            self.record_accepted(hint, "", means[hint], means[""])
        self.record_progress(len(scores), max(means.values()))
        return scores


def _minibatches(train: Sequence[Task], size: int, seed_key: str) -> Iterator[list[Task]]:
    """Yield parts of train in shuffled order, reshuffled after each pass; the last may be smaller."""
    rng = random.Random(f"{seed_key}/minibatches")
    while True:
        tasks = rng.sample(train, len(train))
        yield from (tasks[i : i + size] for i in range(0, len(tasks), size))


class HintEvolution:
    """Run phases, skip those with too few hard questions, and end the run if the reflector is useless.

    Args:
        rules: the contract of a hint.
        seed: seed of all draws, which are keyed by (seed, step).
        description: the environment, described to the reflector.
    """

    def __init__(
        self, rules: TextRules, options: HintOptions, seed: int, description: str = ""
    ) -> None:
        self.options = options
        self._rules = rules
        self._seed = seed
        self._about = surroundings(description)
        self._phases = 0
        self._account = ProposalAccount("hint", FENCED)

    def run(
        self,
        hard: Sequence[Task],
        *,
        instruction: str,
        evolution: Evolution,
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
            instruction: the instruction that the policy sees with the hint.
            evolution: what the phase works with; its step keys the draws.
            affordable: evaluations that the run can still afford; None for no limit.
            before: the pool so far.

        Raises:
            EvolutionError: see `ProposalAccount.end_phase`. A phase that never called the reflector is not
                counted, nor is one that ended because the LLM's budget is spent.
            CotuneError: what `rollout` or `llm` raised; an LLMError is recorded instead.
        """
        options = self.options
        record = evolution.record
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
        key = f"p2o/{self._seed}/hints/{evolution.progress.step}"
        pool, search = self.phase(hard, instruction, evolution, key)
        search.end_phase()
        if search.scores_are_lost("the earlier hints stay"):
            return before
        account = self._account
        unheard = bool(account.spent) or (account.asked > 0 and not account.answered)
        return before if unheard and len(pool.texts) == 1 else pool

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
        self, hard: Sequence[Task], instruction: str, evolution: Evolution, key: str
    ) -> tuple[HintPool, HintSearch]:
        """Run one phase; return its hints and the search, whose phase has not ended.

        The same arguments and replies make the same calls in the same order.

        Args:
            hard: the hard questions, two or more.
            key: seed of all draws.

        Raises:
            CotuneError: what the policy or the LLM raised; an LLMError is recorded instead.
        """
        self._phases += 1
        options = self.options
        account = self._account
        record = evolution.record
        dev, train = split(hard, options.dev_size, key)
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
        plan = SearchPlan(
            options=options, dev=dev, train=train, budget=budget, barren=_BARREN_ROUNDS, key=key
        )
        search = HintSearch(instruction, self._about, plan, evolution, account, self._rules)
        scores = search.evolve("") if options.reflection == "gepa" else search.reflect_once()
        pool = HintPool(
            tuple(scores),
            tuple(task.id for task in dev),
            tuple(scores.values()),
            tuple(search.drafts[hint].shown if hint else () for hint in scores),
        )
        cover = covering(pool)
        solved = [pool.solved(hint) for hint in range(len(pool.texts))]
        record(
            "hint_phase_ended",
            phase=self._phases,
            evaluations=search.evaluations,
            budget=budget,
            asked=account.asked,
            proposed=account.answered,
            valid=account.valid,
            accepted=len(pool.texts) - 1,
            covering=len(cover),
            covering_texts=[pool.texts[hint] for hint in cover],
            solved_without=pool.solved_share([0]),
            solved_by_cover=pool.solved_share(cover),
            solved=[
                {"text": text, "dev": [i for i, id in enumerate(pool.dev) if id in ids]}
                for text, ids in zip(pool.texts, solved, strict=True)
            ],
        )
        return pool, search

    def state_dict(self) -> State:
        return {"phases": self._phases, "health": self._account.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self._phases = int(state["phases"])
        self._account.load_state_dict(state["health"])
