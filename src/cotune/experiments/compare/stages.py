"""Run files of the stages of a suite's rows, and what a finished stage passes to the next."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cotune.config.build import build_environment, describe_llm
from cotune.config.run_file import RunConfig, TrainingConfig, parse_config
from cotune.errors import ConfigError
from cotune.experiments.compare.methods import Method, method_named
from cotune.experiments.compare.suite_file import (
    MethodEntry,
    SuiteConfig,
    expand,
    merge,
)
from cotune.methods.registry import method_of
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
    def allowance(self) -> float:
        """Policy rollouts of its compute class."""
        return float(self.entry.compute.removesuffix("x")) * self.suite.budget

    def stage_folder(self, index: int) -> Path:
        return self.folder / self.method.stages[index].name

    def takes_policy(self, index: int) -> bool:
        """Return whether a stage starts from a policy that an earlier one trained."""
        return any(not stage.frozen for stage in self.method.stages[:index])

    def takes_instruction(self, index: int) -> bool:
        """Return whether a stage starts from an instruction that an earlier one found."""
        return any(stage.frozen for stage in self.method.stages[:index])

    def config(self, index: int, before: Sequence[Finished]) -> RunConfig:
        """Return the run file of one stage.

        Args:
            before: the stages before it; () checks the stage with the suite's policy and instruction.

        Raises:
            ConfigError: one of its fields is invalid.
        """
        suite = self.suite
        entry = self.entry
        stage = self.method.stages[index]
        # As a section, so that a stage can replace the text and leave its role.
        instruction = self.base.get("instruction")
        if instruction is None or isinstance(instruction, str):
            instruction = {"text": instruction}
        raw = merge({**self.base, "instruction": instruction}, suite.set)
        # With the same seed, a later stage would see the questions in the same order as the first.
        seed = self.seed + _APART * index
        raw = merge(raw, {"strategy": {"kind": stage.strategy}, "seed": seed})
        raw = merge(raw, suite.by_strategy.get(stage.strategy, {}))
        if stage.frozen:
            if stage.strategy == "inspo":
                raw = merge(raw, suite.prompt_stage)
            raw = merge(raw, {"training": {"frozen": True}})
        if not method_of(stage.strategy).evolves:
            raw["llm"] = None
        raw = merge(raw, entry.set)
        raw = merge(raw, self._budget(raw, index, before))
        if before and self.takes_policy(index):
            raw = merge(raw, {"policy": {"path": str(before[-1].folder / "best")}})
        if before and self.takes_instruction(index):
            raw = merge(raw, {"instruction": {"text": before[-1].instruction}})
        raw = merge(raw, entry.set)  # its own steps, for example
        for name in suite.seed_fields:
            raw = merge(raw, expand({name: self.seed}))
        raw |= {"name": f"{self.label}, seed {self.seed}", "output": str(self.stage_folder(index))}
        config = parse_config(raw, f"methods: {entry.key}, stage {stage.name}")
        if self.takes_policy(index) and config.policy.lora is not None:
            raise ConfigError(
                f"methods: {entry.key} trains an adapter (policy.lora) before its stage {stage.name}, which starts "
                "from whole weights; remove policy.lora for it, or the row"
            )
        return config

    @cached_property
    def planned(self) -> list[RunConfig]:
        """The run files of all stages, with the suite's policy and instruction. Raises as `config` does."""
        return [self.config(index, ()) for index in range(len(self.method.stages))]

    def _budget(
        self, raw: Mapping[str, Any], index: int, before: Sequence[Finished]
    ) -> dict[str, Any]:
        """Return the part of the budget of the stage at `index`, and the steps that it is enough for."""
        stages = self.method.stages
        stage = stages[index]
        if index < len(stages) - 1:
            # Searches share `share` equally, trainings the rest.
            alike = sum(other.frozen == stage.frozen for other in stages)
            share = self.entry.share if stage.frozen else 1 - self.entry.share
            budget = int(self.allowance * share / alike)
        else:
            # What the earlier stages left, since one may end early.
            budget = int(self.allowance - sum(earlier.paid for earlier in before))
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
    planned = [row.planned for row in rows]
    suite = rows[0].suite
    if suite.focus is None:
        return
    counts: dict[str, int] = {}
    for config, *_ in planned[:: len(suite.methods)]:
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
