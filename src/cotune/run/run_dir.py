"""The run folder: everything a run leaves behind, in files that survive a kill.

    run.yaml            the resolved configuration and the folder's schema_version
    run.lock            held while a process trains
    events.jsonl        what happened, one event a line
    metrics.jsonl       metrics of each optimizer step
    trajectories/       {purpose}-{step:06d}.jsonl, one rollout a line
    costs.jsonl         rollouts, tokens, LLM calls and money (cotune.run.costs)
    checkpoints/        what a resume starts from
    replies.jsonl       the replies of the optimizer LLM, which a resumed run uses again
    best/               the policy and instruction to ship
    summary.json        the run's result; best/ is completed and the report written after it
    quadrants.json      scores of initial and trained weights under both instructions (cotune evaluate)
    report.html         the run as a page

Whole files are replaced atomically. JSONL files are appended to, one write per line; a line counts
once its newline is written, so a kill in the middle of an append costs only that line.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Self, cast

import yaml

from cotune.errors import ConfigError
from cotune.run.costs import CostRow, Totals, mark_committed, sum_costs
from cotune.run.json_files import (
    RUN_LOCK,
    SUITE_LOCK,
    Row,
    check_folder,
    read_jsonl,
    write_json_atomic,
)
from cotune.types import Purpose
from cotune.utils.text import command_on, hide_secrets

SCHEMA_VERSION = 1
_TRAJECTORY_FILE = re.compile(r"([a-z][a-z_]*)-(\d{6,})\.jsonl")


class RunDir:
    """The folder of one run, to read. One process writes to it (`Record`).

    Attributes:
        path: the folder, which need not exist.
        attempt: counted from 1; every line has the attempt that wrote it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.attempt = 1
        self.config_path = path / "run.yaml"
        self.events_path = path / "events.jsonl"
        self.metrics_path = path / "metrics.jsonl"
        self.trajectories_path = path / "trajectories"
        self.costs_path = path / "costs.jsonl"
        self.checkpoints_path = path / "checkpoints"
        self.best_path = path / "best"
        self.report_path = path / "report.html"

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open an existing run folder at its latest attempt, or raise ConfigError; write nothing."""
        run = cls(Path(path))
        run._load_yaml()
        run.attempt = max((row["attempt"] for row in run.read_events()), default=1)
        return run

    @classmethod
    def check_free(cls, path: str | Path) -> None:
        """Raise ConfigError if no run can be created at `path`: something is there, or it takes no files.

        The lock of a run that is about to be created may be there, what a kill while one was created left
        behind, and a folder `checkpoints` without a checkpoint, which a trainer makes when it is built.
        """
        path = Path(path)
        check_folder(path, "output")
        if not path.exists() or all(_may_be_there(entry) for entry in path.iterdir()):
            return
        fix = f" or resume the run: {command_on(path, 'resume')}" if cls.is_run(path) else ""
        raise ConfigError(
            f"output: {path} exists and is not an empty folder; choose another output{fix}"
        )

    @staticmethod
    def is_run(path: str | Path) -> bool:
        """Return whether `path` looks like a run folder; False if it cannot be looked at."""
        return os.path.isfile(Path(path) / "run.yaml")  # pathlib raises for a long name

    def read_config(self) -> Row:
        """Return the resolved configuration without schema_version."""
        config = self._load_yaml()
        del config["schema_version"]
        return config

    def how_to_resume(self) -> str:
        """Return the command that resumes the run, or for a script's run the call in its script."""
        if "library" in self.read_config():
            return "trainer.train(resume_from_checkpoint=True), in its script"
        return command_on(self.path, "resume")

    def read_events(self) -> list[Row]:
        return read_jsonl(self.events_path)

    def read_metrics(self) -> list[Row]:
        return read_jsonl(self.metrics_path)

    def read_instructions(self) -> list[Row]:
        """Return the events of the instructions that were born, in order."""
        return [row for row in self.read_events() if row["kind"] == "instruction_born"]

    def read_trajectories(self, step: int, purpose: Purpose) -> list[Row]:
        """Return the rollouts of a step and purpose as `trajectory_row` wrote them; [] if none."""
        return read_jsonl(self._trajectory_file(step, purpose))

    def read_evaluation(self, when: str) -> list[Row]:
        """Return the rollouts of the "before", "after" or "plain" evaluation on test questions; [] if there was none."""
        evaluated = [row for row in self.read_events() if row["kind"] == "evaluated"]
        steps = [row["step"] for row in evaluated if row.get("when") == when]
        return self.read_trajectories(steps[-1], f"evaluate_{when}") if steps else []

    def read_summary(self) -> Row | None:
        """Return summary.json; None until this attempt has one (an earlier attempt's is out of date)."""
        summary = read_summary(self.path)
        if summary is not None and summary.get("attempt", self.attempt) < self.attempt:
            return None
        return summary

    def read_costs(self) -> list[CostRow]:
        """Return the rows of costs.jsonl in order, with `committed` computed."""
        return mark_committed(map(CostRow.of, read_jsonl(self.costs_path)), self.read_cuts())

    def seconds_spent(self) -> float:
        """Return the wall time of all attempts, each from its first line to its last."""
        spans: dict[int, list[float]] = {}
        for row in (*self.read_events(), *self.read_metrics()):
            spans.setdefault(int(row["attempt"]), []).append(float(row["time"]))
        return sum(max(times) - min(times) for times in spans.values())

    def totals(self) -> Totals:
        """Return the cost of the run so far."""
        return sum_costs(self.read_costs())

    def trajectory_files(self) -> list[tuple[int, Purpose]]:
        """Return (step, purpose) of every trajectory file, in order."""
        return sorted((step, purpose) for step, purpose, _ in self._trajectory_paths())

    # ---- parts of reading

    def read_cuts(self) -> list[tuple[int, int]]:
        """Return (attempt, last step that it kept) of the attempts that began at the end of a step."""
        return [
            (row["attempt"], row["step"]) for row in self.read_events() if row["kind"] == "cut_back"
        ]

    def _load_yaml(self) -> Row:
        path = self.config_path
        if not path.is_file():
            fix = "give the `output` folder of a run"
            if (self.path / SUITE_LOCK).exists():
                fix = "it is a suite's, whose page cotune compare writes; give the folder of one of its runs"
            if self.is_run(self.path / "cotune"):
                fix = f"give {self.path / 'cotune'}, where a script's trainer keeps its run"
            raise ConfigError(f"{self.path} is not a run folder: there is no {path}; {fix}")
        try:
            config = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            reason = hide_secrets(" ".join(str(error).split()))
            raise ConfigError(f"{path} is not YAML ({reason}); restore the file") from error
        if isinstance(config, dict) and "schema_version" not in config and "output" in config:
            raise ConfigError(
                f"{self.path} is not a run folder: its run.yaml is a run file that was not trained here; "
                "give the `output` folder of a run"
            )
        return _checked_version(path, config)

    def _trajectory_file(self, step: int, purpose: Purpose) -> Path:
        return self.trajectories_path / f"{purpose}-{step:06d}.jsonl"

    def _trajectory_paths(self) -> list[tuple[int, Purpose, Path]]:
        if not self.trajectories_path.is_dir():
            return []
        matches = (
            (_TRAJECTORY_FILE.fullmatch(p.name), p) for p in self.trajectories_path.iterdir()
        )
        return [(int(match[2]), match[1], path) for match, path in matches if match]


