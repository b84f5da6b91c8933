"""The demo: a static instruction against INSPO at the same number of policy rollouts."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rich.table import Table

from cotune.config.run_file import RunConfig
from cotune.experiments.compare.arms import Arm, hops
from cotune.experiments.compare.comparison import Comparison, ahead, plain_table
from cotune.experiments.compare.shipped import STATIC
from cotune.run.json_files import Row


class Demo(Comparison):
    """`cotune demo`."""

    name = "demo"
    run_file = "demo.yaml"
    changes: ClassVar[Mapping[str, Mapping[str, Any]]] = {"static": STATIC, "inspo": {}}
    caption = (
        "A check that the mechanism works, on a policy of one million parameters that was made for "
        "it and an offline rule-based optimizer in an LLM's place. It is not evidence about "
        "pretrained models."
    )

    def opening(self, method: RunConfig) -> Sequence[str]:
        return [
            f"[bold]cotune demo[/]: {' against '.join(self.changes)} on the bundled geo questions, "
            f"seed {method.seed}, {method.training.rollout_budget} policy rollouts each; proposals "
            "by the offline rules"
        ]

    def standing(self, arm: Arm) -> str:
        rows = arm.metrics()
        return f"population {rows[-1].get('inspo/population_size', 1):.0f}" if rows else ""

    def figures(self, arm: Arm, own: Row) -> Row:
        return {
            "em_by_hops": hops(own["em_by_stratum"]),
            "em_before_by_hops": hops(own["em_before_by_stratum"]),
        }

    def outcome(self, found: Mapping[str, Row], method: RunConfig) -> Row:
        inspo, static = found["inspo"]["em"], found["static"]["em"]
        return {
            "strategy": "inspo against static",
            "best_instruction": found["inspo"]["best_instruction"],
            "verdict": (
                f"INSPO ends {ahead(inspo, static)} the static instruction in held-out exact "
                f"match, {inspo:.2f} against {static:.2f}, for one seed at equal policy rollouts."
            ),
        }

    def result_table(self, summary: Row) -> Table:
        """Held-out exact match by number of hops."""
        table = plain_table("Held-out exact match", ["all", "1 hop", "2 hops", "3 hops"])
        for name, arm in summary["arms"].items():
            rows = [("before", "em_before"), ("after", "em")]
            if name != "static":
                rows.append(("after, initial instruction", "em_initial_instruction"))
            for label, key in rows:
                cells = [f"{value:.2f}" for value in arm[f"{key}_by_stratum"].values()]
                table.add_row(f"{name}, {label}", f"{arm[key]:.2f}", *cells)
        return table

    def prompts(self, summary: Row) -> Sequence[str]:
        return [f"best instruction: {summary['best_instruction']}"]
