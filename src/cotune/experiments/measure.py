"""Measure what only joint training promises: little drift, robustness and plasticity.

The claims are FST's (arXiv 2605.12484): little divergence from the initial policy for the same score, and a next task
learned as from the initial policy. The score under other words is added.

What is measured are tables as `experiments.statistics` has them, with the columns run, policy, table and figure; of
every figure, the initial policy comes first.
"""

import json
import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from os.path import realpath
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from cotune.config.build import initial_instruction, run_environment, run_policy
from cotune.config.library_settings import allow_hub, quiet_libraries
from cotune.config.overrides import merge
from cotune.config.resuming import open_trained, recorded_config
from cotune.config.run_checks import check_prompts
from cotune.config.run_file import RunConfig, ScriptRun, dump_config, parse_config, read_fields
from cotune.environments.base import TaskEnvironment
from cotune.errors import ConfigError, CotuneError, Stopped
from cotune.experiments.chains import (
    Chain,
    ChainsFailed,
    check_own_folder,
    look_at,
    policy_of,
    print_progress,
    run_chains,
    run_of_policy,
)
from cotune.experiments.evaluate.evaluation import PromptScores, best_record, score
from cotune.experiments.evaluate.quadrants import divergence_cell, hash_of_best, per_question
from cotune.experiments.evaluate.questions import EvaluationOptions, question_sets
from cotune.experiments.report.charts import WIDE, Chart, Series, line_chart, style
from cotune.experiments.report.pages import write_page
from cotune.experiments.statistics import ScoreTable, gain, interval
from cotune.llm.own import read_bank
from cotune.policy.policy_files import missing_parts
from cotune.rollout.coordinator import Coordinator
from cotune.run.best import instruction_rows
from cotune.run.checkpoints import complete_checkpoints, step_of
from cotune.run.json_files import Row, locked, plain, write_json_atomic
from cotune.run.run_dir import RunDir
from cotune.types import Prompt
from cotune.utils.processes import stopped_by_sigterm
from cotune.utils.progress import begin, step_progress
from cotune.utils.tables import Cell, Scores, Table, on_console
from cotune.utils.text import flat, one_line, shorten, slug

INITIAL = "initial"
BEST = "best"
"""The policy that training started from, and the one that the run keeps; their instructions, too."""
CURVES = "Next task"
_DURING = "evaluate_during"
_SCORED = "scored.json"  # the file in --output that an interrupted command leaves
# Fields of a run file on which no score of the initial policy depends; of the strategy, what it evolves counts.
_NOT_SCORED_BY = {"name", "output", "seed", "threads", "strategy", "llm", "evaluation", "logging"}
# Patterns of fields that make no other run.
_SAVING = r"logging\..*|training\.(save_every|keep_checkpoints|rows_per_call|single_gpu)"
# In these, seeds of one method may differ; in those below also later stages, which start from what earlier ones left.
_BY_SEED = f"name|output|threads|{_SAVING}|.*(seed|url)"
_BY_EARLIER_STAGES = r"policy\.path|instruction\.text|training\.(steps|rollout_budget)"
Tasks = Mapping[str, Mapping[str, Any]]
"""By name, the fields of a run file in which a task differs from the run before it."""


class NextTasks(Chain):
    """Tasks that are trained one after the other.

    Each starts from the best policy of the one before; if its method evolves the instruction, also from the best
    instruction, unless it has one of its own. All pay as many rollouts, whatever their method verifies.

    Args:
        start: the policy and the instruction of the first one; None for those of the run file that they change.
    """

    def __init__(
        self, config: RunConfig, start: tuple[Path, str] | None, tasks: Tasks, folder: Path
    ) -> None:
        name = f"{config.name}, {BEST if start else INITIAL}"
        super().__init__(name, folder, list(tasks), "the file of --then")
        self.start = start
        self._config = config
        self._tasks = tasks

    def config(self, index: int, before: Sequence[Row] = ()) -> RunConfig:
        name = self.stages[index]
        task = parse_config(merge(dump_config(self._config), self._tasks[name]), f"--then {name}")
        path_of_run = self._config.policy.path
        if realpath(task.policy.path) != realpath(path_of_run):
            raise ConfigError(
                f"--then {name}: policy.path is {task.policy.path!r}; expected the run's, {path_of_run!r}: remove it "
                "there"
            )
        raw = dump_config(task)
        start = self.start
        if before:
            last = policy_of(self.folder / self.stages[index - 1])
            start = last, before[-1]["best_instruction"]
        if start is not None:
            raw = merge(raw, {"policy": {"path": str(start[0])}})
            if task.method.evolves == "instruction" and "instruction" not in self._tasks[name]:
                raw = merge(raw, {"instruction": {"text": start[1]}})
        training = task.training
        rollouts = training.steps * training.questions_per_step * training.group_size
        raw = merge(raw, {"training": {"rollout_budget": rollouts}})
        raw |= {"name": f"{self.name}, {name}", "output": str(self.folder / name)}
        return parse_config(raw, f"--then {name}")

    @property
    def settings(self) -> str:
        """What its training depends on, as text."""
        raws = [dump_config(config) for config in self.planned]
        for raw, config in zip(raws, self.planned, strict=True):
            raw.update(name="", output="")
            if config.method.evolves is None:
                raw["llm"] = None
        return json.dumps(raws, sort_keys=True)


