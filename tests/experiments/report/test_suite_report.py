import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from cotune.experiments.compare.results import SuiteMethod, SuiteSummary
from cotune.experiments.report.charts import Point
from cotune.experiments.report.suite_report import read_curves, write_suite_report
from tests.experiments.report.pages import check, rows_of
from tests.experiments.report.suite_pages import build_suite, method, spread, stage, summary


class Page:
    """The page of a suite, checked; its words, rows and links."""

    def __init__(self, folder: Path, raw: dict[str, Any]) -> None:
        folder.mkdir(exist_ok=True)
        path = write_suite_report(folder, SuiteSummary.model_validate(raw))
        checked = check(path)
        self.html = path.read_text(encoding="utf-8")
        self.words = checked.words
        self.links = checked.links
        self.rows = rows_of(self.html)

    def row(self, start: str) -> list[str]:
        """The first row whose first cell begins so; of the main table where it has it."""
        return next(row for row in self.rows if row and row[0].startswith(start))


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Page:
    folder = tmp_path_factory.mktemp("suite")
    return Page(folder, build_suite(folder))


def test_the_page_says_what_was_run_and_what_came_of_it(suite: Page) -> None:
    head = suite.words[: suite.words.index("Result")]
    for fact in ("cotune · suite", "table1-geo", "INSPO beat Search-R1.", "bundled:geo", "offline rules", "0, 1",
                 "3_120 policy rollouts", "Runs 8 of 8 Policy rollouts 18_528 Evaluation rollouts 9_600 Money $0.00",
                 "Time, summed over runs 14 min 40 s"):  # fmt: skip
        assert fact in head
    assert "no complete or comparable result" not in suite.words
    assert "95 % over seeds and questions, n" in suite.words
    headings = [row[0] for row in suite.rows if len(row) == 1][:4]
    assert headings == ["Trained", "Prompt only", "Staged", "Ours"]
    assert suite.row("INSPO") == [
        "INSPO", "97.6_% 93–100", "97.6 97.6", "+64.6 +59 to +71", "33.0_% 27–38", "1x 3_088",
    ]  # fmt: skip
    assert ["INSPO", "98.0_%", "97.6_%", "97.6_%"] in suite.rows
    assert suite.row("Search-R1 baseline")[3] == "–"
    assert suite.row("Direct")[-1] == "1x 0"
    bars = re.findall(r'<span class="bar [^>]*>(.*?)</span>', suite.html, re.DOTALL)
    assert len(bars) == 4
    low, right = map(float, re.findall(r'<i style="left:([\d.]+)%;right:([\d.]+)%">', bars[3])[0])
    dot = float(re.findall(r'class="dot" style="left:([\d.]+)%', bars[3])[0])
    assert 0 < low < dot < 100 - right <= 100
    assert bars[3].count('class="seed"') == 2


def test_gains_are_coloured_and_methods_without_a_sound_result_say_why(tmp_path: Path) -> None:
    """A gain has a colour where its interval excludes zero."""
    page = Page(tmp_path, summary(
        method("search-r1", "trained", 0.5),
        method("better", "ours", 0.9, gain=spread(0.4, 0.1, 0.6), before=spread(0.125, 0.0, 0.25)),
        method("worse", "ours", 0.1, gain=spread(-0.4, -0.6, -0.1)),
        method("same", "ours", 0.55, gain=spread(0.05, -0.1, 0.2)),
        method("dapo", "trained", None, status="unequal", problem="paid 3,900 of 3,120"),
        method("gepa", "prompt", None, status="failed", problem="seed 1: no LLM answered"),
        method("inspo", "prompt", 0.9, status="unfinished", problem="seed 1 is at step 4",
               by_seed={"0": 0.9}, gain=None),
    ))  # fmt: skip
    assert [page.html.count(f'<b class="{css}">') for css in ("up", "down")] == [1, 1]
    assert page.row("better")[-3:] == ["12.5_%", "33.0_% 27–38", "1x 3_088"]
    assert page.row("search-r1 baseline")[-3] == "–"
    head = page.words[: page.words.index("Result")]
    for line in ("3 of 7 methods have no complete or comparable result.", "gepa (failed): seed 1: no LLM answered",
                 "dapo (unequal compute): paid 3,900 of 3,120", "inspo (unfinished): seed 1 is at step 4"):  # fmt: skip
        assert line in head
    assert page.row("gepa failed")[1:] == ["–", "– –", "–", "–", "–", "1x –"]
    assert page.row("inspo unfinished")[2] == "90.0 –"


