"""Run many episodes: turn by turn together, or each on as soon as its own turn is done."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from cotune.protocols import Environment, Rewards, Session
from cotune.rollout.batched_calls import Together, parallel_calls
from cotune.rollout.episode import Episode, responses, score_all
from cotune.types import Action, Response, Sample, SampleRequest, Trajectory
from cotune.utils.background import run_to_end

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

    They do not wait for each other if the session has a method `sample` and the environment lets
    `parallel_responses` calls run at the same time. A draw depends on its row and place alone, so that changes
    no rollout.

    Args:
        rewards: score in place of the environment; None if it scores.
        finished: called now and then with the number of episodes that are over.
    """
    sample: SampleTurn | None = getattr(session, "sample", None)
    parallel = parallel_responses(environment)
    if sample is None or not parallel:
        _run_in_lock_step(episodes, environment, session, finished)
    else:
        respond = Together(partial(responses, environment), parallel)
        run_to_end(_run_apart(episodes, sample, respond, finished))
    scored = score_all([episode.trajectory() for episode in episodes], environment)
    return scored if rewards is None else rewards(scored, environment)


def parallel_responses(environment: Environment) -> int:
    """Return how many calls of `respond` may run at the same time, in other threads; 0 if they must not."""
    return parallel_calls(environment, "respond", "parallel_responses")


async def run_episode(episode: Episode, sample: SampleTurn, respond: Respond) -> None:
    """Run one episode to its end.

    Args:
        sample: awaits the policy's next turn.
        respond: awaits the environment's response to it.
    """
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