# ---- what is measured


class MeasuredRun:
    """A run folder to measure.

    Attributes:
        label: the row of a suite that it is a seed of, if all runs of that name have one `pooled_by`; else its path.
        config: its run file, but with the policy that training started from; if that was the best one of another run,
            the one that this started from.
        policies: the name and folder of the initial policy (None), of each checkpoint that holds one, and of the best.

    Raises ConfigError: it is not the folder of a run, keeps no policy yet, or is a script's.
    """

    def __init__(self, folder: Path) -> None:
        self.run, self.trained_config = open_trained(folder)
        self.config = self.trained_config
        if isinstance(self.config, ScriptRun):
            raise ConfigError(
                f"{folder}: is a script's run, whose questions are in the script; expected the run of a run file"
            )
        self.instruction = best_record(self.run).instruction
        policy = self.config.policy
        while (earlier_run := run_of_policy(Path(policy.path))) is not None:
            policy = recorded_config(RunDir.open(earlier_run)).policy
        self.config = self.config.model_copy(update={"policy": policy})
        complete = reversed(complete_checkpoints(self.run.checkpoints_path))
        holding = {f"step {step_of(path)}": path for path in complete if not missing_parts(path)}
        self.policies = {INITIAL: None, **holding, BEST: self.run.best_path}
        match = re.fullmatch(r"(.+), seed (\d+)", self.config.name)
        self.label = match[1] if match else os.path.relpath(folder)
        self.pooled_by = pooled_by(self.config, int(match[2])) if match else ""

    def check(self, texts: Sequence[str], options: EvaluationOptions) -> None:
        """Raise ConfigError if there are no questions, or a prompt does not fit; no weights are loaded."""
        from cotune.policy.local_policy import load_codec

        codec = load_codec(self.config.policy)
        (questions,) = question_sets(self.config, run_environment(self.config, codec), options)
        environment = questions.environment
        if isinstance(environment, TaskEnvironment):
            # Only these are asked.
            environment = environment.with_tasks({questions.name: questions.tasks})
        places = (self.config.limits, [questions.name])
        for text in texts:
            try:
                check_prompts(environment, codec, text, *places, strategy="static")
            except ConfigError as error:
                raise ConfigError(
                    f"--reworded: {shorten(text)} does not fit {self.run.path}: {error}; name a file without it"
                ) from error

    def next_tasks(self, tasks: Tasks, output: Path) -> list[NextTasks]:
        """Return each task from the initial policy, and all in sequence from the best one."""
        folder = output / slug(self.label) / f"seed-{self.config.seed}"
        alone = [
            NextTasks(self.config, None, {name: task}, folder / INITIAL)
            for name, task in tasks.items()
        ]
        best = policy_of(self.run.path), self.instruction
        # A run that is resumed may keep another best policy, whose next tasks have another folder.
        of_best = folder / f"{BEST}-{hash_of_best(self.run.path)[:8]}"
        return [*alone, NextTasks(self.config, best, tasks, of_best)] if tasks else []


def pooled_by(config: RunConfig, seed: int) -> str:
    """Return as text what seeds of one method share; a later stage of a suite's row has another `seed` in its name."""
    seed_offset = config.seed - seed
    left_out = f"{_BY_SEED}|{_BY_EARLIER_STAGES}" if seed_offset else _BY_SEED
    row_folder = realpath(config.output.parent.parent) if seed_offset else ""
    fields = flat(dump_config(config)).items()
    shared = {name: value for name, value in fields if not re.fullmatch(left_out, name)}
    return json.dumps([shared, seed_offset, row_folder], sort_keys=True)


