import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from cotune.errors import ConfigError
from cotune.experiments.report import write_report
from cotune.experiments.report.suite_report import write_suite_report
from cotune.run.run_dir import write_summary
from tests.experiments.report.pages import Checker
from tests.experiments.report.suite_pages import STRATA, build_suite, method, spread, stage, summary


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
    write_summary(folder, told)
    return page(write_suite_report(folder))


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("suite")
    build_suite(folder)
    return folder


def test_write_report_knows_a_suite_by_its_summary(suite: Path) -> None:
    path = write_report(suite)
    assert path == suite / "report.html"
    assert "cotune · suite" in page(path).words


def test_the_first_screen_says_what_was_run_and_what_came_of_it(suite: Path) -> None:
    found = page(write_suite_report(suite))
    head = found.words[: found.words.index("Result")]
    assert "table1-geo" in head
    assert "INSPO beat Search-R1." in head
    for fact in ("geo", "bundled:geo", "offline rules", "0, 1", "3_120 policy rollouts", "300",
                 "Runs 8 of 8 Policy rollouts 18_528 Evaluation rollouts 9_600 Money $0.00",
                 "Time, summed over runs 14 min 40 s"):  # fmt: skip
        assert fact in head
    assert "no complete or comparable result" not in found.words


def test_the_main_table_has_scores_intervals_seeds_strata_and_gains(suite: Path) -> None:
    found = page(write_suite_report(suite))
    headings = [row[0] for row in found.rows if len(row) == 1][:4]
    assert headings == ["Trained", "Prompt only", "Staged", "Ours"]
    assert found.row("INSPO") == [
        "INSPO", "97.6_% 93–100", "97.6 97.6", "98.0_%", "97.6_%", "97.6_%", "+64.6 +59 to +71",
        "1.00", "33.0_% 27–38", "1x 3_088",
    ]  # fmt: skip
    baseline = found.row("Search-R1 baseline")
    assert baseline[6:8] == ["–", "–"]
    assert found.row("Direct")[-1] == "1x 0"


def test_each_score_has_a_bar_with_its_interval_and_its_seeds(suite: Path) -> None:
    found = page(write_suite_report(suite))
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


def test_costs_are_shown_by_method_and_in_total(suite: Path) -> None:
    found = page(write_suite_report(suite))
    costs = [row for row in found.rows if row and row[0] == "INSPO"][1]
    assert costs == [
        "INSPO", "3_088", "2_600", "488", "1_200", "165_000", "11", "$0.00", "1 min 50 s",
    ]  # fmt: skip


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
    assert "gepa (failed, 0 of 2 seeds finished): seed 1: no LLM answered" in head
    assert "dapo (unequal compute): paid 3,900 of 3,120" in head
    assert "inspo (unfinished, 1 of 2 seeds finished): seed 1 is at step 4" in head
    assert found.row("gepa failed")[1:] == ["–", "– –", "–", "–", "–", "–", "–", "–", "1x –"]
    assert found.row("inspo unfinished")[2] == "90.0 –"


def test_curves_show_each_method_against_the_baseline(suite: Path) -> None:
    found = page(write_suite_report(suite))
    panels = re.findall(r'<svg class="chart".*?</svg>', found.html, re.DOTALL)
    titles = [re.search("<title>(.*?)</title>", panel)[1] for panel in panels]  # pyright: ignore
    assert titles == ["Search-R1", "Prompt, then GRPO", "INSPO"]
    assert [panel.count('<g class="muted">') for panel in panels] == [0, 2, 2]
    assert [panel.count('class="guide"') for panel in panels] == [0, 1, 0]
    assert "Each method's validation score, a line a seed" in found.words
    assert "No curve: Direct." in found.words


def test_training_reward_stands_in_where_nothing_was_validated(tmp_path: Path) -> None:
    stage(tmp_path / "a" / "0", 12, (0.2, 0.4))
    stage(tmp_path / "b" / "0", 12, (0.2, 0.9), during=False)
    found = written(
        tmp_path,
        summary(
            method("a", "trained", 0.4, runs={"0": ["a/0"]}),
            method("b", "ours", 0.9, runs={"0": ["b/0"]}),
            baseline="a",
        ),
    )
    assert "Each method's validation score or training reward" in found.words
    b = found.html[found.html.index("<title>b, training reward</title>") :]
    assert '<g class="muted">' in b[: b.index("</svg>")]  # the baseline's training reward


def test_instructions_of_first_seeds_are_shown_once(suite: Path) -> None:
    found = page(write_suite_report(suite))
    words = found.words[
        found.words.index("Best instructions") : found.words.index("Runs search-r1")
    ]
    assert words.count("Search for one entity at a time. 0") == 1
    assert "Search-R1, Direct" in words


