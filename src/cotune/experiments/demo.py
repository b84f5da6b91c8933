"""The demo: a static instruction against INSPO at the same number of policy rollouts."""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from cotune.config import load_config
from cotune.contracts import ConfigError, Stopped
from cotune.experiments.arms import Arm, hops, run_arms
from cotune.experiments.report import write_report
from cotune.run_dir import read_summary, write_summary

CAPTION = (
    "A check that the mechanism works, on a policy of one million parameters that was made for it "
    "and an offline rule-based optimizer in an LLM's place. It is not evidence about pretrained "
    "models."
)
AT_ONCE = 2


def run_demo(folder: Path, seed: int, console: Console) -> Path:
    """Trains both arms, each on a core of its own, and reports; returns the report's path.

    A folder of an earlier demo is moved aside, never deleted.
    """
    set_aside(folder, console)
    arms = demo_arms(folder, seed)
    steps = arms[0].config.training.steps
    console.print(
        f"[bold]cotune demo[/]: {' against '.join(a.name for a in arms)} on the bundled geo "
        f"questions, seed {seed}, {arms[0].config.training.rollout_budget} policy rollouts each; "
        "proposals by the offline rules"
    )
    console.print(f"[dim]{CAPTION}[/]")
    try:
        _watch(arms, steps, console)
    except KeyboardInterrupt:
        kept = " and ".join(f"cotune resume {arm.folder}" for arm in arms)
        raise Stopped(f"stopped; start again with cotune demo, or go on with {kept}") from None
    summary = summarise(folder, arms)
    report = write_report(folder)
    show(summary, folder, report, console)
    return report


def _watch(arms: Sequence[Arm], steps: int, console: Console) -> None:
    """Runs the arms: a table that is redrawn on a terminal, lines elsewhere."""
    if not console.is_terminal:
        run_arms(arms, AT_ONCE, _Lines(console, steps), every=5.0)
        return
    with Live(console=console, refresh_per_second=2) as live:
        run_arms(arms, AT_ONCE, lambda now: live.update(progress_table(now, steps)))


def demo_arms(folder: Path, seed: int) -> list[Arm]:
    """The two arms: one run file, two strategies."""
    with resources.as_file(resources.files("cotune.experiments") / "demo.yaml") as file:
        static = {"strategy": {"kind": "static"}, "llm": None}
        return [
            Arm(
                name,
                load_config(file, {"name": name, "output": folder / name, "seed": seed, **change}),
            )
            for name, change in (("static", static), ("inspo", {}))
        ]


def set_aside(folder: Path, console: Console) -> None:
    """Renames an earlier demo's folder; refuses to touch any other."""
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not (folder / "inspo.yaml").is_file():
        raise ConfigError(f"output: {folder} holds something else; choose another with --output")
    number = 1
    while (aside := folder.with_name(f"{folder.name}-{number}")).exists():
        number += 1
    folder.rename(aside)
    console.print(f"the earlier demo is now in {aside}", highlight=False)


def progress_table(arms: Sequence[Arm], steps: int) -> Table:
    """Where each arm stands."""
    table = Table(show_edge=False, pad_edge=False)
    for column in ("arm", "step", "reward", "zero-advantage groups", "population", "last event"):
        table.add_column(column)
    for arm in arms:
        table.add_row(*_standing(arm, steps))
    return table


def _standing(arm: Arm, steps: int) -> tuple[str, ...]:
    rows = arm.metrics()
    last_event = next((_short(e) for e in reversed(arm.events()) if _short(e)), "starting")
    if not rows:
        return (arm.name, f"0/{steps}", "", "", "", last_event)
    recent = rows[-3:]
    reward = sum(row["reward_mean"] for row in recent) / len(recent)
    return (
        arm.name,
        f"{rows[-1]['step']}/{steps}",
        f"{reward:.2f}",
        f"{rows[-1]['zero_advantage_share']:.0%}",
        f"{rows[-1].get('inspo/population_size', 1):.0f}",
        last_event,
    )


def _short(event: dict[str, Any]) -> str:
    kind = event["kind"]
    if kind == "evaluated":
        return f"held-out exact match {event['when']}: {event['em']:.2f}"
    if kind == "instruction_born" and event.get("score") is not None:
        return f"{event['id']} joined: {event['score']:.2f} against {event['parent_score']:.2f}"
    if kind == "instruction_pruned":
        return f"{event['id']} left at weight {event['weight']:.2f}"
    return "finished" if kind == "run_finished" else ""


