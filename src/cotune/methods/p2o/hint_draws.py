"""The hints that questions are given: their own, evolved or fixed, or a control in their place.

A claim about hints needs three controls: hints of other questions, random text of the same length (as
LoPE prepends), and no hint at the same number of rollouts.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cotune.errors import ConfigError
from cotune.methods.method import Context
from cotune.methods.p2o.hints import HintPool, assign_hints, candidates
from cotune.types import Task

Given = Literal["own", "other", "random", "none"]
FixedHints = Mapping[str, Sequence[str]]
"""Hints by the stratum of the questions they are for; "" is for all other strata."""
_WORDS = (
    "lorem", "ipsum", "dolor", "sit", "amet", "consectetur", "adipiscing", "elit", "sed", "do",
    "eiusmod", "tempor", "incididunt", "ut", "labore", "et", "dolore", "magna", "aliqua", "enim",
)  # fmt: skip


def check_strata(fixed: FixedHints, tasks: Sequence[Task]) -> None:
    """Raise ConfigError if fixed hints are for a stratum that no training question has."""
    strata = sorted({task.stratum for task in tasks})
    for stratum in fixed:
        if stratum and stratum not in strata:
            raise ConfigError(
                f"strategy: fixed_hints has {stratum!r}, the stratum of no training question; expected "
                f'some of {", ".join(map(repr, strata))}, or "" for all others'
            )


def check_lengths(fixed: FixedHints, context: Context) -> None:
    """Raise ConfigError for a fixed hint with more tokens than an evolved one may have."""
    if context.count_tokens is None or context.max_tokens is None:
        return
    for stratum, texts in fixed.items():
        longest = max(map(context.count_tokens, texts), default=0)
        if longest > context.max_tokens:
            raise ConfigError(
                f"strategy: fixed_hints has a hint of {longest} tokens for {stratum!r}, but the prompt has "
                f"room for {context.max_tokens}; shorten it, or raise limits.prompt_tokens"
            )


@dataclass(frozen=True)
class HintDraws:
    """Draw hints for questions.

    Attributes:
        given: which hints a question is given.
        same: one draw for the whole group (an ablation of the paper).
        pool: the evolved hints; None if there are none yet.
        fixed: hints in place of evolved ones.
    """

    given: Given = "own"
    same: bool = False
    pool: HintPool | None = None
    fixed: FixedHints | None = None

    def draw(
        self, tasks: Sequence[Task], hard: Sequence[Task], count: int, seed_key: str
    ) -> dict[str, tuple[str, ...]]:
        """Draw `count` hints for each of some hard questions; those without a hint are left out.

        A question's draws depend only on (seed_key, its id) and the hard questions.

        Args:
            tasks: the questions.
            hard: all hard questions, whose hints are other questions'.
        """
        if self.given == "none" or (self.pool is None and self.fixed is None):
            return {}
        if self.given == "other":
            return self._drawn(self._others(tasks, hard), count, seed_key)
        if self.fixed is not None:
            drawn = self._drawn({t.id: of_stratum(self.fixed, t) for t in tasks}, count, seed_key)
        else:
            assert self.pool is not None
            ids = [task.id for task in tasks]
            drawn = assign_hints(self.pool, ids, count, seed_key, self.same)
        if self.given == "random":
            return {
                id: tuple(
                    random_text(len(hint), f"{seed_key}/{id}/{0 if self.same else k}")
                    for k, hint in enumerate(hints)
                )
                for id, hints in drawn.items()
            }
        return drawn

    def _others(self, tasks: Sequence[Task], hard: Sequence[Task]) -> dict[str, list[str]]:
        """Return, by question, the hints of hard questions that are not its own.

        None of them is derived from it.
        """
        if self.fixed is not None:
            texts = [text for hints in self.fixed.values() for text in hints]
            own = {task.id: set(of_stratum(self.fixed, task)) for task in tasks}
            return {id: [text for text in texts if text not in mine] for id, mine in own.items()}
        pool = self.pool
        assert pool is not None
        able = candidates(pool, [task.id for task in (*hard, *tasks)])
        every = sorted({hint for hints in able.values() for hint in hints if pool.texts[hint]})
        return {
            task.id: [
                pool.texts[hint]
                for hint in every
                if hint not in able[task.id] and task.id not in pool.shown[hint]
            ]
            for task in tasks
            if able
        }

    def _drawn(
        self, able: Mapping[str, Sequence[str]], count: int, seed_key: str
    ) -> dict[str, tuple[str, ...]]:
        """Draw from each question's texts with equal chances, with replacement."""
        drawn: dict[str, tuple[str, ...]] = {}
        for id, texts in able.items():
            if texts:
                found = random.Random(f"{seed_key}/{id}").choices(
                    texts, k=1 if self.same else count
                )
                drawn[id] = tuple(found * count if self.same else found)
        return drawn


def of_stratum(fixed: FixedHints, task: Task) -> Sequence[str]:
    """Return the fixed hints of a question."""
    return fixed.get(task.stratum, fixed.get("", ()))


def random_text(length: int, key: str) -> str:
    """Return placeholder words in random order, `length` characters; empty for 0.

    >>> len(random_text(40, "a")), random_text(40, "a") == random_text(40, "b")
    (40, False)
    """
    rng, text = random.Random(key), ""
    while len(text) < length:
        text += f"{rng.choice(_WORDS)} "
    cut = text[:length]
    return f"{cut[:-1]}." if cut else ""
