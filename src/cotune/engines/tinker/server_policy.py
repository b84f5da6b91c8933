"""A policy on a Tinker server: sampled, trained, saved, exported."""

import io
import json
import os
import re
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any

import httpx
import numpy as np

from cotune.config.run_file import RunConfig
from cotune.engines.tinker.service import ALPHA, Service, read_arguments
from cotune.errors import ConfigError, EngineError
from cotune.llm.client import NoLLM
from cotune.methods.context_distillation import Floats
from cotune.methods.static import StaticStrategy
from cotune.policy.codec import check_turns
from cotune.policy.local_policy import context_length, load_architecture, load_codec
from cotune.policy.policy_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS, policy_path
from cotune.protocols import Codec, Environment, Rewards
from cotune.rollout.coordinator import Coordinator, RolloutSettings, turn_seed
from cotune.run.json_files import RUN_LOCK, locked, write_atomic, write_json_atomic
from cotune.run.record import Record
from cotune.types import Sample, SampleRequest, Sampling
from cotune.utils.background import Worker
from cotune.utils.progress import begin
from cotune.utils.text import one_line

FILE = "tinker.json"  # of a checkpoint or of the kept adapter: its path on the server
_TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_[AB]\.weight")

Pair = tuple[Sequence[int], Sequence[int]]  # the tokens of a prompt and of its completion


class ServerPolicy:
    """A policy on a server: `weights` is a `model_path`, which `Adapter.export` returned, or a `base_model`."""

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

        with self._opening:
            # One client at a time: SkyRL's jax server puts the weights of an older one back into the adapter.
            if self._sampling is None:
                self._sampling = self.service.call("weights to sample from", self._open)
        draw = self._sampling.sample
        prepared = [(ModelInput.from_ints(list(ids)), SamplingParams(**p)) for ids, p in rows]
        answers = self.service.call("sampling", lambda: [draw(ids, 1, p) for ids, p in prepared])
        return [answer.sequences[0] for answer in answers]


class Adapter(ServerPolicy):
    """A LoRA adapter on all linear layers but the head, and its optimizer; `saved`, from `save`, to go on from."""

    def __init__(self, service: Service, rank: int, seed: int = 0, saved: str = "") -> None:
        super().__init__(service)
        self._rank = rank
        client = service.client

        def make() -> Any:
            if saved:  # newer servers load into no client that has done something else
                return client.create_training_client_from_state_with_optimizer(saved)
            return client.create_lora_training_client(
                base_model=service.base_model, rank=rank, seed=seed, train_unembed=False
            )

        self._client = service.call("an adapter", make)

    def _open(self) -> Any:
        return self._client.save_weights_and_get_sampling_client()

    def forward(self, pairs: Sequence[Pair]) -> list[Floats]:
        """Return log π of each completion's tokens, (C,), by the pass that training makes."""
        data = [datum(p, c, weights=np.ones(len(p) + len(c) - 1)) for p, c in pairs]
        forward = self._client.forward
        output = self.service.call("log-probabilities", lambda: forward(data, "cross_entropy"))
        of_targets = zip(_logprobs(output), pairs, strict=True)
        return [logprobs[len(prompt) - 1 :] for logprobs, (prompt, _) in of_targets]

    def update(
        self, data: Sequence[Any], loss: str, bounds: Mapping[str, float], learning_rate: float
    ) -> dict[str, float]:
        """Make a step of Adam; return the server's metrics and `drift`, the largest change in log π since sampling."""
        from tinker.types import AdamParams

        # SkyRL ignores a norm to clip gradients to, so none is set.
        adam = AdamParams(learning_rate=learning_rate, beta1=0.9, beta2=0.999, eps=1e-8)

        def send() -> list[Any]:
            # Together: the hosted service works in cycles of about ten seconds.
            passed = self._client.forward_backward(list(data), loss, dict(bounds))
            return [passed, self._client.optim_step(adam)]

        passed, stepped = self.service.call("an update", send)
        self._sampling = None
        drift = 0.0
        for row, logprobs in zip(data, _logprobs(passed), strict=True):
            old, advantages = (row.loss_fn_inputs[n].to_numpy() for n in ("logprobs", "advantages"))
            drift = max(drift, float(np.abs(logprobs - old)[advantages != 0].max(initial=0.0)))
        return {**(passed.metrics or {}), **(stepped.metrics or {}), "drift": drift}

    def save(self, name: str) -> str:
        """Save weights and Adam's moments; return their path on the server."""
        return self.service.call("a checkpoint", lambda: self._client.save_state(name)).path

    def export(self, name: str, folder: Path, base: str) -> str:
        """Save the weights on the server, and here as a PEFT adapter of a base; return their path on the server."""
        from safetensors.torch import load

        save = self._client.save_weights_for_sampler
        path: str = self.service.call("weights to keep", lambda: save(name)).path
        files = self._download(name, path)
        config = json.loads(files.get(ADAPTER_CONFIG, b"{}"))
        tensors = load(files[ADAPTER_WEIGHTS]) if ADAPTER_WEIGHTS in files else {}
        names = [_TENSOR.fullmatch(tensor) for tensor in tensors]
        shape = config.get("r"), config.get("lora_alpha")
        if not names or not all(names) or shape != (self._rank, ALPHA):
            raise EngineError(
                f"the Tinker server exported {len(names)} tensors with r and alpha {shape}; expected "
                f"{(self._rank, ALPHA)}, and PEFT's names, base_model.model.….lora_A.weight; use another server"
            )
        # SkyRL names no layers, and PEFT then loads two of seven without a word.
        modules = sorted({match[1].rpartition(".")[2] for match in names if match})
        config |= {"target_modules": modules, "base_model_name_or_path": base}
        config |= {"task_type": "CAUSAL_LM", "inference_mode": True}
        folder.mkdir(parents=True)
        write_atomic(folder / ADAPTER_WEIGHTS, files[ADAPTER_WEIGHTS])
        write_json_atomic(folder / ADAPTER_CONFIG, config)
        return path

    def _download(self, name: str, path: str) -> dict[str, bytes]:
        """Return the files of an adapter, by name."""
        call = self.service.call
        client = self.service.rest_client
        if not hasattr(client, "get_checkpoint_archive_url"):  # newer versions of the SDK
            save = self._client.save_weights_external
            external = call("weights to export", lambda: save(name)).path
            urls = call("addresses", lambda: client.get_external_weights_urls(external)).urls
            files = {Path(file).name: _fetch(url) for file, url in urls.items()}
            self.service.delete(external)
            return files
        # SkyRL's path and its route have the bare name, the hosted service's "sampler_weights/NAME".
        run, _, checkpoint = path.removeprefix("tinker://").partition("/")
        archive_url = client.get_checkpoint_archive_url
        archive = _fetch(call("an archive", lambda: archive_url(run, checkpoint)).url)
        try:
            with tarfile.open(fileobj=io.BytesIO(archive)) as members:
                opened = [(member.name, members.extractfile(member)) for member in members]
                return {Path(member).name: file.read() for member, file in opened if file}
        except (tarfile.TarError, EOFError) as error:  # EOFError: cut off
            raise EngineError(
                f"an adapter cannot be downloaded: the server gave no whole tar archive ({one_line(str(error))})"
            ) from error


