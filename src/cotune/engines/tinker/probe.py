"""What a server does with losses, seeds, stops and adapters, tried on an adapter that is thrown away.

A server that did something else than is expected here would train in silence on another gradient.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cotune.engines.tinker.adapter import Adapter, Pair, datum
from cotune.engines.tinker.service import Service
from cotune.errors import EngineError
from cotune.methods.context_distillation import Floats
from cotune.protocols import Codec

Reduction = Literal["sum", "mean"]
"""How a server adds up losses: over positions and rows; or, as SkyRL's jax server does, as the mean over a row's
positions, the prompt's included, and then over rows."""
_TOKENS = 8
_SECONDS = 300.0  # a server that compiles needs a minute for its first batch
_DRIFT = 0.1
_EXPECTED: dict[Reduction, tuple[float, float]] = {"sum": (1.0, 2.0), "mean": (0.5, 1.0)}
"""How many times as large a row's gradient is if it has as many positions again, and with its copy."""


@dataclass(frozen=True)
class ServerFacts:
    """How a server adds up losses, whether equal seeds draw equal tokens, and how far a token's log-probability of its
    sampler is from its trainer's, on average."""

    reduction: Reduction
    seeded: bool
    drift: float

    def __str__(self) -> str:
        seeds = f"seeds {'' if self.seeded else 'do not '}repeat their draws"
        differ = f"log-probabilities of sampler and trainer differ by {self.drift:.1e}"
        return f"losses are a {self.reduction}, {seeds}, and {differ}"


def probe(service: Service, codec: Codec, prompt: Sequence[int], rank: int) -> ServerFacts:
    """Find out what a server does, with the first tokens of a prompt and an adapter that it forgets in minutes.

    Raises:
        EngineError: a run there would not train as it says.
    """
    service.limit = _SECONDS
    adapter = Adapter(service, rank)
    prompt = prompt[:_TOKENS]
    parameters = {"max_tokens": _TOKENS, "temperature": 1.0, "seed": 7, "stop": [codec.eos_id]}
    first, again = adapter.sample([(prompt, parameters)] * 2)
    tokens = list(first.tokens)
    logprobs = np.array(first.logprobs or [])
    _require(len(logprobs) == len(tokens) > 0, service, "gives tokens without log-probabilities")
    positions = len(prompt) + len(tokens) - 1
    rows = [(prompt, tokens), (prompt, [*tokens, *[tokens[-1]] * positions])]
    forward = adapter.forward(rows)
    drift = float(np.abs(forward[0] - logprobs).mean())
    differ = f"has log-probabilities in its sampler that are {drift:.2f} from its trainer's"
    _require(drift <= _DRIFT, service, differ)
    plain = [t for t in tokens if codec.decode([t]).isascii() and codec.decode([t]).strip()]
    stops: list[Any] = [tokens[0], *map(codec.decode, [plain[:1]] if plain else [])]
    for stop in stops:
        # Two rows again, for a server that compiles for each number.
        stopped, _ = adapter.sample([(prompt, {**parameters, "stop": [stop]})] * 2)
        sampled = list(stopped.tokens)
        read = codec.decode if isinstance(stop, str) else list[int]
        unstopped = len(sampled) == _TOKENS or sampled[-1:] == [codec.eos_id]
        otherwise = f"does not end a sequence at the stop {stop!r} and keep it (it gave {sampled})"
        ended = stop not in read(sampled[:-1]) if stop in read(sampled) else unstopped
        _require(ended, service, otherwise)
    with tempfile.TemporaryDirectory(prefix="cotune-probe-") as folder:
        path = adapter.export("probe", Path(folder) / "adapter", "base")
    service.delete(path)
    reduction = _reduction(adapter, rows, forward)  # last, since it fills Adam's moments
    service.limit = None
    return ServerFacts(reduction, tokens == list(again.tokens), drift)


def _require(holds: bool, service: Service, otherwise: str) -> None:
    if not holds:
        fault = f"the Tinker server at {service.label} {otherwise}"
        raise EngineError(f"{fault}, which would change the gradient; use another server")


def _reduction(adapter: Adapter, rows: Sequence[Pair], forward: Sequence[Floats]) -> Reduction:
    """Return how losses are added up, from the gradients of a row, of a longer row, and of the first one twice."""
    reported: dict[str, float] = {}

    def norm(row: int, copies: int) -> float:
        prompt, completion = rows[row]
        inputs = np.zeros((2, len(prompt) + len(completion) - 1), dtype=np.float32)
        inputs[0, len(prompt) - 1 :] = forward[row]
        inputs[1, len(prompt) - 1 : len(prompt) + len(rows[0][1]) - 1] = 1.0
        data = [datum(prompt, completion, logprobs=inputs[0], advantages=inputs[1])] * copies
        reported.update(adapter.update(data, "importance_sampling", {}, 0.0))
        return next((float(v) for k, v in reported.items() if "grad_norm" in k), 0.0)

    short = norm(0, 1)
    long = norm(1, 1)
    double = norm(0, 2)
    if not short:
        # Without a norm, only the server's own word is left.
        silent = "reports neither a gradient's norm nor how it adds up losses"
        _require(any(name.endswith(":sum") for name in reported), adapter.service, silent)
        return "sum"
    ratios = long / short, double / short
    fitting: list[Reduction] = [r for r, e in _EXPECTED.items() if np.allclose(ratios, e, 0.05)]
    unknown = (
        f"adds up losses in an unknown way: a row's gradient is {ratios[0]:.2f} times as large with as many positions "
        f"again, and {ratios[1]:.2f} times with its copy, not 1 and 2 (a sum), nor 0.5 and 1 (a mean)"
    )
    _require(bool(fitting), adapter.service, unknown)
    return fitting[0]
