"""Run a suite: its cells, each a row at one seed; its progress, its result, its summary and its page."""

import json
import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from rich.console import Console

from cotune.config.build import describe_llm
from cotune.config.cost import plan_run
from cotune.config.overrides import merge
from cotune.config.run_file import RunConfig, TrainingConfig, parse_config
from cotune.errors import ConfigError, Stopped
from cotune.experiments.chains import (
    Chain,
    ChainsFailed,
    Command,
    check_own_folder,
    look_at,
    policy_of,
    print_progress,
    run_chains,
)
from cotune.experiments.compare.suite_file import (
    MethodEntry,
    SuiteConfig,
    expand,
    is_search,
    load_suite,
    method_named,
)
from cotune.experiments.evaluate.quadrants import Quadrants, read_quadrants, relative
from cotune.methods.registry import method_of
from cotune.run.costs import policy_rollouts
from cotune.run.json_files import SUITE_LOCK, Row, locked
from cotune.run.run_dir import RunDir, write_summary
from cotune.utils.packages import need
from cotune.utils.processes import stopped_by_sigterm
from cotune.utils.tables import on_console
from cotune.utils.text import one_line

if TYPE_CHECKING:
    from cotune.experiments.compare.results import SuiteSummary

_APART = 1000  # between the seeds of a row's stages


class SuiteCell(Chain):
    """A row of a suite at one seed; `allowance` are the policy rollouts of its compute class."""

    def __init__(
        self, suite: SuiteConfig, base: Mapping[str, Any], entry: MethodEntry, seed: int
    ) -> None:
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
        if not method_of(strategy).evolves:
            raw["llm"] = None
        raw = merge(raw, self.entry.set)
        raw = merge(raw, self._budget(raw, index, before))
        takes_policy = not all(map(is_search, self.stages[:index]))
        if before and takes_policy:
            start = policy_of(self.folder / self.stages[index - 1])
            raw = merge(raw, {"policy": {"path": str(start)}})
        if before and self.takes_instruction(index):
            raw = merge(raw, {"instruction": {"text": before[-1]["best_instruction"]}})
        raw = merge(raw, self.entry.set)  # its own steps, for example
        for field in suite.seed_fields:
            raw = merge(raw, expand({field: self.seed}))
        raw |= {"name": f"{self.label}, seed {self.seed}", "output": str(self.folder / name)}
        return parse_config(raw, f"methods: {self.entry.key}, stage {name}")

    def _budget(self, raw: Mapping[str, Any], index: int, before: Sequence[Row]) -> dict[str, Any]:
        """Return what the budget sets in a stage: rollouts, steps, and frozen weights in a search; {} for an invalid one."""
        name = self.stages[index]
        # Fields that the budget decides, or that have to fit a batch.
        replaced = {"steps": 1, "mini_batches": 1, "micro_batch_size": 1, "rollout_budget": None}
        try:
            training = TrainingConfig.model_validate(raw.get("training", {}) | replaced)
        except (TypeError, ValidationError):
            return {}
        batch = training.questions_per_step * training.group_size
        if index < len(self.stages) - 1:
            # Searches share `share` equally, trainings the rest.
            alike = sum(is_search(other) == is_search(name) for other in self.stages)
            share = self.entry.share if is_search(name) else 1 - self.entry.share
            budget = int(self.allowance * share / alike)
        else:
            # What the earlier stages left, since one may end early.
            paid = sum(policy_rollouts(figures["policy_rollouts"]) for figures in before)
            budget = int(self.allowance - paid)
        if budget < batch:
            raise ConfigError(
                f"methods: {self.entry.key} has {budget} policy rollouts for its stage "
                f"{name}, less than one batch of {batch}; raise budget"
            )
        changes = {"rollout_budget": budget, "steps": math.ceil(budget / batch)}
        if is_search(name):
            changes["frozen"] = True
        strategy = {"budget": budget} if self.method.stages[name] == "gepa" else {}
        return {"training": changes, "strategy": strategy}

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


def cells_of(suite: SuiteConfig, base: Mapping[str, Any]) -> list[SuiteCell]:
    """Return the cells of a suite, all rows of the first seed first, as `look_at` leaves them."""
    cells = [SuiteCell(suite, base, entry, seed) for seed in suite.seeds for entry in suite.methods]
    look_at(cells)
    return cells


