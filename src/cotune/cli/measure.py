"""`cotune measure`: drift, robustness, plasticity and learning on of one or several runs."""

import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from cotune.cli.library_settings import allow_hub, quiet_libraries
from cotune.cli.step_progress import step_progress
from cotune.config.run_file import read_fields
from cotune.errors import ConfigError, Stopped
from cotune.experiments.chains import ChainsFailed, look_at, print_progress, run_chains
from cotune.experiments.evaluate.questions import EvaluationOptions
from cotune.experiments.measure import (
    MeasuredRun,
    all_tasks,
    curves,
    drift,
    drift_chart,
    figures_of,
    measure_tables,
    robustness,
)
from cotune.experiments.report.pages import write_page
from cotune.experiments.statistics import ScoreTable
from cotune.llm.own import read_bank
from cotune.run.best import instruction_rows
from cotune.run.json_files import check_folder, locked, plain, write_json_atomic
from cotune.utils.processes import stopped_by_sigterm
from cotune.utils.tables import on_console
from cotune.utils.text import one_line, slug

LINEAGE = "lineage"


def measure(
    folders: Sequence[Path],
    console: Console,
    options: EvaluationOptions,
    reworded: str,
    then: Sequence[Path],
    output: Path,
) -> None:
    """Measure runs; write measure.json and report.html into `output`, and print the tables.

    Args:
        options: their split and limit apply.
        reworded: a file of instructions, or "lineage" for all that any of the runs had; "" for none.
        then: the files of the tasks that are trained after each run, in order, in folders of `output`.

    Raises:
        ConfigError: before anything is trained or rolled out.
        Stopped: Ctrl-C; the same command trains on, and measures from the start.
        ChainsFailed: a run of `then` failed; the rest is reported.
    """
    check_folder(output, "--output")
    tasks = {slug(path.stem): read_fields(path, "a run file", "training:") for path in then}
    if len(tasks) < len(then) or "" in tasks:
        raise ConfigError("--then: expected files whose names differ in letters a-z or digits")
    runs = [MeasuredRun(folder) for folder in folders]
    # Their names in `output`.
    (name, times), *_ = Counter((slug(run.label), run.config.seed) for run in runs).most_common(1)
    if times > 1:
        raise ConfigError(
            f"two folders are {name[0]}, seed {name[1]}; expected each once, under names that differ in letters a-z "
            "or digits"
        )
    texts = read_bank(Path(reworded), "--reworded") if reworded not in ("", LINEAGE) else []
    if reworded == LINEAGE:
        texts = list({row.text: 0 for run in runs for row in instruction_rows(run.run)})
    chains = [(run, chain) for run in runs for chain in run.next_tasks(tasks, output)]
    training = [chain for _, chain in chains]
    look_at(training)
    if then:
        allow_hub()
    for run in runs:
        quiet_libraries(run.config)
    values: list[ScoreTable] = []
    printed = set[str]()
    output.mkdir(parents=True, exist_ok=True)
    busy = f"{output} is being written by another cotune measure; wait for it, or name another --output"
    try:
        with stopped_by_sigterm(), step_progress(console), locked(output / "measure.lock", busy):
            run_chains(training, 1, lambda: print_progress(training, printed, console))
            for run in runs:
                values += drift(run, options)
                values += robustness(run, texts, options) if texts else ()
            for run, chain in chains:
                values += () if chain.problem else curves(run, chain)
                if chain.start and not chain.problem:
                    values += all_tasks(run, chain, options)
    except KeyboardInterrupt:
        raise Stopped(f"stopped; resume with: {shlex.join(['cotune', *sys.argv[1:]])}") from None
    failed = [f"{chain.name}: {chain.problem}" for chain in training if chain.problem]
    data: dict[str, Any] = {
        "runs": list(map(str, folders)),
        "split": options.split,
        "texts": texts,
        "notices": failed,
        "figures": figures_of(values),
    }
    json = output / "measure.json"
    write_json_atomic(json, plain({"schema_version": 1, "kind": "measure"} | data, json.name))
    tables = measure_tables(data["figures"])
    page = write_page(
        output, "measure.html.j2", {**data, "tables": tables, "chart": drift_chart(data["figures"])}
    )
    for table in tables:
        console.print(on_console(table))
        console.print(table.notes, markup=False, highlight=False, soft_wrap=True)
    for line in (*data["notices"], f"figures: {json}   report: {page}"):
        console.print(one_line(line), markup=False, highlight=False, soft_wrap=True)
    if failed:
        raise ChainsFailed("; ".join(failed))
