"""What TRL's `VLLMGeneration` uses of vLLM, on a tiny policy of its own: engine, client, parameters.

TRL's own class runs above these unchanged, with its weight sync, its gathering over ranks and its
parsing. Signatures are held to TRL's client and, where it is installed, to vLLM's own classes.
"""

import copy
import enum
import json
import math
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import requests
import torch
import trl.generation.vllm_generation as vllm_generation
from transformers import PreTrainedTokenizerBase

from tests.policy.tiny import tiny_model

OTHER_EOS = 1
"""<unk>: an EOS that the policy's generation_config.json names beside the tokenizer's."""


class OutputKind(enum.Enum):
    """`vllm.sampling_params.RequestOutputKind`."""

    CUMULATIVE = 0
    FINAL_ONLY = 2


@dataclass
class SamplingParams:
    """The fields of `vllm.SamplingParams` that are used here, with its defaults."""

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    logprobs: int | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    detokenize: bool = True
    output_kind: OutputKind = OutputKind.CUMULATIVE

    def __post_init__(self) -> None:
        if self.stop and not self.detokenize:
            raise ValueError("stop strings are only supported when detokenize is True.")


class HTTPError(Exception):
    """What TRL's client raises on a status that is not 200."""


@dataclass
class Engine:
    """Writes token by token with weights of its own, which `load` alone changes.

    Attributes:
        shift: added to every log-probability it reports: another implementation's rounding.
        unscored: tokens whose log-probability it reports as NaN.
        calls: the parameters of each call and how many prompts it had.
        syncs: how often all weights came.
        fails_at: the call that fails, counted from 0.
        refuses_weights: whether sending them fails.
        refuses_to_start: whether constructing it fails.
        options: what it was started with.
    """

    tokenizer: PreTrainedTokenizerBase
    model: Any
    max_model_len: int = 512
    logprobs_mode: str = "processed_logprobs"
    shift: float = 0.0
    unscored: tuple[int, ...] = ()
    calls: list[tuple[SamplingParams, int]] = field(default_factory=list)
    syncs: int = 0
    resets: int = 0
    fails_at: int = -1
    refuses_weights: bool = False
    refuses_to_start: bool = False
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    asleep: bool = False

    def __post_init__(self) -> None:
        self.draws = torch.default_generator  # vLLM's, too, is the process's

    def load(self, weights: Sequence[tuple[str, torch.Tensor]]) -> None:
        if self.refuses_weights:
            raise HTTPError("no update")
        parameters = dict(self.model.named_parameters())
        for name, tensor in weights:
            parameters[name].data.copy_(tensor)
            self.syncs += name == list(parameters)[-1]

    @torch.no_grad()
    def complete(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams
    ) -> list[tuple[list[int], list[float]]]:
        """A (ids, log-probabilities) pair for each prompt."""
        self.calls.append((copy.deepcopy(params), len(prompts)))
        if len(self.calls) - 1 == self.fails_at:
            raise HTTPError("Request failed: 500, the engine died")
        assert not self.asleep
        # With a seed, the same in each row of a call.
        draws = [
            self.draws if params.seed is None else torch.Generator().manual_seed(params.seed)
            for _ in prompts
        ]
        completions: list[tuple[list[int], list[float]]] = [([], []) for _ in prompts]
        unfinished = set(range(len(prompts)))
        # Padding is on the right and hidden from what is written after it.
        lengths = torch.tensor([[len(prompt)] for prompt in prompts])
        mask = (torch.arange(max(map(len, prompts), default=0)) < lengths).long()
        input_ids = torch.zeros_like(mask)
        input_ids[mask == 1] = torch.tensor([token for prompt in prompts for token in prompt])
        out = self.model(input_ids=input_ids, attention_mask=mask, use_cache=True)
        logits = out.logits[range(len(prompts)), lengths[:, 0] - 1].float()
        while True:
            tokens = torch.zeros_like(lengths)
            for row in sorted(unfinished):
                ids, logprobs = completions[row]
                token, logprob = self._draw(logits[row], params, draws[row])
                ids.append(token)
                logprobs.append(logprob)
                tokens[row] = token
                if self._ends(prompts[row], ids, params):
                    unfinished.remove(row)
            if not unfinished:
                return completions
            mask = torch.cat([mask, torch.ones_like(lengths)], 1)
            out = self.model(
                input_ids=tokens,
                attention_mask=mask,
                position_ids=lengths,
                past_key_values=out.past_key_values,
                use_cache=True,
            )
            logits = out.logits[:, -1].float()
            lengths = lengths + 1

    def _draw(
        self, logits: torch.Tensor, params: SamplingParams, draws: torch.Generator
    ) -> tuple[int, float]:
        """A token and the log-probability that is reported for it."""
        scaled = logits / (params.temperature or 1.0)
        chances = torch.softmax(scaled, -1)
        greedy = params.temperature == 0
        token = int(chances.argmax() if greedy else torch.multinomial(chances, 1, generator=draws))
        if token in self.unscored:
            return token, math.nan
        read = scaled if self.logprobs_mode == "processed_logprobs" else logits
        return token, float(torch.log_softmax(read, -1)[token]) + self.shift

    def _ends(self, prompt: Sequence[int], ids: list[int], params: SamplingParams) -> bool:
        if len(ids) >= (params.max_tokens or 16) or len(prompt) + len(ids) >= self.max_model_len:
            return True
        eos = () if params.ignore_eos else (self.tokenizer.eos_token_id, OTHER_EOS)
        if ids[-1] in (*eos, *(params.stop_token_ids or ())):
            return True
        text = str(self.tokenizer.decode(ids, skip_special_tokens=params.skip_special_tokens))
        return any(stop in text for stop in params.stop or ())


