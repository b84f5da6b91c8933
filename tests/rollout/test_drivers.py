"""Episodes together or apart give the same rollouts; calls in batches."""

import asyncio
import math
import random
import signal
import threading
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from cotune.environments.base import TaskEnvironment
from cotune.environments.search import SearchEnvironment
from cotune.environments.tools import CONCURRENCY, ToolEnvironment
from cotune.errors import ConfigError, EngineError
from cotune.retrieval.remote import RemoteOptions, RemoteRetriever
from cotune.rewards.qa import exact_match
from cotune.rollout.coordinator import turn_seed
from cotune.rollout.drivers import Together, run_episodes
from cotune.rollout.episode import new_episodes
from cotune.types import (
    Action,
    Assignment,
    Limits,
    Prompt,
    Response,
    Sample,
    SampleRequest,
    Task,
    Trajectory,
)
from cotune.utils.background import Worker
from tests.scripted import CharacterCodec

CODEC = CharacterCodec()
TASKS = [Task(f"t{number}", f"{number}?", ()) for number in range(24)]


class RandomSession:
    """A session of a policy that writes letters drawn for row and place, in any order and time."""

    def __init__(self, seed: int = 0) -> None:
        self.delays = random.Random(seed)
        self.answered: list[int] = []
        self.calls = 0

    def generate(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        return [self.draw(request) for request in requests]

    def draw(self, request: SampleRequest) -> Sample:
        draws = random.Random(turn_seed(3, request.row, len(request.context_ids)))
        ids = tuple(CODEC.encode("".join(draws.choices("abcd", k=draws.randint(1, 6)))))
        return Sample(ids, tuple(-draws.random() for _ in ids))

    def close(self) -> None: ...


class Apart(RandomSession):
    """The same policy, of which each row is sampled on its own."""

    async def sample(self, request: SampleRequest) -> Sample:
        self.calls += 1
        await asyncio.sleep(self.delays.random() / 100)
        self.answered.append(request.row)
        return self.draw(request)


class Letters(TaskEnvironment):
    """Answers each turn with its letters in order, after a while; "a" ends an episode."""

    def __init__(self, parallel: int) -> None:
        super().__init__({"train": TASKS}, "write. ")
        self.parallel_responses = parallel
        self.running = 0
        self.peak = 0
        self.batches: list[int] = []

    def respond(self, actions: Sequence[Action]) -> list[Response]:
        self.batches.append(len(actions))
        self.running += 1
        self.peak = max(self.peak, self.running)
        time.sleep(0.015)
        self.running -= 1
        return [
            Response("".join(sorted(action.text)), done=action.text.endswith("a"), action="letters")
            for action in actions
        ]

    def score(self, trajectory: Trajectory) -> tuple[float, str | None]:
        return float(len(trajectory.own_text)), trajectory.own_text


def run(session: RandomSession, environment: TaskEnvironment) -> list[Trajectory]:
    plain = Prompt("write. ")
    assignments = [Assignment(task, plain, plain, "i0", group) for group, task in enumerate(TASKS)]
    limits = Limits(turns=5)
    episodes = new_episodes(assignments, environment, CODEC, limits, first_row=7)
    return run_episodes(episodes, environment, session)


@pytest.mark.parametrize("parallel", [1, 4])
def test_no_order_of_ends_changes_a_rollout(parallel: int) -> None:
    in_lock_step = run(RandomSession(), Letters(parallel))
    assert len({len(t.turns) for t in in_lock_step}) > 3
    orders: set[tuple[int, ...]] = set()
    peaks: list[int] = []
    for seed in range(5):
        session = Apart(seed)
        environment = Letters(parallel)
        assert run(session, environment) == in_lock_step
        peaks.append(environment.peak)
        assert max(environment.batches) > 1  # what is ready at the same time is one call
        orders.add(tuple(session.answered))
    assert len(orders) == 5
    assert max(peaks) <= parallel
    assert (max(peaks) > 1) == (parallel > 1)  # in one of the orders, however busy the machine

    async def cell() -> list[Trajectory]:
        return run(Apart(), Letters(parallel))

    assert asyncio.run(cell()) == in_lock_step  # in a notebook, too


def test_without_the_environments_leave_all_go_turn_by_turn() -> None:
    environment = Letters(0)
    session = Apart()
    run(session, environment)
    assert session.calls == 0
    assert environment.batches[0] == len(TASKS)


def test_episodes_go_apart_as_far_as_environment_and_retriever_allow() -> None:
    def look() -> str:
        """Look it up."""
        return "found"

    class OwnSearch(SearchEnvironment):
        def respond(self, actions: Sequence[Action]) -> list[Response]:
            return []

    tasks = {"train": TASKS}
    server = RemoteRetriever(RemoteOptions(url="http://127.0.0.1:9/retrieve"))
    search = SearchEnvironment(tasks, server, "Search.", exact_match)
    assert search.parallel_responses == RemoteRetriever.parallel_searches
    assert OwnSearch(tasks, server, "Search.", exact_match).parallel_responses == 0
    assert ToolEnvironment([look], tasks).parallel_responses == CONCURRENCY
    assert ToolEnvironment([look], tasks, seconds=math.inf).parallel_responses == 0


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (ConfigError("down"), ConfigError, "^down$"),
        # These two a future does not take, or the event loop does not survive.
        (StopIteration("nothing left"), EngineError, "raised StopIteration: nothing left"),
        (SystemExit(3), EngineError, "raised SystemExit: 3"),
    ],
)
def test_a_failure_ends_all_episodes_with_its_error(
    error: BaseException, expected: type[Exception], message: str
) -> None:
    class Broken(Letters):
        def respond(self, actions: Sequence[Action]) -> list[Response]:
            if len(self.batches) == 3:
                raise error
            return super().respond(actions)

    session = Apart()
    with pytest.raises(expected, match=message):
        run(session, Broken(2))
    calls = session.calls
    time.sleep(0.05)
    assert session.calls == calls < sum(len(t.turns) for t in run(RandomSession(), Letters(1)))


