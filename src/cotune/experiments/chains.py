"""Chains of `cotune` commands, run in processes of their own and watched in their folders.

A cell of a suite is one, and so are the next tasks of `cotune measure`.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from os.path import realpath
from pathlib import Path
from typing import Any, Literal

import yaml
from rich.console import Console

from cotune.config.resuming import recorded_config
from cotune.config.run_file import RunConfig, dump_config
from cotune.errors import ConfigError, CotuneError
from cotune.experiments.evaluate.quadrants import hash_of_best
from cotune.policy.policy_files import is_adapter, missing_parts
from cotune.run.json_files import Row, check_folder, read_jsonl, write_atomic
from cotune.run.run_dir import RunDir
from cotune.utils.field_yaml import FieldDumper
from cotune.utils.text import flat, named, one_line

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_FAILURES = (CotuneError, OSError, KeyError, ValueError)
_MERGED = "merged-"
"""Begins the name of a folder in a run's: its best policy with the adapter merged in. The hash is that policy's."""


class ChainsFailed(CotuneError):
    """Some chains failed; the others are reported. Exit status 1."""


@dataclass(frozen=True)
class Command:
    """A `cotune` command."""

    name: str
    """The name of a stage, "merge" or "quadrants"."""
    words: Sequence[str]
    """The arguments after `cotune`."""
    config: RunConfig
    """The run file of the stage that it works on."""


class Chain:
    """Runs in sequence, its stages: each starts when the one before has finished.

    Attributes:
        folder: the folder of its runs' folders, one for each stage, in order.
        source: what its run files come from, named in errors.
        finished: of each finished stage, the figures of its summary.json.
        command: what runs now, or is due; None if nothing is missing.
        gpu: the only GPU that its processes see; None for all.
        problem: why it failed.
    """

    def __init__(self, name: str, folder: Path, stages: Sequence[str], source: str) -> None:
        self.name = name
        self.folder = folder
        self.stages = stages
        self.source = source
        self.finished: list[Row] = []
        self.command: Command | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.gpu: str | None = None
        self.problem = ""

    def config(self, index: int, before: Sequence[Row] = ()) -> RunConfig:
        """Return the run file of one stage; ConfigError if one of its fields is invalid.

        Args:
            before: figures of the stages before it; () checks the stage with the policy and the instruction that the
                first one starts from.
        """
        raise NotImplementedError

    @cached_property
    def planned(self) -> list[RunConfig]:
        """The run files of all stages, before any has run. Raises as `config` does."""
        return [self.config(index) for index in range(len(self.stages))]

    @property
    def state(self) -> Literal["waiting", "running", "done", "failed"]:
        if self.problem:
            return "failed"
        if self.process is not None:
            return "running"
        return "waiting" if self.command else "done"

    @property
    def standing(self) -> str:
        """Why there is no result yet: "begun, train", "failed: …", "not begun"."""
        if self.problem:
            return f"failed: {self.problem}"
        current = self.command.name if self.command else self.stages[-1]
        waiting = self.process is None and not RunDir.is_run(self.folder / current)
        return "not begun" if waiting and not self.finished else f"begun, {current}"

    def look(self) -> None:
        """Take over what is finished in the folder, and find the command that is due, or raise ConfigError."""
        self.command = None
        for index in range(len(self.finished), len(self.stages)):
            name = self.stages[index]
            config = self.config(index, self.finished)
            folder = self.folder / name
            if not RunDir.is_run(folder):
                policy = Path(config.policy.path)
                # An export that a kill has cut off has left the folder that it stages files in.
                incomplete = bool(missing_parts(policy)) or (policy / ".new").exists()
                if policy.name.startswith(_MERGED) and incomplete:
                    words = ["export", str(policy.parent), "--trust", "--merge"]
                    self.command = Command("merge", [*words, "--output", str(policy)], config)
                else:
                    self.command = Command(name, ["train", f"{folder}.yaml", "--quiet"], config)
                return
            _check_settings(folder, config, self.source)
            summary = RunDir.open(folder).read_summary()
            if summary is None:
                # The suite, or the task's file, is the user's own, so its code is trusted.
                self.command = Command(name, ["resume", str(folder), "--trust", "--quiet"], config)
                return
            (figures,) = summary["arms"].values()
            self.finished.append(figures)

    def proceed(self) -> None:
        """Start the command that is due; if one runs and has ended, find the next, and start it."""
        try:
            if self.process is not None and self.command is not None:
                status = self.process.poll()
                if status is None:
                    return
                ended = self.command.name
                self.process = None
                if not status:
                    self.look()
                if status or (self.command is not None and self.command.name == ended):
                    raise ConfigError(self._last_words(ended, status))
            if self.command is not None:
                self._start(self.command)
        except _FAILURES as error:  # in this chain's folder: the others continue
            self.fail(error)

    def fail(self, error: Exception) -> None:
        self.problem = one_line(str(error)) if isinstance(error, CotuneError) else named(error)

    def stop(self) -> None:
        """End the process, if there is one; its run can be resumed."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
            self.process = None

    def _start(self, command: Command) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if command.name == "merge":
            shutil.rmtree(command.words[-1], ignore_errors=True)
        if command.words[0] == "train":
            shutil.rmtree(self.folder / command.name, ignore_errors=True)
            raw = dump_config(command.config)
            text = yaml.dump(raw, Dumper=FieldDumper, sort_keys=False, allow_unicode=True)
            write_atomic(Path(command.words[1]), text)
        log = self.folder / f"{command.name}.log"
        self.process = start(command.words, log, command.config.threads, self.gpu)

    def _last_words(self, name: str, status: int) -> str:
        """Return how a process ended, with the last line that it printed."""
        log = self.folder / f"{name}.log"
        text = log.read_text("utf-8", errors="replace") if log.is_file() else ""
        lines = text.strip().splitlines() or ["nothing was printed; is the disk full?"]
        return f"stage {name}, status {status}: {lines[-1].strip()} (see {log})"