class LLMEngine:
    """`vllm.v1.engine.LLMEngine`: each step ends one request, which is drawn among those that wait."""

    def __init__(self, engine: Engine, model_executor: Any, model_config: Any) -> None:
        self.engine = engine
        self.model_executor = model_executor
        self.model_config = model_config
        self.waiting: dict[str, tuple[list[int], SamplingParams]] = {}
        self.order = random.Random(0)

    def add_request(self, request_id: str, prompt: Any, params: SamplingParams) -> str:
        assert prompt["type"] == "token"
        assert params.output_kind is OutputKind.FINAL_ONLY
        self.waiting[request_id] = prompt["prompt_token_ids"], params
        return request_id

    def abort_request(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            del self.waiting[request_id]

    def step(self) -> list[Any]:
        name = self.order.choice(list(self.waiting))
        ids, params = self.waiting.pop(name)
        (completion,) = self.engine.complete([ids], params)
        return [request_output(name, ids, *completion)]


def request_output(
    name: str, prompt: list[int], ids: list[int], logprobs: list[float]
) -> SimpleNamespace:
    pairs = zip(ids, logprobs, strict=True)
    scored = [{token: SimpleNamespace(logprob=x, rank=1)} for token, x in pairs]
    completion = SimpleNamespace(token_ids=ids, logprobs=scored)
    return SimpleNamespace(
        request_id=name, prompt_token_ids=prompt, outputs=[completion], finished=True
    )


class LLM:
    """`vllm.LLM` as TRL starts and drives it in colocate mode."""

    engine: Engine

    def __init__(self, model: str, **options: Any) -> None:
        if self.engine.refuses_to_start:
            raise ValueError("No available memory\nfor the cache blocks.")
        self.engine.logprobs_mode = options.get("logprobs_mode", "raw_logprobs")
        torch.manual_seed(options["seed"])  # as vLLM does to the whole process
        self.engine.options = options
        if options["max_model_len"] is not None:
            self.engine.max_model_len = options["max_model_len"]
        worker = SimpleNamespace(model_runner=SimpleNamespace(model=self))
        executor = SimpleNamespace(driver_worker=worker)
        config = SimpleNamespace(max_model_len=self.engine.max_model_len)
        self.llm_engine = LLMEngine(self.engine, executor, config)

    def load_weights(self, weights: Sequence[tuple[str, torch.Tensor]]) -> None:
        self.engine.load(weights)

    def reset_prefix_cache(self) -> bool:
        self.engine.resets += 1
        return True

    def sleep(self, level: int = 1) -> None:
        self.engine.asleep = True
        for parameter in self.engine.model.parameters() if level == 2 else ():
            parameter.data.fill_(math.nan)

    def wake_up(self, tags: list[str] | None = None) -> None:
        self.engine.asleep = "kv_cache" not in (tags or ["kv_cache"])

    def generate(
        self, prompts: list[dict[str, Any]], sampling_params: SamplingParams, use_tqdm: bool = True
    ) -> list[Any]:
        rows = [row["prompt_token_ids"] for row in prompts]
        pairs = self.engine.complete(rows, sampling_params)
        return [request_output("", row, *pair) for row, pair in zip(rows, pairs, strict=True)]


class Client:
    """TRL's `VLLMClient` without the network: what it sends passes through JSON."""

    engine: Engine

    def __init__(
        self,
        base_url: str | None = None,
        host: str = "0.0.0.0",
        server_port: int = 8000,
        group_port: int = 51216,
        connection_timeout: float = 0.0,
    ) -> None:
        self.base_url = base_url or f"http://{host}:{server_port}"
        self.session = requests.Session()
        self.turn = threading.Lock()

    def init_communicator(self, device: Any = 0) -> None:
        pass

    def get_server_info(self) -> dict[str, Any]:
        mode, length = self.engine.logprobs_mode, self.engine.max_model_len
        return {"model_config": {"logprobs_mode": mode, "max_model_len": length}}

    def update_named_params(
        self,
        metadata: list[tuple[str, str, list[int]]],
        named_params: Iterator[tuple[str, torch.Tensor]],
    ) -> None:
        for (name, _, shape), (sent_name, tensor) in zip(metadata, named_params, strict=True):
            assert (name, shape) == (sent_name, list(tensor.shape))
            self.engine.load([(name, tensor)])

    def reset_prefix_cache(self) -> None:
        self.engine.resets += 1

    def generate(
        self,
        prompts: list[str] | list[list[int]],
        features: list[dict[str, Any] | None] | None = None,
        n: int = 1,
        repetition_penalty: float = 1.0,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        max_tokens: int = 16,
        logprobs: int | None = 0,
        structured_outputs_regex: str | None = None,
        generation_kwargs: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        body = {"n": n, "temperature": temperature, "max_tokens": max_tokens, "logprobs": logprobs}
        params = SamplingParams(**json.loads(json.dumps(body | (generation_kwargs or {}))))
        for prompt in prompts:
            if len(prompt) + (params.max_tokens or 16) > self.engine.max_model_len:
                raise HTTPError("Request failed: 400, This model's maximum context length is …")
        with self.turn:
            pairs = self.engine.complete(prompts, params)  # type: ignore[arg-type]
        return {
            "prompt_ids": prompts,
            "completion_ids": [ids for ids, _ in pairs],
            "logprobs": [[[None if math.isnan(x) else x] for x in row] for _, row in pairs],
            "logprob_token_ids": [[[token] for token in ids] for ids, _ in pairs],
        }


def install(tokenizer: PreTrainedTokenizerBase, put: Callable[..., None] = setattr) -> Engine:
    """Puts the fakes where TRL looks for vLLM.

    Args:
        tokenizer: the policy's.
        put: sets an attribute; monkeypatch's `setattr` takes it back after the test.
    """
    engine = Engine(tokenizer, tiny_model(tokenizer, seed=99))  # type: ignore[arg-type]
    # monkeypatch asks whether the name was there; two are not without vLLM.
    extra: dict[str, Any] = {} if put is setattr else {"raising": False}
    fakes = {
        "LLM": type("LLM", (LLM,), {"engine": engine}),
        "VLLMClient": type("VLLMClient", (Client,), {"engine": engine}),
        "SamplingParams": SamplingParams,
        "is_vllm_available": lambda: True,
    }
    for name, fake in fakes.items():
        put(vllm_generation, name, fake, **extra)
    return engine
