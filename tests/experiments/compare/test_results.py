"""The summary of a suite: figures over seeds, compute classes, the verdict; and its tables."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cotune.config.run_file import RunConfig
from cotune.experiments.chains import run_chains
from cotune.experiments.compare.results import SuiteSummary, suite_tables, summarise
from cotune.experiments.compare.running import cells_of
from cotune.experiments.compare.suite_file import load_suite
from cotune.experiments.evaluate.quadrants import relative
from cotune.run.scores import wilson
from cotune.utils.tables import on_console
from tests.experiments.compare.folders import ALL, HALF, Start, finish, suite_file, value_of
from tests.experiments.evaluate.folders import quadrants
from tests.experiments.report.pages import console_text
from tests.experiments.report.suite_pages import method, spread, summary

PAID = {"train": 32, "verify": 8, "evaluate": 9}
VALID = "<search> </search> <answer> </answer> <think> </think> <information> </information>"


def good(config: RunConfig, _: Any) -> int:
    """INSPO is right everywhere, and without its instruction where the baseline is."""
    if config.strategy.kind == "inspo":
        finish(config, ALL, PAID, plain=HALF, instruction="Look up one.")
    else:
        finish(config, HALF, {"train": 40, "evaluate": 6})
    return 0


Summary = Callable[..., tuple[dict[str, Any], dict[str, dict[str, Any]]]]


@pytest.fixture
def summary_of(tmp_path: Path, start: Start) -> Summary:
    """A suite's summary after its runs, and its rows by name."""

    def summarise_runs(
        outcome: Any = good, **changes: Any
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        suite, base = load_suite(suite_file(tmp_path, **changes))
        cells = cells_of(suite, base)
        start(outcome)
        run_chains(cells, 2, lambda: None, every=0.0)
        summary = summarise(suite, cells, "none").model_dump()
        return summary, {row["name"]: row for row in summary["methods"]}

    return summarise_runs


def test_figures_are_means_over_seeds(summary_of: Summary) -> None:
    summary, rows = summary_of()
    inspo, baseline = rows["inspo"], rows["grpo"]
    assert (inspo["score"]["mean"], inspo["score"]["interval"]) == (1.0, wilson(1.0, 4))
    means = [row["mean"] for row in (inspo["plain"], baseline["plain"], baseline["score"])]
    assert means == [0.5, 0.5, 0.5]
    assert inspo["by_seed"] == {"0": 1.0, "1": 1.0}
    assert baseline["score"]["by_stratum"] == {"1 hop": 0.5, "2 hops": 0.5}
    assert inspo["gain"]["mean"] == 0.5
    assert baseline["gain"] is None
    assert inspo["costs"]["rollouts"] == 40
    costs = [inspo["costs"][name] for name in ("evaluation_rollouts", "llm_calls", "money")]
    assert costs == [9, 2, 0.5]
    assert inspo["runs"]["1"] == ["inspo/seed-1/train"]
    assert inspo["instruction"] == "Look up one."
    assert summary["strata"] == {"1 hop": 2, "2 hops": 2}
    assert (summary["n"], summary["measure"], summary["kind"]) == (4, "exact match", "suite")
    # Of two questions a stratum one differs: in a sixteenth of the draws none does.
    assert summary["verdict"] == (
        "Held-out exact match over GRPO: INSPO +50.0 points (95 %: +0 to +100), which may be none; at a budget "
        "of 40 policy rollouts, over seeds and questions."
    )


def test_quadrants_are_means_over_seeds(summary_of: Summary) -> None:
    def outcome(config: RunConfig, words: Any) -> int:
        folder = config.output
        if words[0] == "evaluate":
            strata = tuple(f"{1 + i // 2} hop" for i in range(4))
            worse = {"trained_plain": {"greedy": (0.0,) * 4, "sampled": (0.25,) * 4}}
            rewards = {**quadrants().rewards, **(worse if folder.parent.name == "seed-1" else {})}
            origin = value_of(words, "--since")
            since = relative(Path(origin), Path(words[1])) if origin else ""
            quadrants(rewards=rewards, since=since, strata=strata, rollouts=48).write(
                Path(words[1])
            )
        else:
            rollouts, figures = {"train": 36, "evaluate": 6}, {"em_n": 4}
            finish(config, HALF, rollouts, instruction=VALID, figures=figures)
        return 0

    _, rows = summary_of(
        outcome, quadrant_samples=2, focus="2", budget=36,
        methods=["grpo", {"method": "prompt-before-rl", "compute": "2x", "share": 0.5}],
    )  # fmt: skip
    row = rows["grpo"]
    # Of the last two questions; at seed 0 all right under the initial instruction, at seed 1 none.
    plain = row["quadrants"]["trained_plain"]
    assert (plain["greedy"]["mean"], plain["sampled"]["mean"]) == (0.5, 0.375)
    assert plain["greedy"]["interval"] == (0.0, 1.0)
    assert row["quadrants"]["initial_prompted"]["greedy"]["mean"] == 0.5
    assert row["divergence"]["plain"]["mean"] == 0.0
    divergence = {"mean": 0.5, "interval": None, "by_stratum": {"2 hop": 0.5}}
    assert row["divergence"]["prompted"] == divergence
    assert row["costs"]["evaluation_rollouts"] == 6 + 48
    assert row["plain"]["mean"] == 0.5
    # A row that took over an instruction is scored under the suite's own, too.
    staged = rows["prompt-before-rl"]
    assert staged["plain"]["mean"] == 0.5


def test_the_focus_is_what_is_scored(summary_of: Summary) -> None:
    def outcome(config: RunConfig, _: Any) -> int:
        right = (0.0, 0.0, 1.0, 1.0) if config.strategy.kind == "inspo" else (1.0, 1.0, 0.0, 0.0)
        finish(config, right, {"train": 40})
        return 0

    summary, rows = summary_of(outcome, focus="2")
    assert rows["inspo"]["score"]["mean"] == 1.0
    assert rows["grpo"]["score"]["mean"] == 0.0
    assert rows["inspo"]["gain"]["mean"] == 1.0
    assert rows["inspo"]["score"]["by_stratum"] == {"1 hop": 0.0, "2 hops": 1.0}
    assert summary["verdict"] == (
        "Held-out exact match on “2…” questions over GRPO: INSPO +100.0 points (95 %: −32 to +100), which may be "
        "none; at a budget of 40 policy rollouts, over seeds and questions."
    )
    _, rows = summary_of(outcome, focus="9")
    assert "no test question has a stratum that begins with '9'" in rows["grpo"]["problem"]


@pytest.mark.parametrize(("rollouts", "failing"), [(37, False), (43, False), (80, True)])
def test_other_compute_is_refused(rollouts: int, failing: bool, summary_of: Summary) -> None:
    """Also of a method that failed at another seed."""

    def outcome(config: RunConfig, _: Any) -> int:
        inspo = config.strategy.kind == "inspo"
        finish(config, ALL, {"train": rollouts if inspo else 40})
        return int(failing and inspo and config.seed)

    summary, rows = summary_of(outcome)
    row = rows["inspo"]
    assert row["status"] == ("failed" if failing else "unequal")
    assert row["problem"].endswith(
        f"paid {rollouts} policy rollouts; its compute class 1x allows 38 to 42"
    )
    assert row["score"] is None
    assert row["costs"]["rollouts"] == rollouts
    assert rows["grpo"]["status"] == "ok"
    assert summary["verdict"].startswith("No comparison")


def test_what_failed_is_a_row_with_its_reason(summary_of: Summary) -> None:
    def outcome(config: RunConfig, words: Any) -> int:
        return 1 if config.strategy.kind == "inspo" and config.seed else good(config, words)

    _, rows = summary_of(outcome)
    row = rows["inspo"]
    assert row["status"] == "failed"
    assert row["problem"].startswith("seed 1: failed: stage train, status 1: ValueError: it broke")
    assert row["by_seed"] == {"0": 1.0}
    assert row["gain"]["mean"] == 0.5  # on the seed that both have


def test_an_evaluation_that_cannot_be_read_leaves_the_others_their_rows(
    tmp_path: Path, summary_of: Summary
) -> None:
    def outcome(config: RunConfig, words: Any) -> int:
        good(config, words)
        if config.strategy.kind == "inspo" and config.seed == 0:
            for path in (config.output / "trajectories").iterdir():
                path.unlink()
        return 0

    _, rows = summary_of(outcome)
    row = rows["inspo"]
    assert row["status"] == "failed"
    folder = tmp_path / "out/inspo/seed-0/train"
    assert row["problem"].startswith(f"seed 0: failed: {folder}: was ")
    assert row["by_seed"] == {"1": 1.0}
    assert rows["grpo"]["status"] == "ok"


def test_staged_rows(summary_of: Summary) -> None:
    """They pay for all stages, and call no instruction that was taken over the initial one."""

    def outcome(config: RunConfig, _: Any) -> int:
        finish(config, HALF, {"train": config.training.rollout_budget or 0}, instruction=VALID)
        return 0

    methods = ["grpo", "w-p-w", "prompt-after-rl"]
    _, rows = summary_of(outcome, methods=methods, budget=80)
    assert rows["w-p-w"]["plain"] is None
    row = rows["prompt-after-rl"]
    assert row["plain"]["mean"] == 0.5
    assert (row["status"], row["costs"]["rollouts"], row["costs"]["seconds"]) == ("ok", 80, 20)
    assert row["runs"]["0"] == ["prompt-after-rl/seed-0/train", "prompt-after-rl/seed-0/prompt"]


def tables(raw: dict[str, Any]) -> list[str]:
    """A suite's tables as the console shows them."""
    suite = SuiteSummary.model_validate(raw)
    return [console_text(on_console(table)) for table in suite_tables(suite, brief=True).values()]


def test_the_console_shows_scores_by_weights_and_instruction() -> None:
    scores = {
        decoding: {"mean": mean, "interval": [0.0, 0.75]}
        for decoding, mean in (("greedy", 0.5), ("sampled", 0.25))
    }
    names = ("initial_plain", "initial_prompted", "trained_plain", "trained_prompted")
    kl = {
        "plain": {"mean": 0.5, "interval": [0.0, 1.0]},
        "prompted": {"mean": 0.125, "interval": [0.0, 1.0]},
    }
    scored = method("inspo", "ours", 0.5, quadrants=dict.fromkeys(names, scores), divergence=kl)
    frozen = method("gepa", "prompt", 0.5, quadrants=dict.fromkeys(names, scores))
    text = tables(summary(scored, frozen, method("x", "ours", 0.5), quadrant_samples=4))[1]
    rows = [" ".join(line.replace("│", "").split()) for line in text.splitlines()]
    assert rows[0] == "Held-out exact match, greedy, below it avg@4"
    greedy, sampled = " ".join(["50.0 % (0–75)"] * 4), " ".join(["25.0 % 0–75"] * 4)
    assert rows[4:] == [
        "Prompt only", f"gepa {greedy} –", sampled,
        "Ours", f"inspo (baseline) {greedy} plain 0.5", f"{sampled} prompted 0.12", "x – – – – –",
    ]  # fmt: skip


def test_nothing_in_a_name_is_markup() -> None:
    evil = "[bold]a|b <b>*x*\x1b[31m\nc"
    raw = summary(method("m", "ours", 0.5, label=evil, status="failed", problem=evil),
                  name=evil)  # fmt: skip
    assert "[bold]a|b <b>*x*[31m c (baseline, failed)" in tables(raw)[0]


def test_strata_and_costs_have_tables_of_their_own() -> None:
    strata = {f"{n} hops": 0.5 for n in range(5)}
    score = spread(0.5, 0.4, 0.6, strata)
    raw = summary(
        method("static", "trained", 0.5, score=score),
        method("inspo", "ours", 0.5, score=score),
        strata=dict.fromkeys(strata, 10),
    )
    result, by_stratum, costs = tables(raw)
    assert "1 hops" not in result
    assert by_stratum.count("50.0") == 10
    row = next(line for line in costs.splitlines() if line.strip().startswith("inspo"))
    assert [cell.strip() for cell in row.split("│")[1:]] == [
        "3 088", "1 200", "165 000", "11", "$0.00", "1 min 50 s",
    ]  # fmt: skip
