"""The record of a run: what happens, what it costs and what the LLM replied, written as it happens.

A run resumed from a checkpoint repeats the steps after it. A prompt that it sends again at the same step gets the
reply that is on disk; rollouts are made again, with the same draws.
"""

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from os import devnull
from pathlib import Path
from typing import Any, Protocol, Self

import yaml

from cotune.errors import BudgetError
from cotune.protocols import LLM, State
from cotune.run.costs import LLM_CALL, PURPOSES, CostRow, mark_committed
from cotune.run.json_files import (
    Row,
    append,
    complete_lines,
    drop_torn_line,
    json_line,
    plain,
    read_jsonl,
    write_atomic,
)
from cotune.run.run_dir import SCHEMA_VERSION, RunDir, write_summary
from cotune.run.scores import Score
from cotune.types import Completion, Purpose, Trajectory
from cotune.utils.field_yaml import FieldDumper
from cotune.utils.progress import report

# A budget of exactly n calls pays for n calls although sums of prices are rounded.
_SLACK = 1 + 1e-9


class Listener(Protocol):
    """Follows a record as it is written: the console, or a script's log."""

    def event(self, kind: str, step: int, fields: Mapping[str, object]) -> None: ...

    def metrics(self, step: int, values: Mapping[str, float]) -> None: ...


