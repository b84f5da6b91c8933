"""Run files of the stages of a suite's rows, and what a finished stage passes to the next."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

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
    slug,
)
from cotune.methods.registry import method_of
from cotune.policy.policy_files import is_adapter
from cotune.run.json_files import write_atomic
from cotune.run.ledger import policy_rollouts
from cotune.run.run_dir import RunDir
from cotune.utils.text import flat

_MERGED_OF = "merged.sha256"
"""The file with the hash of the summary.json whose policy a stage's `merged` holds."""
_APART = 1000  # between the seeds of a row's stages

ScaledDown = dict[str, dict[str, float | None]]


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
    def instruction(self) -> str | None:
        """The best instruction; None for a baseline that has a prompt of its own."""
        return self.figures["best_instruction"]

    @property
    def policy(self) -> str:
        return str(self.folder / "best")

    @property
    def merged(self) -> Path | None:
        """The folder for its adapter merged into the base; None if it trained whole weights."""
        return self.folder / "merged" if is_adapter(Path(self.policy)) else None

    @property
    def is_merged(self) -> bool:
        """True if `merged` holds this policy; a resumed run may have replaced it."""
        try:
            return (self.folder / _MERGED_OF).read_text(encoding="utf-8") == self.version
        except OSError:
            return False

    def note_merged(self) -> None:
        """Record that `merged` holds this policy."""
        write_atomic(self.folder / _MERGED_OF, self.version)

    @property
    def version(self) -> str:
        """The hash of its summary.json: another one means that the policy may be another."""
        return hashlib.sha256((self.folder / "summary.json").read_bytes()).hexdigest()


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
    def needs(self) -> tuple[str, ...]:
        """Keys of the rows that must be finished first."""
        rows = {entry.key for entry in self.suite.methods}
        source = {"instruction": self.entry.instruction_from, "policy": self.entry.policy_from}
        wanted = (slug(source[what]) for what in self.method.takes)
        return tuple(name for name in dict.fromkeys(wanted) if name in rows)

    @property
    def takes_instruction(self) -> bool:
        """True if its last stage starts with an instruction other than the suite's."""
        return bool(self.method.takes) or self.method.stages[-1].instruction == "before"

    @property
    def has_quadrants(self) -> bool:
        """True if the suite wants its quadrants scored: its last stage trains, or searches."""
        return self.suite.quadrant_samples > 0 and self.method.stages[-1].command == ("train",)

    @property
    def compute(self) -> str:
        """Its compute class: "1x", "2x", "none"."""
        return self.entry.compute or self.method.compute

    @property
    def allowance(self) -> float | None:
        """Policy rollouts of its compute class; None if it uses none."""
        if self.compute == "none":
            return None
        return float(self.compute.removesuffix("x")) * self.suite.budget

    @property
    def beginning(self) -> Path:
        """The folder of the run that began with the suite's own policy and instruction."""
        rows = {entry.key: entry for entry in self.suite.methods}
        source = slug(self.entry.instruction_from)
        if "instruction" in self.method.takes and source in rows:
            return replace(self, entry=rows[source]).beginning
        return self.stage_folder(0)

    def stage_folder(self, index: int) -> Path:
        return self.folder / self.method.stages[index].name

    def config(
        self, index: int, before: Sequence[Finished], others: Mapping[str, Finished]
    ) -> RunConfig:
        """Return the run file of one stage.

        Args:
            before: the stages before it.
            others: the last stages of the rows in `needs`, by key.

        Raises:
            ConfigError: one of its fields is invalid.
        """
        where = f"methods: {self.entry.key}, stage {self.method.stages[index].name}"
        return parse_config(self._raw(index, before, others), where)

    def policy_source(
        self, index: int, before: Sequence[Finished], others: Mapping[str, Finished]
    ) -> Finished | None:
        """Return the finished stage whose policy a stage starts from; None for any other policy.

        Args:
            before, others: as for `config`.
        """
        if "policy" in self.method.takes:
            return others.get(slug(self.entry.policy_from))
        return before[-1] if before and self.method.stages[index].policy == "before" else None

    @cached_property
    def planned(self) -> list[RunConfig]:
        """The run files of all stages. A stage that takes over another stage's policy or instruction has
        the base's here. Raises as `config` does.
        """
        return [self.config(index, (), {}) for index in range(len(self.method.stages))]

    def scaled_down(self) -> ScaledDown:
        """Return the numbers of the method's strategy that the suite changes, by dotted path.

        {"hints.dev_size": {"here": 32, "paper": 300}}; "paper" is None if it is computed from others.
        Empty for ablations and for rows that set fields: their changes are the point of comparison.
        """
        if self.method.group != "ours" or self.entry.set or self.method.takes:
            return {}
        strategy: Any = self.planned[-1].strategy
        try:
            paper = flat(asdict(type(strategy)()))
        except TypeError:  # an installed method whose options have no default
            return {}
        return {
            name: {"here": here, "paper": paper[name]}
            for name, here in flat(asdict(strategy)).items()
            if name in paper and here != paper[name]  # fixed hints have names of their own
            if isinstance(here, int | float) and not isinstance(here, bool)
        }

    def _raw(
        self, index: int, before: Sequence[Finished], others: Mapping[str, Finished]
    ) -> dict[str, Any]:
        stage, suite = self.method.stages[index], self.suite
        kind = self._strategy(stage)
        # As a section, so that a stage can replace the text and leave its role.
        instruction = self.base.get("instruction")
        if instruction is None or isinstance(instruction, str):
            instruction = {"text": instruction}
        raw = merged({**self.base, "instruction": instruction}, suite.set)
        # With the same seed, a later stage would see the questions in the same order as the first.
        raw = merged(raw, {"strategy": {"kind": kind}, "seed": self.seed + _APART * index})
        raw = merged(raw, suite.by_strategy.get(kind, {}))
        if stage.searches and kind == "inspo":
            raw = merged(raw, suite.prompt_stage)
        raw = merged(raw, stage.changes)
        if not stage.tools:
            raw = merged(raw, _without_tools(raw))
        if not method_of(kind).evolves:
            raw["llm"] = None
        elif self.method.at_random:
            raw["llm"] = _at_random(raw.get("llm"))
        raw = merged(raw, self.entry.set)
        raw = merged(raw, self._budgeted(raw, stage, before))
        raw = merged(raw, self._inherited(stage, before, others))
        raw = merged(raw, self.entry.set)  # its own steps, for example
        for name in suite.seed_fields:
            seeded = expanded({name: self.seed})
            assert isinstance(seeded, dict)
            raw = merged(raw, seeded)
        named = {"name": f"{self.label}, seed {self.seed}"}
        return {**raw, **named, "output": str(self.stage_folder(index))}

    def _strategy(self, stage: Stage) -> str:
        searches = self.method.group == "staged" and stage.searches
        return self.entry.optimizer if searches else stage.strategy

    def _budgeted(
        self, raw: Mapping[str, Any], stage: Stage, before: Sequence[Finished]
    ) -> dict[str, Any]:
        """Return the stage's part of the budget, and the steps that it is enough for."""
        if self.allowance is None:
            return {}
        alike = sum(one.searches == stage.searches for one in self.method.stages)
        share = self.entry.share if stage.searches else 1 - self.entry.share
        equal = self.allowance * share / alike
        rest = self.allowance - sum(one.paid for one in before)
        budget = int(equal if stage.part == "equal" else rest)
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
        if self._strategy(stage) == "gepa":
            changes["strategy"] = {"budget": budget}
        return changes

    def _inherited(
        self, stage: Stage, before: Sequence[Finished], others: Mapping[str, Finished]
    ) -> dict[str, Any]:
        """Return the policy and instruction that a stage takes over from others."""
        changes: dict[str, Any] = {}
        if stage.policy == "before" and before:
            # Training starts from whole weights.
            changes["policy"] = {"path": str(before[-1].merged or before[-1].policy)}
        if stage.instruction == "before" and before:
            changes["instruction"] = {"text": before[-1].instruction}
        source, target = slug(self.entry.instruction_from), slug(self.entry.policy_from)
        if "instruction" in self.method.takes and source in others:
            changes["instruction"] = {"text": others[source].instruction}
        if "policy" in self.method.takes:
            path = self.entry.policy_from
            changes["policy"] = {"path": others[target].policy if target in others else path}
        return changes