def test_links_lead_to_the_reports_that_are_there(tmp_path: Path) -> None:
    told = build_suite(tmp_path)
    assert told["methods"][3]["runs"]["1"] == ["inspo/seed-1/train"]
    (tmp_path / "inspo/seed-1/train/report.html").unlink()
    shutil.rmtree(tmp_path / "prompt-first/seed-0/train")
    found = page(write_suite_report(tmp_path))
    assert "./inspo/seed-0/train/report.html" in found.links
    assert "./prompt-first/seed-1/prompt/report.html" in found.links
    assert all((tmp_path / link).is_file() for link in found.links)
    assert "inspo/seed-1/train (no report)" in found.words
    assert "prompt-first/seed-0/train: no run folder" in found.words


def test_a_broken_run_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    build_suite(tmp_path)
    (tmp_path / "inspo/seed-0/train/costs.jsonl").write_text("no costs\n", encoding="utf-8")
    found = page(write_suite_report(tmp_path))
    assert "costs.jsonl, line 1: not JSON" in found.words
    assert "<title>INSPO</title>" in found.html  # of seed 1


def test_run_folders_outside_the_suite_are_neither_read_nor_linked(tmp_path: Path) -> None:
    stage(tmp_path / "elsewhere", 4, (0.1, 0.2), instruction="a secret")
    runs = {"0": ["../elsewhere"], "1": [str(tmp_path / "elsewhere")]}
    found = written(tmp_path / "suite", summary(method("search-r1", "trained", 0.3, runs=runs)))
    assert found.links == []
    assert "a secret" not in found.words
    assert "../elsewhere: no run folder" in found.words


def test_texts_of_models_and_users_are_escaped(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(1)>{{ 7*7 }}\ud800"
    runs = {"0": ["javascript:alert(1)"]}
    entry = method("search-r1", "ours", 0.3, label=evil, status="failed", problem=evil,
                   instruction=evil, compute=evil, runs=runs)  # fmt: skip
    entry["by_stratum"] = {evil: 0.2, "b": 0.4}
    told = summary(entry, name=evil, caption=evil, verdict=evil, environment=evil,
                   policy=evil, llm=evil, measure=evil, strata={evil: 3, "b": 2})  # fmt: skip
    (tmp_path / "summary.json").write_text(json.dumps(told), encoding="utf-8")
    found = page(write_suite_report(tmp_path))
    assert found.words.count("alert(1)") > 10
    assert "{{ 7*7 }}" in found.words
    assert "49" not in found.words


def test_a_suite_that_has_finished_nothing_has_a_page_of_dashes(tmp_path: Path) -> None:
    nothing = method("search-r1", "trained", None, status="unfinished", problem="not begun")
    found = written(tmp_path, summary(nothing, strata={}, n=None))
    assert "Runs 0 of 2" in found.words
    assert found.row("search-r1")[1] == "–"
    assert "None" not in found.words
    assert "Curves" not in found.words
    assert "Best instructions" not in found.words


def test_one_method_of_one_seed_alone(tmp_path: Path) -> None:
    stage(tmp_path / "inspo" / "train", 6, (0.2, 0.9))
    only = method("inspo", "ours", 0.9, by_seed={"3": 0.9}, runs={"3": ["inspo/train"]})
    found = written(tmp_path, summary(only, seeds=[3]))
    assert len(found.row("inspo")) == 2 + len(STRATA) + 4


def test_many_strata_get_a_table_of_their_own(tmp_path: Path) -> None:
    strata = {f"kind {i}": 20 for i in range(6)}
    entry = method(
        "search-r1", "trained", 0.3, score=spread(0.3, 0.2, 0.4, dict.fromkeys(strata, 0.25))
    )
    found = written(tmp_path, summary(entry, strata=strata))
    assert "By stratum" in found.words
    assert [row for row in found.rows if row[0] == "search-r1 baseline"][1] == [
        "search-r1 baseline", *["25.0_%"] * 6,
    ]  # fmt: skip


def test_rewards_are_shown_with_three_digits(tmp_path: Path) -> None:
    entry = method("inspo", "ours", 1.5, score=spread(1.5, -0.25, 1.7), gain=spread(0.5, 0.25, 0.7))
    found = written(
        tmp_path, summary(method("search-r1", "trained", 1.0), entry, measure="mean reward")
    )
    assert found.row("inspo")[1] == "1.500 −0.250 to 1.700"
    assert found.row("inspo")[6] == "+0.500 +0.250 to +0.700"


def test_a_file_that_is_no_suites_is_refused_with_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no suite's summary"):
        write_suite_report(tmp_path)
    write_summary(tmp_path, summary({**method("m", "ours", 0.5), "status": "lost"}))
    with pytest.raises(ConfigError, match=r"summary\.json: methods\.0\.status is not a suite's"):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()
