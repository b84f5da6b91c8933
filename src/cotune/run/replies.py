"""The optimizer LLM's replies, kept so that a resumed run does not pay for them twice.

A run resumed from a checkpoint repeats the steps after it. A prompt that it sends again at the same step gets the
reply that is on disk; rollouts are made again, with the same draws.
"""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, cast

from cotune.protocols import LLM, State
from cotune.run.json_files import (
    Row,
    append,
    complete_lines,
    drop_torn_line,
    json_line,
    write_atomic,
)
from cotune.types import Completion, Metrics
from cotune.utils.progress import report

if TYPE_CHECKING:
    from cotune.run.record import Record


class ReplyCache:
    """The replies of a run, one JSON line each; a line that cannot be read is ignored.

    Args:
        path: the file, created by the first reply; None keeps nothing.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._rows: dict[str, Row] = {}
        if path is None:
            return
        drop_torn_line(path)
        for line in complete_lines(path):
            with suppress(ValueError):
                row = json.loads(line)
                if isinstance(row, dict) and {"key", "step", "costs", "completion"} <= row.keys():
                    self._rows[row["key"]] = cast("Row", row)

    def find(self, key: str) -> Row | None:
        """Return the row of a call; None if it was never answered."""
        return self._rows.get(key)

    def add(self, row: Row) -> None:
        """Append the row of a call; it is on disk when this returns."""
        if self._path is not None:
            self._rows[row["key"]] = row
            append(self._path, json_line(row, "reply"), durably=True)

    def forget(self, step: int) -> None:
        """Remove a step's replies, for a phase that would fail again on them."""
        if self._path is not None and self._rows:
            self._rows = {key: row for key, row in self._rows.items() if row["step"] != step}
            lines = [json_line(row, "reply") for row in self._rows.values()]
            write_atomic(self._path, b"".join(lines))


class CachedLLM:
    """The LLM of one step's evolution: calls that an earlier attempt made are answered from the cache.

    Only replies are kept, so a call that failed is made again.

    Args:
        llm: makes the other calls, counting them in `record`.
        record: keeps the replies, and counts a recalled call in this attempt too.
        step: the step; equal prompts of different steps get replies of their own.
    """

    def __init__(self, llm: LLM, record: "Record", step: int) -> None:
        self._llm = llm
        self._record = record
        self._step = step
        self._times_asked = Counter[str]()
        self._recalled = self._live_calls = 0
        self._waited = 0.0
        self.optional = bool(getattr(llm, "optional", False))
        self.origin = str(getattr(llm, "origin", ""))

    def complete(self, prompt: str) -> Completion:
        """See `protocols.LLM`."""
        self._times_asked[prompt] += 1
        parts = [self._step, identity_of(self._llm), prompt, self._times_asked[prompt]]
        key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        row = self._record.replies.find(key)
        if row is not None:
            self._recalled += 1
            self._record.count_again(row["costs"])
            if "llm" in row:
                restore_llm(self._llm, row["llm"])
            return Completion(**row["completion"])
        self._live_calls += 1
        report("llm", self._live_calls - 1, self._live_calls)  # how many there will be is unknown
        begun = time.monotonic()
        rows_before = len(self._record.cost_rows)
        try:
            completion = self._llm.complete(prompt)
        finally:
            self._waited += time.monotonic() - begun
        state = llm_state(self._llm)
        costs = [row.line() for row in self._record.cost_rows[rows_before:]]
        row = {"key": key, "step": self._step, "costs": costs, "completion": asdict(completion)}
        self._record.replies.add(row if state is None else {**row, "llm": state})
        return completion

    def finish(self) -> Metrics:
        """End the step's evolution; return the seconds in which it waited for replies, if it asked."""
        if self._recalled:
            text = f"{self._recalled} replies of the evolution that was cut off are used again"
            self._record.event("notice", self._step, text=text)
        if not (self._recalled or self._live_calls):
            return {}
        return {"llm/waited_seconds": self._waited}


def llm_state(llm: LLM) -> State | None:
    """Return the state of an LLM that has one; None for the others."""
    state_dict: Callable[[], State] | None = getattr(llm, "state_dict", None)
    return None if state_dict is None else state_dict()


def restore_llm(llm: LLM, state: State) -> None:
    """Restore a state; nothing for an LLM without one, which has replaced the saved one."""
    if hasattr(llm, "load_state_dict"):
        getattr(llm, "load_state_dict")(state)  # noqa: B009  not in the protocol


def identity_of(llm: LLM) -> str:
    """Return which LLM answers; recorded replies of another LLM are not used."""
    identity = getattr(llm, "identity", None)
    return identity if isinstance(identity, str) else type(llm).__name__