@dataclass(frozen=True)
class Setting:
    """The settings that all rows of a suite share, for its summary.

    Attributes:
        environment, policy: `environment.kind` and `policy.path`.
        llm: the LLMs that write proposals.
        scaled_down: by method, see `SuiteRow.scaled_down`.
    """

    environment: str
    policy: str
    llm: str
    scaled_down: Mapping[str, ScaledDown] = field(default_factory=dict[str, ScaledDown])

    @classmethod
    def of(cls, rows: Sequence[SuiteRow]) -> "Setting":
        first = rows[0].planned[0]
        named = {describe_llm(config.proposer) for row in rows for config in row.planned} - {"none"}
        scaled = {row.label: found for row in rows if (found := row.scaled_down())}
        llms = ", ".join(sorted(named)) or "none"
        return cls(first.environment.kind, first.policy.path, llms, scaled)


def rows_of(suite: SuiteConfig, base: Mapping[str, Any]) -> list[SuiteRow]:
    """Return every row at every seed, all rows of the first seed first."""
    return [SuiteRow(suite, base, entry, seed) for seed in suite.seeds for entry in suite.methods]


def check_rows(rows: Sequence[SuiteRow]) -> None:
    """Check the run files of all stages before anything is run.

    Stages that take over a policy or an instruction are checked with the base's instead.

    Raises:
        ConfigError: one of them is invalid.
    """
    by_key = {row.entry.key: row for row in rows}
    for row in rows:
        if row.method.takes:
            _check_sources(row, by_key)
        for config in row.planned:
            check_tokens(config.training.engine_args)
    _check_questions(rows)