class Record(RunDir):
    """The record of one run: writes its folder, follows its costs, tells its listeners.

    `Record.create(folder, config)` makes the folder with its run.yaml, and `Record.open(folder)` opens it again.
    `Record()` is silent: it writes nothing, counts in memory, and has no listeners. So is
    `Record(folder, silent=True)`, which knows the folder: for ranks other than 0.

    In a run: `begin_attempt`, then for each step `step = …`, `event`, `rollouts`, `count`, `metrics`; the LLM's
    client calls `check_budget` before and `charge` after each call. Whole files are replaced atomically. JSON
    lines are appended, one write per call; rows of costs and replies are on disk when the call returns.

    Attributes:
        step: the step that costs are counted for; 0 is before the first.
        listeners: called after each event and each metrics that are written.
        rollouts_every: steps between files of training rollouts, besides the first and the last step; 0 keeps
            those of evaluations only.
        total_steps: the most steps the run can take.
        cost_rows: every row of costs so far, of all attempts.
    """

    def __init__(self, path: str | Path | None = None, *, silent: bool = False) -> None:
        # No folder can be inside the null device, so that reading finds nothing.
        super().__init__(Path(devnull if path is None else path))
        self.listeners: list[Listener] = []
        self.rollouts_every = 1
        self.total_steps = 0
        self.step = 0
        self.cost_rows: list[CostRow] = []
        self._silent = silent or path is None
        self._cuts: list[tuple[int, int]] = []
        self._repaired: set[Path] = set()
        self._charging = threading.Lock()

    @classmethod
    def create(cls, path: str | Path, config: Mapping[str, object]) -> Self:
        """Create a run folder with its run.yaml, `config`; the caller holds the folder's lock."""
        record = cls(path)
        content = _run_yaml(config)
        cls.check_free(record.path)
        record.path.mkdir(parents=True, exist_ok=True)
        write_atomic(record.config_path, content)
        return record

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open an existing run folder, as `RunDir.open`; write nothing."""
        record = super().open(path)
        record.cost_rows = RunDir.read_costs(record)
        record._cuts = record.read_cuts()
        return record

    # ---- an attempt

    def begin_attempt(self, resumed_from: int | None) -> int:
        """Begin to train: from scratch (None), or at the end of a step, whose later lines are dropped.

        From scratch, what earlier attempts counted is discarded.

        Returns:
            The attempt's number.
        """
        if resumed_from is not None:
            self.cut_back(resumed_from)
        elif any(row.committed for row in self.read_costs()):
            self.cut_back(-1)
        self.step = resumed_from or 0
        return self.attempt

    def cut_back(self, step: int) -> None:
        """Begin a new attempt at the end of `step`, -1 for none; drop everything that later steps wrote.

        Costs and replies stay. The events are replaced last: they hold the attempt, so that calling again completes an
        interrupted call.
        """
        attempt = self.attempt + 1
        if not self._silent:
            self._cut(self.metrics_path, step, [])
            for later, _, path in self._trajectory_paths():
                if later > step:
                    path.unlink()
            mark = {"time": _now(), "attempt": attempt, "step": step, "kind": "cut_back"}
            self._cut(self.events_path, step, [mark])
            for left_behind in self.path.rglob(".*.tmp"):  # by a kill while a file was replaced
                left_behind.unlink(missing_ok=True)
        self._cuts.append((attempt, step))
        self.attempt = attempt

    # ---- what happens

    def event(self, kind: str, step: int, /, **fields: object) -> None:
        """Append an event. Raises TypeError for a field without a JSON form, or with the name of a column."""
        if self._silent:
            return
        row = self._row(step, f"event {kind!r}", fields, kind=kind)
        self._append(self.events_path, [row])
        for listener in self.listeners:
            listener.event(kind, step, fields)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Append the metrics of one optimizer step. Raises as `event` does."""
        if self._silent:
            return
        self._append(self.metrics_path, [self._row(step, "metrics", values)])
        for listener in self.listeners:
            listener.metrics(step, values)

    def rollouts(self, step: int, purpose: Purpose, trajectories: Iterable[Trajectory]) -> None:
        """Append rollouts to trajectories/{purpose}-{step:06d}.jsonl; those of training if they are due."""
        every = self.rollouts_every
        # The first and the last step show what training changed.
        due = every > 0 and (step % every == 0 or step in (1, self.total_steps))
        if self._silent or (purpose == "train" and not due):
            return
        path = self._trajectory_file(step, purpose)
        path.parent.mkdir(exist_ok=True)
        head = {"step": step, "attempt": self.attempt, "purpose": purpose}
        self._append(path, (head | trajectory_row(t) for t in trajectories))

    def score(
        self,
        step: int,
        trajectories: Sequence[Trajectory],
        score: Score,
        *,
        split: str,
        when: str,
        trained: int,
        prompt: str = "best",
    ) -> None:
        """Record an evaluation and its rollouts, at least one.

        Args:
            when: names the evaluation: "before", "during", "after", …
            trained: steps of the policy that was scored.
            prompt: names the prompt that it was scored under: "best", "initial" or "best with hint".
        """
        self.event(
            "evaluated",
            step,
            trained=trained,
            split=split,
            when=when,
            prompt=prompt,
            instruction_id=trajectories[0].assignment.instruction_id,
            em=score.em,
            n=score.n,
            measure=score.measure,
            by_stratum={name: list(value) for name, value in score.by_stratum.items()},
        )
        self.rollouts(step, f"evaluate_{when}", trajectories)

    # ---- what it costs

    def count(
        self, purpose: Purpose, rollouts: int, generated_tokens: int, seconds: float = 0.0
    ) -> None:
        """Count finished rollouts: their number, the policy's own tokens, and the seconds they took."""
        # Rollouts of `cotune try` are counted by a silent record.
        if purpose not in (*PURPOSES, "try"):
            raise ValueError(f"purpose is {purpose!r}, expected one of {', '.join(PURPOSES)}")
        self._add(
            kind=purpose, rollouts=rollouts, generated_tokens=generated_tokens, seconds=seconds
        )

    def charge(self, model: str, **values: Any) -> None:
        """Count a call of an LLM; `values` are fields of `CostRow`."""
        self._add(kind=LLM_CALL, model=model, **values)

    def charge_check(self, rows: Iterable[CostRow]) -> None:
        """Count calls made before the run began: their money is spent, but no method pays for it."""
        for row in rows:
            self._write_cost(replace(row, attempt=0, step=0))

    def count_again(self, rows: Iterable[Row]) -> None:
        """Count lines of costs.jsonl that an earlier attempt paid for and this one uses again, at no further money."""
        for row in rows:
            self._add(**{**row, "money": 0.0, "reused": True})

    def check_budget(self, limit: float | None) -> None:
        """Raise BudgetError if calls have cost as much as a limit, over all attempts; None sets none."""
        spent = sum(row.money for row in self.cost_rows)
        if limit is not None and spent * _SLACK >= limit:
            raise BudgetError(
                f"the LLM's calls have cost {spent:.6g} of a budget of {limit:.6g}: raise llm.budget"
            )

    def read_costs(self) -> list[CostRow]:
        """Return all rows of costs in order, with `committed` computed."""
        return mark_committed(self.cost_rows, self._cuts)

    @cached_property
    def replies(self) -> "ReplyCache":
        """The LLM's replies in all attempts, which a resumed run uses again."""
        return ReplyCache(None if self._silent else self.path / "replies.jsonl")

    # ---- whole files

    def write_summary(self, summary: Mapping[str, object]) -> None:
        """Replace summary.json; add schema_version and the attempt."""
        write_summary(self.path, dict(summary) | {"attempt": self.attempt})

    def replace_config(self, config: Mapping[str, object]) -> None:
        """Replace run.yaml; add schema_version. Raises TypeError for values that are not plain data."""
        write_atomic(self.config_path, _run_yaml(config))

    # ---- lines

    def _add(self, **values: Any) -> None:
        """Count a row under this attempt and step."""
        self._write_cost(CostRow(**{**values, "attempt": self.attempt, "step": self.step}))

    def _write_cost(self, row: CostRow) -> None:
        with self._charging:
            if not self._silent:
                self._repair(self.costs_path)
                append(self.costs_path, json_line(row.line(), "costs"), durably=True)
            self.cost_rows.append(row)

    def _row(self, step: int, place: str, fields: Mapping[str, object], **columns: object) -> Row:
        row = dict(time=_now(), attempt=self.attempt, step=step, **columns)
        if clashes := sorted(row.keys() & fields.keys()):
            raise TypeError(f"{place} has the field {clashes[0]!r}, a column's name; rename it")
        return {**row, **plain(fields, place)}

    def _append(self, path: Path, rows: Iterable[Row]) -> None:
        # Rows of other files are plain by now.
        data = b"".join(json_line(row, "trajectory") for row in rows)
        self._repair(path)
        append(path, data)

    def _repair(self, path: Path) -> None:
        """Drop the unfinished last line that a kill may have left, before the first line is appended."""
        if path not in self._repaired:
            drop_torn_line(path)
            self._repaired.add(path)

    def _cut(self, path: Path, step: int, extra: Sequence[Row]) -> None:
        if not path.exists() and not extra:
            return
        lines = zip(complete_lines(path), read_jsonl(path), strict=True)
        lines_kept = [line + b"\n" for line, row in lines if row["step"] <= step]
        write_atomic(path, b"".join((*lines_kept, *(json_line(row, path.name) for row in extra))))


