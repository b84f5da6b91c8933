"""What a run costs: rollouts, generated tokens, LLM calls and money, one row each in costs.jsonl.

Every row has the attempt (1, 2, …; each resume is a new one) and the step at which it was spent. A resume from
step s discards the work of earlier attempts after s, so their later rows are no longer *committed*. A method's
compute is the sum of committed rows; money is the sum of all rows, since a resume does not refund any.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from cotune.run.json_files import Row
from cotune.types import Purpose

PURPOSES: tuple[Purpose, ...] = ("train", "verify", "evolve", "evaluate")
LLM_CALL = "llm"
"""The kind of rows of LLM calls; the kind of other rows is the purpose of their rollouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRow:
    """The cost of one call for rollouts, or of one call of an LLM.

    Attributes:
        attempt: the attempt that spent it; 0 is the check of the LLM before the run.
        step: the step that it was spent for; 0 is before the first.
        kind: one of `PURPOSES`, or `LLM_CALL`.
        generated_tokens: the policy's own.
        estimated: whether tokens and money are upper bounds, for lack of a usage report.
        reused: whether it repeats a row of an earlier attempt, whose reply is used again; its money is 0.
        error: why there is no usable reply, in one line; "" if there is one.
        committed: whether no later attempt discarded the step; computed when read.
    """

    attempt: int
    step: int
    kind: str
    rollouts: int = 0
    generated_tokens: int = 0
    model: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated: bool = False
    money: float = 0.0
    error: str = ""
    seconds: float = 0.0
    reused: bool = False
    committed: bool = True

    @classmethod
    def of(cls, row: Mapping[str, object]) -> "CostRow":
        """Parse a line of costs.jsonl; unknown fields are ignored."""
        return cls(**{name: row[name] for name in _NAMES if name in row})  # pyright: ignore[reportArgumentType]

    def line(self) -> Row:
        """Return the fields that are not the default, as a line of costs.jsonl."""
        values = asdict(self)
        return {name: values[name] for name in _NAMES if values[name] != _DEFAULTS.get(name)}


_NAMES = [field.name for field in fields(CostRow) if field.name != "committed"]
_DEFAULTS = {field.name: field.default for field in fields(CostRow)}


@dataclass(frozen=True, slots=True)
class Totals:
    """The cost of a run; the mappings have a key for each of `PURPOSES`.

    `money` is of all attempts, all else of committed rows. `llm_failed` are calls without a usable reply.
    """

    rollouts: Mapping[Purpose, int]
    generated_tokens: Mapping[Purpose, int]
    seconds: Mapping[Purpose, float]
    llm_calls: int
    llm_failed: int
    llm_seconds: float
    money: float


def mark_committed(rows: Iterable[CostRow], cuts: Sequence[tuple[int, int]]) -> list[CostRow]:
    """Return rows with `committed` computed; `cuts` are (attempt, last step that it kept) of resumed attempts."""

    def is_committed(row: CostRow) -> bool:
        later_cuts = [step for attempt, step in cuts if attempt > row.attempt]
        return row.attempt > 0 and all(row.step <= step for step in later_cuts)

    return [replace(row, committed=is_committed(row)) for row in rows]


def sum_costs(rows: Sequence[CostRow]) -> Totals:
    """Return the totals of rows whose `committed` is computed."""
    committed_rows = [row for row in rows if row.committed]
    calls = [row for row in committed_rows if row.kind == LLM_CALL]

    def by_purpose(name: str) -> dict[Purpose, Any]:
        return {
            purpose: sum(getattr(row, name) for row in committed_rows if row.kind == purpose)
            for purpose in PURPOSES
        }

    return Totals(
        rollouts=by_purpose("rollouts"),
        generated_tokens=by_purpose("generated_tokens"),
        seconds=by_purpose("seconds"),
        llm_calls=len(calls),
        llm_failed=sum(bool(row.error) for row in calls),
        llm_seconds=sum(row.seconds for row in calls),
        money=math.fsum(row.money for row in rows),
    )


def policy_rollouts(by_purpose: Mapping[str, int]) -> int:
    """Return the rollouts that count as a method's compute: all but evaluation."""
    return sum(count for purpose, count in by_purpose.items() if purpose != "evaluate")
