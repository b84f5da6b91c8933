"""A write-ahead log of an evolution phase: what was rolled out and replied before a kill is used again.

An evolution phase is the first act of its step, under the policy that the checkpoint of the step
before holds, or at the first step the run's own. So a run that goes on from there asks the same questions of the same
policy and LLM in the same order, and the answers that are on disk stand for new ones. From any
other checkpoint the phase is done anew, and its log is deleted.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, cast

from cotune.errors import LLMError
from cotune.protocols import LLM, Recorder
from cotune.run.json_files import Row, append_durably, exact_line
from cotune.types import (
    Assignment,
    Completion,
    Prompt,
    Purpose,
    Sampling,
    StopReason,
    Trajectory,
    Turn,
)

_FORMAT = 2  # part of every key: a log in another format is one of other questions
_FILE = re.compile(r"step-(\d{6,})\.jsonl")


class EvolutionLog:
    """The answers of one phase, one JSON line each, recalled in the order in which they came.

    A line counts once its newline is there. A torn line and what cannot be read end the log.

    Args:
        path: the file, made by the first answer; None for a phase that is not logged.

    Attributes:
        recalled: answers that were used again.
        dropped: whether recorded answers were cut off because other questions came.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._end = 0  # bytes of the file that are recalled or noted
        self.recalling = path is not None and path.exists()
        self.recalled, self.dropped = 0, False

    def recall(self, key: str) -> Row | None:
        """The next answer, if it is one to this question. Otherwise None, now and from now on."""
        found = self._read(self._end) if self.recalling else None
        if found is None or found[0]["key"] != key or self._fails_to_the_end():
            self.cut_off()
            return None
        row, self._end = found
        self.recalled += 1
        return row

    def note(self, row: Row) -> None:
        """Appends an answer; it is on disk when this returns."""
        if self._path is not None:
            self._path.parent.mkdir(exist_ok=True)
            line = exact_line(row)
            append_durably(self._path, line)
            self._end += len(line)

    def cut_off(self) -> None:
        """Drops the answers that are left: from now on all is asked anew."""
        if self.recalling and self._path is not None:
            self.dropped = self._read(self._end) is not None and not self._fails_to_the_end()
            with self._path.open("rb+") as file:
                file.truncate(self._end)
                os.fsync(file.fileno())
        self.recalling = False

    def delete(self) -> None:
        """For a phase that would end the same way, were its answers used again."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _read(self, begin: int) -> tuple[Row, int] | None:
        """The answer that begins at a byte, and where the next one does; None at the end."""
        assert self._path is not None
        with self._path.open("rb") as file:
            file.seek(begin)
            line = file.readline()
        try:
            row = json.loads(line) if line.endswith(b"\n") else None
        except ValueError:
            return None
        if not isinstance(row, dict) or "key" not in row:
            return None
        return cast("Row", row), begin + len(line)

    def _fails_to_the_end(self) -> bool:
        """Whether nothing but failures is left; what made a person stop the run may be mended."""
        at, failed = self._end, False
        while (found := self._read(at)) is not None:
            if "error" not in found[0]:
                return False
            at, failed = found[1], True
        return failed


class EvolutionLogs:
    """The logs of a run, in a folder: `step-{step:06d}.jsonl`.

    Only the phase right after a checkpoint, or the run's start, is logged: no other can be gone on
    with.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._checkpoint: int | None = None

    def open(self, step: int) -> EvolutionLog:
        """The log of the phase before a step's rollouts, with what is recorded of it."""
        if self._checkpoint is None or step != self._checkpoint + 1:
            return EvolutionLog()
        return EvolutionLog(self._folder / f"step-{step:06d}.jsonl")

    def go_on_from(self, step: int) -> None:
        """A checkpoint of a step is whole or is resumed from: all logs but the next step's go.

        Step 0 is the run's start, which the same run file always has again.
        """
        self._checkpoint = step
        if not self._folder.is_dir():
            return
        for path in self._folder.iterdir():
            name = _FILE.fullmatch(path.name)
            if name and int(name[1]) != step + 1:
                path.unlink()
        with suppress(OSError):  # something is left in it
            self._folder.rmdir()

    def finish(self) -> None:
        """The run is over: one that has no checkpoint has nothing to go on from."""
        if self._checkpoint == 0:
            self.go_on_from(-1)


class Entries(Protocol):
    """What an account of rollouts and LLM calls does for a phase that is gone on with."""

    def last_entry(self) -> int:
        """The number of the entry made last; 0 before the first."""
        ...

    def adopt(self, after: int, last: int) -> None:
        """Counts entries of an earlier attempt, of numbers above `after` up to `last`, in this one.

        Their answers are used again, so that they were not spent in vain.
        """
        ...


