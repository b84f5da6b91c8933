"""`python -m recipes.steerable`: merge the adapter into SmolLM2-135M-Instruct; with --fit, fit it anew."""

import argparse
import shutil
from pathlib import Path

import torch
from transformers.utils import logging

from cotune.policy.local_policy import load
from cotune_lab.smollm2 import smollm2
from recipes.measuring import print_sections
from recipes.steerable.fit import Recipe, fit
from recipes.steerable.measure import BENCH

ADAPTER = Path(__file__).with_name("adapter")
OUT = Path("runs/steerable-smollm2")


def main() -> None:
    """Write the merged model to --out, and with --fit the adapter first."""
    parser = argparse.ArgumentParser(prog="python -m recipes.steerable", description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT, help=f"default: {OUT}")
    parser.add_argument(
        "--fit", action="store_true", help="fit the adapter, which takes 90 minutes"
    )
    parser.add_argument("--measure", action="store_true", help="print the model's figures")
    arguments = parser.parse_args()
    logging.disable_progress_bar()
    torch.set_num_threads(1)  # the figures do not depend on the machine's cores
    if arguments.fit:
        fit(ADAPTER, Recipe())
    merge(arguments.out)
    if arguments.measure:
        print_sections(BENCH, arguments.out)


def merge(out: Path) -> None:
    """Write the model with the adapter merged into its weights, in bfloat16, and its tokenizer."""
    model, tokenizer = load(ADAPTER, base=smollm2(), merge=True)
    staged = out.with_name(out.name + ".new")
    shutil.rmtree(staged, ignore_errors=True)
    model.save_pretrained(staged)
    tokenizer.save_pretrained(staged)
    shutil.rmtree(out, ignore_errors=True)
    staged.rename(out)


if __name__ == "__main__":
    main()
