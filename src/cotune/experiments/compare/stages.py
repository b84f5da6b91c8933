"""Run files of the stages of a suite's rows, and what a finished stage passes to the next."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cotune.config.build import build_environment, describe_llm
from cotune.config.run_checks import check_tokens
from cotune.config.run_file import RunConfig, TrainingConfig, parse_config
from cotune.errors import ConfigError
from cotune.experiments.compare.methods import Method, Stage, method_named
from cotune.experiments.compare.suite_file import (
    MethodEntry,
    SuiteConfig,
    expanded,
    merged,
)
from cotune.methods.registry import method_of
from cotune.policy.policy_files import is_adapter
from cotune.run.costs import policy_rollouts
from cotune.run.run_dir import RunDir

_APART = 1000  # between the seeds of a row's stages


@dataclass(frozen=True)
class Finished:
    """A finished stage: its run folder, and the figures of its arm of summary.json."""

    folder: Path
    figures: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> "Finished | None":
        """Read a run folder; None if the run is not finished, or was resumed and has not ended.

        Raises:
            ConfigError: its summary.json is not a run's.
        """
        if not RunDir.is_run(folder) or (summary := RunDir.open(folder).read_summary()) is None:
            return None
        try:
            (figures,) = summary["arms"].values()
        except (AttributeError, KeyError, ValueError):
            raise ConfigError(
                f"{folder / 'summary.json'} is not that of a run; remove the folder, and run it again"
            ) from None
        return cls(folder, figures)

    @property
    def paid(self) -> int:
        return policy_rollouts(self.figures["policy_rollouts"])

    @property
    def instruction(self) -> str:
        """The best instruction."""
        return self.figures["best_instruction"]

    @property
    def policy(self) -> Path:
        """The folder of its policy as whole weights, from which training starts.

        For an adapter it exists once `cotune export --format merged` has written it. Its name changes with
        the run: a later stage of an earlier policy has another `policy.path`, and is refused.
        """
        best = self.folder / "best"
        if not is_adapter(best):
            return best
        version = hashlib.sha256((self.folder / "summary.json").read_bytes()).hexdigest()
        return self.folder / f"merged-{version[:8]}"

    @property
    def lacks_merged(self) -> bool:
        """True if it trained an adapter that is not yet merged into whole weights."""
        return self.policy.name != "best" and not self.policy.is_dir()


@dataclass(frozen=True)
class SuiteRow:
    """A row of a suite at one seed; `base` is the run file that it is based on, as plain data."""

    suite: SuiteConfig
    base: Mapping[str, Any]
    entry: MethodEntry
    seed: int

    @property
    def method(self) -> Method:
        return method_named(self.entry.method)

    @property
    def folder(self) -> Path:
        return self.suite.output / self.entry.key / f"seed-{self.seed}"

    @property
    def label(self) -> str:
        return self.entry.name or self.method.label

    @property
    def takes_instruction(self) -> bool:
        """True if its last stage starts with an instruction other than the suite's."""
        return self.method.stages[-1].continues_instruction

    @property
    def allowance(self) -> float:
        """Policy rollouts of its compute class."""
        return float(self.entry.compute.removesuffix("x")) * self.suite.budget

    def stage_folder(self, index: int) -> Path:
        return self.folder / self.method.stages[index].name

    def config(self, index: int, before: Sequence[Finished]) -> RunConfig:
        """Return the run file of one stage.

        Args:
            before: the stages before it; () checks the stage with the suite's policy and instruction.

        Raises:
            ConfigError: one of its fields is invalid.
        """
        stage, suite, entry = self.method.stages[index], self.suite, self.entry
        # As a section, so that a stage can replace the text and leave its role.
        instruction = self.base.get("instruction")
        if instruction is None or isinstance(instruction, str):
            instruction = {"text": instruction}
        raw = merged({**self.base, "instruction": instruction}, suite.set)
        # With the same seed, a later stage would see the questions in the same order as the first.
        seed = self.seed + _APART * index
        raw = merged(raw, {"strategy": {"kind": stage.strategy}, "seed": seed})
        raw = merged(raw, suite.by_strategy.get(stage.strategy, {}))
        if stage.frozen:
            if stage.strategy == "inspo":
                raw = merged(raw, suite.prompt_stage)
            raw = merged(raw, {"training": {"frozen": True}})
        if not method_of(stage.strategy).evolves:
            raw["llm"] = None
        raw = merged(raw, entry.set)
        raw = merged(raw, self._budgeted(raw, stage, before))
        if before and stage.continues_policy:
            raw = merged(raw, {"policy": {"path": str(before[-1].policy)}})
        if before and stage.continues_instruction:
            raw = merged(raw, {"instruction": {"text": before[-1].instruction}})
        raw = merged(raw, entry.set)  # its own steps, for example
        for name in suite.seed_fields:
            seeded = expanded({name: self.seed})
            assert isinstance(seeded, dict)
            raw = merged(raw, seeded)
        raw |= {"name": f"{self.label}, seed {self.seed}", "output": str(self.stage_folder(index))}
        return parse_config(raw, f"methods: {entry.key}, stage {stage.name}")

    @cached_property
    def planned(self) -> list[RunConfig]:
        """The run files of all stages, with the suite's policy and instruction. Raises as `config` does."""
        return [self.config(index, ()) for index in range(len(self.method.stages))]

    def _budgeted(
        self, raw: Mapping[str, Any], stage: Stage, before: Sequence[Finished]
    ) -> dict[str, Any]:
        """Return the stage's part of the budget, and the steps that it is enough for."""
        alike = sum(other.frozen == stage.frozen for other in self.method.stages)
        share = self.entry.share if stage.frozen else 1 - self.entry.share
        equal = self.allowance * share / alike
        rest = self.allowance - sum(stage.paid for stage in before)
        budget = int(equal if stage.equal else rest)
        sizes = ("questions_per_step", "group_size")
        defaults = {name: TrainingConfig.model_fields[name].default for name in sizes}
        batch = math.prod((defaults | raw.get("training", {}))[name] for name in sizes)
        if budget < batch:
            raise ConfigError(
                f"methods: {self.entry.key} has {budget} policy rollouts for its stage "
                f"{stage.name}, less than one batch of {batch}; raise budget"
            )
        changes: dict[str, Any] = {
            "training": {"rollout_budget": budget, "steps": math.ceil(budget / batch)}
        }
        if stage.strategy == "gepa":
            changes["strategy"] = {"budget": budget}
        return changes


