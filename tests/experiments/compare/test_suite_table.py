from typing import Any

from cotune.experiments.compare.results import SuiteSummary
from cotune.experiments.compare.suite_table import suite_tables
from cotune.utils.tables import on_console
from tests.experiments.report.pages import printed
from tests.experiments.report.suite_pages import method, spread, summary


def tables(told: dict[str, Any]) -> list[str]:
    """A suite's tables as the console shows them."""
    suite = SuiteSummary.model_validate(told)
    return [printed(on_console(table)) for table in suite_tables(suite, brief=True).values()]


TOLD = summary(
    method("grpo", "trained", 0.33, label="GRPO"),
    method("gepa", "prompt", None, status="failed", problem="no LLM answered"),
    method("inspo", "ours", 0.976, label="INSPO"),
)


def test_the_console_table_groups_methods_and_says_what_failed() -> None:
    lines = tables(TOLD)[0].splitlines()
    assert lines[0].strip() == "Held-out exact match"
    names = [line.partition("│")[0].strip() for line in lines[4:]]
    assert names == [
        "Trained", "GRPO (baseline)", "Prompt only", "gepa (failed)", "Ours", "INSPO",
    ]  # fmt: skip
    assert [cell.strip() for cell in lines[-1].split("│")] == [
        "INSPO", "97.6 % (93–100)", "+64.6 (+59 to +71)", "33.0 % (27–38)", "1x (3 088)",
    ]  # fmt: skip


def test_the_console_shows_scores_by_weights_and_instruction() -> None:
    each = {
        decoding: {"mean": mean, "interval": [0.0, 0.75]}
        for decoding, mean in (("greedy", 0.5), ("sampled", 0.25))
    }
    names = ("initial_plain", "initial_prompted", "trained_plain", "trained_prompted")
    kl = {
        "plain": {"mean": 0.5, "interval": [0.0, 1.0]},
        "prompted": {"mean": 0.125, "interval": [0.0, 1.0]},
    }
    scored = method("inspo", "ours", 0.5, quadrants=dict.fromkeys(names, each), divergence=kl)
    frozen = method("gepa", "prompt", 0.5, quadrants=dict.fromkeys(names, each))
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
    told = summary(method("m", "ours", 0.5, label=evil, status="failed", problem=evil),
                   name=evil)  # fmt: skip
    assert "[bold]a|b <b>*x*[31m c (baseline, failed)" in tables(told)[0]


def test_strata_and_costs_have_tables_of_their_own() -> None:
    strata = {f"{n} hops": 0.5 for n in range(5)}
    score = spread(0.5, 0.4, 0.6, strata)
    told = summary(
        method("static", "trained", 0.5, score=score),
        method("inspo", "ours", 0.5, score=score),
        strata=dict.fromkeys(strata, 10),
    )
    result, by_stratum, costs = tables(told)
    assert "1 hops" not in result
    assert by_stratum.count("50.0") == 10
    row = next(line for line in costs.splitlines() if line.strip().startswith("inspo"))
    assert [cell.strip() for cell in row.split("│")[1:]] == [
        "3 088", "2 600", "488", "1 200", "165 000", "11", "$0.00", "1 min 50 s",
    ]  # fmt: skip
