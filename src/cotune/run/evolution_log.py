"""A write-ahead log of an evolution phase, so that a resume does not pay twice for it.

An evolution phase is the first act of its step, under the policy of the previous step's checkpoint (or
the initial policy at step 1). A run resumed from there asks the same questions of the same policy and
LLM in the same order, so the recorded answers replace new ones. From any other checkpoint the phase
starts over and its log is deleted.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol, cast

from cotune.errors import LLMError
from cotune.protocols import LLM, Recorder, State
from cotune.run.calls_ahead import Bookings, CallsAhead
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
from cotune.utils.progress import report

_FORMAT = 3  # part of every key, so a log in another format matches nothing
_FILE = re.compile(r"step-(\d{6,})\.jsonl")


class EvolutionLog:
    """The answers of one phase in order, one JSON line each.

    A line counts once its newline is written. A torn or unreadable line ends the log.

    Args:
        path: the file, created by the first answer; None for a phase that is not logged.

    Attributes:
        recalled: answers that were used again.
        dropped: whether recorded answers were dropped because the questions differed.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._end = 0  # bytes of the file that are recalled or noted
        self.recalling = path is not None and path.exists()
        self.recalled, self.dropped = 0, False

    def recall(self, key: str) -> Row | None:
        """Return the next answer if it belongs to this question; else None from now on."""
        found = self._read(self._end) if self.recalling else None
        if found is None or found[0]["key"] != key or self._fails_to_the_end():
            self.cut_off()
            return None
        row, self._end = found
        self.recalled += 1
        return row

    def note(self, row: Row) -> None:
        """Append an answer; it is on disk when this returns."""
        if self._path is not None:
            self._path.parent.mkdir(exist_ok=True)
            line = exact_line(row)
            append_durably(self._path, line)
            self._end += len(line)

    def cut_off(self) -> None:
        """Drop the remaining answers; all later questions are asked live."""
        if self.recalling and self._path is not None:
            self.dropped = self._read(self._end) is not None and not self._fails_to_the_end()
            with self._path.open("rb+") as file:
                file.truncate(self._end)
                os.fsync(file.fileno())
        self.recalling = False

    def delete(self) -> None:
        """Delete the log, for a phase that would fail again on the same answers."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _read(self, begin: int) -> tuple[Row, int] | None:
        """Return the answer that starts at a byte and the end of its line; None at the end of the log."""
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
        """Return whether only failures are left; their cause may have been fixed."""
        at, failed = self._end, False
        while (found := self._read(at)) is not None:
            if "error" not in found[0]:
                return False
            at, failed = found[1], True
        return failed


class EvolutionLogs:
    """The logs of a run in a folder: `step-{step:06d}.jsonl`.

    Only the phase right after a checkpoint or the start is logged: no other can be resumed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._checkpoint: int | None = None

    def open(self, step: int) -> EvolutionLog:
        """Return the log of the phase before a step's rollouts."""
        if self._checkpoint is None or step != self._checkpoint + 1:
            return EvolutionLog()
        return EvolutionLog(self._folder / f"step-{step:06d}.jsonl")

    def go_on_from(self, step: int) -> None:
        """Delete all logs but the next step's, after a checkpoint of `step` was saved or resumed from.

        Step 0 is the start of the run.
        """
        self._checkpoint = step
        if not self._folder.is_dir():
            return
        for path in self._folder.iterdir():
            name = _FILE.fullmatch(path.name)
            if name and int(name[1]) != step + 1:
                path.unlink()
        with suppress(OSError):  # it is not empty
            self._folder.rmdir()

    def finish(self) -> None:
        """End the run; without a checkpoint delete the remaining log."""
        if self._checkpoint == 0:
            self.go_on_from(-1)


class Entries(Bookings, Protocol):
    """The part of a ledger that a resumed phase needs."""

    def adopt(self, rows: Sequence[int]) -> None:
        """Count an earlier attempt's rows with these numbers in this attempt."""
        ...


