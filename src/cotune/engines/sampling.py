"""Samplers on a Hugging Face model in this process.

`CachedSampler` keeps each row's KV cache across the turns of an episode, prefills equal prompts
once and drops finished rows from the batch. `GenerateSampler` calls `model.generate` anew for
every turn: slower, but right for any architecture.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Protocol

import numpy as np
import torch
from transformers import PreTrainedModel, StoppingCriteriaList, StopStringCriteria
from transformers.cache_utils import Cache

from cotune.contracts import Codec
from cotune.engines.kv_rows import GrowingLayer, Rows, joined
from cotune.records import Sample, SampleRequest, Sampling

ModelContext = Callable[[], AbstractContextManager[PreTrainedModel]]
"""Opens the current policy for generation (unwrapped, gathered, in evaluation mode)."""


class TokenizerLike(Protocol):
    """What the samplers need of a Hugging Face tokenizer."""

    pad_token_id: int

    def decode(self, token_ids: Sequence[int]) -> str: ...


class StopFinder:
    """Finds the token that completes a stop string, looking at text only where it can matter.

    A stop string can be completed only by a token that holds its last character, so most tokens
    are settled without decoding anything.
    """

    def __init__(self, codec: Codec, stop: Sequence[str]) -> None:
        self._codec, self._stop = codec, tuple(stop)
        self._last = {text[-1] for text in self._stop}
        self._longest = max((len(text) for text in self._stop), default=0)
        self._candidate: dict[int, bool] = {}

    def completes(self, ids: Sequence[int]) -> bool:
        """Whether the last of a turn's tokens completes a stop string of that turn."""
        if not self._stop:
            return False
        token = ids[-1]
        if token not in self._candidate:
            text = self._codec.decode([token])
            self._candidate[token] = any(c in text for c in self._last)
        if not self._candidate[token]:
            return False
        # A token may hold no visible character of its own, hence twice the stop's length.
        tail = self._codec.decode(list(ids[-2 * self._longest - 2 :]))
        return any(text in tail for text in self._stop)


class CachedSampler:
    """Samples with one KV cache per rollout call. For models with full attention in every layer.

    Args:
        model: opens the current policy.
        codec: for stop strings.
        pad_id: token that fills unequal rows.

    The draws of a row depend on (seed, row, position) alone: not on which rows share its batch.
    """

    def __init__(self, model: ModelContext, codec: Codec, pad_id: int) -> None:
        self._model, self._codec, self._pad_id = model, codec, pad_id

    def open(self, sampling: Sampling) -> "CachedSession":
        return CachedSession(self._model, self._codec, self._pad_id, sampling)


class _Turn:
    """What one row writes in one `generate` call."""

    def __init__(self, budget: int, uniforms: list[float]) -> None:
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.done = budget < 1
        self._budget, self._uniforms = budget, uniforms

    @property
    def spent(self) -> bool:
        return len(self.ids) >= self._budget

    def next_uniform(self) -> float:
        return 0.0 if self.done else self._uniforms[len(self.ids)]

    def append(self, token: int, logprob: float) -> None:
        self.ids.append(token)
        self.logprobs.append(logprob)