def _check_sources(row: SuiteRow, by_key: Mapping[str, SuiteRow]) -> None:
    """Raise ConfigError if a row takes from one that has no instruction or policy of its own."""
    trained = [
        key
        for key, one in by_key.items()
        if one.method.group != "inference" and not one.method.takes
    ]
    expected = f"expected one of {', '.join(trained) or 'rows that are trained'}"
    source, target = row.entry.instruction_from, row.entry.policy_from
    if slug(source) not in trained:
        raise ConfigError(
            f"methods: {row.entry.key}: instruction_from is {source!r}, which is not a row with its own "
            f"instruction; {expected}"
        )
    is_model = "/" in target or target.startswith("bundled:") or Path(target).is_dir()
    if "policy" not in row.method.takes:
        return
    if slug(target) not in trained and (slug(target) in by_key or not is_model):
        raise ConfigError(
            f"methods: {row.entry.key}: policy_from is {target!r}, which is not a row with its own policy; "
            f"{expected}, or a model's folder or owner/name"
        )


def _check_questions(rows: Sequence[SuiteRow]) -> None:
    """Raise ConfigError if `focus` finds no question, or another number for each seed."""
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


def _at_random(llm: object) -> dict[str, Any]:
    """Return the proposer that draws without reading failures: the suite's bank in random order."""
    if isinstance(llm, Mapping):
        given = cast("Mapping[str, Any]", llm)
        if given.get("kind") == "bank":
            return {**given, "order": "random"}
    raise ConfigError(
        "methods: random proposals need an llm of kind bank; add one to the suite, or remove them"
    )


def _without_tools(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes that take the tools from an environment and leave its questions."""
    given = raw.get("environment", "single_turn")
    kind = given.get("kind") if isinstance(given, Mapping) else given
    if kind in ("geo", "search"):
        # An instruction of the suite would mention the search engine.
        environment = {"kind": kind, "search": False}
        return {"environment": environment, "limits": {"turns": 1}, "instruction": {"text": None}}
    if kind == "tools":
        return {"environment": {"kind": "single_turn"}, "limits": {"turns": 1}}
    raise ConfigError(
        f"methods: grpo-no-tools needs an environment with tools, and environment.kind is {kind}; "
        "remove it"
    )
