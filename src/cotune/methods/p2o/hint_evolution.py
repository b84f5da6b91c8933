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
    MINIBATCH,
    DevScores,
    Record,
    SearchPlan,
    TextSearch,
    gepa_prompt,
    mean_scores,
    split,
)
from cotune.types import Prompt, Task

_BARREN_ROUNDS = 2  # consecutive iterations without a valid hint that end a phase


class HintSearch(TextSearch):
    """A phase: search for hints for the hard questions, and record the events.

    Args:
        hard: the hard questions, two or more.
        instruction: the instruction that the policy sees with the hint.
        description: the environment, described to the reflector.
        key: seed of all draws.
    """

    def __init__(
        self,
        hard: Sequence[Task],
        options: HintOptions,
        instruction: str,
        description: str,
        key: str,
        evolution: Evolution,
        account: ProposalAccount,
        rules: TextRules,
    ) -> None:
        self._options = options
        self._instruction = instruction
        self._about = surroundings(description)
        dev, train = split(hard, options.dev_size, key)
        plan = SearchPlan(
            options=options,
            dev=dev,
            train=train,
            budget=options.evaluations(len(dev)),
            barren=_BARREN_ROUNDS,
            key=key,
        )
        rules = replace(rules, beside=instruction)
        super().__init__(plan, evolution, account, rules, self._refuse)

    def run(self, phase: int) -> HintPool:
        """Return the hints of a phase with their scores; only the empty one if no other was accepted.

        The same inputs and replies make the same calls in the same order.

        Args:
            phase: its number in the run.

        Raises:
            CotuneError: what the policy or the LLM raised; an LLMError is recorded instead.
        """
        plan = self.plan
        options = self._options
        self.record(
            "hint_phase",
            phase=phase,
            hard=len(plan.dev) + len(plan.train),
            dev=len(plan.dev),
            train=len(plan.train),
            budget=plan.budget,
            reflection=options.reflection,
        )
        scores = self.evolve("") if options.reflection == "gepa" else self.reflect_once()
        pool = HintPool(
            tuple(scores),
            tuple(task.id for task in plan.dev),
            tuple(scores.values()),
            tuple(self.drafts[hint].shown if hint else () for hint in scores),
        )
        cover = covering(pool)
        solved = [pool.solved(hint) for hint in range(len(pool.texts))]
        self.record(
            "hint_phase_ended",
            phase=phase,
            evaluations=self.evaluations,
            budget=plan.budget,
            asked=self.account.asked,
            proposed=self.account.answered,
            valid=self.account.valid,
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
        return pool

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
