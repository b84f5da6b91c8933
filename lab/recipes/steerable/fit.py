"""Fit the adapter on demonstrations of `recipes.arithmetic`."""

import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from peft import PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch.multiprocessing.spawn import spawn
from transformers import PreTrainedTokenizerFast

from cotune.policy.adapters import lora_config
from cotune.policy.local_policy import load
from cotune.policy.policy_files import LoraOptions
from cotune_lab.smollm2 import PACKAGE, smollm2
from recipes.arithmetic.demonstrations import Demonstrator, Unprompted
from recipes.fitting import (
    FitPhase,
    FitRecipe,
    Row,
    encode,
    micro_batches,
    run_phase,
    stream_rng,
)

WEIGHTS = "adapter_model.safetensors"
KINDS = ("addition", "subtraction", "multiplication")
"""Word problems are left out: their two procedures take twice the tokens."""


@dataclass(frozen=True)
class Phase(FitPhase):
    """A stretch of training.

    Attributes:
        batch: demonstrations in a step.
        unprompted: the chances of a look, and of a procedure after it, if no hint asks for it.
    """

    batch: int
    unprompted: Unprompted


@dataclass(frozen=True, kw_only=True)
class Recipe(FitRecipe):
    """Everything the adapter depends on, except the package versions; sizes of new models are not used.

    The second phase was added because after the first, procedures were too often wrong, and too often written
    without being asked for.

    Attributes:
        rank: of the adapter, on all linear layers; its alpha is twice that.
        prompted: the share of demonstrations whose hint asks for the problem's own procedure.
        elsewhere: the share of the other hints that is sure to ask for another kind's procedure.
    """

    rank: int = 8
    phases: tuple[Phase, ...] = (
        Phase(150, 1.0, 64, (0.10, 0.008)),
        Phase(230, 1.0, 32, (0.06, 0.005)),
    )
    adamw_lr: float = 1.0e-3
    warm_up: int = 8
    prompted: float = 0.45
    elsewhere: float = 0.7


def rows(
    tokenizer: PreTrainedTokenizerFast, recipe: Recipe, number: int, rank: int, workers: int
) -> Iterator[Row]:
    """Yield one worker's demonstrations of a phase, endlessly."""
    rng, chances = stream_rng(recipe, number, rank, workers), recipe.phases[number].unprompted
    demonstrator = Demonstrator(recipe.prompted, chances, recipe.elsewhere, KINDS)
    while True:
        yield encode(demonstrator.sample(rng), tokenizer)


def fit(out: Path, recipe: Recipe, workers: int = 2) -> None:
    """Run the recipe and write an adapter folder to `out`.

    `workers` processes of one thread each share every batch; two take about 90 minutes if bfloat16 is
    native.
    """
    smollm2()  # converts the model once, not in both processes
    for number in range(len(recipe.phases)):
        fit_phase(out, recipe, number, workers)
    # Half the size. Only now, because a phase continues from the full float32 numbers.
    weights = load_file(out / WEIGHTS)
    save_file({name: w.bfloat16() for name, w in weights.items()}, out / WEIGHTS, {"format": "pt"})


def fit_phase(out: Path, recipe: Recipe, number: int, workers: int = 2) -> None:
    """Train a new adapter, or for a later phase the one in `out`, and write it to `out`."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = (workers, f"file://{folder}/rendezvous", out, recipe, number)
        spawn(_work, arguments, nprocs=workers)


def _work(rank: int, workers: int, rendezvous: str, out: Path, recipe: Recipe, number: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(recipe.seed)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=workers)
    base, loaded = load(smollm2(), "bfloat16")
    tokenizer = cast("PreTrainedTokenizerFast", loaded)
    base.set_attn_implementation("eager")  # a tenth faster here
    options = LoraOptions(rank=recipe.rank, alpha=2 * recipe.rank)
    model: Any = (
        PeftModel.from_pretrained(base, str(out), is_trainable=True)
        if number
        else get_peft_model(base, lora_config(options, base))
    )
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, betas=(0.9, 0.98), weight_decay=0.0)
    phase = recipe.phases[number]
    sized = replace(recipe, batch=phase.batch, micro_batches=phase.batch // (8 * workers))
    stream = rows(tokenizer, recipe, number, rank, workers)
    shares = micro_batches(stream, tokenizer, sized, workers)
    bases = [recipe.adamw_lr]
    run_phase(
        model.get_base_model(), [optimizer], bases, shares, sized, phase,
        lambda: _save(model, out, recipe), log_every=10, save_every=50,
    )  # fmt: skip
    dist.destroy_process_group()


def _save(model: Any, out: Path, recipe: Recipe) -> None:
    model.save_pretrained(out)
    (out / "README.md").unlink()  # peft's
    # The base was loaded from a folder of this machine; the package is everybody's.
    config = out / "adapter_config.json"
    named = json.loads(config.read_text()) | {"base_model_name_or_path": PACKAGE}
    config.write_text(json.dumps(named, indent=2, sort_keys=True) + "\n")
    (out / "recipe.json").write_text(json.dumps(asdict(recipe), indent=2) + "\n")