@pytest.mark.parametrize("in_notebook", [False, True])
def test_ctrl_c_ends_all_episodes_and_waits_for_them(in_notebook: bool) -> None:
    class Interrupted(Apart):
        live = 0

        async def sample(self, request: SampleRequest) -> Sample:
            if self.calls == 40:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            self.live += 1
            try:
                return await super().sample(request)
            finally:
                try:
                    await asyncio.sleep(0.02)  # as a request to a server that is given up
                finally:
                    self.live -= 1

    async def cell() -> None:
        with pytest.raises(KeyboardInterrupt):
            run(session, Letters(2))

    session = Interrupted()
    # A worker of pytest-xdist ignores the signal.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if in_notebook:
            asyncio.new_event_loop().run_until_complete(cell())
        else:
            with pytest.raises(KeyboardInterrupt):
                run(session, Letters(2))
    finally:
        signal.signal(signal.SIGINT, handler)
    assert session.calls < 60
    assert session.live == 0


def run_with_timeout(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Fails where a waiter is never answered."""
    return asyncio.run(asyncio.wait_for(coroutine, 10))


def test_two_functions_of_one_thread_never_run_at_a_time() -> None:
    running = threading.Lock()

    def double(items: Sequence[int]) -> list[int]:
        assert running.acquire(blocking=False)
        try:
            return [2 * item for item in items]
        finally:
            running.release()

    async def run() -> list[Any]:
        worker = Worker()
        first, second = Together(double, worker=worker), Together(double, worker=worker)
        return [await asyncio.gather(first(n), second(n)) for n in range(20)]

    assert run_with_timeout(run()) == [[2 * n, 2 * n] for n in range(20)]
