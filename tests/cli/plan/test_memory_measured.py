"""The estimates of `cotune.engines.estimate` beside what is measured here: tensors, by their storages."""

import contextlib
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.cache_utils import Cache

from cotune.engines.estimate import read_shape
from cotune.policy.sampling import CachedSampler, GrowingLayer
from cotune.types import SampleRequest, Sampling

KINDS: dict[str, tuple[Any, Any]] = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
TOKENS = 256


def policy(kind: str, dtype: torch.dtype = torch.float32, **shape: int) -> Any:
    values = {
        "vocab_size": 40, "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True,
        **({"head_dim": 16} if kind == "qwen3" else {}),
    }  # fmt: skip
    config, model = KINDS[kind]
    torch.manual_seed(0)
    return model(config(**(values | shape))).to(dtype)


def shape_of(model: Any) -> Any:
    return read_shape(model.config)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lora", [False, True])
def test_a_layers_activations(kind: str, dtype: torch.dtype, lora: bool) -> None:
    """What autograd saves of a layer is under the estimate, and not by far."""
    model = policy(kind, dtype, hidden_size=128, num_attention_heads=8, intermediate_size=512)
    base: Any = model
    if lora:
        given = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
        base = get_peft_model(model, given).get_base_model()
    weights = {p.untyped_storage().data_ptr() for p in base.parameters()}
    saved: dict[int, torch.Tensor] = {}

    def kept(tensor: torch.Tensor) -> torch.Tensor:
        at = tensor.untyped_storage().data_ptr()
        if at not in weights and TOKENS in tensor.shape:  # not a weight, nor its copy
            saved[at] = tensor
        return tensor

    hidden = torch.randn(1, TOKENS, 128, dtype=dtype, requires_grad=True)
    position = torch.arange(TOKENS)[None]
    with (
        torch.autograd.graph.saved_tensors_hooks(kept, lambda tensor: tensor),
        torch.autocast("cpu", dtype=torch.bfloat16),
    ):
        turned = base.model.rotary_emb(hidden, position)
        base.model.layers[0](hidden, position_embeddings=turned, attention_mask=None)
    measured = sum(tensor.untyped_storage().nbytes() for tensor in saved.values()) / TOKENS
    estimated = 38 * 128 + 12 * 512 + 4 * 2 * 16
    assert 0.4 * estimated < measured < estimated


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_of_the_cache_under_autocast(kind: str, dtype: torch.dtype) -> None:
    model, cache = policy(kind, dtype), Cache(layer_class_to_replicate=GrowingLayer)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.arange(TOKENS)[None] % 40, past_key_values=cache, use_cache=True)
    layers: list[Any] = list(cache.layers)
    tensors = [tensor for layer in layers for tensor in (layer.keys, layer.values)]
    found = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert found == TOKENS * 2 * shape_of(model).key_width * 2 * 2  # in bfloat16


class Live(TorchDispatchMode):
    """The most bytes that were alive at once in tensors (…, heads, …, head width) of the cache."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self._heads, self._width = heads, width
        self._known: set[int] = set()
        self.now = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.dim() == 4:
                self._see(tensor)
        return result

    def _see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        known = storage._cdata in self._known
        if known or tensor.shape[1] != self._heads or tensor.shape[3] != self._width:
            return
        self._known.add(storage._cdata)
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, storage._cdata, storage.nbytes())

    def _gone(self, which: int, size: int) -> None:
        self._known.discard(which)
        self.now -= size


class Letters:
    """A codec without stop strings or an end."""

    end_ids = frozenset({39})

    def decode(self, ids: Any) -> str:
        return "x" * len(ids)


def test_the_sampler_holds_its_cache_two_and_a_half_times_at_most() -> None:
    """Over turns in which rows end at different lengths."""
    model = policy(
        "qwen2", num_attention_heads=8, num_key_value_heads=8, num_hidden_layers=4
    ).eval()
    rows, turn, between = 16, 60, 30
    rng = np.random.default_rng(0)
    drawn = [tuple(rng.integers(1, 30, 100).tolist()) for _ in range(rows)]
    contexts: dict[int, tuple[int, ...]] = dict(enumerate(drawn))
    sampler = CachedSampler(lambda: contextlib.nullcontext(model), Letters(), 0)  # type: ignore[arg-type]
    session = sampler.open(Sampling(temperature=1.0, seed=1, stop=()))
    token = 2 * 4 * 64 * 4  # keys and values of four layers, eight heads of eight, in float32
    with Live(8, 8) as live:
        for _ in range(4):
            asked = [SampleRequest(row, ids, turn) for row, ids in contexts.items()]
            for request, sample in zip(asked, session.generate(asked), strict=True):
                more = tuple(rng.integers(1, 30, between).tolist())
                contexts[request.row] = (*request.context_ids, *sample.ids, *more)
            longest = max(len(ids) for ids in contexts.values()) - between
            held = rows * longest * token
            assert 1.5 * held < live.peak < 2.5 * held
    session.close()
