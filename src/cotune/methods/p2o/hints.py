"""Hints (P²O, arXiv 2603.21877): their pool, their assignment to questions by Algorithm 2, and their evolution."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from cotune.methods.contract import TextRules
from cotune.methods.method import SOLVED_AT, Evolution, check_least
from cotune.methods.proposals import ProposalAccount, surroundings
from cotune.methods.text_evolution import (
    MINIBATCH,
    DevScores,
    GepaSearchOptions,
    Record,
    SearchPlan,
    TextSearch,
    gepa_prompt,
    greedy_cover,
    least_budget,
    mean_scores,
    split,
)
from cotune.types import Prompt, Task


@dataclass(frozen=True, kw_only=True)
class HintOptions(GepaSearchOptions):
    """The options of a phase of hint evolution; defaults are the paper's, except `show_answers`.

    Attributes:
        hard_set_min_count: hard questions below which a phase is skipped.
        dev_size: hard questions that hints are scored on; the others are reflected on.
        budget: evaluations of a phase (one is one rollout); None is DSPy's "heavy" one (`evaluations`).
        beam: W, parents that hints are derived from in one iteration.
        show_answers: whether the reflector is shown the ground truth. The authors show it; hints can then carry
            answers, which the contract may not recognise. A hint is never used on a question that its author was shown.
        reflection: "gepa" evolves hints; "single_turn" (the ablation) asks for `beam` hints at once, each from the
            empty one, and evolves none.
        keep_if_skipped: whether the previous hints stay in use if a phase is skipped for too few hard questions; the
            paper drops them (Algorithm 1, line 26).
    """

    hard_set_min_count: int = 100
    budget: int | None = None
    beam: int = 16
    reflection: Literal["gepa", "single_turn"] = "gepa"
    keep_if_skipped: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 2, "hard_set_min_count")
        if self.budget is not None and self.budget < (least := least_budget(self.dev_size)):
            raise ValueError(
                f"budget is {self.budget}; expected at least {least}, to score one hint on "
                f"{self.dev_size} questions (dev_size), or null"
            )

    def evaluations(self, dev: int) -> int:
        """Return the budget of a phase with `dev` questions to score hints on.

        None is DSPy's auto budget for 72 candidates, "heavy_4" in the authors' scripts: 11,040 evaluations at
        dev = 300. It covers the seed on dev, 5 evaluations per candidate, 1.5 × 72 trials on minibatches of 35, and
        all of dev after every fifth trial and at the end: 22 times.
        """
        return dev + 5 * 72 + 108 * 35 + 22 * dev if self.budget is None else self.budget


@dataclass(frozen=True, slots=True)
class HintPool:
    """Candidate hints with their scores.

    Attributes:
        texts: the hints; the first is empty and leaves a question unchanged.
        dev: ids of the questions they were scored on.
        scores: rewards, hints × dev; one rollout each, under the policy of that time.
        shown: by hint, the ids of the questions that it or an ancestor was derived from. They may
            carry their answers, so it is never used on them.
    """

    texts: tuple[str, ...]
    dev: tuple[str, ...]
    scores: tuple[tuple[float, ...], ...]
    shown: tuple[tuple[str, ...], ...]

    def mean(self, hint: int) -> float:
        """Return a hint's mean reward over dev."""
        return fmean(self.scores[hint])

    def solved(self, hint: int) -> frozenset[str]:
        """Return the ids of the dev questions that a hint solved without having been derived from them."""
        row = zip(self.dev, self.scores[hint], strict=True)
        solved = frozenset(task_id for task_id, score in row if score >= SOLVED_AT)
        return solved.difference(self.shown[hint])

    def solved_share(self, hints: Sequence[int]) -> float:
        """Return the share of dev that at least one of some hints solved."""
        solved = frozenset[str]().union(*(self.solved(hint) for hint in hints))
        return len(solved) / len(self.dev)


