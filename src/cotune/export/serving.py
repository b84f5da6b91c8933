"""A finished run's best policy: its choice in `best/best.json`, its evaluation in `best/serving.json`."""

from dataclasses import dataclass
from typing import Literal

from cotune.environments.base import PromptFormat
from cotune.errors import ConfigError
from cotune.run.best import BestRecord, read_best
from cotune.run.json_files import Row
from cotune.run.run_dir import RunDir
from cotune.types import Limits

FILE = "serving.json"

Format = Literal["full", "adapter", "merged"]
"""Weights trained as a whole; a LoRA adapter; that adapter merged into its base's weights."""


@dataclass(frozen=True, kw_only=True)
class Serving:
    """The settings of the evaluation, which a server must share.

    Attributes:
        attempt: the run's attempt whose result this is.
        instruction_in_template: the chat template carries the best instruction.
        reason: why it does not; "" if it does.
        environment: its class name.
        instruction: layout of instruction and question; None if no chat template can have it.
        stop: strings after which a turn ended, each kept at its end.
        tools: names of the tools that were offered through the chat template.
        limits: limits of an episode.
        tasks: how many questions each split has.
    """

    attempt: int
    instruction_in_template: bool
    reason: str
    environment: str
    instruction: PromptFormat | None
    stop: tuple[str, ...]
    tools: tuple[str, ...]
    limits: Limits
    tasks: dict[str, int]

    schema_version: Literal[1] = 1


def read_result(run: RunDir) -> tuple[Row, BestRecord]:
    """Return the summary of a finished run, and what it keeps. Raises ConfigError for others."""
    summary = run.read_summary()
    chosen = read_best(run.best_path)
    if summary is None or chosen is None:
        raise ConfigError(
            f"{run.path}: not finished, so its best policy is not chosen yet; finish it with: "
            f"{run.how_to_resume()}"
        )
    return summary, chosen
