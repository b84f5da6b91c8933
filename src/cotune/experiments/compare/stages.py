"""From a row of a suite to the run file of each of its stages."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cotune.config.build import build_environment, describe_llm
from cotune.config.preflight import check_tokens
from cotune.config.run_file import RunConfig, parse_config
from cotune.environments.search import SEARCH_R1_INSTRUCTION
from cotune.errors import ConfigError
from cotune.experiments.compare.changes import expanded, merged
from cotune.experiments.compare.methods import Method, Stage, method_named
from cotune.experiments.compare.suite_file import MethodEntry, SuiteConfig, slug
from cotune.export.serving import is_adapter
from cotune.methods.registry import method_of
from cotune.run.json_files import write_atomic
from cotune.run.ledger import policy_rollouts
from cotune.run.run_dir import RunDir

_MERGED_OF = "merged.sha256"
"""Of the summary.json whose policy a stage's `merged` holds."""
_SEARCHED = ("geo", "search")
_APART = 1000  # between the seeds of a row's stages


@dataclass(frozen=True)
class Finished:
    """What a stage left for those after it.

    Attributes:
        folder: its run folder.
        figures: its arm of summary.json.
    """

    folder: Path
    figures: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> "Finished | None":
        """None where the run is not finished, or was gone on with and has not ended again."""
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
        return str(self.figures["best_instruction"])

    @property
    def policy(self) -> str:
        return str(self.folder / "best")

    @property
    def merged(self) -> Path | None:
        """Where its adapter is to lie in its base's weights; None where it trained whole weights."""
        return self.folder / "merged" if is_adapter(Path(self.policy)) else None

    @property
    def is_merged(self) -> bool:
        """Whether `merged` holds this policy: a run that is gone on with ends with another."""
        try:
            return (self.folder / _MERGED_OF).read_text(encoding="utf-8") == self._ended_as
        except OSError:
            return False

    def note_merged(self) -> None:
        """Writes down that `merged` holds this policy."""
        write_atomic(self.folder / _MERGED_OF, self._ended_as)

    @property
    def _ended_as(self) -> str:
        return hashlib.sha256((self.folder / "summary.json").read_bytes()).hexdigest()


@dataclass(frozen=True)
class Row:
    """A row of a suite at one seed.

    Attributes:
        entry, method: what the suite file says of it, and what that names.
        seed: its seed.
        folder: of all its stages.
    """

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
        """Keys of the rows that must be finished before."""
        if self.entry.method != "carried":
            return ()
        rows = {entry.key for entry in self.suite.methods}
        wanted = (slug(self.entry.instruction_from), slug(self.entry.policy_from))
        return tuple(name for name in dict.fromkeys(wanted) if name in rows)

    @property
    def takes_instruction(self) -> bool:
        """Whether its last stage begins with another instruction than the suite's."""
        return self.entry.method == "carried" or self.method.stages[-1].instruction == "before"

    @property
    def allowance(self) -> float | None:
        """Policy rollouts of its compute class; None for those that pay none."""
        compute = self.entry.compute or self.method.compute
        return None if compute == "none" else float(compute.removesuffix("x")) * self.suite.budget

    def command(self, index: int) -> tuple[str, ...]:
        return self.method.stages[index].command

    def stage_folder(self, index: int) -> Path:
        return self.folder / self.method.stages[index].name

    def config(
        self, index: int, before: Sequence[Finished], others: Mapping[str, Finished]
    ) -> RunConfig:
        """The run file of one stage.

        Args:
            index: of the stage.
            before: the stages before it.
            others: the last stages of the rows that are needed, by key.

        Raises:
            ConfigError: it cannot work; the suite's field is named.
        """
        where = f"methods: {self.entry.key}, stage {self.method.stages[index].name}"
        return parse_config(self._raw(index, before, others), where)

    def _raw(
        self, index: int, before: Sequence[Finished], others: Mapping[str, Finished]
    ) -> dict[str, Any]:
        stage, suite = self.method.stages[index], self.suite
        kind = self._strategy(stage)
        raw = merged(_sectioned(self.base), suite.set)
        # Else a later stage would see the questions of the first again, in the same order.
        raw = merged(raw, {"strategy": {"kind": kind}, "seed": self.seed + _APART * index})
        raw = merged(raw, suite.by_strategy.get(kind, {}))
        if stage.name == "prompt" and kind == "inspo":
            raw = merged(raw, suite.prompt_stage)
        raw = merged(raw, stage.changes)
        if not stage.tools:
            raw = merged(raw, _without_tools(raw))
        if not method_of(kind).needs_llm:
            raw["llm"] = None
        elif self.method.endpoint:
            raw["llm"] = self._endpoint()
        raw = merged(raw, self.entry.set)
        raw = merged(raw, self._budgeted(raw, stage, before))
        raw = merged(raw, self._inherited(stage, before, others))
        raw = merged(raw, self.entry.set)  # steps of its own, say
        for name in suite.seed_fields:
            seeded = expanded({name: self.seed})
            assert isinstance(seeded, dict)
            raw = merged(raw, seeded)
        named = {"name": f"{self.label}, seed {self.seed}"}
        return {**raw, **named, "output": str(self.stage_folder(index))}

    def _strategy(self, stage: Stage) -> str:
        searches = self.method.group == "staged" and stage.name == "prompt"
        return self.entry.optimizer if searches else stage.strategy

    def _endpoint(self) -> dict[str, Any]:
        options = getattr(self.suite.endpoints, self.method.endpoint)
        if options is None:
            raise ConfigError(
                f"endpoints.{self.method.endpoint} is missing, and methods names "
                f"{self.entry.key}; set it to an OpenAI-compatible endpoint: {{model: …, base_url: …}}"
            )
        return asdict(options)

    def _budgeted(
        self, raw: Mapping[str, Any], stage: Stage, before: Sequence[Finished]
    ) -> dict[str, Any]:
        """The stage's part of the budget, and as many steps as it could pay for."""
        if self.allowance is None:
            return {}
        total, share = self.allowance, self.entry.share
        parts = {
            "prompt": total * share,
            "main": total * (1 - share),
            "half": total * (1 - share) / 2,
            "rest": total - sum(one.paid for one in before),
        }
        budget = int(parts[stage.part])
        training = raw.get("training", {})
        batch = training.get("questions_per_step", 512) * training.get("group_size", 5)
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
        """The policy and instruction that a stage takes over."""
        changes: dict[str, Any] = {}
        if stage.policy == "before" and before:
            # Training starts from whole weights.
            changes["policy"] = {"path": str(before[-1].merged or before[-1].policy)}
        if stage.instruction == "before" and before:
            changes["instruction"] = {"text": before[-1].instruction}
        if self.entry.method == "carried":
            source, target = slug(self.entry.instruction_from), slug(self.entry.policy_from)
            if source in others:
                changes["instruction"] = {"text": others[source].instruction}
            path = self.entry.policy_from
            changes["policy"] = {"path": others[target].policy if target in others else path}
        return changes


