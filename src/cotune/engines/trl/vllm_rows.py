"""Sample each turn by a request of its own to vLLM, so that no row waits for another one."""

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any
from uuid import uuid4

import trl.generation.vllm_generation as vllm_generation
from trl.generation.vllm_generation import VLLMGeneration

from cotune.errors import EngineError
from cotune.policy.sampling import StopFinder
from cotune.protocols import Codec
from cotune.rollout.coordinator import turn_seed
from cotune.types import Sample, SampleRequest, Sampling
from cotune.utils.background import Worker, run_to_end

Rows = tuple[Sequence[Sequence[int]], Sequence[Any] | None, Sequence[Any] | None]
"""What vLLM wrote, as TRL returns it: tokens, and the log-probabilities of candidates and those candidates."""

_CONNECTIONS = 1024  # to a server, kept for further requests


class RowSession(ABC):
    """A session of a `VLLMSampler` whose vLLM no other rank calls.

    A turn is drawn with a seed of its own. The seed depends on row and place, so draws do not depend on batching,
    but for rounding.
    """

    def __init__(self, generation: VLLMGeneration, codec: Codec, sampling: Sampling) -> None:
        self._generation = generation
        self._codec = codec
        self._sampling = sampling
        self._finder = StopFinder(codec, sampling.stop)

    def generate(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        async def sample_all() -> list[Sample]:
            return await asyncio.gather(*map(self.sample, requests))

        return run_to_end(sample_all())

    async def sample(self, request: SampleRequest) -> Sample:
        """Return one turn; calls may overlap."""
        if request.max_tokens < 1:
            return Sample((), ())
        seed = turn_seed(self._sampling.seed, request.row, len(request.context_ids))
        options = turn_options(self._sampling, self._codec, request.max_tokens) | {"seed": seed}
        (written,) = read_rows(*await self._write(list(request.context_ids), options))
        return cut_turn(request, written, self._codec, self._finder)

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    async def _write(self, context: list[int], options: dict[str, Any]) -> Rows:
        """Return what vLLM writes after one context."""


class ServerSession(RowSession):
    """Sends requests to a server, all at the same time."""

    def __init__(self, generation: VLLMGeneration, codec: Codec, sampling: Sampling) -> None:
        super().__init__(generation, codec, sampling)
        client = generation.vllm_client
        adapter: Any = client.session.get_adapter(client.base_url)
        adapter.init_poolmanager(1, _CONNECTIONS)

    def close(self) -> None: ...

    async def _write(self, context: list[int], options: dict[str, Any]) -> Rows:
        generate = partial(self._generation.vllm_client.generate, generation_kwargs=options)
        output = await Worker().call(generate, [context])
        return output["completion_ids"], output["logprobs"], output["logprob_token_ids"]


class EngineSession(RowSession):
    """Steps the engine in this process, in this thread, as long as a turn waits."""

    def __init__(self, generation: VLLMGeneration, codec: Codec, sampling: Sampling) -> None:
        super().__init__(generation, codec, sampling)
        self._engine: Any = generation.llm.llm_engine
        self._answers: dict[str, asyncio.Future[Any]] = {}
        self._stepping: asyncio.Task[None] | None = None
        if generation.enable_sleep_mode:
            # Asleep, it has lost its weights.
            if generation._llm_weights_sleeping:
                generation.sync_weights()
            generation.llm.wake_up(tags=["kv_cache"])

    def close(self) -> None:
        if self._generation.enable_sleep_mode:
            self._generation.llm.sleep(level=2)
            self._generation._llm_weights_sleeping = True

    async def _write(self, context: list[int], options: dict[str, Any]) -> Rows:
        name = uuid4().hex
        prompt = {"type": "token", "prompt_token_ids": context}
        parameters = vllm_generation.SamplingParams(**options)
        # By default every step returns all tokens so far.
        parameters.output_kind = type(parameters.output_kind).FINAL_ONLY
        self._engine.add_request(name, prompt, parameters)
        self._answers[name] = asyncio.get_running_loop().create_future()
        if self._stepping is None or self._stepping.done():
            self._stepping = asyncio.create_task(self._step())
        try:
            output = await self._answers[name]
        finally:
            if self._answers.pop(name, None) is not None:
                self._engine.abort_request([name])
        logprobs, candidates = vllm_generation.extract_logprobs([output])
        return [output.outputs[0].token_ids], logprobs, candidates

    async def _step(self) -> None:
        while self._answers:
            try:
                outputs = self._engine.step()
            except Exception as error:  # noqa: BLE001 - raised where turns are awaited
                for answer in self._answers.values():
                    if not answer.done():
                        answer.set_exception(error)
                self._answers.clear()
                return
            for output in outputs:
                answer = self._answers.pop(output.request_id, None) if output.finished else None
                # One that is done was cancelled: its episode ended with another's failure.
                if answer is not None and not answer.done():
                    answer.set_result(output)
            await asyncio.sleep(0)  # episodes whose turn is done go on


def turn_options(sampling: Sampling, codec: Codec, limit: int) -> dict[str, Any]:
    """Return vLLM's sampling parameters for a turn of at most `limit` tokens."""
    return {
        "temperature": sampling.temperature,
        "max_tokens": limit,
        "logprobs": 0,
        # A turn ends with the token that completes a stop string, or with one that ends turns.
        "stop": list(sampling.stop),
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "ignore_eos": True,
        "stop_token_ids": sorted(codec.end_ids),
        # Turn off everything that would change the policy's distribution.
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }


def read_rows(
    ids: Sequence[Sequence[int]], logprobs: Sequence[Any] | None, candidates: Sequence[Any] | None
) -> list[list[tuple[int, float]]]:
    """Return the tokens of `Rows`, each with its own log-probability; NaN if vLLM could not score it.

    Raises:
        EngineError: there are no log-probabilities.
    """
    if logprobs is None or candidates is None:
        raise EngineError("vLLM returned no log-probabilities; it was asked for them")
    rows: list[list[tuple[int, float]]] = []
    for row in zip(ids, logprobs, candidates, strict=True):
        of_tokens = [
            (token, values[names.index(token)]) for token, values, names in zip(*row, strict=True)
        ]
        rows.append([(token, math.nan if x is None else x) for token, x in of_tokens])
    return rows


def cut_turn(
    request: SampleRequest, written: Sequence[tuple[int, float]], codec: Codec, finder: StopFinder
) -> Sample:
    """Return a turn truncated by the row's own limit and the other samplers' stop rule."""
    ids: list[int] = []
    for token, _ in written[: request.max_tokens]:
        ids.append(token)
        if token in codec.end_ids or finder.completes(ids):
            break
    return Sample(tuple(ids), tuple(logprob for _, logprob in written[: len(ids)]))