class CachedSession:
    """See `CachedSampler`; holds the policy open until `close`."""

    def __init__(self, model: ModelContext, codec: Codec, pad_id: int, sampling: Sampling) -> None:
        self._stack = ExitStack()
        self._model = self._stack.enter_context(model())
        self._pad_id, self._sampling, self._eos_id = pad_id, sampling, codec.eos_id
        self._finder = StopFinder(codec, sampling.stop)
        self._rows: Rows | None = None

    def close(self) -> None:
        self._rows = None
        self._stack.close()

    @torch.no_grad()
    def generate(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        rows, logits = self._prefill(requests)
        turns = {r.row: _Turn(r.max_tokens, self._uniforms(r)) for r in requests}
        parked: list[Rows] = []
        names, cache, mask = rows.names, rows.cache(), rows.mask
        fed = torch.tensor(rows.fed, device=mask.device)
        while True:
            live = [turns[name] for name in names]
            draws = [turn.next_uniform() for turn in live]
            tokens, values = draw(logits, self._sampling.temperature, draws)
            for turn, token, value in zip(live, tokens, values, strict=True):
                if not turn.done:
                    turn.append(token, value)
                    turn.done = (
                        turn.spent or token == self._eos_id or self._finder.completes(turn.ids)
                    )
            done = [turn.done for turn in live]
            if all(done):
                parked.append(Rows.of(names, fed.tolist(), mask, cache))
                break
            if sum(done) * 4 >= len(done):
                everything = Rows.of(names, fed.tolist(), mask, cache)
                parked.append(everything.select([i for i, f in enumerate(done) if f]))
                going = [i for i, f in enumerate(done) if not f]
                kept = everything.select(going).trimmed()
                names, cache, mask = kept.names, kept.cache(), kept.mask
                fed = torch.tensor(kept.fed, device=mask.device)
                tokens, done = [tokens[i] for i in going], [False] * len(going)
            logits, mask, fed = self._forward_one(cache, mask, fed, tokens, done)
        self._rows = joined(parked)
        return [Sample(tuple(turns[r.row].ids), tuple(turns[r.row].logprobs)) for r in requests]

    def _forward_one(
        self,
        cache: Cache,
        mask: torch.Tensor,
        fed: torch.Tensor,
        tokens: list[int],
        finished: list[bool],
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Feeds each live row its last token; finished rows get a masked column instead."""
        alive = torch.tensor([not f for f in finished], device=mask.device)
        ids = torch.tensor(tokens, device=mask.device)
        mask = torch.cat([mask, alive[:, None].to(mask.dtype)], 1)
        # A row whose every column were masked would divide zero by zero; prompts are never empty.
        logits = self._model(
            input_ids=torch.where(alive, ids, self._pad_id)[:, None],
            attention_mask=mask,
            position_ids=fed[:, None],
            past_key_values=cache,
            use_cache=True,
        ).logits[:, -1]
        return logits, mask, fed + alive.to(fed.dtype)

    def _prefill(self, requests: Sequence[SampleRequest]) -> tuple[Rows, torch.Tensor]:
        """Feeds what the rows have new; returns them in request order with the next logits (B, V)."""
        known = {name: i for i, name in enumerate(self._rows.names)} if self._rows else {}
        if self._rows is None or any(r.row not in known for r in requests):
            return self._prefill_prompts(requests)
        rows = self._rows.select([known[r.row] for r in requests]).trimmed()
        new = [r.context_ids[fed:] for r, fed in zip(requests, rows.fed, strict=True)]
        return self._feed(rows, rows.cache(), new)

    def _prefill_prompts(self, requests: Sequence[SampleRequest]) -> tuple[Rows, torch.Tensor]:
        """Prefills each different context once and repeats its cache for the rows that share it."""
        where: dict[tuple[int, ...], int] = {}
        for request in requests:
            where.setdefault(request.context_ids, len(where))
        device = self._model.device
        empty = Rows(
            list(range(len(where))),
            [0] * len(where),
            torch.zeros((len(where), 0), dtype=torch.long, device=device),
            [],
        )
        cache = Cache(layer_class_to_replicate=GrowingLayer)
        rows, logits = self._feed(empty, cache, list(where))
        positions = [where[r.context_ids] for r in requests]
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
            logits_to_keep=1,
        ).logits[:, -1]
        return Rows.of(rows.names, (fed + lengths).tolist(), mask, cache), logits

    def _uniforms(self, request: SampleRequest) -> list[float]:
        """The turn's draws, by (seed, row, position)."""
        if self._sampling.temperature == 0:
            return [0.0] * request.max_tokens
        key = [self._sampling.seed & (2**63 - 1), request.row, len(request.context_ids)]
        return (
            np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))
            .random(request.max_tokens)
            .tolist()
        )