def datum(prompt: Sequence[int], completion: Sequence[int], **inputs: Any) -> Any:
    """Return a row of a batch, with what the loss needs of each token after the first, (P + C - 1,)."""
    from tinker.types import Datum, ModelInput

    ids = [*prompt, *completion]
    targets = {"target_tokens": np.array(ids[1:]), **inputs}
    return Datum(model_input=ModelInput.from_ints(ids[:-1]), loss_fn_inputs=targets)


def _fetch(url: str) -> bytes:
    try:
        return httpx.get(url, follow_redirects=True, timeout=300).raise_for_status().content
    except httpx.HTTPError as error:  # the address may be signed, so it is not shown
        raise EngineError(f"an adapter cannot be downloaded: {type(error).__name__}") from None


def _logprobs(output: Any) -> list[Floats]:
    return [np.asarray(row["logprobs"].data, dtype=np.float64) for row in output.loss_fn_outputs]


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
        rows: list[tuple[Sequence[int], dict[str, Any]]] = []
        for request in requests:
            parameters = {
                "temperature": self.sampling.temperature,
                "stop": stop,
                "max_tokens": self.turn_tokens or request.max_tokens,
                "seed": turn_seed(self.sampling.seed, request.row, len(request.context_ids)),
            }
            rows.append((request.context_ids, parameters))
        samples: list[Sample] = []
        for request, answer in zip(requests, self.policy.sample(rows), strict=True):
            closed = [place for place, token in enumerate(answer.tokens, 1) if token in ends]
            length = min([request.max_tokens, *closed[:1]])  # a server may go on
            logprobs = tuple(answer.logprobs or ())[:length]
            samples.append(Sample(tuple(answer.tokens)[:length], logprobs))
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
    """Do what `run_policy` does, with the base model on the server, or what it keeps for a run's `best/`."""
    arguments = read_arguments(config)
    start = policy_path(config.policy.path)
    base_model = arguments.base_model or start
    weights = {"base_model": base_model}
    options = config.policy
    if best is not None:
        here = "load the policy here, with --set training.engine=trl"
        weights = {"model_path": server_path(best)}
        options = options.model_copy(update={"path": str(best), "chat_template": None})
        if not weights["model_path"]:
            raise ConfigError(f"{best}: no {FILE} names a policy on a Tinker server; {here}")
        if os.access(lock := best.parent / RUN_LOCK, os.W_OK):
            # SkyRL's jax server would put the kept weights into the adapter that is trained.
            with locked(lock, f"{best.parent} is being trained; wait for it, or {here}"):
                pass
    begin("connecting to the Tinker server")
    policy = ServerPolicy(Service(arguments, base_model), **weights)
    codec = load_codec(options)
    check_turns(environment, codec)
    context = context_length(load_architecture(start))
    sampled = temperature or config.training.temperature
    turn_tokens = config.limits.turn_tokens if arguments.row_multiple > 1 else None
    rows = config.training.rows_per_call
    return Coordinator(
        strategy=StaticStrategy(""), environment=environment, codec=codec,
        sampler=TinkerSampler(policy, codec, turn_tokens), llm=NoLLM(), record=Record(),
        settings=RolloutSettings(config.limits, sampled, config.seed, rows, context), rewards=rewards,
    )  # fmt: skip