class _Lines:
    """Progress as plain lines, where there is no terminal to redraw."""

    def __init__(self, console: Console, steps: int) -> None:
        self._console, self._steps, self._shown = console, steps, dict[str, str]()

    def __call__(self, arms: Sequence[Arm]) -> None:
        for arm in arms:
            name, step, reward, _, population, event = _standing(arm, self._steps)
            line = f"{name:8} step {step:8} reward {reward:5} population {population:2} {event}"
            if self._shown.get(name) != line:
                self._shown[name] = line
                self._console.print(line, markup=False, highlight=False)


def summarise(folder: Path, arms: Sequence[Arm]) -> dict[str, Any]:
    """Writes the comparison's summary.json from the runs' own."""
    found: dict[str, Any] = {}
    for arm in arms:
        own = read_summary(arm.folder)
        if own is None:
            raise ConfigError(f"{arm.folder}: holds no summary.json; run the demo again")
        figures = dict(next(iter(own["arms"].values())))
        figures["folder"] = arm.folder.name
        figures["em_by_hops"] = hops(figures["em_by_stratum"])
        figures["em_before_by_hops"] = hops(figures["em_before_by_stratum"])
        found[arm.name] = figures
    gain = found["inspo"]["em"] - found["static"]["em"]
    direction = "above" if gain >= 0 else "below"
    summary = {
        "schema_version": 1,
        "name": "demo",
        "strategy": "inspo against static",
        "seed": arms[0].config.seed,
        "caption": CAPTION,
        "llm": "offline rules",
        "arms": found,
        "best_instruction": found["inspo"]["best_instruction"],
        "verdict": (
            f"INSPO ends {abs(gain) * 100:.0f} points {direction} the static instruction in "
            f"held-out exact match, {found['inspo']['em']:.2f} against {found['static']['em']:.2f}, "
            "for one seed at equal policy rollouts."
        ),
    }
    write_summary(folder, summary)
    return summary


def show(summary: dict[str, Any], folder: Path, report: Path, console: Console) -> None:
    """The closing table: exact match by hops before and after, and what it cost."""
    console.print(result_table(summary))
    console.print(cost_table(summary))
    console.print(f"[bold]{summary['verdict']}[/]", highlight=False)
    console.print(f"[dim]{summary['caption']}[/]")
    console.print("best instruction:", summary["best_instruction"], markup=False, highlight=False)
    console.print(f"run folder: {folder}   report: {report}", markup=False, highlight=False)


def result_table(summary: dict[str, Any]) -> Table:
    """Held-out exact match by number of hops."""
    table = Table(
        title="Held-out exact match", title_justify="left", show_edge=False, pad_edge=False
    )
    table.add_column("")
    for column in ("all", "1 hop", "2 hops", "3 hops"):
        table.add_column(column, justify="right")
    for name, arm in summary["arms"].items():
        rows = [("before", "em_before"), ("after", "em")]
        if name != "static":
            rows.append(("after, initial instruction", "em_initial_instruction"))
        for label, key in rows:
            cells = [f"{value:.2f}" for value in arm[f"{key}_by_stratum"].values()]
            table.add_row(f"{name}, {label}", f"{arm[key]:.2f}", *cells)
    return table


def cost_table(summary: dict[str, Any]) -> Table:
    """Rollouts by purpose, tokens, LLM calls and time of each arm."""
    table = Table(title="Cost", title_justify="left", show_edge=False, pad_edge=False)
    table.add_column("")
    columns = (
        "train",
        "verify",
        "evaluation",
        "generated tokens",
        "LLM calls",
        "seconds",
    )
    for column in columns:
        table.add_column(column, justify="right")
    for name, arm in summary["arms"].items():
        rollouts = arm["policy_rollouts"]
        table.add_row(
            name,
            f"{rollouts['train']:,}",
            f"{rollouts['verify']:,}",
            f"{rollouts['evaluate']:,}",
            f"{arm['generated_tokens']:,}",
            str(arm["llm_calls"]),
            f"{arm['seconds']:.0f}",
        )
    return table
