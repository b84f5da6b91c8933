"""Groups side by side and tokens by role, from stored rollouts and a real tokenizer."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from cotune.experiments.report import write_report
from cotune.experiments.report.rollouts import (
    MOST_COLUMNS,
    MOST_GROUPS,
    read_tokenizer,
    show_rollout,
    some_evaluated,
    some_groups,
    turns_in_tokens,
)
from cotune.run.json_files import Row
from cotune.run.record import Record, trajectory_row
from cotune.types import Assignment, Prompt, StopReason, Task, Trajectory, Turn
from tests.experiments.report.pages import check

END = "<|end|>"


def byte_tokenizer() -> Tokenizer:
    """A token a byte, as byte-level BPE writes them, and one control token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    return tokenizer


TOKENIZER = byte_tokenizer()


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def rollout(
    reward: float,
    turns: tuple[Turn, ...] = (
        Turn("<search>é</search>", "\nFound: é.\n", "search"),
        Turn("<answer>b</answer>", "", "answer"),
    ),
    *,
    group: int = 0,
    hint: str = "",
    question: str = "Which?",
    template: str = f"{END}user:",
) -> Trajectory:
    """Turns as tokens: the policy writes a closing END, the template stands around observations."""
    completion: list[int] = []
    mask: list[int] = []
    for turn in turns:
        own = ids(turn.text)
        read = ids(template + turn.observation + END) if turn.observation else ids(END)
        completion += own + read
        mask += [1] * len(own) + [0] * len(read)
    told = Prompt("Search, then answer.")
    sampled = replace(told, hint=hint)
    prompt = tuple(ids("Search"))
    return Trajectory(
        Assignment(Task(f"q{group}", question, ("b",), "easy"), sampled, told, "i0", group),
        prompt, prompt, tuple(completion), tuple(mask), (0.0,) * len(mask), turns,
        StopReason.ANSWERED, "b", reward,
    )  # fmt: skip


def test_tokens_are_separated_by_turn_and_author() -> None:
    row = trajectory_row(rollout(1.0))
    found = turns_in_tokens(TOKENIZER, row)
    assert found is not None
    assert [tuple("".join(tokens) for tokens in turn) for turn in found] == [
        ("<search>é</search>", f"{END}user:\nFound: é.\n{END}"),
        ("<answer>b</answer>", END),
    ]
    # Every token is there: é is two, the first of which has no text of its own.
    assert sum(len(tokens) for turn in found for tokens in turn) == len(row["mask"])
    assert found[0][0][8:10] == ["", "é"]


def test_a_turn_after_which_nothing_was_read_has_no_tokens_of_others() -> None:
    row = trajectory_row(rollout(1.0))
    row["completion_ids"], row["mask"] = row["completion_ids"][:-1], row["mask"][:-1]
    found = turns_in_tokens(TOKENIZER, row)
    assert found is not None
    assert found[-1][1] == ()


@pytest.mark.parametrize(
    "change",
    [
        {"mask": None},
        {"mask": [1]},
        {"completion_ids": []},
        {"completion_ids": [10**6] * 2, "mask": [1, 0]},
        {"turns": [{"text": "x", "observation": "", "action": "", "error": ""}]},
        {"turns": []},
    ],
)
def test_what_does_not_fit_is_shown_by_turn(change: dict[str, Any]) -> None:
    row = trajectory_row(rollout(1.0)) | change
    assert turns_in_tokens(TOKENIZER, row) is None
    shown = show_rollout(row, TOKENIZER)
    assert shown.unit == "characters"
    assert ["".join(t.written) for t in shown.turns] == [t["text"] for t in row["turns"]]


def test_another_tokenizer_is_not_believed() -> None:
    row = trajectory_row(rollout(1.0))
    row["completion_ids"] = [i + 1 if i < 200 else i for i in row["completion_ids"]]
    assert turns_in_tokens(TOKENIZER, row) is None


def test_long_rollouts_are_cut_and_say_so() -> None:
    long = tuple(Turn("x" * 900, "y" * 900, "search") for _ in range(9))
    for tokenizer, unit in ((TOKENIZER, "tokens"), (None, "characters")):
        shown = show_rollout(trajectory_row(rollout(0.0, long)), tokenizer)
        assert shown.unit == unit
        text = sum(len("".join(part)) for t in shown.turns for part in (t.written, t.read))
        assert text <= 20_000
    shown = show_rollout(trajectory_row(rollout(0.0, long)), TOKENIZER)
    assert (shown.turns[0].written_left, shown.turns[0].read_left > 700) == (500, True)
    assert 0 < len(shown.turns) < 9
    assert shown.turns_left == 9 - len(shown.turns)