def score_runs(
    runs: Sequence[MeasuredRun], texts: Sequence[str], options: EvaluationOptions, file: Path
) -> Iterator[ScoreTable]:
    """Yield the drift and the robustness of each run.

    Args:
        texts: other instructions; without any, robustness is left out.
        file: what an interrupted command has scored, by the settings that it depends on; added to.
    """
    scored = json.loads(file.read_bytes()) if file.exists() else {}
    initial_scores: dict[str, tuple[list[Row], dict[str, PromptScores]]] = {}
    for run in runs:
        policies = [hash_of_best(run.run.path), *run.policies]
        questions = [options.split, options.limit]
        config = dump_config(run.trained_config)
        settings = json.dumps([run.label, config, policies, texts, questions])
        if settings not in scored:
            others = robustness(run, texts, options, initial_scores) if texts else ()
            values = pd.concat([*drift(run, options), *others])
            scored[settings] = plain(values.to_dict("records"), file.name)
            write_json_atomic(file, scored)
        yield pd.DataFrame(scored[settings])


def drift(run: MeasuredRun, options: EvaluationOptions) -> Iterator[ScoreTable]:
    """Yield scores and divergences from the initial policy (see `score`) along the checkpoints."""
    initial: Coordinator | None = None
    for name, folder in run.policies.items():
        begin(f"{run.run.path}, {name} policy")
        texts = {INITIAL: None, BEST: run.instruction}
        config = run.trained_config if folder else run.config
        policy, tasks, scores = _scores(config, folder, texts, options, 1, initial)
        initial = initial or policy
        for title, scored in scores.items():
            figures = {
                f"Score, {title} instr.": scored.rewards["greedy"],
                f"KL per token, {title} instr.": per_question(scored.divergences),
                f"KL per sequence, {title} instr.": [total for total, _ in scored.divergences],
            }
            yield from _values(run, name, "Drift", tasks, figures)


def robustness(
    run: MeasuredRun,
    texts: Sequence[str],
    options: EvaluationOptions,
    initial_scores: dict[str, tuple[list[Row], dict[str, PromptScores]]],
) -> Iterator[ScoreTable]:
    """Yield the scores of the initial and the best policy under other instructions, and without any.

    Args:
        initial_scores: the questions and scores of initial policies so far, which several runs may share; added to.
    """
    under = f"under {len(texts)} other{'s' * (len(texts) != 1)}"
    by_text = {text: text for text in texts} | {"": ""}
    raw = dump_config(run.config)
    scored_by = {name: raw[name] for name in raw.keys() - _NOT_SCORED_BY}
    key = json.dumps([scored_by, run.config.method.evolves], sort_keys=True)
    if key not in initial_scores:
        initial_scores[key] = _scores(run.config, None, by_text, options)[1:]
    of_best = _scores(run.trained_config, run.policies[BEST], by_text, options)[1:]
    for name, (tasks, scores) in {INITIAL: initial_scores[key], BEST: of_best}.items():
        rewards = {text: scored.rewards["greedy"] for text, scored in scores.items()}
        others = sorted((rewards[text] for text in texts), key=fmean)
        figures = {
            f"Mean, {under}": np.mean(others, axis=0),
            f"Lowest, {under}": others[0],
            f"Highest, {under}": others[-1],
            "Score, without any": rewards[""],
        }
        yield from _values(run, name, "Other words", tasks, figures)


def curves(run: MeasuredRun, chain: NextTasks) -> Iterator[ScoreTable]:
    """Yield the end of each task's learning curve, on the test split, and the area under it.

    Validations are equally spaced, so that a question's mean over them is its area, divided by the length.
    """
    for name in chain.stages:
        trained = RunDir.open(chain.folder / name)
        steps = [step for step, purpose in trained.trajectory_files() if purpose == _DURING]
        evaluations = {
            f"{name}: end, test split": [trained.read_evaluation("after")],
            f"{name}: area, mean of validations": [
                trained.read_trajectories(step, _DURING) for step in steps
            ],
        }
        for figure, rollouts in evaluations.items():
            if any(rollouts):
                means = np.mean([[row["reward"] for row in rows] for rows in rollouts], axis=0)
                tasks = [row["task"] for row in rollouts[0]]
                start = BEST if chain.start else INITIAL
                yield from _values(run, start, CURVES, tasks, {figure: means})


