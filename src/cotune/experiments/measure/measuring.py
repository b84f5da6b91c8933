"""Measure what only joint training promises: drift, robustness, plasticity and learning on.

The claims are FST's (arXiv 2605.12484): little divergence from the initial policy for the same score; a second task
learned as from the initial policy; tasks learned one after the other. The score under other words is added.

What is measured are tables as `experiments.statistics` has them, with the columns run, policy, table and figure; of every
figure, the initial policy comes first.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from cotune.config.build import initial_instruction, run_environment, run_policy
from cotune.config.resuming import open_trained, recorded_config
from cotune.config.run_file import RunConfig, ScriptRun
from cotune.errors import ConfigError
from cotune.experiments.evaluate.evaluation import PromptScores, best_record, score
from cotune.experiments.evaluate.quadrants import hash_of_best, per_question
from cotune.experiments.evaluate.questions import EvaluationOptions, question_sets
from cotune.experiments.measure.next_tasks import NextTasks, Tasks
from cotune.experiments.statistics import ScoreTable
from cotune.policy.policy_files import missing_parts
from cotune.rollout.coordinator import Coordinator
from cotune.run.checkpoints import complete_checkpoints, step_of
from cotune.run.json_files import Row
from cotune.run.run_dir import RunDir
from cotune.types import Prompt
from cotune.utils.progress import begin
from cotune.utils.text import slug

INITIAL = "initial"
BEST = "best"
"""The policy that training started from, and the one that the run keeps; their instructions, too."""
CURVES = "Next task"
_DURING = "evaluate_during"


class MeasuredRun:
    """A run folder to measure.

    Attributes:
        label: the row of a suite that it is a seed of; else its path.
        trained_config: its run file.
        config: the same with the policy that training started from; if that was the best one of another run,
            the one that this started from.
        instruction: the best one.
        policies: the name and folder of the initial policy (None), of each checkpoint that holds one, and of the best.

    Raises:
        ConfigError: it is not the folder of a run, keeps no policy yet, or is a script's.
    """

    def __init__(self, folder: Path) -> None:
        self.run, self.trained_config = open_trained(folder)
        self.config = self.trained_config
        if isinstance(self.config, ScriptRun):
            raise ConfigError(
                f"{folder}: is a script's run, whose questions are in the script; expected the run of a run file"
            )
        self.instruction = best_record(self.run).instruction
        match = re.fullmatch(r"(.+), seed \d+", self.config.name)
        self.label = match[1] if match else os.path.relpath(folder)
        policy = self.config.policy
        while (path := Path(policy.path)).name == "best" and RunDir.is_run(path.parent):
            policy = recorded_config(RunDir.open(path.parent)).policy
        self.config = self.config.model_copy(update={"policy": policy})
        complete = reversed(complete_checkpoints(self.run.checkpoints_path))
        holding = {f"step {step_of(path)}": path for path in complete if not missing_parts(path)}
        self.policies = {INITIAL: None, **holding, BEST: self.run.best_path}

    def next_tasks(self, tasks: Tasks, output: Path) -> list[NextTasks]:
        """Return each task from the initial policy, and all in sequence from the best one."""
        if tasks and self.trained_config.policy.lora is not None:
            raise ConfigError(
                f"--then: {self.run.path} trained adapters, and training starts from whole weights; leave --then out, "
                "or measure a run without policy.lora"
            )
        folder = output / slug(self.label) / f"seed-{self.config.seed}"
        alone = [
            NextTasks(self.config, None, {name: task}, folder / INITIAL)
            for name, task in tasks.items()
        ]
        best = self.run.best_path, self.instruction
        # A run that is resumed may keep another best policy, whose next tasks have another folder.
        of_best = folder / f"{BEST}-{hash_of_best(self.run.path)[:8]}"
        return [*alone, NextTasks(self.config, best, tasks, of_best)] if tasks else []


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
    run: MeasuredRun, texts: Sequence[str], options: EvaluationOptions
) -> Iterator[ScoreTable]:
    """Yield the scores of the initial and the best policy under other instructions, and without any."""
    under = f"under {len(texts)} other{'s' * (len(texts) != 1)}"
    for name in (INITIAL, BEST):
        by_text = {text: text for text in texts} | {"": ""}
        config = run.config if name == INITIAL else run.trained_config
        _, tasks, scores = _scores(config, run.policies[name], by_text, options)
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


def all_tasks(
    run: MeasuredRun, chain: NextTasks, options: EvaluationOptions
) -> Iterator[ScoreTable]:
    """Yield the scores on all tasks after each, under the instruction then kept and under the task's initial one."""
    tasks = {"own task": run.config} | {name: chain.task(name) for name in chain.stages}
    trained = [run.run, *(RunDir.open(chain.folder / name) for name in chain.stages)]
    for after, folder in zip(["nothing", *tasks], [None, *trained], strict=True):
        kept = None
        # A method that does not evolve the instruction has each task's own.
        if folder is not None and tasks[after].method.evolves == "instruction":
            kept = best_record(folder).instruction
        best = folder and folder.best_path
        for name, config in tasks.items():
            begin(f"{run.run.path}, after {after}: {name}")
            texts = {"kept": kept, INITIAL: None}
            _, questions, scores = _scores(config, best, texts, options)
            figures = {
                f"{name}, {title} instr.": scored.rewards["greedy"]
                for title, scored in scores.items()
            }
            yield from _values(run, f"after {after}", "All tasks", questions, figures)


def _scores(
    config: RunConfig,
    best: Path | None,
    texts: Mapping[str, str | None],
    options: EvaluationOptions,
    samples: int = 0,
    initial: Coordinator | None = None,
) -> tuple[Coordinator, list[Row], dict[str, PromptScores]]:
    """Score the policy of a folder, or the initial one, under instructions by name; None is the initial one.

    Args:
        initial: the policy that divergences are from; None is this one.

    Returns:
        the policy; id and stratum of each question; the scores.
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