CONFIG = {"name": "geo", "strategy": {"kind": "p2o"}, "seed": 3}


def make_run(folder: Path, tokenizer: bool = True) -> Record:
    """Steps 1, 5 and 10: an even group, an uneven one, a failed one, a solved one; hints at 5."""
    run = Record.create(folder, CONFIG)

    def store(step: int, hinted: bool) -> None:
        rewards = [(0, 1, 0, 1), (0, 0, 0, 1), (0, 0, 0, 0), (1, 1, 1, 1)]
        run.rollouts(step, "train", [
            rollout(float(reward), group=g, question=f"step {step} group {g}?",
                    hint=f"Hint {i}." if hinted and g == 1 and i < 2 else "")
            for g, group in enumerate(rewards) for i, reward in enumerate(group)
        ])  # fmt: skip

    store(1, False)
    store(5, True)
    store(10, False)
    if tokenizer:
        run.best_path.mkdir()
        TOKENIZER.save(str(run.best_path / "tokenizer.json"))
    return run


def test_mixed_groups_come_first_and_one_with_hints(tmp_path: Path) -> None:
    groups = some_groups(make_run(tmp_path / "run"))
    assert [(g.step, g.rollouts[0].row["task"]["question"], g.hinted) for g in groups] == [
        (10, "step 10 group 0?", 0),  # the most even
        (10, "step 10 group 1?", 0),
        (5, "step 5 group 1?", 2),
        (10, "step 10 group 2?", 0),  # all failed
        (1, "step 1 group 0?", 0),
        (1, "step 1 group 2?", 0),
    ]
    assert len(groups) <= MOST_GROUPS
    assert [g.mixed for g in groups] == [True, True, True, False, True, False]
    assert groups[1].rewards == [0, 0, 0, 1]
    assert [r.row["reward"] for r in groups[0].rollouts] == [0, 0, 1, 1]
    assert [r.change for r in groups[1].rollouts] == [-0.25, -0.25, -0.25, 0.75]