def covering(pool: HintPool) -> list[int]:
    """Return Z_covered: a greedy set cover of dev, in order of choice (Algorithm 2, step 1).

    Repeatedly takes the hint that solves the most unsolved questions, until none adds any. Ties are
    broken by mean score, then by index. The empty hint counts like any other.
    """
    hints = range(len(pool.texts))
    solved = [[float(i in ids) for i in pool.dev] for ids in map(pool.solved, hints)]
    return greedy_cover(solved, 0.0, [pool.mean(hint) for hint in hints])


def candidates(pool: HintPool, task_ids: Sequence[str]) -> dict[str, list[int]]:
    """Return the hints that each question may draw from (Algorithm 2, step 2), by id; {} without a cover.

    These are the covering hints that solved the question if it is a dev question that some hint solved, else all
    covering hints. A hint that was derived from the question is left out. If that leaves none, all other hints that
    solved any dev question stand in, and if these leave none, the question has no hint: an empty list.
    """
    cover = covering(pool)
    solved = [pool.solved(hint) for hint in range(len(pool.texts))]
    others = [h for h, text in enumerate(pool.texts) if text.strip() and solved[h]]
    allowed: dict[str, list[int]] = {}
    for task_id in task_ids if cover else ():
        solving = [hint for hint in cover if task_id in solved[hint]]
        covering_others = [hint for hint in cover if task_id not in pool.shown[hint]]
        allowed[task_id] = (
            solving or covering_others or [h for h in others if task_id not in pool.shown[h]]
        )
    return allowed


def assign_hints(
    pool: HintPool, hard_ids: Sequence[str], count: int, seed_key: str
) -> dict[str, tuple[str, ...]]:
    """Draw `count` hints for each hard question from its candidates, by task id (Algorithm 2, step 2).

    Draws with replacement, weighted by mean dev score, or by the share of dev solved if negative rewards make a
    mean unusable. A question's draws depend only on (seed_key, its id). Without a candidate it is left out.
    """
    assigned: dict[str, tuple[str, ...]] = {}
    for task_id, hints in candidates(pool, hard_ids).items():
        if hints:
            means = [pool.mean(hint) for hint in hints]
            shares = [pool.solved_share([hint]) for hint in hints]
            weights = means if min(means) > 0 else shares
            draws = random.Random(f"{seed_key}/{task_id}").choices(hints, weights, k=count)
            assigned[task_id] = tuple(pool.texts[hint] for hint in draws)
    return assigned


# ---- Phase 2: evolve hints for the hard questions under the current policy

_BARREN_ROUNDS = 2  # consecutive iterations without a valid hint that end a phase


class HintSearch(TextSearch):
    """A phase: search for hints for two or more hard questions, and record the events.

    Args:
        instruction: what the policy sees with the hint.
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
        super().__init__(plan, evolution, account, rules)

    def run(self, phase: int) -> HintPool:
        """Return the hints of the run's nth phase with their scores; only the empty one if no other was accepted.

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

    def prompt(self, text: str) -> Prompt:
        return Prompt(self._instruction, text)

    def reflection_prompt(self, parent: str, examples: Sequence[Record]) -> str:
        return self._about + gepa_prompt(parent, examples)

    def record_accepted(self, text: str, parent: str, score: float, parent_score: float) -> None:
        self.record("hint_accepted", text=text, parent=parent, mean_dev_score=score)

    def record_rejected(self, text: str, parent: str, reason: str, **scores: float) -> None:
        """Record a hint that breaks the contract, but none that was tried and is no better."""
        if not scores:
            self.record("hint_rejected", reason=reason, text=text, parent=parent)

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
        minibatches = _draw_minibatches(plan.train, plan.key)
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


def _draw_minibatches(train: Sequence[Task], seed_key: str) -> Iterator[list[Task]]:
    """Yield parts of train in shuffled order, reshuffled after each pass; the last may be smaller."""
    rng = random.Random(f"{seed_key}/minibatches")
    while True:
        tasks = rng.sample(train, len(train))
        yield from (tasks[i : i + MINIBATCH] for i in range(0, len(tasks), MINIBATCH))
