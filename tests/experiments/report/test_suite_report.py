import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from cotune.experiments.compare.suite_summary import SuiteMethod, SuiteSummary
from cotune.experiments.report.suite_report import read_lines, write_suite_report
from cotune.run.record import Record
from tests.experiments.report.pages import Checker
from tests.experiments.report.suite_pages import (
    build_suite,
    method,
    spread,
    stage,
    summary,
)


class Page(Checker):
    """A suite's page, with its rows and links."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._cell: list[str] | None = None
        self.feed(html)
        self.close()
        self.html = html

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        super().handle_starttag(tag, attrs)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self._cell = []

    def handle_data(self, data: str) -> None:
        super().handle_data(data)
        if self._cell is not None:
            self._cell.append(data)

    def handle_endtag(self, tag: str) -> None:
        super().handle_endtag(tag)
        if tag in ("td", "th") and self._cell is not None:
            told = " ".join(self._cell).replace("\u202f", "_")
            self.rows[-1].append(" ".join(told.split()))
            self._cell = None

    def row(self, start: str) -> list[str]:
        """The first row whose first cell begins so; of the main table where it has it."""
        return next(row for row in self.rows if row and row[0].startswith(start))

    @property
    def links(self) -> list[str]:
        return [value for _, name, value in self.attributes if name == "href"]

    def count(self, css: str) -> int:
        """Count the elements that have exactly this class attribute."""
        return sum(name == "class" and value == css for _, name, value in self.attributes)


def page(path: Path) -> Page:
    """A well-formed page without scripts, handlers or references but relative ones to reports."""
    found = Page(path.read_text(encoding="utf-8"))
    assert found.open == []
    assert not {"script", "link", "img", "iframe", "object", "base", "form"} & set(found.tags)
    for tag, name, value in found.attributes:
        assert name not in ("src", "srcset", "action")
        assert not name.startswith("on")
        if name == "href":
            assert tag == "a"
            assert re.fullmatch(r"\./[\w./%+-]+/report\.html", value), value
        assert "://" not in value
    style = found.html[found.html.index("<style>") : found.html.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert "default-src 'none'" in found.html
    return found


def written(folder: Path, told: dict[str, Any]) -> Page:
    folder.mkdir(exist_ok=True)
    return page(write_suite_report(folder, SuiteSummary.model_validate(told)))


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Page:
    folder = tmp_path_factory.mktemp("suite")
    return written(folder, build_suite(folder))


def test_the_first_screen_says_what_was_run_and_what_came_of_it(suite: Page) -> None:
    found = suite
    head = found.words[: found.words.index("Result")]
    assert "table1-geo" in head
    assert "INSPO beat Search-R1." in head
    for fact in ("geo", "bundled:geo", "offline rules", "0, 1", "3_120 policy rollouts", "300",
                 "Runs 8 of 8 Policy rollouts 18_528 Evaluation rollouts 9_600 Money $0.00",
                 "Time, summed over runs 14 min 40 s"):  # fmt: skip
        assert fact in head
    assert "no complete or comparable result" not in found.words
    assert "cotune · suite" in found.words
    assert "95 % over seeds and questions, n" in found.words
    assert "difference is larger than seeds and questions can explain" in found.words


def test_the_tables_have_scores_intervals_seeds_strata_and_gains(suite: Page) -> None:
    found = suite
    headings = [row[0] for row in found.rows if len(row) == 1][:4]
    assert headings == ["Trained", "Prompt only", "Staged", "Ours"]
    assert found.row("INSPO") == [
        "INSPO", "97.6_% 93–100", "97.6 97.6", "+64.6 +59 to +71", "33.0_% 27–38", "1x 3_088",
    ]  # fmt: skip
    assert ["INSPO", "98.0_%", "97.6_%", "97.6_%"] in found.rows
    baseline = found.row("Search-R1 baseline")
    assert baseline[3] == "–"
    assert found.row("Direct")[-1] == "1x 0"


def test_each_score_has_a_bar_with_its_interval_and_its_seeds(suite: Page) -> None:
    found = suite
    bars = re.findall(r'<span class="bar [^>]*>(.*?)</span>', found.html, re.DOTALL)
    assert len(bars) == 4
    low, right = map(float, re.findall(r'<i style="left:([\d.]+)%;right:([\d.]+)%">', bars[3])[0])
    dot = float(re.findall(r'class="dot" style="left:([\d.]+)%', bars[3])[0])
    assert 0 < low < dot < 100 - right <= 100
    assert bars[3].count('class="seed"') == 2


def test_scores_before_training_are_shown_if_they_are_known(tmp_path: Path) -> None:
    p2o = method("p2o", "ours", 0.9, before=spread(0.125, 0.0, 0.25))
    found = written(tmp_path, summary(method("search-r1", "trained", 0.5), p2o))
    assert found.row("p2o")[-3:] == ["12.5_%", "33.0_% 27–38", "1x 3_088"]
    assert found.row("search-r1 baseline")[-3] == "–"
    found = written(tmp_path, summary(method("search-r1", "trained", 0.5)))
    assert not any(cell == "Before training" for row in found.rows for cell in row)


def test_a_gain_is_coloured_where_its_interval_excludes_zero(tmp_path: Path) -> None:
    found = written(
        tmp_path,
        summary(
            method("search-r1", "trained", 0.5),
            method("better", "ours", 0.9, gain=spread(0.4, 0.1, 0.6)),
            method("worse", "ours", 0.1, gain=spread(-0.4, -0.6, -0.1)),
            method("same", "ours", 0.55, gain=spread(0.05, -0.1, 0.2)),
        ),
    )
    assert (found.count("up"), found.count("down")) == (1, 1)


def test_methods_without_a_sound_result_stay_with_their_reason(tmp_path: Path) -> None:
    found = written(
        tmp_path,
        summary(
            method("search-r1", "trained", 0.33),
            method("dapo", "trained", 0.4, status="unequal", problem="paid 3,900 of 3,120"),
            method("gepa", "prompt", None, status="failed", problem="seed 1: no LLM answered"),
            method("inspo", "ours", 0.9, status="unfinished", problem="seed 1 is at step 4",
                   by_seed={"0": 0.9}),
        ),
    )  # fmt: skip
    head = found.words[: found.words.index("Result")]
    assert "3 of 4 methods have no complete or comparable result." in head
    assert "gepa (failed): seed 1: no LLM answered" in head
    assert "dapo (unequal compute): paid 3,900 of 3,120" in head
    assert "inspo (unfinished): seed 1 is at step 4" in head
    assert found.row("gepa failed")[1:] == ["–", "– –", "–", "–", "1x –"]
    assert found.row("inspo unfinished")[2] == "90.0 –"


def lines_of(folder: Path, *names: str) -> list[Any]:
    missing: list[str] = []
    entry = method("m", "ours", None, runs={"0": list(names)})
    lines = read_lines(folder, SuiteMethod(**entry), missing)
    assert not missing
    return lines


def test_rollouts_count_training_and_verification_and_no_evaluation(tmp_path: Path) -> None:
    stage(tmp_path / "a", 8, (0.2, 0.9), verify=True)
    (line,) = lines_of(tmp_path, "a")
    assert [x for x, _ in line] == [*(96 * step for step in range(1, 8)), 8 * 96 + 48]


def test_rollouts_that_a_resume_dropped_do_not_count(tmp_path: Path) -> None:
    run = Record.create(tmp_path / "a", {"name": "a"})
    run.begin_attempt(None)
    for step in (1, 2):
        run.step = step
        run.count("train", 100, 0)
    run.begin_attempt(1)
    run.step = 2
    run.count("train", 7, 0)
    for step in (1, 2):
        run.metrics(step, {"reward_mean": 0.5})
    assert lines_of(tmp_path, "a") == [[(100, 0.5), (107, 0.5)]]


def test_stages_are_laid_end_to_end(tmp_path: Path) -> None:
    stage(tmp_path / "prompt", 4, (0.2, 0.5))
    stage(tmp_path / "train", 8, (0.5, 0.9))
    (line,) = lines_of(tmp_path, "prompt", "train")
    assert [line[i][0] for i in (0, 4, 11)] == [96, 5 * 96, 12 * 96]


def test_charts_show_each_method_against_the_baseline_on_one_scale(suite: Page) -> None:
    panels = re.findall(r'<svg class="chart".*?</svg>', suite.html, re.DOTALL)
    titles = [re.search("<title>(.*?)</title>", panel)[1] for panel in panels]  # pyright: ignore
    assert titles == ["Search-R1", "Prompt, then GRPO", "INSPO"]
    assert [panel.count('<g class="muted">') for panel in panels] == [0, 2, 2]
    assert "Search for one entity at a time. 0" in suite.words  # INSPO's best instruction
    assert all("100\u2009%</text>" in panel for panel in panels)


def test_links_lead_to_the_reports_that_are_there(tmp_path: Path) -> None:
    told = build_suite(tmp_path)
    (tmp_path / "inspo/seed-1/train/report.html").unlink()
    shutil.rmtree(tmp_path / "prompt-first/seed-0/train")
    found = written(tmp_path, told)
    assert "./inspo/seed-0/train/report.html" in found.links
    assert "./inspo/seed-1/train/report.html" not in found.links
    assert all((tmp_path / link).is_file() for link in found.links)
    assert "prompt-first/seed-0/train" in found.words


def test_a_broken_run_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    told = build_suite(tmp_path)
    (tmp_path / "inspo/seed-0/train/costs.jsonl").write_text("no costs\n", encoding="utf-8")
    found = written(tmp_path, told)
    assert "costs.jsonl, line 1: not JSON" in found.words
    assert "<title>INSPO</title>" in found.html  # of seed 1


def test_texts_of_models_and_users_are_escaped(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(1)>{{ 7*7 }}\ud800"
    stage(tmp_path / "r", 4, (0.1, 0.2), instruction=evil)
    score = spread(0.3, 0.2, 0.4, {evil: 0.2, "b": 0.4})
    entry = method("search-r1", "ours", 0.3, label=evil, status="failed", problem=evil,
                   score=score, compute=evil, runs={"0": ["r"]})  # fmt: skip
    told = summary(entry, name=evil, caption=evil, verdict=evil, environment=evil,
                   policy=evil, llm=evil, measure=evil, strata={evil: 3, "b": 2})  # fmt: skip
    found = written(tmp_path, told)
    assert found.words.count("alert(1)") > 10
    assert "{{ 7*7 }}" in found.words
    assert "49" not in found.words


def test_a_suite_that_has_finished_nothing_has_a_page_of_dashes(tmp_path: Path) -> None:
    nothing = method("search-r1", "trained", None, status="unfinished", problem="not begun")
    found = written(tmp_path, summary(nothing, strata={}, n=None))
    assert "Runs 0 of 2" in found.words
    assert found.row("search-r1")[1] == "–"
    assert "None" not in found.words
    assert "moving average" not in found.words


def test_one_seed_claims_nothing_of_others(tmp_path: Path) -> None:
    only = method("inspo", "ours", 0.9, by_seed={"3": 0.9})
    found = written(tmp_path, summary(only, seeds=[3]))
    assert len(found.row("inspo")) == 5
    assert "95 % over questions, one seed, n" in found.words
    assert "It says nothing about other seeds, whose scores may lie outside." in found.words
    assert "larger than the choice of questions can explain" in found.words
    assert "seeds and questions" not in found.words
