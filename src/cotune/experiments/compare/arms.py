"""Several runs side by side: one process each, watched through their run folders."""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cotune.config.run_file import RunConfig, dump_config
from cotune.errors import CotuneError
from cotune.experiments.compare.processes import end, last_line, start
from cotune.run.json_files import read_jsonl, write_atomic


class ArmFailed(CotuneError):
    """A run of a comparison ended with an error; the message holds its last line."""


@dataclass
class Arm:
    """One run of a comparison.

    Attributes:
        name: what tables call it.
        config: its run file.
    """

    name: str
    config: RunConfig
    process: subprocess.Popen[bytes] | None = None

    @property
    def folder(self) -> Path:
        return self.config.output

    @property
    def log(self) -> Path:
        return self.folder.with_name(self.folder.name + ".log")

    def start(self) -> None:
        """Writes the run file beside the folder and starts the run in a process of its own."""
        file = self.folder.with_name(self.folder.name + ".yaml")
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, yaml.safe_dump(dump_config(self.config), sort_keys=False))
        self.process = start(("train", str(file), "--quiet"), self.log, self.config.threads)

    def metrics(self) -> list[dict[str, Any]]:
        return read_jsonl(self.folder / "metrics.jsonl")

    def events(self) -> list[dict[str, Any]]:
        return read_jsonl(self.folder / "events.jsonl")

    def check(self) -> bool:
        """Whether the run is over. Raises ArmFailed with the log's last line if it failed."""
        if self.process is None or (status := self.process.poll()) is None:
            return False
        if status != 0:
            raise ArmFailed(
                f"the {self.name} run ended with status {status}: {last_line(self.log)} "
                f"(see {self.log})"
            )
        return True

    def stop(self) -> None:
        end(self.process)


def run_arms(
    arms: Sequence[Arm], at_once: int, watch: Callable[[Sequence[Arm]], None], every: float = 1.0
) -> None:
    """Runs arms, `at_once` at a time, calling `watch` until all are over.

    Raises:
        ArmFailed: one of them failed; the others are stopped.
    """
    waiting, running = list(arms), list[Arm]()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(waiting.pop(0))
                running[-1].start()
            watch(arms)
            running = [arm for arm in running if not arm.check()]
            if running:
                time.sleep(every)
        watch(arms)
    finally:
        for arm in arms:
            arm.stop()


def hops(by_stratum: Mapping[str, float]) -> dict[str, float]:
    """Strata of the geo world by their number of hops: "2 hops" becomes "2"."""
    return {name.split()[0]: value for name, value in by_stratum.items()}