def compare(path: Path, console: Console, assignments: Sequence[str] = ()) -> "SuiteSummary":
    """Run what a suite is missing, write its summary and its report; return the summary.

    Raises:
        ConfigError: the suite file is invalid, or its folder holds something else.
        Stopped: Ctrl-C; the next call resumes.
        ChainsFailed: rows failed, or used more or fewer rollouts than their class allows.
    """
    suite, base = load_suite(path, assignments)
    check_own_folder(suite.output, "output", SUITE_LOCK, "summary.json")
    cells = cells_of(suite, base)
    printed = set[str]()
    page = suite.output / "report.html"

    def watch() -> None:
        if print_progress(cells, printed, console) or not page.exists():
            _write(suite, cells)  # for a reader while it runs

    busy = f"output: {suite.output} is being worked on by another cotune compare; wait for it, or stop it"
    _print_heading(suite, cells, console)
    with locked(suite.output / SUITE_LOCK, busy):
        try:
            with stopped_by_sigterm():
                run_chains(cells, suite.at_once, watch)
        except KeyboardInterrupt:
            _write(suite, cells)
            command = shlex.join(["cotune", *sys.argv[1:]])
            raise Stopped(f"stopped; resume with: {command}") from None
        summary = _write(suite, cells)
    _show(summary, suite, console)
    excluded = [row for row in summary.methods if row.status in ("failed", "unequal")]
    if excluded:
        reasons = "; ".join(f"{row.label}: {row.problem}" for row in excluded)
        raise ChainsFailed(
            f"{len(excluded)} of {len(suite.methods)} methods are not in the comparison: {reasons}"
        )
    return summary


def demo(folder: Path, seed: int, console: Console) -> "SuiteSummary":
    """Run the suite that ships with this package; return its summary.

    A stopped demo is resumed, and of a finished one the result is shown again. Another seed is added to the folder.
    """
    need("trl", "cotune demo")
    suites = resources.files("cotune.experiments.compare") / "suites"
    with resources.as_file(suites / "demo.yaml") as file:
        fields = (f"output={json.dumps(str(folder))}", f"seeds=[{seed}]")
        return compare(file, console, fields)


def dry_run(path: Path, console: Console, assignments: Sequence[str] = ()) -> list[RunConfig]:
    """Show what a suite would run, and return the first seed's run files, still to be checked; run nothing.

    Raises ConfigError: `cotune compare` would reject the folder, or `cotune train` a run file on any machine.
    """
    suite, base = load_suite(path, assignments)
    check_own_folder(suite.output, "output", SUITE_LOCK, "summary.json")
    cells = cells_of(suite, base)
    _print_heading(suite, cells, console)
    configs = [config for cell in cells[: len(suite.methods)] for config in cell.planned]
    calls = sum(plan_run(config).calls for config in configs)
    finished = sum(cell.state == "done" for cell in cells)
    console.print(
        f"runs: {len(cells)}, of {len(suite.methods)} methods; finished: {finished}; LLM calls of a seed: "
        f"up to {calls:,}"
    )
    return configs


def _proposers(cells: Sequence[SuiteCell]) -> str:
    """Name the LLMs that propose in any stage of a suite; "none" without one."""
    names = {describe_llm(config.proposer) for cell in cells for config in cell.planned}
    return ", ".join(sorted(names - {"none"})) or "none"


def _print_heading(suite: SuiteConfig, cells: Sequence[SuiteCell], console: Console) -> None:
    llms = _proposers(cells)
    heading = (
        f"{suite.name}: {len(suite.methods)} methods on {cells[0].planned[0].environment.kind}, "
        f"seeds {', '.join(map(str, suite.seeds))}, {suite.budget:,} policy rollouts each"
        f"{'' if llms == 'none' else f'; proposals by {llms}'}; folder {suite.output}"
    )
    console.print(one_line(heading), markup=False, highlight=False)


def _write(suite: SuiteConfig, cells: Sequence[SuiteCell]) -> "SuiteSummary":
    """Write the summary of the runs that are finished, and its page."""
    from cotune.experiments.compare.results import summarise
    from cotune.experiments.report.suite_report import write_suite_report

    summary = summarise(suite, cells, _proposers(cells))
    write_summary(suite.output, summary.model_dump())
    write_suite_report(suite.output, summary)
    return summary


def _show(summary: "SuiteSummary", suite: SuiteConfig, console: Console) -> None:
    from cotune.experiments.compare.results import suite_tables

    def line(text: str, style: str = "") -> None:
        if text:
            console.print(one_line(text), style=style, markup=False, highlight=False)

    for table in suite_tables(summary, brief=True).values():
        console.print(on_console(table))
        console.print()
    for method in summary.methods:
        line(method.complaint, "yellow")
    line(summary.verdict, "bold")
    line(suite.caption, "dim")
    line(f"folder: {suite.output}   report: {suite.output / 'report.html'}")
