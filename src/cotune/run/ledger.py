"""The ledger: a run's rollouts, generated tokens, LLM calls and money in one SQLite file.

Every row has the attempt (1, 2, …; each resume is a new one) and the step at which it was spent. A
resume from step s discards the work of earlier attempts after s, so their later rows are no longer
*committed*, except those whose results it uses again (`Ledger.adopt`). A method's compute is the sum of
committed rows; money is the sum of all rows, since a resume does not refund any.
"""

import math
import sqlite3
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from os import PathLike
from types import TracebackType
from typing import Any

from cotune.errors import BudgetError, ConfigError
from cotune.types import Purpose

PURPOSES: tuple[Purpose, ...] = ("train", "verify", "evolve", "evaluate")
LLM_CALL = "llm"
"""The kind of rows of LLM calls; the kind of other rows is the purpose of their rollouts."""

SCHEMA_VERSION = 1
_SCHEMA = (
    """CREATE TABLE attempts (
        attempt INTEGER PRIMARY KEY,
        resumed_from INTEGER NOT NULL)""",  # -1: from scratch, nothing earlier is kept
    """CREATE TABLE entries (
        id INTEGER PRIMARY KEY,
        attempt INTEGER NOT NULL REFERENCES attempts,
        step INTEGER NOT NULL,
        kind TEXT NOT NULL,
        rollouts INTEGER NOT NULL DEFAULT 0,
        generated_tokens INTEGER NOT NULL DEFAULT 0,
        model TEXT NOT NULL DEFAULT '',
        state TEXT NOT NULL DEFAULT 'done' CHECK (state IN ('done', 'open', 'failed')),
        prompt_tokens INTEGER NOT NULL DEFAULT 0,
        completion_tokens INTEGER NOT NULL DEFAULT 0,
        estimated INTEGER NOT NULL DEFAULT 0,
        money REAL NOT NULL DEFAULT 0,
        error TEXT NOT NULL DEFAULT '',
        seconds REAL NOT NULL DEFAULT 0)""",
    """CREATE VIEW costs AS SELECT *, NOT EXISTS (
        SELECT 1 FROM attempts AS later
        WHERE later.attempt > entries.attempt AND entries.step > later.resumed_from
        ) AS committed FROM entries""",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
# A budget of exactly n calls pays for n calls although sums of prices are rounded.
_SLACK = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class Totals:
    """The cost of a run; the mappings have a key for each of `PURPOSES`.

    All but `money` are of committed rows.

    Attributes:
        generated_tokens: the policy's own.
        llm_calls: a reply that is asked for again counts as another call.
        llm_failed: calls that returned no usable reply.
        money: spent in all attempts.
    """

    rollouts: Mapping[Purpose, int]
    generated_tokens: Mapping[Purpose, int]
    seconds: Mapping[Purpose, float]
    llm_calls: int
    llm_failed: int
    llm_prompt_tokens: int
    llm_completion_tokens: int
    llm_seconds: float
    money: float


@dataclass(frozen=True, slots=True)
class CostRow:
    """One row of the ledger; `kind` is one of `PURPOSES` or `LLM_CALL`.

    `state` is "done" or "failed"; rollouts are always "done". Ledgers of earlier versions also have
    "open": in flight, or cut off by a kill. `error` is one line.
    """

    attempt: int
    step: int
    committed: bool
    kind: str
    rollouts: int
    generated_tokens: int
    model: str
    state: str
    prompt_tokens: int
    completion_tokens: int
    estimated: bool
    money: float
    error: str
    seconds: float


class Ledger:
    """The ledger of one run; every write is on disk when its call returns.

    Thread-safe. Write-ahead logging lets a report read while a run writes.

    Args:
        path: the SQLite file, created if missing; ":memory:" keeps it in memory.

    Attributes:
        attempt, step: those that rows are written under; 0 before the first.

    Raises:
        ConfigError: the file is not a ledger of this schema version.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self._path = path
        self._lock = threading.RLock()
        self.attempt = 0
        self.step = 0
        self._booked: list[int] = []  # by the current `booking`
        try:
            # Autocommit; several statements that belong together get an explicit transaction.
            self._db = sqlite3.connect(
                path, timeout=30.0, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise ConfigError(f"{path}: cannot be opened as a ledger: {error}") from error
        try:
            self._open()
        except sqlite3.Error as error:
            self._db.close()
            raise ConfigError(f"{path}: expected a cotune ledger (SQLite), got: {error}") from error
        except ConfigError:
            self._db.close()
            raise

    def _open(self) -> None:
        with self._transaction():
            version = int(self._one("PRAGMA user_version")[0])
            tables = int(self._one("SELECT COUNT(*) FROM sqlite_master")[0])
            if version == 0 and tables == 0:
                for statement in _SCHEMA:
                    self._db.execute(statement)
            elif version != SCHEMA_VERSION:
                raise ConfigError(
                    f"{self._path}: ledger has schema version {version}, this cotune reads "
                    f"{SCHEMA_VERSION}: read it with the cotune that wrote it, or start a new run"
                )
        # On file systems without support SQLite keeps its rollback journal: as safe, but readers
        # wait. `synchronous` stays at SQLite's default, FULL.
        self._db.execute("PRAGMA journal_mode = WAL")

    def begin_attempt(self, resumed_from: int | None, saved_in: int | None = None) -> int:
        """Start an attempt and return its number, counted from 1.

        Args:
            resumed_from: the step of the checkpoint; None starts from scratch, which leaves nothing
                of earlier attempts committed.
            saved_in: the attempt that saved the checkpoint; None if that is unknown.

        Raises:
            ConfigError: a resume, but the ledger has no earlier attempt, or a later one than `saved_in`
                discarded the step.
        """
        if resumed_from is not None and resumed_from < 0:
            raise ValueError(f"resumed_from is {resumed_from}, expected None or a step >= 0")
        with self._transaction():
            last = int(self._one("SELECT COALESCE(MAX(attempt), 0) FROM attempts")[0])
            if last == 0 and resumed_from is not None:
                raise ConfigError(
                    f"{self._path}: resuming from step {resumed_from}, but the ledger is empty: "
                    "put the run's ledger back, or start a new run"
                )
            kept = -1 if resumed_from is None else resumed_from
            discarded = self._db.execute(
                "SELECT attempt, resumed_from FROM attempts WHERE attempt > ? AND resumed_from < ?",
                (last if saved_in is None else saved_in, kept),
            ).fetchone()
            if discarded is not None:
                raise ConfigError(
                    f"the checkpoint of step {kept} was saved by attempt {saved_in}, whose steps after "
                    f"{discarded[1]} were discarded by attempt {discarded[0]}: resume from a checkpoint "
                    "that was kept"
                )
            self._db.execute("INSERT INTO attempts VALUES (?, ?)", (last + 1, kept))
        self.attempt, self.step = last + 1, resumed_from or 0
        return self.attempt

    def set_step(self, step: int) -> None:
        """Set the step that later rows are written under; 0 is before the first."""
        if step < 0:
            raise ValueError(f"step is {step}, expected >= 0")
        self.step = step

    @contextmanager
    def booking(self) -> Generator[list[int]]:
        """Yield a list that gets the number of every row that is written within the block."""
        self._booked = []
        yield self._booked
        self._booked = []

    def add_rollouts(
        self, purpose: Purpose, rollouts: int, generated_tokens: int, seconds: float = 0.0
    ) -> None:
        """Add finished rollouts: their number, the policy's own tokens, and the seconds they took."""
        if purpose not in PURPOSES:
            raise ValueError(f"purpose is {purpose!r}, expected one of {', '.join(PURPOSES)}")
        _check(rollouts=rollouts, generated_tokens=generated_tokens, seconds=seconds)
        with self._lock:
            self._insert(
                kind=purpose, rollouts=rollouts, generated_tokens=generated_tokens, seconds=seconds
            )

    def check_budget(self, limit: float | None) -> None:
        """Raise BudgetError if calls have cost as much as a limit, over all attempts; None sets none."""
        with self._lock:
            spent = self._money()
        if limit is not None and spent * _SLACK >= limit:
            raise BudgetError(
                f"the LLM's calls have cost {spent:.6g} of a budget of {limit:.6g}: raise llm.budget"
            )

    def add_call(
        self,
        model: str,
        *,
        prompt_tokens: int = 0,
        completion_tokens: int = 0,
        cost: float = 0.0,
        error: str = "",
        estimated: bool = False,
        seconds: float = 0.0,
    ) -> None:
        """Add a call of an LLM.

        Args:
            error: why there is no usable reply, in one line; "" if there is one.
            estimated: whether tokens and cost are upper bounds.
        """
        _check(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            cost=cost,
            seconds=seconds,
        )
        with self._lock:
            self._insert(
                kind=LLM_CALL,
                model=model,
                state="failed" if error else "done",
                prompt_tokens=prompt_tokens,
                completion_tokens=completion_tokens,
                estimated=estimated,
                money=cost,
                error=error,
                seconds=seconds,
            )

    def _insert(self, **values: str | float) -> None:
        """Write a row under this attempt and step."""
        row = {"attempt": self._begun(), "step": self.step, **values}
        cursor = self._db.execute(
            f"INSERT INTO entries ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})",
            tuple(row.values()),
        )
        assert cursor.lastrowid is not None  # an INSERT sets it
        self._booked.append(cursor.lastrowid)

    def add_check(self, row: "CostRow") -> None:
        """Add a call that was made before the run began: its money is spent, but no method pays for it."""
        with self._lock:
            self._db.execute(
                "INSERT INTO entries (attempt, step, kind, model, state, prompt_tokens,"
                " completion_tokens, estimated, money, error, seconds)"
                " VALUES (0, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (row.kind, row.model, row.state, row.prompt_tokens, row.completion_tokens,
                 row.estimated, row.money, row.error, row.seconds),
            )  # fmt: skip

    def adopt(self, rows: Sequence[int]) -> None:
        """Move this step's rows with these numbers into this attempt.

        Their results are used again, so they are committed again, once.
        """
        with self._lock:
            self._db.executemany(
                "UPDATE entries SET attempt = ? WHERE id = ? AND step = ?",
                [(self._begun(), row, self.step) for row in rows],
            )

    def totals(self) -> Totals:
        """Return the cost of the run so far."""
        with self._lock:
            found = self._db.execute(
                "SELECT kind, SUM(rollouts), SUM(generated_tokens), SUM(seconds), COUNT(*),"
                " SUM(state = 'failed'), SUM(prompt_tokens), SUM(completion_tokens)"
                " FROM costs WHERE committed GROUP BY kind"
            ).fetchall()
            money = self._money()
        by_kind = {row[0]: row[1:] for row in found}
        nothing = (0, 0, 0.0, 0, 0, 0, 0)
        llm = by_kind.get(LLM_CALL, nothing)
        return Totals(
            rollouts={purpose: by_kind.get(purpose, nothing)[0] for purpose in PURPOSES},
            generated_tokens={purpose: by_kind.get(purpose, nothing)[1] for purpose in PURPOSES},
            seconds={purpose: by_kind.get(purpose, nothing)[2] for purpose in PURPOSES},
            llm_calls=llm[3],
            llm_failed=llm[4],
            llm_prompt_tokens=llm[5],
            llm_completion_tokens=llm[6],
            llm_seconds=llm[2],
            money=money,
        )

    def rows(self) -> list[CostRow]:
        """Return all rows in the order of their creation, for a report's cost table."""
        names = [column.name for column in fields(CostRow)]
        with self._lock:
            found = self._db.execute(f"SELECT {', '.join(names)} FROM costs ORDER BY id").fetchall()
        return [_cost_row(dict(zip(names, row, strict=True))) for row in found]

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @contextmanager
    def _transaction(self) -> Generator[None]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                if self._db.in_transaction:  # SQLite itself rolls back when the disk is full
                    self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def _one(self, query: str) -> tuple[int | float, ...]:
        return self._db.execute(query).fetchone()

    def _money(self) -> float:
        return float(self._one("SELECT COALESCE(SUM(money), 0.0) FROM entries")[0])

    def _begun(self) -> int:
        if not self.attempt:
            raise RuntimeError("nothing can be written to a ledger before begin_attempt")
        return self.attempt


def _cost_row(values: dict[str, Any]) -> CostRow:
    for flag in ("committed", "estimated"):  # SQLite has no booleans
        values[flag] = bool(values[flag])
    return CostRow(**values)


def _check(**amounts: float) -> None:
    for name, amount in amounts.items():
        if not (math.isfinite(amount) and amount >= 0):
            raise ValueError(f"{name} is {amount}, expected a finite number >= 0")


def policy_rollouts(by_purpose: Mapping[str, int]) -> int:
    """Return the rollouts that count as a method's compute: all but evaluation."""
    return sum(count for purpose, count in by_purpose.items() if purpose != "evaluate")
