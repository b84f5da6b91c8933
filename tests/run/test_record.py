"""The record of a run: resumed, followed by listeners, silent on other ranks; and the LLM's replies, used again."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cotune.errors import EvolutionError, LLMError
from cotune.llm.client import MeteredLLM
from cotune.methods.static import StaticStrategy
from cotune.protocols import LLM, Recorder, Rollout
from cotune.rollout.coordinator import Coordinator, RolloutSettings
from cotune.run.costs import Totals
from cotune.run.json_files import append, json_line
from cotune.run.record import CachedLLM, Record, ReplyCache
from cotune.types import Assignment, Completion, Metrics, Progress, Prompt, Sampling
from cotune.utils.progress import listening
from tests.helpers import make_tasks, make_trajectory, one_step
from tests.rollout.test_coordinator import Yes, on_two_ranks, reply
from tests.scripted import CharacterCodec, ScriptedLLM, ScriptedSampler


@pytest.mark.parametrize(("every", "steps"), [(4, [1, 4, 8, 9]), (0, [])])
def test_which_training_rollouts_are_kept(tmp_path: Path, every: int, steps: list[int]) -> None:
    record = Record.create(tmp_path / "run", {})
    record.rollouts_every, record.total_steps = every, 9
    prompt = Prompt("Do.")
    rollout = make_trajectory(Assignment(make_tasks(1)[0], prompt, prompt, "i0", 0), 1.0)
    for step in range(1, 10):
        record.rollouts(step, "train", [rollout])
    record.rollouts(3, "evaluate_during", [rollout])
    files = record.trajectory_files()
    assert [step for step, purpose in files if purpose == "train"] == steps
    assert (3, "evaluate_during") in files


@pytest.mark.parametrize("path", [None, "cotune"])
def test_a_silent_record_writes_nothing_and_counts(tmp_path: Path, path: str | None) -> None:
    folder = None if path is None else tmp_path / path
    listener: Any = None  # which fails when it is called
    silent = Record(folder, silent=path is not None)
    silent.listeners = [listener]
    silent.begin_attempt(None)
    silent.event("notice", 1, text="x")
    silent.metrics(1, {"reward_mean": 1.0})
    silent.rollouts(1, "train", [])
    silent.step = 3
    silent.count("train", 8, 80)
    assert silent.totals().rollouts["train"] == 8
    silent.cut_back(1)
    assert silent.totals().rollouts["train"] == 0
    assert (silent.read_events(), silent.read_metrics(), silent.read_summary()) == ([], [], None)
    assert list(tmp_path.iterdir()) == []


TASKS = make_tasks(4)
ROW = {"step": 1, "costs": [], "completion": {"text": "x"}}


def test_a_reply_that_a_kill_cut_off_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for key in "ab":
        append(path, json_line({"key": key, **ROW}, "row"))
    append(path, b'{"key": "c')
    cache = ReplyCache(path)
    assert [cache.find(key) is not None for key in "abc"] == [True, True, False]
    cache.add({"key": "d", **ROW})
    assert [ReplyCache(path).find(key) is not None for key in "abcd"] == [True, True, False, True]


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


@dataclass
class World:
    """What is asked of the policy and of the LLM, and when it is killed."""

    requests: list[str] = field(default_factory=list)
    kill_at: int = -1  # of the questions of this attempt; the one that is cut off

    def ask(self, request: str) -> None:
        if len(self.requests) == self.kill_at:
            raise Killed
        self.requests.append(request)


class Evolving(StaticStrategy):
    """A phase of three replies and three rollout calls, each made of what came before."""

    def __init__(self, trail: list[Any], shout: str = "") -> None:
        super().__init__("say ")
        self._trail, self._shout = trail, shout

    def evolve_if_due(
        self, progress: Progress, rollout: Rollout, llm: LLM, record: Recorder
    ) -> Metrics:
        text = ""
        for turn in range(3):
            prompt = Prompt(f"say {text}{self._shout if turn == 1 else ''}")
            assignments = [Assignment(task, prompt, prompt, "i0", 0) for task in TASKS[:2]]
            trajectories = rollout(
                assignments, purpose="verify" if turn < 2 else "evolve", greedy=turn < 1
            )
            self._trail.append(trajectories)
            try:
                shout = self._shout if turn else ""
                text = llm.complete(f"{turn} {shout}{[t.own_text for t in trajectories]}").text
            except LLMError as error:
                text = f"({error})"
            self._trail.append(text)
            if text == "give up":
                raise EvolutionError("nothing works")
        record("evolution", text=text)
        return {"length": float(len(text))}


class Endpoint:
    """An LLM whose second reply of a phase fails, unless it is repaired."""

    def __init__(self, world: World, texts: Sequence[str]) -> None:
        self._world, self._texts = world, texts

    def complete(self, prompt: str) -> Completion:
        self._world.ask(f"llm {prompt[0]}")
        text = self._texts[int(prompt[0])]
        if text == "fails":
            raise LLMError("503")
        return Completion(text, 10, 2)


class Watched(ScriptedSampler):
    def __init__(self, world: World) -> None:
        super().__init__(CharacterCodec(), reply, logprob=-0.1)
        self._world = world

    def open(self, sampling: Sampling) -> Any:
        self._world.ask(f"roll out {sampling.temperature} {sampling.seed}")
        return super().open(sampling)


@dataclass
class Attempt:
    """One attempt at step 5: from its beginning, or taken up from the checkpoint of step 4."""

    run: Record
    totals: Totals
    trail: list[Any]
    requests: list[str]
    result: Any


TEXTS = ("one", "fails", "three")


def attempt(
    folder: Path,
    kill_at: int = -1,
    texts: Sequence[str] = TEXTS,
    shout: str = "",
    comm: Any = None,
    model: str = "m",
) -> Attempt:
    """Runs step 5 until it ends or is killed; a second one in the same folder resumes."""
    world, trail, result = World(kill_at=kill_at), list[Any](), None
    resumed = Record.is_run(folder)
    run = Record.open(folder) if resumed else Record.create(folder, {})
    run.begin_attempt(4 if resumed else None)
    if not resumed:
        run.step = 4
        run.count("train", 8, 80)
        run.event("saved", 4)
    coordinator = Coordinator(
        strategy=Evolving(trail, shout),
        environment=Yes(),
        codec=CharacterCodec(),
        sampler=Watched(world),
        llm=MeteredLLM(Endpoint(world, texts), run, model),
        record=run,
        settings=RolloutSettings(seed=5),
        comm=comm,
    )
    try:
        rollouts, metrics = one_step(coordinator, TASKS, 2, Progress(5, 0, total_steps=9))
        result = rollouts, metrics
    except (Killed, EvolutionError) as ended:
        result = ended
    return Attempt(run, run.totals(), trail, world.requests, result)


def counts_of(totals: Totals) -> list[Any]:
    names = ("rollouts", "generated_tokens", "llm_calls", "llm_failed")
    return [getattr(totals, name) for name in names]


def outcome_of(run: Record) -> list[Any]:
    kinds = {row["kind"]: row.get("text") for row in run.read_events()}
    return [kinds["evolution"], run.read_trajectories(5, "train")[0]["completion_ids"]]


def calls(requests: Sequence[str]) -> list[str]:
    return [request for request in requests if request.startswith("llm")]


@pytest.mark.parametrize("first", range(7))
@pytest.mark.parametrize("second", [0, 1, 3])
def test_a_phase_cut_off_anywhere_goes_on_as_if_it_had_not_been(
    tmp_path: Path, first: int, second: int
) -> None:
    """Questions: rollout, reply, rollout, failure, rollout, reply; then the training rollouts."""
    unbroken = attempt(tmp_path / "unbroken")
    assert [request.split()[0] for request in unbroken.requests] == ["roll", "llm"] * 3 + ["roll"]
    folder = tmp_path / "broken"
    pieces = [attempt(folder, first), attempt(folder, second), attempt(folder)]
    assert isinstance(pieces[0].result, Killed)
    assert pieces[-1].result == unbroken.result
    assert pieces[-1].trail == unbroken.trail
    assert outcome_of(pieces[-1].run) == outcome_of(unbroken.run)
    assert counts_of(pieces[-1].totals) == counts_of(unbroken.totals)
    # No reply is paid twice; what failed is asked again.
    paid = [request for piece in pieces for request in calls(piece.requests) if request != "llm 1"]
    assert paid == ["llm 0", "llm 2"]


def test_replies_of_other_questions_models_and_of_a_phase_that_ended_the_run_are_asked_for(
    tmp_path: Path,
) -> None:
    attempt(tmp_path / "run", kill_at=6)
    other = attempt(tmp_path / "run", shout="LOUD")
    assert calls(other.requests) == ["llm 1", "llm 2"]
    fresh = attempt(tmp_path / "fresh", shout="LOUD")
    assert other.trail == fresh.trail
    assert counts_of(other.totals) == counts_of(fresh.totals)
    # Replies of another LLM are not taken for its own.
    attempt(tmp_path / "llm", kill_at=4)
    other = attempt(tmp_path / "llm", texts=("uno", "dos", "tres"), model="other")
    assert calls(other.requests) == ["llm 0", "llm 1", "llm 2"]
    assert other.trail[1::2] == ["uno", "dos", "tres"]
    assert counts_of(other.totals)[2:4] == [3, 0]
    # A phase that ended the run is asked for anew.
    ended = attempt(tmp_path / "ended", texts=("one", "two", "give up"))
    assert isinstance(ended.result, EvolutionError)
    repaired = attempt(tmp_path / "ended")
    assert repaired.requests == attempt(tmp_path / "anew").requests


def test_two_processes_end_as_one(tmp_path: Path) -> None:
    def both(first: Path, kill_at: int = -1) -> list[Any]:
        folders = [first, tmp_path / f"{first.name}-{kill_at}-served"]
        return on_two_ranks(lambda comm: attempt(folders[comm.rank], kill_at, comm=comm))

    alone = attempt(tmp_path / "alone")
    unbroken = both(tmp_path / "unbroken")
    assert [a.result for a in unbroken] == [alone.result] * 2
    attempt(tmp_path / "run", kill_at=3)
    resumed = both(tmp_path / "run")
    assert [a.result for a in resumed] == [alone.result] * 2
    assert calls(resumed[0].requests) == ["llm 1", "llm 2"]


def ask(folder: Path, llm: LLM, *prompts: str, step: int = 1) -> list[Completion]:
    """The replies of a step's LLM to prompts, from a fresh record of the folder."""
    record = Record.open(folder) if Record.is_run(folder) else Record.create(folder, {})
    cached = CachedLLM(llm, record, step)
    return [cached.complete(prompt) for prompt in prompts]


def test_replies_come_back_by_step_and_turn(tmp_path: Path) -> None:
    # As they were.
    odd = Completion("\ud83d cut", 3, 4, truncated=True)
    for llm in (ScriptedLLM([odd]), ScriptedLLM([])):
        assert ask(tmp_path / "run", llm, "why?") == [odd]
    # A prompt that is sent twice has two replies, and other steps have theirs.
    for texts in (["a", "b"], []):
        replies = ask(tmp_path / "twice", ScriptedLLM(texts), "why?", "why?")
        assert [reply.text for reply in replies] == ["a", "b"]
    assert [r.text for r in ask(tmp_path / "twice", ScriptedLLM(["c"]), "why?", step=2)] == ["c"]
    # Calls under way are reported, and recalled ones are not.
    reports: list[tuple[str, int, int]] = []
    for _ in range(2):
        with listening(lambda *report: reports.append(report)):
            ask(tmp_path / "reported", ScriptedLLM(["a", "b"]), "1", "2")
    assert reports == [("llm", 0, 1), ("llm", 1, 2)]