def open_run(path: str | Path) -> RunDir:
    """Open a run folder, finished or not, to read by its `read_…` methods. Raises ConfigError if it is none."""
    return RunDir.open(path)


def _may_be_there(entry: Path) -> bool:
    if entry.name == "checkpoints":
        return entry.is_dir() and not any(entry.iterdir())
    return entry.name == RUN_LOCK or entry.match(".run.yaml.*.tmp")


def _checked_version(path: Path, content: object) -> Row:
    """Return a file's fields; raise ConfigError if they are of another schema_version."""
    version = content.get("schema_version") if isinstance(content, dict) else None
    if version != SCHEMA_VERSION:
        raise ConfigError(
            f"{path}: schema_version is {version!r}, expected {SCHEMA_VERSION}; "
            f"open it with the version of cotune that wrote it"
        )
    return cast("Row", content)


def write_summary(folder: Path, summary: Mapping[str, object]) -> None:
    """Replace the summary.json of a run or of a comparison's folder; add schema_version."""
    write_json_atomic(folder / "summary.json", {"schema_version": SCHEMA_VERSION} | dict(summary))


def read_summary(folder: Path) -> Row | None:
    """Return the summary.json of a run or of a comparison's folder; None if there is none."""
    path = folder / "summary.json"
    if not path.is_file():
        return None
    try:
        summary = json.loads(path.read_bytes())
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON ({error}); remove it") from error
    return _checked_version(path, summary)
