"""Sample rollouts with vLLM, through the `VLLMGeneration` of a GRPOTrainer with `use_vllm`."""

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast
from uuid import uuid4

import torch
import trl.generation.vllm_generation as vllm_generation
from accelerate.utils import broadcast_object_list
from transformers import set_seed
from trl import GRPOConfig, GRPOTrainer
from trl.generation.vllm_generation import VLLMGeneration

from cotune.errors import ConfigError, EngineError
from cotune.methods.context_distillation import is_distilled, uses_context_mask
from cotune.policy.sampling import StopFinder
from cotune.protocols import Codec, Comm, Session
from cotune.rollout.coordinator import turn_seed
from cotune.types import Distillation, Sample, SampleRequest, Sampling, Trajectory
from cotune.utils.background import Worker, run_to_end
from cotune.utils.progress import begin
from cotune.utils.text import one_line, shorten_middle

_LONGEST = 400  # of what vLLM says
Waiting = list[tuple[int, int]] | None
"""A rank's rows that wait for tokens: context length and limit of each; None once it has closed."""


class VLLMSampler:
    """Sample turns with vLLM, in this process (`vllm_mode: colocate`) or on a server.

    Args:
        context_tokens: vLLM's context length, including the prompt; None is unlimited.

    Weights are sent at the start of a rollout call if the trainer has stepped since the last call.

    Each turn is a request of its own with a seed of its own (`RowSession`), unless several ranks share a server or
    an engine. They draw with its random state, since TRL gives all rows of a call one set of sampling parameters.
    Either way a resumed run continues with the same distribution, but rounding may give other tokens.

    The recorded log-probabilities are vLLM's, after division by the temperature. P²O's context
    ratios compare them with the trainer's, so they include the mismatch of the two implementations.
    """

    def __init__(
        self, trainer: GRPOTrainer, codec: Codec, comm: Comm, context_tokens: int | None
    ) -> None:
        self._trainer = trainer
        self._codec = codec
        self._comm = comm
        self._context_tokens = context_tokens

    def open(self, sampling: Sampling) -> Session:
        """Open a session; every rank opens and closes equally many, even if it has no rows."""
        self._send_weights()
        generation = self._trainer.vllm_generation
        server = generation.mode == "server"
        if (self._comm.size if server else generation.tensor_parallel_size) > 1:
            # An engine in this process ends rows at its context; a server rejects the call.
            context = self._context_tokens if server else None
            return SharedSession(generation, self._codec, sampling, self._comm, context)
        session = ServerSession if server else EngineSession
        return session(generation, self._codec, sampling)

    def _send_weights(self) -> None:
        """Send weights as the trainer does before its rollouts; final evaluations need this."""
        trainer = self._trainer
        failure = ""
        step = trainer.state.global_step
        if step == trainer._last_loaded_step:
            return
        try:
            trainer.vllm_generation.sync_weights()
        except Exception as error:
            if self._comm.size == 1:
                raise
            failure = f"{type(error).__name__}: {error}"
        failed = [f"rank {r}: {f}" for r, f in enumerate(self._comm.gather(failure)) if f]
        if failed:
            raise EngineError("the weights could not be sent to vLLM; " + "; ".join(failed))
        trainer._last_loaded_step = step


