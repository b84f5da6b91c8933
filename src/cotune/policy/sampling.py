"""Samplers on a Hugging Face model in this process.

`CachedSampler` keeps each row's KV cache across the turns of an episode, prefills equal prompts, and
what all prompts begin with, once, and drops finished rows from the batch. `GenerateSampler` calls
`model.generate` again for every turn: slower, but correct for any architecture.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from itertools import count
from typing import Any, cast

import numpy as np
import torch
from transformers import (
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
)
from transformers.cache_utils import Cache, DynamicLayer

from cotune.errors import EngineError
from cotune.policy.codec import common_prefix
from cotune.protocols import Codec, Sampler, Session
from cotune.types import Sample, SampleRequest, Sampling
from cotune.utils.progress import report

_BLOCK = 256  # tokens of a vocabulary that are summed at a time

ModelContext = Callable[[], AbstractContextManager[PreTrainedModel]]
"""Opens the current policy for generation (unwrapped, gathered, in evaluation mode)."""
Casts = Callable[[], AbstractContextManager[Any]]
"""Opens the autocast that the policy computes under. It is open for all tokens of a call: each time it ends, it
drops its copies of the weights."""


class StopFinder:
    """Find the token that completes a stop string.

    Only a token that contains a stop string's last character, or a part of one, can complete it, so most
    tokens need no decoding.
    """

    def __init__(self, codec: Codec, stop: Sequence[str]) -> None:
        self._codec = codec
        self._stop = tuple(stop)
        self._last = {text[-1] for text in self._stop}
        self._longest = max((len(text.encode()) for text in self._stop), default=0)
        self._candidate: dict[int, bool] = {}

    def completes(self, ids: Sequence[int]) -> bool:
        """Return whether the last token of a turn completes a stop string."""
        if not self._stop:
            return False
        token = ids[-1]
        if token not in self._candidate:
            text = self._codec.decode([token])
            # Some bytes of a character decode to the replacement character.
            self._candidate[token] = "\ufffd" in text or any(c in text for c in self._last)
        if not self._candidate[token]:
            return False
        # A token may add no visible character, so twice the stop's length.
        tail = self._codec.decode(list(ids[-2 * self._longest - 2 :]))
        return any(text in tail for text in self._stop)


class GrowingLayer(DynamicLayer):
    """A dynamic cache layer that appends in place into a buffer with spare room.

    `DynamicLayer` copies the whole cache for every token; this one copies it only when the
    buffer is full, and then grows it by half.
    """

    def adopt(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Start from keys and values of shape (B, heads, L, head_dim)."""
        self.dtype = keys.dtype
        self.device = keys.device
        self.is_initialized = True
        self._keys_buffer = keys
        self._values_buffer = values
        self.keys = keys
        self.values = values

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # Under autocast, positions turn the keys of float32 weights into float32, and attention would cast all of
        # the cache for every token.
        key_states = key_states.to(value_states.dtype)
        if self.keys is None or self.values is None:
            self.adopt(key_states, value_states)
            return key_states, value_states
        start = self.keys.shape[-2]
        end = self.keys.shape[-2] + key_states.shape[-2]
        if end > self._keys_buffer.shape[-2]:
            self._keys_buffer = self._grown(self.keys, end + end // 2)
            self._values_buffer = self._grown(self.values, end + end // 2)
        self._keys_buffer[:, :, start:end] = key_states
        self._values_buffer[:, :, start:end] = value_states
        self.keys = self._keys_buffer[:, :, :end]
        self.values = self._values_buffer[:, :, :end]
        return self.keys, self.values

    @staticmethod
    def _grown(tensor: torch.Tensor, length: int) -> torch.Tensor:
        rows, heads, used, width = tensor.shape
        larger = tensor.new_empty(rows, heads, length, width)
        larger[:, :, :used] = tensor
        return larger


@dataclass
class Rows:
    """Some rows with their cached keys and values.

    Attributes:
        names: the caller's name of each row, (B,).
        fed: tokens that each row has in the cache, (B,).
        mask: 1 if a cache column holds a token of the row, else padding, (B, L).
        layers: (keys, values) of every layer, each (B, heads, L, head_dim).
    """

    names: list[int]
    fed: list[int]
    mask: torch.Tensor
    layers: list[tuple[torch.Tensor, torch.Tensor]]

    def select(self, positions: Sequence[int]) -> "Rows":
        """Return the rows at these positions in this order; a position may repeat."""
        index = torch.tensor(list(positions), device=self.mask.device)
        return Rows(
            [self.names[i] for i in positions],
            [self.fed[i] for i in positions],
            self.mask[index],
            [(keys[index], values[index]) for keys, values in self.layers],
        )

    def trimmed(self) -> "Rows":
        """Return the rows without leading columns that are padding in every row."""
        used = self.mask.any(0).nonzero()
        first = int(used[0]) if len(used) else 0
        if first == 0:
            return self
        layers = [(keys[:, :, first:], values[:, :, first:]) for keys, values in self.layers]
        return Rows(self.names, self.fed, self.mask[:, first:], layers)

    def cache(self) -> Cache:
        """Return a transformers cache that continues these rows."""
        layers = []
        for keys, values in self.layers:
            layer = GrowingLayer()
            layer.adopt(keys, values)
            layers.append(layer)
        return Cache(layers=layers)

    @staticmethod
    def of(names: list[int], fed: list[int], mask: torch.Tensor, cache: Cache) -> "Rows":
        """Return the rows of a cache after a forward pass."""
        layers = cast("list[GrowingLayer]", cache.layers)
        return Rows(names, fed, mask, [cast(Any, (layer.keys, layer.values)) for layer in layers])


def joined(pieces: Sequence[Rows]) -> Rows:
    """Join the rows of all pieces, each padded on the left to the longest."""
    if len(pieces) == 1:
        return pieces[0]
    length = max(piece.mask.shape[1] for piece in pieces)

    def left_padded(tensor: torch.Tensor, dim: int) -> torch.Tensor:
        missing = length - tensor.shape[dim]
        if missing == 0:
            return tensor
        shape = list(tensor.shape)
        shape[dim] = missing
        return torch.cat([tensor.new_zeros(shape), tensor], dim)

    return Rows(
        [name for piece in pieces for name in piece.names],
        [fed for piece in pieces for fed in piece.fed],
        torch.cat([left_padded(piece.mask, 1) for piece in pieces]),
        [
            (
                torch.cat([left_padded(keys, 2) for keys, _ in column]),
                torch.cat([left_padded(values, 2) for _, values in column]),
            )
            for column in zip(*(piece.layers for piece in pieces), strict=True)
        ],
    )


@dataclass(frozen=True)
class CachedSampler:
    """Sample with one KV cache per rollout call, for models with full attention in every layer.

    The draws of a row depend only on (seed, row, position), not on the other rows of its batch.
    """

    model: ModelContext
    codec: Codec
    pad_id: int
    casts: Casts = nullcontext

    def open(self, sampling: Sampling) -> Session:
        return CachedSession(self, sampling)


class _Turn:
    """The tokens that one row gets in one `generate` call; draws depend on (seed, row, position)."""

    def __init__(self, request: SampleRequest, sampling: Sampling) -> None:
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.done = request.max_tokens < 1
        self._uniforms = [0.0] * request.max_tokens
        if sampling.temperature > 0:
            key = [sampling.seed & (2**63 - 1), request.row, len(request.context_ids)]
            bits = np.random.Philox(np.random.SeedSequence(key))
            self._uniforms = np.random.Generator(bits).random(request.max_tokens).tolist()

    def next_uniform(self) -> float:
        return 0.0 if self.done else self._uniforms[len(self.ids)]

    def append(self, token: int, logprob: float, ends: Callable[[list[int]], bool]) -> None:
        """Append a token unless the turn is over; `ends` tells whether the turn's tokens end it."""
        if self.done:
            return
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.done = len(self.ids) >= len(self._uniforms) or ends(self.ids)

    def sample(self) -> Sample:
        return Sample(tuple(self.ids), tuple(self.logprobs))


class _Session:
    """Holds the policy open until `close`."""

    def __init__(self, sampler: CachedSampler, sampling: Sampling) -> None:
        self._stack = ExitStack()
        self._model = self._stack.enter_context(sampler.model())
        self._casts = sampler.casts
        self._pad_id = sampler.pad_id
        self._sampling = sampling
        self._end_ids = sampler.codec.end_ids
        self._finder = StopFinder(sampler.codec, sampling.stop)

    def close(self) -> None:
        self._stack.close()

    def draw_next(self, turns: Sequence[_Turn], logits: torch.Tensor) -> list[int]:
        """Draw one token per row from logits (B, V), and append it to the turns that are not finished."""
        uniforms = [turn.next_uniform() for turn in turns]
        tokens, logprobs = draw(logits, self._sampling.temperature, uniforms)
        for turn, token, logprob in zip(turns, tokens, logprobs, strict=True):
            turn.append(token, logprob, self._ends)
        return tokens

    def _ends(self, ids: list[int]) -> bool:
        return ids[-1] in self._end_ids or self._finder.completes(ids)


class CachedSession(_Session):
    """See `CachedSampler`."""

    _rows: Rows | None = None

    def close(self) -> None:
        self._rows = None
        super().close()

    @torch.no_grad()
    def generate(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        with self._casts():
            return self._generate(requests)

    def _generate(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        rows, logits = self._prefill(requests)
        turns = {r.row: _Turn(r, self._sampling) for r in requests}
        parked: list[Rows] = []
        names = rows.names
        cache = rows.cache()
        mask = rows.mask
        fed = torch.tensor(rows.fed, device=mask.device)
        del rows  # frees its cache, here and below
        limit = max(request.max_tokens for request in requests)
        for drawn in count():
            report("tokens", drawn, limit)
            live = [turns[name] for name in names]
            tokens = self.draw_next(live, logits)
            done = [turn.done for turn in live]
            if all(done):
                parked.append(Rows.of(names, fed.tolist(), mask, cache))
                break
            if sum(done) * 4 >= len(done):
                fed_rows = Rows.of(names, fed.tolist(), mask, cache)
                parked.append(fed_rows.select([i for i, f in enumerate(done) if f]))
                going = [i for i, f in enumerate(done) if not f]
                going_rows = fed_rows.select(going).trimmed()
                names = going_rows.names
                cache = going_rows.cache()
                mask = going_rows.mask
                fed = torch.tensor(going_rows.fed, device=mask.device)
                tokens = [tokens[i] for i in going]
                done = [False] * len(going)
                del fed_rows, going_rows
            logits, mask, fed = self._forward_one(cache, mask, fed, tokens, done)
        self._rows = joined(parked)
        return [turns[r.row].sample() for r in requests]

    def _forward_one(
        self,
        cache: Cache,
        mask: torch.Tensor,
        fed: torch.Tensor,
        tokens: list[int],
        finished: list[bool],
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Feed each live row its last token; finished rows get a masked column."""
        alive = torch.tensor([not f for f in finished], device=mask.device)
        ids = torch.tensor(tokens, device=mask.device)
        mask = torch.cat([mask, alive[:, None].to(mask.dtype)], 1)
        # A fully masked row would divide zero by zero; prompts are never empty.
        # transformers drops a plain mask if nothing is padding. Without one, torch's attention for a single
        # token takes several times as long on a CPU in bfloat16, if heads share keys.
        # Other kinds of attention add a mask of truth values to the scores.
        shapes = mask.device.type == "cpu" and self._model.config._attn_implementation == "sdpa"
        shaped = mask[:, None, None].bool() if shapes else mask
        logits = self._model(
            input_ids=torch.where(alive, ids, self._pad_id)[:, None],
            attention_mask=shaped,
            position_ids=fed[:, None],
            past_key_values=cache,
            use_cache=True,
        ).logits[:, -1]
        return logits, mask, fed + alive.to(fed.dtype)

    def _prefill(self, requests: Sequence[SampleRequest]) -> tuple[Rows, torch.Tensor]:
        """Feed the rows' new tokens. Return the rows in request order with the next logits (B, V)."""
        positions = {name: i for i, name in enumerate(self._rows.names)} if self._rows else {}
        if self._rows is None or any(r.row not in positions for r in requests):
            self._rows = None  # frees the cache of finished rows
            return self._prefill_prompts(requests)
        rows = self._rows.select([positions[r.row] for r in requests]).trimmed()
        self._rows = None
        new = [r.context_ids[fed:] for r, fed in zip(requests, rows.fed, strict=True)]
        return self._feed(rows, rows.cache(), new)

    def _prefill_prompts(self, requests: Sequence[SampleRequest]) -> tuple[Rows, torch.Tensor]:
        """Prefill what all contexts begin with once, and the rest of each distinct one once."""
        context_numbers: dict[tuple[int, ...], int] = {}
        for request in requests:
            context_numbers.setdefault(request.context_ids, len(context_numbers))
        contexts = list(context_numbers)
        device = self._model.device
        shared = 0
        if len(contexts) > 1:  # of each one a token remains, whose logits are the row's next
            shared = min(common_prefix(min(contexts), max(contexts)), min(map(len, contexts)) - 1)
        rows = Rows([0], [0], torch.zeros((1, 0), dtype=torch.long, device=device), [])
        cache = Cache(layer_class_to_replicate=GrowingLayer)
        if shared:
            rows, _ = self._feed(rows, cache, [contexts[0][:shared]])
        rows = rows.select([0] * len(contexts))
        cache = rows.cache() if shared else cache
        rows, logits = self._feed(rows, cache, [context[shared:] for context in contexts])
        positions = [context_numbers[r.context_ids] for r in requests]
        rows = rows.select(positions)
        rows.names = [r.row for r in requests]
        return rows, logits[torch.tensor(positions, device=device)]

    def _feed(
        self, rows: Rows, cache: Cache, new: Sequence[Sequence[int]]
    ) -> tuple[Rows, torch.Tensor]:
        width = max(len(ids) for ids in new)
        device = rows.mask.device
        ids = torch.tensor(
            [[self._pad_id] * (width - len(x)) + list(x) for x in new], device=device
        )
        lengths = torch.tensor([len(x) for x in new], device=device)
        column = torch.arange(width, device=device)
        fresh = (column >= width - lengths[:, None]).to(rows.mask.dtype)
        fed = torch.tensor(rows.fed, device=device)
        positions = (fed[:, None] + column - (width - lengths[:, None])).clamp(min=0)
        mask = torch.cat([rows.mask, fresh], 1)
        logits = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=self._last_of(width),
        ).logits[:, -1]
        return Rows.of(rows.names, (fed + lengths).tolist(), mask, cache), logits

    def _last_of(self, width: int) -> int | torch.Tensor:
        """Return the `logits_to_keep` that makes the head compute only the last of `width` positions.

        An index copies the last states. A number takes a slice; if the head is frozen, as under adapters,
        torch multiplies a slice row by row, which in bfloat16 on a CPU takes longer than all layers.
        """
        if self._model.dtype == torch.float32:
            return 1
        return torch.tensor([width - 1], device=self._model.device)


def draw(
    logits: torch.Tensor, temperature: float, uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Draw one token per row by inverting the cumulative distribution at a uniform draw.

    Args:
        logits: (B, V).
        temperature: divides the logits; 0 takes the most likely token.
        uniforms: one draw from [0, 1) per row, (B,).

    Returns:
        tokens (B,) and their log-probabilities at that temperature (at 1 for greedy), (B,).

    Raises:
        EngineError: a logit is not a number, or infinite.
    """
    scaled = logits.float() / (temperature if temperature > 0 else 1.0)
    logprobs = torch.log_softmax(scaled, -1)
    if bool(logprobs[:, 0].isnan().any()):  # then all of the row are
        raise EngineError(
            "the policy's logits are not finite: training has diverged; lower training.learning_rate and "
            "resume from a checkpoint before that, or start again"
        )
    if temperature == 0:
        tokens = scaled.argmax(-1)
    else:
        points = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)
        tokens = _tokens_at(logprobs.exp(), points)
    return tokens.tolist(), logprobs.gather(-1, tokens[:, None])[:, 0].tolist()


def _tokens_at(chances: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Return the token at a point of each row's cumulative distribution over `chances`, (B, V) and (B,) to (B,).

    In a large vocabulary, finds a block of tokens first and then the token in it: sums in float64 are slow.
    """
    rows, size = chances.shape
    if size <= 4 * _BLOCK:
        return _index_at(chances, points)[0]
    blocks = torch.nn.functional.pad(chances, (0, -size % _BLOCK)).view(rows, -1, _BLOCK)
    block, points = _index_at(blocks.sum(-1), points)
    within, _ = _index_at(blocks[torch.arange(rows, device=block.device), block], points)
    return block * _BLOCK + within


def _index_at(weights: torch.Tensor, points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the index whose weight is at a share, from [0, 1), of each row's sum, and the share of that weight.

    Weights are (B, N), not negative, with a positive sum; the others (B,).
    """
    weights = weights.double()
    if torch.are_deterministic_algorithms_enabled():
        weights = weights.cpu()  # torch has no deterministic cumsum on GPUs
    ends = weights.cumsum(-1)
    at = points.to(ends.device)[:, None] * ends[:, -1:]
    index = torch.searchsorted(ends, at, right=True).clamp(max=weights.shape[-1] - 1)
    weight = weights.gather(-1, index)
    inside = (at - ends.gather(-1, index) + weight) / weight
    return index[:, 0].to(points.device), inside[:, 0].clamp(0, 1 - 2**-53).to(points.device)


class GenerateSampler(CachedSampler):
    """Calls `model.generate` for every turn and keeps nothing in between; draws as `CachedSampler` does."""

    def open(self, sampling: Sampling) -> Session:
        return GenerateSession(self, sampling)


class GenerateSession(_Session):
    """See `GenerateSampler`."""

    def __init__(self, sampler: CachedSampler, sampling: Sampling) -> None:
        super().__init__(sampler, sampling)
        # A policy's own generation defaults (a repetition penalty, say) must not touch the logits.
        # A PeftModel sets its own on its base model and leaves them there.
        inner: Any = getattr(self._model, "get_base_model", None)
        for part in (self._model, *([inner()] if inner else [])):
            self._stack.callback(setattr, part, "generation_config", part.generation_config)
        self._model.generation_config = GenerationConfig()

    @torch.no_grad()
    def generate(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        turns = [_Turn(r, self._sampling) for r in requests]
        width = max(len(r.context_ids) for r in requests)
        pads = [width - len(r.context_ids) for r in requests]
        rows = [
            [self._pad_id] * n + list(r.context_ids) for n, r in zip(pads, requests, strict=True)
        ]
        mask = [[0] * n + [1] * (width - n) for n in pads]

        def force(_: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
            """Force `generate` to take the tokens drawn here."""
            tokens = self.draw_next(turns, logits)
            chosen = torch.tensor(tokens, device=logits.device)[:, None]
            return torch.full_like(logits, -torch.inf).scatter(1, chosen, 0.0)

        def ended(ids: torch.Tensor, _: object, **__: object) -> torch.Tensor:
            return torch.tensor([turn.done for turn in turns], device=ids.device)

        with self._casts():
            cast(Any, self._model).generate(
                input_ids=torch.tensor(rows, device=self._model.device),
                attention_mask=torch.tensor(mask, device=self._model.device),
                max_new_tokens=max(r.max_tokens for r in requests),
                do_sample=False,
                pad_token_id=self._pad_id,
                logits_processor=[force],
                stopping_criteria=StoppingCriteriaList([cast(Any, ended)]),
                synced_gpus=False,  # ranks make different numbers of calls, also under FSDP2
            )
        return [turn.sample() for turn in turns]


def avoid_cudnn_attention() -> None:
    """Turn cuDNN's attention kernels off in this process; flash and memory-efficient ones take over.

    On Hopper and Blackwell GPUs, torch prefers cuDNN's since 2.11. Under a mask their gradient can be NaN
    (pytorch/pytorch#196678, huggingface/trl#7181), and sampling builds a plan for each new length of the cache.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def policy_sampler(
    model: ModelContext,
    codec: Codec,
    tokenizer: PreTrainedTokenizerBase,
    casts: Casts = nullcontext,
) -> Sampler:
    """Return the fastest sampler that is correct for the policy's architecture."""
    avoid_cudnn_attention()
    with model() as policy:
        kind = CachedSampler if attends_fully(policy) else GenerateSampler
    return kind(model, codec, cast(int, tokenizer.pad_token_id), casts)


def attends_fully(policy: PreTrainedModel) -> bool:
    """Return whether every layer attends to all earlier tokens by keys and values only."""
    config = policy.config.get_text_config()
    layers = getattr(config, "layer_types", None)
    if layers is None:
        local = "local" in getattr(config, "attention_layers", ())  # GPT-Neo
        windows = local or getattr(config, "sliding_window", None) is not None
        return not policy._is_stateful and not windows
    return all(kind == "full_attention" for kind in layers)


# ---- prompts that rollouts share, in training


def can_share(policy: PreTrainedModel) -> bool:
    """Return whether a policy's layers can continue the keys and values of a prompt.

    Gradient checkpointing recomputes layers without a cache.
    """
    checkpoints = any(
        getattr(module, "gradient_checkpointing", False) for module in policy.modules()
    )
    return attends_fully(policy) and not (policy.training and checkpoints)


def prompt_cache(model: Any, prompts: torch.Tensor, mask: torch.Tensor) -> Cache | None:
    """Return the keys and values of all rows' prompts; each distinct prompt is fed once. None if P = 0.

    Args:
        prompts: padded on the left, (B, P).
        mask: 1 for tokens, 0 for padding, (B, P).

    Raises:
        EngineError: the model kept no keys and values.
    """
    length = prompts.shape[1]
    if length == 0:
        return None
    cache = Cache(layer_class_to_replicate=DynamicLayer)
    distinct, which = torch.cat([prompts, mask], 1).unique(dim=0, return_inverse=True)
    model(
        input_ids=distinct[:, :length],
        attention_mask=distinct[:, length:],
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    if cache.get_seq_length() != length:
        raise EngineError(
            f"the policy kept the keys of {cache.get_seq_length()} of {length} tokens"
        )
    cache.batch_select_indices(which)
    return cache
