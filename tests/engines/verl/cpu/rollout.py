"""A rollout replica of veRL that generates with a Hugging Face model on the CPU.

One Ray actor a replica answers token ids with token ids, one request at a time: what a request
yields under a seed depends neither on the others nor on their order.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

import ray
import torch
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput

from tests.engines.verl.cpu.generation import respond

RESPOND = "HF_CPU_RESPOND"
"""An environment variable: what responds in place of `generation.respond`, as module:function."""


def _responding() -> Callable[..., tuple[list[int], list[float]]]:
    module, _, name = os.environ.get(RESPOND, "").partition(":")
    return getattr(import_module(module), name) if module else respond


def _server_name(replica_rank: int) -> str:
    return f"hf_cpu_server_{replica_rank}"


class WeightSender(BaseRollout):
    """The training worker's side: sends the actor's weights to the replica's server."""

    def __init__(
        self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1
    ) -> None:
        super().__init__(config, model_config, device_mesh)
        rank = int(os.environ["RANK"])
        width = self.config.tensor_model_parallel_size * self.config.data_parallel_size
        self.replica_rank = rank // width if replica_rank == -1 else replica_rank
        self._leads = rank % width == 0

    async def resume(self, tags: list[str]) -> None:
        """The server keeps its weights: there is nothing to bring back."""

    async def release(self) -> None:
        """The server keeps its weights."""

    async def update_weights(  # type: ignore[override]
        self,
        weights: Iterable[tuple[str, torch.Tensor]],
        global_steps: int | None = None,
        wire_format: str = "named_tensors",
        peft_config: Mapping[str, Any] | None = None,
        base_sync_done: bool = True,
        **_: object,
    ) -> None:
        """Loads the weights, or an adapter for the weights that the server has read, into the server."""
        if wire_format != "named_tensors":
            raise ValueError(f"the CPU rollout takes named tensors, not {wire_format!r}")
        if not base_sync_done:
            raise ValueError("the CPU rollout reads an adapter's base itself: set load_format=auto")
        # Each rank has to draw the generator: gathering a tensor is collective.
        state = {name: value.detach().cpu().float().clone() for name, value in weights}
        if self._leads:
            server = ray.get_actor(_server_name(self.replica_rank))
            await server.load_weights.remote(state, global_steps, peft_config)


@ray.remote(num_cpus=0.1)
class HFServer:
    """Holds a copy of the policy and continues token ids.

    Args:
        config: veRL's RolloutConfig.
        path: a Hugging Face folder with the model and its tokenizer.
        seed: of the draws for requests that carry none.
    """

    def __init__(self, config: Any, path: str, seed: int) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(1)
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        self._model: Any = model.eval()
        self._tokenizer = AutoTokenizer.from_pretrained(path)
        self._respond = _responding()
        self._config = config
        self._random = torch.Generator().manual_seed(seed)
        self._one_at_a_time = asyncio.Lock()
        self._global_steps: int | None = None

    async def load_weights(
        self,
        state: Mapping[str, torch.Tensor],
        global_steps: int | None,
        peft_config: Mapping[str, Any] | None = None,
    ) -> None:
        """Replaces the weights, or the adapter; tied ones may be missing, unknown ones may not be there."""
        async with self._one_at_a_time:
            if peft_config is None:
                _, unexpected = self._model.load_state_dict(state, strict=False)
            else:
                from peft import LoraConfig, get_peft_model, set_peft_model_state_dict

                if not hasattr(self._model, "peft_config"):
                    self._model = get_peft_model(self._model, LoraConfig(**peft_config)).eval()
                unexpected = set_peft_model_state_dict(self._model, dict(state)).unexpected_keys
            if unexpected:
                raise ValueError(f"weights that the model does not have: {unexpected[:3]}")
            self._global_steps = global_steps

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, **_: object
    ) -> TokenOutput:
        """Continues a prompt; see `generation.respond` for the sampling parameters."""
        prompt = [int(token) for token in prompt_ids]
        limit = self._limit(len(prompt), sampling_params)
        async with self._one_at_a_time:
            steps = self._global_steps
            ids, logprobs = await asyncio.to_thread(
                self._respond,
                self._model,
                self._tokenizer,
                prompt,
                sampling_params,
                limit,
                self._random,
            )
        return TokenOutput(
            token_ids=ids,
            log_probs=logprobs,
            stop_reason="completed",
            num_preempted=0,
            extra_fields={"global_steps": steps},
        )

    def _limit(self, prompt_tokens: int, params: Mapping[str, Any]) -> int:
        """How many new tokens there may be, as veRL's vLLM server reckons it."""
        config = self._config
        room = (config.max_model_len or self._model.config.max_position_embeddings) - prompt_tokens
        if room < 1:
            raise ValueError(f"a prompt of {prompt_tokens} tokens fills the model's whole context")
        return max(1, min(int(params["max_tokens"]), room))

    async def set_global_steps(self, global_steps: int) -> None:
        self._global_steps = global_steps

    # A server with a cache in an accelerator's memory gives it up while the policy is trained.
    async def wake_up(self, tags: list[str] | None = None) -> None: ...
    async def sleep(self) -> None: ...
    async def clear_kv_cache(self) -> None: ...
    async def release_kv_cache(self) -> None: ...
    async def resume_kv_cache(self) -> None: ...
    async def abort_all_requests(self, reject_request: bool = False) -> None: ...
    async def resume_generation(self) -> None: ...


class HFReplica(RolloutReplica):
    """One server; tensor parallelism has nothing to split."""

    async def launch_servers(self) -> None:
        name = _server_name(self.replica_rank)
        path = getattr(self.model_config, "local_path", None) or self.model_config["path"]
        options = {"name": name, "max_concurrency": self.max_concurrency}
        seed = int(self.config.seed) + self.replica_rank
        server = HFServer.options(**options).remote(self.config, str(path), seed)
        self.servers = [server]
        self._server_handle = server
        self._server_address = f"hf_cpu://{self.replica_rank}"
