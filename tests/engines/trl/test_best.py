"""The policy that a run is reported by: kept whole or not at all, never one of a future undone."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cotune.engines.run_start import choose_checkpoint
from cotune.engines.trl.joint_trainer import TRLBest
from cotune.errors import ConfigError
from cotune.run.best import read_best
from cotune.run.checkpoints import STATE, load_state, save_state
from cotune.types import Prompt
from tests.engines.trl.setup import Run, scored, start
from tests.helpers import raises_line
from tests.policy.tiny import tiny_tokenizer


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run whose policy can be sampled, after no step."""
    return start(tmp_path / "run")


@pytest.fixture
def best(tmp_path: Path) -> TRLBest:
    return TRLBest(tmp_path / "best", tiny_tokenizer())


def mark(run: Run, value: float) -> None:
    """Makes the policy another one, and its instruction, too."""
    run.strategy.total = value / 10
    parameter(run).fill_(value)


def parameter(run: Run) -> Any:
    return next(iter(run.weights.values()))


def kept_pair(run: Run, best: TRLBest) -> tuple[float, int, str, float]:
    """em, step, instruction and mark of what is kept; leaves the policy as it was."""
    folder = best._folder  # pyright: ignore[reportPrivateUsage]
    row = json.loads((folder / "best.json").read_text())
    assert (folder / "instruction.txt").read_text() == row["instruction"] + "\n"
    current_mark, batches = float(parameter(run).flatten()[0]), run.joint.batches
    run.joint.batches = -1
    best.restore(run.joint)
    record = best.read_kept()
    text = record.instruction
    assert (record.instruction_id, text) == (row["instruction_id"], row["instruction"])
    kept_mark = float(parameter(run).flatten()[0])
    parameter(run).fill_(current_mark)
    run.joint.batches = batches
    return row["em"], row["step"], text, kept_mark


def test_the_first_and_every_better_one_is_kept(run: Run, best: TRLBest) -> None:
    expected = {1: (0.5, 1), 2: (0.5, 1), 3: (0.6, 3), 4: (0.6, 3)}
    for step, em in ((1, 0.5), (2, 0.5), (3, 0.6), (4, 0.55)):
        mark(run, step)
        best.offer(run.joint, scored(em), step)
        of = expected[step][1]
        assert kept_pair(run, best) == (*expected[step], "abc de. " + "abcdef"[of], float(of))


def test_one_of_a_later_step_is_replaced(run: Run, best: TRLBest) -> None:
    """It is from before a resume; an equal step's, evaluated anew, need not."""
    mark(run, 4)
    best.offer(run.joint, scored(0.9), 4)
    mark(run, 5)
    best.offer(run.joint, scored(0.9), 4)
    assert kept_pair(run, best)[3] == 4.0
    mark(run, 2)
    best.offer(run.joint, scored(0.1), 2)
    assert kept_pair(run, best) == (0.1, 2, "abc de. c", 2.0)


def test_the_policy_at_hand_is_not_loaded_over(run: Run, best: TRLBest) -> None:
    mark(run, 3)
    run.joint.batches = 3
    best.offer(run.joint, scored(0.5), 3)
    parameter(run).fill_(7.0)
    best.restore(run.joint)  # what was evaluated is the policy now
    assert best.read_kept().instruction == "abc de. d"
    assert float(parameter(run).flatten()[0]) == 7.0
    run.joint.batches = 4
    best.restore(run.joint)
    assert float(parameter(run).flatten()[0]) == 3.0


