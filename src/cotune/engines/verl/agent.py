"""veRL's agent loop: one `Episode`, awaited turn by turn."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import count
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop import AgentLoopBase, AgentLoopOutput
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics

from cotune.engines.verl.processes import (
    RESULT,
    ROW,
    SECTION,
    LoadedRun,
    PromptRow,
    SessionResult,
    get_loaded_run,
    without_columns,
)
from cotune.errors import CotuneError, EngineError
from cotune.rewards.functions import RewardFunctions
from cotune.rollout.coordinator import turn_seed
from cotune.rollout.drivers import Together, run_episode
from cotune.rollout.episode import begin_episodes, place_episodes, responses, score_all
from cotune.types import Assignment, Sample, SampleRequest, Sampling, Trajectory
from cotune.utils.background import Worker


class BatchedCalls:
    """The environment's calls, batched over all episodes of this process.

    A rollout is scored once its whole group has arrived, because scoring may compare rollouts of a group.
    """

    def __init__(self, loaded_run: LoadedRun) -> None:
        self._loaded_run = loaded_run
        environment = loaded_run.environment
        # Use one thread for all calls that may not overlap: an environment may keep state that its scores read.
        # An episode that begins may set the seeds of all generators.
        worker = Worker()
        parallel = getattr(environment, "parallel_responses", 0)
        parallel = 1 if hasattr(environment, "begin") else parallel
        response_worker = worker if parallel < 2 else None
        begin = partial(begin_episodes, environment=environment)
        self.begin = Together(begin, worker=worker)
        self.respond = Together(partial(responses, environment), max(1, parallel), response_worker)
        self.score = Groups(Together(self._score, worker=worker))

    def set_progress(self, step: int) -> None:
        """Give reward functions the `trainer_state` of a step of veRL's: the optimizer steps before it."""
        rewards = self._loaded_run.rewards
        if isinstance(rewards, RewardFunctions):
            training = self._loaded_run.config.training
            questions = len(self._loaded_run.environment.tasks("train"))
            rewards.trainer_state = SimpleNamespace(
                global_step=(step - 1) * training.mini_batches,
                max_steps=training.steps * training.mini_batches,
                epoch=(step - 1) * training.questions_per_step / questions,
            )

    def _score(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        environment = self._loaded_run.environment
        rewards = self._loaded_run.rewards
        results = score_all(trajectories, environment)
        return results if rewards is None else rewards(results, environment)


class Groups:
    """Hold awaited calls until their group is complete: its items are passed on at the same moment, so that a `Together`
    puts them into one call."""

    def __init__(self, call: Callable[[Any], Awaitable[Any]]) -> None:
        self._call = call
        self._missing: dict[str, int] = {}
        self._complete: dict[str, asyncio.Event] = {}

    async def __call__(self, group: str, size: int, item: Awaitable[Any]) -> Any:
        """Return the awaited item's result, once all `size` items of its group have come or failed."""
        event = self._complete.setdefault(group, asyncio.Event())
        try:
            awaited_item = await item
        finally:
            self._missing[group] = self._missing.get(group, size) - 1
            if self._missing[group] == 0:
                event.set()
                del self._missing[group], self._complete[group]
        await event.wait()
        return await self._call(awaited_item)


_get_calls = lru_cache(1)(BatchedCalls)


class EpisodeLoop(AgentLoopBase):
    """Run the episode of one session of a prompt's row.

    The row has a column of ours, `ROW`, with what each session is sampled under and trained on, and
    its sampling parameters. The result trains on the prompt in the assignment, with the tokens
    that were sampled; the whole trajectory is returned with it. A failure is returned as well,
    because veRL would continue with the remaining sessions.
    """

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """Run `AgentLoopBase.run`; `row` holds the columns of the prompt's row and `session_id`."""
        session = int(row["session_id"])
        sent = dict[str, Any]()
        try:
            loaded_run = get_loaded_run(self.config[SECTION])
            prompt_row: PromptRow = row[ROW]
            assignment = prompt_row.assignments[session]
            assignment = replace(assignment, task=loaded_run.with_columns(assignment.task))
            calls = _get_calls(loaded_run)
            calls.set_progress(int(row["global_steps"]))
            number = prompt_row.first + session
            episode = self._episode(calls, assignment, prompt_row.sampling, number, sent)
            group_size = len(prompt_row.assignments)
            rollout: Trajectory = await calls.score(str(row["uid"]), group_size, episode)
        except Exception as error:  # noqa: BLE001 - it ends the run in the trainer's process
            if not isinstance(error, CotuneError):
                error = EngineError(f"a rollout failed: {type(error).__name__}: {error}")
            # One token without weight, together with the error.
            sent = {"min_global_steps": 0, "max_global_steps": 0}
            return _output(error, sent, [0], [0], [0], [0.0])
        wants_logprobs = bool(self.rollout_config.calculate_log_probs)
        # Reward functions may log any objects, which only TRL's table of completions shows.
        trajectory = replace(rollout, assignment=without_columns(rollout.assignment), extra={})
        return _output(
            trajectory,
            sent,
            rollout.prompt_ids,
            rollout.completion_ids,
            rollout.trained_mask,
            rollout.logprobs if wants_logprobs else None,
            reward_score=rollout.reward,
            num_turns=2 * len(rollout.turns),
        )

    async def _episode(
        self,
        calls: BatchedCalls,
        assignment: Assignment,
        sampling: Sampling,
        number: int,
        sent: dict[str, Any],
    ) -> Trajectory:
        """Return the finished rollout, unscored."""
        loaded_run = get_loaded_run(self.config[SECTION])
        begun: Assignment = await calls.begin((assignment, number, sampling.episode_seed))
        (episode,) = place_episodes(
            [begun],
            loaded_run.environment,
            loaded_run.codec,
            loaded_run.config.limits,
            number,
            loaded_run.context_tokens,
        )
        sample = partial(self._sample, sampling, uuid4().hex, count(), sent)
        await run_episode(episode, sample, calls.respond)
        return episode.trajectory()

    async def _sample(
        self,
        sampling: Sampling,
        request_id: str,
        turns: Iterator[int],
        sent: dict[str, Any],
        request: SampleRequest,
    ) -> Sample:
        end_ids = get_loaded_run(self.config[SECTION]).codec.end_ids
        params = turn_params(request, sampling, end_ids)
        if self.rollout_config.full_determinism:
            params["seed"] = turn_seed(sampling.seed, request.row, next(turns))
        output = await self.server_manager.generate(
            request_id=request_id, prompt_ids=list(request.context_ids), sampling_params=params
        )
        _note_versions(sent, output.extra_fields)
        ids = tuple(output.token_ids[: request.max_tokens])
        logprobs = output.log_probs
        if not logprobs:
            if self.rollout_config.calculate_log_probs:
                raise EngineError(
                    "the rollout engine returned no log-probabilities, although they were requested"
                )
            logprobs = [0.0] * len(ids)
        return Sample(ids, tuple(float(x) for x in logprobs[: len(ids)]))


def turn_params(
    request: SampleRequest, sampling: Sampling, end_ids: frozenset[int]
) -> dict[str, Any]:
    """Return vLLM's parameters for a turn, which ends at a stop string, a token that ends turns, or the limit."""
    params: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": 1.0,
        "top_k": -1,
        "max_tokens": request.max_tokens,
        "logprobs": True,
        # vLLM reads another generation_config.json if it serves another folder.
        "ignore_eos": True,
        "stop_token_ids": sorted(end_ids),
    }
    if sampling.stop:
        # A stop string may contain a special token, which vLLM removes from the text by default.
        stops = {"stop": list(sampling.stop), "include_stop_str_in_output": True}
        params |= stops | {"skip_special_tokens": False}
    return params


def _note_versions(sent: dict[str, Any], fields: dict[str, Any]) -> None:
    """Record which weight versions wrote the turns; veRL reads the first and the last."""
    sent.setdefault("min_global_steps", fields.get("min_global_steps"))
    sent["max_global_steps"] = fields.get("max_global_steps")
    if "global_steps" in fields:
        sent["global_steps"] = fields["global_steps"]


def _output(
    outcome: Trajectory | CotuneError,
    sent: dict[str, Any],
    prompt_ids: Sequence[int],
    response_ids: Sequence[int],
    response_mask: Sequence[int],
    logprobs: Sequence[float] | None,
    reward_score: float = 0.0,
    num_turns: int = 0,
) -> AgentLoopOutput:
    return AgentLoopOutput(
        prompt_ids=list(prompt_ids),
        response_ids=list(response_ids),
        response_mask=list(response_mask),
        response_logprobs=None if logprobs is None else list(logprobs),
        reward_score=reward_score,
        num_turns=num_turns,
        metrics=AgentLoopMetrics(),
        extra_fields={
            **sent,
            "turn_scores": [],
            "tool_rewards": [],
            "reward_extra_info": {},
            RESULT: SessionResult(outcome),
        },
    )