def setting_of(rows: Sequence[SuiteRow]) -> dict[str, str]:
    """Return what all rows of a suite share, as in its summary: environment, policy, and LLMs that propose."""
    first = rows[0].planned[0]
    llms = {describe_llm(config.proposer) for row in rows for config in row.planned} - {"none"}
    llm = ", ".join(sorted(llms)) or "none"
    return {"environment": first.environment.kind, "policy": first.policy.path, "llm": llm}


def rows_of(suite: SuiteConfig, base: Mapping[str, Any]) -> list[SuiteRow]:
    """Return every row at every seed, all rows of the first seed first."""
    return [SuiteRow(suite, base, entry, seed) for seed in suite.seeds for entry in suite.methods]


def check_rows(rows: Sequence[SuiteRow]) -> None:
    """Check the run files of all stages before anything is run.

    Raises:
        ConfigError: one of them is invalid; or `focus` finds no question, or another number for each seed.
    """
    for row in rows:
        for config in row.planned:
            check_tokens(config.training.engine_args)
    suite = rows[0].suite
    if suite.focus is None:
        return
    counts: dict[str, int] = {}
    for row in rows[:: len(suite.methods)]:
        config = row.planned[0]
        key = repr(config.environment)
        if key not in counts:
            tasks = build_environment(config.environment, config.dataset, config.instruction).tasks(
                "test"
            )
            counts[key] = sum(task.stratum.startswith(suite.focus) for task in tasks)
    if not all(counts.values()) or len(set(counts.values())) > 1:
        raise ConfigError(
            f"focus is {suite.focus!r}, and {sorted(counts.values())} test questions of the seeds "
            "have a stratum that begins with it; expected some, and the same number for each seed"
        )
