"""`python -m cotune.policies.arithmetic`: trains the bundled policy by its recipe and measures it."""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers.utils import logging

from cotune.contracts import ConfigError
from cotune.policies.arithmetic.card import write_card
from cotune.policies.arithmetic.pretrain import Recipe, pretrain

WEIGHTS = Path(__file__).parent / "weights"


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains beside `--out` and replaces it at the end, so that a broken run loses nothing."""
    parser = argparse.ArgumentParser(
        prog="python -m cotune.policies.arithmetic", description=__doc__
    )
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="default: the bundled weights")
    parser.add_argument("--card-only", action="store_true", help="measure what is in --out")
    options = parser.parse_args(arguments)
    logging.disable_progress_bar()
    torch.set_num_threads(1)  # the figures of a card do not depend on the machine's cores
    recipe = Recipe()
    try:
        if options.card_only:
            write_card(options.out, recipe)
            return
        staged = options.out.with_name(options.out.name + ".new")
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(parents=True)
        pretrain(staged, recipe)
        write_card(staged, recipe)
        shutil.rmtree(options.out, ignore_errors=True)
        staged.rename(options.out)
    except ConfigError as error:
        sys.exit(f"cotune.policies.arithmetic: {error}")


if __name__ == "__main__":
    main()