def _scores(
    config: RunConfig,
    best: Path | None,
    texts: Mapping[str, str | None],
    options: EvaluationOptions,
    samples: int = 0,
    initial: Coordinator | None = None,
) -> tuple[Coordinator, list[Row], dict[str, PromptScores]]:
    """Score the policy of a folder, or the initial one, under instructions by name; None is the initial one.

    Divergences are from `initial`, or this policy. Return the policy, the questions, and the scores.
    """
    environment = run_environment(config)
    (questions,) = question_sets(config, environment, options)
    plain = initial_instruction(config.instruction.text, environment)
    prompts = {name: Prompt(plain if text is None else text) for name, text in texts.items()}
    policy = run_policy(config, environment, best=best)
    scores = score(policy, prompts, questions, samples, initial=initial or policy)
    return policy, [asdict(task) for task in questions.tasks], scores


def _values(
    run: MeasuredRun, policy: str, table: str, tasks: Sequence[Row], figures: Mapping[str, Any]
) -> Iterator[ScoreTable]:
    """Yield a table for each figure, which has a value for each task."""
    columns = {"run": run.label, "seed": run.config.seed, "policy": policy, "table": table}
    columns |= {"question": [task["id"] for task in tasks]}
    columns |= {"stratum": [task["stratum"] for task in tasks]}
    for figure, values in figures.items():
        yield pd.DataFrame({**columns, "figure": figure, "reward": values})


# ---- as figures, tables and a picture


_NOTES = {
    "Drift": "KL from the initial policy in nats, exact over the vocabulary, on one sampled rollout per question of "
    "the policy itself. 95 % intervals over questions, and seeds if there are several.",
    "Other words": "Mean: of each question's scores under all of them.",
    CURVES: "From the initial policy, and from the best one of the run and the tasks before. As many rollouts each; "
    "small: the gain over the initial policy.",
}
"""The tables, with what a reader must know of each."""


def figures_of(values: Sequence[ScoreTable]) -> list[Row]:
    """Return all figures as plain data: the mean and its 95 % interval over questions, and seeds if several.

    `gain` is the difference from the first policy of the run that has the figure, with its interval, paired by seed and
    question. What only some seeds of a run have is left out.
    """
    everything: ScoreTable = pd.concat(values)
    seeds = everything.groupby("run")["seed"].nunique()
    firsts: dict[Any, ScoreTable] = {}
    rows: list[Row] = []
    names = ["run", "policy", "table", "figure"]
    for key, scores in everything.groupby(names, sort=False):
        run, _, _, figure = key
        if scores["seed"].nunique() < seeds[run]:
            continue
        ends = interval(scores)
        if figure.startswith("KL"):
            # That of a policy from itself is 0, without a spread.
            ends = (max(0.0, ends[0]), ends[1]) if ends and scores["reward"].any() else None
        first = firsts.setdefault((run, figure), scores)
        row = dict(zip(names, key, strict=True)) | {"mean": scores["reward"].mean()}
        difference = None if first is scores else gain(scores, first)
        rows.append(row | {"interval": ends, "gain": difference, "seeds": seeds[run]})
    return rows


def measure_tables(figures: Sequence[Row]) -> list[Table]:
    """Return a table of each sort of figures: runs and policies × figures."""
    tables = ((name, [row for row in figures if row["table"] == name]) for name in _NOTES)
    return [_table(name, of_table) for name, of_table in tables if of_table]


def _table(name: str, figures: Sequence[Row]) -> Table:
    form = Scores(_are_shares(figures))
    by_name = {(row["run"], row["policy"], row["figure"]): row for row in figures}
    columns = dict.fromkeys(row["figure"] for row in figures)

    def cell(run: str, policy: str, figure: str) -> Cell:
        row = by_name.get((run, policy, figure))
        if row is None:
            return Cell()
        if figure.startswith("KL"):
            return divergence_cell(row["mean"], row["interval"])
        mean = form.cell(row["mean"], row["interval"])
        if name != CURVES or row["gain"] is None:
            return mean
        difference = form.cell(*row["gain"], change=True)
        return Cell(mean.text, f"{difference.text}, {difference.note}", difference.css)

    rows: list[list[Cell]] = []
    for run in dict.fromkeys(row["run"] for row in figures):
        rows.append([Cell(run)])
        for policy in dict.fromkeys(row["policy"] for row in figures if row["run"] == run):
            rows.append([Cell(policy), *(cell(run, policy, figure) for figure in columns)])
    heads = [Cell(*column.split(", ")) for column in columns]
    return Table([Cell(name), *heads], rows, _NOTES[name])


