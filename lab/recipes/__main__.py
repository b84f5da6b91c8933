"""`python -m recipes WORLD`: train the policy of a world by its recipe, and print its figures.

With --measure only the figures, of the policy that is there. A rebuilt policy replaces the old one; the tables of
its README.md are those of the policy that was there when they were written.
"""

import argparse
import shutil
from importlib import import_module
from pathlib import Path

import torch
from transformers.utils import logging

import cotune
from recipes.measuring import print_sections

_WEIGHTS = Path(__file__).parents[1] / "weights"
FOLDERS = {
    "ladder": Path(cotune.policy_path("bundled:ladder")),
    **{world: _WEIGHTS / world for world in ("geo", "arithmetic", "scaffold")},
}
"""Where the policy of each world is."""


def main() -> None:
    """Train in a folder beside the policy and replace its files at the end, so that a broken run loses nothing."""
    parser = argparse.ArgumentParser(prog="python -m recipes", description=__doc__)
    parser.add_argument("world", choices=FOLDERS)
    parser.add_argument("--out", type=Path, help="default: the world's own folder")
    parser.add_argument("--measure", action="store_true", help="train nothing")
    arguments = parser.parse_args()
    out: Path = arguments.out or FOLDERS[arguments.world]
    logging.disable_progress_bar()
    torch.set_num_threads(1)  # figures do not depend on the machine's cores
    if not arguments.measure:
        recipe = import_module(f"recipes.{arguments.world}.pretrain")
        staged = out.with_name(out.name + ".new")
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(parents=True)
        recipe.pretrain(staged, recipe.Recipe())
        shutil.copytree(staged, out, dirs_exist_ok=True)
        shutil.rmtree(staged)
    print_sections(import_module(f"recipes.{arguments.world}.measure").BENCH, out)


if __name__ == "__main__":
    main()
