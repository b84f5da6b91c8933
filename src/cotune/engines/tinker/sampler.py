"""A policy on a Tinker server, sampled: while it is trained, or kept there, or as the base model."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any

from cotune.config.run_file import RunConfig
from cotune.engines.tinker.service import Service
from cotune.engines.tinker.settings import read_arguments
from cotune.errors import ConfigError, EngineError
from cotune.llm.client import NoLLM
from cotune.methods.static import StaticStrategy
from cotune.policy.local_policy import context_length, load_architecture, load_codec
from cotune.policy.policy_files import policy_path
from cotune.policy.template_checks import check_turns
from cotune.protocols import Codec, Environment, Rewards
from cotune.rollout.coordinator import Coordinator, RolloutSettings, turn_seed
from cotune.run.locks import RUN_LOCK, locked
from cotune.run.record import Record
from cotune.types import Sample, SampleRequest, Sampling
from cotune.utils.background import Worker
from cotune.utils.progress import begin

FILE = "tinker.json"
"""The file of a checkpoint, or of the kept adapter, with its path on the server."""
_HERE = "load the policy here, with --set training.engine=trl"


class ServerPolicy:
    """A policy on a server, to sample from.

    It is sampled through one client at a time: SkyRL's jax server puts the weights of an older client back into the
    adapter that is trained.

    Args:
        weights: `model_path`, which `Adapter.export` returned, or `base_model`.
    """

    fix = ""
    """What to do if sampling fails, for the error message."""

    def __init__(self, service: Service, **weights: str) -> None:
        self.service = service
        self._weights = weights
        self._sampling: Any = None
        self._opening = Lock()

    def _open(self) -> Any:
        return self.service.client.create_sampling_client(**self._weights)

    def sample(self, rows: Sequence[tuple[Sequence[int], Mapping[str, Any]]]) -> list[Any]:
        """Return a sampled sequence for each context and its `SamplingParams`; all are requested at once."""
        from tinker.types import ModelInput, SamplingParams

        call = self.service.call
        try:
            with self._opening:
                if self._sampling is None:
                    self._sampling = call("weights to sample from", self._open)
            draw = self._sampling.sample
            prepared = [(ModelInput.from_ints(list(ids)), SamplingParams(**p)) for ids, p in rows]
            answers = call("sampling", lambda: [draw(ids, 1, p) for ids, p in prepared])
        except EngineError as error:
            raise EngineError(f"{error}{self.fix}") from None
        return [answer.sequences[0] for answer in answers]


@dataclass(frozen=True)
class TinkerSampler:
    """Sample from a policy; also the session of a call. If `turn_tokens` is set, every turn asks for so many."""

    policy: ServerPolicy
    codec: Codec
    turn_tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)

    def open(self, sampling: Sampling) -> "TinkerSampler":
        return replace(self, sampling=sampling)

    def generate(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        ends = self.codec.end_ids
        # The API takes tokens or texts, and servers differ in what ends a sequence if they get none.
        stop: list[Any] = sorted(ends)
        if self.sampling.stop:
            stop = [*self.sampling.stop, *(self.codec.decode([end]) for end in stop)]
        shared = {"temperature": self.sampling.temperature, "stop": stop}
        rows: list[tuple[Sequence[int], dict[str, Any]]] = []
        for request in requests:
            max_tokens = self.turn_tokens or request.max_tokens
            seed = turn_seed(self.sampling.seed, request.row, len(request.context_ids))
            parameters = {**shared, "max_tokens": max_tokens, "seed": seed}
            rows.append((request.context_ids, parameters))
        samples: list[Sample] = []
        for request, answer in zip(requests, self.policy.sample(rows), strict=True):
            tokens = tuple(answer.tokens)
            logprobs = tuple(answer.logprobs or ())
            closed = [place for place, token in enumerate(tokens, 1) if token in ends]
            length = min(request.max_tokens, *closed[:1], len(tokens))  # a server may go on
            samples.append(Sample(tokens[:length], logprobs[:length]))
        return samples

    async def sample(self, request: SampleRequest) -> Sample:
        """Return one turn; calls may overlap."""
        (sample,) = await Worker().call(self.generate, [request])
        return sample

    def close(self) -> None: ...


def server_path(folder: Path) -> str:
    """Return the path on the server of what a folder holds; "" if nothing is kept there."""
    file = folder / FILE
    return json.loads(file.read_bytes())["path"] if file.is_file() else ""


def open_policy(
    config: RunConfig,
    environment: Environment,
    *,
    rewards: Rewards | None = None,
    best: Path | None = None,
    temperature: float | None = None,
) -> Coordinator:
    """Do what `run_policy` does, with a policy on the server: the base model, or what it keeps for a run's `best/`.

    Raises:
        ConfigError: also if the run is being trained, or the server does not answer or has not the model.
    """
    arguments = read_arguments(config)
    limits = config.limits
    start = policy_path(config.policy.path)
    base_model = arguments.base_model or start
    weights = {"base_model": base_model}
    options = config.policy
    if best is not None:
        weights = {"model_path": server_path(best)}
        options = options.model_copy(update={"path": str(best), "chat_template": None})
        if not weights["model_path"]:
            raise ConfigError(f"{best}: no {FILE} names a policy on a Tinker server; {_HERE}")
        if os.access(lock := best.parent / RUN_LOCK, os.W_OK):
            # SkyRL's jax server would put the kept weights into the adapter that is trained.
            with locked(lock, f"{best.parent} is being trained; wait for it, or {_HERE}"):
                pass
    begin("connecting to the Tinker server")
    try:
        service = Service(arguments, base_model)
    except ConfigError as error:
        raise ConfigError(f"{error}; or {_HERE}" if best else str(error)) from None
    policy = ServerPolicy(service, **weights)
    policy.fix = f"; if it no longer has these weights, {_HERE}" if best else ""
    codec = load_codec(options)
    check_turns(environment, codec)
    turn_tokens = limits.turn_tokens if arguments.row_multiple > 1 else None
    context = context_length(load_architecture(start))
    sampled = temperature or config.training.temperature
    rows = config.training.rows_per_call
    return Coordinator(
        strategy=StaticStrategy(""), environment=environment, codec=codec,
        sampler=TinkerSampler(policy, codec, turn_tokens), llm=NoLLM(), record=Record(),
        settings=RolloutSettings(limits, sampled, config.seed, rows, context), rewards=rewards,
    )  # fmt: skip