def test_damage_to_what_is_kept_is_one_line_and_never_forgotten(
    run: Run, best: TRLBest, tmp_path: Path
) -> None:
    mark(run, 1)
    best.offer(run.joint, scored(0.5), 1)
    checkpoint = tmp_path / "checkpoint-1"
    checkpoint.mkdir()
    save_state(checkpoint, {"batches": 1})
    assert choose_checkpoint([checkpoint], best) == checkpoint
    for name in (STATE, "optimizer.pt", "model.safetensors"):
        (checkpoint / name).write_bytes(b"{")
        with raises_line(f"{checkpoint}: {name} is damaged", "remove the checkpoint's folder"):
            load_state(choose_checkpoint([checkpoint], best) or checkpoint)
    folder = tmp_path / "best"
    names = {file.name for file in folder.iterdir()}
    assert {"best.json", "model.safetensors", "config.json", "instruction.txt"} <= names
    modes = {(folder / name).stat().st_mode for name in ("model.safetensors", "config.json")}
    assert len(modes) == 1  # a server under another account reads both or neither
    (folder / "model.safetensors").rename(tmp_path / "aside")
    for act in (best.check, lambda: best.restore(run.joint)):
        with raises_line("lacks weights", match=f"^{folder}"):
            act()
    (tmp_path / "aside").rename(folder / "model.safetensors")
    content = (folder / "best.json").read_bytes()
    for damaged in (b"", content[: len(content) // 2]):
        (folder / "best.json").write_bytes(damaged)
        for act in (best.check, lambda: best.restore(run.joint)):
            with raises_line("best.json", match=f"^{folder}"):
                act()
        with pytest.raises(ConfigError, match=r"best\.json"):
            best.offer(run.joint, scored(0.6), 2)
    (folder / "best.json").write_bytes(content)
    best.check()


class Kill(BaseException):
    """Stands for a kill: nothing catches it."""


@contextmanager
def killed_at(place: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kill what is done inside where it writes a file, or (swap) renames the folder."""

    def killed(path: Path, *_: object) -> None:
        if place == "swap" or path.name == place:
            raise Kill

    write = {"best.json": "run.best.write_json_atomic"}.get(
        place, "engines.evaluation.write_atomic"
    )
    with monkeypatch.context() as patch:
        if place == "swap":  # the old one is gone, the new one not in its place
            patch.setattr(Path, "rename", killed)
        else:
            patch.setattr(f"cotune.{write}", killed)
        with pytest.raises(Kill):
            yield


@pytest.mark.parametrize("place", ["instruction.txt", "best.json", "swap"])
def test_a_kill_while_it_is_kept_leaves_the_old_one_or_the_new_one(
    run: Run, best: TRLBest, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark(run, 1)
    best.offer(run.joint, scored(0.1), 1)
    mark(run, 2)

    with killed_at(place, monkeypatch):
        best.offer(run.joint, scored(0.2), 2)
    assert (tmp_path / "best").exists() == (place != "swap")
    again = TRLBest(tmp_path / "best", tiny_tokenizer())
    assert run.joint.batches == 0
    again.restore(run.joint)
    assert kept_pair(run, again)[3] == (2.0 if place == "swap" else 1.0)
    mark(run, 3)
    again.offer(run.joint, scored(0.3), 3)  # over what is left of the kill
    assert kept_pair(run, again)[3] == 3.0
    assert not (tmp_path / "best.new").exists()


INITIAL = Prompt("abc. ")


def test_the_initial_instruction_is_kept_unless_the_other_scores_higher(
    run: Run, best: TRLBest, tmp_path: Path
) -> None:
    mark(run, 1)
    best.offer(run.joint, scored(0.5), 1, scored(0.25))
    higher = best.conclude(1, INITIAL)
    assert (higher.instruction, higher.initial_em, higher.replaced) == ("abc de. b", 0.25, None)
    for plain in (0.5, 0.75):
        best.offer(run.joint, scored(0.5), 1, scored(plain))
        content = (tmp_path / "best" / "model.safetensors").read_bytes()
        for _ in range(2):  # a resume concludes again
            equal = best.conclude(1, INITIAL)
            assert (equal.em, equal.initial_em) == (plain, plain)
            assert equal.interval == scored(plain).interval
            assert equal.replaced is not None
            assert (equal.replaced.instruction, equal.replaced.em) == ("abc de. b", 0.5)
            assert kept_pair(run, best) == (plain, 1, INITIAL.instruction, 1.0)
            assert read_best(tmp_path / "best") == equal
            best.check()
        assert (tmp_path / "best" / "model.safetensors").read_bytes() == content
    # Policies are compared by the higher of their two scores, then by the lower.
    mark(run, 2)
    for score, plain in ((0.5, 0.75), (0.625, 0.625), (0.75, 0.5)):
        best.offer(run.joint, scored(score), 2, scored(plain))
        assert kept_pair(run, best)[1] == 1
    best.offer(run.joint, scored(0.75), 2, scored(0.625))
    best.conclude(2, INITIAL)
    assert kept_pair(run, best) == (0.75, 2, "abc de. c", 2.0)
    best.check()


@pytest.mark.parametrize("place", ["instruction.txt", "best.json"])
def test_a_kill_while_the_initial_instruction_takes_its_place_can_be_resumed(
    run: Run, best: TRLBest, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark(run, 1)
    best.offer(run.joint, scored(0.5), 1, scored(0.75))

    with killed_at(place, monkeypatch):
        best.conclude(1, INITIAL)
    again = TRLBest(tmp_path / "best", tiny_tokenizer())
    again.check()
    assert again.read_kept().instruction == "abc de. b"
    again.conclude(1, INITIAL)
    assert kept_pair(run, again) == (0.75, 1, "abc. ", 1.0)


def test_what_is_forgotten_is_gone_a_staged_one_too(
    run: Run, best: TRLBest, tmp_path: Path
) -> None:
    best.offer(run.joint, scored(0.5), 1)
    best.forget()
    assert not list(tmp_path.glob("best*"))
    best.offer(run.joint, scored(0.5), 1)
    (tmp_path / "best").rename(tmp_path / "best.new")
    best.forget()
    assert not list(tmp_path.glob("best*"))
    with pytest.raises(AssertionError, match="no policy was kept"):
        best.restore(run.joint)