class LoggedPhase:
    """The rollouts and LLM replies of one phase: replayed from the log, then live.

    Args:
        log: the log of this phase.
        roll_out: rolls out live, counting what it did in `entries`.
        next_sampling: returns how the next rollout call of a purpose samples; also called for
            recalled calls, so that later calls draw as if all had been live.
        llm: asked live, counting its calls in `entries`.
        entries: where both are counted.
        record: called with a notice about answers that were used again.
        what: the phase's name in that notice.
        calls: the LLM's calls that may have begun before the phase.
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
        calls: CallsAhead | None = None,
    ) -> None:
        self._log, self._entries, self._record, self._what = log, entries, record, what
        self._roll_out, self._next_sampling, self._llm = roll_out, next_sampling, llm
        self._calls = calls or CallsAhead(llm, entries)
        self._live_calls = 0
        self.optional = bool(getattr(llm, "optional", False))
        self.origin = str(getattr(llm, "origin", ""))
        self.advice = str(getattr(llm, "advice", ""))

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
        with self._entries.booking() as rows:
            trajectories = self._roll_out(assignments, purpose, sampling)
        self._note(key, rows, trajectories=[trajectory_fields(t) for t in trajectories])
        return trajectories

    def complete(self, prompt: str) -> Completion:
        """See `protocols.LLM`; a recorded failure is raised again."""
        key = _key("llm", identity_of(self._llm), prompt)
        row = self._recall(key) or self._asked(key, prompt)
        if "error" in row:
            raise LLMError(row["error"])
        if "llm" in row:
            restore_llm(self._llm, row["llm"])
        completion = Completion(**row["completion"])
        if completion.notice:
            self._record("notice", text=completion.notice)
        return completion

    def ahead(self, prompts: Sequence[str]) -> None:
        """Begin calls whose answers will be due in this phase; none whose answers may be recorded."""
        if not self._log.recalling:
            self._calls.begin(prompts)

    def _asked(self, key: str, prompt: str) -> Row:
        """Ask the LLM; return its answer as the log has it."""
        self._live_calls += 1
        report("llm", self._live_calls - 1, self._live_calls)  # how many there will be is unknown
        taken = self._calls.take(prompt)
        if isinstance(taken.completion, Completion):
            answer: Row = {"completion": asdict(taken.completion)}
        elif isinstance(taken.completion, LLMError):
            answer = {"error": str(taken.completion)}
        else:
            raise taken.completion
        if (state := llm_state(self._llm)) is not None:
            answer["llm"] = state
        self._note(key, taken.rows, **answer)
        return answer

    def close(self) -> None:
        """End the phase."""
        self._recall("")

    def _recall(self, key: str) -> Row | None:
        recalling = self._log.recalling
        row = self._log.recall(key)
        if row is not None:
            self._entries.adopt(row["entries"])
        elif recalling and (self._log.recalled or self._log.dropped):
            rest = "; the rest fits other questions and is dropped" if self._log.dropped else ""
            recalled = f"{self._log.recalled} answers of the {self._what}"
            text = f"{recalled} that was cut off are used again"
            self._record("notice", text=text + rest)
        return row

    def _note(self, key: str, rows: Sequence[int], **answer: object) -> None:
        self._log.note({"key": key, "entries": rows, **answer})


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
    said = getattr(llm, "identity", None)
    return said if isinstance(said, str) else type(llm).__name__


def rollout_key(assignments: Sequence[Assignment], purpose: Purpose, sampling: Sampling) -> str:
    """Return a SHA-256 of everything but the policy that determines the rollouts of assignments."""
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
    """Return a rollout without its assignment as exact JSON, for `trajectory_from`."""
    same = trajectory.prompt_ids == trajectory.sampled_prompt_ids
    return {
        "question": trajectory.task.question,
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
        "feedback": trajectory.feedback,
        "row": trajectory.row,
    }


def trajectory_from(fields: Row, assignment: Assignment) -> Trajectory:
    """Return the rollout of an assignment that `trajectory_fields` wrote."""
    asked = fields.get("question", assignment.task.question)  # an environment may have changed it
    assignment = replace(assignment, task=replace(assignment.task, question=asked))
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
        feedback=fields.get("feedback", ""),
        row=fields["row"],
    )


def _ints(values: Sequence[Any]) -> list[int]:
    return [int(x) for x in values]
