"""The cells of a suite, each a row at one seed: its run files, its part of the budget, its quadrants."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cotune.config.overrides import merge
from cotune.config.run_file import RunConfig, TrainingConfig, parse_config
from cotune.errors import ConfigError
from cotune.experiments.chains import Chain, Command, look_at
from cotune.experiments.compare.methods import is_search, method_named
from cotune.experiments.compare.suite_file import MethodEntry, SuiteConfig, expand
from cotune.experiments.evaluate.quadrants import Quadrants, read_quadrants, relative
from cotune.methods.registry import method_of
from cotune.run.costs import policy_rollouts
from cotune.run.json_files import Row
from cotune.run.run_dir import RunDir

_APART = 1000  # between the seeds of a row's stages


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
        ConfigError: as `look_at`.
    """
    cells = [Cell(suite, base, entry, seed) for seed in suite.seeds for entry in suite.methods]
    look_at(cells)
    return cells