def test_where_all_is_solved_solved_groups_are_shown(tmp_path: Path) -> None:
    run = Record.create(tmp_path / "run", CONFIG)
    assert some_groups(run) == []
    run.rollouts(1, "train", [rollout(1.0, group=i // 2) for i in range(8)])
    assert [g.rewards for g in some_groups(run)] == [[1, 1]] * 2


def test_of_a_large_group_both_ends_are_shown(tmp_path: Path) -> None:
    run = Record.create(tmp_path / "run", CONFIG)
    run.rollouts(1, "train", [rollout(i / 15) for i in range(16)])
    [group] = some_groups(run)
    assert (len(group.rewards), len(group.rollouts)) == (16, MOST_COLUMNS)
    assert [r.row["reward"] for r in group.rollouts][::7] == [0.0, 1.0]
    page = check(write_report(run))
    assert "16, 8 of them shown" in page.words


def page_text(run: Record) -> tuple[str, str]:
    page = check(write_report(run))
    return run.report_path.read_text(encoding="utf-8"), page.words


def test_the_page_shows_groups_by_token(tmp_path: Path) -> None:
    html, words = page_text(make_run(tmp_path / "run"))
    assert html.count("<article>") == 6 * 4
    assert html.count("<details open>") == 1
    for text in ("0.50 below the mean", "0.25 below the mean", "0.75 above the mean",
                 "Sampled under the hint, trained on without it: Hint 0.", "Without a hint",
                 "2 of 4 hinted", "all alike: no gradient", "turn 1 · search"):  # fmt: skip
        assert text.replace(" ,", ",") in words.replace(" ,", ","), text
    assert '<div class="block own text"><i>&lt;</i><i>s</i>' in html
    assert (
        f'<div class="block obs text"><i>{END.replace("<", "&lt;").replace(">", "&gt;")}</i>'
        in html
    )


def test_without_a_tokenizer_roles_are_by_turn(tmp_path: Path) -> None:
    html, words = page_text(make_run(tmp_path / "run", tokenizer=False))
    assert '<div class="block own text">&lt;search&gt;é&lt;/search&gt;</div>' in html
    assert '<div class="block obs text">Found: é.</div>' in html
    assert "<i>" not in html
    assert "0.50 below the mean" in words


def test_a_tokenizer_that_cannot_be_read_is_left(tmp_path: Path) -> None:
    (tmp_path / "best").mkdir()
    assert read_tokenizer(tmp_path) is None
    (tmp_path / "best" / "tokenizer.json").write_text('{"torn": ')
    assert read_tokenizer(tmp_path) is None


def test_what_went_wrong_in_a_turn_is_said(tmp_path: Path) -> None:
    run = Record.create(tmp_path / "run", CONFIG)
    turns = (Turn("<search> </search>", "\nempty\n", "invalid", "empty query"), Turn("?", "", ""))
    said = replace(rollout(0.0, turns), feedback="brief: Too long.")
    run.rollouts(1, "train", [said, rollout(1.0)])
    run.rollouts(1, "evaluate_after", [said])
    _, words = page_text(run)
    assert "turn 1 · invalid empty query" in words
    assert words.count("Feedback: brief: Too long.") == 1
    assert words.count("Feedback brief: Too long.") == 1


@pytest.mark.parametrize("tokenizer", [True, False])
def test_hostile_texts_stay_text(tmp_path: Path, tokenizer: bool) -> None:
    evil = "<script>alert(1)</script>\x1b[31m\x00\u202e**bold** {{ 7*7 }} </i></details>"
    run = Record.create(tmp_path / "run", CONFIG)
    turns = (Turn(evil, evil, evil, evil), Turn(f"{evil}!", "", evil))
    run.rollouts(1, "train", [
        replace(rollout(float(i), turns, hint=evil, question=evil, template=evil), feedback=evil)
        for i in range(2)
    ])  # fmt: skip
    if tokenizer:
        run.best_path.mkdir()
        TOKENIZER.save(str(run.best_path / "tokenizer.json"))
    page = check(write_report(run))
    html = run.report_path.read_text(encoding="utf-8")
    assert "<script" not in html
    whole = "".join(page.text)
    assert "<script>alert(1)</script>␛[31m␀\ufffd**bold** {{ 7*7 }} </i></details>" in whole
    assert ("<i>&lt;</i>" in html) == tokenizer


def test_a_long_question_is_cut(tmp_path: Path) -> None:
    run = Record.create(tmp_path / "run", CONFIG)
    question = "why " * 1000 + "end"
    run.rollouts(1, "train", [rollout(float(i), question=question) for i in range(2)])
    page = check(write_report(run))
    assert "2 003 more characters" in page.words.replace("_", " ")
    assert "why end" not in page.words


def test_a_page_stays_small(tmp_path: Path) -> None:
    """Long contexts, many steps, many proposals: below 3 MB."""
    run = Record.create(tmp_path / "run", CONFIG)
    turns = tuple(Turn("word " * 100, "fact " * 60, "search") for _ in range(4))
    rows_of_a_group = [rollout(float(i % 2), turns) for i in range(MOST_COLUMNS)]
    run.rollouts(1, "train", rows_of_a_group)
    [line, *_] = lines = (run.trajectories_path / "train-000001.jsonl").read_text().splitlines()
    assert json.loads(line)["group"] == 0
    more = [x.replace('"group": 0', f'"group": {g}') for g in range(1, 6) for x in lines]
    for step, purpose in ((1, "train"), (5, "train"), (10, "train"), (10, "evaluate_after")):
        path = run.trajectories_path / f"{purpose}-{step:06d}.jsonl"
        path.write_text("\n".join([*lines, *more]) + "\n")
    run.best_path.mkdir()
    TOKENIZER.save(str(run.best_path / "tokenizer.json"))
    names = ("reward_mean", "loss", "entropy", "grad_norm", "zero_advantage_share", "prompt_tokens_mean",
             "response_tokens_mean", "completion_tokens_mean", "actions/search", "actions/look")  # fmt: skip
    rows: list[Row] = [
        {"time": 1.0, "attempt": 1, "step": s, **dict.fromkeys(names, s * 7919 % 997 / 997)}
        for s in range(1, 5001)
    ]
    run.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for i in range(400):
        run.event("instruction_rejected", i, text="Search again. " * 200, parent=None,
                  origin="reflection", reason="not better")  # fmt: skip
    path = write_report(run)
    assert path.stat().st_size < 3_000_000
    words = check(path).words
    assert "Rejected proposals (400)" in words
    assert "The last 100 of them:" in words
    assert "more tokens" in words


def test_of_an_evaluation_failures_come_first_and_some_successes_last(tmp_path: Path) -> None:
    run = Record.create(tmp_path / "run", CONFIG)
    assert some_evaluated(run) == ([], "")
    run.rollouts(3, "evaluate_during", [rollout(1.0)])
    run.rollouts(3, "evaluate_after", [rollout(float(i % 2), group=i) for i in range(20)])
    shown, told = some_evaluated(run)
    assert [r.row["reward"] for r in shown] == [0.0] * 7 + [1.0] * 3
    assert told == "10 of the 20 rollouts of the last evaluation, lowest rewards first."
