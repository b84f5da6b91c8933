"""The command that rebuilds a bundled policy; shared by the worlds' `__main__`."""

import argparse
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from transformers.utils import logging

from cotune.errors import ConfigError
from cotune.policy.policy_files import bundled_folder

R = TypeVar("R")


def check_replaceable(out: Path, parser: argparse.ArgumentParser) -> None:
    """End with an error if a folder that would be replaced holds something other than a model."""
    if (
        out.exists()
        and not (out / "config.json").is_file()
        and (out.is_file() or any(out.iterdir()))
    ):
        parser.error(
            f"--out {out}: would be replaced, but is no model's folder (it has no config.json)"
        )


def rebuild(
    world: str,
    description: str | None,
    recipe: R,
    pretrain: Callable[[Path, R], None],
    write_card: Callable[[Path, R], None],
) -> None:
    """Train in a folder beside `--out` and replace `--out` at the end, so that a broken run loses nothing."""
    parser = argparse.ArgumentParser(prog=f"python -m recipes.{world}", description=description)
    weights = bundled_folder(world)
    parser.add_argument("--out", type=Path, default=weights, help="default: the bundled weights")
    parser.add_argument("--card-only", action="store_true", help="measure what is in --out")
    options = parser.parse_args()
    if not options.card_only:
        check_replaceable(options.out, parser)
    logging.disable_progress_bar()
    torch.set_num_threads(1)  # the figures of a card do not depend on the machine's cores
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
        sys.exit(f"recipes.{world}: {error}")