def policy_of(run: Path) -> Path:
    """Return the folder from which a run after this one starts: its best policy, an adapter merged into its base."""
    best = RunDir(run).best_path
    return run / f"{_MERGED}{hash_of_best(run)[:8]}" if is_adapter(best) else best


def run_of_policy(path: Path) -> Path | None:
    """Return the run whose best policy, or its `policy_of`, a folder is; None for any other folder."""
    is_best = path.name == "best" or path.name.startswith(_MERGED)
    return path.parent if is_best and RunDir.is_run(path.parent) else None


def look_at(chains: Sequence[Chain]) -> None:
    """Check the run files of chains, then take over what is finished in their folders.

    Raises ConfigError if a run file is invalid, or a folder holds a run with other settings or cannot be read.
    """
    for chain in chains:
        _ = chain.planned
    for chain in chains:
        try:
            chain.look()
        except _FAILURES as error:
            chain.fail(error)
            raise ConfigError(chain.problem) from error


def run_chains(
    chains: Sequence[Chain], at_once: int, watch: Callable[[], object], every: float = 1.0
) -> None:
    """Run chains, `at_once` at a time and in order.

    A chain that fails does not stop the others. If CUDA_VISIBLE_DEVICES lists several GPUs, each chain sees
    one, that with the fewest chains.

    Args:
        watch: called every `every` seconds, after the processes are looked at.
    """
    gpus = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu.strip()]
    try:
        while True:
            unfinished = [chain for chain in chains if chain.state in ("running", "waiting")]
            # Running ones first, so that they keep their places.
            unfinished.sort(key=lambda chain: chain.process is None)
            for chain in unfinished[:at_once]:
                if len(gpus) > 1 and chain.process is None:
                    busy = [other.gpu for other in chains if other.process is not None]
                    chain.gpu = min(gpus, key=busy.count)
                chain.proceed()
            watch()
            if not unfinished:
                return
            time.sleep(every)
    finally:
        for chain in chains:
            chain.stop()


def start(
    words: Sequence[str], log: Path, threads: int | None = None, gpu: str | None = None
) -> subprocess.Popen[bytes]:
    """Start `cotune WORDS`, its output in `log`, in a process that the kernel, on Linux, ends if this one is killed.

    Args:
        threads: None for as many as there are cores.
        gpu: the only one that it sees; None for all.
    """
    variables = {"OMP_NUM_THREADS": str(threads or os.cpu_count() or 1)}
    if gpu is not None:
        variables["CUDA_VISIBLE_DEVICES"] = gpu
    end_with_parent = None
    if sys.platform.startswith("linux"):
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        end_with_parent = partial(prctl, _PR_SET_PDEATHSIG, signal.SIGTERM)
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "cotune", *words],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **variables},
            preexec_fn=end_with_parent,
        )


def print_progress(chains: Sequence[Chain], printed: set[str], console: Console) -> bool:
    """Print what is not `printed` yet of each chain: a start, ten steps more, an end.

    Return whether one advanced: it ended, or began another stage than its first.
    """
    finished = sum(chain.state == "done" for chain in chains)
    advanced = False
    for chain in chains:
        step = 0
        details = ""
        if chain.problem:
            text = f"failed: {chain.problem}"
        elif chain.command is None:
            text = "done"
            details = f" ({finished} of {len(chains)})"
        elif chain.process is not None:
            rows = read_jsonl(chain.folder / chain.command.name / "metrics.jsonl")
            step = int(rows[-1]["step"]) // 10 * 10 if rows else 0
            steps = chain.command.config.training.steps
            text = f"{chain.command.name} " + (f"at step {step} of {steps}" if step else "begins")
        else:
            continue
        line = one_line(f"{chain.name}: {text}")
        if line not in printed:
            printed.add(line)
            console.print(f"{line}{details}", markup=False, highlight=False)
            later_stage = not step and bool(chain.finished)
            advanced = advanced or chain.process is None or later_stage
    return advanced


def check_own_folder(folder: Path, field: str, *marks: str) -> None:
    """Raise ConfigError, which names the field, unless a folder is new, empty, or holds a file of the command's."""
    check_folder(folder, field)
    is_used = folder.exists() and any(folder.iterdir())
    is_marked = any((folder / mark).exists() for mark in marks)
    if (is_used and not is_marked) or RunDir.is_run(folder):
        raise ConfigError(f"{field}: {folder} holds something else; choose another folder")


def _settings(config: RunConfig) -> dict[str, Any]:
    """Return a run file's fields by dotted path; its folders however they are spelt."""
    folders = {"output": realpath(config.output), "policy.path": realpath(config.policy.path)}
    return flat(dump_config(config)) | folders


def _check_settings(folder: Path, config: RunConfig, source: str) -> None:
    """Raise ConfigError if a setting of a run folder is not a run file's; `threads` may differ."""
    # Read with this version, so that new fields have their defaults.
    recorded = _settings(recorded_config(RunDir.open(folder)))
    expected = _settings(config)
    # Backwards, so that training.steps, in which a person thinks, comes before training.rollout_budget.
    for name in sorted(recorded.keys() | expected.keys(), reverse=True):
        if name != "threads" and recorded.get(name) != expected.get(name):
            raise ConfigError(
                f"{folder} holds a run with another value of {name}; restore {source}, "
                f"give it another output, or remove {folder} to train it anew"
            )
