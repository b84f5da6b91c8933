"""The run folder: everything a run leaves behind, in files that survive a kill.

    run.yaml            the resolved configuration and the folder's schema_version
    run.lock            held while a process trains
    events.jsonl        what happened, one event a line
    metrics.jsonl       metrics of each step
    instructions.jsonl  lineage: one row per instruction born
    trajectories/       {purpose}-{step:06d}.jsonl, one rollout a line
    ledger.sqlite       rollouts, tokens, LLM calls and money (cotune.run.ledger)
    checkpoints/        what a resume starts from
    replies.jsonl       the replies of the optimizer LLM, which a resumed run uses again
    best/               the policy and instruction to ship
    summary.json        the run's result; written last
    quadrants.json      scores of initial and trained weights under both instructions (cotune evaluate)
    report.html         the same as a page

Whole files are replaced atomically. JSONL files are appended to, one write per line; a line counts
once its newline is written, so a kill in the middle of an append costs only that line.
"""

import json
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Self, cast

import yaml

from cotune.errors import ConfigError
from cotune.run.json_files import (
    Row,
    check_folder,
    complete_lines,
    drop_torn_line,
    json_line,
    plain,
    read_jsonl,
    write_atomic,
    write_json_atomic,
    write_new,
)
from cotune.run.locks import RUN_LOCK
from cotune.run.replies import ReplyCache
from cotune.types import Purpose, Trajectory
from cotune.utils.field_yaml import FieldDumper
from cotune.utils.text import command_on, hide_secrets

SCHEMA_VERSION = 1
_INSTRUCTION_KEYS = (
    "id", "parent", "text", "origin", "born", "critique", "score", "parent_score", "shown",
)  # fmt: skip
_ROW_KEYS = frozenset({"time", "attempt", "step"})
_PURPOSE = re.compile(r"[a-z][a-z_]*")
_TRAJECTORY_FILE = re.compile(r"([a-z][a-z_]*)-(\d{6,})\.jsonl")


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


