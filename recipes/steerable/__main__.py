"""Build the steerable SmolLM2: `python -m recipes.steerable --out FOLDER`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers.utils import logging

from cotune.policy.local_policy import load
from cotune.policy.policy_files import policy_path
from recipes.steerable.fit import BASE, Recipe, fit

ADAPTER = Path(__file__).with_name("adapter")


def build(out: Path) -> None:
    """Merge the adapter into the base's weights and write a Hugging Face folder."""
    model, _ = load(ADAPTER, "float32", base=policy_path(BASE), merge=True)
    _, tokenizer = load(policy_path(BASE))
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.steerable", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/steerable-smollm2"))
    parser.add_argument("--fit", action="store_true", help="train the adapter again, in place")
    given = parser.parse_args(arguments)
    logging.disable_progress_bar()
    if given.fit:
        fit(ADAPTER, Recipe())
    build(given.out)


if __name__ == "__main__":
    main()
