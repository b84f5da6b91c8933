"""Run many episodes: turn by turn together, or each on as soon as its own turn is done, with calls in batches."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from cotune.errors import EngineError
from cotune.protocols import Environment, Rewards, Session
from cotune.rollout.episode import Episode, responses, score_all
from cotune.types import Action, Response, Sample, SampleRequest, Trajectory
from cotune.utils.background import Worker, run_to_end

_WINDOW = 0.005  # seconds that a call waits for others to join it


class Together:
    """Batch awaited calls of a function that takes and returns lists.

    Requests that arrive at about the same time, or while `parallel` calls are running, go into one call.

    Args:
        function: maps a list of items to a list of results, in the same order.
        parallel: calls that may run at the same time, each in a thread.
        worker: the thread of all calls; functions that share it are never called at the same time. None
            takes a new one for each call.
    """

    def __init__(
        self,
        function: Callable[[Sequence[Any]], Sequence[Any]],
        parallel: int = 1,
        worker: Worker | None = None,
    ) -> None:
        self._function = function
        self._free = parallel
        self._worker = worker
        self._waiting: list[tuple[Any, asyncio.Future[Any]]] = []
        self._gathering = False
        self._running = set[asyncio.Task[None]]()

    async def __call__(self, item: Any) -> Any:
        """Return the item's result, or raise the error of the call that included it."""
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        if self._free and not self._gathering:
            self._gathering = True
            self._free -= 1
            task = asyncio.create_task(self._run())
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        return await answer

    async def _run(self) -> None:
        await asyncio.sleep(_WINDOW)
        self._gathering = False
        while self._waiting:
            calls = self._waiting
            self._waiting = []
            results: Sequence[Any] = ()
            error: Exception | None
            try:
                worker = self._worker or Worker()
                results, error = await worker.call(self._outcome, [item for item, _ in calls])
            except Exception as failure:  # noqa: BLE001 - no thread can be started: all who wait are told
                error = failure
            for number, (_, answer) in enumerate(calls):
                if answer.done():
                    continue
                if error is None:
                    answer.set_result(results[number])
                else:
                    answer.set_exception(error)
        self._free += 1

    def _outcome(self, items: list[Any]) -> tuple[Sequence[Any], Exception | None]:
        """Return the results, or an error in a form that a future accepts."""
        try:
            results = self._function(items)
        except BaseException as error:  # noqa: BLE001 - raised again in the awaiting task
            # The others would end the process, or leave the awaiting task without an answer.
            if isinstance(error, Exception) and not isinstance(error, StopIteration):
                return (), error
            return (), EngineError(
                f"an environment or its rewards raised {type(error).__name__}: {error}"
            )
        if len(results) != len(items):
            return (), EngineError(
                f"asked for {len(items)} results, an environment or its rewards gave {len(results)}"
            )
        return results, None


SampleTurn = Callable[[SampleRequest], Awaitable[Sample]]
Respond = Callable[[Action], Awaitable[Response]]
Finished = Callable[[int], None]


def run_episodes(
    episodes: Sequence[Episode],
    environment: Environment,
    session: Session,
    rewards: Rewards | None = None,
    finished: Finished = lambda count: None,
) -> list[Trajectory]:
    """Run episodes to their end and score them all together.

    They do not wait for each other if the session has a method `sample` and the environment lets `parallel_responses`
    calls run at the same time. A draw depends on its row and place alone, so that changes no rollout.

    Args:
        rewards: score in place of the environment; None if it scores.
        finished: called now and then with the number of episodes that are over.
    """
    sample: SampleTurn | None = getattr(session, "sample", None)
    parallel = getattr(environment, "parallel_responses", 0)
    if sample is None or not parallel:
        _run_in_lock_step(episodes, environment, session, finished)
    else:
        respond = Together(partial(responses, environment), parallel)
        run_to_end(_run_apart(episodes, sample, respond, finished))
    scored = score_all([episode.trajectory() for episode in episodes], environment)
    return scored if rewards is None else rewards(scored, environment)


async def run_episode(episode: Episode, sample: SampleTurn, respond: Respond) -> None:
    """Run one episode to its end."""
    while not episode.done:
        turn = await sample(episode.request())
        action = episode.advance(turn.ids, turn.logprobs)
        episode.observe(await respond(action))


async def _run_apart(
    episodes: Sequence[Episode], sample: SampleTurn, respond: Respond, finished: Finished
) -> None:
    tasks = [asyncio.create_task(run_episode(e, sample, respond)) for e in episodes]
    try:
        for count, task in enumerate(asyncio.as_completed(tasks), 1):
            await task
            finished(count)
    finally:  # after a failure or Ctrl-C none goes on
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _run_in_lock_step(
    episodes: Sequence[Episode], environment: Environment, session: Session, finished: Finished
) -> None:
    """Run episodes turn by turn, all live ones together; the environment gets one batch of actions per turn."""
    live = [episode for episode in episodes if not episode.done]
    while live:
        samples = session.generate([episode.request() for episode in live])
        actions = [
            episode.advance(sample.ids, sample.logprobs)
            for episode, sample in zip(live, samples, strict=True)
        ]
        for episode, response in zip(live, responses(environment, actions), strict=True):
            episode.observe(response)
        live = [episode for episode in live if not episode.done]
        finished(len(episodes) - len(live))
