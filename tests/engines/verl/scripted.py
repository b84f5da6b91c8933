"""A `Script` in veRL's processes.

Imported in each of them by `VERL_USE_EXTERNAL_MODULES`. In the trainer's it puts the scripted
optimizer and the watch in place; the CPU rollout responds with `respond`.
"""

import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from cotune.engines import run_start
from cotune.policy.codec import HFCodec
from cotune.protocols import Strategy
from cotune.rollout.coordinator import stable_seed
from cotune.types import Sampling
from tests.engines.contract.recording import update_row, watch
from tests.engines.contract.script import Script, ScriptedOptimizer
from tests.engines.verl.cpu.generation import checked

SCRIPT, LINES, UPDATES = "CONTRACT_SCRIPT", "CONTRACT_LINES", "CONTRACT_UPDATES"
"""Environment variables: the file of the script, and those that are written."""

# How many there are at most of what a draw is keyed by.
_PURPOSES, _CALLS, _ROWS = ("train", "verify", "evolve", "evaluate"), 24, 64


@lru_cache(1)
def _script() -> Script:
    return Script.from_json(Path(os.environ[SCRIPT]).read_text(encoding="utf-8"))


# ---- the policy, in the server's process


def respond(
    model: object,
    tokenizer: Any,
    prompt_ids: Sequence[int],
    params: Mapping[str, Any],
    max_tokens: int,
    random: object,
) -> tuple[list[int], list[float]]:
    """What the script's policy writes; see `generation.respond`.

    Which rollout asks, and for which turn, is read off the seed: so it has to be the one that every
    engine draws with.
    """
    params = checked(params)
    (row, turn) = _place(int(params["seed"]))
    codec = HFCodec(tokenizer)
    sampler = _script().sampler(codec)
    sampler.open(Sampling(temperature=float(params["temperature"])))
    ids = codec.encode(str(sampler.reply(row, turn, codec.decode(list(prompt_ids)))))
    completion = list(ids[:max_tokens])
    return completion, [sampler.logprob] * len(completion)


def _place(seed: int) -> tuple[int, int]:
    places = _places().get(seed)
    if places is None or len(places) > 1:
        raise ValueError(f"seed {seed} is that of {places or 'no draw of the script'}")
    return next(iter(places))


@lru_cache(1)
def _places() -> dict[int, set[tuple[int, int]]]:
    """Row and turn of every seed that a run of the script can draw with."""
    script, places = _script(), defaultdict(set)
    steps, calls = range(1, script.steps + 2), range(1, _CALLS + 1)
    for purpose, step, call in product(_PURPOSES, steps, calls):
        seed = stable_seed(script.seed, purpose, step, call)
        for row, turn in product(range(_ROWS), range(script.limits.turns)):
            places[stable_seed(seed, row, turn) % 2**31].add((row, turn))
    return places


# ---- the strategy and the optimizer, in the trainer's process


def _build_watched(*arguments: Any, **options: Any) -> Strategy:
    strategy = _build_strategy(*arguments, **options)
    watch(strategy, Path(os.environ[LINES]))
    _note_updates(Path(os.environ[UPDATES]))
    return strategy


def _scripted_llm(*_: object) -> ScriptedOptimizer:
    return _script().optimizer()


def _note_updates(path: Path) -> None:
    """Writes a line before each update of the actor: what it is made on, in the assignments' order."""
    import transfer_queue as tq

    from cotune.engines.verl.trainer import JointTrainer

    update = JointTrainer._update_actor

    def note_update(self: Any, batch: Any, metrics: dict[str, Any]) -> Any:
        fields = ["prompts", "responses", "loss_mask", "advantages"]
        if self.config.algorithm.rollout_correction.rollout_is is not None:
            fields.append("rollout_is_weights")  # 0 for tokens that the signed mask leaves out
        data = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=fields
        )
        rows = {}
        for i, key in enumerate(batch.keys):
            uid, session = key.split("_")[:2]
            column = {name: data[name][i].tolist() for name in fields}
            rows[self.manager.places[uid], int(session)] = {
                **update_row(
                    column["prompts"],
                    column["responses"],
                    column["loss_mask"],
                    column["advantages"],
                ),
                "kept": _counted(column),
            }
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([rows[place] for place in sorted(rows)]) + "\n")
        return update(self, batch, metrics)

    JointTrainer._update_actor = note_update  # type: ignore[method-assign]


def _counted(column: Mapping[str, list[float]]) -> list[int]:
    """1 for each own token that the loss counts with its advantage, else 0."""
    mask, advantages = column["loss_mask"], column["advantages"]
    weights = column.get("rollout_is_weights", mask)
    return [
        int(weight > 0 or advantage > 0)
        for weight, advantage, is_own in zip(weights, advantages, mask, strict=True)
        if is_own
    ]


if SCRIPT in os.environ:
    _build_strategy = run_start.build_strategy
    run_start.build_strategy = _build_watched
    run_start.build_llm = _scripted_llm