class SharedSession:
    """A session of a `VLLMSampler` whose server or engine several ranks share: they call it in lock-step.

    All rows of a call have one limit, since TRL passes one set of parameters: the largest that a
    row requests. Rows with a smaller limit are truncated, which gives the same distribution because
    the start of a sample does not depend on its limit. Rows that would not fit into a server's context
    with the call's limit wait for another call, because the server would reject them.

    Ranks with fewer rows than another send only `eos` for the rest, and discard the result.
    """

    def __init__(
        self,
        generation: VLLMGeneration,
        codec: Codec,
        sampling: Sampling,
        comm: Comm,
        context_tokens: int | None,
    ) -> None:
        self._generation = generation
        self._codec = codec
        self._sampling = sampling
        self._comm = comm
        self._context_tokens = context_tokens
        self._finder = StopFinder(codec, sampling.stop)
        self._broken = False

    def generate(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        samples = {r.row: Sample((), ()) for r in requests if r.max_tokens < 1}
        while waiting := [r for r in requests if r.row not in samples]:
            samples |= self._call(waiting) or {}
        return [samples[r.row] for r in requests]

    def close(self) -> None:
        """Take part in the other ranks' calls until all have closed."""
        while not self._broken and self._call(None) is not None:
            pass

    def _call(self, requests: Sequence[SampleRequest] | None) -> dict[int, Sample] | None:
        """Call vLLM on all ranks that share it; return samples by row, None once all closed."""
        waiting: Waiting = None
        if requests is not None:
            waiting = [(len(r.context_ids), r.max_tokens) for r in requests]
        by_rank: list[list[tuple[int, int]]] = [w for w in self._comm.gather(waiting) if w]
        if not by_rank:
            return None
        limit = max(row_limit for rows in by_rank for _, row_limit in rows)
        width = max(sum(self._fits(*row, limit) for row in rows) for rows in by_rank)
        fitting = [r for r in requests or () if self._fits(len(r.context_ids), r.max_tokens, limit)]
        prompts = [list(r.context_ids) for r in fitting]
        # Every rank sends equally many prompts.
        prompts += [[self._codec.eos_id]] * (width - len(fitting))
        turns = self._ask(prompts, limit)[: len(fitting)]
        return {
            r.row: cut_turn(r, turn, self._codec, self._finder)
            for r, turn in zip(fitting, turns, strict=True)
        }

    def _fits(self, context: int, row_limit: int, limit: int) -> bool:
        room = math.inf if self._context_tokens is None else self._context_tokens - context
        # A row's own limit always fits: the episode asks for no more than its room.
        return row_limit == limit or limit <= room

    def _ask(self, prompts: list[list[int]], limit: int) -> list[list[tuple[int, float]]]:
        """Return the (token, log-probability) pairs that vLLM wrote after each prompt."""
        self._broken = True
        generation = self._generation
        before = generation.generation_kwargs
        generation.generation_kwargs = turn_options(self._sampling, self._codec, limit)
        try:
            _, ids, logprobs, names = generation.generate(prompts, None, 1)
        except Exception as error:
            self._fail_together(error)
            raise
        finally:
            generation.generation_kwargs = before
        self._broken = False
        return read_rows(ids, logprobs, names)

    def _fail_together(self, error: Exception) -> None:
        """Finish the call on ranks that wait for rank 0's server reply, with an error."""
        if self._generation.mode != "server" or self._comm.size == 1:
            return
        if self._comm.rank == 0:
            broadcast_object_list([None], from_process=0)
        else:
            raise EngineError("rank 0 got nothing from the vLLM server") from error


def sampling_logprobs(trajectories: Sequence[Trajectory]) -> list[list[float | None]]:
    """Return the log-probabilities that TRL's importance-sampling correction compares, (B, C) ragged.

    They are None in a rollout that was sampled under another prompt than it is trained on: TRL then takes a ratio of
    1, which switches its correction off for these rows.
    """
    return [[None] * len(t.logprobs) if is_distilled(t) else list(t.logprobs) for t in trajectories]


def engine_context(trainer: GRPOTrainer, distillation: Distillation, comm: Comm) -> int:
    """Return vLLM's context length, including the prompt; call on all ranks together.

    Raises ConfigError if a server's log-probabilities leave out the temperature.
    """
    if trainer.vllm_mode == "colocate":
        return trainer.vllm_generation.llm.llm_engine.model_config.max_model_len
    served: Any = None
    if comm.rank == 0:
        served = trainer.vllm_generation.vllm_client.get_server_info()["model_config"]
        served = {name: served[name] for name in ("max_model_len", "logprobs_mode")}
    served = comm.broadcast(served)
    reads = trainer.vllm_importance_sampling_correction or uses_context_mask(distillation)
    mode = served["logprobs_mode"]
    if reads and trainer.temperature != 1.0 and mode != "processed_logprobs":
        raise ConfigError(
            f"the vLLM server runs with --logprobs-mode {mode}, which leaves out the temperature of "
            f"{trainer.temperature}: start it with --logprobs-mode processed_logprobs"
        )
    return served["max_model_len"]


@contextmanager
def starting_vllm(trainer: GRPOTrainer) -> Iterator[None]:
    """Give the vLLM that the trainer starts in this process the trainer's type, while it is constructed.

    TRL has no argument for the type, and by default vLLM samples a float32 policy in half precision. A vLLM that does
    not start is an EngineError.
    """
    replaced = {
        name: getattr(vllm_generation, name)
        for name in ("LLM", "VLLMClient")
        if hasattr(vllm_generation, name)  # without vLLM there is no LLM
    }
    if engine := replaced.get("LLM"):

        def start(**options: Any) -> Any:
            begin("starting vLLM")
            options["dtype"] = str(compute_dtype(trainer)).removeprefix("torch.")
            context_tokens = options.get("max_model_len")
            if context_tokens and trainer.accelerator.device.type == "cpu":
                # After a prompt that is split, vLLM rewinds its generator; a CPU's cannot be rewound.
                tokens = max(context_tokens, options["max_num_batched_tokens"])
                options |= {"enable_chunked_prefill": False, "max_num_batched_tokens": tokens}
            return _start(engine, options)

        vllm_generation.LLM = start
    client = replaced["VLLMClient"]
    vllm_generation.VLLMClient = lambda **options: _start(client, options)
    try:
        yield
    finally:
        for name, original in replaced.items():
            setattr(vllm_generation, name, original)


def _start(make: Callable[..., Any], options: dict[str, Any]) -> Any:
    try:
        return make(**options)
    except Exception as error:
        reason = one_line(shorten_middle(f"{type(error).__name__}: {error}", _LONGEST))
        raise EngineError(
            f"vLLM did not start: {reason} (its settings are vllm_… in training.engine_args or GRPOConfig)"
        ) from error


def compute_dtype(trainer: GRPOTrainer) -> torch.dtype:
    """Return the type in which the trainer computes the policy's probabilities."""
    mixed = {"bf16": torch.bfloat16, "fp16": torch.float16}
    weights_dtype: torch.dtype = cast(Any, trainer.model).dtype
    return mixed.get(str(trainer.accelerator.mixed_precision), weights_dtype)


def seed_vllm(trainer: GRPOTrainer, seed: int) -> None:
    """Seed the draws of the vLLM in this process, which TRL seeds alike in every run, by the run and the engine."""
    if trainer.use_vllm and trainer.vllm_mode == "colocate":
        args = cast(GRPOConfig, trainer.args)
        process = trainer.accelerator.process_index
        set_seed(seed + process // args.vllm_tensor_parallel_size)


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
        # Only stop strings need text. To decode the tokens takes an eighth of a step of 48 rows on a CPU.
        "detokenize": bool(sampling.stop),
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
    """Return the tokens of `Rows`, each with its own log-probability; NaN if vLLM could not score it."""
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