def curves_of(folder: Path, **runs: list[str]) -> list[list[Point]]:
    by_seed = {key.removeprefix("s"): names for key, names in runs.items()}
    return read_curves(folder, SuiteMethod(**method("m", "ours", None, runs=by_seed)), [])


def test_rollouts_count_training_and_verification_and_stages_are_laid_end_to_end(
    tmp_path: Path,
) -> None:
    stage(tmp_path / "a", 8, (0.2, 0.9), verify=True)
    stage(tmp_path / "b", 2, (0.5, 0.9))
    (curve,) = curves_of(tmp_path, s0=["a", "b"])
    rollouts = 8 * 96 + 48
    steps = [96 * step for step in range(1, 8)]
    assert [x for x, _ in curve] == [*steps, rollouts, rollouts + 96, rollouts + 2 * 96]


def test_charts_show_each_method_against_the_baseline_on_one_scale(suite: Page) -> None:
    panels = re.findall(r'<svg class="chart".*?</svg>', suite.html, re.DOTALL)
    titles = [re.search("<title>(.*?)</title>", panel)[1] for panel in panels]  # pyright: ignore
    assert titles == ["Search-R1", "Prompt, then GRPO", "INSPO"]
    assert [panel.count('<g class="muted">') for panel in panels] == [0, 2, 2]
    assert all("100\u2009%</text>" in panel for panel in panels)


def test_missing_and_broken_runs_are_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    raw = build_suite(tmp_path)
    (tmp_path / "inspo/seed-1/train/report.html").unlink()
    (tmp_path / "inspo/seed-0/train/costs.jsonl").write_text("no costs\n", encoding="utf-8")
    shutil.rmtree(tmp_path / "prompt-first/seed-0/train")
    page = Page(tmp_path, raw)
    assert "./inspo/seed-0/train/report.html" in page.links
    assert "./inspo/seed-1/train/report.html" not in page.links
    assert all((tmp_path / link).is_file() for link in page.links)
    assert "prompt-first/seed-0/train" in page.words
    assert "costs.jsonl, line 1: not JSON" in page.words
    assert "<title>INSPO</title>" in page.html  # of seed 1


def test_texts_of_models_and_users_are_escaped(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(1)>{{ 7*7 }}\ud800"
    stage(tmp_path / "r", 4, (0.1, 0.2))
    score = spread(0.3, 0.2, 0.4, {evil: 0.2, "b": 0.4})
    entry = method("search-r1", "ours", 0.3, label=evil, status="failed", problem=evil,
                   score=score, compute=evil, instruction=evil, runs={"0": ["r"]})  # fmt: skip
    raw = summary(entry, name=evil, caption=evil, verdict=evil, environment=evil,
                  policy=evil, llm=evil, measure=evil, strata={evil: 3, "b": 2})  # fmt: skip
    page = Page(tmp_path, raw)
    assert page.words.count("alert(1)") > 10
    assert "{{ 7*7 }}" in page.words
    assert "49" not in page.words


def test_one_seed_claims_nothing_of_others(tmp_path: Path) -> None:
    only = method("inspo", "ours", 0.9, by_seed={"3": 0.9})
    page = Page(tmp_path, summary(only, seeds=[3]))
    assert len(page.row("inspo")) == 5
    assert "95 % over questions, one seed, n" in page.words
    assert "other seeds may lie outside" in page.words
    assert "seeds and questions" not in page.words
