"""Run the cells of a suite, each a row at one seed, and other chains of `cotune` commands, watched in their folders."""

import ctypes
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import yaml

from cotune.config.resuming import recorded_config
from cotune.config.run_file import RunConfig, TrainingConfig, dump_config, parse_config
from cotune.errors import ConfigError, CotuneError
from cotune.experiments.compare.methods import is_search, method_named
from cotune.experiments.compare.suite_file import MethodEntry, SuiteConfig, expand, merge
from cotune.experiments.evaluate.quadrants import Quadrants, read_quadrants, relative
from cotune.methods.registry import method_of
from cotune.run.costs import policy_rollouts
from cotune.run.json_files import Row, read_jsonl, write_atomic
from cotune.run.run_dir import RunDir
from cotune.utils.field_yaml import FieldDumper
from cotune.utils.text import flat, named, one_line

State = Literal["waiting", "running", "done", "failed"]
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_FAILURES = (CotuneError, OSError, KeyError, ValueError)
_APART = 1000  # between the seeds of a row's stages


@dataclass(frozen=True)
class Command:
    """A `cotune` command.

    Attributes:
        name: what it does: the name of a stage, or "quadrants".
        words: the arguments after `cotune`.
        config: the run file of the stage that it works on.
    """

    name: str
    words: Sequence[str]
    config: RunConfig