def _are_shares(figures: Sequence[Row]) -> bool:
    return all(0 <= row["mean"] <= 1 for row in figures if not row["figure"].startswith("KL"))


def drift_chart(figures: Sequence[Row]) -> Chart | None:
    """Draw each run's score against its divergence from the initial policy, under its best instruction."""
    means = {(row["run"], row["policy"], row["figure"]): row["mean"] for row in figures}
    points: dict[str, list[tuple[float, float]]] = {}
    for (run, policy, figure), mean in means.items():
        if figure == f"Score, {BEST} instr.":
            divergence = means[run, policy, f"KL per token, {BEST} instr."]
            points.setdefault(run, []).append((divergence, mean))
    return line_chart(
        "Score against divergence from the initial policy",
        [Series(run, sorted(of_run), style(i)) for i, (run, of_run) in enumerate(points.items())],
        share=_are_shares(figures),
        x_label="KL per token, nats",
        note="A point is a checkpoint, or the best policy, under the run's best instruction.",
        size=WIDE,
    )


# ---- the command

LINEAGE = "lineage"


def measure(
    folders: Sequence[Path],
    console: Console,
    options: EvaluationOptions,
    reworded: str,
    then: Sequence[Path],
    output: Path,
    check_task: Callable[[RunConfig], object],
    at_once: int = 1,
) -> None:
    """Measure runs; write measure.json and report.html into `output`, and print the tables.

    Args:
        options: their split and limit apply.
        reworded: a file of instructions, or "lineage" for all that any of the runs had; "" for none.
        then: the files of the tasks that are trained after each run, in order, in folders of `output`.
        check_task: raises ConfigError or EngineError for what is wrong with a task's run file on any machine.
        at_once: how many of these trainings run at a time.

    Raises:
        ConfigError: an option, a run or a task is wrong; before anything is trained or rolled out.
        Stopped: Ctrl-C; the same command goes on.
        ChainsFailed: a run of `then` failed; the rest is reported.
    """
    check_own_folder(output, "--output", "measure.lock", "measure.json")
    tasks = {slug(path.stem): read_fields(path, "a run file", "training:") for path in then}
    if len(tasks) < len(then) or "" in tasks:
        raise ConfigError("--then: expected files whose names differ in letters a-z or digits")
    runs = [MeasuredRun(folder) for folder in folders]
    methods = Counter(label for label, _ in {(run.label, run.pooled_by) for run in runs})
    for run in runs:
        if methods[run.label] > 1:
            run.label = os.path.relpath(run.run.path)
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
    # What several runs would train alike, from their initial policy, is trained once.
    distinct: dict[str, NextTasks] = {}
    chains = [
        (run, distinct.setdefault(chain.settings, chain))
        for run in runs
        for chain in run.next_tasks(tasks, output)
    ]
    training = list(distinct.values())
    look_at(training)
    if then:
        allow_hub()
    for run in runs:
        quiet_libraries(run.config)
        if texts or then:
            run.check(texts, options)
    for chain in training:
        if chain.start is None and chain.command:  # One task, which is due.
            try:
                check_task(*chain.planned)
            except CotuneError as error:
                raise type(error)(f"--then {chain.stages[0]}: {error}") from error
    printed = set[str]()
    output.mkdir(parents=True, exist_ok=True)
    busy = f"{output} is being written by another cotune measure; wait for it, or name another --output"
    try:
        with stopped_by_sigterm(), step_progress(console), locked(output / "measure.lock", busy):
            run_chains(training, at_once, lambda: print_progress(training, printed, console))
            values = [*score_runs(runs, texts, options, output / _SCORED)]
            for run, chain in chains:
                values += () if chain.problem else curves(run, chain)
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
    file = output / "measure.json"
    write_json_atomic(file, plain({"schema_version": 1, "kind": "measure"} | data, file.name))
    # The environment's code may change before the next command.
    (output / _SCORED).unlink()
    tables = measure_tables(data["figures"])
    page = write_page(
        output, "measure.html.j2", {**data, "tables": tables, "chart": drift_chart(data["figures"])}
    )
    for table in tables:
        console.print(on_console(table))
        console.print(table.notes, markup=False, highlight=False, soft_wrap=True)
    for line in (*data["notices"], f"figures: {file}   report: {page}"):
        console.print(one_line(line), markup=False, highlight=False, soft_wrap=True)
    if failed:
        raise ChainsFailed("; ".join(failed))