def draw(
    logits: torch.Tensor, temperature: float, uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """One token a row by inverting the cumulative distribution at its uniform draw.

    Args:
        logits: (B, V).
        temperature: divides the logits; 0 takes the most likely token.
        uniforms: one draw from [0, 1) a row, (B,).

    Returns:
        tokens (B,) and their log-probabilities at that temperature (at 1 for greedy), (B,).
    """
    scaled = logits.float() / (temperature if temperature > 0 else 1.0)
    logprobs = torch.log_softmax(scaled, -1)
    if temperature == 0:
        tokens = scaled.argmax(-1)
    else:
        cumulative = logprobs.double().exp().cumsum(-1)
        target = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)[:, None]
        found = torch.searchsorted(cumulative, target * cumulative[:, -1:], right=True)
        tokens = found[:, 0].clamp(max=logits.shape[-1] - 1)
    return tokens.tolist(), logprobs.gather(-1, tokens[:, None])[:, 0].tolist()


class GenerateSampler:
    """One `model.generate` call a turn, nothing kept in between."""

    def __init__(self, model: ModelContext, tokenizer: TokenizerLike, eos_id: int) -> None:
        self._model, self._tokenizer, self._eos_id = model, tokenizer, eos_id

    def open(self, sampling: Sampling) -> "GenerateSession":
        return GenerateSession(self._model, self._tokenizer, self._eos_id, sampling)


class GenerateSession:
    """See `GenerateSampler`."""

    def __init__(
        self, model: ModelContext, tokenizer: TokenizerLike, eos_id: int, sampling: Sampling
    ) -> None:
        self._stack = ExitStack()
        self._model = self._stack.enter_context(model())
        self._tokenizer, self._eos_id, self._sampling = tokenizer, eos_id, sampling

    def close(self) -> None:
        self._stack.close()

    @torch.no_grad()
    def generate(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        pad = self._tokenizer.pad_token_id
        width = max(len(r.context_ids) for r in requests)
        rows = [[pad] * (width - len(r.context_ids)) + list(r.context_ids) for r in requests]
        mask = [[0] * (width - len(r.context_ids)) + [1] * len(r.context_ids) for r in requests]
        greedy = self._sampling.temperature == 0
        stopping = StoppingCriteriaList()
        if self._sampling.stop:
            stopping.append(StopStringCriteria(self._tokenizer, list(self._sampling.stop)))  # pyright: ignore[reportArgumentType]
        device = self._model.device
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(hash((self._sampling.seed, width)) & (2**63 - 1))
            output = self._model.generate(
                input_ids=torch.tensor(rows, device=device),
                attention_mask=torch.tensor(mask, device=device),
                max_new_tokens=max(r.max_tokens for r in requests),
                do_sample=not greedy,
                temperature=None if greedy else self._sampling.temperature,
                top_k=None if greedy else 0,
                top_p=None,
                pad_token_id=pad,
                eos_token_id=self._eos_id,
                stopping_criteria=stopping,
                output_logits=True,
                return_dict_in_generate=True,
            )
        return self._samples(
            requests, output.sequences[:, width:], torch.stack(output.logits, 1), stopping
        )

    def _samples(
        self,
        requests: Sequence[SampleRequest],
        ids: torch.Tensor,
        logits: torch.Tensor,
        stopping: StoppingCriteriaList,
    ) -> list[Sample]:
        """Cuts each row at its end: EOS, the token that completed a stop string, or its budget."""
        scale = self._sampling.temperature or 1.0
        logprobs = torch.log_softmax(logits.float() / scale, -1)
        chosen = logprobs.gather(-1, ids[..., None])[..., 0].tolist()
        samples: list[Sample] = []
        pad = self._tokenizer.pad_token_id
        for request, row, values in zip(requests, ids.tolist(), chosen, strict=True):
            end = request.max_tokens
            if self._eos_id in row:
                end = min(end, row.index(self._eos_id) + 1)
            elif stopping and pad in row:
                end = min(end, row.index(pad))
            samples.append(Sample(tuple(row[:end]), tuple(values[:end])))
        return samples
