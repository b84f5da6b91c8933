"""The demo of P²O: GRPO against P²O at the same number of policy rollouts, GEPA's included."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rich.table import Table

from cotune.config.run_file import RunConfig
from cotune.experiments.compare.arms import Arm
from cotune.experiments.compare.changes import merged
from cotune.experiments.compare.comparison import Comparison, ahead, plain_table
from cotune.experiments.compare.shipped import STATIC, paid
from cotune.experiments.report.hints import hint_phases
from cotune.methods.p2o.hints import HintOptions
from cotune.methods.p2o.p2o import P2OOptions
from cotune.run.console import describe_hints
from cotune.run.json_files import Row
from cotune.worlds.arithmetic_world import HARD

_BEST_HINTS = 5
_HOW = {"budget": f", its formula at dev_size {HintOptions().dev_size}"}
_SHORT_NAMES = {"addition": "add", "subtraction": "subtract", "multiplication": "multiply"}


class DemoP2O(Comparison):
    """`cotune demo-p2o`."""

    name = "demo-p2o"
    run_file = "demo-p2o.yaml"
    # Each at the learning rate that was best for it (docs/results/arithmetic.md).
    changes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "grpo": merged(STATIC, {"training": {"learning_rate": 8e-4}}),
        "p2o": {},
    }
    caption = (
        "A check that the mechanism works, on a small policy that was made for it and an offline "
        "rule-based reflector in an LLM's place. It is not evidence about pretrained models."
    )

    def opening(self, method: RunConfig) -> Sequence[str]:
        return [
            f"[bold]cotune demo-p2o[/]: {' against '.join(self.changes)} on the bundled arithmetic "
            f"problems, seed {method.seed}, {method.training.rollout_budget:,} policy rollouts "
            "each, those of hint evolution included; hints by the offline rules",
            "scaled down: "
            + ", ".join(
                f"{name} {size['here']:,} (paper: {size['paper']:,}{_HOW.get(name, '')})"
                for name, size in scaled_down(method).items()
            ),
        ]

    def standing(self, arm: Arm) -> str:
        """The hard questions of the epoch, and how far the evolution before it has come."""
        if arm.config.strategy.kind == "static":
            return ""
        events = arm.events()
        kinds = [event["kind"] for event in events]
        if "hard_samples" not in kinds:
            return "epoch 1"
        mined = len(kinds) - 1 - kinds[::-1].index("hard_samples")
        epoch = f"epoch {events[mined]['epoch'] + 1}: {events[mined]['hard']} hard"
        progress = [event for event in events[mined:] if event["kind"] == "hint_progress"]
        return f"{epoch}; {describe_hints('hint_progress', progress[-1])}" if progress else epoch

    def figures(self, arm: Arm, own: Row) -> Row:
        """The best hints of the last phase, by mean dev score; [] where there was none."""
        hints = [h for phase in hint_phases(arm.events())[-1:] for h in phase.hints if h.text]
        hints.sort(key=lambda hint: -(hint.mean or 0.0))
        return {
            "best_hints": [
                {"text": h.text, "mean_dev_score": h.mean, "in_cover": h.covering}
                for h in hints[:_BEST_HINTS]
            ]
        }

    def outcome(self, found: Mapping[str, Row], method: RunConfig) -> Row:
        p2o, grpo = found["p2o"], found["grpo"]
        return {
            "strategy": "p2o against grpo",
            "scaled_down": scaled_down(method),
            "verdict": (
                f"P²O ends {ahead(p2o['accuracy_hard'], grpo['accuracy_hard'])} GRPO on the hard "
                f"strata in held-out accuracy without a hint, {p2o['accuracy_hard']:.2f} against "
                f"{grpo['accuracy_hard']:.2f} (on all problems {p2o['em']:.2f} against "
                f"{grpo['em']:.2f}), for one seed at {paid(p2o):,} and {paid(grpo):,} policy "
                "rollouts."
            ),
        }

    def result_table(self, summary: Row) -> Table:
        """Held-out accuracy on all problems, on the hard strata and on each of them."""
        kinds = [name.removeprefix("long ") for name in HARD]
        table = plain_table(
            "Held-out accuracy without a hint (hard: the long problems)",
            ["all", "hard", *(_SHORT_NAMES.get(kind, kind) for kind in kinds)],
        )
        for name, arm in summary["arms"].items():
            for label, suffix in (("before", "_before"), ("after", "")):
                strata = arm[f"em{suffix}_by_stratum"]
                values = [arm[f"em{suffix}"], arm[f"accuracy_hard{suffix}"], *map(strata.get, HARD)]
                cells = ["" if value is None else f"{value:.2f}" for value in values]
                table.add_row(f"{name}, {label}", *cells)
        return table

    def prompts(self, summary: Row) -> Sequence[str]:
        hints = summary["arms"][self.method]["best_hints"]
        if not hints:
            return ["no hint was accepted"]
        shown = [f"  {h['mean_dev_score']:.2f}  {' '.join(h['text'].split())}" for h in hints]
        return ["best hints of the last phase, with their mean dev scores:", *shown]


def scaled_down(config: RunConfig) -> dict[str, dict[str, int]]:
    """The numbers of hint evolution that the run file makes smaller, "here" and the "paper"'s."""
    assert isinstance(config.strategy, P2OOptions)
    here, paper = config.strategy.hints, HintOptions()
    return {
        "hard_set_min_count": {"here": here.hard_set_min_count, "paper": paper.hard_set_min_count},
        "dev_size": {"here": here.dev_size, "paper": paper.dev_size},
        "budget": {
            "here": here.evaluations(here.dev_size),
            "paper": paper.evaluations(paper.dev_size),
        },
    }