class Chain:
    """Runs in sequence, its stages: each starts when the one before has finished.

    Attributes:
        name: its name in messages.
        folder: the folder of its runs' folders.
        stages: the names of these, in order.
        source: what its run files come from, named in errors.
        finished: of each finished stage, the figures of its summary.json.
        command: what runs now, or is due; None if nothing is missing.
        process: what runs.
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
        """Return the run file of one stage.

        Args:
            before: figures of the stages before it; () checks the stage with the policy and the instruction that the
                first one starts from.

        Raises:
            ConfigError: one of its fields is invalid.
        """
        raise NotImplementedError

    @cached_property
    def planned(self) -> list[RunConfig]:
        """The run files of all stages, before any has run. Raises as `config` does."""
        return [self.config(index) for index in range(len(self.stages))]

    @property
    def state(self) -> State:
        if self.problem:
            return "failed"
        if self.process is not None:
            return "running"
        return "waiting" if self.command else "done"

    @property
    def standing(self) -> str:
        """Why there is no result yet, in a few words: "begun, train", "failed: …", "not begun"."""
        if self.problem:
            return f"failed: {self.problem}"
        current = self.command.name if self.command else self.stages[-1]
        waiting = self.process is None and not RunDir.is_run(self.folder / current)
        return "not begun" if waiting and not self.finished else f"begun, {current}"

    def look(self) -> None:
        """Take over what is finished in the folder, and find the command that is due.

        Raises:
            ConfigError: a folder holds a run of another configuration.
        """
        self.command = None
        for index in range(len(self.finished), len(self.stages)):
            name = self.stages[index]
            config = self.config(index, self.finished)
            folder = self.folder / name
            if not RunDir.is_run(folder):
                self.command = Command(name, ["train", f"{folder}.yaml", "--quiet"], config)
                return
            _check_settings(folder, config, self.source)
            figures = _read_figures(folder)
            if figures is None:
                # The suite, or the task's file, is the user's own, so its code is trusted.
                words = ["resume", str(folder), "--trust", "--quiet"]
                self.command = Command(name, words, config)
                return
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
        except _FAILURES as error:  # in this cell's folder: the others continue
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Keep what went wrong."""
        self.problem = one_line(str(error)) if isinstance(error, CotuneError) else named(error)

    def stop(self) -> None:
        """End the process, if there is one; its run can be resumed."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
            self.process = None

    def step(self) -> int:
        """Return the last step of the stage that runs; 0 before the first."""
        if self.command is None:
            return 0
        rows = read_jsonl(self.folder / self.command.name / "metrics.jsonl")
        return int(rows[-1]["step"]) if rows else 0

    def _start(self, command: Command) -> None:
        if command.words[0] == "train":
            shutil.rmtree(self.folder / command.name, ignore_errors=True)
            raw = dump_config(command.config)
            text = yaml.dump(raw, Dumper=FieldDumper, sort_keys=False, allow_unicode=True)
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomic(Path(command.words[1]), text)
        log = self.folder / f"{command.name}.log"
        self.process = start(command.words, log, command.config.threads, self.gpu)

    def _last_words(self, name: str, status: int) -> str:
        """Return how a process ended, with the last line that it printed."""
        log = self.folder / f"{name}.log"
        text = log.read_text("utf-8", errors="replace") if log.is_file() else ""
        lines = text.strip().splitlines() or ["nothing was printed; is the disk full?"]
        return f"stage {name}, status {status}: {lines[-1].strip()} (see {log})"


class Cell(Chain):
    """A row of a suite at one seed.

    Attributes:
        label: its name in tables.
        allowance: policy rollouts of its compute class.
    """

    def __init__(
        self, suite: SuiteConfig, base: Mapping[str, Any], entry: MethodEntry, seed: int
    ) -> None:
        """Take a row of a suite and `base`, the run file that it is based on, as plain data."""
        self.suite = suite
        self.base = base
        self.entry = entry
        self.seed = seed
        self.method = method_named(entry.method)
        self.label = entry.name or self.method.label
        self.allowance = float(entry.compute.removesuffix("x")) * suite.budget
        folder = suite.output / entry.key / f"seed-{seed}"
        name = f"{entry.key}, seed {seed}"
        super().__init__(name, folder, list(self.method.stages), "the suite file")

    # ---- its run files

    def takes_instruction(self, index: int) -> bool:
        """Return whether a stage starts from an instruction that an earlier one found."""
        return any(map(is_search, self.stages[:index]))

    def config(self, index: int, before: Sequence[Row] = ()) -> RunConfig:
        suite = self.suite
        name = self.stages[index]
        strategy = self.method.stages[name]
        # As a section, so that a stage can replace the text and leave its role.
        instruction = self.base.get("instruction")
        if instruction is None or isinstance(instruction, str):
            instruction = {"text": instruction}
        raw = merge({**self.base, "instruction": instruction}, suite.set)
        # With the same seed, a later stage would see the questions in the same order as the first.
        seed = self.seed + _APART * index
        raw = merge(raw, {"strategy": {"kind": strategy}, "seed": seed})
        raw = merge(raw, suite.by_strategy.get(strategy, {}))
        if is_search(name):
            raw = merge(raw, suite.prompt_stage if strategy == "inspo" else {})
            raw = merge(raw, {"training": {"frozen": True}})
        if not method_of(strategy).evolves:
            raw["llm"] = None
        raw = merge(raw, self.entry.set)
        raw = merge(raw, self._budget(raw, index, before))
        takes_policy = not all(map(is_search, self.stages[:index]))
        if before and takes_policy:
            best = self.folder / self.stages[index - 1] / "best"
            raw = merge(raw, {"policy": {"path": str(best)}})
        if before and self.takes_instruction(index):
            raw = merge(raw, {"instruction": {"text": before[-1]["best_instruction"]}})
        raw = merge(raw, self.entry.set)  # its own steps, for example
        for field in suite.seed_fields:
            raw = merge(raw, expand({field: self.seed}))
        raw |= {"name": f"{self.label}, seed {self.seed}", "output": str(self.folder / name)}
        config = parse_config(raw, f"methods: {self.entry.key}, stage {name}")
        if takes_policy and config.policy.lora is not None:
            raise ConfigError(
                f"methods: {self.entry.key} trains an adapter (policy.lora) before its stage {name}, which starts "
                "from whole weights; remove policy.lora for it, or the row"
            )
        return config

    def _budget(self, raw: Mapping[str, Any], index: int, before: Sequence[Row]) -> dict[str, Any]:
        """Return the part of the budget of the stage at `index`, and the steps that it is enough for."""
        name = self.stages[index]
        if index < len(self.stages) - 1:
            # Searches share `share` equally, trainings the rest.
            alike = sum(is_search(other) == is_search(name) for other in self.stages)
            share = self.entry.share if is_search(name) else 1 - self.entry.share
            budget = int(self.allowance * share / alike)
        else:
            # What the earlier stages left, since one may end early.
            paid = sum(policy_rollouts(figures["policy_rollouts"]) for figures in before)
            budget = int(self.allowance - paid)
        sizes = ("questions_per_step", "group_size")
        defaults = {size: TrainingConfig.model_fields[size].default for size in sizes}
        batch = math.prod((defaults | raw.get("training", {}))[size] for size in sizes)
        if budget < batch:
            raise ConfigError(
                f"methods: {self.entry.key} has {budget} policy rollouts for its stage "
                f"{name}, less than one batch of {batch}; raise budget"
            )
        training = {"rollout_budget": budget, "steps": math.ceil(budget / batch)}
        strategy = {"budget": budget} if self.method.stages[name] == "gepa" else {}
        return {"training": training, "strategy": strategy}

    def look(self) -> None:
        super().look()
        if self.command is None and self.suite.quadrant_samples and self.quadrants() is None:
            last = self.folder / self.stages[-1]
            words = ["evaluate", str(last), "--trust", "--quadrants"]
            words += ["--samples", str(self.suite.quadrant_samples)]
            if len(self.stages) > 1:
                words += ["--since", str(self.folder / self.stages[0])]
            self.command = Command("quadrants", words, self.planned[-1])

    def run_folders(self) -> list[str]:
        """Return the run folders of the stages that have begun, relative to the suite's folder."""
        folders = [self.folder / stage for stage in self.stages]
        output = self.suite.output
        return [str(folder.relative_to(output)) for folder in folders if RunDir.is_run(folder)]

    def quadrants(self) -> Quadrants | None:
        """Return the quadrants of the last stage; None if they do not match the suite file."""
        last = self.folder / self.stages[-1]
        quadrants = read_quadrants(last)
        since = relative(self.folder / self.stages[0], last) if len(self.stages) > 1 else ""
        expected = (self.suite.quadrant_samples, "test", since, self.finished[-1].get("em_n"))
        if quadrants is None or expected != (
            quadrants.samples, quadrants.split, quadrants.since, len(quadrants.questions),
        ):  # fmt: skip
            return None
        return quadrants


