"""The report of a run: its parts, its instructions and its quadrants."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.experiments.evaluate.quadrants import hash_of_best
from cotune.experiments.report.pages import sentence_diff
from cotune.experiments.report.run_report import RecordedRun, family, training_charts, write_report
from cotune.run.best import InstructionRow
from cotune.run.record import Record
from cotune.run.run_dir import RunDir
from cotune.types import Assignment, Prompt, StopReason, Task, Trajectory, Turn
from cotune.utils.tables import Scores, duration, money, percent
from tests.experiments.evaluate.folders import quadrants
from tests.experiments.report.pages import check, rollout

PLAIN = "Answer the question. You can search by writing <search> query </search>."


def evaluation(run: Record, step: int, em: float, when: str) -> None:
    strata = {"1 hop": [min(1.0, em + 0.2), 100], "2 hops": [em, 100]}
    run.event("evaluated", step, split="validation", prompt="best", instruction_id="i0",
              em=em, by_stratum=strata, n=300, when=when, trained=step)  # fmt: skip


def birth(run: Record, step: int, name: str, text: str, parent: str | None, **fields: Any) -> None:
    origin = "rewrite" if parent else "initial"
    run.event("instruction_born", step, id=name, text=text, parent=parent, born=step,
              **{"origin": origin, "critique": "", **fields})  # fmt: skip


def train(run: Record, steps: int) -> None:
    """Records what a run of `steps` steps would; the best of its instructions is i3."""
    run.begin_attempt(None)
    birth(run, 0, "i0", PLAIN, None)
    for i in (1, 2, 3):
        birth(run, 0, f"i{i}", f"{PLAIN} Remedy {i}.", "i0")
    evaluation(run, 0, 0.21, "before")
    for step in range(1, steps + 1):
        if step % 20 == 0:
            evolution(run, step, f"i{3 + step // 20}")
        run.event("population", step, members=[
            {"id": f"i{i}", "weight": 0.1, "observed": 0.1 + 0.1 * (i == 3), "observed_rollouts": 40 * step}
            for i in range(4 + step // 20)
        ])  # fmt: skip
        run.step = step
        run.count("train", 200, 9000)
        if step % 3 == 0:
            run.count("verify", 60, 0)
        run.metrics(
            step, {"reward_mean": step / steps, "entropy": 1.2, "zero_advantage_share": 0.3}
        )
        if step % 10 == 0:
            evaluation(run, step, 0.2 + 0.42 * step / steps, "during")
    run.rollouts(steps, "evaluate", [rollout(float(i % 2), group=i) for i in range(60)])


def evolution(run: Record, step: int, name: str) -> None:
    """A phase in which a new instruction takes one sentence out of i3, and puts two in."""
    text = "Answer the question step by step. Remedy 3. Be brief."
    birth(run, step, name, text, "i3", origin="reflection", score=0.52, parent_score=0.41,
          critique="It searched the whole question.")  # fmt: skip
    run.event("instruction_rejected", step, text=f"{text} Be kind.", parent="i3",
              origin="reflection", reason="not better than its parent", score=0.3,
              parent_score=0.41)  # fmt: skip
    run.event("proposal_failed", step, reason="no <instruction> in the reply")
    run.event("phase_failed", step, reason="LLMError: <503>", in_a_row=1)


CONFIG = {"name": "geo", "strategy": {"kind": "inspo"}, "policy": {"path": "geo-1m"}, "seed": 3}


@pytest.fixture
def run(tmp_path: Path) -> Record:
    """A run that has just begun."""
    return Record.create(tmp_path / "run", CONFIG)


def test_the_page_covers_the_run(run: Record) -> None:
    train(run, 60)
    evaluation(run, 60, 0.62, "after")
    run.count("evaluate", 1800, 0)
    run.write_summary({"name": "geo", "llm": "offline rules"})
    path = write_report(run.path)
    assert path == run.report_path
    page = check(path)
    assert "run report" in page.words
    assert "Held-out exact match went from 21.0_% to 62.0_%." in page.words
    assert "trained, best instruction 62.0_% 56–67 82.0_% 73–88" in page.words
    assert page.tags.count("svg") == 4
    assert "Not finished" not in page.words
    for text in (
        "Critique of i3. It searched the whole question.",
        "3 × no <instruction> in the reply",
        "Rejected proposals (3)",
        "10 of the 60 rollouts of the evaluation after step 60, lowest rewards first.",
        "no proposal of this phase was useful: LLMError: <503>",
        "Method inspo Model geo-1m Proposer offline rules Seed 3 Steps 60",
        "Policy rollouts 13_200 · train 12_000 (90.9_%) · verify 1_200 (9.1_%)",
        "Rollouts of evaluations, not counted above 1_800",
        "Phases without a useful proposal 3",
    ):
        assert text in page.words, text
    assert {"mark", "del"} <= set(page.tags)
    html = path.read_text(encoding="utf-8")
    headings = ["Result", "Cost", "Training", "Instructions", "Rollouts", "Notices"]
    assert re.findall("<h2>(.*?)</h2>", html) == headings


def test_a_killed_run_is_reported_as_far_as_it_came(run: Record) -> None:
    train(run, 12)
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 13, "rew')
    page = check(write_report(run.path))
    assert "Not finished" in page.words
    assert "up to step 12" in page.words
    assert f"cotune resume {run.path}" in page.words
    assert "Held-out exact match was 55.0_% at step 10." in page.words
    assert "Best instruction: i3, present from the start (rewrite)" in page.words
    assert "Generated tokens 108_000" in page.words  # 12 steps of 9000 and 3.5 s
    assert (
        RunDir.open(run.path).seconds_spent()
        == run.read_metrics()[11]["time"] - run.read_events()[0]["time"]
    )


def test_held_out_scores_are_those_under_the_best_instruction_of_their_time(run: Record) -> None:
    run.event("evaluated", 1, split="validation", when="during", em=0.5, n=8, trained=0)
    for when, em in (("during", 0.75), ("contender", 0.875), ("uplift", 0.25)):
        run.event("evaluated", 21, split="validation", when=when, em=em, n=8, trained=20)
    charts = [c for c in training_charts(RecordedRun(run.path)) if c.title.startswith("Held-out")]
    assert charts[0].series[0].points == [(0.0, 0.5), (20.0, 0.75)]
    assert "was 75.0_% at step 20." in check(write_report(run.path)).words


def test_an_empty_run_and_a_scripts_run(tmp_path: Path) -> None:
    script = Record.create(tmp_path / "out/cotune", CONFIG | {"library": {}})
    words = check(write_report(script.path)).words
    assert "Continue in its script, with trainer.train(resume_from_checkpoint=True)" in words
    assert "cotune resume" not in words
    run = Record.create(tmp_path / "a", {})
    words = check(write_report(run.path)).words
    assert "up to step 0" in words
    assert "No held-out result yet." in words
    evaluation(run, 0, 0.25, "before")
    assert "was 25.0_% before training." in check(write_report(run.path)).words
    run.event("notice", 1, text="cut \ud83d")
    assert "cut" in check(write_report(run.path)).words


def test_a_resumed_run_says_what_changed_and_ignores_the_old_summary(run: Record) -> None:
    train(run, 6)
    run.write_summary({})
    run.cut_back(4)
    run.event("resumed", 4, from_step=4, changed={
        "training.steps": [6, 12], "llm.model": None, "logging.report_to": [[], ["<i>wandb"]],
    })  # fmt: skip
    words = check(write_report(run.path)).words
    assert "Not finished" in words
    assert (
        "resumed from step 4 (attempt 2), with another run file: training.steps 6 → 12; llm.model another value, "
        'which is not recorded; logging.report_to [] → ["<i>wandb"]'
    ) in words


EVIL = "<script>alert(1)</script>{{ 7*7 }}{% raw %}\"'&amp;</style></details><!--\x1b[31m\x00\u202e"


def record_instructions(run: Record, evil: Callable[[], str]) -> None:
    for i in range(2):
        run.event("instruction_born", i, id=evil(), text=evil(), parent=None, origin=evil(),
                  born=i, critique=evil(), score=0.1, parent_score=0.2)  # fmt: skip
    run.event("instruction_rejected", 1, text=EVIL, parent=EVIL, origin=EVIL, reason=evil(),
              score=0.1, parent_score=0.2)  # fmt: skip
    run.event("proposal_failed", 1, reason=evil())
    run.event("population", 1, members=[
        {"id": EVIL, "weight": 0.5, "probability": 1.0, "observed": 0.5, "observed_rollouts": 9}
    ])  # fmt: skip


def record_hints(run: Record, evil: Callable[[], str]) -> None:
    run.event("hint_phase", 2, phase=1, hard=4, dev=2, train=2, budget=9, reflection="gepa")
    run.event("hint_accepted", 2, text=evil(), parent="", mean_dev_score=0.5)
    run.event("hint_accepted", 2, text=f"Kept. {EVIL}", parent=evil(), mean_dev_score=0.5)
    run.event("hint_rejected", 2, text=EVIL, parent=EVIL, reason=evil())
    run.event("proposal_failed", 2, reason=evil())
    run.event("hint_phase_ended", 2, phase=1, evaluations=9, budget=9, asked=4, proposed=3,
              valid=2, accepted=2, covering=1, covering_texts=[EVIL], solved_without=0.0,
              solved_by_cover=0.5, solved=[{"text": EVIL, "dev": [1]}])  # fmt: skip


@pytest.mark.parametrize("record_texts", [record_instructions, record_hints])
def test_no_text_of_a_model_becomes_markup_or_template(
    record_texts: Callable[[Record, Callable[[], str]], None], tmp_path: Path
) -> None:
    run = Record.create(tmp_path / "evil", CONFIG | {"name": EVIL, "policy": {"path": EVIL}})
    places = iter(range(1000))

    def evil() -> str:
        return f"@{next(places)}@ {EVIL}"

    record_texts(run, evil)
    run.event("notice", 1, text=evil())
    run.event("phase_failed", 1, reason=evil(), in_a_row=1)
    run.event("proposals_ended", 1, reason=evil())
    run.event("evaluated", 1, split=evil(), prompt=EVIL, em=0.5, n=2, when="during",
              trained=0, instruction_id=EVIL)  # fmt: skip
    run.event("evaluated", 1, split=evil(), prompt="best", em=0.5, n=2, when="after",
              trained=1, instruction_id=EVIL, by_stratum={evil(): [0.5, 2]})  # fmt: skip
    run.metrics(1, {"reward_mean": 0.5})
    prompt = Prompt(evil(), evil())
    task = Task("q", evil(), (evil(),), evil())
    run.rollouts(1, "evaluate", [Trajectory(
        Assignment(task, prompt, Prompt(EVIL), evil(), 0), (1,), (1,), (2, 3), (1, 0), (0.0, 0.0),
        (Turn(evil(), evil(), evil(), evil()),), StopReason.ANSWERED, evil(), 0.0,
    )])  # fmt: skip
    run.write_summary({"name": EVIL, "llm": evil()})
    html = write_report(run.path).read_text()
    page = check(run.report_path)
    assert "<script" not in html.lower()
    assert "<!--" not in html
    assert "</style>" not in html[html.index("</style>") + 8 :]
    numbers = {int(n) for n in re.findall(r"@(\d+)@", html)}
    assert numbers == set(range(next(places))), "a field of the test is not in the page"
    texts = "".join(page.text)
    assert texts.count("{{ 7*7 }}") == texts.count("<script>alert(1)</script>") >= len(numbers)
    assert "<!--[31m" in texts
    assert "@ 49" not in texts
    assert ">49" not in texts


def test_scores_that_are_no_shares_are_shown_as_numbers(run: Record) -> None:
    for step, when, em in ((1, "before", -0.5), (2, "after", 1.25)):
        run.event("evaluated", step, split="test", em=em, n=9, when=when, trained=step,
                  measure="mean reward", by_stratum={})  # fmt: skip
    words = check(write_report(run.path)).words
    assert "Held-out mean reward went from −0.500 to 1.250." in words
    assert "trained, best instruction 1.250 change +1.750" in words


def test_behaviour_is_drawn_from_what_a_run_recorded(run: Record) -> None:
    for step in (1, 2, 3):
        search = {"actions/search": 1.5} if step > 1 else {}
        run.metrics(step, {"actions/answer": 1.0, "response_tokens_mean": 40.0, **search})
    calls, response = training_charts(RecordedRun(run.path))
    assert calls.title == "Turns per rollout, by action"
    assert [name for _, name in calls.legend] == ["answer", "search"]
    assert [len(line.dots) for line in calls.series] == [3, 2]
    assert response.title == "Response length in tokens"


def test_formats() -> None:
    assert percent(None) == "–"
    assert Scores(True).cell(-0.02, change=True).text == "−2.0"
    assert [money(dollars) for dollars in (0, 0.0123, 12.5)] == ["$0.00", "$0.0123", "$12.50"]
    times = ["4.2 s", "42 s", "3 min 12 s", "5 h 07 min"]
    assert [duration(seconds) for seconds in (4.2, 42, 192, 18420)] == times


@pytest.mark.parametrize(
    ("before", "after", "verdict", "change"),
    [
        ((0.0,) * 8, (1.0,) * 7 + (0.0,), "went from 0.0_% to 87.5_%.", "+87.5 +58 to +100"),
        ((0.0, 1.0) * 4, (1.0,) * 5 + (0.0,) * 3, "went from 50.0_% to 62.5_%; 8 questions cannot tell this from no change.", "+12.5 −57 to +82"),
        ((1.0,) * 8, (0.0,) * 8, "went from 100.0_% to 0.0_%.", "−100.0 −100 to −35"),
    ],
)  # fmt: skip
def test_a_change_is_doubted_unless_its_interval_excludes_zero(
    run: Record, before: tuple[float, ...], after: tuple[float, ...], verdict: str, change: str
) -> None:
    for when, rewards in (("before", before), ("after", after)):
        rows = [rollout(reward, group=i) for i, reward in enumerate(rewards)]
        run.rollouts(1, f"evaluate_{when}", rows)
        mean = sum(rewards) / len(rewards)
        run.event("evaluated", 1, split="test", when=when, em=mean, n=len(rewards), trained=0)
    words = check(write_report(run.path)).words
    assert f"Held-out exact match {verdict}" in words
    assert f"change, in percentage points {change}" in words


def test_sentences_and_their_difference() -> None:
    parent = "Search first. Then answer.\n1. Be brief."
    child = "Search first. Search one entity at a time.\n1. Be brief."
    assert sentence_diff(parent, child) == [
        ("same", "Search first. "),
        ("gone", "Then answer.\n"),
        ("new", "Search one entity at a time.\n"),
        ("same", "1. Be brief."),
    ]


@given(st.text(), st.text())
def test_a_difference_holds_the_whole_child(parent: str, child: str) -> None:
    segments = sentence_diff(parent, child)
    assert "".join(text for kind, text in segments if kind != "gone") == child
    assert all(kind == "same" for kind, _ in sentence_diff(child, child))


def row(name: str, parent: str | None, text: str, born: int) -> InstructionRow:
    return InstructionRow(name, parent, "", born, None, 0, None, None, None, False, "", text)


def test_the_family_is_in_tree_order() -> None:
    members = family([
        row("i0", None, "A.", 0), row("i1", "i0", "A. B.", 9), row("i2", "i1", "C.", 12),
        row("i3", "i0", "A. D.", 3), row("i4", "lost", "E.", 4),
    ])  # fmt: skip
    assert [(member.id, depth, parent_text) for member, depth, parent_text in members] == [
        ("i0", 0, ""), ("i3", 1, "A."), ("i1", 1, "A."), ("i2", 2, "A. B."), ("i4", 0, ""),
    ]  # fmt: skip
    # A long line of descent is no depth of calls.
    rows = [row(f"i{n}", f"i{n - 1}" if n else None, "A.", n) for n in range(1500)]
    assert [depth for _, depth, _ in family(rows)] == list(range(1500))


def result_of(run: Record) -> str:
    """A run's page from its result on, with the text of its tables."""
    return check(write_report(run.path)).words.partition(" Result Held-out exact match ")[2]


def test_quadrants_come_first(run: Record) -> None:
    run.event("best_instruction", 3, id="i1")
    for when, em in (("before", 0.25), ("plain", 0.5), ("after", 0.75)):
        run.event("evaluated", 3, split="test", when=when, prompt="best", instruction_id="i1", em=em,
                  n=4, trained=2, by_stratum={})  # fmt: skip
    run.write_summary({"name": "geo", "arms": {"inspo": {}}})
    quadrants(of=hash_of_best(run.path)).write(run.path)
    text = result_of(run).partition("4 test questions; 2 sampled")[0]
    assert text.startswith(
        "initial instruction best instruction gain greedy initial weights 25.0_% "
    )
    assert "trained weights 50.0_% 15–85 100.0_% 51–100 +50.0 −42 to +100 gain +25.0" in text
    assert "KL to initial nats per token 0.5 0–1.6 0.5" in text
    # Those of another policy are not shown.
    quadrants(of="another").write(run.path)
    assert "greedy" not in result_of(run)
