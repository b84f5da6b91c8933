"""`python -m recipes.steerable`: merge the adapter into SmolLM2-135M-Instruct; with --fit, fit it anew."""

import argparse
import shutil
import sys
from pathlib import Path

import torch
from transformers.utils import logging

from cotune.errors import ConfigError
from cotune.policy.local_policy import load
from cotune.policy.policy_files import policy_path
from recipes.rebuilding import check_replaceable
from recipes.steerable.card import write_card
from recipes.steerable.fit import BASE, Recipe, fit

ADAPTER = Path(__file__).with_name("adapter")
OUT = Path("runs/steerable-smollm2")


def main() -> None:
    """Write the merged model to --out, and with --fit the adapter and its card first."""
    parser = argparse.ArgumentParser(prog="python -m recipes.steerable", description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT, help=f"default: {OUT}")
    parser.add_argument(
        "--fit", action="store_true", help="fit the adapter, which takes 90 minutes"
    )
    parser.add_argument("--card", action="store_true", help="measure the model and write its card")
    given = parser.parse_args()
    check_replaceable(given.out, parser)
    logging.disable_progress_bar()
    torch.set_num_threads(1)  # the figures of a card do not depend on the machine's cores
    try:
        if given.fit:
            fit(ADAPTER, Recipe())
        merge(given.out)
        if given.card or given.fit:
            write_card(given.out, ADAPTER, Recipe())
    except ConfigError as error:
        sys.exit(f"recipes.steerable: {error}")


def merge(out: Path) -> None:
    """Write the model with the adapter merged into its weights, in bfloat16, and its tokenizer."""
    model, tokenizer = load(ADAPTER, base=policy_path(BASE), merge=True)
    staged = out.with_name(out.name + ".new")
    shutil.rmtree(staged, ignore_errors=True)
    model.save_pretrained(staged)
    tokenizer.save_pretrained(staged)
    shutil.rmtree(out, ignore_errors=True)
    staged.rename(out)


if __name__ == "__main__":
    main()
