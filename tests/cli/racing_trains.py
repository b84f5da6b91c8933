"""A program: `cotune train` of several run files with one output, all past their checks at once.

Prints, for each round, how each process ended and the name in the run.yaml that is left.
"""

import contextlib
import json
import multiprocessing
import sys
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path
from threading import BrokenBarrierError
from unittest import mock

import yaml
from rich.console import Console

from cotune.cli import train as command
from cotune.config.run_file import RunConfig
from cotune.engines.joint import RunSettings, settings_of
from cotune.engines.run_start import opened_run
from cotune.errors import ConfigError
from cotune.run.run_dir import RunDir
from tests.run_files import tiny, write

RACERS, ROUNDS = 3, 4


def race(file: Path, free: Barrier, creating: Barrier, ended: Barrier, result: Path) -> None:
    """Train one run file with an engine that trains nothing."""
    check_free = RunDir.check_free

    def passed(config: RunConfig, **_: object) -> mock.Mock:
        check_free(config.output)
        free.wait(60)  # every process has found the folder free
        return mock.Mock(engine=Engine(), config=config)

    def check_and_wait(folder: Path) -> None:
        check_free(folder)
        with contextlib.suppress(BrokenBarrierError):
            creating.wait(0.3)  # those that get so far write at the same time

    class Engine:
        def prepare(self, checked: mock.Mock, console: Console) -> RunSettings:
            return settings_of(checked.config, console)

        def train(self, setup: RunSettings, *, resume: bool) -> None:
            with opened_run(setup, 1, resume=resume) as run:
                run.event("run_started", 0, config="", strategy="static")
                if ended.parties > 1:
                    ended.wait(60)  # hold the lock until the others have given up

    with (
        mock.patch.object(command, "passed", passed),
        mock.patch.object(RunDir, "check_free", check_and_wait),
        mock.patch("cotune.run.json_files._PATIENCE", 0.0),
    ):
        try:
            command.train(file, Console(quiet=True))
            said = "trained"
        except ConfigError as error:
            said = str(error)
            if ended.parties > 1:
                ended.wait(60)
    result.write_text(said, encoding="utf-8")


def main(folder: Path) -> None:
    fork = multiprocessing.get_context("fork")
    rounds: list[object] = []
    for number in range(ROUNDS):
        output = folder / f"out-{number}" / "run"
        # In every second round the winner ends at once, so that others may come after it.
        ended = fork.Barrier(RACERS if number % 2 else 1)
        barriers = fork.Barrier(RACERS), fork.Barrier(RACERS), ended
        results = [folder / f"{number}-{i}.txt" for i in range(RACERS)]
        processes: list[BaseProcess] = []
        for i, result in enumerate(results):
            file = write(folder / f"{number}-{i}.yaml", tiny(output) | {"name": str(i)})
            processes.append(fork.Process(target=race, args=(file, *barriers, result)))
            processes[-1].start()
        for process in processes:
            process.join(60)
        name = yaml.safe_load((output / "run.yaml").read_text(encoding="utf-8"))["name"]
        events = len(RunDir.open(output).read_events())
        said = [result.read_text(encoding="utf-8") for result in results]
        rounds.append({"said": said, "name": name, "events": events})
    print(json.dumps(rounds))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
