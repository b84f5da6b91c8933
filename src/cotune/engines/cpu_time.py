"""Estimate how long a run takes without a GPU, from a few timed passes of a small part of its policy.

Two models of the policy's shape, with random weights and one and two layers, sample and train for a
moment. Their difference is the time of a layer, the rest is the head; from these the whole policy is
projected.
"""

import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from cotune.config.run_file import RunConfig
from cotune.engines.gpu_time import trained_rollouts
from cotune.engines.memory import find_config, read_shape
from cotune.policy.precision import autocast, emulated_bfloat16, weights_dtype

_LARGEST = 2e9  # parameters; the embeddings of larger policies alone take long to make
_PROMPT, _TIMED = 32, 128  # tokens a row while decoding and updating are timed
_REPEATS = 2
_LONG = 1.0  # seconds; a longer pass is timed once, as a warm-up would save little in comparison


@dataclass(frozen=True, slots=True)
class CpuTime:
    """Longest projected time of a run without a GPU, in seconds.

    Attributes:
        rollouts: sampling, every turn to its last token.
        updates: forward and backward passes.
        threads: the threads that were timed.
    """

    rollouts: float
    updates: float
    threads: int


def cpu_time(config: RunConfig, planned: Mapping[str, int]) -> CpuTime:
    """Time parts of the policy on this CPU and project the run.

    Args:
        config: the run file.
        planned: the most rollouts by purpose.

    Raises:
        ValueError: the policy's shape is unknown, or it is too large to be timed, or this CPU emulates
            the type that the policy computes in: a pass of a layer could take minutes.
    """
    import torch

    raw = find_config(config.policy.path)
    if raw is None:
        raise ValueError(f"{config.policy.path} is not on this machine")
    shape = read_shape(raw)
    if shape.parameters > _LARGEST:
        raise ValueError(
            f"the policy has {shape.parameters:,} parameters; cotune plan --steps times it"
        )
    if reason := emulated_bfloat16(config.policy, config.training.precision):
        raise ValueError(reason)
    training, limits, before = config.training, config.limits, torch.get_num_threads()
    # Fewer rows together take longer for each; other purposes have as many at least, up to their last call.
    batch = training.questions_per_step * training.group_size
    most = batch if planned.get("train") else max(planned.values(), default=1)
    rows = min(training.rows_per_call, most, 64)
    try:
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        threads = torch.get_num_threads()
        with torch.random.fork_rng(devices=[]):
            one, two = (_timed(config, raw, shape.dtype, count, rows) for count in (1, 2))
    finally:
        torch.set_num_threads(before)
    token, fed, learnt = (
        a + max(b - a, 0.0) * (shape.layers - 1) for a, b in zip(one, two, strict=True)
    )
    written = min(limits.turns * limits.turn_tokens, limits.trajectory_tokens)
    longest = limits.prompt_tokens + limits.trajectory_tokens
    sampled = sum(  # prompts and observations are fed
        math.ceil(count / rows) * written * token + count * (longest - written) * fed
        for count in planned.values()
    )
    # In updates, of which a forward pass is a third, or half if frozen weights have no gradient.
    forward = 1 / 2 if config.policy.lora else 1 / 3
    passes = 1 + ((training.mini_batches > 1) + (training.kl > 0)) * forward
    if config.teacher:  # the policy once more, and a forward pass of the teacher
        passes += 1 + forward
    trained = trained_rollouts(training, planned)
    return CpuTime(sampled, trained * passes * longest * learnt, threads)


def _timed(
    config: RunConfig, raw: Mapping[str, Any], dtype: str, layers: int, rows: int
) -> tuple[float, float, float]:
    """Return the seconds of a token for all rows, of a prompt's token, and of a token of an update."""
    import torch

    from cotune.policy.sampling import draw

    model, vocabulary = _model(config, raw, dtype, layers)
    prompts = torch.randint(0, vocabulary, (rows, _PROMPT))
    micro = torch.randint(0, vocabulary, (min(config.training.micro_batch_size, 8), _TIMED))
    training = config.training
    casts = bool(autocast(config.policy, training.precision))

    def context() -> Any:
        return torch.autocast("cpu", torch.bfloat16) if casts else nullcontext()

    def fill() -> Any:
        with torch.no_grad(), context():
            return model(prompts, use_cache=True, logits_to_keep=torch.tensor([_PROMPT - 1]))

    filled = fill()

    def decode() -> None:
        with torch.no_grad(), context():
            out = model(prompts[:, :1], past_key_values=filled.past_key_values, use_cache=True)
        draw(out.logits[:, -1], training.temperature, [0.5] * rows)

    def learn() -> None:
        with context():
            logits = model(micro).logits.float()
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), micro.flatten()).backward()
        model.zero_grad()

    return (
        _seconds(decode),
        _seconds(fill) / prompts.numel(),
        0.0 if training.frozen else _seconds(learn) / micro.numel(),
    )


def _model(config: RunConfig, raw: Mapping[str, Any], dtype: str, layers: int) -> tuple[Any, int]:
    """Return a model of some layers with random weights, as the run would train it; its vocabulary."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    text = dict(raw.get("text_config") or raw)
    text["num_hidden_layers"] = layers
    if kinds := text.get("layer_types"):  # a list with an entry for each layer
        text["layer_types"] = [kinds[index % len(kinds)] for index in range(layers)]
    loaded = weights_dtype(config.policy, config.training.precision)
    resolved = getattr(torch, dtype if loaded == "auto" else loaded)
    shaped: Any = AutoConfig.for_model(**text)
    model: Any = AutoModelForCausalLM.from_config(shaped, dtype=resolved)
    if config.policy.lora is not None:
        from cotune.policy.adapters import compute_as_base, lora_config

        adapters = lora_config(config.policy.lora, model)
        from peft import get_peft_model

        model = compute_as_base(get_peft_model(model, adapters))
    return model, int(shaped.vocab_size)


def _seconds(run: Callable[[], object]) -> float:
    """Return the shortest time of some passes; of one if it is long."""
    times: list[float] = []
    while len(times) <= _REPEATS and (not times or times[0] < _LONG):
        begun = time.perf_counter()
        run()
        times.append(time.perf_counter() - begun)
    return min(times)