class LoggedPhase:
    """`rollout` and `llm` for one phase: from the log as far as it goes, then live.

    Args:
        log: of this phase.
        roll_out: rolls out live, counting what it did in `entries`.
        next_sampling: how the next rollout call of a purpose samples, greedy or not; called once a
            call, recalled or live, so that the calls after it draw as if all had been live.
        llm: asked live, counting its calls in `entries`.
        entries: where both are counted.
        record: takes a notice of what was used again.
        what: the phase is called in it.
    """

    def __init__(
        self,
        log: EvolutionLog,
        roll_out: Callable[[Sequence[Assignment], Purpose, Sampling], list[Trajectory]],
        next_sampling: Callable[[Purpose, bool], Sampling],
        llm: LLM,
        entries: Entries,
        record: Recorder,
        what: str = "evolution",
    ) -> None:
        self._log, self._entries, self._record, self._what = log, entries, record, what
        self._roll_out, self._next_sampling, self._llm = roll_out, next_sampling, llm

    def rollout(
        self, assignments: Sequence[Assignment], *, purpose: Purpose, greedy: bool = False
    ) -> list[Trajectory]:
        """See `protocols.Rollout`."""
        sampling = self._next_sampling(purpose, greedy)
        key = rollout_key(assignments, purpose, sampling)
        row = self._recall(key)
        if row is not None:
            pairs = zip(assignments, row["trajectories"], strict=True)
            return [trajectory_from(fields, assignment) for assignment, fields in pairs]
        before = self._entries.last_entry()
        trajectories = self._roll_out(assignments, purpose, sampling)
        self._note(key, before, trajectories=[trajectory_fields(t) for t in trajectories])
        return trajectories

    def complete(self, prompt: str) -> Completion:
        """See `protocols.LLM`; a recorded failure is raised again."""
        key = _key("llm", identity_of(self._llm), prompt)
        row = self._recall(key)
        if row is not None and "error" in row:
            raise LLMError(row["error"])
        if row is not None:
            return Completion(**row["completion"])
        before = self._entries.last_entry()
        try:
            completion = self._llm.complete(prompt)
        except LLMError as error:
            self._note(key, before, error=str(error))
            raise
        self._note(key, before, completion=asdict(completion))
        return completion

    def close(self) -> None:
        """The phase is over."""
        self._recall("")

    def _recall(self, key: str) -> Row | None:
        recalling = self._log.recalling
        row = self._log.recall(key)
        if row is not None:
            self._entries.adopt(*row["entries"])
        elif recalling and (self._log.recalled or self._log.dropped):
            rest = "; the rest fits other questions and is dropped" if self._log.dropped else ""
            recalled = f"{self._log.recalled} answers of the {self._what}"
            text = f"{recalled} that was cut off are used again"
            self._record("notice", text=text + rest)
        return row

    def _note(self, key: str, before: int, **answer: object) -> None:
        self._log.note({"key": key, "entries": [before, self._entries.last_entry()], **answer})


def identity_of(llm: LLM) -> str:
    """Which LLM answers: a run that begins anew may have another, whose replies are no others'."""
    said = getattr(llm, "identity", None)
    return said if isinstance(said, str) else type(llm).__name__


def rollout_key(assignments: Sequence[Assignment], purpose: Purpose, sampling: Sampling) -> str:
    """SHA-256 of all that decides what these assignments are answered with, but the policy."""
    rows = [
        [a.task.id, *_texts(a.sampled), *(_texts(a.trained) if a.trained != a.sampled else ())]
        for a in assignments
    ]
    return _key("rollout", purpose, asdict(sampling), rows)


def _texts(prompt: Prompt) -> tuple[str, str]:
    return prompt.instruction, prompt.hint


def _key(*parts: object) -> str:
    return hashlib.sha256(json.dumps([_FORMAT, *parts]).encode()).hexdigest()


def trajectory_fields(trajectory: Trajectory) -> Row:
    """A rollout without its assignment, for `trajectory_from`: exact, log-probabilities included."""
    same = trajectory.prompt_ids == trajectory.sampled_prompt_ids
    return {
        "sampled_prompt_ids": _ints(trajectory.sampled_prompt_ids),
        "prompt_ids": None if same else _ints(trajectory.prompt_ids),
        "completion_ids": _ints(trajectory.completion_ids),
        "mask": _ints(trajectory.mask),
        "logprobs": [float(x) for x in trajectory.logprobs],
        "turns": [[t.text, t.observation, t.action, t.error] for t in trajectory.turns],
        "stop": str(trajectory.stop),
        "answer": trajectory.answer,
        "reward": float(trajectory.reward),
        "parts": {name: float(value) for name, value in trajectory.parts.items()},
        "row": trajectory.row,
    }


def trajectory_from(fields: Row, assignment: Assignment) -> Trajectory:
    """The rollout of an assignment that `trajectory_fields` wrote."""
    sampled = tuple[int, ...](fields["sampled_prompt_ids"])
    return Trajectory(
        assignment,
        sampled_prompt_ids=sampled,
        prompt_ids=sampled if fields["prompt_ids"] is None else tuple(fields["prompt_ids"]),
        completion_ids=tuple(fields["completion_ids"]),
        mask=tuple(fields["mask"]),
        logprobs=tuple(fields["logprobs"]),
        turns=tuple(Turn(*turn) for turn in fields["turns"]),
        stop=StopReason(fields["stop"]),
        answer=fields["answer"],
        reward=fields["reward"],
        parts=fields["parts"],
        row=fields["row"],
    )


def _ints(values: Sequence[Any]) -> list[int]:
    return [int(x) for x in values]