class RunDir:
    """The folder of one run. One process writes to it; any number read.

    Attributes:
        path: the folder.
        attempt: counted from 1; every line records the attempt that wrote it.
    """

    def __init__(self, path: Path, attempt: int) -> None:
        """Use `RunDir.create` or `RunDir.open`."""
        self.path = path
        self.attempt = attempt
        self._repaired: set[Path] = set()
        self.config_path = path / "run.yaml"
        self.events_path = path / "events.jsonl"
        self.metrics_path = path / "metrics.jsonl"
        self.instructions_path = path / "instructions.jsonl"
        self.trajectories_path = path / "trajectories"
        self.ledger_path = path / "ledger.sqlite"
        self.checkpoints_path = path / "checkpoints"
        self.best_path = path / "best"
        self.summary_path = path / "summary.json"
        self.report_path = path / "report.html"

    @classmethod
    def create(cls, path: str | Path, config: Mapping[str, object]) -> Self:
        """Create a run folder with its run.yaml; of several processes at most one succeeds.

        Raises:
            ConfigError: the folder is not empty or cannot be written; nothing is written then.
            TypeError: `config` holds a value that is not plain data.
        """
        path = Path(path)
        cls.check_free(path)
        run, written = cls(path, attempt=1), _run_yaml(config)
        try:
            path.mkdir(parents=True, exist_ok=True)
            write_new(run.config_path, written)
        except FileExistsError:
            cls.check_free(path)
            raise
        except OSError as error:
            raise ConfigError(
                f"output: {path} cannot be written ({error.strerror or error}); choose another output"
            ) from error
        return run

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open an existing run folder at its latest attempt. Write nothing.

        Raises:
            ConfigError: not a run folder of this schema_version.
        """
        run = cls(Path(path), attempt=1)
        run._load_yaml()
        run.attempt = max((row["attempt"] for row in run.read_events()), default=1)
        return run

    @classmethod
    def check_free(cls, path: str | Path) -> None:
        """Raise ConfigError if `create` would: something is at `path`, or nothing can be written there.

        The lock of a run that is about to be created may be there, and what a kill while one was created
        left behind.
        """
        path = Path(path)
        check_folder(path, "output")
        if not path.exists() or all(
            one.name == RUN_LOCK or one.match(".run.yaml.*.tmp") for one in path.iterdir()
        ):
            return
        fix = f" or resume the run: {command_on(path, 'resume')}" if cls.is_run(path) else ""
        raise ConfigError(
            f"output: {path} exists and is not an empty folder; choose another output{fix}"
        )

    @staticmethod
    def is_run(path: str | Path) -> bool:
        """Return whether `path` looks like a run folder; False if it cannot be looked at."""
        return os.path.isfile(Path(path) / "run.yaml")  # pathlib raises for a long name

    def event(self, kind: str, step: int, /, **fields: object) -> None:
        """Append an event; "instruction_born" also adds its row to instructions.jsonl.

        Raises:
            TypeError: a field that has no JSON form; nothing is written.
            ValueError: a field has the name of a column (time, attempt, step, kind).
        """
        row = self._row(step, f"event {kind!r}", {"kind": kind}, fields)
        self._append(self.events_path, [row], f"event {kind!r}")
        if kind == "instruction_born":
            lineage = {key: row.get(key) for key in _INSTRUCTION_KEYS} | {"step": step}
            self._append(self.instructions_path, [lineage], "instruction")

    def metrics(self, step: int, values: Mapping[str, object]) -> None:
        """Append the metrics of one step. Raises as `event` does."""
        self._append(self.metrics_path, [self._row(step, "metrics", {}, values)], "metrics")

    def trajectories(self, step: int, purpose: Purpose, trajectories: Iterable[Trajectory]) -> None:
        """Append rollouts to trajectories/{purpose}-{step:06d}.jsonl."""
        path = self._trajectory_file(step, purpose)
        path.parent.mkdir(exist_ok=True)
        head = {"step": step, "attempt": self.attempt, "purpose": purpose}
        self._append(path, (head | trajectory_row(t) for t in trajectories), "trajectory")

    @cached_property
    def replies(self) -> ReplyCache:
        """The LLM's replies in all attempts."""
        return ReplyCache(self.path / "replies.jsonl")

    def write_summary(self, summary: Mapping[str, object]) -> None:
        """Replace summary.json; add schema_version and the attempt."""
        write_summary(self.path, dict(summary) | {"attempt": self.attempt})

    def replace_config(self, config: Mapping[str, object]) -> None:
        """Replace run.yaml; add schema_version. Raises TypeError for values that are not plain data."""
        write_atomic(self.config_path, _run_yaml(config))

    def read_config(self) -> Row:
        """Return the resolved configuration without schema_version."""
        config = self._load_yaml()
        del config["schema_version"]
        return config

    def read_events(self) -> list[Row]:
        return read_jsonl(self.events_path)

    def read_metrics(self) -> list[Row]:
        return read_jsonl(self.metrics_path)

    def read_instructions(self) -> list[Row]:
        return read_jsonl(self.instructions_path)

    def read_trajectories(self, step: int, purpose: Purpose) -> list[Row]:
        """Return the rollouts of a step and purpose as `trajectory_row` wrote them; [] if none."""
        return read_jsonl(self._trajectory_file(step, purpose))

    def read_summary(self) -> Row | None:
        """Return summary.json; None until this attempt has one (an earlier attempt's is out of date)."""
        summary = read_summary(self.path)
        if summary is not None and summary.get("attempt", self.attempt) < self.attempt:
            return None
        return summary

    def trajectory_files(self) -> list[tuple[int, Purpose]]:
        """Return (step, purpose) of every trajectory file, in order."""
        return sorted((step, purpose) for step, purpose, _ in self._trajectory_paths())

    def cut_back(self, step: int) -> None:
        """Begin a new attempt at the end of `step`; drop everything that later steps wrote.

        Removes later lines of events, metrics and instructions, and later trajectory files. Each file is
        replaced atomically, the events last: they hold the attempt, so that calling again completes an
        interrupted call.
        """
        attempt = self.attempt + 1
        for path in (self.metrics_path, self.instructions_path):
            self._cut(path, step, [])
        for later, _, path in self._trajectory_paths():
            if later > step:
                path.unlink()
        mark = {"time": round(time.time(), 3), "attempt": attempt, "step": step, "kind": "cut_back"}
        self._cut(self.events_path, step, [mark])
        self.attempt = attempt

    def _load_yaml(self) -> Row:
        path = self.config_path
        if not path.is_file():
            lacks = "it has no run.yaml" if self.path.is_dir() else "there is no such folder"
            found = "it is a file" if self.path.is_file() else lacks
            raise ConfigError(
                f"{self.path} is not a run folder: {found}; give the `output` folder of a run"
            )
        try:
            config = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            reason = hide_secrets(" ".join(str(error).split()))
            raise ConfigError(f"{path} is not YAML ({reason}); restore the file") from error
        found = config.get("schema_version") if isinstance(config, dict) else None
        if isinstance(config, dict) and "schema_version" not in config and "output" in config:
            raise ConfigError(
                f"{self.path} is not a run folder: its run.yaml is a run file that was not trained here; "
                "give the `output` folder of a run"
            )
        if found != SCHEMA_VERSION:
            raise ConfigError(_version_message(path, found))
        return cast("Row", config)

    def _row(
        self, step: int, where: str, own: Mapping[str, object], fields: Mapping[str, object]
    ) -> Row:
        taken = sorted((_ROW_KEYS | own.keys()) & fields.keys())
        if taken:
            raise ValueError(f"{where} has the field {taken[0]!r}, the name of a column; rename it")
        return {
            "time": round(time.time(), 3), "attempt": self.attempt, "step": step,
            **own, **plain(fields, where),
        }  # fmt: skip

    def _append(self, path: Path, rows: Iterable[Row], where: str) -> None:
        data = b"".join(json_line(row, where) for row in rows)
        if path not in self._repaired:
            drop_torn_line(path)
            self._repaired.add(path)
        with path.open("ab") as file:
            file.write(data)

    def _cut(self, path: Path, step: int, extra: Sequence[Row]) -> None:
        if not path.exists() and not extra:
            return
        lines = zip(complete_lines(path), read_jsonl(path), strict=True)
        kept = [line + b"\n" for line, row in lines if row["step"] <= step]
        write_atomic(path, b"".join((*kept, *(json_line(row, path.name) for row in extra))))

    def _trajectory_file(self, step: int, purpose: Purpose) -> Path:
        if not _PURPOSE.fullmatch(purpose):
            raise ValueError(f"purpose is {purpose!r}; expected lower-case letters and underscores")
        return self.trajectories_path / f"{purpose}-{step:06d}.jsonl"

    def _trajectory_paths(self) -> list[tuple[int, Purpose, Path]]:
        if not self.trajectories_path.is_dir():
            return []
        matches = (
            (_TRAJECTORY_FILE.fullmatch(p.name), p) for p in self.trajectories_path.iterdir()
        )
        return [(int(match[2]), match[1], path) for match, path in matches if match]