def cells_of(suite: SuiteConfig, base: Mapping[str, Any]) -> list[Cell]:
    """Return the cells of a suite, all rows of the first seed first, with what is finished in their folders.

    Raises:
        ConfigError: a run file is invalid, a folder holds a run with other settings, or cannot be read.
    """
    cells = [Cell(suite, base, entry, seed) for seed in suite.seeds for entry in suite.methods]
    # All run files are checked before a folder is looked at.
    for cell in cells:
        _ = cell.planned
    for cell in cells:
        try:
            cell.look()
        except _FAILURES as error:
            cell.fail(error)
            raise ConfigError(cell.problem) from error
    return cells


def run_cells(
    cells: Sequence[Chain], at_once: int, watch: Callable[[], object], every: float = 1.0
) -> None:
    """Run cells, `at_once` at a time and in order.

    A cell that fails does not stop the others. If CUDA_VISIBLE_DEVICES lists several GPUs, each cell sees
    one, that with the fewest cells.

    Args:
        watch: called whenever a cell may have changed.
        every: seconds between checks of the processes.
    """
    gpus = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu.strip()]
    try:
        while True:
            unfinished = [cell for cell in cells if cell.state in ("running", "waiting")]
            # Running cells first, so that they keep their places.
            unfinished.sort(key=lambda cell: cell.process is None)
            for cell in unfinished[:at_once]:
                if len(gpus) > 1 and cell.process is None:
                    busy = [other.gpu for other in cells if other.process is not None]
                    cell.gpu = min(gpus, key=busy.count)
                cell.proceed()
            watch()
            if not unfinished:
                return
            time.sleep(every)
    finally:
        for cell in cells:
            cell.stop()


def start(
    words: Sequence[str], log: Path, threads: int | None = None, gpu: str | None = None
) -> subprocess.Popen[bytes]:
    """Start `cotune` in a process that the kernel, on Linux, ends if this process is killed.

    Args:
        words: the arguments after `cotune`.
        log: the file for its output; replaced.
        threads: CPU threads; None for as many as there are cores.
        gpu: the only one that it sees; None for all.
    """
    variables = {"OMP_NUM_THREADS": str(threads or os.cpu_count() or 1)}
    if gpu is not None:
        variables["CUDA_VISIBLE_DEVICES"] = gpu
    preexec: Callable[[], None] | None = None
    if sys.platform.startswith("linux"):
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        preexec = lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # noqa: E731
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "cotune", *words],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **variables},
            preexec_fn=preexec,
        )


def _read_figures(folder: Path) -> Row | None:
    """Return the figures of a run's summary.json; None if it is not finished, or was resumed and has not ended.

    Raises:
        ConfigError: its summary.json is not a run's.
    """
    summary = RunDir.open(folder).read_summary()
    if summary is None:
        return None
    try:
        (figures,) = summary["arms"].values()
    except (AttributeError, KeyError, ValueError):
        raise ConfigError(
            f"{folder / 'summary.json'} is not that of a run; remove the folder, and run it again"
        ) from None
    return figures


def _check_settings(folder: Path, config: RunConfig, source: str) -> None:
    """Raise ConfigError if a setting of a run folder is not a run file's; `threads` may differ."""
    # Read with this version, so that new fields have their defaults.
    configs = (recorded_config(RunDir.open(folder)), config)
    recorded, expected = (
        {
            (name, repr(value))
            for name, value in flat(dump_config(each)).items()
            if name != "threads"
        }
        for each in configs
    )
    differing = sorted(name for name, _ in recorded ^ expected)
    if differing:
        raise ConfigError(
            f"{folder} holds a run with another value of {differing[0]}; restore {source}, "
            "give it another output, or remove the folder"
        )
