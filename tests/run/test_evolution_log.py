"""An evolution that is cut off anywhere goes on without asking again what was answered."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotune.errors import EvolutionError, LLMError
from cotune.llm.client import MeteredLLM
from cotune.methods.static import StaticStrategy
from cotune.protocols import LLM, Recorder, Rollout
from cotune.rollout.coordinator import Coordinator, RolloutSettings
from cotune.run.evolution_log import (
    EvolutionLog,
    EvolutionLogs,
    LoggedPhase,
    rollout_key,
    trajectory_fields,
    trajectory_from,
)
from cotune.run.json_files import append_durably, exact_line, read_jsonl
from cotune.run.ledger import Ledger, Totals
from cotune.run.run_dir import RunDir
from cotune.testing import CharacterCodec, ScriptedLLM, ScriptedSampler
from cotune.types import (
    Assignment,
    Completion,
    Metrics,
    Progress,
    Prompt,
    Sampling,
    StopReason,
    Trajectory,
    Turn,
)
from cotune.utils.progress import listening
from tests.helpers import WAITING, make_tasks, one_step
from tests.rollout.test_coordinator import Yes, on_two_ranks, reply

TASKS = make_tasks(4)
PLAIN = Assignment(TASKS[0], Prompt("say "), Prompt("say "), "i0", 0)

IDS = st.lists(st.integers(0, 2**31), max_size=4).map(tuple)
TEXT = st.text(st.characters(exclude_categories=()), max_size=8)  # lone surrogates, too
TRAJECTORIES = st.builds(
    Trajectory,
    st.just(PLAIN),
    IDS,
    IDS,
    IDS,
    st.lists(st.integers(0, 1), max_size=4).map(tuple),
    st.lists(st.floats(allow_nan=False), max_size=4).map(tuple),
    st.lists(st.builds(Turn, TEXT, TEXT, TEXT, TEXT), max_size=2).map(tuple),
    st.sampled_from(StopReason),
    st.none() | TEXT,
    st.floats(allow_nan=False),
    feedback=TEXT,
)


@settings(max_examples=200, deadline=None)
@given(trajectory=TRAJECTORIES, same=st.booleans())
def test_a_rollout_round_trips_exactly(
    trajectory: Trajectory, same: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if not same:  # an environment may add to the question
        task = replace(PLAIN.task, question=f"{PLAIN.task.question} {trajectory.feedback}")
        trajectory = replace(trajectory, assignment=replace(PLAIN, task=task))
    if same:
        trajectory = replace(trajectory, prompt_ids=trajectory.sampled_prompt_ids)
    path = tmp_path_factory.mktemp("log") / "x.jsonl"
    append_durably(path, exact_line(trajectory_fields(trajectory)))
    (fields,) = read_jsonl(path)
    again = trajectory_from(fields, PLAIN)
    assert again == trajectory
    assert [repr(x) for x in again.logprobs] == [repr(x) for x in trajectory.logprobs]


def test_every_part_of_a_question_is_in_its_key() -> None:
    sampling = Sampling(1.0, (".",), 7)
    plain = rollout_key([PLAIN], "verify", sampling)
    others = [
        ([PLAIN, PLAIN], "verify", sampling),
        ([replace(PLAIN, task=TASKS[1])], "verify", sampling),
        ([replace(PLAIN, sampled=Prompt("say ", "hint"))], "verify", sampling),
        ([replace(PLAIN, trained=Prompt("say ", "hint"))], "verify", sampling),
        ([PLAIN], "evolve", sampling),
        ([PLAIN], "verify", replace(sampling, seed=8)),
        ([PLAIN], "verify", replace(sampling, temperature=0.0)),
    ]
    assert len({plain, *(rollout_key(*other) for other in others)}) == 1 + len(others)
    credited = replace(PLAIN, instruction_id="i9", group=3)  # decides nothing that is rolled out
    assert rollout_key([credited], "verify", sampling) == plain


def written(path: Path, *rows: dict[str, Any]) -> Path:
    for row in rows:
        append_durably(path, exact_line(row))
    return path


@pytest.mark.parametrize("torn", [b'{"key": "c', b'{"key": "c"}', b"\x00\x00\n", b"[3]\n", b"{}\n"])
def test_a_torn_line_ends_the_log_and_is_written_over(tmp_path: Path, torn: bytes) -> None:
    path = written(tmp_path / "log", {"key": "a"}, {"key": "b"})
    whole = path.read_bytes()
    append_durably(path, torn)
    log = EvolutionLog(path)
    assert [log.recall(key) is not None for key in "abc"] == [True, True, False]
    assert (log.recalled, log.dropped, path.read_bytes()) == (2, False, whole)
    log.note({"key": "d"})
    assert [row["key"] for row in read_jsonl(path)] == ["a", "b", "d"]


def test_answers_after_another_question_are_dropped_for_good(tmp_path: Path) -> None:
    path = written(tmp_path / "log", *({"key": key} for key in "abca"))
    log = EvolutionLog(path)
    assert [log.recall(key) is not None for key in "axca"] == [True, False, False, False]
    assert log.dropped
    assert [row["key"] for row in read_jsonl(path)] == ["a"]


def test_failures_at_the_end_are_asked_again_others_are_not(tmp_path: Path) -> None:
    failed = [{"error": "401", "key": key} for key in "bde"]
    path = written(tmp_path / "log", {"key": "a"}, failed[0], {"key": "c"}, *failed[1:])
    log = EvolutionLog(path)
    assert [log.recall(key) is not None for key in "abcde"] == [True, True, True, False, False]
    assert not log.dropped
    assert [row["key"] for row in read_jsonl(path)] == ["a", "b", "c"]


def test_a_log_that_is_none_records_nothing(tmp_path: Path) -> None:
    log = EvolutionLog()
    log.note({"key": "a"})
    log.delete()
    assert log.recall("a") is None
    logs = EvolutionLogs(tmp_path / "evolution")
    logs.go_on_from(3)
    assert list(tmp_path.iterdir()) == []


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


@dataclass
class World:
    """What is asked of the policy and of the LLM, and when it is killed."""

    asked: list[str] = field(default_factory=list)
    kill_at: int = -1  # of the questions of this attempt; the one that is cut off

    def ask(self, what: str) -> None:
        if len(self.asked) == self.kill_at:
            raise Killed
        self.asked.append(what)


class Evolving(StaticStrategy):
    """A phase of two replies and three rollout calls, each made of what came before."""

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
            found = rollout(
                assignments, purpose="verify" if turn < 2 else "evolve", greedy=turn < 1
            )
            self._trail.append(found)
            try:
                text = llm.complete(f"{turn} {[t.own_text for t in found]}").text
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

    run: RunDir
    totals: Totals
    trail: list[Any]
    asked: list[str]
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
    resumed = RunDir.is_run(folder)
    run = RunDir.open(folder) if resumed else RunDir.create(folder, {})
    with Ledger(run.ledger_path) as ledger:
        ledger.begin_attempt(4 if resumed else None)
        if resumed:
            run.cut_back(4)
        else:
            run.event("saved", 4)
        coordinator = Coordinator(
            strategy=Evolving(trail, shout),
            environment=Yes(),
            codec=CharacterCodec(),
            sampler=Watched(world),
            llm=MeteredLLM(Endpoint(world, texts), ledger, model),
            journal=run,
            meter=ledger,
            settings=RolloutSettings(seed=5),
            comm=comm,
        )
        try:
            rollouts, metrics = one_step(coordinator, TASKS, 2, Progress(5, 0, total_steps=9))
            result = rollouts, {k: v for k, v in metrics.items() if k not in WAITING}
        except (Killed, EvolutionError) as ended:
            result = ended
        return Attempt(run, ledger.totals(), trail, world.asked, result)


def counted(totals: Totals) -> list[Any]:
    names = ("rollouts", "generated_tokens", "llm_calls", "llm_failed", "llm_prompt_tokens")
    return [getattr(totals, name) for name in names]


def learnt(run: RunDir) -> list[Any]:
    kinds = {row["kind"]: row.get("text") for row in run.read_events()}
    return [kinds["evolution"], run.read_trajectories(5, "train")[0]["completion_ids"]]


@pytest.mark.parametrize("first", range(7))
@pytest.mark.parametrize("second", [0, 1])
def test_a_phase_cut_off_anywhere_goes_on_as_if_it_had_not_been(
    tmp_path: Path, first: int, second: int
) -> None:
    """Questions: rollout, reply, rollout, failure, rollout, reply; then the training rollouts."""
    unbroken = attempt(tmp_path / "unbroken")
    assert [asked.split()[0] for asked in unbroken.asked] == ["roll", "llm"] * 3 + ["roll"]
    folder = tmp_path / "broken"
    pieces = [attempt(folder, first), attempt(folder, second), attempt(folder)]
    assert isinstance(pieces[0].result, Killed)
    assert pieces[-1].result == unbroken.result
    assert pieces[-1].trail == unbroken.trail
    assert learnt(pieces[-1].run) == learnt(unbroken.run)
    assert counted(pieces[-1].totals) == counted(unbroken.totals)
    # Nothing twice, except a failure that nothing came after (and the training rollouts).
    asked = [what for piece in pieces for what in piece.asked]
    once = [what for what in asked if what != unbroken.asked[-1]]
    fails_first = first == 4
    fails_again = first - fails_first + second == 4
    again = [unbroken.asked[3]] * (fails_first + fails_again)
    assert sorted(once) == sorted([*unbroken.asked[:-1], *again])
    if first > 0:
        (notice, *_) = [r["text"] for r in pieces[-1].run.read_events() if r["kind"] == "notice"]
        assert notice.endswith("answers of the evolution that was cut off are used again")


def test_other_questions_are_asked_and_the_rest_is_dropped(tmp_path: Path) -> None:
    attempt(tmp_path / "run", kill_at=6)
    other = attempt(tmp_path / "run", shout="LOUD")
    assert [what.split()[0] for what in other.asked] == ["roll", "llm", "roll", "llm", "roll"]
    (notice,) = [r["text"] for r in other.run.read_events() if r["kind"] == "notice"]
    assert notice == (
        "2 answers of the evolution that was cut off are used again; the rest fits other questions "
        "and is dropped"
    )
    fresh = attempt(tmp_path / "fresh", shout="LOUD")
    assert other.trail == fresh.trail
    assert counted(other.totals) == counted(fresh.totals)


def test_replies_of_another_llm_are_not_taken_for_its_own(tmp_path: Path) -> None:
    attempt(tmp_path / "run", kill_at=4)
    other = attempt(tmp_path / "run", texts=("uno", "dos", "tres"), model="other")
    assert [what.split()[0] for what in other.asked] == [
        "llm",
        "roll",
        "llm",
        "roll",
        "llm",
        "roll",
    ]
    assert other.trail[1::2] == ["uno", "dos", "tres"]
    (notice,) = [r["text"] for r in other.run.read_events() if r["kind"] == "notice"]
    assert notice.startswith("1 answers of the evolution")  # the first rollouts
    assert counted(other.totals)[2:4] == [3, 0]


def test_a_phase_that_ended_the_run_is_asked_anew(tmp_path: Path) -> None:
    ended = attempt(tmp_path / "run", texts=("one", "two", "give up"))
    assert isinstance(ended.result, EvolutionError)
    assert not list(tmp_path.rglob("step-*.jsonl"))
    repaired = attempt(tmp_path / "run")
    assert repaired.asked == attempt(tmp_path / "fresh").asked


def test_a_whole_phase_is_used_again_and_is_gone_after_the_next_checkpoint(tmp_path: Path) -> None:
    attempt(tmp_path / "run", kill_at=6)
    (path,) = tmp_path.rglob("step-*.jsonl")
    assert len(read_jsonl(path)) == 6
    again = attempt(tmp_path / "run")
    assert len(again.asked) == 1  # the training rollouts
    again.run.event("saved", 5)
    assert not path.parent.exists()


def test_the_other_ranks_are_not_asked_for_what_is_recorded(tmp_path: Path) -> None:
    def both(first: Path, kill_at: int = -1) -> list[Any]:
        folders = [first, tmp_path / f"{first.name}-{kill_at}-served"]
        return on_two_ranks(lambda comm: attempt(folders[comm.rank], kill_at, comm=comm))

    alone = attempt(tmp_path / "alone")
    unbroken = both(tmp_path / "unbroken")
    assert [a.result for a in unbroken] == [alone.result] * 2
    attempt(tmp_path / "run", kill_at=3)
    resumed = both(tmp_path / "run")
    assert [a.result for a in resumed] == [alone.result] * 2
    assert [w.split()[0] for w in resumed[0].asked] == ["llm", "roll", "llm", "roll"]
    assert [w.split()[0] for w in resumed[1].asked] == ["roll", "roll"]


def test_scripted_llms_are_logged_as_any_other(tmp_path: Path) -> None:
    """A reply's text, token counts and notice come back as they were."""
    odd = Completion("\ud83d cut", 3, 4, notice="3 tokens?")
    notices: list[object] = []
    logs = EvolutionLogs(tmp_path / "evolution")
    logs.go_on_from(0)

    def ask(llm: LLM) -> Completion:
        with Ledger(":memory:") as ledger:
            ledger.begin_attempt(None)
            phase = LoggedPhase(
                logs.open(1),
                lambda *_: [],
                lambda *_: Sampling(),
                llm,
                ledger,
                lambda kind, **fields: notices.append(fields["text"]),
            )
            return phase.complete("why?")

    assert ask(ScriptedLLM([odd])) == odd
    assert ask(ScriptedLLM([])) == odd
    assert notices.count("3 tokens?") == 2


def test_calls_under_way_are_reported_and_recalled_ones_are_not(tmp_path: Path) -> None:
    logs = EvolutionLogs(tmp_path / "evolution")
    logs.go_on_from(0)
    found: list[tuple[str, int, int]] = []
    for _ in range(2):
        with Ledger(":memory:") as ledger, listening(lambda *report: found.append(report)):
            ledger.begin_attempt(None)
            phase = LoggedPhase(
                logs.open(1), lambda *_: [], lambda *_: Sampling(), ScriptedLLM(["a", "b"]), ledger,
                lambda kind, **fields: None,
            )  # fmt: skip
            assert [phase.complete(q).text for q in ("1", "2")] == ["a", "b"]
    assert found == [("llm", 0, 1), ("llm", 1, 2)]