def _run_yaml(config: Mapping[str, object]) -> str:
    resolved = {"schema_version": SCHEMA_VERSION} | plain(config, "config")
    resolved["schema_version"] = SCHEMA_VERSION
    return yaml.dump(resolved, Dumper=FieldDumper, sort_keys=False, allow_unicode=True, width=100)


def _version_message(path: Path, found: object) -> str:
    return (
        f"{path}: schema_version is {found!r}, expected {SCHEMA_VERSION}; "
        f"open it with the version of cotune that wrote it"
    )


def write_summary(folder: Path, summary: Mapping[str, object]) -> None:
    """Replace the summary.json of a run or of a comparison's folder; add schema_version."""
    write_json_atomic(folder / "summary.json", {"schema_version": SCHEMA_VERSION} | dict(summary))


def read_summary(folder: Path) -> Row | None:
    """Return the summary.json of a run or of a comparison's folder; None if there is none.

    Raises:
        ConfigError: not JSON, or of another schema_version.
    """
    path = folder / "summary.json"
    if not path.is_file():
        return None
    try:
        summary = json.loads(path.read_bytes())
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON ({error}); remove it") from error
    found = summary.get("schema_version") if isinstance(summary, dict) else None
    if found != SCHEMA_VERSION:
        raise ConfigError(_version_message(path, found))
    return cast("Row", summary)