def trajectory_row(trajectory: Trajectory) -> Row:
    """Return one rollout as JSON, without its log-probabilities.

    `prompt_ids` (P,) is the prompt it was sampled under; `trained_prompt_ids` and `trained` are
    None if it is trained on the same one. `mask` (C,) goes with `completion_ids` (C,).
    """
    assignment = trajectory.assignment
    task = assignment.task
    same_ids = trajectory.prompt_ids == trajectory.sampled_prompt_ids
    same_prompt = assignment.trained == assignment.sampled
    return {
        "task": {name: getattr(task, name) for name in ("id", "question", "answers", "stratum")},
        "instruction": assignment.instruction_id,
        "group": assignment.group,
        "sampled": asdict(assignment.sampled),
        "trained": None if same_prompt else asdict(assignment.trained),
        **({"teacher": asdict(assignment.teacher)} if assignment.teacher else {}),
        "turns": [turn.row() for turn in trajectory.turns],
        "stop": str(trajectory.stop),
        "answer": trajectory.answer,
        "reward": trajectory.reward,
        **({"reward_parts": dict(trajectory.parts)} if trajectory.parts else {}),
        **({"feedback": trajectory.feedback} if trajectory.feedback else {}),
        "prompt_tokens": len(trajectory.sampled_prompt_ids),
        "completion_tokens": len(trajectory.completion_ids),
        "generated_tokens": trajectory.generated_tokens,
        "prompt_ids": trajectory.sampled_prompt_ids,
        "trained_prompt_ids": None if same_ids else trajectory.prompt_ids,
        "completion_ids": trajectory.completion_ids,
        "mask": trajectory.mask,
    }


def _run_yaml(config: Mapping[str, object]) -> str:
    resolved = {"schema_version": SCHEMA_VERSION} | plain(config, "config")
    resolved["schema_version"] = SCHEMA_VERSION
    return yaml.dump(resolved, Dumper=FieldDumper, sort_keys=False, allow_unicode=True, width=100)


def _now() -> float:
    return round(time.time(), 3)


class ReplyCache:
    """The replies of a run, one JSON line each. A path of None keeps nothing."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._rows: dict[str, Row] = {}
        if path is not None:
            drop_torn_line(path)
            self._rows = {row["key"]: row for row in read_jsonl(path)}

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

    Only replies are kept, so a call that failed is made again. Equal prompts of different steps get replies of their
    own. A recalled call is counted in this attempt too.
    """

    def __init__(self, llm: LLM, record: "Record", step: int) -> None:
        self._llm = llm
        self._record = record
        self._step = step
        self._times_asked = Counter[str]()
        self._live_calls = 0
        self.optional = bool(getattr(llm, "optional", False))
        self.origin = str(getattr(llm, "origin", ""))

    def complete(self, prompt: str) -> Completion:
        """See `protocols.LLM`."""
        self._times_asked[prompt] += 1
        parts = [self._step, identity_of(self._llm), prompt, self._times_asked[prompt]]
        key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        row = self._record.replies.find(key)
        if row is not None:
            self._record.count_again(row["costs"])
            if "llm" in row:
                restore_llm(self._llm, row["llm"])
            return Completion(**row["completion"])
        self._live_calls += 1
        report("llm", self._live_calls - 1, self._live_calls)  # how many there will be is unknown
        rows_before = len(self._record.cost_rows)
        completion = self._llm.complete(prompt)
        state = llm_state(self._llm)
        costs = [row.line() for row in self._record.cost_rows[rows_before:]]
        row = {"key": key, "step": self._step, "costs": costs, "completion": asdict(completion)}
        self._record.replies.add(row if state is None else {**row, "llm": state})
        return completion


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