@dataclass(frozen=True)
class Setting:
    """What the rows of a suite share, as its summary tells it.

    Attributes:
        environment: kind of the world.
        policy: where it is from.
        llm: who proposes.
    """

    environment: str
    policy: str
    llm: str

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "Setting":
        first = rows[0].config(0, (), {})
        stages = (row.config(i, (), {}) for row in rows for i in range(len(row.method.stages)))
        named = {describe_llm(config) for config in stages} - {"none"}
        return cls(first.environment.kind, first.policy.path, ", ".join(sorted(named)) or "none")


def rows_of(suite: SuiteConfig, base: Mapping[str, Any]) -> list[Row]:
    """Every row at every seed, the first seed's of all rows first."""
    return [Row(suite, base, entry, seed) for seed in suite.seeds for entry in suite.methods]


def check_rows(rows: Sequence[Row]) -> None:
    """Raises ConfigError where a run file of the suite cannot work, before anything is run.

    Stages that go on from others are checked with the base's policy and instruction in their place.
    """
    by_key = {row.entry.key: row for row in rows}
    for row in rows:
        if row.entry.method == "carried":
            _check_sources(row, by_key)
        for index in range(len(row.method.stages)):
            check_tokens(row.config(index, (), {}).training.engine_args)
    _check_questions(rows)


def _check_sources(row: Row, by_key: Mapping[str, Row]) -> None:
    """Raises ConfigError where `carried` would have nothing to carry, or nowhere to."""
    trained = [key for key, one in by_key.items() if one.method.group != "inference"]
    trained = [key for key in trained if by_key[key].entry.method != "carried"]
    expected = f"expected one of {', '.join(trained) or 'rows that are trained'}"
    source, target = row.entry.instruction_from, row.entry.policy_from
    if slug(source) not in trained:
        raise ConfigError(
            f"methods: {row.entry.key}: instruction_from is {source!r}, which is no row with an "
            f"instruction of its own; {expected}"
        )
    is_model = "/" in target or target.startswith("bundled:") or Path(target).is_dir()
    if slug(target) not in trained and (slug(target) in by_key or not is_model):
        raise ConfigError(
            f"methods: {row.entry.key}: policy_from is {target!r}, which is no row with a policy of "
            f"its own; {expected}, or a model's folder or owner/name"
        )


def _check_questions(rows: Sequence[Row]) -> None:
    """Raises ConfigError where `focus` would find no question, or another number for each seed."""
    suite = rows[0].suite
    if suite.focus is None:
        return
    counts: dict[str, int] = {}
    for row in rows[:: len(suite.methods)]:
        config = row.config(0, (), {})
        key = repr(config.environment)
        if key not in counts:
            tasks = build_environment(config).tasks("test")
            counts[key] = sum(task.stratum.startswith(suite.focus) for task in tasks)
    if not all(counts.values()) or len(set(counts.values())) > 1:
        raise ConfigError(
            f"focus is {suite.focus!r}, and {sorted(counts.values())} test questions of the seeds "
            "are of a stratum that begins so; expected some, and equally many for each seed"
        )


def _sectioned(base: Mapping[str, Any]) -> dict[str, Any]:
    """The base with its instruction as a section, so that a text in its place keeps where it stands."""
    given = base.get("instruction")
    if given is None or isinstance(given, str):
        return {**base, "instruction": {"text": given}}
    return dict(base)


def _without_tools(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The same questions with nothing to call."""
    given = raw.get("environment", "single_turn")
    kind = given.get("kind") if isinstance(given, Mapping) else given
    if kind in _SEARCHED:
        # Its instruction, if it has one, speaks of the search engine.
        environment: dict[str, Any] = {"kind": kind, "search": False}
        if kind == "search":
            environment["initial_instruction"] = SEARCH_R1_INSTRUCTION  # stands for none of its own
        return {"environment": environment, "limits": {"turns": 1}, "instruction": {"text": None}}
    if kind == "tools":
        return {"environment": {"kind": "single_turn"}, "limits": {"turns": 1}}
    raise ConfigError(
        f"methods: grpo-no-tools is of no use where environment.kind is {kind}, which has no tools "
        "that can be taken away; remove it"
    )
